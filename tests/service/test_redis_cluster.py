"""A Redis Cluster of three primaries with replicas: slots move while it is used, and a primary fails."""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio.cluster import NodesManager

from api.redis import serving
from api.redis.servers import Cluster
from devstack.fault_proxy import Faults, faulty_proxy
from devstack.redis_cluster import RedisCluster
from devstack.redis_server import RedisServer, RedisServerMissing
from leadview import background
from leadview.redis.access import SlotMap, location
from leadview.redis.errors import Redirected, Unavailable
from projector import errors
from projector.errors import Refused
from projector.ledger import copies
from projector.ledger.control import NOTHING_STORED, ControlChanged, Outcome, Position, Step, Stored, WentBack
from projector.record import Partition
from projector.redis.store import Store
from schemas import names
from schemas.api_keys import key_hash, mint, organization_tag
from schemas.redis_url import Host
from schemas.settings import ApiSettings, ProjectorSettings
from tests.chaos.core import traffic
from tests.harness import control, crm
from tests.harness.api_server import LEADS, ApiServer, Response, patient, reading, running_api
from tests.harness.leadview import Leadview
from tests.harness.projection import Opened
from tests.harness.records import Records
from tests.harness.services import Kafka, client_of, not_available
from tests.harness.waiting import PATIENCE_SECONDS, eventually, seconds_until

HOME = names.tag_slot(names.HOME)
TAG = organization_tag(crm.ORGANIZATION).encode()
ORGANIZATION = names.tag_slot(TAG)
AT = Partition("crm.leads", 0)
KEY = mint(crm.ORGANIZATION)
ACCESS = (crm.organization(1), crm.api_key(1, hash=key_hash(KEY)))


@pytest.fixture
def replicated(tmp_path: Path) -> Iterator[RedisCluster]:
    """A cluster of its own, with replicas."""
    try:
        cluster = RedisCluster(tmp_path / "cluster", replicas=True)
    except RedisServerMissing as error:
        not_available(str(error))
    with cluster:
        yield cluster


@pytest.fixture
def leadview(kafka: Kafka, topic_prefix: str, cluster: RedisCluster, tmp_path: Path) -> Iterator[Leadview]:
    with Leadview(kafka, topic_prefix, cluster, tmp_path) as leadview:
        yield leadview


def other_than(cluster: RedisCluster, node: RedisServer) -> RedisServer:
    return next(primary for primary in cluster.primaries if primary is not node)


def step(expected: int, offset: int) -> dict[Partition, Step]:
    return {AT: Step(expected, Position(offset, 1, 1))}


def slot_map(url: str) -> SlotMap:
    """Returns where the API finds the servers of this URL."""
    found = location(patient(url), PATIENCE_SECONDS)
    assert isinstance(found, SlotMap)
    return found


def lead(api: ApiServer) -> Response:
    return api.get(LEADS + crm.LEAD, key=KEY)


def api_settings(cluster: RedisCluster) -> ApiSettings:
    return ApiSettings(
        redis_url=cluster.url, key_rate_limit="1000000/1s", organization_rate_limit="1000000/1s", api_redis_timeout=1.0
    )


@pytest.mark.apache
async def test_slots_move_while_it_is_used(leadview: Leadview, cluster: RedisCluster) -> None:
    leadview.topics.create()
    leadview.publish(*ACCESS, crm.contact(1), crm.lead(1))
    changes = traffic()
    leadview.publish_all(islice(changes, 500))
    projector = leadview.start("run", batch_records=200)
    await leadview.settled()
    await eventually(leadview.is_served, "it is served")
    with running_api(api_settings(cluster)) as api, reading(api, LEADS + crm.LEAD, KEY) as statuses:
        for slot in (ORGANIZATION, HOME):
            source = cluster.owner(slot)
            with cluster.moving(slot, other_than(cluster, source)) as move:
                move(50)  # half-way: ASK for keys that have moved, TRYAGAIN if a call needs keys of both nodes
                leadview.publish_all(islice(changes, 200))
                seen = len(statuses)
                await eventually(lambda seen=seen: len(statuses) > seen + 3, "requests continue")  # type: ignore[misc]
            await eventually(lambda: statuses[-1] == 200, "it is served by the node that has it now")
            assert cluster.owner(slot) is not source
        await leadview.settled()
    assert set(statuses) <= {200, 503}
    assert "Redis is behind" not in projector.log.read_text()


