"""Which generation is served: promote, roll back, drop. Each is one pointer or one gentle sweep."""

import asyncio
import time

from projector import generations
from projector.command import Command
from projector.errors import Refused
from projector.generations import Registry
from projector.rebuild import candidate, change_writing
from projector.store import Store
from schemas import names

# API processes follow the pointer within a second, and serve nothing on one older than two.
_GRACE_SECONDS = 5.0
_SETTLE_SECONDS = 2.0
_SLICE = 500


async def promote(store: Store) -> tuple[int, int]:
    """Serve the complete next generation; from which to which. Raises Refused or Unavailable."""
    registry = await generations.read(store)
    generation = complete_candidate(registry)
    await _flip(store, registry.live, generation)
    return registry.live, generation


async def rollback(store: Store) -> tuple[int, int]:
    """Serve the generation again that was live before. Raises Refused or Unavailable."""
    registry = await generations.read(store)
    if registry.previous not in registry.writing:
        raise Refused("There is no former generation to go back to: it was dropped, or nothing was ever promoted.")
    await _flip(store, registry.live, registry.previous)
    return registry.live, registry.previous


def complete_candidate(registry: Registry) -> int:
    """The generation that may be promoted. Raises Refused."""
    generation = candidate(registry)
    if not generation:
        raise Refused("There is no next generation: `rebuild` makes one.")
    if not registry.descriptions[generation].complete:
        raise Refused(f"Generation {generation} is not complete: run `rebuild` again, it goes on where it was.")
    return generation


async def _flip(store: Store, live: int, to: int) -> None:
    arguments = [b"%d" % live, b"%d" % to, b"%d" % int(time.time() * 1000)]
    [flipped] = await store.run([Command("flip", [names.GENERATIONS], arguments)])
    if not flipped:
        raise Refused("Another generation was made live just now: look at `status`, and try again.")


async def drop(store: Store, generation: int | None = None) -> tuple[int, int]:
    """Free the memory of a generation that is not live; which one, and how many keys. Raises Refused or Unavailable.

    Without a number it is the former one, or else the one that is being built.
    """
    registry = await generations.read(store)
    chosen = generation or _droppable(registry)
    if chosen == registry.live:
        raise Refused(f"Generation {chosen} is live. `promote` or `rollback` to another one first.")
    await _wait_for_readers(store)
    if chosen in registry.writing:
        rest = tuple(number for number in registry.writing if number != chosen)
        await change_writing(store, registry.writing, rest)
        await asyncio.sleep(_SETTLE_SECONDS)  # a batch that was on its way may still have written it
    dropped = await _sweep(store, chosen)
    async with store.errors():
        await store.redis.delete(names.rebuild(chosen))
        await store.redis.hdel(names.GENERATIONS, str(chosen))
        if chosen == registry.previous:
            await store.redis.hdel(names.GENERATIONS, "previous")
    return chosen, dropped


def _droppable(registry: Registry) -> int:
    others = [number for number in registry.writing if number != registry.live]
    if not others:
        raise Refused(f"There is only generation {registry.live}, and it is live.")
    return registry.previous if registry.previous in others else others[0]


async def _wait_for_readers(store: Store) -> None:
    """A reader may still hold the pointer of a moment ago."""
    async with store.errors():
        flipped_at = int(await store.redis.hget(names.GENERATIONS, "flipped_at") or 0) / 1000
    await asyncio.sleep(min(max(0.0, flipped_at + _GRACE_SECONDS - time.time()), _GRACE_SECONDS))


async def _sweep(store: Store, generation: int) -> int:
    """Unlink everything of a generation, until a whole pass finds nothing more."""
    total = 0
    while True:
        found = 0
        async with store.errors():
            slice_: list[bytes] = []
            async for name in store.redis.scan_iter(match=names.of_generation(generation), count=1000):
                slice_.append(name)
                if len(slice_) == _SLICE:
                    found += await store.redis.unlink(*slice_)
                    slice_ = []
                    await asyncio.sleep(0.001)
            if slice_:
                found += await store.redis.unlink(*slice_)
        if not found:
            return total
        total += found
