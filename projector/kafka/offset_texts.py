"""Short texts that Kafka stores for us, one for each partition: the metadata of committed offsets.

Kafka keeps them in a consumer group that has no members. It deletes them with their topic, and forgets them if they are
not written for `offsets.retention.minutes` (7 days by default). A text may have `offset.metadata.max.bytes` (4096 by
default).
"""

import asyncio
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import GroupAuthorizationFailedError, OffsetMetadataTooLargeError

from projector.errors import Refused, Unavailable
from projector.kafka.client import connection, consumer, errors, start
from projector.record import Partition
from schemas.settings import ProjectorSettings

_SECONDS = 10.0
_MAX_BYTES = 32_767  # Kafka's protocol allows no more, whatever the brokers' limit is


class OffsetText(NamedTuple):
    """A committed offset, which lag tools show, and the text beside it."""

    offset: int
    text: str


async def read_texts(
    settings: ProjectorSettings, group_id: str, partitions: Iterable[Partition]
) -> dict[Partition, OffsetText]:
    """Returns the texts of these partitions; a partition without one is left out.

    Raises Unavailable, or Refused if Kafka does not let this user read the group.
    """
    wanted = [TopicPartition(*partition) for partition in partitions]
    if not wanted:
        return {}
    admin = AIOKafkaAdminClient(**connection(settings))
    try:
        async with errors(), asyncio.timeout(_SECONDS):
            await start(admin, settings)
            found = await admin.list_consumer_group_offsets(group_id, partitions=wanted)
    except Unavailable as error:
        raise _refused(group_id, error) from error
    finally:
        await admin.close()
    if missing := [partition for partition in wanted if partition not in found]:
        # aiokafka returns no partitions if the coordinator has refused the request.
        raise Unavailable(f"Kafka: the coordinator of the group {group_id} did not return its offsets of {missing}")
    return {Partition(*at): OffsetText(*stored) for at, stored in found.items() if stored.offset >= 0}


async def write_texts(settings: ProjectorSettings, group_id: str, texts: Mapping[Partition, OffsetText]) -> bool:
    """Store these texts. Returns False, and stores none of them, if one is longer than the brokers allow.

    Raises Unavailable, or Refused if Kafka does not let this user write to the group.
    """
    if not texts:
        return True
    if max(len(stored.text.encode()) for stored in texts.values()) > _MAX_BYTES:
        return False
    # The longest one is stored first: if the brokers accept it, they accept the others, too.
    ordered = sorted(texts, key=lambda partition: len(texts[partition].text), reverse=True)
    member = consumer(settings, group_id)
    try:
        async with errors(), asyncio.timeout(_SECONDS):
            await start(member, settings)
            assigned = [TopicPartition(*partition) for partition in ordered]
            member.assign(assigned)
            member.pause(*assigned)  # it is used to commit only, and need not fetch records
            for at in assigned:
                await member.commit({at: tuple(texts[Partition(*at)])})
    except Unavailable as error:
        if isinstance(error.__cause__, OffsetMetadataTooLargeError):
            return False
        raise _refused(group_id, error) from error
    finally:
        await member.stop()
    return True


def _refused(group_id: str, error: Unavailable) -> Unavailable | Refused:
    """Returns the error to raise: Refused if the user lacks a right, which waiting does not change."""
    if isinstance(error.__cause__, GroupAuthorizationFailedError):
        return Refused(f"Kafka does not let this user read and write the consumer group {group_id}.")
    return error
