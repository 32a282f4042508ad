"""The multiplexed connection: whatever happens to callers or bytes, a reply reaches its own caller or none."""

import asyncio
import random
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import uvloop

from api.redis.servers import Link
from devstack.fault_proxy import Faults, faulty_proxy
from devstack.redis_server import RedisServer
from leadview.redis.access import Address, location
from leadview.redis.connection import Connection, pack
from leadview.redis.errors import ErrorReply, Unavailable
from schemas.settings import ApiSettings
from tests.harness.services import RedisService
from tests.harness.waiting import PATIENCE_SECONDS, Stopwatch, eventually

SHORT = 0.5
TIMEOUT = 2.0
"""For tests in which it is to be over. A machine that stands still for less does no harm."""
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def open_connection(
    port: int, *, host: str = "127.0.0.1", timeout: float = PATIENCE_SECONDS, max_in_flight: int = 10_000
) -> Connection:
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(lambda: Connection(timeout, max_in_flight), host, port)
    return connection


async def to_redis(service: RedisService) -> Connection:
    where = of(ApiSettings(redis_url=service.url))
    return await open_connection(where.port, host=where.host)


def of(settings: ApiSettings) -> Address:
    where = location(settings, PATIENCE_SECONDS)
    assert isinstance(where, Address)
    return where


@asynccontextmanager
async def peer(serve: Serve) -> AsyncIterator[int]:
    """A server that handles each connection with `serve`. Yields its port."""

    handlers: set[asyncio.Task[None] | None] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handlers.add(asyncio.current_task())
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            await serve(reader, writer)
        writer.transport.abort()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await asyncio.wait_for(asyncio.gather(*filter(None, handlers)), PATIENCE_SECONDS)


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while await reader.read(65536):
        pass


@pytest.mark.parametrize(
    "bad", [pytest.param(None, id="None"), pytest.param("\ud800", id="a surrogate"), pytest.param([], id="a list")]
)
async def test_a_command_that_cannot_be_packed_is_not_queued(redis_server: RedisService, bad: Any) -> None:
    """If it were queued, it would get the reply to the next command, and so would every later caller."""
    connection = await to_redis(redis_server)
    first = connection.call((b"ECHO", b"first"))
    with pytest.raises((TypeError, UnicodeEncodeError)):
        connection.call((b"ECHO", bad))
    second = connection.call((b"ECHO", b"second"))
    assert connection.in_flight == 2
    assert [await first, await second] == [b"first", b"second"]
    connection.close("done")


@pytest.mark.parametrize("seed", range(4))
async def test_cancels_timeouts_and_resets_in_any_order(redis_server: RedisService, seed: int) -> None:
    """One connection after another, over a network that slices, delays, stalls and resets."""
    chance = random.Random(seed)
    served = 0
    with faulty_proxy(of(ApiSettings(redis_url=redis_server.url)).port) as proxy:
        for _ in range(12):
            faults = proxy.faults = Faults(
                slice_bytes=chance.choice([1, 7, 100, 65536]),
                end_after=chance.choice([None, chance.randrange(1, 3000)]),
                end=chance.choice(["reset", "close", "stall"]),
            )
            stalls = faults.end_after is not None and faults.end == "stall"
            timeout = 0.1 if stalls else PATIENCE_SECONDS
            connection = await open_connection(proxy.port, timeout=timeout, max_in_flight=50)
            served += await _use_up(connection, chance)
    assert served > 200


async def _use_up(connection: Connection, chance: random.Random) -> int:
    """Many callers, some of which give up. Returns how many got their reply."""
    calls: dict[int, asyncio.Future[Any]] = {}
    for number in range(300):
        try:
            calls[number] = connection.call((b"ECHO", b"%d" % number + b"-" * chance.randrange(50)))
        except Unavailable:  # too many wait, or the connection is lost: then none does
            await eventually(lambda: connection.in_flight < 50, "there is room again")
        assert connection.in_flight <= 50
        if calls and chance.random() < 0.3:
            chance.choice(list(calls.values())).cancel()
        if chance.random() < 0.1:
            await asyncio.sleep(0.001)
    if calls:
        await asyncio.wait(calls.values())
    connection.close("done")
    got = {number: call.result() for number, call in calls.items() if not call.cancelled() and not call.exception()}
    assert all(int(reply.rstrip(b"-")) == number for number, reply in got.items())
    return len(got)


