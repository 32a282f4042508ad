"""What Redis holds before a measurement: records that the projector's own code has applied without Kafka, and snapshots
of that as files."""

import asyncio
import shutil
from collections.abc import Iterable, Iterator
from itertools import islice

from redis import Redis

from bench.benchmark import client
from bench.crm import Tenant
from bench.machine import pinned
from devstack.redis_server import RedisServer
from projector import mapping
from projector.change import read
from projector.ledger import copies
from projector.line.apply import apply
from projector.mapping import Intent
from projector.record import Record
from projector.redis.store import Store
from schemas import control, names
from schemas.bodies import body
from schemas.control import GenerationId, parse_generation
from schemas.resources import LEAD, Resource
from schemas.settings import Compression, ProjectorSettings

_BATCH = 500


def fill(server: RedisServer, records: Iterable[Record], compression: Compression = "none") -> None:
    """Apply these records in this order, and let the API serve them."""
    asyncio.run(_fill(ProjectorSettings(redis_url=server.url, compression=compression), intents(records)))


async def _fill(settings: ProjectorSettings, all_intents: Iterator[Intent]) -> None:
    store = Store(settings)
    try:
        record = await copies.current(store)
        while batch := list(islice(all_intents, _BATCH)):
            await apply(store, batch, record.state.written)
        await copies.mark_filled(store, record, record.copies, record.state.written, {})
    finally:
        await store.close()


def live(connection: Redis) -> GenerationId:
    """Returns the generation that is served."""
    found = connection.hget(names.CONTROL, control.LIVE)
    assert isinstance(found, bytes)  # noqa: S101 - the server was filled before
    return parse_generation(found)


def bodies(server: RedisServer, tenants: Iterable[Tenant], resource: Resource) -> Iterator[dict[bytes, bytes]]:
    """Yields the served bodies of the leads or contacts of each tenant that has any, by their keys in Redis."""
    with client(server) as connection:
        generation = live(connection)
        for tenant in tenants:
            owner = names.organization(tenant.organization_id)
            ids = tenant.leads if resource is LEAD else tenant.contacts
            keys = [names.document(resource, owner, generation, record_id) for record_id in ids]
            if keys:
                values: list[bytes] = connection.mget(keys)
                yield {name: body(resource, value) for name, value in zip(keys, values, strict=True)}


def intents(records: Iterable[Record]) -> Iterator[Intent]:
    """Decode and map these records."""
    return (mapping.intent(read(record), record) for record in records)


class Snapshots:
    """Saves what `server` holds, and restores it. Restoring restarts the server: its process id changes."""

    def __init__(self, server: RedisServer, cores: set[int] | None) -> None:
        self._server = server
        self._cores = cores
        self._loaded_at_start = server.directory / "dump.rdb"

    def save(self, name: str) -> None:
        """Save what the server holds now under this name."""
        with client(self._server) as redis:
            redis.save()
        shutil.move(self._loaded_at_start, self._file(name))

    def restore(self, name: str) -> None:
        """Replace what the server holds by what was saved under this name."""
        shutil.copyfile(self._file(name), self._loaded_at_start)
        with pinned(self._cores):
            self._server.restart()

    def _file(self, name: str) -> str:
        return str(self._server.directory / f"{name}.rdb")
