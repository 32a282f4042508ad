"""A peer: what most teams would write. It applies one record after the other and awaits each write, until Redis holds
the same documents.

A lead shows its contact, also if the contact changes or arrives later. Unlike Leadview, it compares no versions and
stores no positions: after a crash or a late record, documents are wrong.
"""

import asyncio
import sys
from typing import Any

import orjson
from redis.asyncio import Redis

from bench.peers.consuming import start_consumer

_SUMMARY = ("id", "first_name", "last_name", "email", "phone")


async def main(kafka: str, redis_url: str, prefix: str, partitions: str) -> None:
    consumer, clock = await start_consumer(kafka, prefix, partitions)
    redis = Redis.from_url(redis_url, decode_responses=True)
    async for message in consumer:
        data = orjson.loads(message.value)["data"]
        await (_lead if message.topic.endswith("leads") else _contact)(redis, data)
        if clock.add(1):
            break
    clock.print()
    await consumer.stop()
    await redis.aclose()


async def _lead(redis: Redis, data: dict[str, Any]) -> None:
    organization = data["organization_id"]
    contact = await redis.get(f"contact:{organization}:{data['contact_id']}")
    document = _document(data) | {"contact": _summary(orjson.loads(contact)) if contact else None}
    await redis.set(f"lead:{organization}:{data['id']}", orjson.dumps(document))
    await redis.sadd(f"leads-of:{organization}:{data['contact_id']}", data["id"])


async def _contact(redis: Redis, data: dict[str, Any]) -> None:
    organization = data["organization_id"]
    await redis.set(f"contact:{organization}:{data['id']}", orjson.dumps(_document(data)))
    for lead_id in await redis.smembers(f"leads-of:{organization}:{data['id']}"):
        name = f"lead:{organization}:{lead_id!s}"
        lead = orjson.loads(await redis.get(name) or "{}")
        await redis.set(name, orjson.dumps(lead | {"contact": _summary(data)}))


def _document(data: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in data.items() if name != "version"}


def _summary(contact: dict[str, Any]) -> dict[str, Any]:
    return {name: contact[name] for name in _SUMMARY}


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
