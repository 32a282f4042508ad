"""What is wrong with a projector or with what it depends on, by name: for health, the log, heartbeats and metrics."""

from typing import Literal, get_args

import msgspec

Kind = Literal[
    "halted",
    "failing",
    "standing_by",
    "no_step",
    "not_advancing",
    "no_partitions",
    "topic_missing",
    "topic_not_compacted",
    "topic_recreated",
    "topic_truncated",
    "redis_evicts",
    "redis_full",
    "redis_unknown",
    "kafka_unknown",
]
KINDS: tuple[Kind, ...] = get_args(Kind)
"""The names of all problems. `docs/runbook.md` has a section for each."""

OF_SERVERS: frozenset[Kind] = frozenset(
    (
        *("topic_missing", "topic_not_compacted", "topic_recreated", "topic_truncated"),
        *("redis_evicts", "redis_full"),
    )
)
"""Those that anybody sees who asks the servers."""


class Problem(msgspec.Struct, frozen=True):
    """`subject` is the line or the topic that it concerns, if there is one. `text` says what is wrong and what to do.

    The text may change from one moment to the next, for it has numbers: `name` tells whether it is the same problem.
    """

    kind: Kind
    subject: str
    text: str

    @property
    def name(self) -> tuple[str, str]:
        return self.kind, self.subject
