"""What answers at the address of Kafka may be something else."""

import asyncio
import struct

import pytest

from projector.errors import Unavailable
from projector.kafka.topics import describe
from schemas.resources import KINDS
from schemas.settings import ProjectorSettings


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Say in response to the first request that no request is known."""
    [size] = struct.unpack(">i", await reader.readexactly(4))
    request = await reader.readexactly(size)
    writer.write(struct.pack(">i4shi", 10, request[4:8], 0, 0))
    writer.close()


async def test_it_knows_no_request_of_kafka() -> None:
    async with await asyncio.start_server(_answer, "127.0.0.1", 0) as server:
        at = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(Unavailable, match=f"what answers at {at} is not Kafka 0.11 or later"):
            await describe(ProjectorSettings(kafka_bootstrap_servers=at), KINDS)
