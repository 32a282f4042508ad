"""Records what programs do to the state that they share: a way to the two servers of a cluster that lets one command
through at a time, and records whenever the command has changed a copy of the control record or a document.

    program ──► Recorder, one port for each server ──► server

The servers name these ports in their map of slots, so every connection comes this way, and no program is changed. The
lines have the order in which the commands were executed, and each says what both servers held after its command.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import Any

import hiredis
import msgspec
from redis import Redis

from devstack.ports import LOOPBACK, free_port
from devstack.redis_server import SLOTS, RedisServer
from devstack.threads import loop_in_thread
from devstack.waiting import PATIENCE_SECONDS, wait_until
from projector.redis.scripts import SCRIPTS
from schemas import names
from schemas.api_keys import organization_tag
from schemas.control import GenerationId, parse_generations
from schemas.layouts import HEAD, read_head
from schemas.resources import LEAD
from tests.harness import crm

_AT_ONCE = 65_536
_BUS = 10_000
_HALVES = (range(SLOTS // 2), range(SLOTS // 2, SLOTS))
_CHANGING = (b"EVALSHA", b"EVAL", b"UNLINK", b"DEL", b"FLUSHALL")
"""Commands that may change what is recorded."""


class Line(msgspec.Struct, frozen=True):
    """What both servers held after a command: the copy of each, and the version of the entity of each in all
    generations that were ever known. `program` is the id of the writer, empty for another program; `act` is the script
    or the command. `acknowledged` says how many records Kafka had acknowledged by then, and maybe more.
    """

    program: str
    act: str
    acknowledged: int
    copies: tuple[dict[str, str] | None, dict[str, str] | None]
    documents: tuple[dict[GenerationId, int], dict[GenerationId, int]]


def shard_of(tag: bytes) -> int:
    """Returns which of the two servers has the slot of this hash tag. The home copy is on the first one."""
    is_in_second = names.tag_slot(tag) in _HALVES[1]
    return is_in_second ^ (names.tag_slot(names.HOME) in _HALVES[1])


def _organization(shard: int) -> str:
    ids = (crm.uuid(number) for number in range(0xA1, 0xFFFF))
    return next(id_ for id_ in ids if shard_of(organization_tag(id_).encode()) == shard)


ORGANIZATIONS = (_organization(0), _organization(1))
"""One in each shard. The entities are their leads."""


class Recorder:
    """A cluster of two empty servers, and the way to them."""

    def __init__(self, directory: Path) -> None:
        """Raises RedisServerMissing, ServerFailed, TimeoutError."""
        self.acknowledged = 0
        """How many records Kafka has acknowledged."""
        self._lock = Lock()
        self._lines: list[Line] = []
        self._recording = False
        self._scripts: dict[bytes, str] = {}
        self._held: dict[str, bool] = {}
        """The acts whose next command is held back, and whether one is."""
        self._stack = ExitStack()
        with self._stack:
            self._loop = self._stack.enter_context(loop_in_thread("recorder"))
            halves = _HALVES if shard_of(names.slot_tag(0)) == 0 else _HALVES[::-1]
            self._ports = [self._listen(number) for number in range(len(halves))]
            self.servers = [self._server(directory / str(number), slots, number) for number, slots in enumerate(halves)]
            self._clients: list[Any] = [self._stack.enter_context(Redis(port=server.port)) for server in self.servers]
            self._clients[0].execute_command("CLUSTER SET-CONFIG-EPOCH", 1)
            self._clients[0].execute_command("CLUSTER MEET", LOOPBACK, self.servers[1].port)
            for server in self.servers:
                server.wait_until_cluster_ok(len(halves))
            self._stack = self._stack.pop_all()

    @property
    def url(self) -> str:
        """The way to the cluster."""
        return f"redis+cluster://{LOOPBACK}:{self._ports[0]}"

    def close(self) -> None:
        self._stack.close()

    @contextmanager
    def recording(self) -> Iterator[list[Line]]:
        """Records until the block ends. The first line is what the servers hold now. Scripts have the names that they
        have in this process.
        """
        self._scripts = {script.sha: script.name for script in SCRIPTS}
        with self._lock:
            lines: list[Line] = []
            self._lines = lines
            self._recording = True
            self._note("", "beginning")
        try:
            yield lines
        finally:
            self._recording = False

    def act(self, name: str, change: Callable[[], object]) -> None:
        """Do this while no command is executed: what no program does. If it changes anything, it is a line."""
        with self._lock:
            change()
            self._note("", name)

    @contextmanager
    def holding(self, act: str) -> Iterator[Callable[[], None]]:
        """The next command of this act is held back until the block ends. Yields what waits until there is one."""
        self._held[act] = False
        try:
            yield lambda: wait_until(lambda: self._held[act], f"a program is about to {act}")
        finally:
            del self._held[act]

    def wait_for(self, act: str) -> None:
        """Wait until a command of this act has changed something since a shard was emptied."""

        def has_changed() -> bool:
            acts = [line.act for line in self._lines]
            return acts[::-1].index(act) < acts[::-1].index("empty") if act in acts else False

        wait_until(has_changed, f"{act} has changed something")

    def empty(self, shards: Sequence[int]) -> None:
        """Let these shards lose everything."""
        self.act("empty", lambda: [self._clients[shard].flushall() for shard in shards])

    def _note(self, program: str, act: str) -> None:
        if not self._recording:
            return
        before = self._lines[-1] if self._lines else None
        line = Line(program, act, self.acknowledged, *self._contents(before))
        if before is None or (line.copies, line.documents) != (before.copies, before.documents):
            self._lines.append(line)

    def _contents(self, before: Line | None) -> tuple[Any, Any]:
        copies = [self._copy(shard) for shard in range(len(self.servers))]
        known = {generation for copy in copies if copy for generation in parse_generations(copy["known"].encode())}
        for documents in before.documents if before else ():
            known |= documents.keys()
        return tuple(copies), tuple(self._documents(shard, sorted(known)) for shard in range(len(self.servers)))

    def _copy(self, shard: int) -> dict[str, str] | None:
        tags = [names.HOME] if shard == 0 else [names.slot_tag(max(half)) for half in _HALVES]
        for tag in tags:
            if shard_of(tag) == shard and (fields := self._clients[shard].hgetall(names.copy(names.CONTROL, tag))):
                return {name.decode(): value.decode() for name, value in fields.items()}
        return None

    def _documents(self, shard: int, generations: Sequence[GenerationId]) -> dict[GenerationId, int]:
        owner = names.organization(ORGANIZATIONS[shard])
        with self._clients[shard].pipeline(transaction=False) as pipeline:
            for generation in generations:
                pipeline.getrange(names.document(LEAD, owner, generation, crm.LEAD), 0, HEAD - 1)
            values = pipeline.execute()
        return {
            generation: read_head(value).version if value else 0
            for generation, value in zip(generations, values, strict=True)
        }

    def _listen(self, number: int) -> int:
        async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(OSError):
                server, to_server = await asyncio.open_connection(LOOPBACK, self.servers[number].port)
                try:
                    await self._forward(reader, writer, server, to_server)
                finally:
                    to_server.transport.abort()
                    writer.transport.abort()

        async def listen() -> asyncio.Server:
            return await asyncio.start_server(forward, LOOPBACK, 0)

        listening = asyncio.run_coroutine_threadsafe(listen(), self._loop).result(PATIENCE_SECONDS)
        self._stack.callback(self._loop.call_soon_threadsafe, listening.close)
        return int(listening.sockets[0].getsockname()[1])

    async def _forward(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        server: asyncio.StreamReader,
        to_server: asyncio.StreamWriter,
    ) -> None:
        """Passes on the commands of a connection, one at a time, and their replies."""
        requests, program = hiredis.Reader(), ""
        while piece := await reader.read(_AT_ONCE):
            requests.feed(piece)
            while words := requests.gets():
                if words[:2] == [b"CLIENT", b"SETNAME"]:
                    program = words[2].decode()
                changes, act = words[0].upper() in _CHANGING, self._act(words)
                if changes:
                    await self._while_held(act)
                    await self._loop.run_in_executor(None, self._lock.acquire)
                try:
                    to_server.write(hiredis.pack_command(tuple(words)))
                    writer.write(await _reply(server))
                    if changes:
                        self._note(program.removeprefix("leadview-writer-"), act)
                finally:
                    if changes:
                        self._lock.release()
            await writer.drain()

    def _act(self, words: Sequence[bytes]) -> str:
        return self._scripts.get(words[1], "script") if words[0].upper() == b"EVALSHA" else words[0].decode().upper()

    async def _while_held(self, act: str) -> None:
        if self._held.get(act) is False:
            self._held[act] = True
            while act in self._held:  # noqa: ASYNC110 - set from another thread
                await asyncio.sleep(0.005)

    def _server(self, directory: Path, slots: range, number: int) -> RedisServer:
        port = free_port()
        options = ["--cluster-announce-port", str(self._ports[number]), "--cluster-announce-bus-port", str(port + _BUS)]
        server = RedisServer.start(directory, port, cluster=True, slots=slots, options=options)
        return self._stack.enter_context(server)


async def _reply(server: asyncio.StreamReader) -> bytes:
    """Returns the bytes of the reply to the only command that was sent."""
    reply, parsed = b"", hiredis.Reader(notEnoughData=...)
    while parsed.gets() is ...:
        piece = await server.read(_AT_ONCE)
        if not piece:
            raise ConnectionError("the server has closed the connection")
        parsed.feed(piece)
        reply += piece
    return reply
