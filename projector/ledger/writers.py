"""The programs that write, and their heartbeats.

Each program stores a heartbeat once a second, idle or not (hash `lv3{ledger}:writers`). `drop` waits until every writer
has acknowledged that the generation is not written any more, and `status` shows them.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from os import getpid
from socket import gethostname

import msgspec

from projector.errors import ProjectorError, Unavailable
from projector.ledger.ledger import Sessions
from projector.mapping import VERSION
from projector.redis.scripts import forget_writers, read_writers, register_writer
from projector.redis.store import Store
from schemas import names
from schemas.heartbeat import SILENT_MS, Condition, Heartbeat
from schemas.settings import RedisSettings

BEAT_SECONDS = 1.0
_FORGOTTEN_MS = 3_600_000

logger = logging.getLogger(__name__)


def _new_id() -> str:
    """Returns an id for a program that writes: its host, its process and a random part, for names in Redis."""
    host = "".join(character if character.isalnum() or character in "-." else "-" for character in gethostname())
    return f"{host or 'host'}-{getpid()}-{secrets.token_hex(3)}"


class Writer(msgspec.Struct, frozen=True):
    """A writer, and the age of its last heartbeat in milliseconds, by the clock of Redis."""

    id: str
    age_ms: int
    heartbeat: Heartbeat

    @property
    def alive(self) -> bool:
        """True if the last heartbeat is recent. One in the future is from before the clock was set back: a writer that
        is alive has stored another one within a second."""
        return abs(self.age_ms) < SILENT_MS

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
    """Deletes heartbeats that are more than an hour old. Raises Unavailable."""
    await store.run([forget_writers(writers=names.WRITERS, age=_FORGOTTEN_MS)])


class Writing(msgspec.Struct, frozen=True):
    """The two things that a program needs to write documents: Redis, as a registered writer, and its sessions."""

    store: Store
    sessions: Sessions


@asynccontextmanager
async def writing(
    settings: RedisSettings, role: str, condition: Callable[[], Condition] = Condition
) -> AsyncIterator[Writing]:
    """Connect to Redis as a program that writes, and store heartbeats until the block ends."""
    store = Store(settings, writer_id=_new_id())
    here = Writing(store, Sessions(store))
    ended = asyncio.Event()
    beating = asyncio.create_task(_beat(here, role, condition, ended))
    try:
        yield here
    finally:
        ended.set()  # this ends the loop; to cancel it only interrupts what it waits for
        beating.cancel()
        await asyncio.gather(beating, return_exceptions=True)
        with suppress(Unavailable):
            await store.ask_one(b"HDEL", names.WRITERS, store.writer_id)
        await store.close()


async def _beat(here: Writing, role: str, condition: Callable[[], Condition], ended: asyncio.Event) -> None:
    started_at, id_ = int(time.time() * 1000), here.store.writer_id
    while not ended.is_set():
        try:
            await here.sessions.look()
            stamp, said = here.sessions.acknowledged.text, msgspec.structs.asdict(condition())
            heartbeat = Heartbeat(role, VERSION, stamp, started_at, **said)
            stored = msgspec.json.encode(heartbeat)
            await here.store.run([register_writer(writers=names.WRITERS, writer=id_, heartbeat=stored)])
        except ProjectorError as error:
            logger.warning(
                "the heartbeat could not be stored: the next attempt follows in a second", extra={"error": str(error)}
            )
        await asyncio.sleep(BEAT_SECONDS)
