"""Judges the topics: they must exist, be served, be allowed to this user, be compacted, and keep their history."""

from collections.abc import Iterator

from projector.ledger import breaks
from projector.ledger.control import ACCESS, Break, ControlRecord
from projector.operate.observe import KafkaPart
from projector.operate.words import Finding


def of_topics(kafka: KafkaPart) -> Iterator[Finding]:
    """Yields what is wrong with the topics."""
    kept = [(topic, topic.retention) for topic in kafka.topics if topic.retention]
    found = [
        (
            [topic.name for topic in kafka.topics if not topic.allowed],
            "this user may not read it",
            "let the user of the projector read and describe it",
            "topic_missing",
        ),
        (
            [topic.name for topic in kafka.topics if topic.allowed and not topic.exists],
            "missing",
            "create what is missing, compacted (cleanup.policy=compact), or correct LEADVIEW_TOPIC_PREFIX",
            "topic_missing",
        ),
        (
            [topic.name for topic in kafka.topics if topic.leaderless],
            "not served, because partitions have no leader",
            "repair the brokers of Kafka",
            "kafka_unknown",
        ),
        (
            [f"{topic.name} ({retention})" for topic, retention in kept if not retention.compacts],
            "not compacted",
            "records that are still needed would vanish: set cleanup.policy=compact",
            "topic_not_compacted",
        ),
        (
            [f"{topic.name} ({retention})" for topic, retention in kept if retention.compacts and retention.deletes],
            "compacted, but its old records are deleted as well",
            "records that are still needed would vanish: set cleanup.policy=compact",
            "topic_not_compacted",
        ),
    ]
    for names, state, advice, section in found:
        if names:
            topics = "topic" if len(names) == 1 else "topics"
            page = f"runbook.md#{section}"
            yield Finding(f"{topics} {', '.join(names)}: {state}", advice, page, where=("kafka",))


def of_history(record: ControlRecord, kafka: KafkaPart | None) -> Iterator[Finding]:
    """Yields which topics have lost their history, as far as that concerns what is served."""
    ids = {topic.name: topic.id for topic in kafka.topics} if kafka else {}
    for found in breaks.served(record, ids):
        yield Finding(
            f"topic {found.topic} {found.what}, so what is served may be what Kafka no longer has",
            _advice(found),
            f"runbook.md#{found.kind}",
            where=("kafka",),
            detail=f"Noticed at {found.noticed_at}; the topic id was {found.former_id or 'not known'}, and is "
            f"{found.topic_id or 'not known'}.",
        )


def _advice(found: Break) -> str:
    publish = "let the core product publish all of its entities again, then"
    if ACCESS in found.unverified:
        return (
            f"{publish} run `verify --access`, which ends this problem if nothing differs; what is `extra` has to be "
            "deleted by an event"
        )
    return (
        f"{publish} run `verify`, which ends this problem if nothing differs. If something does, run `rebuild`, look "
        "at `verify --next`, and `promote`, with --force only if what is missing is gone on purpose"
    )
