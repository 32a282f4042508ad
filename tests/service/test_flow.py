"""The whole flow on real Kafka and Redis, with projectors as processes that are killed, stopped and misled."""

from collections.abc import Iterator
from pathlib import Path
from random import Random

import msgspec
import orjson
import pytest

from devstack.fault_proxy import Faults, faulty_proxy
from devstack.ports import free_port
from devstack.redis_server import RedisServer, RedisServerMissing
from projector.dead_letter import DeadLetter
from schemas import names, resources
from tests.harness import crm, stored
from tests.harness.generations import any_tag, generation
from tests.harness.histories import traffic
from tests.harness.leadview import Leadview
from tests.harness.metrics_port import ask, metric
from tests.harness.services import Kafka, not_available
from tests.harness.waiting import PATIENCE_SECONDS, Stopwatch, eventually, seconds_until

pytestmark = pytest.mark.apache

OWNER = names.organization(crm.ORGANIZATION)
KEY = names.api_key(OWNER, crm.key_hash(1))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    """A Redis of its own, whose data outlives a crash."""
    try:
        server = RedisServer.start(tmp_path / "redis", appendonly=True)
    except RedisServerMissing as error:
        not_available(str(error))
    with server:
        yield server


@pytest.fixture
def leadview(kafka: Kafka, topic_prefix: str, server: RedisServer, tmp_path: Path) -> Iterator[Leadview]:
    with Leadview(kafka, topic_prefix, server, tmp_path) as leadview:
        yield leadview


@pytest.mark.parametrize("projectors", [pytest.param(1, id="one projector"), pytest.param(3, id="three projectors")])
async def test_whole_flow(leadview: Leadview, projectors: int) -> None:
    leadview.topics.create(partitions=4)
    leadview.publish(crm.organization(1), crm.api_key(1))
    leadview.publish_all(traffic(0, 1500))
    for _ in range(projectors):
        leadview.start("run")
    for seed in (1, 2, 3):  # while they join, and the partitions are rebalanced
        leadview.publish_all(traffic(seed, 500, leads=40))
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

    status = orjson.loads(leadview.run("status", "--json").stdout)
    assert (status["generation"], status["lag"], status["dead_letters"]) == (1, 0, 0)
    assert {(at["topic"], at["partition"]): at["head"] for at in status["partitions"]}.items() >= end_offsets.items()
    assert "dead letters 0" in leadview.run("status").stdout


async def test_kill_9_in_the_middle(leadview: Leadview, server: RedisServer) -> None:
    """The write of the last lead never reaches Redis: however fast the machine is, it is killed before it is done."""
    leadview.topics.create(partitions=4)
    leadview.publish_all(traffic(1, 4000))
    leadview.publish(crm.lead(1, id=crm.uuid(0xF00)))
    with faulty_proxy(server.port) as proxy:
        proxy.faults = Faults(held=any_tag(names.document(resources.LEAD, OWNER, generation(1), crm.uuid(0xF00))))
        first = leadview.start("run", batch_records=200, redis_url=f"redis://127.0.0.1:{proxy.port}/0")
        await eventually(lambda: sum(leadview.positions().values()) > 500, "some batches are covered")
        first.kill()
    assert not leadview.caught_up()

    # Positions come from Redis, whatever Kafka has for a group. This new group does not wait for the dead member.
    leadview.group += "-again"
    leadview.start("run", batch_records=200)
    third = leadview.start("run", batch_records=200)
    await eventually(lambda: "resumed at these offsets" in third.log.read_text(), "they share the partitions")
    leadview.publish_all(traffic(2, 2000))
    third.kill()
    await leadview.settled(after_crash=True)


