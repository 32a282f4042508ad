"""Frees the memory of a generation that is not live."""

from typing import cast

import msgspec

from projector.errors import Refused
from projector.ledger import copies, generations, sweep
from projector.ledger.control import ControlRecord
from projector.ledger.writers import Writing
from schemas.control import GenerationId, in_order, number_of


class Dropped(msgspec.Struct, frozen=True):
    """The number of a generation that was dropped, and how many keys were deleted."""

    generation: int
    keys: int


async def drop(writing: Writing, number: int | None = None) -> Dropped:
    """Free the memory of a generation that is not live. Raises Refused or Unavailable.

    Without a number it chooses the only one that can be dropped. Safe to repeat at any point: if this command dies, a
    projector continues what it has begun.
    """
    await copies.require(writing.store)
    record = await copies.current(writing.store)
    chosen = _choose(record, number)
    if chosen is None:
        return Dropped(cast(int, number), 0)
    record = await generations.retire(writing.store, record, chosen)
    return Dropped(number_of(chosen), await sweep.sweep(writing, record, chosen))


def _choose(record: ControlRecord, number: int | None) -> GenerationId | None:
    """Returns the generation to drop; None if the one with this number was dropped already. Raises Refused."""
    state = record.state
    if not any(copy.serves for copy in record.present):
        raise Refused("Nothing is served yet: the live generation is not complete.")
    if number is not None:
        # After a failover or a restored backup, two generations may have one number. One of them is not live.
        named = [each for each in in_order(state.known) if number_of(each) == number]
        if not named and not 1 <= number <= state.last:
            raise Refused(f"There is no generation {number}: `status` lists all generations.")
        return next((each for each in named if each != state.live), named[0] if named else None)
    others = in_order(state.known - {state.live})
    if not others:
        raise Refused(f"There is only generation {number_of(state.live)}, and it is live.")
    if state.dropping:
        return in_order(state.dropping)[0]
    if len(others) == 1:
        return others[0]
    named_ones = " or ".join(f"`drop {number_of(each)}` ({_role(record, each)})" for each in others)
    raise Refused(f"More than one generation can be dropped. Name one: {named_ones}.")


def _role(record: ControlRecord, generation: GenerationId) -> str:
    if generation == record.state.previous:
        return "the former one, to which `rollback` returns"
    if generation == record.state.next:
        return "the next one, complete" if record.is_complete(generation) else "the next one, still being filled"
    return "kept"
