"""What happens to generations: they are added, verified, served, no longer written, and their keys are deleted.

To promote and to roll back change one pointer in Redis. To drop frees the memory of a generation.

Each function that changes the control record raises Refused if it may not.
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import cast

import msgspec
from msgspec.structs import replace

from operate.verify import compare
from projector.errors import Conflict, Refused
from projector.kafka.ends import OldestTransaction
from projector.ledger import copies, sweep
from projector.ledger.control import ControlRecord, Generation, State, now
from projector.ledger.writers import Writing
from projector.mapping import VERSION
from projector.record import Partition
from projector.redis.store import Store
from projector.verify.report import Report, unread
from schemas.control import GenerationId, in_order, new_generation, number_of


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
        # What is deleted in added partitions alone comes back in each generation that is filled from the beginning.
        noted = tuple(
            replace(it, unverified=(*it.unverified, added)) if it.kind == "partitions_raised" else it
            for it in state.breaks
        )
        written = (*state.written, added)
        return replace(state, written=written, generations=generations, last=number, breaks=noted)

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


NOTHING_HELD: Mapping[Partition, OldestTransaction] = {}


class Criteria(msgspec.Struct, frozen=True):
    """The conditions under which the next generation may be promoted.

    `allowed` are the fields that may differ (`leads.quote_total`), and `threshold` is how many documents may differ in
    other fields.
    """

    allowed: frozenset[str] = frozenset()
    threshold: int = 0


class Flip(msgspec.Struct, frozen=True):
    """A change of the live generation, in numbers. `previous` was live before, `live` is live now."""

    previous: int
    live: int


async def flip(store: Store, record: ControlRecord, to: GenerationId) -> Flip:
    """Make a generation live that is complete in this record. Raises Conflict if the record has changed since, and
    Unavailable.
    """
    live = record.state.live
    await copies.change(store, record, lambda state: replace(state, live=to, previous=live))
    return Flip(number_of(live), number_of(to))


class Promoted(msgspec.Struct, frozen=True):
    """The outcome of a promotion of this generation. `flip` is None if the comparison did not pass: then nothing was
    promoted.
    """

    generation: int
    report: Report
    flip: Flip | None


async def verify_and_promote(
    store: Store, criteria: Criteria, held: Mapping[Partition, OldestTransaction] = NOTHING_HELD, *, force: bool = False
) -> Promoted:
    """Compare the next generation with the live one, and promote it if it passes or with `force`. `held` are the
    transactions behind which nobody can read.

    Raises Refused or Unavailable.
    """
    generation, report = await verify_next(store, criteria, held)
    passes = force or report.passes(criteria.threshold)
    return Promoted(number_of(generation), report, await promote(store, generation) if passes else None)


async def verify_next(
    store: Store, criteria: Criteria, held: Mapping[Partition, OldestTransaction] = NOTHING_HELD
) -> tuple[GenerationId, Report]:
    """Compare the next generation with the live one, and record the time if it passes. `held` are the transactions
    behind which nobody can read: both generations lack what is there.

    Raises Refused or Unavailable.
    """
    record = await copies.require(store)
    generation = complete_next(record)
    report = await compare.compare(store, record.state.live, generation, allowed=criteria.allowed)
    report.unread.extend(unread(held))
    if report.passes(criteria.threshold):
        await _note_verified(store, generation)
    return generation, report


async def _note_verified(store: Store, generation: GenerationId) -> None:
    """Note the time. If the record changes at this moment, such as by a projector that finishes a drop, try again: the
    comparison may have taken an hour.
    """

    def compute(state: State) -> State:
        known = replace(state.generations[generation], verified_at=now())
        return replace(state, generations=state.generations | {generation: known})

    while generation in (record := await copies.require(store)).state.written:
        with suppress(Conflict):
            await copies.change(store, record, compute)
            return


async def promote(store: Store, generation: GenerationId) -> Flip:
    """Promote `generation`, as soon as no other program changes the record at the same moment. Returns the previous and
    the new live generation. Raises Refused or Unavailable.
    """
    while True:
        record = await copies.require(store)
        if complete_next(record) != generation:
            raise Refused(
                f"Generation {number_of(generation)} is no longer the next one: check `status`, then run `promote` "
                "again."
            )
        with suppress(Conflict):
            return await flip(store, record, generation)


async def rollback(store: Store) -> Flip:
    """Make the former generation live again. Raises Refused or Unavailable."""
    record = await copies.require(store)
    return await flip(store, record, complete_former(record))


def complete_former(record: ControlRecord) -> GenerationId:
    """Returns the generation that a rollback returns to. Raises Refused if there is none."""
    former = record.state.previous
    if former not in record.state.written:
        raise Refused("There is no former generation to return to: it was dropped, or nothing was ever promoted.")
    if not record.is_complete(former):
        raise Refused(
            f"Generation {number_of(former)} is not complete, because Redis lost a part of it, and projectors are "
            "filling it: run `rollback` again when `status` no longer says that Redis is not complete."
        )
    return former


def complete_next(record: ControlRecord) -> GenerationId:
    """Returns the generation that may be promoted. Raises Refused if there is none."""
    state = record.state
    generation = state.next
    if generation is None:
        newer = state.previous is not None and number_of(state.previous) > number_of(state.live)
        hint = f"; `rollback` serves generation {number_of(state.previous)} again" if state.previous and newer else ""
        raise Refused(f"There is no next generation: `rebuild` creates one{hint}.")
    if not record.is_complete(generation):
        raise Refused(
            f"Generation {number_of(generation)} is not complete: run `rebuild` again, it resumes where it stopped."
        )
    return generation


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
    record = await retire(writing.store, record, chosen)
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
