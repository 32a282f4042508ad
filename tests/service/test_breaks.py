"""Breaks: whatever makes it impossible to know that what is served is right has a name on every surface, until what is
served was compared with Kafka.
"""

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_END, Consumer, TopicPartition
from msgspec.structs import replace

from devstack.apache_kafka import ApacheKafka
from devstack.ports import free_port
from projector.ledger import breaks, copies
from projector.ledger.control import ACCESS, Break
from projector.redis.store import Store
from projector.upkeep.comparison import SUBJECTS, _Work
from projector.upkeep.complete import Completeness
from projector.upkeep.evictions import Evictions
from schemas import names, resources
from schemas.settings import ProjectorSettings
from schemas.words import utc
from tests.harness import control, crm
from tests.harness.api_server import LEADS
from tests.harness.leadview import Leadview
from tests.harness.metrics_port import ask, metric
from tests.harness.projection import Projection
from tests.harness.services import Kafka
from tests.harness.waiting import PATIENCE_SECONDS, wait_until

UNVERIFIED = "leadview_projector_unverified_topic"
DAY_MS = 86_400_000
FETCH_SECONDS = 2.0
"""More than a broker waits for records before it answers a request for them."""


def kinds(leadview: Leadview) -> list[str]:
    found: list[str] = leadview.ask("status", "--json").json["kinds"]
    return found


def wait_for_kinds(leadview: Leadview, *expected: str) -> None:
    wait_until(lambda: sorted({*kinds(leadview)}) == sorted(expected), lambda: f"{expected}, not {kinds(leadview)}")


def assert_named(leadview: Leadview, port: int, kind: str, topics: Sequence[str]) -> None:
    """Every surface names it: `status`, `doctor`, health and metrics of the projector."""
    wait_for_kinds(leadview, kind)
    wait_until(lambda: ask(port, "/healthz")[0] == 503, "the health says it")
    doctor = leadview.run("doctor")
    doctor.ends(1)
    health = " ".join(ask(port, "/healthz")[1]["problems"])
    for topic in topics:
        assert [topic in said for said in (leadview.run("status").output, doctor.output, health)] == [True] * 3
    values = [{"topic": topic, "problem": kind} for topic in topics]
    wait_until(lambda: all(metric(port, UNVERIFIED, **it) == 1 for it in values), "the metric of each topic")


@contextmanager
def no_comparison(leadview: Leadview) -> Iterator[None]:
    """Projectors end no break by themselves until the block ends: somebody else holds the locks of the comparison."""
    locks = [names.comparison_lock(subject) for subject in SUBJECTS]
    for lock in locks:
        leadview.redis.set(lock, "a test")
    yield
    for lock in locks:
        leadview.redis.delete(lock)


def moments(leadview: Leadview) -> dict[str, list[int]]:
    """Returns the moments at which each topic was complete, in all shards."""
    found: dict[str, list[int]] = {}
    for tag in control.read_all(leadview.redis):
        for topic, moment in leadview.redis.hgetall(names.copy(names.COMPLETE, tag.encode())).items():
            found.setdefault(topic.decode(), []).append(int(moment))
    return found


def publish_first(leadview: Leadview) -> None:
    leadview.publish(crm.organization(1), crm.api_key(1), crm.contact(1), crm.lead(1))


