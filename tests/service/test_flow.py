"""The whole flow on real Kafka and Redis, with projectors as processes that are killed, stopped and misled."""

from collections.abc import Iterator
from pathlib import Path
from random import Random

import msgspec
import pytest

from devstack.ports import free_port
from devstack.redis_server import RedisServer, RedisServerMissing
from projector.dead_letter import DeadLetter
from schemas import names, resources
from tests.chaos.brokers import delete_topic
from tests.harness import crm, stored
from tests.harness.faulty_proxy import Faults, faulty_proxy
from tests.harness.flow import Flow, ask
from tests.harness.histories import traffic
from tests.harness.services import Kafka, not_available
from tests.harness.stopwatch import Stopwatch
from tests.harness.waiting import PATIENCE_SECONDS, seconds_until, wait_until

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
def flow(kafka: Kafka, topic_prefix: str, server: RedisServer, tmp_path: Path) -> Iterator[Flow]:
    with Flow(kafka, topic_prefix, server, tmp_path) as flow:
        yield flow


@pytest.mark.parametrize("projectors", [pytest.param(1, id="one projector"), pytest.param(3, id="three projectors")])
async def test_whole_flow(flow: Flow, projectors: int) -> None:
    flow.create_topics(partitions=4)
    flow.publish(crm.organization(1), crm.api_key(1))
    flow.publish_all(traffic(0, 1500))
    for number in range(projectors):
        flow.start(f"projector-{number}")
    for seed in (1, 2, 3):  # while they join, and the partitions are rebalanced
        flow.publish_all(traffic(seed, 500, leads=40))
    await flow.settled()
    assert flow.client.exists(KEY)
    await wait_until(lambda: flow.client.hget(names.GENERATIONS, "live") == b"1", "it is served")

    flow.publish(crm.deleted(resources.ORGANIZATION, 2))
    await flow.settled()
    assert flow.client.get(OWNER)[22:] == b"-"
    assert list(flow.client.scan_iter(names.of_organization(OWNER))) == []

    flow.publish(crm.lead(1, id=crm.uuid(7)), crm.organization(3))
    await flow.settled()
    assert {entity[1] for entity in stored.documents(flow.client)} == {crm.ORGANIZATION, crm.OTHER_ORGANIZATION}
    await wait_until(lambda: flow.client.exists(KEY), "the key is replayed as well")

    documents = {
        place: end for place, end in flow.ends.items() if place[0] in _topics(flow, resources.LEAD, resources.CONTACT)
    }
    await wait_until(lambda: flow.committed(flow.group) == documents, "the positions are committed to Kafka")
    access = {place: end for place, end in flow.ends.items() if place not in documents}
    assert flow.committed(f"{flow.group}.access") == access

    status = msgspec.json.decode(flow.command("status", "--json").stdout)
    assert (status["generation"], status["lag"], status["dead_letters"]) == (1, 0, 0)
    assert {(at["topic"], at["partition"]): at["head"] for at in status["partitions"]}.items() >= flow.ends.items()
    assert "dead letters 0" in flow.command("status").stdout


async def test_kill_9_in_the_middle(flow: Flow, server: RedisServer) -> None:
    """The write of the last lead never reaches Redis: however fast the machine is, it is killed before it is done."""
    flow.create_topics(partitions=4)
    flow.publish_all(traffic(1, 4000))
    flow.publish(crm.lead(1, id=crm.uuid(0xF00)))
    with faulty_proxy(server.port) as proxy:
        proxy.faults = Faults(held=names.document(resources.LEAD, OWNER, 1, crm.uuid(0xF00)))
        first = flow.start("first", batch_records=200, redis_url=f"redis://127.0.0.1:{proxy.port}/0")
        await wait_until(lambda: sum(flow.positions().values()) > 500, "some batches are covered")
        first.kill()
    assert not flow.caught_up()

    # Positions come from Redis, whatever Kafka has for a group. This new group does not wait for the dead member.
    flow.group += "-again"
    flow.start("second", batch_records=200)
    third = flow.start("third", batch_records=200)
    await wait_until(lambda: "resumed at these offsets" in flow.log("third").read_text(), "they share the partitions")
    flow.publish_all(traffic(2, 2000))
    third.kill()
    await flow.settled(after_crash=True)


