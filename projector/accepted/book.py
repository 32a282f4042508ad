"""Where the accepted bad records are stored: in Kafka, so that they are known after Redis was emptied.

The consumer group `<group id>.accepted` has no members. For each partition it holds what an operator has accepted
there, as the metadata of a committed offset (`projector/kafka/offset_texts.py`). Kafka deletes this with the topic, and
a topic that is created again begins without accepted records, as it should: its offsets belong to other records.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from os import getpid
from secrets import token_hex
from socket import gethostname

from projector.accepted.acceptance import Accepted
from projector.accepted.offset_range import spans
from projector.accepted.ranges import Ranges
from projector.errors import Refused, Unavailable
from projector.kafka.offset_texts import OffsetText, read_texts, write_texts
from projector.record import Partition
from projector.redis.scripts import expire_lock
from projector.redis.store import Store
from schemas import names
from schemas.settings import ProjectorSettings

_LOCK_SECONDS = 30
_LOCK_PAUSE_SECONDS = 0.1

logger = logging.getLogger(__name__)


class AcceptedBook:
    """Reads and changes what operators have accepted. Every method raises Unavailable."""

    def __init__(self, settings: ProjectorSettings, store: Store) -> None:
        self._settings = settings
        self._store = store
        self._group_id = f"{settings.group_id}.accepted"

    async def read(self, partitions: Iterable[Partition]) -> dict[Partition, Accepted]:
        """Returns what is accepted in each of these partitions. What cannot be read is logged and counts as nothing."""
        partitions = list(partitions)
        found = dict.fromkeys(partitions, Accepted())
        try:
            texts = await read_texts(self._settings, self._group_id, partitions)
        except Refused as error:
            logger.warning("accepted bad records are not known: %s", error)
            return found
        for partition, stored in texts.items():
            try:
                found[partition] = Accepted.parse(stored.text)
            except ValueError as error:
                fields = {"partition": list(partition), "error": str(error)}
                logger.warning("the accepted bad records of a partition cannot be read", extra=fields)
        return found

    async def change(self, offsets: Mapping[Partition, Ranges], change: Callable[[Accepted, Ranges], Accepted]) -> None:
        """Store for each partition what `change` returns from what is accepted there and these offsets.

        Raises Refused; then nothing was stored.
        """
        async with self._locked():
            stored = await read_texts(self._settings, self._group_id, offsets)
            texts = {}
            for partition, wanted in offsets.items():
                before = _parsed(partition, stored.get(partition), self._group_id)
                if (after := change(before, wanted)) != before:
                    texts[partition] = OffsetText(after.offsets.span[1] + 1, after.text)
            if not await write_texts(self._settings, self._group_id, texts):
                raise _too_long({partition: offsets[partition] for partition in texts}, texts)

    async def renew(self, partitions: Iterable[Partition]) -> None:
        """Write what is stored of these partitions once more, so that Kafka does not forget it. Raises Refused."""
        partitions = list(partitions)
        if not await read_texts(self._settings, self._group_id, partitions):
            return
        async with self._locked():
            stored = await read_texts(self._settings, self._group_id, partitions)
            await write_texts(self._settings, self._group_id, stored)

    @asynccontextmanager
    async def _locked(self) -> AsyncIterator[None]:
        """Let only one process at a time read and write: otherwise one may overwrite what another has just stored.

        Kafka compares nothing, so the block has to end before the lock expires, also if this process stood still.
        """
        holder = f"{gethostname()}:{getpid()}:{token_hex(8)}".encode()
        async with _at_most(_LOCK_SECONDS + 1):
            while not await self._lock(holder):  # noqa: ASYNC110 - the holder is another process
                await asyncio.sleep(_LOCK_PAUSE_SECONDS)
        try:
            async with _at_most(_LOCK_SECONDS / 2):
                yield
        finally:
            await self._store.run([expire_lock(lock=names.ACCEPT_LOCK, holder=holder, seconds=0)])

    async def _lock(self, holder: bytes) -> bool:
        return bool(await self._store.ask_one(b"SET", names.ACCEPT_LOCK, holder, b"NX", b"EX", _LOCK_SECONDS))


@asynccontextmanager
async def _at_most(seconds: float) -> AsyncIterator[None]:
    """Raises Unavailable if the block takes longer."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise Unavailable("the accepted bad records could not be changed in time") from None


def _parsed(partition: Partition, stored: OffsetText | None, group_id: str) -> Accepted:
    try:
        return Accepted.parse(stored.text if stored else "")
    except ValueError as error:
        raise Refused(
            f"What the consumer group {group_id} holds for {names.position(*partition)} was not written by this "
            f"program ({error}). Delete the offsets of this group in Kafka, then accept the records again."
        ) from None


def _too_long(offsets: Mapping[Partition, Ranges], texts: Mapping[Partition, OffsetText]) -> Refused:
    longest = max(len(stored.text) for stored in texts.values())
    ranges = " ".join(str(span) for span in spans(offsets))
    return Refused(
        f"Nothing was changed: the list of accepted records of a partition would have {longest:,} characters, which is "
        "more than Kafka stores for a partition (offset.metadata.max.bytes of the brokers, by default 4096). "
        f"Name whole ranges instead of single records, such as {ranges}. A range replaces what was accepted inside it."
    )
