"""Processes of the projector, as they are delivered, and how far they are."""

import os
import sys
from collections.abc import Sequence

from redis import Redis

from bench.cores import pinned
from bench.lab import Lab
from bench.server import ROOT
from bench.traffic import PREFIX
from devstack.apache_kafka import ApacheKafka
from devstack.child import Child
from schemas import names

_ACCESS_TOPICS = ("organizations", "api-keys")
DOCUMENT_TOPICS = ("leads", "contacts")
GROUP = "bench"


def start(
    lab: Lab,
    kafka: str,
    redis_url: str,
    words: Sequence[str] = ("run",),
    *,
    cores: set[int] | None,
    prefix: str = PREFIX,
    group: str = GROUP,
) -> Child:
    """`python -m projector <words>`, with no setting but where the servers are."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LEADVIEW_")}
    environment |= {"LEADVIEW_REDIS_URL": redis_url, "LEADVIEW_KAFKA_BOOTSTRAP_SERVERS": kafka}
    environment |= {"LEADVIEW_GROUP_ID": group, "LEADVIEW_TOPIC_PREFIX": prefix, "PYTHONPATH": str(ROOT)}
    with pinned(cores):
        return Child(
            [sys.executable, "-m", "projector", *words],
            log=lab.directory / f"projector-{words[0]}.log",
            environment=environment,
        )


def create_topics(kafka: ApacheKafka, partitions: int, prefix: str = PREFIX) -> None:
    """The four topics, with so many partitions each."""
    for topic in (*DOCUMENT_TOPICS, *_ACCESS_TOPICS):
        kafka.create_topic(prefix + topic, partitions)


def covered(redis: Redis, partitions: int, prefix: str = PREFIX) -> int:
    """Records of leads and contacts that are covered by a checkpoint."""
    fields = [names.position(prefix + topic, number) for topic in DOCUMENT_TOPICS for number in range(partitions)]
    values: list[bytes | None] = redis.hmget(names.POSITIONS, fields)  # type: ignore[assignment]
    return sum(int(value.split()[0]) for value in values if value)
