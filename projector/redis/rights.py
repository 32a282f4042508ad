"""Which commands of Redis each program needs, and which of them its user may not run.

`deploy/redis-users.conf.example` grants these. The check uses a plain connection, because the user of the API may not
run what the projector asks with each of its connections.
"""

from typing import Any

import msgspec
from msgspec import Struct
from redis.asyncio import Redis, Sentinel
from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoPermissionError

from projector.errors import Unavailable
from projector.redis.scripts import may
from projector.redis.servers import ERRORS
from schemas import names
from schemas.redis_access import RedisAccess, redis_access
from schemas.settings import RedisSettings

_SECONDS = 3.0

_KEY = names.tagged("0" * 22).decode()
"""The name of an organization that nobody has: the API's user may read only what belongs to one."""
_LIMIT = _KEY + "q"
_USAGE = _KEY + "u"
_LATENCY, _WRITERS = names.LATENCY.decode(), names.WRITERS.decode()

SERVES = (
    *(("get", _KEY), ("hmget", _KEY, "f"), ("exists", _KEY), ("time",), ("ping",), ("evalsha", "0", "1", _KEY)),
    *(("getrange", _KEY, "0", "1"), ("mget", _KEY)),
    *(("script", "load", "return 1"), ("client", "setname", "x"), ("select", "0")),
    *(("set", _LIMIT, "1"), ("incrby", _LIMIT, "1"), ("hset", _LATENCY, "f", "v"), ("expire", _LATENCY, "60")),
    *(("hgetall", _WRITERS), ("hlen", _USAGE), ("hset", _USAGE, "f", "v"), ("expire", _USAGE, "60")),
)
"""What the API needs."""

PROJECTS = (
    *(("get", _KEY), ("getrange", _KEY, "0", "1"), ("set", _KEY, "1"), ("setrange", _KEY, "0", "1"), ("del", _KEY)),
    *(("unlink", _KEY), ("exists", _KEY), ("expire", _KEY, "1"), ("hget", _KEY, "f"), ("hgetall", _KEY)),
    *(
        ("hmget", _KEY, "f"),
        ("hset", _KEY, "f", "v"),
        ("hsetnx", _KEY, "f", "v"),
        ("hdel", _KEY, "f"),
        ("hlen", _KEY),
        ("hexists", _KEY, "f"),
    ),
    *(("hscan", _KEY, "0"), ("hvals", _KEY), ("sadd", _KEY, "m"), ("srem", _KEY, "m"), ("smembers", _KEY)),
    *(("zadd", _KEY, "1", "m"), ("zrem", _KEY, "m"), ("zrange", _KEY, "0", "1"), ("zscore", _KEY, "m")),
    *(("zrangebyscore", _KEY, "0", "1"), ("scan", "0"), ("evalsha", "0", "1", _KEY), ("script", "load", "return 1")),
    *(("mget", _KEY), ("mset", _KEY, "1"), ("zcard", _KEY), ("zcount", _KEY, "0", "1")),
    *(("info",), ("ping",), ("time",), ("select", "0"), ("client", "setname", "x"), ("client", "list")),
    ("client", "kill", "id", "1"),
)
"""What the projector and its commands need."""

CLUSTERED = (("cluster", "slots"), ("asking",))
BEHIND_SENTINELS = (("role",),)
"""What both need beyond that."""


class Rights(Struct, frozen=True):
    """The user, and the commands that it lacks; `missing` is None if this Redis cannot say it (before 7.0)."""

    user: str
    missing: list[str] | None


async def rights(settings: RedisSettings, needed: tuple[tuple[str, ...], ...]) -> Rights:
    """Log in as the settings say, and ask which of the needed commands are not allowed. Raises Unavailable."""
    access = redis_access(settings)
    needed += CLUSTERED if access.kind == "cluster" else BEHIND_SENTINELS if access.kind == "sentinel" else ()
    options = access.over({**parse_url(access.server)})
    login = options.get("credential_provider")
    user = (login.user() if login else options.get("username")) or "default"
    try:
        client = await _client(access, options)
        try:
            await client.script_load(may.text)
            found = await client.execute_command(*may(commands=msgspec.json.encode(needed)).words())
        finally:
            await client.aclose()
    except NoPermissionError as error:
        return Rights(user, [str(error)])
    except ERRORS as error:
        raise Unavailable(f"Redis: {str(error).partition(' : <')[0] or type(error).__name__}") from error
    if isinstance(found, bytes):
        return Rights(user, None)
    return Rights(user, [_name(words) for words, allowed in zip(needed, found, strict=True) if not allowed])


async def _client(access: RedisAccess, options: dict[str, Any]) -> Any:
    """Returns a client of the server, of the master, or of one node of the cluster."""
    limits: dict[str, Any] = {
        "protocol": 2,
        "socket_timeout": _SECONDS,
        "socket_connect_timeout": _SECONDS,
        "retry": Retry(NoBackoff(), 0),
    }
    if access.kind == "sentinel":
        tls = {name: value for name, value in options.items() if name.startswith("ssl_")}
        known: dict[str, Any] = {**access.sentinel_user, "ssl": access.encrypted, **tls, **limits}
        sentinel = Sentinel(list(access.hosts), sentinel_kwargs=known)  # type: ignore[no-untyped-call]
        try:
            host, port = await sentinel.discover_master(access.master)
        finally:
            await sentinel.aclose()
    else:
        host, port = access.hosts[0]
    other = {name: value for name, value in options.items() if name not in ("connection_class", "host", "port")}
    return Redis(host=host, port=int(port), ssl=access.encrypted, **other, **limits)


def _name(words: tuple[str, ...]) -> str:
    """Returns a command as a rule of an ACL names it, with the key if only some keys are allowed."""
    name = f"{words[0]}|{words[1]}" if words[0] in ("client", "cluster", "script") else words[0]
    prefix = names.PREFIX.decode()
    return f"{name} (key {prefix}…)" if any(word.startswith(prefix) for word in words) else name
