"""The upkeep of a projector beside its lines: once a second it logs the acts of operators, notes which shards are
complete, and finishes drops. What one projector does for all is in `projector/upkeep/duty.py`.
"""

import logging
import time
from collections.abc import Callable

from projector.errors import ProjectorError, Refused, Unavailable
from projector.kafka.reader import open_reader
from projector.ledger import acts, copies, sweep
from projector.ledger.control import ControlRecord
from projector.ledger.writers import Writing
from projector.record import Partition
from projector.stop import Stop, repeat
from schemas.control import GenerationId, number_of
from schemas.resources import KINDS
from schemas.settings import ProjectorSettings

_PAUSE_SECONDS = 1.0
_SHORT_PAUSE_SECONDS = 0.1  # while readers wait for a shard to be filled
_SWEEP_SECONDS = 20.0
"""After this time in `dropping`, the command that drops a generation is assumed dead."""

logger = logging.getLogger(__name__)


class Keeper:
    """Runs once in every projector, beside its lines."""

    def __init__(self, settings: ProjectorSettings, writing: Writing, often: Callable[[float], float] = float) -> None:
        """`often` returns the seconds to wait in place of the given ones (`Duty.often`)."""
        self._settings = settings
        self._writing = writing
        self._often = often
        self._store = writing.store
        self._end_offsets: dict[str, dict[Partition, int]] = {}
        """For each incarnation that is being filled, the end offsets when this keeper saw it first."""
        self._dropping_since: dict[GenerationId, float] = {}
        self._acts = acts.ActLog(writing.store)

    async def run(self, stop: Stop) -> None:
        """Repeat until `stop` is set. Retries while Redis or Kafka is unavailable."""

        def pause() -> float:
            return _SHORT_PAUSE_SECONDS if self._end_offsets else self._often(_PAUSE_SECONDS)

        await repeat("upkeep", self._turn, stop, pause)

    async def _turn(self) -> None:
        record = await self._writing.sessions.look(_PAUSE_SECONDS)
        if any(copy and copy.unfilled for copy in record.copies.values()):
            record = await copies.current(self._store)  # with the present positions
        await self._acts.report()  # first: what is done from now on is logged, however long the rest takes
        await self._note_filled(record)
        await self._finish_drops(record)

    async def _note_filled(self, record: ControlRecord) -> None:
        """Note which shards hold everything. Until then the API serves nothing from them, because it would return 404
        for records that exist.

        A shard is filled when the positions of its copy have reached the end offsets that were read after its copy had
        been created. It does not wait for jobs: while a recreated organization is replayed, its own record says so.
        """
        unfilled = {tag: copy for tag, copy in record.copies.items() if copy and copy.unfilled}
        end_offsets = self._end_offsets
        self._end_offsets = {}
        for tag, copy in unfilled.items():
            ends = end_offsets.get(copy.incarnation) or await self._read_end_offsets(record)
            if ends is None:
                return
            self._end_offsets[copy.incarnation] = ends
            if all((at := copy.positions.get(each)) and at.offset >= end for each, end in ends.items() if end):
                needed = {partition: end for partition, end in ends.items() if end}
                if await copies.mark_filled(self._store, record, [tag], copy.unfilled, needed):
                    logger.info("a shard is complete and is served now", extra={"copy": tag.decode()})
                    del self._end_offsets[copy.incarnation]

    async def _read_end_offsets(self, record: ControlRecord) -> dict[Partition, int] | None:
        """Returns the end offsets of all partitions. None if a topic is missing, because an empty Redis would count as
        complete then. The health reports the missing topic.
        """
        async with open_reader(self._settings, KINDS) as reader:
            try:
                partitions = await reader.existing_partitions()
            except Refused:
                return None
            reader.read_as(record.state.histories, record.state.cluster)  # another cluster has other ends
            ends = await reader.end_offsets(partitions)
        # Kafka may not name a partition for a moment. What any shard has read of it must be read in this one, too.
        known = {partition for copy in record.present for partition in copy.positions}
        missing = {partition: record.highest_offset(partition) for partition in known - ends.keys()}
        return missing | ends

    async def _finish_drops(self, record: ControlRecord) -> None:
        """Finish drops whose command has died."""
        now = time.monotonic()
        self._dropping_since = {old: self._dropping_since.get(old, now) for old in record.state.dropping}
        for old, since in self._dropping_since.items():
            if now - since > _SWEEP_SECONDS:
                self._dropping_since[old] = now
                number = number_of(old)
                try:
                    keys = await sweep.sweep(self._writing, record, old)
                except Unavailable:
                    raise
                except ProjectorError as error:
                    logger.warning("a drop was not finished", extra={"generation": number, "error": str(error)})
                else:
                    logger.info("a drop was finished", extra={"generation": number, "keys": keys})
