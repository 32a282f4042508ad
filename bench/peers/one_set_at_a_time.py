"""A peer: the least that a consumer can do. It writes one record after the other with one SET, and awaits each of them.

Like Leadview, it maps the event to a document. Unlike Leadview, it compares no versions and puts no contact into leads.
"""

import asyncio
import json

from redis.asyncio import Redis

from bench.peers.consuming import Share, share_of_arguments, start_consumer


async def main(share: Share) -> None:
    consumer, clock = await start_consumer(share)
    redis = Redis.from_url(share.redis)
    async for message in consumer:
        event = json.loads(message.value)
        data = event["data"]
        document = {name: value for name, value in data.items() if name != "version"}
        kind = message.topic.removeprefix(share.prefix)
        await redis.set(f"{kind}:{data['organization_id']}:{data['id']}", json.dumps(document))
        if clock.add(1):
            break
    clock.print()
    await consumer.stop()
    await redis.aclose()


if __name__ == "__main__":
    asyncio.run(main(share_of_arguments()))
