"""Frees the memory of a generation that is not live."""

import asyncio
import time

import msgspec

from projector.errors import Refused
from projector.ledger import generations
from projector.ledger.generations import Registry, change_writing
from projector.ledger.ledger import Ledger
from projector.redis.calls import Command
from projector.redis.store import Store
from schemas import names

# API processes read the pointer to the live generation within a second, and stop serving after two seconds without it.
_GRACE_SECONDS = 5.0
# Every projector reads the list of generations to write once a second; even then a batch may still be in flight.
_SETTLE_SECONDS = 3.0


class Dropped(msgspec.Struct, frozen=True):
    """A generation that was dropped, and how many keys were deleted."""

    generation: int
    keys: int


async def drop(store: Store, generation: int | None = None) -> Dropped:
    """Free the memory of a generation that is not live. Raises Refused or Unavailable.

    Without a number it chooses a generation whose drop was interrupted, else the former one, else the one that is being
    filled. Safe to repeat at any point.
    """
    registry = await generations.read(store)
    chosen = _choose(registry, generation)
    [retired] = await store.run([Command("retire", [names.GENERATIONS], [b"%d" % chosen])])
    if not retired:
        raise Refused(f"Generation {chosen} is live. `promote` or `rollback` to another one first.")
    await _wait_for_readers(store)
    await _stop_writing(store, chosen)
    await asyncio.sleep(_SETTLE_SECONDS)
    keys = await _sweep(store, chosen)
    await Ledger(store, names.rebuild(chosen)).drop()
    await generations.forget(store, chosen)
    return Dropped(chosen, keys)


def _choose(registry: Registry, generation: int | None) -> int:
    """Returns the generation to drop. Raises Refused."""
    if not registry.live:
        raise Refused("Nothing is served yet: the first projection is not complete.")
    known = {*registry.written_generations, *registry.descriptions, *registry.dropping}
    if generation is not None:
        # A generation that was dropped before may be swept again, but not a number that has not been assigned yet.
        if not 1 <= generation <= max(known):
            raise Refused(f"There is no generation {generation}: `status` lists all generations.")
        return generation
    others = sorted(known - {registry.live})
    if not others:
        raise Refused(f"There is only generation {registry.live}, and it is live.")
    if registry.dropping:
        return min(registry.dropping)
    return registry.previous if registry.previous in others else others[0]


async def _read_dropping(store: Store, generation: int) -> Registry:
    """Read the generations, and check that this one is still being dropped.

    Raises Refused if Redis no longer says so. Then Redis was emptied or an older state was restored, and the number may
    now belong to a generation that is being filled or served.
    """
    registry = await generations.read(store)
    is_only_one = registry.written_generations == (generation,)
    if generation not in registry.dropping or registry.live == generation or is_only_one:
        raise Refused(
            f"Redis was emptied or went back in time: generation {generation} is not being dropped any more. "
            "Check `status`, then run `drop` again if there is still something to drop."
        )
    return registry


async def _stop_writing(store: Store, generation: int) -> None:
    """Stop projectors and rebuild processes from writing a generation."""
    await store.ask_one(b"HDEL", names.rebuild(generation), b"writing")
    while generation in (written := (await _read_dropping(store, generation)).written_generations):
        await change_writing(store, written, tuple(number for number in written if number != generation))


async def _wait_for_readers(store: Store) -> None:
    """Wait until no API process can still use a pointer that it read before the last flip."""
    flipped_at = int(await store.ask_one(b"HGET", names.GENERATIONS, b"flipped_at") or 0) / 1000
    await asyncio.sleep(min(max(0.0, flipped_at + _GRACE_SECONDS - time.time()), _GRACE_SECONDS))


async def _sweep(store: Store, generation: int) -> int:
    """Unlink all keys of a generation, in batches, until a whole pass finds none. Returns the number of keys."""
    total = 0
    while keys := await _sweep_once(store, generation):
        total += keys
    await _check_unwritten(store, generation)  # a pass that finds nothing may also mean that Redis was emptied
    return total


async def _sweep_once(store: Store, generation: int) -> int:
    unlinked = 0
    async for keys in store.scan(names.of_generation(generation)):
        unlinked += await _unlink(store, generation, keys)
    return unlinked


async def _check_unwritten(store: Store, generation: int) -> None:
    if generation in (await _read_dropping(store, generation)).written_generations:
        raise Refused(f"Generation {generation} is being written again: check `status`.")


async def _unlink(store: Store, generation: int, keys: list[bytes]) -> int:
    """Unlink each key with a command of its own: on a cluster the keys of many organizations are in many slots."""
    await _check_unwritten(store, generation)
    return sum(await store.ask([(b"UNLINK", key) for key in keys]))
