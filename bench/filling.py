"""Fills a Redis without Kafka: the projector's own code decodes, maps and applies the records."""

import asyncio
from collections.abc import Iterable, Iterator
from itertools import islice

from redis import Redis

from devstack.redis_cluster import RedisCluster
from devstack.redis_server import RedisServer
from projector import mapping
from projector.change import read
from projector.intent import Intent
from projector.ledger import copies
from projector.record import Record
from projector.redis.applier import Applier
from projector.redis.store import Store
from schemas import control, names
from schemas.control import GenerationId, parse_generation
from schemas.settings import Compression, ProjectorSettings

_BATCH = 500


def fill(server: RedisServer | RedisCluster, records: Iterable[Record], compression: Compression = "none") -> None:
    """Apply these records in this order, and let the API serve them."""
    asyncio.run(_fill(ProjectorSettings(redis_url=server.url, compression=compression), intents(records)))


async def _fill(settings: ProjectorSettings, all_intents: Iterator[Intent]) -> None:
    store = Store(settings)
    applier = Applier(store)
    try:
        record = await copies.current(store)
        while batch := list(islice(all_intents, _BATCH)):
            await applier.apply(batch, record.state.written)
        await copies.mark_filled(store, record, record.copies, record.state.written, {})
    finally:
        await store.close()


def live(connection: Redis) -> GenerationId:
    """Returns the generation that is served."""
    found = connection.hget(names.CONTROL, control.LIVE)
    assert isinstance(found, bytes)  # noqa: S101 - the server was filled before
    return parse_generation(found)


def intents(records: Iterable[Record]) -> Iterator[Intent]:
    """Decode and map these records."""
    return (mapping.intent(read(record), record) for record in records)
