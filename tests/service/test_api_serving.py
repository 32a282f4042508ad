"""Which shards the API believes, and how many calls that takes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast
from unittest.mock import Mock
from urllib.parse import urlsplit

import pytest

from api.errors import Rebuilding
from api.redis.link import Link
from api.redis.links import Links, OneLink, links
from api.redis.serving import Serving, _flags
from api.redis.store import Store
from api.request import Credentials, credentials
from devstack.fault_proxy import Faults, faulty_proxy
from devstack.redis_cluster import RedisCluster
from runtime.redis.access import Address
from runtime.redis.errors import Unavailable
from schemas import names, resources
from schemas.control import LAYOUT, Stamp
from schemas.layouts import Outcome
from schemas.settings import ApiSettings
from tests.harness import control
from tests.harness.api_server import connected, patient
from tests.harness.generations import generation
from tests.harness.records import Caller, Records
from tests.harness.services import RedisService, client_of
from tests.harness.waiting import eventually

FIELDS = (b"%d" % LAYOUT, *[generation(1).encode()] * 2, b"ledger")
"""Layout, live, filled, copies."""


@asynccontextmanager
async def opened(settings: ApiSettings) -> AsyncIterator[tuple[Links, Serving, Store]]:
    """The API's way into Redis, without anything that calls Redis by itself."""
    called = links(settings)
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
async def test_what_a_copy_must_say_to_be_served(
    link: Link, fields: dict[str, bytes], refused: type[Unavailable] | None
) -> None:
    """What was not complete is not forgotten: the shard has to be asked again, whatever it was before."""
    serving = Serving(OneLink(link, 1.0))
    assert serving.read(link, names.HOME, reply()) == generation(1)
    found = reply(**fields)
    if refused is None:
        live = fields.get("live", FIELDS[1]).decode()
        assert (serving.read(link, names.HOME, found), serving.known(link, names.HOME)) == (live, live)
        return
    nothing: list[bytes | None] = [None] * 4
    for each, error in ((found, refused), (found, refused), (nothing, Rebuilding)):
        with pytest.raises(error) as raised:
            serving.read(link, names.HOME, each)
        assert (raised.type, serving.known(link, names.HOME), serving.ready) == (error, None, False)


def test_a_copy_that_says_nothing_about_slots_is_not_complete() -> None:
    with pytest.raises(Rebuilding):
        _flags({names.HOME: None})


def caller_of(caller: Caller) -> Credentials:
    return credentials(caller.authorization.encode())


async def outcome(store: Store, caller: Caller, lead: str | None = None) -> int:
    return (await store.serve(caller_of(caller), resources.LEAD, lead, (), b"")).outcome


