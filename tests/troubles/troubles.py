"""The troubles. Each one is made in an installation in which all is well, and ends with the block.

A trouble waits until `status` names it, and for what takes longer to be noticed by others.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import NamedTuple

from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource

from devstack.apache_kafka import ApacheKafka
from devstack.redis_server import RedisServer
from schemas import resources
from tests.harness import crm
from tests.harness.metrics_port import metric
from tests.harness.next_mapping import PROGRAM as NEXT
from tests.harness.waiting import PATIENCE_SECONDS, wait_until
from tests.troubles.installation import Installation

_LONG_SECONDS = 90.0


class Place(NamedTuple):
    """Where a trouble happens."""

    here: Installation
    kafka: ApacheKafka
    redis: RedisServer


Make = Callable[[Place], AbstractContextManager[None]]
TROUBLES: dict[str, Make] = {}


def trouble(make: Callable[[Place], Iterator[None]]) -> Make:
    """Adds a trouble, under the name of its function."""
    TROUBLES[make.__name__] = contextmanager(make)
    return TROUBLES[make.__name__]


def _reports(here: Installation, kind: str) -> None:
    """Wait until every projector that runs reports a problem of this kind."""

    def reported() -> bool:
        running = [port for port, child in zip(here.ports, here.projectors, strict=True) if child.running]
        return all(metric(port, f'leadview_projector_problems{{problem="{kind}"}}') for port in running)

    wait_until(reported, f"the projectors report {kind}", _LONG_SECONDS)


@trouble
def all_is_well(_: Place) -> Iterator[None]:
    yield


@trouble
def no_projector(place: Place) -> Iterator[None]:
    for projector in place.here.projectors:
        projector.kill()
    place.here.wait_for("no projector is running")
    yield


@trouble
def one_projector_is_dead(place: Place) -> Iterator[None]:
    place.here.projectors[0].kill()
    place.here.wait_for("silent for")
    yield


@trouble
def all_projectors_stand_still(place: Place) -> Iterator[None]:
    for projector in place.here.projectors:
        projector.pause()
    place.here.wait_for("no projector is running")
    yield


@trouble
def kafka_is_away(place: Place) -> Iterator[None]:
    place.kafka.pause(0)
    try:
        place.here.wait_for("Kafka cannot be read")
        _reports(place.here, "kafka_unknown")
        yield
    finally:
        place.kafka.resume(0)


@trouble
def a_topic_is_missing(place: Place) -> Iterator[None]:
    topics = place.here.leadview.topics
    topic = topics.name(resources.CONTACT)
    topics.admin.delete_topics([topic])[topic].result(PATIENCE_SECONDS)
    place.here.wait_for(f"topic {topic}: missing")
    _reports(place.here, "topic_missing")
    yield


@trouble
def a_topic_is_not_compacted(place: Place) -> Iterator[None]:
    topics = place.here.leadview.topics
    topic = topics.name(resources.LEAD)
    entry = ConfigEntry("cleanup.policy", "delete", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    topics.admin.incremental_alter_configs([resource])[resource].result(PATIENCE_SECONDS)
    place.here.wait_for("not compacted")
    _reports(place.here, "topic_not_compacted")
    yield


@trouble
def redis_is_away(place: Place) -> Iterator[None]:
    place.redis.pause()
    try:
        place.here.wait_for("Redis cannot be read")
        _reports(place.here, "redis_unknown")
        yield
    finally:
        place.redis.resume()


@trouble
def redis_was_emptied_and_nobody_fills_it(place: Place) -> Iterator[None]:
    for projector in place.here.projectors:
        projector.kill()
    place.here.leadview.redis.flushall()
    place.here.wait_for("Redis is empty")
    wait_until(lambda: not place.here.api.is_ready(), "the API knows")
    yield


@trouble
def redis_evicts(place: Place) -> Iterator[None]:
    client = place.here.leadview.redis
    client.config_set("maxmemory-policy", "allkeys-lru")
    try:
        place.here.wait_for("Redis evicts keys")
        _reports(place.here, "redis_evicts")
        yield
    finally:
        client.config_set("maxmemory-policy", "noeviction")


@trouble
def redis_is_full(place: Place) -> Iterator[None]:
    client = place.here.leadview.redis
    client.config_set("maxmemory", client.info("memory")["used_memory"] // 2)
    try:
        place.here.wait_for("Redis is full")
        _reports(place.here, "redis_full")
        yield
    finally:
        client.config_set("maxmemory", 0)


@trouble
def a_line_is_halted(place: Place) -> Iterator[None]:
    place.here.leadview.publish(*[crm.lead(4 + number, stage="WRONG") for number in range(9)])
    place.here.wait_for("line documents is stopped")
    yield


@trouble
def a_bad_record(place: Place) -> Iterator[None]:
    place.here.leadview.publish(crm.lead(4, stage="WRONG"))
    place.here.wait_for("dead letters: 1")
    yield


@trouble
def an_older_program(place: Place) -> Iterator[None]:
    """The newer program has filled a generation, and only the older one runs: it stands by."""
    leadview = place.here.leadview
    newer = leadview.start("run", command=NEXT)
    assert leadview.run("rebuild", "--max-latency", "0", command=NEXT).status == 0
    newer.stop()
    place.here.wait_for("standing by")
    _reports(place.here, "standing_by")
    yield


@trouble
def a_rebuild_that_nobody_continues(place: Place) -> Iterator[None]:
    leadview = place.here.leadview
    rebuilding = leadview.start("rebuild", "--max-latency", "0")
    wait_until(lambda: leadview.state().next, "a generation is begun")
    rebuilding.kill()
    place.here.wait_for("rebuild")
    yield


@trouble
def no_api_worker(place: Place) -> Iterator[None]:
    assert place.here.api_process
    place.here.api_process.kill()
    yield
