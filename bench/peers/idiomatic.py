"""A peer: what most teams would write, with Starlette and redis-py, and with a call to Redis for each step.

    1  GET the key's record          401, 403
    2  INCR and EXPIRE both counters 429 (fixed windows)
    3  GET the document              404, 304

`python -m bench.peers.idiomatic <port> <redis port>`. `bench/servers.py` copies Leadview's documents to
its keys in Redis. It has only the error handling that costs time in requests without errors.
"""

import hashlib
import sys
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import orjson
from redis.asyncio import Redis
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from bench.peers.limits import serve


async def authenticate(redis: Redis, request: Request) -> dict[str, Any]:
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not key:
        raise HTTPException(401)
    record = await redis.get("idiomatic:key:" + hashlib.sha256(key.encode()).hexdigest())
    if record is None:
        raise HTTPException(401)
    caller: dict[str, Any] = orjson.loads(record)
    if not caller["api_access"]:
        raise HTTPException(403)
    return caller


async def check_limits(redis: Redis, caller: dict[str, Any]) -> dict[str, str]:
    quota, window = caller["quota"], caller["window"]
    now = int(time.time())
    number = now // window
    names = [f"idiomatic:limit:{owner}:{number}" for owner in (caller["key_id"], caller["organization_id"])]
    async with redis.pipeline(transaction=False) as pipeline:
        for name in names:
            pipeline.incr(name)
            pipeline.expire(name, window)
        by_key, _, by_organization, _ = await pipeline.execute()
    remaining = quota - max(by_key, by_organization)
    if remaining < 0:
        raise HTTPException(429)
    return {
        "X-RateLimit-Limit": str(quota),
        "X-RateLimit-Remaining": str(remaining),
        "X-RateLimit-Reset": str((number + 1) * window),
    }


async def read(request: Request) -> Response:
    redis: Redis = request.state.redis
    caller = await authenticate(redis, request)
    headers = await check_limits(redis, caller)
    try:
        record_id = str(uuid.UUID(request.path_params["id"]))
    except ValueError:
        raise HTTPException(400) from None
    name = f"idiomatic:{caller['organization_id']}:{request.path_params['kind']}:{record_id}"
    document = cast(bytes | None, await redis.get(name))
    if document is None:
        raise HTTPException(404)
    headers["ETag"] = etag = f'W/"{hashlib.blake2b(document, digest_size=12).hexdigest()}"'
    headers["Cache-Control"] = "private, no-cache"
    headers["X-Request-Id"] = request.headers.get("x-request-id") or uuid.uuid4().hex
    if request.headers.get("if-none-match") == etag:
        return Response(status_code=304, headers=headers)
    return Response(document, media_type="application/json", headers=headers)


@asynccontextmanager
async def lifespan(_: Starlette) -> AsyncIterator[dict[str, Redis]]:
    # More than the 100 connections of redis-py's default: a request that finds no free connection would fail.
    async with Redis(port=int(sys.argv[2]), max_connections=1024) as redis:
        yield {"redis": redis}


app = Starlette(routes=[Route("/api/v1/ext/{kind}/{id}", read)], lifespan=lifespan)

if __name__ == "__main__":
    serve(app, sys.argv[1])
