"""Judges the topics: they must exist, be served, be allowed to this user, and be compacted."""

from collections.abc import Iterator

from projector.commands.finding import Finding
from projector.commands.survey import KafkaPart


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
