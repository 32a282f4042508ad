"""What happens to generations: they are added, verified, served, no longer written, and their keys are deleted.

To promote and to roll back change one pointer in Redis. To drop frees the memory of a generation.

A writer that stands still in the middle of a session could write after the keys were deleted. Therefore that begins
only when every writer has acknowledged the present control record, or has lost its connections: then it cannot continue
its session (`projector/redis/servers.py`).

The sweep is a writer itself: it deletes in sessions, so it cannot continue over a connection that was opened after the
record has changed. The keys of a generation are in many slots, so no script can compare the control record while it
deletes them; what makes a late delete harmless is that the name of a key holds the identity of its generation.

Each function that changes the control record raises Refused if it may not.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import cast

import msgspec
from msgspec.structs import replace

from projector.errors import Conflict, Refused
from projector.kafka.ends import OpenTransaction
from projector.ledger import copies, writers
from projector.ledger.control import ControlRecord, Generation, State, now
from projector.ledger.ledger import Session, Sessions
from projector.ledger.writers import Writing
from projector.mapping import VERSION
from projector.record import Partition
from projector.redis.store import Store
from projector.verify import compare
from projector.verify.report import Report, unread
from schemas import names
from schemas.control import GenerationId, Stamp, in_order, new_generation, number_of


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


async def retire(store: Store, record: ControlRecord, generation: GenerationId) -> ControlRecord:
    """Let no program write a generation any more, and note that it is being dropped. Raises Refused and Unavailable."""

    def compute(state: State) -> State:
        if generation == state.live:
            raise Refused(f"Generation {number_of(generation)} is live. `promote` or `rollback` to another one first.")
        return state.without(generation)

    if generation in record.state.dropping and generation not in record.state.written:
        return record
    return await copies.change(store, record, compute)


# Most writers acknowledge within two seconds. Closing the connections of the others is safe: they begin their batch
# again.
_ACKNOWLEDGE_SECONDS = 5.0
_PAUSE_SECONDS = 0.1


async def sweep(writing: Writing, record: ControlRecord, generation: GenerationId) -> int:
    """Delete all keys of a generation in `dropping`, and forget it. Returns the number of keys that were deleted.

    Safe to repeat, to interrupt and to run concurrently: if another program has finished the drop, this one is done as
    well. Raises Refused if Redis no longer says that it is being dropped, or if a writer cannot be stopped, and
    Unavailable.
    """
    store, begun = writing.store, record.stamp

    def without(state: State) -> State:
        return replace(state, dropping=tuple(other for other in state.dropping if other != generation))

    await writing.sessions.look()
    await stop_writers(store, begun, writing.sessions)
    keys = 0
    with suppress(_Finished):
        while True:
            async with _dropping(writing, generation, begun) as session:
                record = session.record
            if not all(generation in copy.swept for copy in record.present):
                keys += await _delete(writing, generation, begun)
                await copies.mark_swept(store, record, generation)
                continue
            await copies.delete_rebuild(store, record, generation)
            with suppress(Conflict):  # often another program has finished this drop: the next look will tell
                await copies.change(store, record, without)
                break
    return keys


async def stop_writers(store: Store, stamp: Stamp, own: Sessions | None = None) -> None:
    """Wait until no program can write under an older control record than this one, which every copy must have already.
    Closes the connections of programs that do not acknowledge it in time. `own` are the sessions of this program, if it
    writes itself.

    A connection that is opened from now on needs no attention: the program confirms the control record before it uses
    the connection. Raises Unavailable, also if this user of Redis may not list or close connections.
    """
    at_first = await store.writer_connections()
    deadline = time.monotonic() + _ACKNOWLEDGE_SECONDS
    while True:
        acknowledged = {writer.id for writer in await writers.read(store) if writer.heartbeat.has_seen(stamp)}
        if own and own.acknowledged.follows(stamp):
            acknowledged.add(store.writer_id)  # it need not wait for its own heartbeat
        present = await store.writer_connections()
        behind = [
            client
            for id_, clients in at_first.items()
            if id_ not in acknowledged
            for client in clients
            if client in present.get(id_, ())
        ]
        if not behind:
            return
        if time.monotonic() > deadline:
            await store.close_connections(behind)
        await asyncio.sleep(_PAUSE_SECONDS)


class _Finished(Exception):
    """Another program has finished the drop."""


async def _delete(writing: Writing, generation: GenerationId, begun: Stamp) -> int:
    """Unlink all keys of a generation, in batches, until a whole pass finds none. Returns the number of keys."""
    total, unlinked = 0, -1
    while unlinked:
        unlinked = 0
        async for keys in writing.store.scan(names.of_generation(generation)):
            async with _dropping(writing, generation, begun) as session:
                # A command for each key: on a cluster the keys of many organizations are in many slots.
                unlinked += sum(await writing.store.ask([(b"UNLINK", key) for key in keys], fence=session))
        total += unlinked
    return total


@asynccontextmanager
async def _dropping(writing: Writing, generation: GenerationId, begun: Stamp) -> AsyncIterator[Session]:
    """Open a session for the block, and check that this generation is still being dropped.

    Raises _Finished if a later state of the same record does not know it any more, and Refused if Redis no longer says
    so otherwise: then Redis was emptied, or an older state was restored.
    """
    with await writing.sessions.open(documents=False) as session:
        state, stamp = session.record.state, session.stamp
        if generation not in state.known and begun.lineage == stamp.lineage and begun.epoch < stamp.epoch:
            raise _Finished
        if generation not in state.dropping or generation == state.live or generation in state.written:
            raise Refused(
                f"Redis was emptied or went back in time: generation {number_of(generation)} is not being dropped any "
                "more. Check `status`, then run `drop` again if there is still something to drop."
            )
        yield session


NOTHING_HELD: Mapping[Partition, OpenTransaction] = {}


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
    """The outcome of a promotion. `flip` is None if the comparison did not pass: then nothing was promoted."""

    report: Report
    flip: Flip | None


async def verify_and_promote(
    store: Store, criteria: Criteria, held: Mapping[Partition, OpenTransaction] = NOTHING_HELD, *, force: bool = False
) -> Promoted:
    """Compare the next generation with the live one, and promote it if it passes or with `force`. `held` are the
    transactions behind which nobody can read.

    Raises Refused or Unavailable.
    """
    generation, report = await verify_next(store, criteria, held)
    passes = force or report.passes(criteria.threshold)
    return Promoted(report, await promote(store, generation) if passes else None)


async def verify_next(
    store: Store, criteria: Criteria, held: Mapping[Partition, OpenTransaction] = NOTHING_HELD
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
    return Dropped(number_of(chosen), await sweep(writing, record, chosen))


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