@pytest.mark.apache
def test_deletions_that_kafka_may_have_removed(leadview: Leadview) -> None:
    """Projectors stood still for longer than deletions are kept: each topic whose deletions may be missing is named,
    and no answer says any more what it contains. Topics that keep them for longer are not.
    """
    publish_first(leadview)
    short = [leadview.topics.name(kind) for kind in (resources.API_KEY, resources.CONTACT)]
    for topic in short:
        leadview.topics.alter("topic", topic, {"delete.retention.ms": "100"})
    projector = leadview.serve()
    wait_until(lambda: len(moments(leadview)) == len(resources.KINDS), "the topics were complete")
    projector.stop()
    complete = moments(leadview)
    leadview.publish(crm.tombstone(resources.API_KEY, seconds=5), crm.tombstone(resources.CONTACT, seconds=5))
    wait_until(
        lambda: time.time() * 1000 - max(map(max, complete.values())) > 6000, "deletions may have been removed", 30
    )
    port = free_port()
    with no_comparison(leadview):
        leadview.start("run", metrics_port=port)
        assert_named(leadview, port, "deletes_missed", short)
        assert f"{short[0]} (100 ms)" in leadview.run("doctor")
        since = {it.topic: it.since for it in leadview.state().breaks}
        assert since == {topic: utc(complete[topic][0]) for topic in short}
        with leadview.api() as api:
            leadview.wait_until_current()
            refused = "the deletions that are left count"
            wait_until(lambda: api.get(LEADS + crm.LEAD, key=crm.KEY).status == 401, refused)
            assert leadview.run("status", "--json").json["data_as_of"] is None
        leadview.run("verify").ends(0)
        leadview.run("verify", "--access").ends(0)
        wait_for_kinds(leadview)
    wait_until(lambda: metric(port, UNVERIFIED) == 0, "the metrics end as well")


@pytest.mark.apache
def test_redis_filled_too_late_misses_deletions(leadview: Leadview) -> None:
    """A projector began to fill it, and died. Another one continues after longer than deletions are kept: what it reads
    of them is measured from the beginning, and not from its own start.
    """
    publish_first(leadview)
    short = leadview.topics.name(resources.CONTACT)
    leadview.topics.alter("topic", short, {"delete.retention.ms": "100"})
    began = time.time()
    asyncio.run(begin(leadview))
    wait_until(lambda: time.time() - began > 6, "deletions may have been removed", 30)
    with no_comparison(leadview):
        leadview.start("run")
        leadview.wait_until_served()
        wait_for_kinds(leadview, "deletes_missed")
        [found] = leadview.state().breaks
        since = datetime.fromisoformat(found.since).timestamp()
        assert (found.topic, began - 1 <= since <= began + 3) == (short, True)
    wait_for_kinds(leadview)


async def begin(leadview: Leadview) -> None:
    """Begin the control record, as a projector does before it reads anything."""
    store = Store(ProjectorSettings(redis_url=leadview.server.url))
    try:
        await copies.current(store)
    finally:
        await store.close()


async def test_missed_deletions_are_noted_again_if_that_was_not_a_moment_ago(alone: Projection) -> None:
    """Projectors that notice them at once note them once. Later, a comparison may have begun meanwhile."""
    await control.complete(alone.store)
    completeness, missed = Completeness(alone.settings, alone.store), {names.HOME: {"crm.contacts": 1000}}

    async def noted() -> Break:
        await completeness.note(await copies.require(alone.store), missed)
        [found] = (await copies.require(alone.store)).state.breaks
        return found

    first = await noted()
    assert (await noted()).is_same(first)
    earlier = replace(first, noticed_at="2026-01-01T00:00:00Z")
    await copies.change(alone.store, await copies.require(alone.store), lambda state: replace(state, breaks=(earlier,)))
    again = await noted()
    assert (again.is_same(earlier), again.since) == (False, first.since)


@pytest.mark.parametrize("later_ms", [pytest.param(-2 * DAY_MS, id="older"), pytest.param(DAY_MS, id="in the future")])
def test_redis_that_comes_back_from_another_time_misses_deletions(leadview_on_cluster: Leadview, later_ms: int) -> None:
    """As a shard that has an older copy, or one that was written under another clock. The others have theirs."""
    leadview = leadview_on_cluster
    publish_first(leadview)
    projector = leadview.serve()
    wait_until(lambda: len(moments(leadview)) == len(resources.KINDS), "the topics were complete")
    projector.stop()
    leads, *_ = [names.copy(names.COMPLETE, tag.encode()) for tag in control.read_all(leadview.redis)]
    topic = leadview.topics.name(resources.LEAD)
    leadview.redis.hset(leads, topic, int(time.time() * 1000) + later_ms)
    with no_comparison(leadview):
        leadview.start("run")
        wait_for_kinds(leadview, "deletes_missed")
        assert [(it.kind, it.topic) for it in leadview.state().breaks] == [("deletes_missed", topic)]
        leadview.run("verify").ends(0)
        wait_for_kinds(leadview)


