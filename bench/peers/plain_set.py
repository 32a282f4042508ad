"""A limit: it reads batches from Kafka, decodes the records, and writes the bytes of each with a SET, in pipelines.

It maps nothing, compares no versions and stores no positions. It reads the replies of a pipeline at once: each of them
is `OK`, so there is nothing to parse.
"""

import asyncio
import sys
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import hiredis
import msgspec
import uvloop

from bench.peers.consuming import start_consumer
from schemas.envelopes import ENVELOPES
from schemas.resources import RESOURCES

_OK = b"+OK\r\n"


_pack: Callable[[tuple[bytes, ...]], bytes] = hiredis.pack_command  # type: ignore[assignment]  # its type says a tuple of one


async def main(kafka: str, redis_url: str, prefix: str, partitions: str) -> None:
    consumer, clock = await start_consumer(kafka, prefix, partitions)
    decoders: dict[str, msgspec.json.Decoder[Any]] = {
        prefix + resource.topic: msgspec.json.Decoder(ENVELOPES[resource].changed) for resource in RESOURCES
    }
    address = urlsplit(redis_url)
    replies, commands = await asyncio.open_connection(address.hostname, address.port)
    finished = False
    while not finished:
        polled = await consumer.getmany(timeout_ms=500, max_records=2000)
        messages = [message for batch in polled.values() for message in batch]
        for start in range(0, len(messages), 200):
            packed = []
            for message in messages[start : start + 200]:
                decoders[message.topic].decode(message.value)
                packed.append(_pack((b"SET", message.key, message.value)))
            commands.write(b"".join(packed))
            await commands.drain()
            reply = await replies.readexactly(len(_OK) * len(packed))
            if reply != _OK * len(packed):
                raise RuntimeError(f"Redis refused a SET: {reply!r}")
        if messages:
            finished = clock.add(len(messages))
    clock.print()
    await consumer.stop()
    commands.close()


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:]))
