"""Bad records that an operator has accepted. They are stored in Kafka, so that they are known after Redis was emptied.

The consumer group `<group id>.accepted` has no members. For each partition it holds what an operator has accepted
there, as the metadata of a committed offset; lag tools show the offset. Kafka deletes this with the topic, and a topic
that is created again begins without accepted records, as it should: its offsets belong to other records. Kafka forgets
what is not written for `offsets.retention.minutes` (7 days by default). A text may have `offset.metadata.max.bytes`
(4096 by default).
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from os import getpid
from secrets import token_hex
from socket import gethostname
from typing import Any

import msgspec
from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import GroupAuthorizationFailedError, OffsetMetadataTooLargeError
from aiokafka.structs import OffsetAndMetadata

from projector.errors import Coordinates, Refused, Unavailable
from projector.kafka.client import connection, consumer, errors, principal, start
from projector.kafka.reader import open_reader
from projector.offsets import Ranges, spans
from projector.problem import KafkaDenies
from projector.reason import DeadLetterReason
from projector.record import Partition
from projector.redis.scripts import expire_lock, take_lock
from projector.redis.store import Store
from projector.stop import Stop, repeat
from schemas import names
from schemas.heartbeat import KafkaRight
from schemas.resources import KINDS
from schemas.settings import ProjectorSettings

_LOCK_SECONDS = 30
_LOCK_PAUSE_SECONDS = 0.1
_RENEW_SECONDS = 600.0
_KAFKA_SECONDS = 10.0
_MAX_BYTES = 32_767  # Kafka's protocol allows no more, whatever the brokers' limit is

logger = logging.getLogger(__name__)


class Acceptance(msgspec.Struct, frozen=True):
    """Bad records that an operator has accepted with one command."""

    offsets: Ranges
    time: int
    """When they were accepted, in milliseconds since 1970."""
    note: str
    """Why they were accepted, in the words of the operator."""
    dropped: bool = False
    """The operator has dropped their dead letters since: no dead letters are stored for them again."""


class Accepted(msgspec.Struct, frozen=True):
    """The accepted bad records of one partition. No offset is in two acceptances, or in one and in `dropped`."""

    acceptances: tuple[Acceptance, ...] = ()
    dropped: Ranges = Ranges()
    """Accepted records whose dead letters the operator has dropped."""

    @classmethod
    def parse(cls, text: str) -> "Accepted":
        """Parse what `text` returned, or an empty text. Raises ValueError."""
        if not text:
            return cls()
        stored = msgspec.json.decode(text, type=_Stored)
        acceptances = (Acceptance(Ranges.parse(offsets), time, note) for offsets, time, note in stored.accepted)
        return cls(tuple(acceptances), Ranges.parse(stored.dropped))

    @property
    def text(self) -> str:
        """Compact JSON: `{"accepted":[["120-420,500",1767225600000,"the note"]],"dropped":"7"}`."""
        accepted = [(str(acceptance.offsets), acceptance.time, acceptance.note) for acceptance in self.acceptances]
        return msgspec.json.encode(_Stored(accepted, str(self.dropped))).decode()

    @property
    def offsets(self) -> Ranges:
        """All accepted offsets."""
        every = (*(acceptance.offsets for acceptance in self.acceptances), self.dropped)
        return Ranges.of(pair for ranges in every for pair in ranges.pairs)

    def find(self, offset: int) -> Acceptance | None:
        """Returns the acceptance that contains an offset, or None."""
        if offset in self.dropped:
            return Acceptance(self.dropped, 0, "", dropped=True)
        return next((acceptance for acceptance in self.acceptances if offset in acceptance.offsets), None)

    def accept(self, offsets: Ranges, time: int, note: str) -> "Accepted":
        """Returns this with one more acceptance, which replaces earlier ones of the same offsets."""
        return Accepted((*self._without(offsets), Acceptance(offsets, time, note)), self.dropped - offsets)

    def drop(self, offsets: Ranges) -> "Accepted":
        """Returns this with the accepted ones among these offsets as dropped ones. The others are ignored."""
        return Accepted(self._without(offsets), self.dropped | offsets & self.offsets)

    def _without(self, offsets: Ranges) -> tuple[Acceptance, ...]:
        rest = (msgspec.structs.replace(one, offsets=one.offsets - offsets) for one in self.acceptances)
        return tuple(acceptance for acceptance in rest if acceptance.offsets)


class _Stored(msgspec.Struct, omit_defaults=True):
    """`accepted` has offsets, time and note of each acceptance."""

    accepted: list[tuple[str, int, str]] = []
    dropped: str = ""


class AcceptedRecords:
    """Reads and changes in Kafka what operators have accepted, and keeps what a line has read of its partitions.

    Every coroutine raises Unavailable, except `include_any` and `keep`.
    """

    def __init__(self, settings: ProjectorSettings, store: Store, texts: "OffsetTexts | None" = None) -> None:
        self._settings = settings
        self._store = store
        self._texts = texts or accepted_texts(settings)
        self._known: dict[Partition, Accepted] = {}
        """The accepted records as they were when the line began to read a partition, or when it was halted."""

    def find(self, record: Coordinates) -> Acceptance | None:
        """Returns the acceptance that contains a record of a known partition, or None."""
        topic, partition, offset = record
        accepted = self._known.get(Partition(topic, partition))
        return accepted.find(offset) if accepted else None

    def forget(self, partitions: Iterable[Partition]) -> None:
        """Read these partitions again before the next use."""
        for partition in partitions:
            self._known.pop(partition, None)

    async def learn(self, partitions: Iterable[Partition]) -> None:
        """Read what is accepted in these partitions, unless it is known."""
        if unknown := set(partitions) - self._known.keys():
            self._known |= await self.read(unknown)

    async def include_any(self, records: Sequence[Coordinates]) -> bool:
        """Read again, and return whether any of these records is accepted by now."""
        if not records:
            return False
        try:
            self._known |= await self.read({Partition(topic, partition) for topic, partition, _ in records})
        except Unavailable as error:
            logger.warning("which bad records are accepted cannot be read now", extra={"error": str(error)})
            return False
        return any(self.find(record) for record in records)

    async def read(self, partitions: Iterable[Partition]) -> dict[Partition, Accepted]:
        """Returns what is accepted in each of these partitions. What cannot be read is logged and counts as nothing."""
        partitions = list(partitions)
        found = dict.fromkeys(partitions, Accepted())
        try:
            texts = await self._texts.read(partitions)
        except Refused as error:
            logger.warning("which bad records are accepted cannot be read: %s", error)
            return found
        for partition, stored in texts.items():
            try:
                found[partition] = Accepted.parse(stored.metadata)
            except ValueError as error:
                fields = {"partition": list(partition), "error": str(error)}
                logger.warning(
                    "what is stored about the accepted bad records of a partition is not valid", extra=fields
                )
        return found

    async def change(self, offsets: Mapping[Partition, Ranges], change: Callable[[Accepted, Ranges], Accepted]) -> None:
        """Call `change` with the accepted records of each partition and these offsets, and store what it returns.

        Raises Refused; then nothing was stored.
        """
        async with self._locked():
            stored = await self._texts.read(offsets)
            texts = {}
            for partition, wanted in offsets.items():
                before = _parsed(partition, stored.get(partition), self._texts.group_id)
                if (after := change(before, wanted)) != before:
                    texts[partition] = OffsetAndMetadata(after.offsets.span[1] + 1, after.text)
            if not await self._texts.write(texts):
                raise _too_long({partition: offsets[partition] for partition in texts}, texts)

    async def keep(self, stop: Stop) -> None:
        """Keep Kafka from forgetting which bad records are accepted, until `stop` is set. Every projector does this.

        Kafka deletes the offsets of a group without members if they are not committed for `offsets.retention.minutes`,
        7 days by default. So every projector commits them again, every ten minutes.
        """

        async def renew() -> None:
            try:
                async with open_reader(self._settings, KINDS) as reader:
                    partitions = await reader.partitions()
                await self.renew(partitions)
            except Refused as error:
                logger.warning(
                    "the accepted bad records were not written to Kafka again, which deletes them after a while",
                    extra={"error": str(error)},
                )

        await repeat("the renewal of accepted bad records", renew, stop, lambda: _RENEW_SECONDS)

    async def renew(self, partitions: Iterable[Partition]) -> None:
        """Write what is stored of these partitions once more. Raises Refused."""
        partitions = list(partitions)
        if not await self._texts.read(partitions):
            return
        async with self._locked():
            stored = await self._texts.read(partitions)
            await self._texts.write(stored)

    @asynccontextmanager
    async def _locked(self) -> AsyncIterator[None]:
        """Let only one process at a time read and write: otherwise one may overwrite what another has just stored.

        Kafka has no conditional write, so the block has to end before the lock expires, even if this process was
        suspended.
        """
        holder = f"{gethostname()}:{getpid()}:{token_hex(8)}".encode()
        async with _at_most(_LOCK_SECONDS + 1):
            lock = take_lock(lock=names.ACCEPT_LOCK, holder=holder, seconds=_LOCK_SECONDS)
            while await self._store.run([lock]) != [1]:  # noqa: ASYNC110 - the holder is another process
                await asyncio.sleep(_LOCK_PAUSE_SECONDS)
        try:
            async with _at_most(_LOCK_SECONDS / 2):
                yield
        finally:
            await self._store.run([expire_lock(lock=names.ACCEPT_LOCK, holder=holder, seconds=0)])


@asynccontextmanager
async def _at_most(seconds: float) -> AsyncIterator[None]:
    """Raises Unavailable if the block takes longer."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise Unavailable(DeadLetterReason("accepted_late")) from None


