"""The work of a projector outside its lines, once a second: run jobs, serve the first generation, log warnings."""

import logging
import time

from projector.errors import Unavailable
from projector.kafka.reader import open_reader
from projector.ledger import generations
from projector.ledger.ledger import read_positions
from projector.line.metrics import REBUILD_DUE, REDIS_MEMORY
from projector.mapping import VERSION
from projector.record import Partition
from projector.redis.store import Store
from projector.stop import Stop
from projector.upkeep import jobs
from schemas import names
from schemas.resources import KINDS
from schemas.settings import ProjectorSettings

_PAUSE_SECONDS = 1.0
_SHORT_PAUSE_SECONDS = 0.1  # while readers wait for the first generation
_WARN_SECONDS = 60.0
_MEMORY_WARNING = 0.8

logger = logging.getLogger(__name__)


class Keeper:
    """Runs once in every projector, beside its lines."""

    def __init__(self, settings: ProjectorSettings, store: Store) -> None:
        self._settings = settings
        self._store = store
        self._end_offsets: dict[Partition, int] | None = None
        self._warned_at = -_WARN_SECONDS

    async def run(self, stop: Stop) -> None:
        """Repeat until `stop` is set. Retries while Redis or Kafka is unavailable."""
        while not stop.is_set():
            try:
                await self._turn()
            except Unavailable as error:
                logger.warning("upkeep is waiting for Redis or Kafka, and will retry", extra={"error": str(error)})
            await stop.sleep(_SHORT_PAUSE_SECONDS if self._end_offsets else _PAUSE_SECONDS)

    async def _turn(self) -> None:
        registry = await generations.read(self._store)
        await jobs.run_all(self._store, self._settings)
        if registry.live:
            self._end_offsets = None  # read them again if Redis is emptied later
        else:
            await self._serve_when_complete()
        await self._warn(registry)

    async def _serve_when_complete(self) -> None:
        """Serve the first generation once it is complete. Served earlier, the API would return 404 for existing leads.

        It is complete if every partition has been applied up to the end offset that it had at the first check, and no
        job is left: the replay of a recreated organization is one.
        """
        await generations.begin_first(self._store)
        if self._end_offsets is None:
            self._end_offsets = await self._read_end_offsets()
        positions = await read_positions(self._store, list(self._end_offsets))
        applied = all((positions[partition] or 0) >= end for partition, end in self._end_offsets.items())
        if applied and not await self._jobs_left():
            await generations.serve_first(self._store)
            self._end_offsets = None
            logger.info("the first generation is complete and is served now")

    async def _jobs_left(self) -> bool:
        """Returns whether any job is left. Call it after reading the positions, so that it misses none: a job is added
        before the position of its record is stored.
        """
        return bool(await self._store.ask_one(b"EXISTS", names.JOBS))

    async def _read_end_offsets(self) -> dict[Partition, int]:
        async with open_reader(self._settings, KINDS) as reader:
            ranges = await reader.range(await reader.partitions())
        return {partition: last for partition, (_, last) in ranges.items()}

    async def _warn(self, registry: generations.Registry) -> None:
        ratio = await self._store.memory_ratio()
        REDIS_MEMORY.set(ratio)
        due = registry.rebuild_due()
        REBUILD_DUE.set(due)
        if time.monotonic() - self._warned_at < _WARN_SECONDS:
            return
        if ratio >= _MEMORY_WARNING:
            logger.warning("the memory of Redis is nearly full: raise maxmemory", extra={"used": round(ratio, 3)})
        if due:
            logger.warning(
                "a rebuild is due: the live generation was written with another mapping version",
                extra={
                    "generation": registry.live,
                    "mapping": registry.descriptions[registry.live].mapping,
                    "program_mapping": VERSION,
                },
            )
        if due or ratio >= _MEMORY_WARNING:
            self._warned_at = time.monotonic()