async def test_redis_is_restarted_emptied_and_goes_back_in_time(leadview: Leadview, server: RedisServer) -> None:
    leadview.topics.create()
    port = free_port()
    leadview.start("run", metrics_port=port, batch_records=300)
    leadview.publish_all(traffic(1, 1500))
    server.restart()  # in the middle
    leadview.publish_all(traffic(2, 200))
    await leadview.settled(after_crash=True)

    leadview.redis.flushall()  # idle
    await leadview.settled()
    await eventually(leadview.is_served, "it is served again")
    assert _rewinds(port) > 0

    leadview.publish_all(traffic(3, 1500))
    leadview.redis.flushall()  # in the middle
    await leadview.settled(after_crash=True)

    leadview.redis.config_set("appendonly", "no")
    leadview.redis.save()
    leadview.publish(crm.lead(1, id=crm.uuid(0xAA)), crm.deleted(resources.CONTACT, 999, crm.uuid(0xC00001)))
    leadview.publish_all(traffic(4, 300))
    await leadview.settled()
    behind = leadview.positions()
    server.kill()
    _without_log(server)
    server.restart()
    assert leadview.positions() != behind
    await leadview.settled(after_crash=True)
    healthy = (200, {"status": "ok", "problems": []})
    await eventually(lambda: ask(port, "/healthz") == healthy, "both lines are well again")


async def test_a_redis_that_goes_back_is_noticed_without_any_write(leadview: Leadview) -> None:
    """As after a failover to a replica that lacks the last writes: the connection works, the positions are lower."""
    leadview.topics.create(partitions=1)
    leadview.publish(crm.contact(1), crm.lead(1))
    projector = leadview.start("run")
    await leadview.settled()
    before = {key: leadview.redis.dump(key) for key in leadview.redis.scan_iter()}
    leadview.publish(crm.contact(2, first_name="Grace"), crm.lead(2, stage="STALE"), crm.lead(1, id=crm.OTHER_LEAD))
    await leadview.settled()
    with leadview.redis.pipeline(transaction=True) as pipeline:
        pipeline.flushall()
        for key, value in before.items():
            pipeline.restore(key, 0, value)
        pipeline.execute()
    await leadview.settled()
    assert "Redis lost writes of this projector" in projector.log.read_text()


async def test_a_recreated_topic_is_read_from_its_beginning_for_good(leadview: Leadview) -> None:
    """The position in the former topic must not return: the records before it in the new topic would be skipped."""
    leads = [crm.uuid(0x700 + number) for number in range(100)]
    leadview.topics.create(partitions=1)
    leadview.publish_all(crm.lead(version, id=lead) for version in (1, 2, 3) for lead in leads)
    projector = leadview.start("run")
    await leadview.settled()

    topic = leadview.topics.name(resources.LEAD)
    leadview.topics.recreate(resources.LEAD, 1)
    leadview.publish_all(crm.lead(3, id=lead) for lead in leads)
    await eventually(lambda: leadview.positions().get((topic, 0)) == 100, "the position is one of the new topic")
    projector.kill()
    leadview.publish_all(crm.lead(version, id=lead) for version in (4, 5) for lead in leads)
    leadview.publish_all(crm.lead(1, id=crm.uuid(0x800 + number)) for number in range(50))
    leadview.group += "-again"
    leadview.start("run")
    await leadview.settled()


