"""Which generation is served: verify and promote the next one, roll back to the former one, drop one that is not live.

To promote and to roll back change one pointer in Redis. To drop frees the memory of a generation.
"""

from contextlib import suppress
from typing import cast

import msgspec

from projector.errors import Conflict, Refused
from projector.ledger import copies, generations
from projector.ledger.control import ControlRecord
from projector.ledger.writers import Writing
from projector.redis.store import Store
from projector.verify import compare
from projector.verify.report import Report
from schemas.control import GenerationId, in_order, number_of


class Criteria(msgspec.Struct, frozen=True):
    """The conditions under which the next generation may be promoted.

    `sample` is the share of the documents to compare (above 0, at most 1), `allowed` are the fields that may differ
    (`leads.quote_total`), and `threshold` is how many documents may differ in other fields.
    """

    sample: float = 1.0
    allowed: frozenset[str] = frozenset()
    threshold: int = 0


class Flip(msgspec.Struct, frozen=True):
    """A change of the live generation, in numbers. `previous` was live before, `live` is live now."""

    previous: int
    live: int


class Promoted(msgspec.Struct, frozen=True):
    """The outcome of a promotion. `flip` is None if the comparison did not pass: then nothing was promoted."""

    report: Report
    flip: Flip | None


async def verify_and_promote(store: Store, criteria: Criteria, *, force: bool = False) -> Promoted:
    """Compare the next generation with the live one, and promote it if it passes or with `force`.

    Raises Refused or Unavailable.
    """
    record = await copies.require(store)
    generation = complete_next(record)
    report = await _verify(store, record, generation, criteria)
    if not report.passes(criteria.threshold) and not force:
        return Promoted(report, None)
    return Promoted(report, await promote(store, generation))


async def verify_next(store: Store, criteria: Criteria) -> Report:
    """Compare the next generation with the live one, and record the time if it passes.

    Raises Refused or Unavailable.
    """
    record = await copies.require(store)
    return await _verify(store, record, complete_next(record), criteria)


async def _verify(store: Store, record: ControlRecord, generation: GenerationId, criteria: Criteria) -> Report:
    report = await compare.compare(
        store, record.state.live, generation, sample=criteria.sample, allowed=criteria.allowed
    )
    if report.passes(criteria.threshold):
        await _note_verified(store, generation)
    return report


async def _note_verified(store: Store, generation: GenerationId) -> None:
    """Note the time. If the record changes at this moment, such as by a projector that finishes a drop, try again: the
    comparison may have taken an hour.
    """
    while generation in (record := await copies.require(store)).state.written:
        with suppress(Conflict):
            await generations.note_verified(store, record, generation)
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
            await generations.flip(store, record, generation)
            return Flip(number_of(record.state.live), number_of(generation))


async def rollback(store: Store) -> Flip:
    """Make the former generation live again. Raises Refused or Unavailable."""
    record = await copies.require(store)
    state = record.state
    if state.previous is None or state.previous not in state.written:
        raise Refused("There is no former generation to return to: it was dropped, or nothing was ever promoted.")
    await generations.flip(store, record, state.previous)
    return Flip(number_of(state.live), number_of(state.previous))


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
    record = await generations.retire(writing.store, record, chosen)
    return Dropped(number_of(chosen), await generations.sweep(writing, record, chosen))


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
