"""A ledger with an open session, as a line has it."""

from collections.abc import Mapping, Sequence
from typing import Any

from projector.dead_letter import DeadLetter
from projector.ledger import copies
from projector.ledger.control import Outcome, Step
from projector.ledger.ledger import Ledger
from projector.ledger.writers import Session, Sessions
from projector.record import Partition
from projector.redis.store import Store


class Opened:
    """A ledger with a session."""

    def __init__(self, store: Store, ledger: Ledger, session: Session) -> None:
        self.store = store
        self.ledger = ledger
        self.session = session

    @classmethod
    async def open(cls, store: Store, **options: Any) -> "Opened":
        await store.shards()  # a connection that is opened later would be refused once the record has changed
        await copies.current(store)
        ledger = Ledger(store, Sessions(store), **options)
        return cls(store, ledger, await ledger.open())

    async def cover(self, steps: Mapping[Partition, Step], letters: Sequence[DeadLetter] = ()) -> Outcome:
        return await self.ledger.cover(self.session, steps, letters)

    async def positions(self, *partitions: Partition) -> dict[Partition, int | None]:
        """Returns what a session that is opened now would begin with."""
        found = await self.ledger.positions(await self.ledger.open(), partitions)
        return {partition: position.offset if position else None for partition, position in found.items()}
