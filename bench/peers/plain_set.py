"""A limit: it reads batches from Kafka, decodes the records, and writes the bytes of each with a SET, in pipelines.

It maps nothing, compares no versions and stores no positions.
"""

from collections.abc import Callable
from math import inf
from typing import Any

import hiredis
import msgspec
import uvloop
from redis.asyncio import Redis

from bench.peers.consuming import Share, share_of_arguments, start_consumer
from schemas.envelopes import ENVELOPES
from schemas.resources import RESOURCES

_decoders: dict[str, msgspec.json.Decoder[Any]] = {
    resource.topic: msgspec.json.Decoder(ENVELOPES[resource].changed) for resource in RESOURCES
}


_pack: Callable[[tuple[bytes, ...]], bytes] = hiredis.pack_command  # type: ignore[assignment]  # its type says a tuple of one


async def main(share: Share) -> None:
    consumer, clock = await start_consumer(share)
    decoders = {share.prefix + kind: decoder for kind, decoder in _decoders.items()}
    redis = Redis.from_url(share.redis, protocol=2)
    connection = await redis.connection_pool.get_connection()  # type: ignore[no-untyped-call]
    finished = False
    while not finished:
        polled = await consumer.getmany(timeout_ms=500, max_records=2000)
        messages = [message for batch in polled.values() for message in batch]
        for start in range(0, len(messages), 200):
            packed = []
            for message in messages[start : start + 200]:
                decoders[message.topic].decode(message.value)
                packed.append(_pack((b"SET", message.key, message.value)))
            await connection.send_packed_command(b"".join(packed), check_health=False)
            for _ in packed:
                await connection.read_response(disable_decoding=True, timeout=inf)
        if messages:
            finished = clock.add(len(messages))
    clock.print()
    await consumer.stop()
    await redis.aclose()


if __name__ == "__main__":
    uvloop.run(main(share_of_arguments()))
