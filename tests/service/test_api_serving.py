"""Which shards the API believes, and how many calls that takes."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest

from api.errors import Rebuilding
from api.redis.servers import Link, OneServer, Servers, servers
from api.redis.serving import Serving
from api.redis.store import Store
from api.request import Credentials, credentials
from devstack.redis_cluster import RedisCluster
from leadview.redis.access import Address
from leadview.redis.errors import Unavailable
from schemas import names, resources
from schemas.control import LAYOUT, Stamp
from schemas.layouts import LARGE
from schemas.settings import ApiSettings
from tests.harness import control
from tests.harness.api_server import connected, patient
from tests.harness.generations import generation
from tests.harness.records import Caller, Records
from tests.harness.services import RedisService, client_of, empty_redis

FIELDS = (b"%d" % LAYOUT, *[generation(1).encode()] * 2, b"ledger")
"""Layout, live, filled, copies."""


@asynccontextmanager
async def opened(settings: ApiSettings) -> AsyncIterator[tuple[Servers, Serving, Store]]:
    """The API's way into Redis, without anything that calls Redis by itself."""
    called = servers(settings)
    serving = Serving(called)
    async with connected(called):
        yield called, serving, Store(settings, called, serving)


def reply(**fields: bytes) -> list[bytes | None]:
    return [*(dict(zip(("layout", "live", "filled", "copies"), FIELDS, strict=True)) | fields).values()]


@pytest.fixture
def link() -> Link:
    return Link(Address(), timeout=1.0, max_in_flight=1)


@pytest.mark.parametrize(
    ("fields", "refused"),
    [
        pytest.param({}, None, id="the only one"),
        pytest.param({"filled": b"11.Test00"}, Rebuilding, id="only one whose number begins with it"),
        pytest.param({"filled": b"21.Test00"}, Rebuilding, id="only one whose number ends with it"),
        pytest.param({"live": b"11.Test00"}, Rebuilding, id="only one whose number is a part of it"),
        pytest.param({"live": b"11.Test00", "filled": b"1.Test00,11.Test00"}, None, id="the second one"),
        pytest.param({"filled": b""}, Rebuilding, id="none"),
        pytest.param({"live": b"x", "filled": b"x"}, Unavailable, id="not a generation"),
        pytest.param({"layout": b"999"}, Unavailable, id="another layout"),
    ],
)
async def test_the_live_generation_must_be_filled(
    link: Link, fields: dict[str, bytes], refused: type[Unavailable] | None
) -> None:
    """What was not complete is not forgotten: the shard has to be asked again, whatever it was before."""
    serving = Serving(OneServer(link, 1.0))
    assert serving.read(link, names.HOME, reply()) == generation(1)
    found = reply(**fields)
    if refused is None:
        live = fields.get("live", FIELDS[1]).decode()
        assert serving.read(link, names.HOME, found) == live
        assert serving.known(link, names.HOME) == live
        return
    nothing: list[bytes | None] = [None] * 4
    for each, error in ((found, refused), (found, refused), (nothing, Rebuilding)):
        with pytest.raises(error):
            serving.read(link, names.HOME, each)
        assert serving.known(link, names.HOME) is None
        assert not serving.ready