def _parsed(partition: Partition, stored: Any, group_id: str) -> Accepted:
    try:
        return Accepted.parse(stored.metadata if stored else "")
    except ValueError as error:
        raise Refused(
            DeadLetterReason("text_not_ours", group_id, (names.position(*partition),), detail=str(error))
        ) from None


def _too_long(offsets: Mapping[Partition, Ranges], texts: Mapping[Partition, OffsetAndMetadata]) -> Refused:
    longest = max(len(stored.metadata) for stored in texts.values())
    ranges = " ".join(str(span) for span in spans(offsets))
    return Refused(DeadLetterReason("text_too_long", detail=ranges, number=longest))


class OffsetTexts:
    """Texts that Kafka keeps beside the committed offsets of a consumer group, one for each partition."""

    def __init__(self, settings: ProjectorSettings, group_id: str) -> None:
        self._settings = settings
        self.group_id = group_id

    async def read(self, partitions: Iterable[Partition]) -> dict[Partition, OffsetAndMetadata]:
        """Returns the texts of these partitions; a partition without one is left out.

        Raises Unavailable, or Refused if Kafka does not let this user read the group.
        """
        wanted = [TopicPartition(*partition) for partition in partitions]
        if not wanted:
            return {}
        admin = AIOKafkaAdminClient(**connection(self._settings))
        try:
            async with errors(), asyncio.timeout(_KAFKA_SECONDS):
                await start(admin, self._settings)
                found = await admin.list_consumer_group_offsets(self.group_id, partitions=wanted)
        except Unavailable as error:
            raise _refused(self._settings, self.group_id, error) from error
        finally:
            await admin.close()
        if missing := tuple(names.position(*partition) for partition in wanted if partition not in found):
            # aiokafka returns no partitions if the coordinator has refused the request.
            raise Unavailable(DeadLetterReason("group_without_offsets", self.group_id, missing))
        return {Partition(*at): stored for at, stored in found.items() if stored.offset >= 0}

    async def write(self, texts: Mapping[Partition, OffsetAndMetadata]) -> bool:
        """Store these texts. Lag tools show the offsets. Returns False, and stores none of them, if one
        is longer than the brokers allow.

        Raises Unavailable, or Refused if Kafka does not let this user write to the group.
        """
        if not texts:
            return True
        if max(len(stored.metadata.encode()) for stored in texts.values()) > _MAX_BYTES:
            return False
        # The longest one is stored first: if the brokers accept it, they accept the others, too.
        ordered = sorted(texts, key=lambda partition: len(texts[partition].metadata), reverse=True)
        member = consumer(self._settings, self.group_id)
        try:
            async with errors(), asyncio.timeout(_KAFKA_SECONDS):
                await start(member, self._settings)
                assigned = [TopicPartition(*partition) for partition in ordered]
                member.assign(assigned)
                member.pause(*assigned)  # it is used to commit only, and need not fetch records
                for at in assigned:
                    await member.commit({at: texts[Partition(*at)]})
        except Unavailable as error:
            if isinstance(error.__cause__, OffsetMetadataTooLargeError):
                return False
            raise _refused(self._settings, self.group_id, error) from error
        finally:
            await member.stop()
        return True


def accepted_texts(settings: ProjectorSettings) -> OffsetTexts:
    """Returns where the projectors of a group keep what operators have accepted."""
    return OffsetTexts(settings, f"{settings.group_id}.accepted")


def text_of(offset: int, text: str) -> OffsetAndMetadata:
    """Returns what `OffsetTexts.write` takes for a partition. Lag tools show the offset."""
    return OffsetAndMetadata(offset, text)


def _refused(settings: ProjectorSettings, group_id: str, error: Unavailable) -> Unavailable | Refused:
    """Returns the error to raise: Refused if the user lacks a right, which waiting does not change."""
    if isinstance(error.__cause__, GroupAuthorizationFailedError):
        right = KafkaRight("Read", "group", (group_id,), principal(settings))
        return Refused(KafkaDenies((), right))
    return error