async def test_many_leads_on_one_contact_never_lose_it(leadview: Leadview, server: RedisServer) -> None:
    number = 5000
    leads = [crm.uuid(0x5000 + n) for n in range(number)]
    leadview.topics.create()
    leadview.publish(crm.contact(1), *(crm.lead(1, id=lead) for lead in leads))
    first = leadview.start("run")
    await leadview.settled()
    first.stop()
    changed: set[str] = set()
    random = Random(1)

    def all_show_the_new_name() -> bool:
        """Read some leads, as clients do: each shows a contact, and never an older one than before."""
        sample = random.sample(leads, 200)
        values = leadview.redis.mget(
            [names.document(resources.LEAD, OWNER, leadview.generation(1), lead) for lead in sample]
        )
        for lead, value in zip(sample, values, strict=True):
            name = orjson.loads(value[40:])["contact"]["first_name"]
            assert name == "Grace" or lead not in changed, "a lead showed an older contact after a newer one"
            if name == "Grace":
                changed.add(lead)
        return len(changed) == number or leadview.caught_up()

    held = leads[number // 2]
    with faulty_proxy(server.port) as proxy:
        # The fan-out stops half-way until it is looked at: however fast the machine is, readers meet it.
        proxy.faults = Faults(held=any_tag(names.document(resources.LEAD, OWNER, generation(1), held)))
        leadview.start("run", redis_url=f"redis://127.0.0.1:{proxy.port}/0")
        leadview.publish(crm.contact(2, first_name="Grace"))
        await eventually(lambda: proxy.holding and not all_show_the_new_name(), "the fan-out is half-way")
        assert 0 < len(changed) < number
        assert held not in changed
        proxy.faults = Faults()
        await eventually(all_show_the_new_name, "all leads show the new name")
        await leadview.settled()


@pytest.mark.parametrize(
    "held", [pytest.param(0, id="stuck at the first lead"), pytest.param(-1, id="busy with all leads but the last")]
)
async def test_access_is_not_behind_the_leads(leadview: Leadview, server: RedisServer, held: int) -> None:
    """A proxy never lets the write of one lead reach Redis: however fast the machine is, the leads are not done."""
    leads = [crm.uuid(0x20000 + number) for number in range(20_000)]
    leadview.topics.create(partitions=2)
    leadview.publish(crm.organization(1), crm.api_key(1))
    with faulty_proxy(server.port) as proxy:
        proxy.faults = Faults(held=any_tag(names.document(resources.LEAD, OWNER, generation(1), leads[held])))
        leadview.start("run", batch_records=100, redis_url=f"redis://127.0.0.1:{proxy.port}/0")
        await eventually(lambda: leadview.redis.exists(KEY), "the key opens")
        leadview.publish_all(crm.lead(1, id=lead) for lead in leads)
        is_at_work = (lambda: proxy.holding) if held == 0 else (lambda: _has_covered_leads(leadview))
        await eventually(is_at_work, "the leads are in hand")
        leadview.publish(crm.api_key(2, status="revoked"))
        seconds = await seconds_until(
            lambda: stored.key_expiry(leadview.redis, KEY) == 1, "the key does not open any more"
        )
        assert not leadview.redis.exists(names.document(resources.LEAD, OWNER, leadview.generation(1), leads[held]))
        assert not leadview.caught_up(resources.LEAD)
        assert seconds < 1.0
        proxy.faults = Faults()
        await leadview.settled()


def _has_covered_leads(leadview: Leadview) -> bool:
    return any(topic == leadview.topics.name(resources.LEAD) for topic, _ in leadview.positions())


BAD_LEAD = crm.uuid(0x13)
"""Has bad records only: the dead letters of a lead are deleted as soon as a newer event of it is applied."""


async def test_dead_letters(leadview: Leadview) -> None:
    leadview.topics.create(partitions=1)
    port = free_port()
    secret = "Zaphod"
    leadview.publish(crm.lead(1), crm.lead(2, id=BAD_LEAD, stage=secret), crm.contact(1))
    leadview.publish(_bare(b"{"), crm.lead(3, stage="STALE"))
    projector = leadview.start("run", metrics_port=port, dead_letter_row=5)
    await leadview.settled()
    topic = leadview.topics.name(resources.LEAD)
    letters = orjson.loads(leadview.run("dead-letters", "list", "--json").stdout)
    assert [(letter["topic"], letter["partition"], letter["offset"]) for letter in letters] == [
        (topic, 0, 1),
        (topic, 0, 2),
    ]
    assert letters[0]["key"] == f"{crm.ORGANIZATION}:{BAD_LEAD}"
    assert "$.data.stage" in letters[0]["reason"]
    assert secret not in str(leadview.redis.hgetall(names.DEAD_LETTERS))

    leadview.publish(*[crm.lead(4 + n, id=BAD_LEAD, stage="WRONG") for n in range(6)], crm.lead(20, stage="ACCEPTED"))
    await eventually(lambda: ask(port, "/healthz")[0] == 503, "/healthz reports that the line is halted")
    assert "5 consecutive bad records" in ask(port, "/healthz")[1]["problems"][0]
    halted_at = leadview.positions()[topic, 0]
    assert halted_at in range(4, 9), "not behind the fifth bad record, however many records came together"
    leadview.publish(crm.organization(2, api_access=False))
    await eventually(lambda: leadview.caught_up(resources.ORGANIZATION), "the line of access records continues")
    projector.stop()
    assert projector.wait(PATIENCE_SECONDS) == 0
    assert leadview.positions()[topic, 0] == halted_at
    leadview.start("run", dead_letter_row=50)
    await leadview.settled()
    assert leadview.redis.hlen(names.DEAD_LETTERS) == 8
    await _redrive(leadview, topic)


async def _redrive(leadview: Leadview, topic: str) -> None:
    """Dead letters as an older projector may have left them: of records that are now good, stale, or deleted."""
    leadview.publish(crm.lead(1, id=crm.OTHER_LEAD))
    await leadview.settled()
    lost = leadview.topics.end_offsets[topic, 0] - 1
    leadview.redis.delete(names.document(resources.LEAD, OWNER, leadview.generation(1), crm.OTHER_LEAD))
    for offset in (0, lost, 9999):
        letter = DeadLetter(topic, 0, offset, "key", "an older projector could not read it", 1)
        leadview.redis.hset(names.DEAD_LETTERS, letter.field, msgspec.json.encode(letter).decode())
    done = leadview.run("dead-letters", "redrive")
    assert done.status == 1
    assert f"{topic}:0:0  stale" in done.stdout
    assert f"{topic}:0:{lost}  applied" in done.stdout
    assert f"{topic}:0:9999  gone" in done.stdout
    assert "11 redriven, 8 still bad" in done.stdout
    assert leadview.documents() == leadview.expected()

    assert "version" not in leadview.run("dead-letters", "show", f"{topic}:0:1").stdout
    assert leadview.run("dead-letters", "drop", f"{topic}:0:1").stdout == "1 dropped\n"
    unknown = leadview.run("dead-letters", "drop", f"{topic}:0:1")
    assert unknown.status == 1
    assert f"There is no dead letter {topic}:0:1." in unknown.stderr
    rest = orjson.loads(leadview.run("dead-letters", "list", "--json").stdout)
    assert len(rest) == 7


async def test_a_projector_in_daily_use(leadview: Leadview) -> None:
    """Signals, metrics, more partitions, the default group, `show`."""
    leadview.group = "leadview"
    leadview.topics.create(partitions=1)
    port = free_port()
    # Whoever joins after a member that has not left the group waits as long as this: longer than this test.
    projector = leadview.start("run", metrics_port=port, kafka_session_timeout=300)
    leadview.publish(crm.contact(3, email="a@b.c"), crm.lead(2))
    await leadview.settled()
    healthy = (200, {"status": "ok", "problems": []})
    await eventually(lambda: ask(port, "/healthz") == healthy, "both lines are well")
    text = ask(port, "/metrics")[1]
    assert 'leadview_projector_records_total{line="documents",result="written"} 2.0' in text

    leadview.topics.add_partitions(resources.LEAD, 3)
    leadview.publish(crm.lead(3, seconds=1, stage="STALE"), crm.lead(1, id=crm.OTHER_LEAD), partition=2)
    leadview.publish(crm.tombstone(resources.LEAD, crm.OTHER_LEAD, seconds=2), partition=1)
    await leadview.settled()

    shown = orjson.loads(leadview.run("show", "lead", crm.ORGANIZATION, crm.LEAD, "--json").stdout)
    event = shown["generations"][0]["event"]
    assert (event["version"], event["partition"], event["offset"], event["live"]) == (3, 2, 0, True)
    assert "version 3" in leadview.run("show", "contact", crm.ORGANIZATION, crm.CONTACT).stdout

    with Stopwatch() as stopwatch:
        projector.stop()
        assert projector.wait(PATIENCE_SECONDS) == 0
        assert stopwatch.seconds < 5
    assert leadview.caught_up()
    committed = leadview.topics.committed("leadview") | leadview.topics.committed("leadview.access")
    assert leadview.topics.end_offsets.items() <= committed.items()
    again = leadview.start("run")
    await eventually(lambda: "resumed at these offsets" in again.log.read_text(), "it has joined at once")
    again.stop()
    assert again.wait(PATIENCE_SECONDS) == 0


def test_an_unknown_setting_stops_the_start(leadview: Leadview) -> None:
    done = leadview.run("run", redis_ulr="redis://127.0.0.1")
    assert done.status == 2
    assert "LEADVIEW_REDIS_ULR is not a setting of Leadview: did you mean LEADVIEW_REDIS_URL?" in done.stderr


@pytest.mark.parametrize(
    "missing",
    [
        pytest.param({"kafka_bootstrap_servers": "127.0.0.1:1"}, id="no Kafka"),
        pytest.param({"redis_url": "redis://127.0.0.1:1/0"}, id="no Redis"),
    ],
)
async def test_a_projector_waits_for_its_services_and_can_be_stopped(
    leadview: Leadview, missing: dict[str, str]
) -> None:
    projector = leadview.start("run", **missing)
    await eventually(lambda: "connect" in projector.log.read_text().lower(), "it waits")
    with Stopwatch() as stopwatch:
        projector.stop()
        assert projector.wait(PATIENCE_SECONDS) == 0
        assert stopwatch.seconds < 5


def test_a_redis_that_evicts_stops_the_start(leadview: Leadview) -> None:
    leadview.redis.config_set("maxmemory-policy", "allkeys-lru")
    done = leadview.run("run")
    assert done.status == 1
    assert "Set its maxmemory-policy to noeviction" in done.stderr


def _rewinds(port: int) -> float:
    return metric(port, "leadview_projector_rewinds_total") or 0


def _without_log(server: RedisServer) -> None:
    """Delete the append-only log of this Redis, so that only its snapshot is left, as with `appendonly no`."""
    log = server.directory / "appendonlydir"
    for file in [*log.glob("*"), *server.directory.glob("appendonly.aof")]:
        file.unlink()


def _bare(value: bytes) -> crm.Message:
    return crm.Message(resources.LEAD, crm.lead(1, id=BAD_LEAD).key, value)


async def test_records_that_are_read_again_are_skipped(leadview: Leadview) -> None:
    """Records that documents show are not decoded again; documents that were damaged or lost are still repaired."""
    leadview.topics.create(partitions=2)
    leadview.publish(crm.organization(1), crm.contact(1))
    leadview.publish_all(crm.lead(1, id=crm.uuid(5000 + n)) for n in range(3000))
    leadview.publish_all(crm.Message(resources.LEAD, b"no key", b"{}") for _ in range(5))
    leadview.start("run")
    await leadview.settled()
    lost = names.document(resources.LEAD, OWNER, leadview.generation(1), crm.uuid(5100))
    leadview.redis.delete(lost)
    topic = leadview.topics.name(resources.LEAD)
    leadview.redis.hdel(names.CONTROL, *(names.position(topic, number) for number in range(2)))
    await eventually(lambda: leadview.redis.exists(lost) and leadview.caught_up(), "it is read again")
    await leadview.settled()
    assert leadview.redis.hlen(names.DEAD_LETTERS) == 5
