"""Where Redis is and how to get in, from the settings: one address, that of the master that Sentinels name, or those of
a cluster's primaries. URLs, TLS options, Sentinels and the map of a cluster are read by redis-py.
"""

import asyncio
from collections.abc import Iterable
from ssl import SSLContext
from typing import Any
from urllib.parse import urlsplit

import redis.asyncio
from msgspec import Struct
from msgspec.structs import replace
from redis.asyncio import Sentinel
from redis.asyncio.cluster import ClusterNode, NodesManager
from redis.asyncio.connection import SSLConnection, parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisClusterException, RedisError

from api.errors import AddressError, Unavailable
from schemas import names
from schemas.redis_url import Host, RedisUrl, redis_url
from schemas.settings import RedisSettings

_TLS = "ssl_"
_TIMEOUT_SECONDS = 0.5
"""For each Sentinel or node that is asked where Redis is: others are asked after it."""


class Address(Struct, frozen=True):
    """One Redis server."""

    host: str = "127.0.0.1"
    port: int = 6379
    db: int = 0
    username: str | None = None
    password: str | None = None
    tls: SSLContext | None = None
    must_be_master: bool = False
    """Sentinels may name a server that was demoted a moment ago: it must say itself that it is none."""

    async def find(self) -> "Address":
        return self

    async def close(self) -> None:
        """There is nothing to close."""

    def __repr__(self) -> str:
        return f"{self.host}:{self.port}/{self.db}"  # never the password


class Sentinels:
    """Knows who is the master now."""

    def __init__(self, master: str, hosts: Iterable[Host], server: Address, options: dict[str, Any]) -> None:
        """`server` says how to get in, `options` how to get into the Sentinels, for redis-py."""
        self._master = master
        self._server = server
        self._sentinel = Sentinel(list(hosts), sentinel_kwargs=options)  # type: ignore[no-untyped-call]

    async def find(self) -> Address:
        """The master's address. Raises Unavailable."""
        try:
            host, port = await self._sentinel.discover_master(self._master)
        except (OSError, RedisError) as error:
            # redis-py shows the Sentinels' connections behind it.
            raise Unavailable(str(error).partition(" : <")[0]) from error
        return replace(self._server, host=host, port=port)

    async def close(self) -> None:
        await self._sentinel.aclose()

    def __repr__(self) -> str:
        return f"the master {self._master!r} of the Sentinels"


class ClusterMap:
    """Knows which primary serves which slot."""

    def __init__(self, hosts: Iterable[Host], server: Address, options: dict[str, Any]) -> None:
        """`server` says how to get in, `options` says it to redis-py."""
        self._hosts = list(hosts)
        self._server = server
        seeds = [ClusterNode(host, port, **options) for host, port in self._hosts]
        self._nodes = NodesManager(seeds, require_full_coverage=False, connection_kwargs=options)

    async def read(self) -> list[Host | None]:
        """The primary of each slot, None where there is none. Raises Unavailable."""
        try:
            await self._nodes.initialize(self._hosts)
        except (OSError, RedisError, RedisClusterException) as error:
            raise Unavailable(str(error)) from error
        owners: list[Host | None] = [None] * names.SLOTS
        for slot, nodes in self._nodes.slots_cache.items():
            owners[slot] = (nodes[0].host, int(nodes[0].port))
        return owners

    def address(self, host: Host) -> Address:
        """A primary's address."""
        return replace(self._server, host=host[0], port=host[1])

    async def close(self) -> None:
        await asyncio.gather(self._nodes.aclose(), self._nodes.aclose("startup_nodes"))


def place(settings: RedisSettings) -> Address | Sentinels | ClusterMap:
    """Where Redis is, as the settings say it. To be called in an event loop. Raises AddressError."""
    url = redis_url(settings.redis_url)
    server = address(settings)
    match url.kind:
        case "cluster":
            user = {"username": server.username, "password": server.password}
            return ClusterMap(url.hosts, server, _options_of_asking(settings, url, server, user))
        case "sentinel":
            user = {"username": settings.redis_sentinel_username, "password": settings.redis_sentinel_password}
            options = _options_of_asking(settings, url, server, user)
            options["ssl"] = options.pop("connection_class", None) is SSLConnection
            return Sentinels(url.master, url.hosts, replace(server, must_be_master=True), options)
        case _:
            return server


def address(settings: RedisSettings) -> Address:
    """The address that the settings name; of several, the first. Raises AddressError."""
    try:
        options = _options(redis_url(settings.redis_url).server)
    except ValueError as error:
        raise AddressError(f"LEADVIEW_REDIS_URL is not valid: {error}") from error
    encrypted = options.pop("connection_class", None) is SSLConnection
    tls = {name: options.pop(name) for name in list(options) if name.startswith(_TLS)}
    options |= _given(username=settings.redis_username, password=settings.redis_password)
    unknown = options.keys() - set(Address.__struct_fields__)
    if unknown or (tls and not encrypted):
        raise AddressError(
            f"LEADVIEW_REDIS_URL has options that cannot be used: {', '.join(sorted(unknown or tls))}. "
            "It takes db and, with rediss://, ssl_ options."
        )
    return Address(**options, tls=_tls(settings, tls) if encrypted else None)


def _options_of_asking(
    settings: RedisSettings, url: RedisUrl, server: Address, user: dict[str, str | None]
) -> dict[str, Any]:
    """How redis-py gets into the servers that know where Redis is."""
    options: dict[str, Any] = {
        **user,
        "socket_timeout": _TIMEOUT_SECONDS,
        "socket_connect_timeout": _TIMEOUT_SECONDS,
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,
    }
    if server.tls is None:
        return options
    of_url = {name: value for name, value in parse_url(url.server).items() if name.startswith(_TLS)}
    return options | of_url | _tls_files(settings) | {"connection_class": SSLConnection}


def _options(url: str) -> dict[str, Any]:
    try:
        options: dict[str, Any] = {**parse_url(url)}
    except ValueError as error:
        raise AddressError(f"LEADVIEW_REDIS_URL is not valid: {error}") from error
    if urlsplit(url).path.strip("/") and "db" not in options:  # redis-py would take database 0
        raise AddressError("LEADVIEW_REDIS_URL is not valid: a database is a number")
    return options


def _tls(settings: RedisSettings, options: dict[str, Any]) -> SSLContext:
    options |= _tls_files(settings)
    try:
        return redis.asyncio.SSLConnection(**options).ssl_context.get()
    except (OSError, RedisError, TypeError, ValueError) as error:
        raise AddressError(f"TLS to Redis cannot be set up (LEADVIEW_REDIS_TLS_…): {error}") from error


def _tls_files(settings: RedisSettings) -> dict[str, str]:
    return _given(
        ssl_ca_certs=settings.redis_tls_ca_file,
        ssl_certfile=settings.redis_tls_cert_file,
        ssl_keyfile=settings.redis_tls_key_file,
    )


def _given(**options: str | None) -> dict[str, str]:
    return {name: value for name, value in options.items() if value is not None}
