"""The multiplexed connection: whatever happens to callers or bytes, a reply reaches its own caller or none.

Most tests play the server themselves, without a network: `test_redis_faults.py` breaks real connections.
"""

import asyncio
import random
import socket
import struct
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from api.redis.links import links
from runtime.redis.connection import Check, Connection, pack
from runtime.redis.errors import ErrorReply, Unavailable
from tests.harness.api_server import connected, patient
from tests.harness.services import RedisService
from tests.harness.waiting import PATIENCE_SECONDS

TIMEOUT = PATIENCE_SECONDS
"""In seconds. It is over when the test moves the clock, and not before."""
PING, BEFORE, AFTER, OTHER = (pack((word,)) for word in (b"PING", b"BEFORE", b"AFTER", b"OTHER"))
CHECK = Check(BEFORE, AFTER)


class Clock:
    """The time of the event loop, which continues as it does, and may be moved forward."""

    moved = 0.0

    async def move(self, timeouts: float) -> None:
        """Let this number of timeouts pass, and what is due then happen."""
        self.moved += timeouts * TIMEOUT
        for _ in range(3):
            await asyncio.sleep(0)


@pytest.fixture
async def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    loop, clock = asyncio.get_running_loop(), Clock()
    time = loop.time
    monkeypatch.setattr(loop, "time", lambda: time() + clock.moved)
    return clock


class Server(asyncio.Transport):
    """The other side of a connection: a test reads what was written to it, and says what it likes."""

    def __init__(self, max_in_flight: int = 10_000) -> None:
        self._socket = socket.socket()
        super().__init__({"socket": self._socket})
        self.was_reset = False
        self.connection = Connection(TIMEOUT, max_in_flight)
        self.connection.connection_made(self)
        self._written: list[bytes] = []

    def write(self, data: bytes) -> None:  # type: ignore[override]
        self._written.append(data)

    def is_closing(self) -> bool:
        return False

    def abort(self) -> None:
        """Notes whether the kernel would discard what it has not sent."""
        self.was_reset = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8) == struct.pack("ii", 1, 0)
        self._socket.close()

    def say(self, sent: bytes) -> None:
        self.connection.data_received(sent)

    async def writes(self) -> list[bytes]:
        """Returns what is written in this turn of the event loop."""
        await asyncio.sleep(0)
        written, self._written = self._written, []
        return written


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    server = Server()
    yield server
    server.connection.close("the test is over")


@pytest.mark.parametrize(
    "bad", [pytest.param(None, id="None"), pytest.param("\ud800", id="a surrogate"), pytest.param([], id="a list")]
)
async def test_a_command_that_cannot_be_packed_is_not_queued(server: Server, bad: Any) -> None:
    """If it were queued, it would get the reply to the next command, and so would every later caller."""
    first = server.connection.call((b"ECHO", b"first"))
    with pytest.raises((TypeError, UnicodeEncodeError)):
        server.connection.call((b"ECHO", bad))
    second = server.connection.call((b"ECHO", b"second"))
    assert server.connection.in_flight == 2
    server.say(b"+first\r\n+second\r\n")
    assert [await first, await second] == [b"first", b"second"]


@pytest.mark.parametrize("seed", range(20))
async def test_pipelines_and_calls_may_share_a_connection(server: Server, seed: int) -> None:
    """Each caller has its own replies, errors among them, even if others gave up, and however the bytes arrive."""
    chance = random.Random(seed)
    asked: list[tuple[asyncio.Future[Any], Any]] = []
    replies = b""
    for number in range(100):
        words = [b"%d-%d" % (number, place) for place in range(chance.randrange(1, 6))]
        if len(words) == 1:
            asked.append((server.connection.call((b"ECHO", words[0])), words[0]))
            replies += b"+%b\r\n" % words[0]
        else:
            asked.append((server.connection.pipeline([pack((b"ECHO", word)) for word in words]), words))
            replies += b"".join(b"+%b\r\n" % word for word in words[:-1]) + b"-%b\r\n" % words[-1]
        if chance.random() < 0.2:
            chance.choice(asked)[0].cancel()
    while replies:
        size = chance.randrange(1, 100)
        server.say(replies[:size])
        replies = replies[size:]
    for future, expected in asked:
        if isinstance(expected, list) and not future.cancelled():
            *others, error = future.result()
            assert (others, type(error), str(error).encode()) == (expected[:-1], ErrorReply, expected[-1])
        elif not future.cancelled():
            assert future.result() == expected


