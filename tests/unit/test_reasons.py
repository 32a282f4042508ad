"""What the errors of the projector say: a text for each kind of reason."""

from typing import get_args

import pytest

from projector.errors import Conflict, Denied, Refused, SessionEnded, Unavailable, WithReason
from projector.problem import OtherCluster, RedisEmpty, TopicMissing
from projector.reason import DeadLetterReason, GenerationReason, KafkaReason, Reason, RedisReason, TopicReason
from projector.words import REASONS

GROUP = "crm.accepted"
LEADS = ("crm.leads", "crm.contacts")
SAID: dict[Reason, str] = {
    KafkaReason("kafka_failed", "NodeNotReadyError"): "Kafka: NodeNotReadyError",
    KafkaReason("kafka_away"): "Kafka: no broker answers",
    KafkaReason("kafka_back"): "Kafka: the brokers were not available a moment ago, and answer now",
    KafkaReason("kafka_closes", at="a:9092", protocol="SASL_SSL"): (
        "Kafka at a:9092 closes the connection: it is starting or stopping, or LEADVIEW_KAFKA_SECURITY_PROTOCOL "
        "(SASL_SSL) is not that of this port"
    ),
    KafkaReason("kafka_silent", at="a:9092"): (
        "Kafka cannot be reached at a:9092 (it does not answer): start it, or correct LEADVIEW_KAFKA_BOOTSTRAP_SERVERS"
    ),
    KafkaReason("kafka_hangs", at="a:9092", seconds=5.0): (
        "Kafka at a:9092 accepts connections, and does not answer within 5 s: look whether the process of the broker "
        "stands still or is overloaded, and whether its disk and its controllers respond"
    ),
    KafkaReason("kafka_unreachable", "refused", "a:9092"): (
        "Kafka cannot be reached at a:9092 (refused): start it, or correct LEADVIEW_KAFKA_BOOTSTRAP_SERVERS"
    ),
    KafkaReason("not_kafka", at="a:9092"): (
        "what answers at a:9092 is not Kafka 0.11 or later: correct LEADVIEW_KAFKA_BOOTSTRAP_SERVERS"
    ),
    KafkaReason("tls_failed", "WRONG_VERSION_NUMBER", "a:9092", "SSL"): (
        "no TLS connection to Kafka at a:9092 (WRONG_VERSION_NUMBER): correct LEADVIEW_KAFKA_SECURITY_PROTOCOL (SSL), "
        "the port in LEADVIEW_KAFKA_BOOTSTRAP_SERVERS, or the client certificate (LEADVIEW_KAFKA_SSL_CERT_FILE)"
    ),
    KafkaReason("certificate_not_accepted", "expired", "a:9092"): (
        "the certificate of Kafka at a:9092 is not accepted (expired): correct LEADVIEW_KAFKA_SSL_CA_FILE, or the host "
        "in LEADVIEW_KAFKA_BOOTSTRAP_SERVERS"
    ),
    KafkaReason("mechanism_not_accepted", "PLAIN", protocol="SASL_SSL"): (
        "Kafka does not accept LEADVIEW_KAFKA_SASL_MECHANISM (PLAIN) on this port: correct it, "
        "LEADVIEW_KAFKA_SECURITY_PROTOCOL (SASL_SSL), or the port in LEADVIEW_KAFKA_BOOTSTRAP_SERVERS"
    ),
    KafkaReason("user_refused", "LEADVIEW_KAFKA_SASL_PASSWORD_FILE (/run/p)", user="crm"): (
        "Kafka refuses the user 'crm' or its password: correct LEADVIEW_KAFKA_SASL_USERNAME and "
        "LEADVIEW_KAFKA_SASL_PASSWORD_FILE (/run/p)"
    ),
    KafkaReason("token_refused", "invalid_token"): (
        "Kafka refuses the token (invalid_token): correct LEADVIEW_KAFKA_OAUTH_CLIENT_ID, LEADVIEW_KAFKA_OAUTH_SCOPE "
        "or the token provider, or let the brokers accept its issuer and its audience"
    ),
    KafkaReason("no_token", "it is empty"): "there is no token to sign in to Kafka: it is empty",
    RedisReason("redis_failed", "LOADING"): "Redis: LOADING",
    RedisReason("restarted"): "Redis: it restarted or failed over while a batch was being written",
    RedisReason("servers_restart"): "Redis: servers restart or fail over again and again",
    RedisReason("one_of_cluster"): (
        "Redis cannot be used like this: it is one node of a cluster: write redis+cluster:// (or rediss+cluster://) in "
        "LEADVIEW_REDIS_URL."
    ),
    RedisReason("copies_disagree"): (
        "Redis: the copies of the control record disagree, because they are being changed"
    ),
    RedisReason("record_changed"): (
        "Another command, or a projector, has just changed the control record: check `status`, then try again."
    ),
    RedisReason("session_ended"): "Redis: the control record has changed while a batch was being written",
    RedisReason("positions_reset"): "the line has no session, because its positions were reset",
    TopicReason("deleted_topic_named", LEADS): (
        "Kafka: a broker still names a topic that was deleted: crm.leads, crm.contacts"
    ),
    TopicReason("recreated_unnoticed", LEADS): (
        "crm.leads, crm.contacts was created again, and no projector has noticed it yet, so nothing can be verified: "
        "see `status`, and try again when projectors are running."
    ),
    TopicReason("recreated_meanwhile", LEADS[:1]): (
        "Kafka: crm.leads was created again while it was compared with Redis"
    ),
    TopicReason("other_topic", LEADS[:1]): "Kafka: crm.leads is another topic than the one that was applied",
    TopicReason("ends_before_position", ("crm.leads:3",)): "Kafka: crm.leads:3 ends before the position in Redis",
    TopicReason("too_many_partitions", LEADS[:1], 32_768): (
        "topic crm.leads has more than 32,768 partitions, which Leadview cannot read"
    ),
    TopicReason("revoked_early", number=2): "Kafka: 2 partitions were revoked before they were sought",
    GenerationReason("generation_gone", 3): (
        "Generation 3 is gone: it was dropped while it was being filled, or Redis was emptied."
    ),
    GenerationReason("generation_not_dropping", 3): (
        "Redis was emptied or went back in time: generation 3 is not being dropped any more. Check `status`, then run "
        "`drop` again if there is still something to drop."
    ),
    GenerationReason("generation_lost_history", 3, LEADS): (
        "Topic crm.leads, crm.contacts has lost its history while generation 3 was being filled: `drop 3`, then run "
        "`rebuild` again."
    ),
    DeadLetterReason("no_dead_letter", others=("crm.leads:0:3", "crm.leads:1:4-9")): (
        "There is no dead letter crm.leads:0:3, crm.leads:1:4-9. `dead-letters list` shows all of them."
    ),
    DeadLetterReason("no_dead_letter_matches"): (
        "No dead letter matches. `dead-letters list` shows all of them. The records that have halted a line are not "
        "stored as dead letters yet: name the range that its message shows."
    ),
    DeadLetterReason("no_topic", "other", LEADS): (
        "other is not a topic of Leadview. Its topics are crm.leads, crm.contacts."
    ),
    DeadLetterReason("no_partition", "crm.leads", number=9): "The topic crm.leads has no partition 9.",
    DeadLetterReason("no_records", "crm.leads:0:3", number=-1): (
        "crm.leads:0:3 does not exist: the partition has no records."
    ),
    DeadLetterReason("no_offset", "crm.leads:0:3", number=2): (
        "crm.leads:0:3 does not exist: the partition has no records after the offset 2."
    ),
    DeadLetterReason("accepted_late"): "the accepted bad records could not be changed in time",
    DeadLetterReason("group_without_offsets", GROUP, ("crm.leads:0", "crm.leads:1")): (
        "Kafka: the coordinator of the group crm.accepted did not return its offsets of crm.leads:0, crm.leads:1"
    ),
    DeadLetterReason("text_not_ours", GROUP, ("crm.leads:0",), detail="no JSON"): (
        "What the consumer group crm.accepted holds for crm.leads:0 was not written by this program (no JSON). Delete "
        "the offsets of this group in Kafka, then accept the records again."
    ),
    DeadLetterReason("text_too_long", number=5000, detail="crm.leads:0:1-9 crm.leads:1:2-3"): (
        "Nothing was changed: the list of accepted records of a partition would have 5,000 characters, which is more "
        "than Kafka stores for a partition (offset.metadata.max.bytes of the brokers, by default 4096). Name whole "
        "ranges instead of single records, such as crm.leads:0:1-9 crm.leads:1:2-3. A range replaces what was accepted "
        "inside it."
    ),
}


