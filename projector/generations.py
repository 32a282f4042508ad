"""Generations of documents (hash `lv:generations`).

    live       the generation that the API serves; absent until a first projection is complete
    previous   the one that was live before: what a rollback goes back to
    <number>   JSON: a `Description`

Which generations are written stands in the ledger, where every checkpoint compares it.
"""

from datetime import UTC, datetime

import msgspec

from projector.command import Generations
from projector.errors import Superseded
from projector.ledger import FIRST, Ledger
from projector.mapping import VERSION
from projector.store import Store
from schemas import names


class Description(msgspec.Struct, frozen=True):
    """What is known of a generation. `complete` once it holds all that the topics said when it was begun."""

    mapping: int
    created_at: str
    complete: bool = False
    verified_at: str | None = None


class Registry(msgspec.Struct, frozen=True):
    """All generations. `live` and `previous` are 0 where there is none."""

    live: int
    previous: int
    writing: Generations
    descriptions: dict[int, Description]

    def rebuild_due(self) -> bool:
        """Was the live generation mapped by another version than this program's?"""
        return self.live in self.descriptions and self.descriptions[self.live].mapping != VERSION


async def read(store: Store) -> Registry:
    """The generations as they are now. Raises Unavailable."""
    writing = await Ledger(store).writing()
    async with store.errors():
        found = await store.redis.hgetall(names.GENERATIONS)
    fields = {_text(name): _text(value) for name, value in found.items()}
    descriptions = {
        int(name): msgspec.json.decode(value, type=Description) for name, value in fields.items() if name.isdigit()
    }
    return Registry(int(fields.get("live", "0")), int(fields.get("previous", "0")), writing, descriptions)


async def check_mapping(store: Store, writing: Generations) -> None:
    """Raise Superseded where one of these generations was begun by a newer program: ours would spoil it."""
    descriptions = (await read(store)).descriptions
    for generation in writing:
        wanted = descriptions[generation].mapping if generation in descriptions else VERSION
        if wanted > VERSION:
            raise Superseded(f"generation {generation} wants mapping version {wanted}, this program has {VERSION}")


async def describe(store: Store, generation: int, description: Description) -> None:
    """Keep what is known of a generation. Raises Unavailable."""
    async with store.errors():
        await store.redis.hset(names.GENERATIONS, str(generation), msgspec.json.encode(description).decode())


async def begin_first(store: Store) -> None:
    """Describe generation 1 where nothing has ever been served. Safe to repeat. Raises Unavailable."""
    if await Ledger(store).writing() == FIRST:
        text = msgspec.json.encode(Description(VERSION, now())).decode()
        async with store.errors():
            await store.redis.hsetnx(names.GENERATIONS, "1", text)


async def serve_first(store: Store) -> None:
    """Let the API serve generation 1, unless another is live already. Safe to repeat. Raises Unavailable."""
    await describe(store, 1, Description(VERSION, now(), complete=True))
    async with store.errors():
        await store.redis.hsetnx(names.GENERATIONS, "live", "1")


def now() -> str:
    """The time, RFC 3339 in whole seconds."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
