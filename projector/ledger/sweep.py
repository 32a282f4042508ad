"""Deletes the keys of a generation that is being dropped.

A writer that stands still in the middle of a session could write after the keys were deleted. Therefore the delete
begins only when every writer has acknowledged the present control record, or has lost its connections: without them, it
cannot continue its session (`projector/redis/node.py`).

The sweep is a writer itself: it deletes in sessions, so it cannot continue over a connection that was opened after the
record has changed. The keys of a generation are in many slots, so no script can compare the control record while it
deletes them; what makes a late delete harmless is that the name of a key holds the identity of its generation.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from msgspec.structs import replace

from projector.errors import Conflict, Refused
from projector.ledger import copies, writers
from projector.ledger.control import ControlRecord, State
from projector.ledger.ledger import Session, Sessions
from projector.ledger.writers import Writing
from projector.reason import GenerationReason
from projector.redis.store import Store
from schemas import names
from schemas.control import GenerationId, Stamp, number_of

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

    Raises _Finished if a later state of the same record does not know it any more. Raises Refused if it is not being
    dropped for another reason: Redis was emptied, or an older state was restored.
    """
    with await writing.sessions.open(documents=False) as session:
        state, stamp = session.record.state, session.stamp
        if generation not in state.known and begun.lineage == stamp.lineage and begun.epoch < stamp.epoch:
            raise _Finished
        if generation not in state.dropping or generation == state.live or generation in state.written:
            raise Refused(GenerationReason("generation_not_dropping", number_of(generation)))
        yield session