@pytest.mark.parametrize("seed", range(2))
async def test_cancelled_callers_never_shift_replies(redis_server: RedisService, seed: int) -> None:
    chance = random.Random(seed)
    connection = await to_redis(redis_server)
    calls = {}
    for number in range(2000):
        calls[number] = connection.call((b"ECHO", number))
        if chance.random() < 0.3:  # some before they are sent, some while Redis handles them
            chance.choice(list(calls.values())).cancel()
        if chance.random() < 0.05:
            await asyncio.sleep(0)
    await asyncio.wait(calls.values())
    connection.close("done")
    got = {number: call.result() for number, call in calls.items() if not call.cancelled()}
    assert 0 < len(got) < 2000
    assert all(reply == b"%d" % number for number, reply in got.items())


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("seed", range(3))
def test_pipelines_and_calls_may_share_a_connection(redis_server: RedisService, seed: int, loop: Any) -> None:
    """Each caller has its own replies, errors among them, whoever else gave up."""
    chance = random.Random(seed)

    async def use() -> None:
        connection = await to_redis(redis_server)
        asked: list[tuple[asyncio.Future[Any], Any]] = []
        for number in range(300):
            if chance.random() < 0.5:
                asked.append((connection.call((b"ECHO", number)), b"%d" % number))
            else:
                words = [b"%d-%d" % (number, place) for place in range(chance.randrange(1, 30))]
                packed = [pack((b"ECHO", word)) for word in words]
                asked.append((connection.pipeline([*packed, pack((b"NONSENSE",))]), words))
            if chance.random() < 0.2:
                chance.choice(asked)[0].cancel()
            if chance.random() < 0.1:
                await asyncio.sleep(0)
        await asyncio.wait([future for future, _ in asked])
        connection.close("done")
        got = [(future.result(), expected) for future, expected in asked if not future.cancelled()]
        assert 0 < len(got) < 300
        for reply, expected in got:
            if isinstance(expected, bytes):
                assert reply == expected
            else:
                assert reply[:-1] == expected
                assert isinstance(reply[-1], ErrorReply)

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(use())


