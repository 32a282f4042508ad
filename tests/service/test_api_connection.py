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
from leadview.redis.access import Address, location
from leadview.redis.connection import Connection, pack
from leadview.redis.errors import ErrorReply, Unavailable
from schemas.settings import ApiSettings
from tests.harness.api_server import connected
from tests.harness.services import RedisService
from tests.harness.waiting import PATIENCE_SECONDS, eventually

TIMEOUT = PATIENCE_SECONDS
"""In seconds. It is over when the test moves the clock, and not before."""
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Clock:
    """The time of the event loop, which continues as it does, and may be moved forward."""

    def __init__(self, time: Callable[[], float]) -> None:
        self._time = time
        self.moved = 0.0

    def __call__(self) -> float:
        return self._time() + self.moved

    async def move(self, timeouts: float) -> None:
        """Let this number of timeouts pass, and what is due then happen."""
        self.moved += timeouts * TIMEOUT
        for _ in range(3):
            await asyncio.sleep(0)


@pytest.fixture
async def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    loop = asyncio.get_running_loop()
    clock = Clock(loop.time)
    monkeypatch.setattr(loop, "time", clock)
    return clock


class Heard(Connection):
    """It counts the bytes that have arrived."""

    heard = 0

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self.heard += len(data)


async def open_connection(
    port: int, *, host: str = "127.0.0.1", timeout: float = TIMEOUT, max_in_flight: int = 10_000
) -> Heard:
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(lambda: Heard(timeout, max_in_flight), host, port)
    return connection


async def to_redis(service: RedisService) -> Heard:
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


@asynccontextmanager
async def puppet() -> AsyncIterator[tuple[Heard, Callable[[bytes], Awaitable[None]]]]:
    """A connection, and a function that makes its peer send something, and returns when that has arrived or the
    connection is closed.
    """
    accepted: asyncio.Future[asyncio.StreamWriter] = asyncio.get_running_loop().create_future()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.set_result(writer)
        await silent(reader, writer)

    async with peer(serve) as port:
        connection = await open_connection(port)
        writer = await accepted

        async def say(sent: bytes) -> None:
            expected = connection.heard + len(sent)
            writer.write(sent)
            await eventually(lambda: connection.closed or connection.heard == expected, "it has arrived")

        yield connection, say
        connection.close("done")


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
async def test_a_break_at_every_byte_of_the_replies(clock: Clock, end: str) -> None:
    """The first of two callers gets its reply if all of it arrived. No caller ever gets another's, or a part."""
    replies = b"*2\r\n:200\r\n$3\r\none\r\n" + b"*2\r\n:200\r\n$3\r\ntwo\r\n"
    whole = len(replies) // 2

    for size in range(len(replies)):

        async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, size: int = size) -> None:
            await reader.read(65536)
            writer.write(replies[:size])
            await writer.drain()
            if end == "reset":
                no_linger = struct.pack("ii", 1, 0)
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, no_linger)
            if end == "stall":
                await silent(reader, writer)

        async with peer(cut) as port:
            connection = await open_connection(port)
            first, second = connection.call((b"GET", b"1")), connection.call((b"GET", b"2"))
            if end == "stall":
                await eventually(lambda: connection.heard == size, "this part has arrived")  # noqa: B023
                await clock.move(2)
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


async def test_a_late_reply_fails_alone(clock: Clock) -> None:
    """Half of it has arrived, and bytes arrive now and then: what is behind it is still to come."""
    async with puppet() as (connection, say):
        first, second = connection.call((b"GET", b"1")), connection.call((b"GET", b"2"))
        checked = connection.call_checked(pack((b"GET", b"2")), pack((b"PING",)))
        await say(b"+first\r\n$10\r\n")
        assert await first == b"first"
        await clock.move(0.6)
        await say(b"xxxxx")
        await clock.move(0.6)
        for reply in (second, checked):
            with pytest.raises(Unavailable, match="did not reply within"):
                await reply
        assert connection.in_flight == 2, "their replies are still to come"
        third = connection.call((b"GET", b"3"))
        await say(b"xxxxx\r\n+late\r\n+PONG\r\n+third\r\n")
        assert await third == b"third"


async def test_a_late_check_fails_only_those_who_wait_for_it(clock: Clock) -> None:
    async with puppet() as (connection, say):
        first = connection.call_checked(pack((b"GET", b"1")), pack((b"PING",)))
        await say(b"+one\r\n")
        await clock.move(0.6)
        await say(b"$8\r\ncomp")
        await clock.move(0.6)
        with pytest.raises(Unavailable, match="did not reply within"):
            await first
        second = connection.call_checked(pack((b"GET", b"2")), pack((b"PING",)))
        await say(b"lete\r\n+two\r\n+complete\r\n")
        assert await second == (b"two", b"complete")


async def test_a_silent_peer_is_given_up_however_many_calls_follow(clock: Clock) -> None:
    """The oldest call counts: the newest one is always young."""
    async with puppet() as (connection, _):
        calls = []
        while not connection.closed:
            assert clock.moved < 2 * TIMEOUT
            calls.append(connection.call((b"PING",)))
            calls[0].cancel()  # the oldest still stands in the row
            await clock.move(0.2)
        outcomes = await asyncio.wait_for(asyncio.gather(*calls[1:], return_exceptions=True), PATIENCE_SECONDS)
        assert {type(outcome) for outcome in outcomes} == {Unavailable}, "it would not be better to ask again at once"
        assert "did not reply" in connection.lost.result()


async def test_a_trickle_is_given_up_after_some_timeouts(clock: Clock) -> None:
    async with puppet() as (connection, say):
        reply = connection.call((b"GET", b"1"))
        await say(b"$1000\r\n")
        while not connection.closed:
            assert clock.moved < 5 * TIMEOUT
            await say(b"x")
            await clock.move(0.6)
        assert clock.moved > 4 * TIMEOUT
        assert isinstance(reply.exception(), Unavailable)
        assert "did not reply" in connection.lost.result()


async def test_waiting_callers_are_bounded() -> None:
    async with peer(silent) as port:
        connection = await open_connection(port, max_in_flight=3)
        calls = [connection.call((b"PING",)) for _ in range(3)]
        calls[0].cancel()  # a caller that gave up still counts, because its reply is still to come
        with pytest.raises(Unavailable, match="3 requests are waiting"):
            connection.call((b"PING",))
        connection.close("done")
        await asyncio.gather(*calls, return_exceptions=True)


async def test_a_link_selects_the_database_and_names_itself(redis_server: RedisService) -> None:
    where = of(ApiSettings(redis_url=redis_server.url))
    link = Link(Address(where.host, where.port, db=1), timeout=PATIENCE_SECONDS, max_in_flight=10)
    async with connected(link):
        own = (await link.connection.call((b"CLIENT", b"INFO"))).decode()
    assert " db=1 " in own
    assert " name=leadview-api " in own