async def test_commands_of_one_turn_go_out_in_one_write_and_one_check_is_around_them(server: Server) -> None:
    connection = server.connection
    asked = [connection.call((b"PING",)) for _ in range(3)]
    assert await server.writes() == [PING * 3]
    checked = [connection.call_packed(PING, CHECK)]
    assert await server.writes() == [BEFORE + PING + AFTER]
    asked.append(connection.call((b"PING",)))
    assert await server.writes() == [PING]
    checked += [connection.call_packed(PING, CHECK) for _ in range(2)]
    assert await server.writes() == [BEFORE + PING * 2 + AFTER]
    # What another check is around goes out before, with its own one.
    checked += [connection.call_packed(PING, CHECK), connection.call_packed(PING, Check(OTHER, OTHER))]
    assert await server.writes() == [BEFORE + PING + AFTER, OTHER + PING + OTHER]
    asked.append(connection.call((b"PING",)))
    checked.append(connection.call_packed(PING, CHECK))
    assert await server.writes() == [PING + BEFORE + PING + AFTER]
    assert connection.in_flight == 11
    for word in (b"OK", b"OK", b"OK", b"1", b"OK", b"2", b"OK", b"3", b"OK", b"OK", b"4", b"5", b"OK", b"6"):
        server.say(b"+%b\r\n" % word)
    server.say(b"-ERR 7\r\n+OK\r\n+8\r\n+OK\r\n+9\r\n+OK\r\n+10\r\n")
    assert await asyncio.gather(*asked) == [b"OK"] * 5
    *replies, failed, last = await asyncio.gather(*checked)
    expected = [(b"OK", b"1", b"2"), (b"OK", b"3", b"4"), (b"OK", b"3", b"4"), (b"OK", b"5", b"6")]
    assert (replies, last) == (expected, (b"OK", b"9", b"10"))
    assert (failed[0], type(failed[1]), failed[2]) == (b"OK", ErrorReply, b"8")
    assert connection.in_flight == 0


@pytest.mark.parametrize("end", ["lost", "silent"])
async def test_a_break_at_every_byte_of_the_replies(clock: Clock, end: str) -> None:
    """The first of two callers gets its reply if all of it arrived. No caller ever gets another's, or a part."""
    replies = b"*2\r\n:200\r\n$3\r\none\r\n" + b"*2\r\n:200\r\n$3\r\ntwo\r\n"
    for size in range(len(replies)):
        server = Server()
        connection = server.connection
        first, second = connection.call((b"GET", b"1")), connection.call((b"GET", b"2"))
        server.say(replies[:size])
        if end == "lost":
            connection.connection_lost(None)
        else:
            await clock.move(2)
        assert (connection.closed, connection.lost.done(), connection.in_flight) == (True, True, 0)
        assert server.was_reset, "what is not sent yet must never arrive: it might be a write that was given up"
        with pytest.raises(Unavailable):
            connection.call((b"PING",))
        assert isinstance(second.exception(), Unavailable)
        if size >= len(replies) // 2:
            assert first.result() == [200, b"one"]
        else:
            assert isinstance(first.exception(), Unavailable)


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        pytest.param(b"HTTP/1.1 200 OK\r\n", "not a reply", id="no reply"),
        pytest.param(b"+OK\r\n+OK\r\n+and another\r\n", "nobody asked", id="a reply too many"),
    ],
)
async def test_what_nobody_asked_for_ends_the_connection(server: Server, sent: bytes, why: str) -> None:
    calls = [server.connection.call((b"GET", number)) for number in range(3)]
    server.say(b"$3\r\none\r\n" + sent)
    first, *_ = await asyncio.gather(*calls, return_exceptions=True)
    assert first == b"one"
    assert why in await server.connection.lost