@pytest.mark.apache
async def test_a_primary_fails_and_its_replica_had_lost_the_tail(
    kafka: Kafka, topic_prefix: str, replicated: RedisCluster, tmp_path: Path
) -> None:
    with Leadview(kafka, topic_prefix, replicated, tmp_path) as leadview:
        leadview.topics.create()
        leadview.publish(*ACCESS, crm.contact(1), crm.lead(1))
        changes = traffic()
        leadview.publish_all(islice(changes, 300))
        number = replicated.primaries.index(replicated.owner(ORGANIZATION))
        leadview.start("run", batch_records=200)
        await leadview.settled()
        await eventually(leadview.is_served, "it is served")
        with running_api(api_settings(replicated)) as api, replicated.losing(number):
            leadview.publish(crm.lead(2, stage="STALE"))
            leadview.publish_all(islice(changes, 300))
            await leadview.settled()  # acknowledged, and covered
            assert lead(api).json["stage"] == "STALE"
            replicated.fail_over(number)
            assert await seconds_until(lambda: lead(api).status == 200, "the API is back") < 1.5
            await leadview.settled()
            assert lead(api).json["stage"] == "STALE"


async def test_a_former_primary_still_answers_what_it_was_asked(replicated: RedisCluster) -> None:
    """It stands still with a request, and wakes up when the API already knows that its replica took over."""
    primary = replicated.owner(ORGANIZATION)
    replica = replicated.replicas[replicated.primaries.index(primary)]
    servers = Cluster(slot_map(replicated.url_of_all), timeout=PATIENCE_SECONDS, max_in_flight=100)
    running = asyncio.create_task(servers.run())
    try:
        await servers.first_attempt()
        link = servers.link(TAG)
        primary.pause()
        asked = asyncio.ensure_future(servers.call(TAG, b"EXISTS", b"lv3{%s}" % TAG))
        with replica.client() as client:
            client.execute_command("CLUSTER FAILOVER", "TAKEOVER")

        async def replica_is_known() -> bool:
            await servers.redirect(Redirected(f"MOVED {ORGANIZATION} {replica.address}"), link, TAG)
            return servers.link(TAG) is not link

        await eventually(replica_is_known, "the API knows that the replica took over")
        assert not asked.done()
        primary.resume()
        assert await asked == 0
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_node_that_answers_slowly_has_more_time_at_the_next_attempt(cluster: RedisCluster) -> None:
    """Half a second is too short for TLS and a login in a region that is far away."""
    with faulty_proxy(cluster.primaries[0].port) as proxy:
        proxy.faults = Faults(delay_seconds=0.6)
        map_ = slot_map(f"redis+cluster://127.0.0.1:{proxy.port}")

        async def is_read() -> bool:
            try:
                return all(await map_.read())
            except Unavailable:
                return False

        try:
            assert not await is_read()
            assert proxy.accepted == 1, "once an attempt: redis-py closes no connection to nodes that it is given"
            await eventually(is_read, "the slot map is read")
        finally:
            await map_.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_each_node_of_the_url_is_asked_once_an_attempt(cluster: RedisCluster, host: str) -> None:
    """By the projector and the API: redis-py closes no connection to nodes that it is given at an attempt."""
    with faulty_proxy(cluster.primaries[0].port) as proxy:
        proxy.faults = Faults(end="close", end_after=0)
        url = f"redis+cluster://{host}:{proxy.port}"
        store = Store(ProjectorSettings(redis_url=url))
        with pytest.raises(errors.Unavailable):
            await store.ask_one(b"GET", TAG)
        assert proxy.accepted == 1
        await store.close()
        map_ = slot_map(url)
        with pytest.raises(Unavailable):
            await map_.read()
        assert proxy.accepted == 2
        await map_.close()