@pytest.fixture
def other_kafka(tmp_path: Path) -> Iterator[Kafka]:
    """Another cluster than that of the session."""
    with ApacheKafka.start(tmp_path / "other-kafka") as broker:
        yield Kafka("apache", broker.bootstrap_servers, broker.create_topic)


@pytest.mark.apache
def test_another_kafka_cluster_is_applied_only_when_it_is_accepted(
    leadview: Leadview, other_kafka: Kafka, tmp_path: Path
) -> None:
    """Nothing of it is applied until an operator says so; when the former cluster is back, everything continues by
    itself. The word of an operator also leads back.
    """
    publish_first(leadview)
    leadview.serve().stop()
    (tmp_path / "other").mkdir()
    with Leadview(other_kafka, leadview.prefix, leadview.server, tmp_path / "other", **leadview.settings) as other:
        other.topics.create(partitions=3)
        other.publish(crm.organization(1), crm.api_key(2, status="revoked"), crm.contact(2), crm.lead(5))
        port, documents = free_port(), leadview.documents()
        projector = other.start("run", metrics_port=port)
        wait_for_kinds(other, "other_cluster")
        assert_named(other, port, "other_cluster", [])
        known = leadview.state().cluster
        [said] = other.run("status", "--json").json["problems"]
        met = said.partition("its id is ")[2].partition(",")[0]
        assert f"rebuild --accept-cluster {met}" in said
        assert (met != known, f"comes from {known}" in said) == (True, True)
        for words in (("verify",), ("verify", "--access"), ("rebuild", "--max-latency", "0")):
            assert f"its id is {met}" in other.run(*words).ends(1)
        other.run("rebuild", "--accept-cluster", "another").ends(1, met)
        assert (leadview.documents(), leadview.state().breaks, leadview.state().cluster) == (documents, (), known)
        projector.stop()
        # Back to the former one, and what was published there meanwhile.
        projector = leadview.start("run")
        leadview.publish(crm.lead(2, referrer="back"))
        leadview.wait_until_current()
        assert leadview.documents() == leadview.expected()
        wait_for_kinds(leadview)
        # The other one takes over.
        projector.stop()
        projector = other.start("run", metrics_port=port)
        other.run("rebuild", "--accept-cluster", met, "--max-latency", "0").ends(0, "records to replay   2;")
        other.wait_until_current()
        wait_for_kinds(other, "other_cluster")
        other.run("promote").ends(0)
        assert other.documents() == other.expected()
        wait_for_kinds(other, "other_cluster")
        wait_until(lambda: other.run("verify", "--access").status == 0, "access is as in the other cluster")
        wait_for_kinds(other)
        assert any("--accept-cluster" in it for it in other.run("status", "--history").output.splitlines())
        # And back once more.
        projector.stop()
        leadview.start("run")
        leadview.run("rebuild", "--accept-cluster", known, "--max-latency", "0", "--force").ends(0)
        assert leadview.state().cluster == known