def test_each_kind_of_reason_has_a_text() -> None:
    kinds = [kind for area in get_args(Reason) for kind in get_args(area.__annotations__["kind"])]
    assert len(kinds) == len(set(kinds)), "two areas have the same kind"
    assert list(REASONS) == kinds
    assert [reason.kind for reason in SAID] == kinds


@pytest.mark.parametrize(("reason", "text"), [pytest.param(*row, id=row[0].kind) for row in SAID.items()])
def test_error_says_its_reason(reason: Reason, text: str) -> None:
    assert str(Unavailable(reason)) == str(Refused(reason)) == text


@pytest.mark.parametrize(
    ("error", "text"),
    [
        pytest.param(Refused("said at the edge"), "said at the edge", id="a text of a command"),
        pytest.param(Denied(RedisReason("redis_failed", "NOPERM")), "Redis: NOPERM", id="a right is missing"),
        pytest.param(Conflict(RedisReason("record_changed")), "Another command, or a projector, has", id="a conflict"),
        pytest.param(SessionEnded(RedisReason("session_ended")), "Redis: the control record has", id="a session"),
        pytest.param(
            Refused(TopicMissing(("a", "b"))), "topics a, b: missing: create what is missing", id="topics are missing"
        ),
        pytest.param(
            Refused(RedisEmpty(filling=False)), "Redis is empty, so nothing is served: the API", id="Redis is empty"
        ),
        pytest.param(
            Unavailable(OtherCluster("one", "other", accepted=False, access=False)),
            "another Kafka cluster answers: its id is other, and what is served comes from one: nothing of it is",
            id="another cluster answers",
        ),
    ],
)
def test_error_says_a_problem_as_status_does(error: WithReason, text: str) -> None:
    assert str(error).startswith(text)
