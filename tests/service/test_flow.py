"""The whole flow on real Kafka and Redis, with projectors as processes that are killed, stopped and misled."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import orjson
import pytest

from devstack.fault_proxy import Faults, faulty_proxy
from devstack.ports import free_port
from devstack.redis_server import RedisServer
from projector.line.pace import YIELDING
from schemas import names, resources
from tests.chaos.core import traffic
from tests.harness import crm, histories, stored
from tests.harness.generations import any_tag, generation
from tests.harness.leadview import Leadview
from tests.harness.metrics_port import ask, metric
from tests.harness.programs import asleep
from tests.harness.services import Kafka
from tests.harness.waiting import PATIENCE_SECONDS, Stopwatch, eventually

pytestmark = pytest.mark.apache

OWNER = names.organization(crm.ORGANIZATION)
KEY = names.api_key(OWNER, crm.key_hash(1))
HELD = 40


@pytest.fixture
def leadview(kafka: Kafka, topic_prefix: str, durable_redis: RedisServer, tmp_path: Path) -> Iterator[Leadview]:
    with Leadview(kafka, topic_prefix, durable_redis, tmp_path) as leadview:
        yield leadview


async def test_events_are_served_through_the_whole_flow(leadview: Leadview) -> None:
    leadview.topics.create(partitions=4)
    leadview.publish(crm.organization(1), crm.api_key(1))
    changes = traffic(leads=150, contacts=40)
    leadview.publish_all(islice(changes, 1500))
    for _ in range(3):
        leadview.start("run")
    for _ in range(3):  # while they join, and the partitions are rebalanced
        leadview.publish_all(islice(changes, 500))
    await leadview.settled()
    assert leadview.redis.exists(KEY)
    await eventually(leadview.is_served, "it is served")

    leadview.publish(crm.deleted(resources.ORGANIZATION, 2))
    await leadview.settled()
    assert leadview.redis.get(OWNER)[22:] == b"-"
    assert list(leadview.redis.scan_iter(names.of_organization(OWNER))) == []

    leadview.publish(crm.lead(1, id=crm.uuid(7)), crm.organization(3))
    await leadview.settled()
    assert {entity[1] for entity in leadview.documents()} == {crm.ORGANIZATION, crm.OTHER_ORGANIZATION}
    await eventually(lambda: leadview.redis.exists(KEY), "the key is replayed as well")

    end_offsets = leadview.topics.end_offsets
    served = {leadview.topics.name(kind) for kind in resources.RESOURCES}
    documents = {at: end for at, end in end_offsets.items() if at[0] in served}
    await eventually(
        lambda: leadview.topics.committed(leadview.group) == documents, "the positions are committed to Kafka"
    )
    access = {at: end for at, end in end_offsets.items() if at not in documents}
    await eventually(lambda: leadview.topics.committed(f"{leadview.group}.access") == access, "so are those of access")

    status = leadview.ask("status", "--json").json
    assert (status["generation"], status["lag"], status["dead_letters"]) == (1, 0, 0)
    assert {(at["topic"], at["partition"]): at["head"] for at in status["partitions"]}.items() >= end_offsets.items()


async def test_projector_killed_in_the_middle_loses_nothing(leadview: Leadview, durable_redis: RedisServer) -> None:
    """The write of the last lead never reaches Redis: however fast the machine is, it is killed before it is done."""
    leadview.topics.create(partitions=4)
    changes = traffic(leads=150, contacts=40)
    leadview.publish_all(islice(changes, 4000))
    leadview.publish(crm.lead(1, id=crm.uuid(0xF00)))
    with faulty_proxy(durable_redis.port) as proxy:
        proxy.faults = Faults(held=any_tag(names.document(resources.LEAD, OWNER, generation(1), crm.uuid(0xF00))))
        first = leadview.start("run", batch_records=200, redis_url=proxy.url)
        # Of its partition, which may be read first, at most 200 of 631 records are in one batch with it.
        await eventually(lambda: sum(leadview.positions().values()) > 400, "some batches are covered")
        first.kill()
    assert not leadview.caught_up()

    # Positions come from Redis, whatever Kafka has for a group. This new group does not wait for the dead member.
    leadview.group += "-again"
    leadview.start("run", batch_records=200)
    third = leadview.start("run", batch_records=200)
    await eventually(lambda: "resumed at the stored positions" in third.log.read_text(), "they share the partitions")
    leadview.publish_all(islice(changes, 2000))
    third.kill()
    await leadview.settled(after_crash=True)


async def test_redis_is_restarted_emptied_and_goes_back_in_time(leadview: Leadview, durable_redis: RedisServer) -> None:
    leadview.topics.create()
    port = free_port()
    projector = leadview.start("run", metrics_port=port, batch_records=300)
    changes = traffic(leads=150, contacts=40)
    leadview.publish_all(islice(changes, 1500))
    durable_redis.restart()  # in the middle
    leadview.publish_all(islice(changes, 200))
    await leadview.settled(after_crash=True)

    leadview.redis.flushall()  # idle
    await leadview.settled()
    await eventually(leadview.is_served, "it is served again")
    assert (metric(port, "leadview_projector_rewinds_total") or 0) > 0

    leadview.publish_all(islice(changes, 1500))
    leadview.redis.flushall()  # in the middle
    await leadview.settled(after_crash=True)

    leadview.redis.config_set("appendonly", "no")
    leadview.redis.save()
    leadview.publish(crm.lead(1, id=crm.uuid(0xAA)), crm.deleted(resources.CONTACT, 999, crm.uuid(0xC00001)))
    leadview.publish_all(islice(changes, 300))
    await leadview.settled()
    behind = leadview.positions()
    with asleep(projector):  # it would read again at once what Redis has lost
        durable_redis.kill()
        _without_log(durable_redis)
        durable_redis.restart()
        assert leadview.positions() != behind
    await leadview.settled(after_crash=True)
    healthy = (200, {"status": "ok", "problems": []})
    await eventually(lambda: ask(port, "/healthz") == healthy, "both lines are well again")


async def test_access_is_not_behind_the_leads(leadview: Leadview, durable_redis: RedisServer) -> None:
    """A proxy never lets the write of one lead reach Redis: however fast the machine is, the leads are not done. The
    line yields meanwhile, because the API answers requests: it has one small slice in flight."""
    leads = [crm.uuid(0x20000 + number) for number in range(2_000)]
    held = names.document(resources.LEAD, OWNER, generation(1), leads[HELD])
    leadview.topics.create(partitions=2)
    leadview.publish(crm.organization(1), crm.api_key(1))
    leadview.publish(*(crm.lead(1, id=lead) for lead in leads), partition=0)
    leadview.redis.hset(names.LATENCY, "worker", f"700 {histories.now_ms() + 3_600_000}")
    with faulty_proxy(durable_redis.port) as proxy:
        proxy.faults = Faults(held=any_tag(held))
        leadview.start("run", batch_records=300, redis_url=proxy.url)
        await eventually(lambda: leadview.redis.exists(KEY), "the key opens")
        await eventually(lambda: proxy.holding, "the leads are in hand")
        leadview.publish(crm.api_key(2, status="revoked"))
        with Stopwatch() as stopwatch:
            await eventually(lambda: stored.key_expiry(leadview.redis, KEY) == 1, "the key does not open any more")
            assert stopwatch.seconds < 1.0
        assert not leadview.redis.exists(held)
        assert not leadview.caught_up(resources.LEAD)
        assert len(leadview.documents()) <= HELD + YIELDING.slice_records
        proxy.faults = Faults()
        proxy.reset_all()
        await leadview.settled()


async def test_projector_in_daily_use_obeys_signals_and_takes_partitions(leadview: Leadview) -> None:
    """Signals, more partitions, the default group, `show`."""
    leadview.group = "leadview"
    leadview.topics.create(partitions=1)
    # Whoever joins after a member that has not left the group waits as long as this: longer than this test.
    projector = leadview.start("run", kafka_session_timeout=300)
    leadview.publish(crm.contact(3, email="a@b.c"), crm.lead(2))
    await leadview.settled()

    leadview.topics.add_partitions(resources.LEAD, 3)
    leadview.publish(crm.lead(3, seconds=1, stage="STALE"), crm.lead(1, id=crm.OTHER_LEAD), partition=2)
    leadview.publish(crm.tombstone(resources.LEAD, crm.OTHER_LEAD, seconds=2), partition=1)
    await leadview.settled()

    shown = orjson.loads(leadview.run("show", "lead", crm.ORGANIZATION, crm.LEAD, "--json").stdout)
    event = shown["generations"][0]["event"]
    assert (event["version"], event["partition"], event["offset"], event["live"]) == (3, 2, 0, True)

    projector.stop()
    assert projector.wait(PATIENCE_SECONDS) == 0
    assert leadview.caught_up()
    committed = leadview.topics.committed("leadview") | leadview.topics.committed("leadview.access")
    assert leadview.topics.end_offsets.items() <= committed.items()
    again = leadview.start("run")
    await eventually(lambda: "resumed at the stored positions" in again.log.read_text(), "it has joined at once")
    lines = [orjson.loads(line) for line in again.log.read_text().splitlines()]
    counts = [line["partitions"] for line in lines if line["message"] == "resumed at the stored positions"]
    assert counts[0].keys() <= {leadview.topics.name(kind) for kind in resources.KINDS}, "not a list of all partitions"
    again.stop()
    assert again.wait(PATIENCE_SECONDS) == 0


@pytest.mark.parametrize(
    ("policy", "settings", "status", "said"),
    [
        pytest.param(
            "noeviction",
            {"redis_ulr": "redis://127.0.0.1"},
            2,
            "LEADVIEW_REDIS_ULR is not a setting of Leadview: did you mean LEADVIEW_REDIS_URL?",
            id="an unknown setting",
        ),
        pytest.param("allkeys-lru", {}, 1, "Set its maxmemory-policy to noeviction", id="a Redis that evicts"),
    ],
)
def test_projector_with_wrong_settings_does_not_start(
    leadview: Leadview, policy: str, settings: dict[str, str], status: int, said: str
) -> None:
    leadview.redis.config_set("maxmemory-policy", policy)
    leadview.run("run", **settings).ends(status, said)


def _without_log(server: RedisServer) -> None:
    """Delete the append-only log of this Redis, so that only its snapshot is left, as with `appendonly no`."""
    log = server.directory / "appendonlydir"
    for file in [*log.glob("*"), *server.directory.glob("appendonly.aof")]:
        file.unlink()
