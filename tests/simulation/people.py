"""Who takes part in a world: a core product, readers, who send requests over the network and note each answer, and a
probe."""

import asyncio
import re
from collections.abc import Iterator
from math import inf

from projector.reference import Entity
from schemas import resources
from tests.chaos.core import KEY_IDS, UNKNOWN, Change, Core
from tests.chaos.history import Beat, Response
from tests.chaos.reader import Reader as ChaosReader
from tests.chaos.reader import path_of
from tests.chaos.world import projectors
from tests.simulation.world import API_PORT, World

_ANSWER_SECONDS = 20.0
_PROBE_SECONDS, _STEP_SECONDS = 0.4, 0.001
_NOT_MODIFIED = 304
_SWITCHED_SHARE = 0.04
_LENGTH = re.compile(r"content-length: (\d+)", re.IGNORECASE)
_NAMES = ("ETag", "Data-As-Of", "Preference-Applied")


class RestlessCore(Core):
    """Switches keys and access more often than the core product of chaos: worlds are short."""

    def more(self) -> Iterator[Change]:
        for change in super().more():
            yield change
            if self._random.random() < _SWITCHED_SHARE:
                organization = self._random.choice(self.organizations[1:])
                kind, id_ = self._random.choice(
                    [(resources.API_KEY, KEY_IDS[1]), (resources.ORGANIZATION, organization)]
                )
                yield from self._switch((kind, organization, id_))


class Reader(ChaosReader):
    """Sends about `rate` requests per second, each to one of the workers, over connections that it keeps."""

    def __init__(self, world: World, core: Core, seed: int, rate: float, wait: int = 0) -> None:
        super().__init__([], core, seed, rate, wait)
        self._world = world
        self._open: dict[str, tuple[asyncio.StreamReader, asyncio.StreamWriter]] = {}

    async def read(self) -> None:
        """Send requests until it is cancelled."""
        while True:
            await asyncio.sleep(self._random.uniform(0.5, 1.5) * self._pause)
            process = self._random.randrange(len(self._world.workers))
            self.answers.append(await self.ask(process, *self.chosen()))

    async def ask(self, process: int, key: Entity, wanted: Entity) -> Response:
        """Returns the answer of this worker."""
        host = [*self._world.workers][process]
        answer = Response(self._world.loop.now, inf, key, wanted, 0, process=process, wait=self._wait)
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                await self._exchange(host, answer)
        except (OSError, EOFError, TimeoutError):
            self.hang_up(host)
            await asyncio.sleep(_STEP_SECONDS)  # an answer comes after its question
            answer.answered_at = self._world.loop.now
        return answer

    async def _exchange(self, host: str, answer: Response) -> None:
        if host in self._open and self._open[host][1].transport.is_closing():
            self.hang_up(host)
        if host not in self._open:
            self._open[host] = await asyncio.open_connection(host, API_PORT)
        source, sink = self._open[host]
        lines = [f"GET {path_of(answer.wanted)} HTTP/1.1", "Host: api"]
        lines += [f"{name}: {value}" for name, value in self.headers(answer).items()]
        sink.write("\r\n".join([*lines, "", ""]).encode())
        head = (await source.readuntil(b"\r\n\r\n")).decode()
        status, length = int(head.split(" ", 2)[1]), _LENGTH.search(head)
        body = await source.readexactly(int(length[1])) if length and status != _NOT_MODIFIED else b""
        headers = {line.partition(": ")[0].lower(): line.partition(": ")[2] for line in head.split("\r\n")}
        known = {name: headers[name.lower()] for name in _NAMES if name.lower() in headers}
        self.note(answer, status, known, body)
        if headers.get("connection") == "close":
            self.hang_up(host)

    def hang_up(self, host: str) -> None:
        if opened := self._open.pop(host, None):
            opened[1].transport.abort()

    async def is_served(self) -> bool:
        """Returns whether each worker has an answer for each organization."""
        for process in range(len(self._world.workers)):
            for organization in self._core.organizations:
                key = (resources.API_KEY, organization, KEY_IDS[0])
                answer = await self.ask(process, key, (resources.LEAD, organization, UNKNOWN))
                if answer.status in (0, 503):
                    return False
        return True


async def probe(world: World) -> None:
    """Note, again and again, whether all servers and a projector are there, and how much is to be applied."""
    while True:
        server = world.server.process
        is_led = all(log.leader > 0 for log in world.cluster.logs.values())
        is_there = is_led and not server.dead and not server.suspended
        alive = is_there and bool(projectors(world.server.client))
        world.history.beats.append(Beat(world.loop.now, world.behind(world.mark) if alive else None))
        await asyncio.sleep(_PROBE_SECONDS)