async def test_a_late_reply_fails_alone(server: Server, clock: Clock) -> None:
    """Half of it has arrived, and bytes arrive now and then: what is behind it is still to come."""
    connection = server.connection
    first, second = connection.call((b"GET", b"1")), connection.call((b"GET", b"2"))
    checked = connection.call_packed(pack((b"GET", b"2")), CHECK)
    await server.writes()
    server.say(b"+first\r\n$10\r\n")
    assert await first == b"first"
    await clock.move(0.6)
    server.say(b"xxxxx")
    await clock.move(0.6)
    for reply in (second, checked):
        with pytest.raises(Unavailable, match="did not reply within"):
            await reply
    assert connection.in_flight == 2, "their replies are still to come"
    third = connection.call((b"GET", b"3"))
    server.say(b"xxxxx\r\n+before\r\n+late\r\n+after\r\n+third\r\n")
    assert await third == b"third"


async def test_a_late_check_fails_only_those_who_wait_for_it(server: Server, clock: Clock) -> None:
    first = server.connection.call_packed(pack((b"GET", b"1")), CHECK)
    await server.writes()
    server.say(b"+before\r\n+one\r\n")
    await clock.move(0.6)
    server.say(b"$8\r\ncomp")
    await clock.move(0.6)
    with pytest.raises(Unavailable, match="did not reply within"):
        await first
    second = server.connection.call_packed(pack((b"GET", b"2")), CHECK)
    await server.writes()
    server.say(b"lete\r\n+earlier\r\n+two\r\n+complete\r\n")
    assert await second == (b"two", b"earlier", b"complete")


async def test_a_silent_server_is_given_up_however_many_calls_follow(server: Server, clock: Clock) -> None:
    """The oldest call counts: the newest one is always young."""
    calls = []
    while not server.connection.closed:
        assert clock.moved < 2 * TIMEOUT
        calls.append(server.connection.call((b"PING",)))
        calls[0].cancel()  # the oldest still stands in the row
        await clock.move(0.2)
    outcomes = await asyncio.gather(*calls[1:], return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {Unavailable}, "it would not be better to ask again at once"
    assert "did not reply" in server.connection.lost.result()


async def test_a_trickle_is_given_up_after_some_timeouts(server: Server, clock: Clock) -> None:
    reply = server.connection.call((b"GET", b"1"))
    server.say(b"$1000\r\n")
    while not server.connection.closed:
        assert clock.moved < 5 * TIMEOUT
        server.say(b"x")
        await clock.move(0.6)
    assert clock.moved > 4 * TIMEOUT
    assert isinstance(reply.exception(), Unavailable)
    assert "did not reply" in server.connection.lost.result()


async def test_waiting_callers_are_bounded() -> None:
    """Their checks do not count, of which each one has its own here."""
    server, calls = Server(max_in_flight=3), []
    connection = server.connection
    for _ in range(3):
        calls.append(connection.call_packed(PING, CHECK))
        assert await server.writes() == [BEFORE + PING + AFTER]
    calls[0].cancel()  # a caller that gave up still counts, because its reply is still to come
    with pytest.raises(Unavailable, match="3 requests are waiting"):
        connection.call((b"PING",))
    connection.close("done")
    await asyncio.gather(*calls, return_exceptions=True)


async def test_a_link_selects_the_database_and_names_itself(redis_server: RedisService) -> None:
    called = links(patient(urlsplit(redis_server.url)._replace(path="/1").geturl()))
    async with connected(called):
        own = (await called.link(b"").connection.call((b"CLIENT", b"INFO"))).decode()
    assert {"db=1", "name=leadview-api"} <= {*own.split()}


async def test_nobody_waits_for_the_next_connection_to_a_redis_that_did_not_answer(
    redis_server: RedisService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may take long: only a connection that Redis itself closed is replaced at once."""
    monkeypatch.setattr("api.redis.link._pause", lambda _: 3600.0)
    called = links(patient(redis_server.url))
    async with connected(called):
        called.link(b"").disconnect("it did not answer")
        await asyncio.wait_for(called.link(b"").reconnected(), PATIENCE_SECONDS)
