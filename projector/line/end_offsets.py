"""Asks Kafka for the end offsets and the ids of the topics, and copies the positions to it, while the line continues.

Otherwise, everything that arrives until Kafka has answered would be late.
"""

import asyncio

from projector.kafka.source import Source
from projector.line.positions import Positions
from projector.record import Partition

Answer = tuple[dict[Partition, int], dict[str, str]]
"""The end offsets, and the ids of the topics."""


class EndOffsets:
    """At most one question is under way. `end` must be called before the source is stopped."""

    def __init__(self, source: Source, positions: Positions) -> None:
        self._source = source
        self._positions = positions
        self._asking: asyncio.Task[Answer] | None = None

    def ask(self) -> None:
        """Ask about the present partitions, unless a question is under way."""
        self._asking = self._asking or asyncio.create_task(self._ask(list(self._positions.offsets)))

    def take(self) -> Answer | None:
        """Returns the answer, once; None if there is none yet. Raises Unavailable."""
        if self._asking is None or not self._asking.done():
            return None
        asked, self._asking = self._asking, None
        return asked.result()

    async def answered(self) -> None:
        """Wait until no question is under way."""
        if self._asking:
            await asyncio.wait([self._asking])

    async def end(self) -> None:
        """Cancel a question that is under way."""
        if self._asking:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)

    async def _ask(self, partitions: list[Partition]) -> Answer:
        await self._positions.commit()
        return await self._source.end_offsets(partitions), await self._source.topic_ids()