async def test_redis_is_restarted_emptied_and_goes_back_in_time(flow: Flow, server: RedisServer) -> None:
    flow.create_topics()
    port = free_port()
    flow.start(metrics_port=port, batch_records=300)
    flow.publish_all(traffic(1, 1500))
    server.restart()  # in the middle
    flow.publish_all(traffic(2, 200))
    await flow.settled(after_crash=True)

    flow.client.flushall()  # idle
    await flow.settled()
    await wait_until(lambda: flow.client.hget(names.GENERATIONS, "live") == b"1", "it is served again")
    assert _rewinds(port) > 0

    flow.publish_all(traffic(3, 1500))
    flow.client.flushall()  # in the middle
    await flow.settled(after_crash=True)

    flow.client.config_set("appendonly", "no")
    flow.client.save()
    flow.publish(crm.lead(1, id=crm.uuid(0xAA)), crm.deleted(resources.CONTACT, 999, crm.uuid(0xC00001)))
    flow.publish_all(traffic(4, 300))
    await flow.settled()
    behind = flow.positions()
    server.kill()
    _without_log(server)
    server.restart()
    assert flow.positions() != behind
    await flow.settled(after_crash=True)
    healthy = (200, {"status": "ok", "problems": []})
    await wait_until(lambda: ask(port, "/healthz") == healthy, "both lines are well again")


async def test_a_redis_that_goes_back_while_nobody_writes_is_noticed(flow: Flow) -> None:
    """As after a failover to a replica that lacks the last writes: the connection works, the positions are lower."""
    flow.create_topics(partitions=1)
    flow.publish(crm.contact(1), crm.lead(1))
    flow.start()
    await flow.settled()
    before = {key: flow.client.dump(key) for key in flow.client.scan_iter()}
    flow.publish(crm.contact(2, first_name="Grace"), crm.lead(2, stage="STALE"), crm.lead(1, id=crm.OTHER_LEAD))
    await flow.settled()
    with flow.client.pipeline(transaction=True) as pipeline:
        pipeline.flushall()
        for key, value in before.items():
            pipeline.restore(key, 0, value)
        pipeline.execute()
    await flow.settled()
    assert "Redis lost writes of this projector" in flow.log().read_text()


async def test_a_recreated_topic_is_read_from_its_beginning_for_good(flow: Flow) -> None:
    """The position in the former topic must not return: the records before it in the new topic would be skipped."""
    leads = [crm.uuid(0x700 + number) for number in range(100)]
    flow.create_topics(partitions=1)
    flow.publish_all(crm.lead(version, id=lead) for version in (1, 2, 3) for lead in leads)
    projector = flow.start()
    await flow.settled()

    topic = flow.topic(resources.LEAD)
    delete_topic(flow.kafka.bootstrap_servers, topic)
    flow.kafka.create_topic(topic, 1)
    flow.topic_is_new(resources.LEAD)
    flow.publish_all(crm.lead(3, id=lead) for lead in leads)
    await wait_until(lambda: flow.positions().get((topic, 0)) == 100, "the position is one of the new topic")
    projector.kill()
    flow.publish_all(crm.lead(version, id=lead) for version in (4, 5) for lead in leads)
    flow.publish_all(crm.lead(1, id=crm.uuid(0x800 + number)) for number in range(50))
    flow.group += "-again"
    flow.start("again")
    await flow.settled()


