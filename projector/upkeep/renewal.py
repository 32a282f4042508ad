"""Keeps Kafka from forgetting which bad records are accepted.

Kafka deletes the offsets of a group without members if they are not committed for `offsets.retention.minutes`, 7 days
by default. So every projector commits them again, every ten minutes.
"""

import logging

from projector import defect
from projector.accepted.book import AcceptedBook
from projector.errors import Refused, Unavailable
from projector.kafka.reader import open_reader
from projector.redis.store import Store
from projector.stop import Stop
from schemas.resources import KINDS
from schemas.settings import ProjectorSettings

_PAUSE_SECONDS = 600.0
_RETRY_SECONDS = 60.0

logger = logging.getLogger(__name__)


class Renewal:
    """Runs once in every projector, beside its lines."""

    def __init__(self, settings: ProjectorSettings, store: Store) -> None:
        self._settings = settings
        self._book = AcceptedBook(settings, store)

    async def run(self, stop: Stop) -> None:
        """Repeat until `stop` is set."""
        while not stop.is_set():
            pause = _PAUSE_SECONDS
            try:
                await self._renew()
            except (Refused, Unavailable) as error:
                logger.warning("accepted bad records not renewed; retrying later", extra={"error": str(error)})
                pause = _RETRY_SECONDS if isinstance(error, Unavailable) else pause
            except Exception as error:  # noqa: BLE001 - the lines must not end because this fails
                defect.report("the renewal of accepted bad records", error)
            await stop.sleep(pause)

    async def _renew(self) -> None:
        async with open_reader(self._settings, KINDS) as reader:
            partitions = await reader.partitions()
        await self._book.renew(partitions)