async def test_the_api_starts_although_the_slot_map_cannot_be_read(
    cluster: RedisCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Because of an error that nobody expected. It is read again, and then keys are found."""
    monkeypatch.setattr(background, "_PAUSE_SECONDS", 0.01)
    map_ = slot_map(cluster.url)
    read, broken = map_.read, True

    async def fail(failed: Host | None = None) -> list[Host | None]:
        if broken:
            raise KeyError("slots")
        return await read()

    monkeypatch.setattr(map_, "read", fail)
    servers = Cluster(map_, timeout=PATIENCE_SECONDS, max_in_flight=10)
    running = asyncio.create_task(servers.run())
    async with asyncio.timeout(PATIENCE_SECONDS):
        await servers.first_attempt()
    broken = False
    await eventually(lambda: servers.map_version, "the slot map is read")
    await servers.first_attempt()
    assert await servers.call(TAG, b"EXISTS", TAG) == 0
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


@pytest.mark.parametrize("raises", [False, True])
async def test_the_api_ends_although_a_cancellation_was_swallowed(
    cluster: RedisCluster, monkeypatch: pytest.MonkeyPatch, raises: bool
) -> None:
    """redis-py does so (`asyncio.wait_for` of Python 3.11) if it is cancelled at the moment of a reply or an error."""
    map_ = slot_map(cluster.url)
    asked = asyncio.Event()

    async def swallow(*_: object) -> None:
        asked.set()
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        if raises:
            raise OSError("closed")

    monkeypatch.setattr(NodesManager, "initialize", swallow)
    running = asyncio.create_task(Cluster(map_, timeout=PATIENCE_SECONDS, max_in_flight=10).run())
    await asked.wait()
    running.cancel()
    done, _ = await asyncio.wait([running], timeout=PATIENCE_SECONDS)
    assert done
    assert running.cancelled()


async def test_one_trip_a_request(cluster: RedisCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "POLL_SECONDS", PATIENCE_SECONDS)  # each poll tries the script out on each shard
    with client_of(cluster.url) as client, running_api(api_settings(cluster)) as api:
        callers = [Records(client).caller() for _ in range(20)]
        before = calls(cluster, "evalsha"), calls(cluster, "script")
        statuses = [api.get(LEADS + crm.LEAD, key=caller.key).status for caller in callers * 3]
        after = calls(cluster, "evalsha"), calls(cluster, "script")
    assert statuses == [404] * 60
    assert (after[0] - before[0]) - (after[1] - before[1]) == 60, "a script that was missing is called once more"


def calls(cluster: RedisCluster, command: str) -> int:
    """Returns how often this command was called, on all primaries."""
    found = 0
    for primary in cluster.primaries:
        with primary.client() as client:
            stats = client.info("commandstats").items()
            found += sum(stat["calls"] for name, stat in stats if name.partition("|")[0] == f"cmdstat_{command}")
    return found


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize(
    ("lose", "left", "outcome"),
    [
        pytest.param(lambda client, _: client.flushall(), None, ControlChanged(), id="emptied"),
        pytest.param(
            lambda client, key: client.hset(key, "crm.leads:0", "5 1 1 -1 -"),
            5,
            WentBack(["crm.leads:0"]),
            id="went back",
        ),
    ],
)
async def test_what_one_shard_lost_is_read_again(
    cluster_store: Store, cluster: RedisCluster, number: int, lose: Any, left: int | None, outcome: Outcome
) -> None:
    """Both the running projector and one that starts read it again."""
    opened = await Opened.open(cluster_store)
    await opened.cover(step(NOTHING_STORED, 7))
    with cluster.primaries[number].client() as client:
        lose(client, next(client.scan_iter("lv3{*}:control")))
    assert await opened.cover(step(7, 9)) == outcome
    again = await Opened.open(cluster_store)
    assert await again.positions(AT) == {AT: left}
    assert await again.cover(step(left or NOTHING_STORED, 9)) == Stored()
    assert await again.positions(AT) == {AT: 9}


async def test_a_shard_whose_copy_was_moved_away_gets_another(cluster_store: Store, cluster: RedisCluster) -> None:
    """From then on, the new copy counts as well."""
    await control.complete(cluster_store)
    opened = await Opened.open(cluster_store)
    await opened.cover(step(NOTHING_STORED, 7))
    source = cluster.owner(HOME)
    cluster.move_slot(HOME, other_than(cluster, source))
    assert await opened.cover(step(7, 9)) == Stored()
    again = await Opened.open(cluster_store)
    assert again.session.record.serves, "nothing has to be filled again"
    assert await again.positions(AT) == {AT: 9}
    assert await again.cover(step(9, 11)) == Stored()
    assert await opened.cover(step(11, 12)) == ControlChanged(), "the other one has no part in the new copy"
    with source.client() as client:
        [own] = client.scan_iter("lv3{*}:control")
        assert client.hget(own, "crm.leads:0") == "11 1 1 -1 -"
        client.flushall()
    assert await again.positions(AT) == {AT: None}
    assert not (await copies.current(cluster_store)).serves


async def test_a_node_of_a_cluster_is_not_accepted_as_a_server(
    cluster: RedisCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither by the projector nor by the API."""
    other = other_than(cluster, cluster.owner(HOME))
    store = Store(ProjectorSettings(redis_url=other.url))
    with pytest.raises(Refused, match=r"write redis\+cluster://"):
        await store.check()
    await store.close()
    with running_api(patient(other.url), ready=False) as api:
        await eventually(lambda: "write redis+cluster://" in caplog.text, "the log says what to do")
        assert lead(api).status == 503
