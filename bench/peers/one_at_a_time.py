"""What most teams write: one record after the other, each written before the next is looked at.

Like Leadview it maps the event to a document; unlike it, it guards no version and puts no contact into leads.
`python -m bench.peers.one_at_a_time <kafka> <redis> <records>`.
"""

import asyncio
import json
import sys

from redis.asyncio import Redis

from bench.peers.consuming import Clock, consumer


async def main(bootstrap_servers: str, redis_url: str, count: int) -> None:
    source = await consumer(bootstrap_servers)
    redis = Redis.from_url(redis_url)
    clock = Clock(count)
    async for message in source:
        event = json.loads(message.value)
        data = event["data"]
        document = {name: value for name, value in data.items() if name != "version"}
        await redis.set(f"{message.topic}:{data['organization_id']}:{data['id']}", json.dumps(document))
        if clock.add(1):
            break
    clock.print()
    await source.stop()
    await redis.aclose()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
