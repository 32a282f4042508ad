"""What most teams write: one record after the other, each write awaited, until the same documents stand in Redis.

A lead shows its contact, and follows it when the contact changes or comes later. Unlike Leadview it guards no version
and stores no position, so that a crash or a late record leaves wrong documents.
"""

import asyncio
import json
from typing import Any

from redis.asyncio import Redis

from bench.peers.consuming import Share, consumer, share

_SUMMARY = ("id", "first_name", "last_name", "email", "phone")


async def main(mine: Share) -> None:
    source, clock = await consumer(mine)
    redis = Redis.from_url(mine.redis, decode_responses=True)
    async for message in source:
        data = json.loads(message.value)["data"]
        await (_lead if message.topic.endswith("leads") else _contact)(redis, data)
        if clock.add(1):
            break
    clock.print()
    await source.stop()
    await redis.aclose()


async def _lead(redis: Redis, data: dict[str, Any]) -> None:
    organization = data["organization_id"]
    contact = await redis.get(f"contact:{organization}:{data['contact_id']}")
    document = _document(data) | {"contact": _summary(json.loads(contact)) if contact else None}
    await redis.set(f"lead:{organization}:{data['id']}", json.dumps(document))
    await redis.sadd(f"leads-of:{organization}:{data['contact_id']}", data["id"])


async def _contact(redis: Redis, data: dict[str, Any]) -> None:
    organization = data["organization_id"]
    await redis.set(f"contact:{organization}:{data['id']}", json.dumps(_document(data)))
    for lead_id in await redis.smembers(f"leads-of:{organization}:{data['id']}"):
        name = f"lead:{organization}:{lead_id!s}"
        lead = json.loads(await redis.get(name) or "{}")
        await redis.set(name, json.dumps(lead | {"contact": _summary(data)}))


def _document(data: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in data.items() if name != "version"}


def _summary(contact: dict[str, Any]) -> dict[str, Any]:
    return {name: contact[name] for name in _SUMMARY}


if __name__ == "__main__":
    asyncio.run(main(share()))
