"""The least that a consumer can do: one record after the other, each with one SET, awaited before the next.

Like Leadview it maps the event to a document; unlike it, it guards no version and puts no contact into leads.
"""

import asyncio
import json

from redis.asyncio import Redis

from bench.peers.consuming import Share, consumer, share


async def main(mine: Share) -> None:
    source, clock = await consumer(mine)
    redis = Redis.from_url(mine.redis)
    async for message in source:
        event = json.loads(message.value)
        data = event["data"]
        document = {name: value for name, value in data.items() if name != "version"}
        kind = message.topic.removeprefix(mine.prefix)
        await redis.set(f"{kind}:{data['organization_id']}:{data['id']}", json.dumps(document))
        if clock.add(1):
            break
    clock.print()
    await source.stop()
    await redis.aclose()


if __name__ == "__main__":
    asyncio.run(main(share()))
