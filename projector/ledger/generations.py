"""Generations of documents (hash `lv:generations`).

    live       the generation that the API serves; absent until the first projection is complete
    previous   the generation that was live before; `rollback` returns to it
    <number>   JSON: a `Description`
    last       the highest number ever assigned; no number is assigned twice
    dropping:<number>   its documents are being dropped

The list of generations that projectors write is stored in the ledger, because every checkpoint compares it there.
"""

from datetime import UTC, datetime

import msgspec

from projector.errors import Superseded
from projector.ledger.ledger import FIRST, format_generations, read_written_generations
from projector.mapping import VERSION
from projector.redis.calls import Command, Generations
from projector.redis.store import Store
from schemas import names

_DROPPING = "dropping:"


class Description(msgspec.Struct, frozen=True):
    """What is known about a generation.

    `complete` means that it holds everything that the topics contained when it was started.
    """

    mapping: int
    created_at: str
    complete: bool = False
    verified_at: str | None = None


class Registry(msgspec.Struct, frozen=True):
    """All generations. `live`, `previous` and `last` are 0 if there is none."""

    live: int
    previous: int
    written_generations: Generations
    descriptions: dict[int, Description]
    dropping: frozenset[int] = frozenset()
    last: int = 0

    @property
    def next(self) -> int:
        """The generation that is being filled or is ready to be promoted; 0 if there is none."""
        served = max(self.live, self.previous)
        return max((n for n in self.written_generations if n in self.descriptions and n > served), default=0)

    @property
    def highest(self) -> int:
        """The highest number known to have been assigned."""
        return max(self.last, *self.written_generations, *self.descriptions, *self.dropping)

    def rebuild_due(self) -> bool:
        """Returns whether the live generation was mapped by another mapping version than this program's."""
        return self.live in self.descriptions and self.descriptions[self.live].mapping != VERSION


async def read(store: Store) -> Registry:
    """Read all generations. Raises Unavailable."""
    written = await read_written_generations(store)
    fields = await store.read_hash(names.GENERATIONS)
    descriptions = {
        int(name): msgspec.json.decode(value, type=Description) for name, value in fields.items() if name.isdigit()
    }
    dropping = frozenset(int(name.removeprefix(_DROPPING)) for name in fields if name.startswith(_DROPPING))
    live, previous, last = (int(fields.get(name, b"0")) for name in ("live", "previous", "last"))
    return Registry(live, previous, written, descriptions, dropping, last)


async def new_number(store: Store, registry: Registry) -> int:
    """Assign a number that no generation has had, unless Redis was emptied since. Raises Unavailable."""
    await store.ask_one(b"HSETNX", names.GENERATIONS, b"last", registry.highest)
    return int(await store.ask_one(b"HINCRBY", names.GENERATIONS, b"last", 1))


async def check_mapping(store: Store, written: Generations) -> None:
    """Check that this program may write these generations. An older mapping must not write to a newer generation.

    Raises Superseded if one of them was started with a newer mapping version, and Unavailable.
    """
    descriptions = (await read(store)).descriptions
    for generation in written:
        required = descriptions[generation].mapping if generation in descriptions else VERSION
        if required > VERSION:
            raise Superseded(f"generation {generation} requires mapping version {required}, this program has {VERSION}")


async def describe(store: Store, generation: int, description: Description) -> None:
    """Store the description of a generation. Raises Unavailable."""
    await store.ask_one(b"HSET", names.GENERATIONS, generation, msgspec.json.encode(description))


async def amend(store: Store, generation: int, description: Description) -> bool:
    """Replace the description of a generation. Returns False if it does not exist (any more). Raises Unavailable."""
    arguments = [b"%d" % generation, msgspec.json.encode(description)]
    [changed] = await store.run([Command("amend", [names.GENERATIONS], arguments)])
    return bool(changed)


async def forget(store: Store, generation: int) -> None:
    """Delete the description of a generation that was never written or has been dropped. Raises Unavailable."""
    await store.ask_one(b"HDEL", names.GENERATIONS, generation, f"dropping:{generation}")


async def begin_first(store: Store) -> None:
    """Store the description of generation 1, if it is the only one. Safe to repeat. Raises Unavailable."""
    if await read_written_generations(store) == FIRST:
        await store.ask_one(b"HSETNX", names.GENERATIONS, 1, msgspec.json.encode(Description(VERSION, now())))


async def serve_first(store: Store) -> None:
    """Let the API serve generation 1, unless another one is live already. Safe to repeat. Raises Unavailable."""
    await describe(store, 1, Description(VERSION, now(), complete=True))
    await store.ask_one(b"HSETNX", names.GENERATIONS, b"live", 1)


async def change_writing(store: Store, before: Generations, after: Generations) -> bool:
    """Change the list of generations that projectors write, if it is still `before`.

    Returns False, and changes nothing, if another command has changed the list. Raises Unavailable.
    """
    arguments = [format_generations(before), format_generations(after)]
    [changed] = await store.run([Command("change_writing", [names.POSITIONS], arguments)])
    return bool(changed)


def now() -> str:
    """Returns the current time as RFC 3339, in whole seconds."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
