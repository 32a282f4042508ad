"""Frees the memory of a generation that is not live."""

import asyncio
import time

from projector.errors import Refused
from projector.ledger import generations
from projector.ledger.generations import Registry, change_writing
from projector.ledger.ledger import Ledger
from projector.redis.calls import Command
from projector.redis.store import Store
from schemas import names

# API processes follow the pointer within a second, and serve nothing on one older than two.
_GRACE_SECONDS = 5.0
# Every projector looks once a second at what it has to write; a batch may be on its way even then.
_SETTLE_SECONDS = 3.0


async def drop(store: Store, generation: int | None = None) -> tuple[int, int]:
    """Free the memory of a generation that is not live; which one, and how many keys. Raises Refused or Unavailable.

    Without a number it is one whose drop was interrupted, the former one, or else the one that is being built. Safe to
    repeat at any point.
    """
    registry = await generations.read(store)
    chosen = _choose(registry, generation)
    [retired] = await store.run([Command("retire", [names.GENERATIONS], [b"%d" % chosen])])
    if not retired:
        raise Refused(f"Generation {chosen} is live. `promote` or `rollback` to another one first.")
    await _wait_for_readers(store)
    await _stop_writing(store, chosen)
    await asyncio.sleep(_SETTLE_SECONDS)
    dropped = await _sweep(store, chosen)
    await Ledger(store, names.rebuild(chosen)).drop()
    await generations.forget(store, chosen)
    return chosen, dropped


def _choose(registry: Registry, generation: int | None) -> int:
    """The generation to drop. Raises Refused."""
    if not registry.live:
        raise Refused("Nothing is served yet: the first projection is not complete.")
    known = {*registry.writing, *registry.descriptions, *registry.dropping}
    if generation is not None:
        # What was dropped before may be swept again; a number that is still to be given may not.
        if not 1 <= generation <= max(known):
            raise Refused(f"There is no generation {generation}: look at `status`.")
        return generation
    others = sorted(known - {registry.live})
    if not others:
        raise Refused(f"There is only generation {registry.live}, and it is live.")
    if registry.dropping:
        return min(registry.dropping)
    return registry.previous if registry.previous in others else others[0]


async def _still_dropping(store: Store, generation: int) -> Registry:
    """The generations, of which this one is still being dropped. Raises Refused where that is forgotten: Redis was
    emptied or went back in time, the number may be that of what is filled and served now."""
    registry = await generations.read(store)
    if generation not in registry.dropping or registry.live == generation or registry.writing == (generation,):
        raise Refused(
            f"Redis was emptied or went back in time: generation {generation} is not being dropped any more. "
            "Look at `status`, and begin again."
        )
    return registry


async def _stop_writing(store: Store, generation: int) -> None:
    """Let neither the projectors write a generation any longer, nor those who are filling it."""
    await store.ask_one(b"HDEL", names.rebuild(generation), b"writing")
    while generation in (writing := (await _still_dropping(store, generation)).writing):
        await change_writing(store, writing, tuple(number for number in writing if number != generation))


async def _wait_for_readers(store: Store) -> None:
    """A reader may still hold the pointer of a moment ago."""
    flipped_at = int(await store.ask_one(b"HGET", names.GENERATIONS, b"flipped_at") or 0) / 1000
    await asyncio.sleep(min(max(0.0, flipped_at + _GRACE_SECONDS - time.time()), _GRACE_SECONDS))


async def _sweep(store: Store, generation: int) -> int:
    """Unlink everything of a generation, in slices, until a whole pass finds nothing more."""
    total = 0
    while found := await _sweep_once(store, generation):
        total += found
    await _check_unwritten(store, generation)  # that nothing is left may mean that Redis was emptied
    return total


async def _sweep_once(store: Store, generation: int) -> int:
    found = 0
    async for keys in store.scan(names.of_generation(generation)):
        found += await _unlink(store, generation, keys)
    return found


async def _check_unwritten(store: Store, generation: int) -> None:
    if generation in (await _still_dropping(store, generation)).writing:
        raise Refused(f"Generation {generation} is written again: look at `status`.")


async def _unlink(store: Store, generation: int, keys: list[bytes]) -> int:
    """One command a key: they belong to many organizations, and so to many slots of a cluster."""
    await _check_unwritten(store, generation)
    return sum(await store.ask([(b"UNLINK", key) for key in keys]))
