"""Which generation is served: promote, roll back, drop. Each is one pointer or one gentle sweep."""

import time

from projector.errors import Refused
from projector.ledger import generations
from projector.ledger.generations import Registry
from projector.redis.calls import Command
from projector.redis.store import Store
from schemas import names


async def promote(store: Store, generation: int) -> tuple[int, int]:
    """Serve this complete next generation; from which to which. Raises Refused or Unavailable."""
    registry = await generations.read(store)
    if complete_next(registry) != generation:
        raise Refused(f"Generation {generation} is the next one no more: look at `status`, and try again.")
    await _flip(store, registry.live, generation)
    return registry.live, generation


async def rollback(store: Store) -> tuple[int, int]:
    """Serve the generation again that was live before. Raises Refused or Unavailable."""
    registry = await generations.read(store)
    if registry.previous not in registry.writing:
        raise Refused("There is no former generation to go back to: it was dropped, or nothing was ever promoted.")
    await _flip(store, registry.live, registry.previous)
    return registry.live, registry.previous


def complete_next(registry: Registry) -> int:
    """The generation that may be promoted. Raises Refused."""
    generation = registry.next
    if not generation:
        hint = f"; `rollback` serves generation {registry.previous} again" if registry.previous > registry.live else ""
        raise Refused(f"There is no next generation: `rebuild` makes one{hint}.")
    if not registry.descriptions[generation].complete:
        raise Refused(f"Generation {generation} is not complete: run `rebuild` again, it goes on where it was.")
    return generation


async def _flip(store: Store, live: int, to: int) -> None:
    arguments = [b"%d" % live, b"%d" % to, b"%d" % int(time.time() * 1000)]
    [flipped] = await store.run([Command("flip", [names.GENERATIONS], arguments)])
    if not flipped:
        raise Refused("Another command changed the generations just now: look at `status`, and try again.")
