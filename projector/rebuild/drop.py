"""Frees the memory of a generation that is not live."""

import msgspec

from projector.errors import Refused
from projector.ledger import copies, generations, sweep
from projector.ledger.control import ControlRecord
from projector.redis.store import Store


class Dropped(msgspec.Struct, frozen=True):
    """A generation that was dropped, and how many keys were deleted."""

    generation: int
    keys: int


async def drop(store: Store, generation: int | None = None) -> Dropped:
    """Free the memory of a generation that is not live. Raises Refused or Unavailable.

    Without a number it chooses the only one that can be dropped. Safe to repeat at any point: if this command dies, a
    projector continues what it has begun.
    """
    await copies.require(store)
    record = await copies.current(store)
    chosen = _choose(record, generation)
    record = await generations.retire(store, record, chosen)
    return Dropped(chosen, await sweep.sweep(store, record, chosen))


def _choose(record: ControlRecord, generation: int | None) -> int:
    """Returns the generation to drop. Raises Refused."""
    state = record.state
    if not any(copy.serves for copy in record.present):
        raise Refused("Nothing is served yet: the live generation is not complete.")
    if generation is not None:
        # A generation that was dropped before may be swept again, but not a number that has not been assigned yet.
        if not 1 <= generation <= max(state.last, *state.known):
            raise Refused(f"There is no generation {generation}: `status` lists all generations.")
        return generation
    others = sorted(state.known - {state.live})
    if not others:
        raise Refused(f"There is only generation {state.live}, and it is live.")
    if state.dropping:
        return min(state.dropping)
    if len(others) == 1:
        return others[0]
    named = " or ".join(f"`drop {number}` ({_role(record, number)})" for number in others)
    raise Refused(f"More than one generation can be dropped. Name one: {named}.")


def _role(record: ControlRecord, number: int) -> str:
    if number == record.state.previous:
        return "the former one, to which `rollback` returns"
    if number == record.state.next:
        return "the next one, complete" if record.is_complete(number) else "the next one, still being filled"
    return "kept"
