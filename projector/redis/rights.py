"""Checks which of the Redis commands that a program needs its user may not run.

`deploy/redis-users.conf.example` grants all of them. The check has a connection of its own, because the user of the
API may not run what the projector asks with each of its connections.
"""

from typing import Any

import orjson
from msgspec import Struct

from projector.errors import Unavailable
from projector.reason import RedisReason
from projector.redis.scripts import may
from runtime.redis import errors
from runtime.redis.access import Sentinels, access
from runtime.redis.connection import Connection, connect
from schemas import names
from schemas.settings import RedisSettings

_SECONDS = 3.0

_KEY = names.tagged("0" * 22).decode()
"""The name of an organization that does not exist: the API's user may read only keys of organizations."""
_LIMIT = _KEY + "q"
_USAGE = _KEY + "u"
_LATENCY, _WRITERS = names.LATENCY.decode(), names.WRITERS.decode()

SERVES = (
    *(("get", _KEY), ("hmget", _KEY, "f"), ("exists", _KEY), ("time",), ("evalsha", "0", "1", _KEY)),
    *(("getrange", _KEY, "0", "1"), ("mget", _KEY)),
    *(("script", "load", "return 1"), ("client", "setname", "x"), ("select", "0")),
    *(("set", _LIMIT, "1"), ("incrby", _LIMIT, "1"), ("hset", _LATENCY, "f", "v"), ("expire", _LATENCY, "60")),
    ("get", names.AS_OF.decode()),
    *(("hgetall", _WRITERS), ("hlen", _USAGE), ("hset", _USAGE, "f", "v"), ("expire", _USAGE, "60")),
)
"""The commands that the API needs."""

PROJECTS = (
    *(("get", _KEY), ("getrange", _KEY, "0", "1"), ("set", _KEY, "1"), ("setrange", _KEY, "0", "1"), ("del", _KEY)),
    *(("unlink", _KEY), ("exists", _KEY), ("expire", _KEY, "1"), ("hget", _KEY, "f"), ("hgetall", _KEY)),
    *(
        ("hmget", _KEY, "f"),
        ("hset", _KEY, "f", "v"),
        ("hsetnx", _KEY, "f", "v"),
        ("hincrby", _KEY, "f", "1"),
        ("hexists", _KEY, "f"),
        ("hdel", _KEY, "f"),
        ("hlen", _KEY),
    ),
    *(("hscan", _KEY, "0"), ("hvals", _KEY), ("sadd", _KEY, "m"), ("srem", _KEY, "m"), ("smembers", _KEY)),
    *(("zadd", _KEY, "1", "m"), ("zrem", _KEY, "m"), ("zrange", _KEY, "0", "1"), ("zscore", _KEY, "m")),
    *(("zrangebyscore", _KEY, "0", "1"), ("scan", "0"), ("evalsha", "0", "1", _KEY), ("script", "load", "return 1")),
    *(("mget", _KEY), ("mset", _KEY, "1"), ("zcard", _KEY), ("zcount", _KEY, "0", "1"), ("persist", _KEY)),
    ("pttl", _KEY),
    *(("xadd", _KEY, "*", "f", "v"), ("xrange", _KEY, "-", "+"), ("xrevrange", _KEY, "+", "-")),
    *(("info",), ("ping",), ("time",), ("select", "0"), ("client", "setname", "x"), ("client", "list")),
    ("client", "kill", "id", "1"),
)
"""The commands of Redis that the projector and its commands need."""

CLUSTERED = (("cluster", "slots"), ("asking",))
BEHIND_SENTINELS = (("role",),)
"""The commands that both need in addition, on a cluster or behind Sentinels."""


class Rights(Struct, frozen=True):
    """The user, and the commands that it lacks; `missing` is None if this Redis cannot say it (before 7.0)."""

    user: str
    missing: list[str] | None


async def rights(settings: RedisSettings, needed: tuple[tuple[str, ...], ...]) -> Rights:
    """Log in as the settings say, and ask which of the needed commands are not allowed. Raises Unavailable."""
    found = access(settings)
    needed += CLUSTERED if found.kind == "cluster" else BEHIND_SENTINELS if found.kind == "sentinel" else ()

    async def ask(connection: Connection) -> Any:
        await connection.call((b"SCRIPT", b"LOAD", may.text))
        return await connection.call((*may(commands=orjson.dumps(needed)).words(),))

    user = found.login.user() or "default"
    where = Sentinels(found, _SECONDS, _SECONDS) if found.kind == "sentinel" else found.server(found.hosts[0])
    try:
        connection, allowed = await connect(await where.find(), ask, within=_SECONDS, max_in_flight=1)
        connection.close("the question was answered")
    except errors.NotPermitted as error:
        return Rights(user, [str(error)])
    except errors.Unavailable as error:
        raise Unavailable(RedisReason("redis_failed", str(error))) from error
    finally:
        await where.close()
    if isinstance(allowed, bytes):
        return Rights(user, None)
    return Rights(user, [_name(words) for words, is_allowed in zip(needed, allowed, strict=True) if not is_allowed])


def _name(words: tuple[str, ...]) -> str:
    """Returns a command as a rule of an ACL names it, with the key if only some keys are allowed."""
    name = f"{words[0]}|{words[1]}" if words[0] in ("client", "cluster", "script") else words[0]
    prefix = names.PREFIX.decode()
    return f"{name} (key {prefix}…)" if any(word.startswith(prefix) for word in words) else name
