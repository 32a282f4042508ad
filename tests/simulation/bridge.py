"""Redis in a world: a real server behind a bridge, which executes each command while the world stands still.

The server's own clock does not matter. Before each script stands a prelude that hides the functions of `redis`: the
time comes from the world, as one more argument, which the prelude takes away again. What would expire gets its time in
the world as an absolute one. The world is decades ahead, so Redis itself removes nothing; a list of these times is kept
beside, and the bridge removes what has expired before the next command.

    client ──► simulated link ──► Bridge ──(blocking)──► redis-server
"""

import asyncio
import re
import socket
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha1
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import hiredis
import redis

from devstack.redis_server import RedisServer
from runtime.redis.connection import pack
from tests.simulation.loop import Process

EXPIRIES = b"world:expiries"
_PRELUDE = (
    """
local ARGV = ARGV
local now, D, real = tonumber(table.remove(ARGV)), 'world:expiries', redis
local function at(milliseconds) return string.format('%d', math.floor(now / 1000) + milliseconds) end
for _, key in ipairs(real.call('ZRANGEBYSCORE', D, '-inf', at(0))) do
  if real.call('PTTL', key) >= 0 then real.call('UNLINK', key) end
  real.call('ZREM', D, key)
end
local function through(call)
  return function(verb, key, ...)
    local words = { ... }
    if verb == 'TIME' then
      return { string.format('%d', math.floor(now / 1000000)), string.format('%d', now % 1000000) }
    elseif verb == 'PTTL' then
      local left = call(verb, key)
      return left < 0 and left or tonumber(real.call('ZSCORE', D, key)) - tonumber(at(0))
    elseif verb == 'EXPIRE' then
      local reply = call('PEXPIREAT', key, at(1000 * words[1]))
      if reply == 1 then real.call('ZADD', D, at(1000 * words[1]), key) end
      return reply
    elseif verb == 'SET' then
      local expires
      for place = 2, #words - 1 do
        local unit = ({ EX = 1000, PX = 1 })[words[place]]
        if unit then words[place], words[place + 1] = 'PXAT', at(unit * words[place + 1]) end
        if words[place] == 'PXAT' then expires = words[place + 1] end
      end
      if not expires then return call(verb, key, ...) end
      local reply = call(verb, key, unpack(words))
      if reply and reply.ok then real.call('ZADD', D, expires, key) end
      return reply
    end
    return call(verb, key, ...)
  end
end
local redis = setmetatable({ call = through(real.call), pcall = through(real.pcall) }, { __index = real })
"""
).replace("\n", " ")
_PLAIN = (
    _PRELUDE + "local words = {} for i, word in ipairs(ARGV) do words[i] = word end return redis.call(unpack(words))"
)
_PURGE: list[bytes] = [b"EVAL", _PRELUDE.encode(), b"0"]
_OF_TIME = frozenset((b"TIME", b"PTTL", b"EXPIRE", b"SET"))
_UNKNOWN = re.compile(rb"'(?:PEXPIRE|SETEX|PSETEX|GETEX|TTL|EXPIREAT|PEXPIREAT)'")
_IN_ORDER = ("--hash-max-ziplist-entries", "100000", "--hash-max-ziplist-value", "1000000")
"""Hashes keep the order of their fields: otherwise it would depend on a random number of the server."""
_PURGE_SECONDS = 0.05
"""Plain commands see what has expired for this time at most."""
_INCOMPLETE = object()
_ID = re.compile(rb"(master_replid|run_id):\w+")
_FIGURE = re.compile(rb"((?:used|total_system)_memory\w*):\d+")
_KEPT = re.compile(
    rb"^(?:(?:redis|valkey)_version|run_id|master_replid|role|cluster_enabled|maxmemory\w*|evicted_keys"
    rb"|used_memory|used_memory_startup|used_memory_rss|total_system_memory):.*\n",
    re.MULTILINE,
)
"""What programs read of INFO. The rest has other values, of other lengths, each time."""
_CLIENT = re.compile(rb"^id=(\d+) (.*\n)", re.MULTILINE)