async def test_many_leads_on_one_contact_never_lose_it(flow: Flow, server: RedisServer) -> None:
    number = 5000
    leads = [crm.uuid(0x5000 + n) for n in range(number)]
    flow.create_topics()
    flow.publish(crm.contact(1), *(crm.lead(1, id=lead) for lead in leads))
    first = flow.start()
    await flow.settled()
    first.stop()
    changed: set[str] = set()
    random = Random(1)

    def all_show_the_new_name() -> bool:
        """Read some leads, as clients do: each shows a contact, and never an older one than before."""
        sample = random.sample(leads, 200)
        for lead, value in zip(
            sample, flow.client.mget([names.document(resources.LEAD, OWNER, 1, lead) for lead in sample]), strict=True
        ):
            name = msgspec.json.decode(value[40:])["contact"]["first_name"]
            assert name == "Grace" or lead not in changed, "a lead showed an older contact after a newer one"
            if name == "Grace":
                changed.add(lead)
        return len(changed) == number or flow.caught_up()

    held = leads[number // 2]
    with faulty_proxy(server.port) as proxy:
        # The fan-out stops half-way until it is looked at: however fast the machine is, readers meet it.
        proxy.faults = Faults(held=names.document(resources.LEAD, OWNER, 1, held))
        flow.start("proxied", redis_url=f"redis://127.0.0.1:{proxy.port}/0")
        flow.publish(crm.contact(2, first_name="Grace"))
        await wait_until(lambda: proxy.holding and not all_show_the_new_name(), "the fan-out is half-way")
        assert 0 < len(changed) < number
        assert held not in changed
        proxy.faults = Faults()
        await wait_until(all_show_the_new_name, "all leads show the new name")
        await flow.settled()


@pytest.mark.parametrize(
    "held", [pytest.param(0, id="stuck at the first lead"), pytest.param(-1, id="busy with all leads but the last")]
)
async def test_access_is_not_behind_the_leads(flow: Flow, server: RedisServer, held: int) -> None:
    """A proxy never lets the write of one lead reach Redis: however fast the machine is, the leads are not done."""
    leads = [crm.uuid(0x20000 + number) for number in range(20_000)]
    flow.create_topics(partitions=2)
    flow.publish(crm.organization(1), crm.api_key(1))
    with faulty_proxy(server.port) as proxy:
        proxy.faults = Faults(held=names.document(resources.LEAD, OWNER, 1, leads[held]))
        flow.start(batch_records=100, redis_url=f"redis://127.0.0.1:{proxy.port}/0")
        await wait_until(lambda: flow.client.exists(KEY), "the key opens")
        flow.publish_all(crm.lead(1, id=lead) for lead in leads)
        is_at_work = (lambda: proxy.holding) if held == 0 else (lambda: _has_covered_leads(flow))
        await wait_until(is_at_work, "the leads are in hand")
        flow.publish(crm.api_key(2, status="revoked"))
        seconds = await seconds_until(lambda: not flow.client.exists(KEY), "the key opens no more")
        assert not flow.client.exists(names.document(resources.LEAD, OWNER, 1, leads[held]))
        assert not flow.caught_up(resources.LEAD)
        assert seconds < 1.0
        proxy.faults = Faults()
        await flow.settled()


def _has_covered_leads(flow: Flow) -> bool:
    return any(topic == flow.topic(resources.LEAD) for topic, _ in flow.positions())


async def test_dead_letters(flow: Flow) -> None:
    flow.create_topics(partitions=1)
    port = free_port()
    secret = "Zaphod"
    flow.publish(crm.lead(1), crm.lead(2, stage=secret), crm.contact(1))
    flow.publish(_bare(b"{"), crm.lead(3, stage="STALE"))
    projector = flow.start(metrics_port=port, dead_letter_row=5)
    await flow.settled()
    topic = flow.topic(resources.LEAD)
    letters = msgspec.json.decode(flow.command("dead-letters", "list", "--json").stdout)
    assert [(letter["topic"], letter["partition"], letter["offset"]) for letter in letters] == [
        (topic, 0, 1),
        (topic, 0, 2),
    ]
    assert letters[0]["key"] == f"{crm.ORGANIZATION}:{crm.LEAD}"
    assert "$.data.stage" in letters[0]["reason"]
    assert secret not in str(flow.client.hgetall(names.DEAD_LETTERS))

    flow.publish(*[crm.lead(4 + n, stage="WRONG") for n in range(6)], crm.lead(20, stage="ACCEPTED"))
    await wait_until(lambda: ask(port, "/healthz")[0] == 503, "/healthz reports that the line is halted")
    assert "5 consecutive bad records" in ask(port, "/healthz")[1]["problems"][0]
    assert flow.positions()[topic, 0] == 4
    flow.publish(crm.organization(2, api_access=False))
    await wait_until(lambda: flow.caught_up(resources.ORGANIZATION), "the line of access records continues")
    projector.stop()
    assert projector.wait(PATIENCE_SECONDS) == 0
    assert flow.positions()[topic, 0] == 4
    flow.start(dead_letter_row=50)
    await flow.settled()
    assert flow.client.hlen(names.DEAD_LETTERS) == 8
    await _redrive(flow, topic)


async def _redrive(flow: Flow, topic: str) -> None:
    """Dead letters as an older projector may have left them: of records that are now good, stale, or deleted."""
    flow.publish(crm.lead(1, id=crm.OTHER_LEAD))
    await flow.settled()
    lost = flow.ends[topic, 0] - 1
    flow.client.delete(names.document(resources.LEAD, OWNER, 1, crm.OTHER_LEAD))
    for offset in (0, lost, 9999):
        letter = DeadLetter(topic, 0, offset, "key", "an older projector could not read it", 1)
        flow.client.hset(names.DEAD_LETTERS, letter.field, msgspec.json.encode(letter).decode())
    done = flow.command("dead-letters", "redrive")
    assert done.returncode == 1
    assert f"{topic}:0:0  stale" in done.stdout
    assert f"{topic}:0:{lost}  applied" in done.stdout
    assert f"{topic}:0:9999  gone" in done.stdout
    assert "11 redriven, 8 still bad" in done.stdout
    assert stored.documents(flow.client) == flow.reference.documents()

    assert "version" not in flow.command("dead-letters", "show", f"{topic}:0:1").stdout
    assert flow.command("dead-letters", "drop", f"{topic}:0:1").stdout == "1 dropped\n"
    unknown = flow.command("dead-letters", "drop", f"{topic}:0:1")
    assert unknown.returncode == 1
    assert f"There is no dead letter {topic}:0:1." in unknown.stderr
    rest = msgspec.json.decode(flow.command("dead-letters", "list", "--json").stdout)
    assert len(rest) == 7


async def test_a_projector_in_daily_use(flow: Flow) -> None:
    """Signals, metrics, more partitions, the default group, `show`."""
    flow.group = "leadview"
    flow.create_topics(partitions=1)
    port = free_port()
    # Whoever joins after a member that has not left the group waits as long as this: longer than this test.
    projector = flow.start(metrics_port=port, kafka_session_timeout=300)
    flow.publish(crm.contact(3, email="a@b.c"), crm.lead(2))
    await flow.settled()
    healthy = (200, {"status": "ok", "problems": []})
    await wait_until(lambda: ask(port, "/healthz") == healthy, "both lines are well")
    text = ask(port, "/metrics")[1]
    assert 'leadview_projector_records_total{line="documents",result="written"} 2.0' in text

    flow.add_partitions(resources.LEAD, 3)
    flow.publish(crm.lead(3, seconds=1, stage="STALE"), crm.lead(1, id=crm.OTHER_LEAD), partition=2)
    flow.publish(crm.tombstone(resources.LEAD, crm.OTHER_LEAD, seconds=2), partition=1)
    await flow.settled()

    shown = msgspec.json.decode(flow.command("show", "lead", crm.ORGANIZATION, crm.LEAD, "--json").stdout)
    event = shown["generations"][0]["event"]
    assert (event["version"], event["partition"], event["offset"], event["live"]) == (3, 2, 0, True)
    assert "version 3" in flow.command("show", "contact", crm.ORGANIZATION, crm.CONTACT).stdout

    with Stopwatch() as stopwatch:
        projector.stop()
        assert projector.wait(PATIENCE_SECONDS) == 0
        assert stopwatch.seconds < 5
    assert flow.caught_up()
    assert flow.ends.items() <= flow.committed("leadview").items() | flow.committed("leadview.access").items()
    again = flow.start("again")
    await wait_until(lambda: "resumed at these offsets" in flow.log("again").read_text(), "it has joined at once")
    again.stop()
    assert again.wait(PATIENCE_SECONDS) == 0


def test_an_unknown_setting_stops_the_start(flow: Flow) -> None:
    done = flow.command("run", redis_ulr="redis://127.0.0.1")
    assert done.returncode == 2
    assert "LEADVIEW_REDIS_ULR is not a setting of Leadview: did you mean LEADVIEW_REDIS_URL?" in done.stderr


@pytest.mark.parametrize(
    "missing",
    [
        pytest.param({"kafka_bootstrap_servers": "127.0.0.1:1"}, id="no Kafka"),
        pytest.param({"redis_url": "redis://127.0.0.1:1/0"}, id="no Redis"),
    ],
)
async def test_a_projector_waits_for_its_services_and_can_be_stopped(flow: Flow, missing: dict[str, str]) -> None:
    projector = flow.start(**missing)
    await wait_until(lambda: "Connect" in flow.log().read_text() or "connect" in flow.log().read_text(), "it waits")
    with Stopwatch() as stopwatch:
        projector.stop()
        assert projector.wait(PATIENCE_SECONDS) == 0
        assert stopwatch.seconds < 5


def test_a_redis_that_evicts_stops_the_start(flow: Flow) -> None:
    flow.client.config_set("maxmemory-policy", "allkeys-lru")
    done = flow.command("run")
    assert done.returncode == 1
    assert "Set its maxmemory-policy to noeviction" in done.stderr


def _topics(flow: Flow, *kinds: resources.Kind) -> set[str]:
    return {flow.topic(kind) for kind in kinds}


def _rewinds(port: int) -> float:
    lines = ask(port, "/metrics")[1].splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("leadview_projector_rewinds_total"))


