"""Generations of documents: which one is served, which are written (hash `lv:generations`).

live      the generation that the API serves; absent until a first projection is complete
writing   the generations that projectors write, all in one script call each: "1" or "1,2"
epoch     grows with each change of `writing`; stands beside the positions too, where every checkpoint
          compares it: a batch that missed a generation is not covered, and is written again
<number>  JSON: mapping version and time of creation of that generation
"""

from datetime import UTC, datetime

import msgspec

from projector.command import Generations
from projector.mapping import VERSION
from projector.store import Store
from schemas import names


class Registry(msgspec.Struct, frozen=True):
    """What projectors go by. `live` is 0 until a first projection is complete."""

    live: int = 0
    writing: Generations = (1,)
    epoch: str = "0"
    mappings: dict[int, int] = {}
    """The mapping version that each generation was begun with."""

    def rebuild_due(self) -> bool:
        """Was the live generation mapped by another version than this program's?"""
        return self.mappings.get(self.live, VERSION) != VERSION


class Description(msgspec.Struct, frozen=True):
    """What is known of a generation."""

    mapping: int
    created_at: str


async def read(store: Store) -> Registry:
    """The registry as it is now; its defaults where Redis is empty. Raises Unavailable."""
    async with store.errors():
        found = await store.redis.hgetall(names.GENERATIONS)
    fields = {_text(name): _text(value) for name, value in found.items()}
    return Registry(
        live=int(fields.get("live", "0")),
        writing=tuple(int(number) for number in fields.get("writing", "1").split(",")),
        epoch=fields.get("epoch", "0"),
        mappings={
            int(name): msgspec.json.decode(value, type=Description).mapping
            for name, value in fields.items()
            if name.isdigit()
        },
    )


async def begin_first(store: Store) -> None:
    """Describe generation 1 where nothing has ever been written. Safe to repeat."""
    description = Description(VERSION, datetime.now(UTC).isoformat(timespec="seconds"))
    async with store.errors():
        if not await store.redis.hexists(names.GENERATIONS, "writing"):
            await store.redis.hsetnx(names.GENERATIONS, "1", msgspec.json.encode(description).decode())
            await store.redis.hsetnx(names.GENERATIONS, "writing", "1")


async def serve_first(store: Store) -> None:
    """Let the API serve generation 1, unless another is live already. Safe to repeat."""
    async with store.errors():
        await store.redis.hsetnx(names.GENERATIONS, "live", "1")


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