class CountingTransport:
    """A transport that counts the writes."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.writes = 0

    def write(self, data: bytes) -> None:
        self.writes += 1
        self._transport.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def caller_of(caller: Caller) -> Credentials:
    return credentials(caller.authorization.encode())


async def status(store: Store, caller: Caller, lead: str | None = None) -> int:
    return (await store.serve(caller_of(caller), resources.LEAD, lead, (), b"")).status


@pytest.mark.parametrize("service", ["redis_server", "redis_shards"])
@pytest.mark.parametrize("size", [10, 60_000])
async def test_one_request_is_one_write(request: pytest.FixtureRequest, service: str, size: int) -> None:
    """Key, access, limits, document and the check of the shard: on one server and on a cluster."""
    redis: RedisService = request.getfixturevalue(service)
    settings = patient(redis.url)
    control.complete_all(settings)  # each shard has its copy of the control record
    with redis.client() as client:
        records = Records(client)
        caller = records.caller()
        lead = records.lead(caller.organization_id, {"pad": "x" * size})
    async with opened(settings) as (servers, _, store):
        assert await status(store, caller, lead) == 200, "loads the script, and learns what is served"
        connections: list[Any] = [link.connection for link in servers.links]
        for connection in connections:
            connection._transport = CountingTransport(connection._transport)
        assert [await status(store, caller, lead) for _ in range(5)] == [200] * 5
        assert sum(connection._transport.writes for connection in connections) == 5
    empty_redis(redis)  # requested by name, so the usual clean-up does not see it


async def test_data_as_of_was_known_before_the_document_was_read(redis_server: RedisService) -> None:
    """What is found out while the document is being read may be about a later change. And what one connection said does
    not hold for the next one, which may lead to a server that has lost writes.
    """
    settings = patient(redis_server.url)
    control.complete_all(settings)
    with redis_server.client() as client:
        records = Records(client)
        caller = records.caller()
        lead = records.lead(caller.organization_id, {"pad": "x" * 100_000})
        client.set(names.AS_OF, 1000)
    async with opened(settings) as (servers, serving, store):

        async def told() -> bytes:
            return (await store.serve(caller_of(caller), resources.LEAD, None, (), b"")).as_of

        assert await told() == b"", "nobody has asked"
        await serving.check_ready()
        assert await told() == b"data-as-of: 1970-01-01T00:00:01.000Z\r\n"
        reading = asyncio.create_task(told())
        await asyncio.sleep(0)  # Redis is called
        servers.link(names.HOME).as_of = b"data-as-of: 1970-01-01T00:00:02.000Z\r\n"
        assert await reading == b"data-as-of: 1970-01-01T00:00:01.000Z\r\n"
        large = await store.serve(caller_of(caller), resources.LEAD, lead, (), b"")
        assert (large.status, large.as_of) == (LARGE, b"data-as-of: 1970-01-01T00:00:02.000Z\r\n")
        with redis_server.client() as client:
            client.client_kill_filter(_type="normal", skipme=True)
        whole = await store.read_large(caller_of(caller), resources.LEAD, lead, large, b"")
        assert (whole.status, whole.as_of) == (200, b"")
        assert await told() == b""


@contextmanager
def taken_over(cluster: RedisCluster, *, is_lost: bool) -> Iterator[tuple[ApiSettings, Any, bytes, bytes]]:
    """The slot of a shard is moved to another one; with its copy of the control record, unless that was lost with its
    shard. Yields a client, the tag of the shard that took the slot over, and that of the slot.
    """
    settings = patient(cluster.url)
    control.complete_all(settings)
    with client_of(cluster.url) as client:
        taker, moved = [tag.encode() for tag in control.read_all(client) if tag.encode() != names.HOME][:2]
        slot = names.tag_slot(moved)
        owner = cluster.owner(slot)
        if is_lost:
            client.delete(control_copy(moved))
        cluster.move_slot(slot, cluster.owner(names.tag_slot(taker)))
        try:
            yield settings, client, taker, moved
        finally:
            client.flushdb()
            cluster.move_slot(slot, owner)


def control_copy(tag: bytes) -> bytes:
    return names.copy(names.CONTROL, tag)


async def test_a_shard_that_took_over_the_slots_of_a_lost_one_is_not_believed(three_primaries: RedisCluster) -> None:
    """Its own copy is complete; that of the lost shard is missing, and so is all that the lost one held. A key of it
    must not be called unknown."""
    with taken_over(three_primaries, is_lost=True) as (settings, client, taker, lost):
        async with opened(settings) as (servers, serving, store):
            link = servers.link(taker)
            assert servers.link(lost) is link
            for _ in range(3):
                with pytest.raises(Rebuilding):
                    await serving.ask(link)
                with pytest.raises(Rebuilding):
                    await status(store, caller_in(taker))
            # A projector gives it a copy again, and fills the shard.
            client.hset(control_copy(lost), mapping=client.hgetall(control_copy(taker)))
            assert await serving.ask(link) == generation(1)
            assert serving.check(link) is None, "no single copy says it all"
            assert await status(store, caller_in(taker)) == 401
            client.hset(control_copy(lost), "filled", "")
            for _ in range(2):
                with pytest.raises(Rebuilding):
                    await status(store, caller_in(taker))


async def test_a_promotion_that_has_reached_one_of_the_copies_of_a_shard(three_primaries: RedisCluster) -> None:
    """A shard that took over a slot has two copies, and a command changes one after the other. Both generations are
    complete then, so nothing is refused; the later state is believed, because its generation is not dropped."""
    both = {"live": generation(1), "filled": f"{generation(1)},{generation(2)}"}
    with taken_over(three_primaries, is_lost=False) as (settings, client, taker, moved):
        for first, second in ((taker, moved), (moved, taker)):
            for tag in (taker, moved, names.HOME):
                client.hset(control_copy(tag), mapping=both)
            stamp = Stamp(client.hget(control_copy(first), "stamp").decode())
            client.hset(control_copy(first), mapping={"live": generation(2), "stamp": stamp.next().text})
            async with opened(settings) as (servers, serving, store):
                link = servers.link(taker)
                assert servers.link(moved) is link
                assert await serving.ask(link) == generation(2)
                assert await status(store, caller_in(taker)) == 401
                # A shard that lacks the generation is not complete.
                client.hset(control_copy(second), "filled", generation(1))
                with pytest.raises(Rebuilding):
                    await serving.ask(link)
                with pytest.raises(Rebuilding):
                    await status(store, caller_in(taker))
            client.hset(control_copy(first), "stamp", stamp.text)


def caller_in(tag: bytes) -> Caller:
    """Returns an organization that Redis does not know, whose keys are on the shard that serves this tag's slot."""
    while True:
        caller = Caller()
        if shard_of(names.tag_slot(caller_of(caller).organization_tag)) == shard_of(names.tag_slot(tag)):
            return caller


def shard_of(slot: int) -> int:
    """Returns the number of the primary that has this slot at the beginning."""
    return min(slot // 5462, 2)
