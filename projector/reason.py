"""Why Redis or Kafka cannot be used, and why a command is refused: kinds with data, which an error carries.

`projector/words.py` has a text for each kind. What `status` shows as well is a `projector.problem` instead.
"""

from typing import Literal

from msgspec import Struct

KafkaKind = Literal[
    "kafka_failed",
    "kafka_away",
    "kafka_back",
    "kafka_closes",
    "kafka_silent",
    "kafka_hangs",
    "kafka_unreachable",
    "not_kafka",
    "tls_failed",
    "certificate_not_accepted",
    "mechanism_not_accepted",
    "user_refused",
    "token_refused",
    "no_token",
]


class KafkaReason(Struct, frozen=True):
    """Brokers cannot be used. `at` are their addresses, `protocol` and `user` are those of the settings, and `detail`
    is what a broker or a library says, or the name or value of another setting. They had this number of `seconds`.
    """

    kind: KafkaKind
    detail: str = ""
    at: str = ""
    protocol: str = ""
    user: str | None = None
    seconds: float = 0.0


class RedisReason(Struct, frozen=True):
    """Redis, or the control record in it, cannot be used. `detail` is what Redis or its client says."""

    kind: Literal[
        "redis_failed",
        "restarted",
        "servers_restart",
        "one_of_cluster",
        "copies_disagree",
        "record_changed",
        "session_ended",
        "positions_reset",
    ]
    detail: str = ""


class TopicReason(Struct, frozen=True):
    """These topics, or partitions such as `crm.leads:0`, cannot be read as they are. `number` is how many partitions
    were revoked, or may be in a topic.
    """

    kind: Literal[
        "deleted_topic_named",
        "recreated_unnoticed",
        "recreated_meanwhile",
        "other_topic",
        "ends_before_position",
        "too_many_partitions",
        "revoked_early",
    ]
    topics: tuple[str, ...] = ()
    number: int = 0


class GenerationReason(Struct, frozen=True):
    """A generation is not in the state that a command needs. `topics` are those that have lost their history."""

    kind: Literal["generation_gone", "generation_not_dropping", "generation_lost_history"]
    generation: int
    topics: tuple[str, ...] = ()


class DeadLetterReason(Struct, frozen=True):
    """Dead letters, or the records that a consumer group keeps as accepted, are not what a command needs.

    `named` is what the operator has named, or the group. `others` are the ranges that have no dead letter, all topics,
    or the partitions of the group. `number` is a partition, the last offset, or the characters of a text. `detail` says
    what is wrong with a text, or has the ranges that make it shorter.
    """

    kind: Literal[
        "no_dead_letter",
        "no_dead_letter_matches",
        "no_topic",
        "no_partition",
        "no_records",
        "no_offset",
        "accepted_late",
        "group_without_offsets",
        "text_not_ours",
        "text_too_long",
    ]
    named: str = ""
    others: tuple[str, ...] = ()
    number: int = 0
    detail: str = ""


Reason = KafkaReason | RedisReason | TopicReason | GenerationReason | DeadLetterReason