class Server:
    """A redis-server, and its place in the world. `log` gets the bytes of each command, in order."""

    def __init__(self, directory: Path) -> None:
        self.path = str(directory / "s")
        self._server = RedisServer.start(directory, options=("--unixsocket", self.path, *_IN_ORDER))
        self.client: Any = redis.Redis(unix_socket_path=self.path)
        self.bridges: dict[Bridge, None] = {}
        self.process: Process
        self.now: Callable[[], float]
        self.log = sha1(usedforsecurity=False)
        self.observe: list[Callable[[Sequence[bytes], Any], None]] = []
        """Called with each command and its reply."""
        self.commands = self.number = self.opened = 0
        self.clients: dict[bytes, int] = {}
        """The number in the world of each open connection, by the server's id of it. `opened` is the last one."""
        self.scanned: list[bytes] = []
        """Where each SCAN has stopped: its cursor is a place in this list."""
        self._purged_at = self.ahead = 0.0
        """`ahead`: the seconds by which its clock is ahead."""
        self.changed: Callable[[bytes], bytes] = bytes
        """Returns the text of a script as it is to be executed: a planted defect may be in it."""
        self.ours: dict[bytes, bytes] = {}
        """For each script of the programs, the digest of the one with the prelude."""

    def begin(self, process: Process, now: Callable[[], float]) -> None:
        """Be a new, empty server, in another world."""
        self.client.flushall()
        self.client.script_flush()
        self.process, self.now, self._purged_at, self.ahead = process, now, 0.0, 0.0
        self.log, self.commands, self.number = sha1(usedforsecurity=False), 0, 0
        self.clients.clear()
        self.opened = 0
        self.scanned[:] = [b""]
        self.bridges.clear()
        self.observe.clear()
        self.ours.clear()

    def close(self) -> None:
        self.client.close()
        self._server.stop()

    def microseconds(self) -> bytes:
        return b"%d" % ((self.now() + self.ahead) * 1e6)

    def open(self) -> socket.socket:
        opened = socket.socket(socket.AF_UNIX)
        opened.connect(self.path)
        return opened

    def told(self, text: bytes) -> bytes:
        """Returns what INFO says, with the ids of the world and always the same figures."""
        lines = b"".join(_KEPT.findall(text))
        return _FIGURE.sub(rb"\1:1000000", _ID.sub(rb"\1:%040x" % self.number, lines))

    def listed(self, text: bytes) -> bytes:
        """Returns what CLIENT LIST says, with the numbers and in the order of the world. The server may not have
        noticed yet that a connection is gone.
        """
        lines = ((self.clients.get(line[1], 0), line[2]) for line in _CLIENT.finditer(text))
        return b"".join(b"id=%d %b" % line for line in sorted(lines) if line[0])

    def snapshot(self) -> list[tuple[bytes, bytes, bool]]:
        """Returns everything that it holds: names, values, and whether they expire."""
        keys: list[Any] = list(self.client.scan_iter(count=1000))
        keys.sort()
        with self.client.pipeline(transaction=False) as pipeline:
            for key in keys:
                pipeline.dump(key).pttl(key)
            replies = pipeline.execute()
        rows = zip(keys, replies[::2], replies[1::2], strict=True)
        return [(key, value, ttl >= 0) for key, value, ttl in rows]

    def go_back(self, snapshot: list[tuple[bytes, bytes, bool]]) -> None:
        """Hold again what it held then."""
        self.client.flushall()
        with self.client.pipeline(transaction=False) as pipeline:
            for key, value, _ in snapshot:
                pipeline.restore(key, 0, value)
            pipeline.execute()
        volatile = {key for key, _, expires in snapshot if expires}
        for key, at in self.client.zrange(EXPIRIES, 0, -1, withscores=True):
            if key in volatile:
                self.client.pexpireat(key, int(at))

    def purging(self) -> list[Sequence[bytes]]:
        """Returns what removes expired keys, if that was not done lately."""
        if self.now() - self._purged_at < _PURGE_SECONDS:
            return []
        self._purged_at = self.now()
        _PURGE[3:] = [self.microseconds()]
        return [_PURGE]

    def loaded(self, text: bytes) -> bytes:
        """Returns a script with the prelude, and notes its digest."""
        if unknown := _UNKNOWN.search(text):
            raise AssertionError(f"the prelude of scripts does not know {unknown[0]!r}")
        whole = _PRELUDE.encode() + self.changed(text)
        own, other = (sha1(script, usedforsecurity=False).hexdigest().encode() for script in (text, whole))
        self.ours[own] = other
        return whole

    def page(self, cursor: int, number: int, every: list[bytes], matching: set[bytes]) -> list[Any]:
        """Returns keys in the order of their names, because that of the server is another one each time."""
        some = every[bisect_right(every, self.scanned[cursor]) :][:number]
        following = 0
        if some and some[-1] != every[-1]:
            following = len(self.scanned)
            self.scanned.append(some[-1])
        return [b"%d" % following, [key for key in some if key in matching]]


