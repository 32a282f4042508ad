"""The control record, for tests of one side alone: written without a projector, and read as Redis holds it."""

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from operate.rebuild import generations
from projector.errors import Unavailable
from projector.ledger import copies
from projector.ledger.control import (
    ControlRecord,
    Copy,
    Generation,
    Position,
    State,
    new_copy_fields,
    shared_fields,
)
from projector.mapping import VERSION
from projector.record import Partition
from projector.redis.scripts import create_copy
from projector.redis.store import Store
from schemas import names
from schemas.control import GenerationId, Stamp
from schemas.settings import RedisSettings
from tests.harness.generations import generation, ids

_BEGUN = "2026-01-01T00:00:00Z"
"""When each generation of a test was begun."""


def state_of(
    live: int = 1,
    *written: int,
    previous: int = 0,
    last: int = 0,
    dropping: tuple[int, ...] = (),
    mappings: Mapping[int, int] = {},
    copies: tuple[str, ...] = (names.HOME.decode(),),
) -> State:
    """Returns a state with these generations; by default, only the live one is written, by the present mapping."""
    every = written or (live,)
    known = {generation(number): Generation(mappings.get(number, VERSION), _BEGUN) for number in every}
    former = generation(previous) if previous else None
    return State(generation(live), ids(*every), known, copies, former, last or max(every), ids(*dropping))


def record_of(
    state: State, positions: Mapping[Partition, int] = {}, *, filled: tuple[int, ...] | None = None, time: int = 0
) -> ControlRecord:
    """Returns a record whose copies all have these positions, of this time, and by default all that is written."""
    complete = state.written if filled is None else ids(*filled)
    stored = {partition: Position(offset, time, 0) for partition, offset in positions.items()}
    stamp = Stamp.first()
    copies = {tag.encode(): Copy(stamp, state, "i", state.written, complete, (), stored) for tag in state.copies}
    return ControlRecord(stamp, state, copies)


def write(
    client: Any,
    *,
    live: int = 1,
    written: tuple[int, ...] = (1,),
    filled: tuple[int, ...] | None = None,
    previous: int = 0,
    dropping: tuple[int, ...] = (),
    mappings: dict[int, int] | None = None,
) -> None:
    """Write a record with one copy, in place of any other. By default everything that is written is complete."""
    last = max(*written, *dropping, live, 1)
    state = state_of(live, *written, previous=previous, last=last, dropping=dropping, mappings=mappings or {})
    fields = shared_fields(Stamp.first(), state) | new_copy_fields(state, ids(*(written if filled is None else filled)))
    client.delete(names.CONTROL)
    client.hset(names.CONTROL, mapping=fields)


async def complete(store: Store) -> ControlRecord:
    """Begin a record if there is none, whose first generation has the identity that tests give it, and note that every
    shard holds everything that is written.
    """
    await _begin(store)
    record = await copies.current(store)
    assert await copies.mark_filled(store, record, record.copies, record.state.written, {})
    return await copies.current(store)


async def _begin(store: Store) -> bool:
    """Returns whether there was no record, also if a projector begins one at the same time."""
    fields = shared_fields(Stamp.first(), state_of()) | new_copy_fields(state_of())
    async with store.beginning:
        begun = create_copy(copy=names.CONTROL, complete=names.COMPLETE, evictions=names.EVICTIONS, fields=fields)
        return await store.run([begun]) == [1]


async def with_next(store: Store) -> tuple[ControlRecord, GenerationId]:
    """Begin the next generation beside one that is complete. Returns the record, and that generation."""
    record = await generations.add(store, await complete(store))
    assert record.state.next
    return record, record.state.next


def complete_all(settings: RedisSettings) -> None:
    """Do the same, unless there is a record already or this user may not write one. It may be called anywhere."""

    async def run() -> None:
        store = Store(settings)
        try:
            with suppress(Unavailable):
                if await _begin(store):
                    await complete(store)
        finally:
            await store.close()

    with ThreadPoolExecutor(1) as executor:  # the caller may be inside of an event loop
        executor.submit(asyncio.run, run()).result()


def read(client: Any, name: bytes = names.CONTROL) -> Copy | None:
    """Returns a copy, by default the home copy; None if there is none."""
    fields = client.hgetall(name)
    return Copy.parse({name.decode(): value for name, value in fields.items()}) if fields else None


def home(client: Any) -> Copy:
    """Returns the home copy, which must exist."""
    copy = read(client)
    assert copy, "there is no control record"
    return copy


def read_all(client: Any) -> dict[str, Copy | None]:
    """Returns the copies that the home copy lists; None for a copy that is missing. Empty if there is no home copy."""
    home = read(client)
    tags = home.state.copies if home else ()
    return {tag: read(client, names.copy(names.CONTROL, tag.encode())) for tag in tags}
