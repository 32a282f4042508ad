"""The sessions of a program that writes, without which nothing writes documents.

A session is opened with the control record. It holds what the writes depend on: the generations to write, the stamp,
and the incarnation of every copy. The guard stands here: a program that may not write a generation gets an error
instead of a session, whatever it wanted to write.
"""

import asyncio
from contextlib import AbstractContextManager

from projector.errors import Refused, SessionEnded, Superseded
from projector.ledger import copies
from projector.ledger.control import ControlRecord
from projector.mapping import VERSION
from projector.redis.calls import Generations
from projector.redis.store import Store
from schemas.control import GenerationId, Stamp, number_of
from schemas.heartbeat import StandingBy


class Session(AbstractContextManager["Session"]):
    """What a batch of writes depends on. It is a `Fence` for the connections that the batch uses.

    After its block, or after `close`, this program may acknowledge later control records. Nothing prevents a write in
    the session then: its owner must have waited for all of them.
    """

    def __init__(
        self,
        store: Store,
        opened: int,
        record: ControlRecord,
        generations: Generations,
        all_open: dict[object, Stamp],
    ) -> None:
        self._store = store
        self._all_open = all_open
        self.opened = opened
        self.confirmed: set[int] = set()
        self.record = record
        self.generations = generations
        self.incarnations = record.incarnations()
        self.replication_epoch = record.replication_epoch
        self._confirming = asyncio.Lock()
        self._readings = 0
        self._confirmed_by = 0

    def close(self) -> None:
        """Note that nothing is written in this session any more."""
        self._all_open.pop(self, None)

    def __exit__(self, *_: object) -> None:
        self.close()

    def is_of(self, record: ControlRecord) -> bool:
        """Returns whether the control record is the one that this session was opened with."""
        return record.stamp == self.stamp and record.incarnations() == self.incarnations

    @property
    def stamp(self) -> Stamp:
        return self.record.stamp

    async def confirm(self) -> None:
        """Raises SessionEnded if the control record is no longer the one that this session was opened with.

        Callers that come while the record is being read share the next reading: on a cluster, a reading may open a
        connection to each shard, and a batch may open many connections at once.
        """
        readings = self._readings
        async with self._confirming:
            if self._confirmed_by > readings:
                return
            self._readings += 1
            record = await copies.read(self._store)
            if record is None or not record.agrees or not self.is_of(record):
                raise SessionEnded("Redis: the control record has changed while a batch was being written")
            self._confirmed_by = self._readings


class Sessions:
    """Opens the sessions of a program, and knows which ones are open.

    Every coroutine raises Unavailable.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._seen = Stamp("")
        self._open: dict[object, Stamp] = {}

    @property
    def acknowledged(self) -> Stamp:
        """The oldest control record that this program may still write under."""
        return min(self._open.values(), default=self._seen)

    async def look(self) -> ControlRecord:
        """Read and repair the control record, as every program that writes does once a second."""
        record = await copies.current(self._store)
        self._seen = max(self._seen, record.stamp)
        return record

    async def open(self, *, documents: bool = True) -> Session:
        """Open a session for the generations that projectors write. The caller has to close it.

        Raises Superseded if one of the generations requires a newer mapping. Without `documents`, only access is
        written: it depends on no generation and on no mapping.
        """
        session = await self._opened(None)
        if documents:
            for generation in session.generations:
                known = session.record.state.generations.get(generation)
                if known and known.mapping > VERSION:
                    session.close()
                    raise Superseded(StandingBy(number_of(generation), known.mapping, VERSION))
        return session

    async def open_rebuild(self, generation: GenerationId) -> Session:
        """Open a session for the replay that fills one generation. Raises Refused if it is gone."""
        session = await self._opened((generation,))
        try:
            check_written(session.record, generation)
        except Refused:
            session.close()
            raise
        if broken := [it.topic for it in session.record.state.breaks if generation in it.unverified]:
            session.close()
            raise Refused(
                f"Topic {', '.join(broken)} has lost its history while generation {number_of(generation)} was being "
                f"filled: `drop {number_of(generation)}`, then run `rebuild` again."
            )
        return session

    async def _opened(self, generations: Generations | None) -> Session:
        opening = object()
        # Until the record is read, this program does not acknowledge a newer one.
        self._open[opening] = self.acknowledged
        try:
            opened = self._store.connections_opened
            record = await self.look()
            session = Session(self._store, opened, record, generations or record.state.written, self._open)
            self._open[session] = session.stamp
            return session
        finally:
            del self._open[opening]


def check_written(record: ControlRecord, generation: GenerationId) -> None:
    """Raises Refused if projectors do not write this generation any more."""
    if generation not in record.state.written:
        raise Refused(
            f"Generation {number_of(generation)} is gone: it was dropped while it was being filled, or Redis was "
            "emptied."
        )
