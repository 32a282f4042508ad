"""Record batches as bytes (Kafka's format, magic 2), also such as no client library sends; and how to publish them."""

import struct
from collections.abc import Sequence
from typing import Any

from aiokafka import TopicPartition, codec
from aiokafka.client import AIOKafkaClient
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.record.util import calc_crc32c, encode_varint

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
_COMPRESS: dict[int, Any] = {
    NONE: bytes,
    GZIP: codec.gzip_encode,
    SNAPPY: codec.snappy_encode,
    LZ4: codec.lz4_encode,
    ZSTD: codec.zstd_encode,
}
_AFTER_CRC = struct.Struct(">hiqqqhii")
_TIMEOUT_MS = 10_000

Header = tuple[bytes, bytes | None]


def record(offset: int, key: bytes | None, value: bytes | None, headers: Sequence[Header] = (), time: int = 0) -> bytes:
    """Returns a record with its length. The names of headers may have any bytes."""
    content = b"\x00" + varint(time) + varint(offset) + _field(key) + _field(value) + varint(len(headers))
    content += b"".join(_field(name) + _field(header) for name, header in headers)
    return _field(content)


def varint(value: int) -> bytes:
    content = bytearray()
    encode_varint(value, content.append)
    return bytes(content)


def compress(codec: int, content: bytes) -> bytes:
    """Returns what this codec makes of the records of a batch."""
    return bytes(_COMPRESS[codec](content))


def checksum(content: bytes) -> int:
    """Returns the checksum of a batch: that of everything after it."""
    return int(calc_crc32c(content))


def batch(
    records: Sequence[bytes],
    *,
    codec: int = NONE,
    attributes: int = 0,
    compressed: bytes | None = None,
    base: int = 0,
    producer: int = -1,
) -> bytes:
    """Returns a batch with a right checksum. `compressed` is written instead of what the codec makes of the records."""
    content = compress(codec, b"".join(records)) if compressed is None else compressed
    number = len(records)
    after = _AFTER_CRC.pack(attributes | codec, number - 1, 0, 0, producer, -1, -1, number) + content
    body = struct.pack(">ibI", 0, 2, checksum(after)) + after
    return struct.pack(">qi", base, len(body)) + body


async def publish(bootstrap_servers: str, topic: str, partition: int, data: bytes) -> int:
    """Sends a batch as it is. Returns the error code of the broker, 0 if it has taken the batch."""
    client = AIOKafkaClient(bootstrap_servers=bootstrap_servers)
    await client.bootstrap()
    try:
        await client.force_metadata_update()
        leader = client.cluster.leader_for_partition(TopicPartition(topic, partition)) or 1
        request = ProduceRequest(
            transactional_id=None, required_acks=-1, timeout=_TIMEOUT_MS, topics=[(topic, [(partition, data)])]
        )
        answer = await client.send(leader, request)
        return int(answer.topics[0][1][0][1])
    finally:
        await client.close()


def _field(content: bytes | None) -> bytes:
    """Returns the content behind its length."""
    return varint(-1) if content is None else varint(len(content)) + content
