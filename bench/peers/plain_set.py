"""The limit: batches from Kafka, decoded, and a plain SET of as many bytes for each record, in one pipeline a batch.

It maps nothing, compares no versions, keeps no position.
"""

from collections.abc import Callable
from math import inf
from typing import Any

import hiredis
import msgspec
import uvloop
from redis.asyncio import Redis

from bench.peers.consuming import Share, consumer, share
from schemas import events

_decoders: dict[str, msgspec.json.Decoder[Any]] = {
    "leads": msgspec.json.Decoder(events.LeadChanged),
    "contacts": msgspec.json.Decoder(events.ContactChanged),
}


_pack: Callable[[tuple[bytes, ...]], bytes] = hiredis.pack_command  # type: ignore[assignment]  # says a tuple of one


async def main(mine: Share) -> None:
    source, clock = await consumer(mine)
    decoders = {mine.prefix + kind: decoder for kind, decoder in _decoders.items()}
    redis = Redis.from_url(mine.redis, protocol=2)
    connection = await redis.connection_pool.get_connection()  # type: ignore[no-untyped-call]
    finished = False
    while not finished:
        polled = await source.getmany(timeout_ms=500, max_records=2000)
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
    await source.stop()
    await redis.aclose()


if __name__ == "__main__":
    uvloop.run(main(share()))