async def test_commands_of_one_turn_go_out_in_one_write_and_one_check_follows_them() -> None:
    pieces: list[bytes] = []

    async def record(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await reader.read(65536):
            pieces.append(piece)
            writer.write(b"+OK\r\n" * piece.count(b"*1"))

    ping, check, other = (pack((word,)) for word in (b"PING", b"CHECK", b"OTHER"))
    async with peer(record) as port:
        connection = await open_connection(port)
        await asyncio.gather(*(connection.call((b"PING",)) for _ in range(3)))
        assert await connection.call_checked(ping, check) == (b"OK", b"OK")
        await connection.call((b"PING",))
        await asyncio.gather(connection.call_checked(ping, check), connection.call_checked(ping, check))
        # What is checked with another command goes out before, with its own check.
        await asyncio.gather(connection.call_checked(ping, check), connection.call_checked(ping, other))
        assert connection.in_flight == 0
        connection.close("done")
    assert b"".join(pieces) == b"".join([ping * 3, ping + check, ping, ping * 2 + check, ping + check, ping + other])
    assert pieces[:4] == [ping * 3, ping + check, ping, ping * 2 + check]


@pytest.mark.parametrize("end", ["close", "reset", "stall"])
async def test_a_break_at_every_byte_of_the_replies(end: str) -> None:
    """The first of two callers gets its reply if all of it arrived. No caller ever gets another's, or a part."""
    replies = b"*2\r\n:200\r\n$3\r\none\r\n" + b"*2\r\n:200\r\n$3\r\ntwo\r\n"
    whole = len(replies) // 2

    async def cut(size: int) -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(65536)
            writer.write(replies[:size])
            await writer.drain()
            if end == "reset":
                no_linger = struct.pack("ii", 1, 0)
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, no_linger)
            if end == "stall":
                await silent(reader, writer)

        async with peer(serve) as port:
            connection = await open_connection(port, timeout=TIMEOUT if end == "stall" else PATIENCE_SECONDS)
            first, second = connection.call((b"GET", b"1")), connection.call((b"GET", b"2"))
            await asyncio.wait({first, second})
            await connection.lost
            assert connection.in_flight == 0
            with pytest.raises(Unavailable):
                connection.call((b"PING",))
            assert isinstance(second.exception(), Unavailable)
            if size >= whole and end != "reset":
                assert first.result() == [200, b"one"]
            elif first.exception() is None:  # a reset may overtake what was sent before it
                assert (end, size >= whole, first.result()) == ("reset", True, [200, b"one"])
            else:
                assert isinstance(first.exception(), Unavailable)

    await asyncio.gather(*(cut(size) for size in range(len(replies))))


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        pytest.param(b"HTTP/1.1 200 OK\r\n", "not a reply", id="no reply"),
        pytest.param(b"+OK\r\n+OK\r\n+and another\r\n", "nobody asked", id="a reply too many"),
    ],
)
async def test_what_nobody_asked_for_ends_the_connection(sent: bytes, why: str) -> None:
    async def chatter(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(65536)
        writer.write(b"$3\r\none\r\n" + sent)
        await silent(reader, writer)

    async with peer(chatter) as port:
        connection = await open_connection(port)
        calls = [connection.call((b"GET", number)) for number in range(3)]
        first, *_ = await asyncio.gather(*calls, return_exceptions=True)
        assert why in await connection.lost
    assert first == b"one"


@asynccontextmanager
async def dripping(begin: bytes, end: bytes) -> AsyncIterator[tuple[int, asyncio.Event]]:
    """A peer that sends this, and then a byte now and then of a text of 1,000 characters; with the event, the rest of
    the text and `end`. Yields its port and the event.
    """
    over = asyncio.Event()

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(65536)
        writer.write(begin + b"$1000\r\n")
        sent = 0
        while not over.is_set() and not writer.is_closing():
            writer.write(b"x")
            sent += 1
            await asyncio.sleep(SHORT / 20)
        writer.write(b"x" * (1000 - sent) + b"\r\n" + end)
        await silent(reader, writer)

    async with peer(drip) as port:
        yield port, over


async def test_a_late_reply_fails_alone() -> None:
    """Half of it has arrived, and now and then a byte does: what is behind it is still to come."""
    async with dripping(b"+first\r\n", b"$5\r\nthird\r\n") as (port, over):
        connection = await open_connection(port, timeout=SHORT)
        first, second = connection.call((b"GET", b"1")), connection.call((b"GET", b"2"))
        checked = connection.call_checked(pack((b"GET", b"2")), pack((b"PING",)))
        assert await first == b"first"
        for reply in (second, checked):
            with pytest.raises(Unavailable, match="did not reply within"):
                await reply
        connection._timeout = PATIENCE_SECONDS
        assert connection.in_flight == 2, "their replies are still to come"
        over.set()
        third = connection.call((b"GET", b"3"))
        await eventually(lambda: connection.in_flight <= 1, "the late reply has arrived, and is discarded")
        assert not connection.closed
        third.cancel()
        connection.close("done")


async def test_a_late_check_fails_only_those_who_wait_for_it() -> None:
    async with dripping(b"+one\r\n", b"+two\r\n+complete\r\n") as (port, over):
        connection = await open_connection(port, timeout=SHORT)
        with pytest.raises(Unavailable, match="did not reply within"):
            await connection.call_checked(pack((b"GET", b"1")), pack((b"PING",)))
        connection._timeout = PATIENCE_SECONDS
        second = connection.call_checked(pack((b"GET", b"2")), pack((b"PING",)))
        over.set()
        assert await second == (b"two", b"complete")
        connection.close("done")


async def test_a_silent_peer_is_given_up_however_many_calls_follow() -> None:
    """The oldest call counts: the newest one is always young."""
    async with peer(silent) as port:
        connection = await open_connection(port, timeout=SHORT)
        calls = []
        with Stopwatch() as stopwatch:
            while not connection.closed:
                assert stopwatch.seconds < 4 * SHORT
                calls.append(connection.call((b"PING",)))
                calls[0].cancel()  # the oldest still stands in the row
                await asyncio.sleep(0.02)
        outcomes = await asyncio.gather(*calls[1:], return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {Unavailable}, "it would not be better to ask again at once"
    assert "did not reply" in connection.lost.result()


async def test_a_trickle_is_given_up_after_some_timeouts() -> None:
    async with dripping(b"", b"") as (port, over):
        connection = await open_connection(port, timeout=SHORT)
        with Stopwatch() as stopwatch:
            with pytest.raises(Unavailable):
                await connection.call((b"GET", b"1"))
            assert "did not reply" in await asyncio.wait_for(connection.lost, PATIENCE_SECONDS)
            assert stopwatch.seconds < 6 * SHORT
        over.set()


async def test_waiting_callers_are_bounded() -> None:
    async with peer(silent) as port:
        connection = await open_connection(port, max_in_flight=3)
        calls = [connection.call((b"PING",)) for _ in range(3)]
        calls[0].cancel()  # a caller that gave up still counts, because its reply is still to come
        with pytest.raises(Unavailable, match="3 requests are waiting"):
            connection.call((b"PING",))
        connection.close("done")
        await asyncio.gather(*calls, return_exceptions=True)


@asynccontextmanager
async def kept(address: Address) -> AsyncIterator[Link]:
    """A link whose first attempt to connect has ended."""
    link = Link(address, timeout=PATIENCE_SECONDS, max_in_flight=10)
    keeping = asyncio.create_task(link.run())
    await link.first_attempt()
    yield link
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)


async def test_a_link_selects_the_database_and_names_itself(redis_server: RedisService) -> None:
    where = of(ApiSettings(redis_url=redis_server.url))
    async with kept(Address(where.host, where.port, db=1)) as link:
        own = (await link.connection.call((b"CLIENT", b"INFO"))).decode()
    assert " db=1 " in own
    assert " name=leadview-api " in own


async def test_a_demoted_master_is_not_used(own_redis: RedisServer) -> None:
    """Sentinels may still name one that was demoted a moment ago. Both programs log in in this way."""
    with own_redis.client() as client:
        client.replicaof("127.0.0.1", "1")
        async with kept(Address(port=own_redis.port, must_be_master=True)) as link:
            assert link.times_connected == 0
            client.replicaof("NO", "ONE")
            await eventually(lambda: link.connected, "it is connected")
