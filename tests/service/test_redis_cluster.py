"""A Redis Cluster of three primaries: how both programs find its nodes, and what a shard loses."""

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio.cluster import NodesManager

from api.redis.links import ClusterLinks
from devstack.fault_proxy import Faults, faulty_proxy
from devstack.redis_cluster import RedisCluster
from devstack.redis_server import RedisServer
from projector.errors import Refused
from projector.ledger import copies
from projector.ledger.control import NOTHING_STORED, Advance, Checkpointed, ControlChanged, Covered, Position, WentBack
from projector.record import Partition
from projector.redis import servers
from projector.redis.store import Store
from runtime import background
from runtime.redis.access import SlotMap, location
from runtime.redis.errors import Redirected, Unavailable
from runtime.redis.routing import Route
from schemas import names
from schemas.api_keys import mint, organization_tag
from schemas.redis_url import Host
from schemas.settings import ProjectorSettings
from tests.harness import control, crm
from tests.harness.api_server import LEADS, connected, patient, running_api
from tests.harness.projection import Opened
from tests.harness.waiting import PATIENCE_SECONDS, eventually

HOME = names.tag_slot(names.HOME)
TAG = organization_tag(crm.ORGANIZATION).encode()
ORGANIZATION = names.tag_slot(TAG)
AT = Partition("crm.leads", 0)


def other_than(cluster: RedisCluster, node: RedisServer) -> RedisServer:
    return next(primary for primary in cluster.primaries if primary is not node)


def advance(expected: int, offset: int) -> dict[Partition, Advance]:
    return {AT: Advance(expected, Position(offset, 1, 1))}


def slot_map(url: str) -> SlotMap:
    found = location(patient(url), PATIENCE_SECONDS)
    assert isinstance(found, SlotMap)
    return found


async def test_a_former_primary_still_answers_what_it_was_asked(tmp_path: Path) -> None:
    """It stands still with a request, and wakes up when the API already knows that its replica took over."""
    with RedisCluster(tmp_path / "cluster", replicas=True) as cluster:
        primary = cluster.owner(ORGANIZATION)
        replica = cluster.replicas[cluster.primaries.index(primary)]
        servers = ClusterLinks(slot_map(cluster.url_of_all), timeout=PATIENCE_SECONDS, max_in_flight=100)
        async with connected(servers):
            link = servers.link(TAG)
            primary.pause()
            asked = asyncio.ensure_future(servers.call(TAG, b"EXISTS", b"lv3{%s}" % TAG))
            with replica.client() as client:
                client.execute_command("CLUSTER FAILOVER", "TAKEOVER")

            async def replica_is_known() -> bool:
                moved = Redirected(f"MOVED {ORGANIZATION} {replica.address}")
                servers._cluster.redirect(Route(TAG, b"", link), moved)
                return servers.link(TAG) is not link

            await eventually(replica_is_known, "the API knows that the replica took over")
            assert not asked.done()
            primary.resume()
            assert await asked == 0


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
    servers = ClusterLinks(map_, timeout=PATIENCE_SECONDS, max_in_flight=10)
    async with connected(servers):
        broken = False
        await eventually(lambda: servers.map_version, "the slot map is read")
        await servers.first_attempt()
        assert await servers.call(TAG, b"EXISTS", TAG) == 0


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
    running = asyncio.create_task(ClusterLinks(map_, timeout=PATIENCE_SECONDS, max_in_flight=10).run())
    await asked.wait()
    running.cancel()
    done, _ = await asyncio.wait([running], timeout=PATIENCE_SECONDS)
    assert done
    assert running.cancelled()


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
    cluster_store: Store, cluster: RedisCluster, number: int, lose: Any, left: int | None, outcome: Checkpointed
) -> None:
    """Both the running projector and one that starts read it again."""
    opened = await Opened.open(cluster_store)
    await opened.cover(advance(NOTHING_STORED, 7))
    with cluster.primaries[number].client() as client:
        lose(client, next(client.scan_iter("lv3{*}:control")))
    assert await opened.cover(advance(7, 9)) == outcome
    again = await Opened.open(cluster_store)
    assert await again.positions(AT) == {AT: left}
    assert await again.cover(advance(left or NOTHING_STORED, 9)) == Covered()
    assert await again.positions(AT) == {AT: 9}


async def test_a_shard_whose_copy_was_moved_away_gets_another(cluster_store: Store, cluster: RedisCluster) -> None:
    """From then on, the new copy counts as well."""
    await control.complete(cluster_store)
    opened = await Opened.open(cluster_store)
    await opened.cover(advance(NOTHING_STORED, 7))
    source = cluster.owner(HOME)
    cluster.move_slot(HOME, other_than(cluster, source))
    assert await opened.cover(advance(7, 9)) == Covered()
    again = await Opened.open(cluster_store)
    assert again.session.record.serves, "nothing has to be filled again"
    assert await again.positions(AT) == {AT: 9}
    assert await again.cover(advance(9, 11)) == Covered()
    assert await opened.cover(advance(11, 12)) == ControlChanged(), "the other one has no part in the new copy"
    with source.client() as client:
        [own] = client.scan_iter("lv3{*}:control")
        assert client.hget(own, "crm.leads:0") == "11 1 1 -1 -"
        client.flushall()
    assert await again.positions(AT) == {AT: None}
    assert not (await copies.current(cluster_store)).serves


async def test_a_slot_that_moved_is_noticed_without_a_redirection(
    cluster_store: Store, cluster: RedisCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The map as a whole is read again only if it is outdated: until then, a shard could lack a copy."""
    monkeypatch.setattr(servers, "_MAP_SECONDS", 3600.0)
    monkeypatch.setattr(servers, "_SHORTEST_MAP_SECONDS", 0.0)
    monkeypatch.setattr(servers, "_LOOK_SECONDS", 0.0)
    before = await cluster_store.shards()
    cluster.move_slot(HOME, other_than(cluster, cluster.owner(HOME)))
    await eventually(lambda: _differ(cluster_store, before), "it has another map")


async def _differ(store: Store, before: list[frozenset[int]]) -> bool:
    return set(await store.shards()) != set(before)


async def test_a_node_of_a_cluster_is_not_accepted_as_a_server(
    cluster_store: Store, cluster: RedisCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither by the projector nor by the API."""
    other = other_than(cluster, cluster.owner(HOME))
    store = Store(ProjectorSettings(redis_url=other.url))
    with pytest.raises(Refused, match=r"write redis\+cluster://"):
        await store.check()
    await store.close()
    await cluster_store.check()
    with running_api(patient(other.url), ready=False) as api:
        await eventually(lambda: "write redis+cluster://" in caplog.text, "the log says what to do")
        assert api.get(LEADS + crm.LEAD, key=mint(crm.ORGANIZATION)).status == 503