class Bridge(asyncio.Protocol):
    """A connection to the server, in the world and in truth."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._there = server.open()
        self._commands = hiredis.Reader()
        self._replies = hiredis.Reader(notEnoughData=_INCOMPLETE)
        self._transport: asyncio.Transport | None = None
        self._has_ended = False
        [number] = self._exchange([(b"CLIENT", b"ID")])
        self._id = b"%d" % number
        server.opened += 1
        server.clients[self._id] = server.opened
        server.bridges[self] = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._transport = None
        self._server.bridges.pop(self, None)
        self._server.clients.pop(self._id, None)
        self._there.close()

    def data_received(self, data: bytes) -> None:
        """Execute what has arrived, in one exchange with the server."""
        if self._has_ended:
            return
        self._commands.feed(data)
        server, asked, instead = self._server, list[list[bytes]](), list[Sequence[bytes]]()
        while words := self._commands.gets():
            asked.append(words)
            instead += self._instead(words)
            server.log.update(b"\0".join(words))
        if not asked:
            return
        server.commands += len(asked)
        replies = iter(self._exchange(server.purging() + instead))
        answers = []
        for words in asked:
            reply = self._reply(words, replies)
            answers.append(_encoded(reply))
            for look in server.observe:
                look(words, answers[-1])
        if any(words[:2] == [b"CLIENT", b"KILL"] for words in asked):
            self._exchange([(b"PING",)])  # by its reply, the server has closed the other one
            for bridge in list(server.bridges):
                bridge.look_for_end()
        if self._transport:
            self._transport.write(b"".join(answers))

    def look_for_end(self) -> None:
        """End the connection in the world if the server has ended it."""
        try:
            ended = self._there.recv(1, socket.MSG_DONTWAIT | socket.MSG_PEEK) == b""
        except BlockingIOError:
            return
        except OSError:
            ended = True
        if ended and self._transport:
            self._has_ended = True
            self._transport.close()

    def _instead(self, words: list[bytes]) -> list[Sequence[bytes]]:
        """Returns what the server is asked in place of a command."""
        server, verb = self._server, words[0]
        match verb:
            case b"EVALSHA":
                return [[verb, server.ours.get(words[1], words[1]), *words[2:], server.microseconds()]]
            case b"EVAL":
                return [[verb, _PRELUDE.encode() + words[1], *words[2:], server.microseconds()]]
            case b"CLIENT" if words[1] == b"KILL":
                ids = {own: id_ for id_, own in server.clients.items()}
                return [[*words[:-1], ids.get(int(words[-1]), b"0")]]
            case b"SCAN":
                return [(b"KEYS", b"*"), (b"KEYS", words[3])]
            case b"SCRIPT" if words[1] == b"LOAD":
                return [[*words[:2], server.loaded(words[2])]]
            case _ if verb in _OF_TIME:
                return [[b"EVAL", _PLAIN.encode(), b"0", *words, server.microseconds()]]
        return [words]

    def _reply(self, words: list[bytes], replies: Iterator[Any]) -> Any:
        """Returns the reply to a command, from those of the server."""
        reply = next(replies)
        match words[:2]:
            case [b"INFO", *_]:
                return self._server.told(reply)
            case [b"CLIENT", b"LIST"]:
                return self._server.listed(reply)
            case [b"SCRIPT", b"LOAD"]:
                return sha1(words[2], usedforsecurity=False).hexdigest().encode()
            case [b"SCAN", cursor]:
                return self._server.page(int(cursor), int(words[5]), sorted(reply), {*next(replies)})
        return reply

    def _exchange(self, commands: Sequence[Sequence[bytes]]) -> list[Any]:
        """Returns the replies of the server, without those to what removes expired keys."""
        self._there.sendall(b"".join(pack(tuple(words)) for words in commands))
        replies: list[Any] = []
        while len(replies) < len(commands):
            chunk = self._there.recv(1 << 20)
            if not chunk:
                raise ConnectionError("the real server has closed a connection")
            self._replies.feed(chunk)
            while (reply := self._replies.gets()) is not _INCOMPLETE:
                replies.append(reply)
        return [reply for words, reply in zip(commands, replies, strict=True) if words is not _PURGE]


def _encoded(reply: Any) -> bytes:
    """Returns a reply in the protocol of Redis."""
    match reply:
        case None:
            return b"$-1\r\n"
        case int():
            return b":%d\r\n" % reply
        case bytes():
            return b"$%d\r\n%b\r\n" % (len(reply), reply)
        case hiredis.ReplyError():
            return b"-%b\r\n" % str(reply).encode()
    return b"*%d\r\n%b" % (len(reply), b"".join(map(_encoded, reply)))


def started() -> Server:
    """Returns a server in a directory of its own."""
    return Server(Path(mkdtemp(prefix="leadview-simulation-")))
