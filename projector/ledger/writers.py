"""The programs that write: each one stores a heartbeat, once a second, idle or not (hash `lv3{ledger}:writers`).

`drop` waits until every writer has acknowledged that the generation is not written any more, and `status` shows them.
"""

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from os import getpid
from socket import gethostname

import msgspec

from projector.errors import ProjectorError, Unavailable
from projector.ledger.session import Sessions
from projector.mapping import VERSION
from projector.redis.scripts import forget_writers, read_writers, register_writer
from projector.redis.store import Store
from schemas import names
from schemas.control import Stamp
from schemas.line_states import Former, LineTrouble
from schemas.settings import RedisSettings

BEAT_SECONDS = 1.0
SILENT_MS = 5_000
"""A writer that has stored no heartbeat for this time is not alive, or stands still."""
_FORGOTTEN_MS = 3_600_000

logger = logging.getLogger(__name__)


def _new_id() -> str:
    """Returns an id for a program that writes: its host, its process and a random part, for names in Redis."""
    host = "".join(character if character.isalnum() or character in "-." else "-" for character in gethostname())
    return f"{host or 'host'}-{getpid()}-{secrets.token_hex(3)}"


class Condition(msgspec.Struct, frozen=True, kw_only=True):
    """How a projector is.

    `lines` has the state of each line (`schemas.line_states.State`), `troubles` why those do not work that do not run,
    and `partitions` how many partitions each line has. `problems` are
    what its health check says, except what `status` finds by asking the servers itself, and `kinds` the names of these
    problems, in the same order. Everything that Kafka had
    before `complete_until` was visible when it was measured last, at `measured_at`; both are in milliseconds since
    1970, and 0 if it was never measured.
    """

    lines: dict[str, str] = {}
    troubles: dict[str, LineTrouble] = {}
    partitions: dict[str, int] = {}
    problems: list[str] = []
    kinds: list[str] = []
    measured_at: int = 0
    complete_until: int = 0


class Heartbeat(Condition, frozen=True):
    """What a writer says about itself.

    `role` is the command. `stamp` is the oldest control record under which it may still write.
    """

    role: str
    mapping: int
    stamp: str

    def trouble(self, line: str) -> LineTrouble | None:
        """Returns why a line does not work; None if it does."""
        if found := self.troubles.get(line):
            return found
        state, _, said = self.lines[line].partition(": ")  # a former program has stored words behind the state
        return None if state == "running" else Former(state, said)

    @property
    def acknowledged(self) -> Stamp:
        return Stamp(self.stamp)

    def has_seen(self, stamp: Stamp) -> bool:
        """Returns whether the writer writes under this control record or one that followed it."""
        return self.acknowledged.follows(stamp)


class Writer(msgspec.Struct, frozen=True):
    """A writer, and the age of its last heartbeat in milliseconds, by the clock of Redis."""

    id: str
    age_ms: int
    heartbeat: Heartbeat

    @property
    def alive(self) -> bool:
        return self.age_ms < SILENT_MS

    @property
    def is_living_projector(self) -> bool:
        return self.alive and self.heartbeat.role == "run"


async def read(store: Store) -> list[Writer]:
    """Returns all writers, also those that are not alive any more. Raises Unavailable."""
    [[now, *stored]] = await store.run([read_writers(writers=names.WRITERS)])
    found = []
    for id_, value in zip(stored[::2], stored[1::2], strict=True):
        at, _, heartbeat = value.partition(b" ")
        found.append(Writer(id_.decode(), int(now) - int(at), msgspec.json.decode(heartbeat, type=Heartbeat)))
    return sorted(found, key=lambda writer: writer.id)


async def forget_silent(store: Store) -> None:
    """Delete the heartbeats of writers that ended long ago without saying so. Raises Unavailable."""
    await store.run([forget_writers(writers=names.WRITERS, age=_FORGOTTEN_MS)])


class Writing(msgspec.Struct, frozen=True):
    """What a program needs to write documents: Redis, its sessions, and the id that it is registered with."""

    store: Store
    sessions: Sessions
    id: str


@asynccontextmanager
async def writing(
    settings: RedisSettings, role: str, condition: Callable[[], Condition] = Condition
) -> AsyncIterator[Writing]:
    """Connect to Redis as a program that writes, and store heartbeats until the block ends."""
    id_ = _new_id()
    store = Store(settings, writer_id=id_)
    here = Writing(store, Sessions(store), id_)
    ended = asyncio.Event()
    beating = asyncio.create_task(_beat(here, role, condition, ended))
    try:
        yield here
    finally:
        ended.set()  # asyncio.wait_for, with which redis-py sends, may swallow a cancellation (Python 3.11)
        beating.cancel()
        await asyncio.gather(beating, return_exceptions=True)
        with suppress(Unavailable):
            await store.ask_one(b"HDEL", names.WRITERS, id_)
        await store.close()


async def _beat(here: Writing, role: str, condition: Callable[[], Condition], ended: asyncio.Event) -> None:
    while not ended.is_set():
        try:
            await here.sessions.look()
            heartbeat = Heartbeat(role, VERSION, here.sessions.acknowledged.text, **msgspec.structs.asdict(condition()))
            stored = msgspec.json.encode(heartbeat)
            await here.store.run([register_writer(writers=names.WRITERS, writer=here.id, heartbeat=stored)])
        except ProjectorError as error:
            logger.warning("no heartbeat was stored, and will be stored later", extra={"error": str(error)})
        await asyncio.sleep(BEAT_SECONDS)
