"""The projector without Kafka: the mapping and what applies intents write records directly to a real Redis."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

from devstack.fault_proxy import Faults, FaultyProxy, faulty_proxy
from projector import mapping
from projector.change import read
from projector.dead_letter import DeadLetter
from projector.ledger import copies
from projector.ledger.control import Advance, Checkpointed
from projector.ledger.ledger import Ledger, Session, Sessions
from projector.ledger.writers import Writing
from projector.line.apply import Applied, apply
from projector.mapping import Intent
from projector.record import Partition, Record
from projector.redis import calls
from projector.redis.store import Store
from projector.reference import Entity
from schemas import names
from schemas.settings import ProjectorSettings
from tests.harness import stored
from tests.harness.generations import ids
from tests.harness.services import RedisService
from tests.harness.waiting import eventually


class Projection:
    """Writes records to one Redis, and reads what it holds afterwards."""

    def __init__(self, store: Store, client: Any, settings: ProjectorSettings) -> None:
        self.store = store
        self.client = client
        """Synchronous. Returns bytes, which redis-py's types cannot express."""
        self.settings = settings
        self.writing = Writing(store, Sessions(store))

    async def apply(self, *records: Record, generations: tuple[int, ...] = (1,)) -> Applied:
        """Write these records as one batch."""
        return await apply(self.store, [intent_of(record) for record in records], ids(*generations))

    async def call(self, record: Record) -> Any:
        """Returns the reply of a record's script, and does nothing of what would follow from it."""
        [call] = calls.of_intents([intent_of(record)], ids(1))
        [reply] = await self.store.run([call.command])
        return reply

    async def crash(self, *records: Record, generations: tuple[int, ...] = (1,)) -> None:
        """Write these records, and end before anything that would follow from the replies, as a crash would."""
        wanted = calls.of_intents([intent_of(record) for record in records], ids(*generations), clustered=True)
        await self.store.run([call.command for call in wanted])

    def documents(self, generation: int = 1) -> dict[Entity, bytes]:
        return stored.documents(self.client, generation)

    def jobs(self) -> set[str]:
        """Returns the members of the set of jobs."""
        return {job.decode() for job in self.client.smembers(names.JOBS)}

    def jobs_due(self) -> set[str]:
        """Returns verb and organization of each job."""
        return {job.rpartition(" ")[0] for job in self.jobs()}


def intent_of(record: Record) -> Intent:
    return mapping.intent(read(record), record)


@asynccontextmanager
async def behind_proxy(
    service: RedisService, held: bytes | re.Pattern[bytes] | None = None, *, writer_id: str = ""
) -> AsyncIterator[tuple[Writing, FaultyProxy]]:
    """Another program that writes, and the proxy on its way to Redis, which holds back the request that contains this.

    With `writer_id`, its connections can be found and closed by `drop`, as those of a projector.
    """
    with faulty_proxy(urlsplit(service.url).port or 6379) as proxy:
        proxy.faults = Faults(held=held)
        store = Store(ProjectorSettings(redis_url=proxy.url), writer_id=writer_id)
        try:
            yield Writing(store, Sessions(store)), proxy
        finally:
            proxy.faults = Faults()
            await store.close()


@asynccontextmanager
async def held_back(
    service: RedisService,
    held: bytes | re.Pattern[bytes],
    act: Callable[[Writing], Coroutine[Any, Any, Any]],
    *,
    writer_id: str = "",
) -> AsyncIterator[asyncio.Task[Any]]:
    """What another program does, as a task: its first request that contains `held` reaches Redis after this block, and
    then the task ends."""
    async with behind_proxy(service, held, writer_id=writer_id) as (there, proxy):
        task = asyncio.create_task(act(there))
        await eventually(lambda: proxy.holding, "the request is on its way")
        yield task
        proxy.faults = Faults()
        await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def open_projection(service: RedisService) -> AsyncIterator[Projection]:
    settings = ProjectorSettings(redis_url=service.url)
    store = Store(settings)
    with service.client() as client:
        try:
            yield Projection(store, client, settings)
        finally:
            await store.close()


class Opened:
    """A ledger with a session."""

    def __init__(self, store: Store, ledger: Ledger, session: Session) -> None:
        self.store = store
        self.ledger = ledger
        self.session = session

    @classmethod
    async def open(cls, store: Store, **options: Any) -> "Opened":
        await store.shards()  # a connection that is opened later would be refused once the record has changed
        await copies.current(store)
        ledger = Ledger(store, Sessions(store), **options)
        return cls(store, ledger, await ledger.open())

    async def cover(self, advances: Mapping[Partition, Advance], letters: Sequence[DeadLetter] = ()) -> Checkpointed:
        return await self.ledger.cover(self.session, advances, letters)

    async def positions(self, *partitions: Partition) -> dict[Partition, int | None]:
        """Returns what a session that is opened now would begin with."""
        found = await self.ledger.positions((await self.ledger.open()).record, partitions)
        return {partition: position.offset if position else None for partition, position in found.items()}