def _without_log(server: RedisServer) -> None:
    """Delete the append-only log of this Redis, so that only its snapshot is left, as with `appendonly no`."""
    log = server.directory / "appendonlydir"
    for file in [*log.glob("*"), *server.directory.glob("appendonly.aof")]:
        file.unlink()


def _bare(value: bytes) -> crm.Message:
    return crm.Message(resources.LEAD, crm.lead(1).key, value)


async def test_a_topic_that_is_read_again_is_passed_over(flow: Flow) -> None:
    """Records that documents show are not decoded again; documents that were damaged or lost are still repaired."""
    flow.create_topics(partitions=2)
    flow.publish(crm.organization(1), crm.contact(1))
    flow.publish_all(crm.lead(1, id=crm.uuid(5000 + n)) for n in range(3000))
    flow.publish_all(crm.Message(resources.LEAD, b"no key", b"{}") for _ in range(5))
    flow.start()
    await flow.settled()
    lost = names.document(resources.LEAD, OWNER, 1, crm.uuid(5100))
    flow.client.delete(lost)
    flow.client.hdel(names.POSITIONS, *(names.position(flow.topic(resources.LEAD), number) for number in range(2)))
    await wait_until(lambda: flow.client.exists(lost) and flow.caught_up(), "it is read again")
    await flow.settled()
    assert flow.client.hlen(names.DEAD_LETTERS) == 5