@pytest.mark.parametrize("size", [10, 60_000])
async def test_one_request_is_one_write(any_redis: RedisService, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Key, access, limits, document and the check of the shard: on one server and on a cluster."""
    settings = patient(any_redis.url)
    control.complete_all(settings)  # each shard has its copy of the control record
    with any_redis.client() as client:
        records = Records(client)
        caller = records.caller()
        lead = records.lead(caller.organization_id, {"pad": "x" * size})
    async with opened(settings) as (servers, _, store):
        assert await outcome(store, caller, lead) == Outcome.SERVED, "loads the script, and learns what is served"
        spies = []
        for transport in [cast(asyncio.Transport, link.connection._transport) for link in servers.links]:
            spies.append(Mock(side_effect=transport.write))
            monkeypatch.setattr(transport, "write", spies[-1])
        assert [await outcome(store, caller, lead) for _ in range(5)] == [Outcome.SERVED] * 5
        assert sum(spy.call_count for spy in spies) == 5


async def test_a_worker_is_ready_until_a_look_has_failed(redis_server: RedisService, records: Records) -> None:
    """Its metrics and its health are noted at any moment, also during a look, which may take as long as Redis does."""
    records.serve()
    with faulty_proxy(urlsplit(redis_server.url).port or 6379) as proxy:
        async with opened(patient(proxy.url)) as (_, serving, _):
            await serving.check_ready()
            proxy.faults = Faults(held=b"GETRANGE")
            looking = asyncio.create_task(serving.check_ready())
            await eventually(lambda: proxy.holding, "Redis is asked")
            assert serving.ready
            proxy.faults = Faults()
            await looking
            records.client.delete(names.CONTROL)
            with pytest.raises(Rebuilding):
                await serving.check_ready()
            assert not serving.ready


async def test_data_as_of_is_read_before_the_document(
    redis_server: RedisService, records: Records, caller: Caller
) -> None:
    """In the same round trip, so that two workers never contradict each other. What is stored while a document is being
    read may be about a later change.
    """
    lead = records.lead(caller.organization_id, {"pad": "x" * 100_000})
    with faulty_proxy(urlsplit(redis_server.url).port or 6379) as proxy:
        settings = patient(proxy.url)
        async with opened(settings) as (*_, store), opened(settings) as (*_, other):

            async def told(store: Store) -> bytes:
                return (await store.serve(caller_of(caller), resources.LEAD, None, (), b"")).as_of

            assert [await told(each) for each in (store, other)] == [b"", b""], "it is not known"
            for number in (1, 2):
                records.client.set(names.AS_OF, number * 1000)
                assert [await told(each) for each in (store, other)] == [as_of(number)] * 2
            large = await store.serve(caller_of(caller), resources.LEAD, lead, (), b"")
            proxy.faults = Faults(held=b"GETRANGE")
            reading = asyncio.create_task(store.read_large(caller_of(caller), resources.LEAD, lead, large, b""))
            await eventually(lambda: proxy.holding, "Redis is asked for the first part")
            records.client.set(names.AS_OF, 3000)
            proxy.faults = Faults()
            assert [it.as_of for it in (large, await reading)] == [as_of(2)] * 2
            for value in ("", "soon", "-1"):
                records.client.set(names.AS_OF, value)
                assert await told(store) == b""
            records.client.delete(names.AS_OF)
            records.client.hset(names.AS_OF, "of", "another type")
            assert await told(store) == b""


def as_of(second: int) -> bytes:
    return b"data-as-of: 1970-01-01T00:00:0%d.000Z\r\n" % second


@pytest.mark.parametrize("changed", [0, 1])
async def test_a_promotion_that_has_reached_one_of_the_copies_of_a_shard(cluster: RedisCluster, changed: int) -> None:
    """A shard that took over a slot has two copies, and a command changes one after the other. Both generations are
    complete then, so nothing is refused; the later state is believed, because its generation is not dropped."""
    settings = patient(cluster.url)
    control.complete_all(settings)
    with client_of(cluster.url) as client:
        tags = [tag.encode() for tag in control.read_all(client) if tag.encode() != names.HOME]
        cluster.move_slot(names.tag_slot(tags[0]), cluster.owner(names.tag_slot(tags[1])))
        copies = [names.copy(names.CONTROL, tag) for tag in tags]
        for copy in (*copies, names.CONTROL):
            client.hset(copy, "filled", f"{generation(1)},{generation(2)}")
        stamp = Stamp(client.hget(copies[changed], "stamp").decode())
        client.hset(copies[changed], mapping={"live": generation(2), "stamp": stamp.next().text})
        async with opened(settings) as (servers, serving, _):
            link = servers.link(tags[0])
            assert servers.link(tags[1]) is link
            assert await serving.ask(link) == generation(2)
            # A shard that lacks the generation is not complete.
            client.hset(copies[1 - changed], "filled", generation(1))
            with pytest.raises(Rebuilding):
                await serving.ask(link)


@pytest.mark.parametrize(
    ("scheme", "logged"),
    [("redis", "cannot connect to Redis"), ("redis+cluster", "the slot map of the Redis Cluster cannot be read")],
)
async def test_an_outage_is_logged_once(scheme: str, logged: str, caplog: pytest.LogCaptureFixture) -> None:
    """And not at each attempt to connect."""
    with faulty_proxy(1) as proxy:
        proxy.faults = Faults(refusing=True)
        async with opened(ApiSettings(redis_url=f"{scheme}://127.0.0.1:{proxy.port}")):
            await eventually(lambda: proxy.accepted > 10, "several attempts to connect")
    assert [
        record.getMessage() for record in caplog.records if record.name in ("api.redis.link", "api.redis.links")
    ] == [logged]
