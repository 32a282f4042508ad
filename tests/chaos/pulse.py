"""Notes what the checker must know to judge the API: when the machine was too busy, and when all was well."""

from contextlib import suppress
from math import inf
from typing import Any

from confluent_kafka import KafkaException

from devstack.threads import Repeating
from devstack.topics import admin
from projector.ledger.control import Copy
from projector.record import Partition
from schemas import resources
from tests.chaos.history import BUSY, Beat, Window, now
from tests.chaos.world import ABSENT, World, projectors
from tests.harness import control
from tests.harness.services import client_of

_PAUSE_SECONDS = 0.02
_LATE_SECONDS = 0.15
_AFTER_SECONDS = 1.0  # until a connection that was closed is open again
_PROBE_SECONDS = 0.2
_KAFKA_SECONDS = 1.0


class Pulse(Repeating):
    """Runs until `stop`. `windows` are the times in which even a thread that only sleeps did not wake up in time: then
    an unavailable API is not counted as wrong."""

    def __init__(self) -> None:
        super().__init__(_PAUSE_SECONDS)
        self._before = inf
        self.windows: list[Window] = []

    def _work(self) -> None:
        at = now()
        if at - self._before > _PAUSE_SECONDS + _LATE_SECONDS:
            self.windows.append(Window(BUSY, frozenset({0, 503}), self._before, at, at + _AFTER_SECONDS))
        self._before = at


class Probe(Repeating):
    """Runs until `stop`. `beats` say when Redis, Kafka and a projector were there, and how much was to be applied.

    It asks by connections of its own. While a server stands still, there is no beat.
    """

    def __init__(self, world: World) -> None:
        super().__init__(_PROBE_SECONDS)
        self._world = world
        self._url = ""
        self._redis: Any = None
        self._admin = admin(world.leadview.kafka.bootstrap_servers)
        self.beats: list[Beat] = []

    def stop(self, timeout: float | None = _KAFKA_SECONDS) -> None:
        """It may still wait for a server that stands still, and end later."""
        super().stop(timeout)

    def _work(self) -> None:
        behind = None
        try:
            if self._has_kafka():
                behind = self._behind()
        except ABSENT:
            self._url = ""  # the next probe begins with a new connection
        self.beats.append(Beat(now(), behind))

    def _has_kafka(self) -> bool:
        """Has every partition a leader?"""
        with suppress(KafkaException):
            topics = self._admin.list_topics(timeout=_KAFKA_SECONDS).topics
            ours = [topics.get(self._world.leadview.topics.name(kind)) for kind in resources.KINDS]
            return all(topic and all(part.leader >= 0 for part in topic.partitions.values()) for topic in ours)
        return False

    def _behind(self) -> int | None:
        """Returns how many records up to the mark are not applied, in all shards; None if no projector lives."""
        url = self._world.leadview.server.url
        if url != self._url:
            self._redis, self._url = client_of(url), url
        if not projectors(self._redis):
            return None
        copies = control.read_all(self._redis).values()
        mark = self._world.mark.items()
        return sum(max(0, end - _offset(copy, Partition(*at))) for copy in copies for at, end in mark)


def _offset(copy: Copy | None, partition: Partition) -> int:
    position = copy.positions.get(partition) if copy else None
    return position.offset if position else 0
