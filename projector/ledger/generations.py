"""Generations of documents (hash `lv:generations`).

    live       the generation that the API serves; absent until a first projection is complete
    previous   the one that was live before: what a rollback goes back to
    <number>   JSON: a `Description`
    last       the highest number that was ever given; none is used twice
    dropping:<number>   its documents are being dropped

Which generations are written stands in the ledger, where every checkpoint compares it.
"""

from datetime import UTC, datetime

import msgspec

from projector.errors import Superseded
from projector.ledger.ledger import FIRST, Ledger, format_generations
from projector.mapping import VERSION
from projector.redis.calls import Command, Generations
from projector.redis.store import Store
from schemas import names


class Description(msgspec.Struct, frozen=True):
    """What is known of a generation. `complete` once it holds all that the topics said when it was begun."""

    mapping: int
    created_at: str
    complete: bool = False
    verified_at: str | None = None


class Registry(msgspec.Struct, frozen=True):
    """All generations. `live`, `previous` and `last` are 0 where there is none."""

    live: int
    previous: int
    writing: Generations
    descriptions: dict[int, Description]
    dropping: frozenset[int] = frozenset()
    last: int = 0

    @property
    def next(self) -> int:
        """The generation that is being built, or waits to be promoted; 0 where there is none."""
        newer = (n for n in self.writing if n in self.descriptions and n > max(self.live, self.previous))
        return max(newer, default=0)

    @property
    def highest(self) -> int:
        """The highest number that was ever given, as far as is known."""
        return max(self.last, *self.writing, *self.descriptions, *self.dropping)

    def rebuild_due(self) -> bool:
        """Was the live generation mapped by another version than this program's?"""
        return self.live in self.descriptions and self.descriptions[self.live].mapping != VERSION


async def read(store: Store) -> Registry:
    """The generations as they are now. Raises Unavailable."""
    writing = await Ledger(store).writing()
    fields = await store.read_hash(names.GENERATIONS)
    descriptions = {
        int(name): msgspec.json.decode(value, type=Description) for name, value in fields.items() if name.isdigit()
    }
    dropping = frozenset(int(name[9:]) for name in fields if name.startswith("dropping:"))
    live, previous, last = (int(fields.get(name, b"0")) for name in ("live", "previous", "last"))
    return Registry(live, previous, writing, descriptions, dropping, last)


async def new_number(store: Store, registry: Registry) -> int:
    """A number that no generation ever had, but for those that an emptied Redis forgot. Raises Unavailable."""
    await store.ask_one(b"HSETNX", names.GENERATIONS, b"last", registry.highest)
    return int(await store.ask_one(b"HINCRBY", names.GENERATIONS, b"last", 1))


async def check_mapping(store: Store, writing: Generations) -> None:
    """Raise Superseded where one of these generations was begun by a newer program: ours would spoil it."""
    descriptions = (await read(store)).descriptions
    for generation in writing:
        wanted = descriptions[generation].mapping if generation in descriptions else VERSION
        if wanted > VERSION:
            raise Superseded(f"generation {generation} wants mapping version {wanted}, this program has {VERSION}")


async def describe(store: Store, generation: int, description: Description) -> None:
    """Keep what is known of a generation. Raises Unavailable."""
    await store.ask_one(b"HSET", names.GENERATIONS, generation, msgspec.json.encode(description))


async def amend(store: Store, generation: int, description: Description) -> bool:
    """Change what is known of a generation. False where there is no such generation (any more). Raises Unavailable."""
    arguments = [b"%d" % generation, msgspec.json.encode(description)]
    [changed] = await store.run([Command("amend", [names.GENERATIONS], arguments)])
    return bool(changed)


async def forget(store: Store, generation: int) -> None:
    """Keep nothing of a generation that was never written, or that is dropped. Raises Unavailable."""
    await store.ask_one(b"HDEL", names.GENERATIONS, generation, f"dropping:{generation}")


async def begin_first(store: Store) -> None:
    """Describe generation 1 where nothing has ever been served. Safe to repeat. Raises Unavailable."""
    if await Ledger(store).writing() == FIRST:
        await store.ask_one(b"HSETNX", names.GENERATIONS, 1, msgspec.json.encode(Description(VERSION, now())))


async def serve_first(store: Store) -> None:
    """Let the API serve generation 1, unless another is live already. Safe to repeat. Raises Unavailable."""
    await describe(store, 1, Description(VERSION, now(), complete=True))
    await store.ask_one(b"HSETNX", names.GENERATIONS, b"live", 1)


async def change_writing(store: Store, before: Generations, after: Generations) -> bool:
    """Change which generations are written. False, and nothing done, where somebody else just did. Or Unavailable."""
    arguments = [format_generations(before), format_generations(after)]
    [changed] = await store.run([Command("change_writing", [names.POSITIONS], arguments)])
    return bool(changed)


def now() -> str:
    """The time, RFC 3339 in whole seconds."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
