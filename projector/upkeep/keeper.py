"""What a projector does besides its lines, once a second: jobs, the first generation, warnings."""

import logging
import time

from projector.errors import Unavailable
from projector.kafka.reader import open_reader
from projector.ledger import generations
from projector.ledger.ledger import Ledger
from projector.line.metrics import REBUILD_DUE, REDIS_MEMORY
from projector.mapping import VERSION
from projector.record import Kind, Partition
from projector.redis.store import Store
from projector.stop import Stop
from projector.upkeep import jobs
from schemas import names
from schemas.settings import ProjectorSettings

_PAUSE_SECONDS = 1.0
_SHORT_PAUSE_SECONDS = 0.1  # while readers wait for the first generation
_WARN_SECONDS = 60.0
_MEMORY_WARNING = 0.8

logger = logging.getLogger(__name__)


class Keeper:
    """Runs beside the lines of a projector until `stop` is set."""

    def __init__(self, settings: ProjectorSettings, store: Store) -> None:
        self._settings = settings
        self._store = store
        self._heads: dict[Partition, int] | None = None
        self._warned_at = -_WARN_SECONDS

    async def run(self, stop: Stop) -> None:
        while not stop.is_set():
            try:
                await self._turn()
            except Unavailable as error:
                logger.warning("keeper: not available, trying again", extra={"error": str(error)})
            await stop.sleep(_SHORT_PAUSE_SECONDS if self._heads else _PAUSE_SECONDS)

    async def _turn(self) -> None:
        registry = await generations.read(self._store)
        await jobs.work(self._store, self._settings)
        if registry.live:
            self._heads = None  # another projector was first; if Redis is emptied, they are to be read anew
        else:
            await self._serve_when_complete()
        await self._warn(registry)

    async def _serve_when_complete(self) -> None:
        """A generation that is still being filled would answer 404 for leads that exist: serve it when it is whole.

        Whole means: every partition has been read up to where it ended when this was first asked, and no organization
        that was created again is still being replayed.
        """
        await generations.begin_first(self._store)
        if self._heads is None:
            self._heads = await self._read_heads()
        positions = await Ledger(self._store).positions(list(self._heads))
        applied = all((positions[partition] or 0) >= head for partition, head in self._heads.items())
        if applied and not await self._jobs_left():
            await generations.serve_first(self._store)
            self._heads = None
            logger.info("the first generation is complete, and served from now on")

    async def _jobs_left(self) -> bool:
        """A job is noted before the position behind its record is stored: asked after it, this misses none."""
        return bool(await self._store.ask_one(b"EXISTS", names.JOBS))

    async def _read_heads(self) -> dict[Partition, int]:
        async with open_reader(self._settings, list(Kind)) as reader:
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
            logger.warning("Redis memory is nearly full: raise maxmemory", extra={"used": round(ratio, 3)})
        if due:
            logger.warning(
                "a rebuild is due: the live generation was mapped by another version",
                extra={
                    "generation": registry.live,
                    "mapping": registry.descriptions[registry.live].mapping,
                    "ours": VERSION,
                },
            )
        if due or ratio >= _MEMORY_WARNING:
            self._warned_at = time.monotonic()