@pytest.mark.apache
@pytest.mark.parametrize("runs", [pytest.param(False, id="stopped"), pytest.param(True, id="running")])
def test_records_that_kafka_deleted_before_they_were_read_are_a_problem(leadview: Leadview, runs: bool) -> None:
    """As retention does: while no projector runs, or while one stands still that keeps its partitions."""
    publish_first(leadview)
    port, kinds_of = free_port(), (resources.API_KEY, resources.LEAD)
    projector = leadview.serve(metrics_port=port, kafka_session_timeout=60)
    if runs:
        projector.pause()
        paused = time.monotonic()
        answered = "the broker has answered what was asked before, with nothing"
        wait_until(lambda: time.monotonic() - paused > FETCH_SECONDS, answered)
    else:
        projector.stop()
    lost = leadview.publish(crm.api_key(2, status="revoked"), crm.lead(2))
    topics = [leadview.topics.name(kind) for kind in kinds_of]
    for topic in topics:
        leadview.topics.alter("topic", topic, {"cleanup.policy": "delete"})
    wanted = [TopicPartition(record.topic, record.partition, record.offset + 1) for record in lost]
    leadview.topics.delete_records(wanted)
    for topic in topics:
        leadview.topics.alter("topic", topic, {"cleanup.policy": "compact"})
    if runs:
        projector.resume()
    else:
        leadview.start("run", metrics_port=port)
    assert_named(leadview, port, "records_missed", topics)
    assert sorted(it.topic for it in leadview.state().breaks) == sorted(topics), "others have missed nothing"
    leadview.run("verify").ends(1)
    # The way out: what Kafka has no more is published again.
    leadview.publish(crm.api_key(3, status="revoked"), crm.lead(3))
    leadview.wait_until_current()
    leadview.run("verify").ends(0)
    leadview.run("verify", "--access").ends(0)
    wait_for_kinds(leadview)


@pytest.mark.apache
def test_records_of_a_new_partition_that_kafka_deleted_before_any_was_read(leadview: Leadview) -> None:
    """No projector ran while a partition was added, something was deleted by a null value in it, and retention removed
    that. Nothing else tells of the deletion as soon as the former partition is empty, too.
    """
    publish_first(leadview)
    topic = leadview.topics.name(resources.LEAD)
    leadview.serve().stop()
    leadview.topics.add_partitions(resources.LEAD, 4)
    leadview.publish(crm.tombstone(resources.LEAD, seconds=5), partition=3)
    leadview.topics.alter("topic", topic, {"cleanup.policy": "delete"})
    leadview.topics.delete_records([TopicPartition(topic, number, OFFSET_END) for number in range(4)])
    leadview.topics.alter("topic", topic, {"cleanup.policy": "compact"})
    with no_comparison(leadview):
        leadview.start("run")
        wait_for_kinds(leadview, "partitions_raised", "records_missed")
        assert [it.topic for it in leadview.state().breaks] == [topic] * 2
    wait_for_kinds(leadview, "records_missed")  # no record is left in a former partition


def test_keys_that_redis_has_evicted_are_a_problem(leadview_with_own_redis: Leadview) -> None:
    """They are missed as well after the policy was corrected, and also if no projector ran meanwhile."""
    leadview = leadview_with_own_redis
    leadview.topics.create(partitions=1)
    publish_first(leadview)
    leadview.publish_all(crm.lead(1, id=crm.uuid(100 + number), referrer="x" * 900) for number in range(2000))
    port = free_port()
    projector = leadview.serve(metrics_port=port)
    wait_until(lambda: leadview.redis.exists(names.EVICTIONS), "a projector has looked")
    projector.stop()
    # Only documents, so that Redis does not evict the control record, after which everything is written again.
    for document in [*leadview.redis.scan_iter(names.of_generation(leadview.state().live))]:
        leadview.redis.expire(document, 86_400)
    leadview.redis.config_set("maxmemory-policy", "volatile-random")
    leadview.redis.config_set("maxmemory", leadview.redis.info("memory")["used_memory"] - 400_000)
    wait_until(lambda: leadview.redis.set("x", "") and leadview.redis.info("stats")["evicted_keys"] > 20, "it evicts")
    leadview.redis.config_set("maxmemory", 0)
    leadview.redis.config_set("maxmemory-policy", "noeviction")
    leadview.redis.delete("x")
    with no_comparison(leadview):
        leadview.start("run", metrics_port=port)
        leadview.wait_until_current()
        wait_for_kinds(leadview, "evicted")
        assert_named(leadview, port, "evicted", [])
        assert metric(port, UNVERIFIED, problem="evicted") == len(resources.KINDS)
        [found] = leadview.state().breaks
        assert {*found.unverified} == {ACCESS, *leadview.state().written}
    wait_for_kinds(leadview)


