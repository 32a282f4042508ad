"""The accepted bad records of the partitions that a line reads."""

import logging
from collections.abc import Iterable, Sequence

from projector.accepted.acceptance import Acceptance, Accepted
from projector.accepted.book import AcceptedBook
from projector.errors import Coordinates, Unavailable
from projector.record import Partition

logger = logging.getLogger(__name__)


class AcceptedRecords:
    """What is accepted, as it was when a line began to read a partition, or when it was halted."""

    def __init__(self, book: AcceptedBook) -> None:
        self._book = book
        self._known: dict[Partition, Accepted] = {}

    def find(self, record: Coordinates) -> Acceptance | None:
        """Returns the acceptance that contains a record, or None."""
        topic, partition, offset = record
        accepted = self._known.get(Partition(topic, partition))
        return accepted.find(offset) if accepted else None

    def forget(self, partitions: Iterable[Partition]) -> None:
        """Read these partitions again before the next use."""
        for partition in partitions:
            self._known.pop(partition, None)

    async def read(self, partitions: Iterable[Partition]) -> None:
        """Read what is accepted in these partitions, unless it is known. Raises Unavailable."""
        if unknown := set(partitions) - self._known.keys():
            self._known |= await self._book.read(unknown)

    async def include_any(self, records: Sequence[Coordinates]) -> bool:
        """Read again, and return whether any of these records is accepted by now."""
        if not records:
            return False
        partitions = {Partition(topic, partition) for topic, partition, _ in records}
        try:
            self._known |= await self._book.read(partitions)
        except Unavailable as error:
            logger.warning("accepted bad records are not known at the moment", extra={"error": str(error)})
            return False
        return any(self.find(record) for record in records)
