"""What operators do with generations: each function changes the control record, and raises Refused if it may not."""

import time

from msgspec.structs import replace

from projector.errors import Refused
from projector.ledger import copies
from projector.ledger.control import ControlRecord, Generation, State, now
from projector.mapping import VERSION
from projector.redis.store import Store
from schemas.control import GenerationId, new_generation, number_of


async def add(store: Store, record: ControlRecord) -> ControlRecord:
    """Let all projectors write one more generation, for a rebuild. Its number was never used before.

    Raises Refused if the live generation is not complete or another one is being filled already, and Unavailable.
    """

    def compute(state: State) -> State:
        if not record.serves:
            raise Refused("Nothing is served yet: the first projection fills generation 1 by itself.")
        if state.next:
            raise Refused(f"Generation {number_of(state.next)} is being filled already: check `status`.")
        number = state.next_number
        added = new_generation(number)
        generations = state.generations | {added: Generation(VERSION, now())}
        return replace(state, written=(*state.written, added), generations=generations, last=number)

    return await copies.change(store, record, compute)


async def flip(store: Store, record: ControlRecord, to: GenerationId) -> ControlRecord:
    """Make a complete generation live. Raises Refused and Unavailable."""

    def compute(state: State) -> State:
        if to not in state.written or not record.is_complete(to):
            raise Refused(
                f"Generation {number_of(to)} is not complete: run `rebuild` again, it resumes where it stopped."
            )
        return replace(state, live=to, previous=state.live, flipped_at=int(time.time() * 1000))

    return await copies.change(store, record, compute)


async def note_verified(store: Store, record: ControlRecord, generation: GenerationId) -> ControlRecord:
    """Store that a generation has just been verified. Raises Refused and Unavailable."""

    def compute(state: State) -> State:
        known = replace(state.generations[generation], verified_at=now())
        return replace(state, generations=state.generations | {generation: known})

    return await copies.change(store, record, compute)


async def retire(store: Store, record: ControlRecord, generation: GenerationId) -> ControlRecord:
    """Let no program write a generation any more, and note that it is being dropped. Raises Refused and Unavailable."""

    def compute(state: State) -> State:
        if generation == state.live:
            raise Refused(f"Generation {number_of(generation)} is live. `promote` or `rollback` to another one first.")
        return state.without(generation)

    if generation in record.state.dropping and generation not in record.state.written:
        return record
    return await copies.change(store, record, compute)


async def forget(store: Store, record: ControlRecord, generation: GenerationId) -> ControlRecord:
    """Note that nothing is left of a generation that was being dropped. Raises Refused and Unavailable."""

    def compute(state: State) -> State:
        return replace(state, dropping=tuple(other for other in state.dropping if other != generation))

    return await copies.change(store, record, compute)