async def test_what_was_evicted_is_counted_once(alone: Projection) -> None:
    """Only Redis counts: a key that is stored beside the copy says what was noted."""
    await control.complete(alone.store)
    evictions, client = Evictions(alone.store), alone.client

    async def looks() -> list[str]:
        await evictions.look(await copies.current(alone.store))
        return [it.kind for it in (await copies.require(alone.store)).state.breaks]

    assert await looks() == []
    stored = client.get(names.EVICTIONS)
    _, count = stored.split()
    client.set(names.EVICTIONS, b"another 5")
    assert await looks() == [], "a server that was started again counts from 0"
    assert (client.get(names.EVICTIONS), int(count)) == (stored, 0)


async def test_what_is_evicted_while_a_shard_is_filled_is_noted(alone: Projection) -> None:
    """It may be what was written a moment before, so the shard lacks it when it is complete."""
    assert await control._begin(alone.store)
    client = alone.client
    fillers = [names.PREFIX + b"{filler}:%d" % number for number in range(500)]
    for filler in fillers:
        client.set(filler, "x" * 1000, ex=1000)
    client.config_set("maxmemory-policy", "volatile-ttl")
    client.config_set("maxmemory", client.info("memory")["used_memory"] - 100_000)
    wait_until(lambda: client.set(fillers[0], "") and client.info("stats")["evicted_keys"] > 20, "it evicts")
    client.config_set("maxmemory", 0)
    client.config_set("maxmemory-policy", "noeviction")
    await Evictions(alone.store).look(await copies.current(alone.store))
    await control.complete(alone.store)
    assert [it.kind for it in (await copies.require(alone.store)).state.breaks] == ["evicted"]


async def test_redis_that_is_emptied_before_a_comparison_stops_no_projector(alone: Projection) -> None:
    """The comparison has seen the break a moment before. It looks again when a projector fills Redis."""
    record = await control.complete(alone.store)
    await breaks.note(alone.store, record, [breaks.new_break(record, "evicted", "")])
    await alone.writing.sessions.look()
    alone.client.flushall()
    for subject in SUBJECTS:
        await _Work(alone.settings, alone.writing, subject)._turn()
    assert (await copies.current(alone.store)).state.breaks == ()


@pytest.mark.apache
def test_topic_with_added_partitions_is_named_until_it_was_verified(leadview: Leadview) -> None:
    """It is named until it was verified, also after Redis was emptied: Kafka remembers how many there were."""
    publish_first(leadview)
    port = free_port()
    leadview.serve(metrics_port=port)
    topic = leadview.topics.name(resources.CONTACT)
    wait_until(lambda: topic in leadview.state().partitions, "the number of partitions is known")
    wait_until(lambda: remembered(leadview, topic) == 3, "Kafka remembers it")
    with no_comparison(leadview):
        leadview.topics.add_partitions(resources.CONTACT, 5)
        assert_named(leadview, port, "partitions_raised", [topic])
        with leadview.api() as api:
            answer = partial(api.get, LEADS + crm.LEAD, key=crm.KEY)
            wait_until(lambda: "data-as-of" in answer().headers, "what is visible now is not affected")
        leadview.redis.flushall()
    with no_comparison(leadview):
        leadview.wait_until_served()
        assert_named(leadview, port, "partitions_raised", [topic])
        leadview.run("rebuild", "--max-latency", "0").ends(0)
        leadview.run("promote").ends(0)
        wait_for_kinds(leadview, "partitions_raised")
        leadview.run("verify").ends(0)
        wait_for_kinds(leadview)
    leadview.run("drop").ends(0)
    wait_until(lambda: remembered(leadview, topic) == 5, "Kafka remembers the new number")


def remembered(leadview: Leadview, topic: str) -> int:
    """Returns how many partitions of a topic Kafka remembers: the offset that a group has of partition 0."""
    servers = leadview.kafka.bootstrap_servers
    consumer = Consumer({"bootstrap.servers": servers, "group.id": f"{leadview.group}.partitions", "log_level": 0})
    try:
        [found] = consumer.committed([TopicPartition(topic, 0)], timeout=PATIENCE_SECONDS)
    finally:
        consumer.close()
    return found.offset
