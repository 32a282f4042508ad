"""Runs scripts and plain commands of Redis in pipelines, reports the state of its servers, and adds jobs.

Only `projector/redis/servers.py` knows which servers these are. Every error of Redis is raised as the projector's own
Unavailable. Then the commands may or may not have been executed. It is safe to repeat them, because every write
compares versions.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from projector.errors import Refused, Unavailable
from projector.problem import RedisEvicts
from projector.reason import RedisReason
from projector.redis.node import Fence, Node, fields, good
from projector.redis.servers import Servers
from runtime.redis.connection import pack, pack_bytes
from runtime.redis.errors import ErrorReply, ReadOnly
from runtime.redis.routing import all_of
from runtime.redis.scripts import Command
from runtime.redis.version import Version
from schemas import names
from schemas.control import Stamp
from schemas.heartbeat import Clocks
from schemas.settings import ProjectorSettings, RedisSettings

_WRITER = "leadview-writer-"
"""The names of the connections of programs that write begin with this; the id of the program follows."""
SLICE = 100
"""Maximum keys per batch of an operator command. Redis is single-threaded, so larger batches delay API reads (a SCAN of
1000 keys took up to 2.5 ms)."""
TIMEOUT = 10.0
"""Seconds to connect, and to send a pipeline and receive all of its replies."""
_PING_SECONDS = 0.8
"""A server that does not answer within this time is silent. An operator waits for the result."""


class Memory(msgspec.Struct, frozen=True):
    """The memory of one Redis server, in bytes; `limit` is 0 if there is none. `at_start` is what it uses without any
    key, `resident` what the system has given it, `machine` the memory of the machine.
    """

    used: int
    limit: int
    policy: str
    at_start: int = 0
    resident: int = 0
    machine: int = 0

    @classmethod
    def of(cls, info: Mapping[str, Any]) -> "Memory":
        """Returns what INFO memory says."""
        sizes = ("used_memory_startup", "used_memory_rss", "total_system_memory")
        return cls(
            int(info["used_memory"]),
            int(info.get("maxmemory") or 0),
            str(info.get("maxmemory_policy", "noeviction")),
            *(int(info.get(name) or 0) for name in sizes),
        )

    @property
    def share(self) -> float:
        """The used share of the limit; 0 if there is none."""
        return self.used / self.limit if self.limit else 0.0

    @property
    def evicts(self) -> bool:
        """True if documents may be evicted. The policies volatile-* evict only what expires, and no document does."""
        return self.policy.startswith("allkeys-")


class ClientConnection(NamedTuple):
    """A connection that a server has, with its id there."""

    server: Node
    id: str


class Store:
    """Redis: one server, a primary behind Sentinels, or a cluster. Safe to use from several asyncio tasks at once."""

    def __init__(self, settings: RedisSettings, *, writer_id: str = "", timeout: float = TIMEOUT) -> None:
        """A program that writes documents gives its connections its id, so that `drop` can find and close them. Raises
        AddressError.
        """
        self.writer_id = writer_id
        self.compresses = isinstance(settings, ProjectorSettings) and settings.compression == "zstd"
        """True if documents are written compressed."""
        self._servers = Servers(settings, f"{_WRITER}{writer_id}" if writer_id else "leadview-operator", timeout)
        self.sharded = self._servers.sharded
        """True if there are several servers, each with a part of the keys."""
        self._clustered: bool | None = True if self.sharded else None
        self.beginning = asyncio.Lock()
        """Held while this program begins a control record."""
        self.newest = Stamp("")
        """The latest stamp of a control record that this program has seen."""

    @property
    def replication_epoch(self) -> int:
        """Increases whenever a server restarted or failed over, and so may have lost writes (`servers.py`)."""
        return self._servers.replication_epoch.number

    @property
    def connections_opened(self) -> int:
        """Increases with each connection that is opened, and with `close_all_writers`."""
        return self._servers.replication_epoch.opened

    async def close(self) -> None:
        """Close all connections."""
        await self._servers.close()

    async def clustered(self) -> bool:
        """Returns whether all keys of a call must be in one slot. It asks Redis only once. Raises Unavailable."""
        if self._clustered is None:
            [info] = await self.info("cluster")
            self._clustered = info["cluster_enabled"] == "1"
        return self._clustered

    async def run(
        self, commands: Sequence[Command], *, replication_epoch: int | None = None, fence: Fence | None = None
    ) -> list[Any]:
        """Call scripts in this order, in one round trip; a cluster keeps the order in each slot. Returns their replies.

        Raises Unavailable if any of them failed, if `replication_epoch` is no longer the current one, or if the fence
        refuses a new connection.
        """
        calls = [(command.keys[0], pack_bytes(command.words()), command.script) for command in commands]
        return good(await self._servers.send(calls, replication_epoch, fence))

    async def ask(self, commands: Sequence[tuple[Any, ...]], *, fence: Fence | None = None) -> list[Any]:
        """Send plain commands, whose second word is the key, in one round trip. Returns the replies in order.

        Replies are what Redis sends: bytes, a number, a list or None. Raises Unavailable if any command failed, or if
        the fence refuses a new connection.
        """
        return good(await self._servers.send([(words[1], pack(words), None) for words in commands], fence=fence))

    async def ask_one(self, *words: Any) -> Any:
        """Send one plain command, whose second word is the key. Returns its reply as `ask` does. Raises Unavailable."""
        [reply] = await self.ask([words])
        return reply

    async def read_hash(self, key: bytes) -> dict[str, bytes]:
        """Returns all fields of a hash; none if the key does not exist. Raises Unavailable."""
        reply = await self.ask_one(b"HGETALL", key)
        return {field.decode(): value for field, value in zip(reply[::2], reply[1::2], strict=True)}

    async def shards(self) -> list[frozenset[int]]:
        """Returns the slots of each shard; an empty list if Redis is not a cluster. Raises Unavailable."""
        return await self._servers.shards()

    async def servers_of(self, tags: Iterable[bytes]) -> dict[bytes, str]:
        """Returns the address of the server of each tag; nothing if Redis is not a cluster. Raises Unavailable."""
        return {tag: str(self._servers.node(tag)) for tag in tags} if self.sharded else {}

    async def silent_shards(self) -> tuple[list[str], int]:
        """Returns the addresses of the shards that do not answer, and how many there are. Raises Unavailable."""
        if not self.sharded:
            return [], 0
        nodes = self._servers.known()

        async def is_silent(node: Node) -> bool:
            try:
                async with asyncio.timeout(_PING_SECONDS):
                    await node.ask(b"PING")
            except (TimeoutError, Unavailable):
                return True
            return False

        silent = await asyncio.gather(*map(is_silent, nodes))
        return [str(node) for node, is_one in zip(nodes, silent, strict=True) if is_one], len(nodes)

    async def refusal(self, keys: Iterable[bytes]) -> str:
        """Returns why the servers of these keys refuse writes; nothing if they do not. Sends PERSIST, which changes
        nothing, because the keys never expire. Raises Unavailable.
        """
        try:
            replies = await self._servers.send([(key, pack((b"PERSIST", key)), None) for key in keys])
        except Unavailable as error:
            if isinstance(error.__cause__, ReadOnly):  # it ends the connection, because the server may be a demoted one
                return str(error.__cause__)
            raise
        return next((str(reply) for reply in replies if isinstance(reply, ErrorReply)), "")

    async def check(self) -> None:
        """Check that Redis is new enough, cannot evict documents and is what its URL says. Raises TooOld, Refused or
        Unavailable.
        """
        for found in await self.info("server"):
            Version.of(found).check()
        await self.check_url()
        await self.check_policy()

    async def check_url(self) -> None:
        """Check that Redis is what its URL says. Raises Refused or Unavailable."""
        if self.sharded or not await self.clustered():
            return
        [node] = await self._servers.nodes()
        # The reply is a list of lists: first slot, last slot, primary, replicas.
        found = await node.ask(b"CLUSTER", b"SLOTS")
        if len({(host, port) for _, _, (host, port, *_), *_ in found}) > 1:
            raise Refused(RedisReason("one_of_cluster"))

    async def check_policy(self) -> None:
        """Check that Redis cannot evict documents. Raises Refused or Unavailable."""
        for memory in await self.memories():
            if memory.evicts:
                raise Refused(RedisEvicts((memory.policy,)))

    async def memories(self) -> list[Memory]:
        """Returns the memory of each server that holds documents. Raises Unavailable."""
        return [Memory.of(found) for found in await self.info("memory")]

    async def info(self, section: str) -> list[dict[str, Any]]:
        """Returns this section of INFO of each server that holds documents. Raises Unavailable."""
        nodes = await self._servers.nodes()
        return [fields(reply) for reply in await all_of([node.ask(b"INFO", section) for node in nodes])]

    async def clocks(self) -> list[Clocks]:
        """Returns the clock of each server that holds documents, and that of this program. Raises Unavailable."""
        return await all_of([_clocks(node) for node in await self._servers.nodes()])

    async def writer_connections(self) -> dict[str, list[ClientConnection]]:
        """Returns the connections of programs that write, by the id of the program. Raises Unavailable."""
        found: dict[str, list[ClientConnection]] = {}
        for node in await self._servers.nodes():
            for line in (await node.ask(b"CLIENT", b"LIST")).decode(errors="replace").splitlines():
                client = dict(word.partition("=")[::2] for word in line.split(" "))
                if (name := client.get("name", "")).startswith(_WRITER):
                    found.setdefault(name.removeprefix(_WRITER), []).append(ClientConnection(node, client["id"]))
        return found

    async def close_all_writers(self) -> None:
        """Close the connections of all programs that write, also of this one: no session of any of them
        continues unless the control record is still the same (`projector/redis/node.py`). Raises Unavailable.
        """
        # Redis does not close the connection that asks it to close the others.
        self._servers.replication_epoch.require_confirmation()
        found = await self.writer_connections()
        await self.close_connections([client for clients in found.values() for client in clients])

    async def close_connections(self, clients: Sequence[ClientConnection]) -> None:
        """Close connections of any program. Raises Unavailable."""
        for client in clients:
            await client.server.ask(b"CLIENT", b"KILL", b"ID", client.id)

    async def add_jobs(self, jobs: Iterable[str]) -> None:
        """Add jobs for any projector to run (`projector/upkeep/jobs.py`). Raises Unavailable."""
        await self.ask_one(b"SADD", names.JOBS, *jobs)

    async def nodes_of(self, key: bytes) -> list[Node]:
        """Returns the servers that may hold keys of the slot of this key, which does not exist. Raises Unavailable."""
        return await self._servers.nodes_of(key)

    async def scan_from(
        self, node: Node, pattern: bytes, cursor: bytes = b"0"
    ) -> AsyncIterator[tuple[bytes, list[bytes]]]:
        """Yields the keys of a server that match a pattern, from a cursor on, each time with the next cursor; it is
        `0` in the end. Raises Unavailable.
        """
        while True:
            cursor, found = await node.ask(b"SCAN", cursor, b"MATCH", pattern, b"COUNT", SLICE)
            yield cursor, found
            if cursor == b"0":
                return

    async def scan(self, pattern: bytes) -> AsyncIterator[list[bytes]]:
        """Yields the keys that match a pattern, in lists of up to `SLICE`. A key may come twice. Raises Unavailable."""
        keys: list[bytes] = []
        for node in await self._servers.nodes():
            async for _, found in self.scan_from(node, pattern):
                keys += found
                while len(keys) >= SLICE:
                    yield keys[:SLICE]
                    keys = keys[SLICE:]
        if keys:
            yield keys


async def _clocks(node: Node) -> Clocks:
    before = time.time()
    seconds, microseconds = await node.ask(b"TIME")
    return Clocks.read(int(before * 1000), int(seconds) * 1000 + int(microseconds) // 1000, int(time.time() * 1000))
