"""Where Redis is and how to log in: the address of one server, the Sentinels that name a master, or the slot map of a
cluster. redis-py parses the options of URLs, sets up TLS, and talks to Sentinels and to the nodes of a cluster.
"""

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from ssl import SSLContext
from typing import Any
from urllib.parse import urlsplit

import redis.asyncio
from msgspec import Struct
from msgspec.structs import replace
from redis.asyncio import Sentinel
from redis.asyncio.cluster import ClusterNode, NodesManager
from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisClusterException, RedisError

from api.errors import AddressError, Unavailable
from schemas import names
from schemas.redis_access import Login, RedisAccess, redis_access, was_reset
from schemas.redis_url import Host
from schemas.settings import ApiSettings, RedisSettings

_USER_OPTIONS = ("username", "password", "credential_provider")
_SERVER_OPTIONS = {"host", "port", "db", "username", "password"}
_FIRST_TIMEOUT = 0.5
"""Seconds that each Sentinel or cluster node has to say where Redis is. Then the next one is asked. If none of them has
said it, each has twice as long at the next attempt, up to the timeout of a request: TLS takes long in a region that is
far away, but one that stands still must not hold up a failover.
"""


class Address(Struct, frozen=True):
    """One Redis server."""

    host: str = "127.0.0.1"
    port: int = 6379
    db: int = 0
    username: str | None = None
    password: str | None = None
    login: Login | None = None
    """User and password from files, in place of `username` and `password`."""
    tls: SSLContext | None = None
    must_be_master: bool = False
    """The server must confirm that it is a master: Sentinels may still name one that was demoted a moment ago."""

    def credentials(self) -> tuple[str, ...]:
        """Returns the words after AUTH, as they are now: none, a password, or a user and a password."""
        if self.login is not None:
            return self.login.get_credentials()
        if self.password is None:
            return ()
        return (self.password,) if self.username is None else (self.username, self.password)

    async def find(self) -> "Address":
        return self

    async def close(self) -> None:
        """There is nothing to close."""

    def __repr__(self) -> str:
        return f"{self.host}:{self.port}/{self.db}"  # never the password


class Sentinels:
    """Sentinels, which know the present master."""

    def __init__(
        self, master: str, hosts: Iterable[Host], server: Address, options: dict[str, Any], timeout: float
    ) -> None:
        """`server` says how to log in to the master, `options` how redis-py logs in to the Sentinels. `timeout` is the
        longest time, in seconds, that one of them has to answer.
        """
        self._master = master
        self._hosts = list(hosts)
        self._server = server
        self._options = options
        self._longest = timeout
        self._timeout = _FIRST_TIMEOUT
        self._sentinel = self._opened()

    async def find(self) -> Address:
        """Returns the address of the master. Raises Unavailable."""
        try:
            with _cancelled_if_told():
                host, port = await self._sentinel.discover_master(self._master)
        except (OSError, RedisError) as error:
            if self._timeout < self._longest:
                await self.close()
                self._timeout = min(2 * self._timeout, self._longest)
                self._sentinel = self._opened()
            # redis-py adds a list of connections to the message.
            raise Unavailable(str(error).partition(" : <")[0]) from error
        except RuntimeError as error:
            if not was_reset(error):
                raise
            raise Unavailable("the connection to a Sentinel was reset") from error
        return replace(self._server, host=host, port=port)

    async def close(self) -> None:
        await self._sentinel.aclose()

    def _opened(self) -> Sentinel:
        options = self._options | _timeouts(self._timeout)
        return Sentinel(self._hosts, sentinel_kwargs=options)  # type: ignore[no-untyped-call]

    def __repr__(self) -> str:
        return f"the master {self._master!r} of the Sentinels"


class ClusterMap:
    """The slot map of a cluster: which primary serves which slot."""

    def __init__(self, hosts: Iterable[Host], server: Address, options: dict[str, Any], timeout: float) -> None:
        """`server` says how to log in to a primary, `options` says the same to redis-py. `timeout` is the longest time,
        in seconds, that a node has to answer.
        """
        self._hosts = list(hosts)
        self._server = server
        self._options = options
        self._longest = timeout
        self._timeout = _FIRST_TIMEOUT
        self._nodes = self._opened()

    async def read(self) -> list[Host | None]:
        """Returns the primary of each slot, or None for a slot without one. Raises Unavailable."""
        # The hosts of the URL are asked last, unless they are asked anyway: redis-py makes nodes of them that it never
        # closes.
        others = [host for host in self._hosts if ClusterNode(*host).name not in self._nodes.startup_nodes]
        try:
            with _cancelled_if_told():
                await self._nodes.initialize(others)
        except (OSError, RedisError, RedisClusterException) as error:
            if self._timeout < self._longest:
                await self.close()
                self._timeout = min(2 * self._timeout, self._longest)
                self._nodes = self._opened()
            raise Unavailable(str(error)) from error
        owners: list[Host | None] = [None] * names.SLOTS
        for slot, nodes in self._nodes.slots_cache.items():
            owners[slot] = (nodes[0].host, int(nodes[0].port))
        return owners

    def address(self, host: Host) -> Address:
        """Returns the address of a primary."""
        return replace(self._server, host=host[0], port=host[1])

    async def close(self) -> None:
        await asyncio.gather(self._nodes.aclose(), self._nodes.aclose("startup_nodes"))

    def _opened(self) -> NodesManager:
        options = self._options | _timeouts(self._timeout)
        seeds = [ClusterNode(host, port, **options) for host, port in self._hosts]
        return NodesManager(seeds, require_full_coverage=False, connection_kwargs=options)


@contextmanager
def _cancelled_if_told() -> Iterator[None]:
    """Raises CancelledError at the end of the block if the task was cancelled inside.

    redis-py sends with `asyncio.wait_for`, which swallows a cancellation that comes with the reply (Python 3.11). The
    task would go on for ever, and so would the worker.
    """
    try:
        yield
    finally:
        task = asyncio.current_task()
        if task and task.cancelling():
            raise asyncio.CancelledError


def location(settings: ApiSettings) -> Address | Sentinels | ClusterMap:
    """Returns the location of Redis from the settings. It has to be called in an event loop. Raises AddressError."""
    access, options = _read(settings)
    server = _address(access, options)
    discovery = _discovery_options(options)
    timeout = settings.api_redis_timeout
    match access.kind:
        case "cluster":
            user = {name: options[name] for name in options if name in (*_USER_OPTIONS, "connection_class")}
            return ClusterMap(access.hosts, server, discovery | user, timeout)
        case "sentinel":
            user = access.sentinel_user | {"ssl": access.encrypted}
            return Sentinels(
                access.master, access.hosts, replace(server, must_be_master=True), discovery | user, timeout
            )
        case _:
            return server


def address(settings: RedisSettings) -> Address:
    """Returns the address that the settings name, of several hosts the first. Raises AddressError."""
    return _address(*_read(settings))


def _read(settings: RedisSettings) -> tuple[RedisAccess, dict[str, Any]]:
    """Returns the settings together with redis-py's options for a connection to a Redis server."""
    try:
        access = redis_access(settings)
        options: dict[str, Any] = {**parse_url(access.server)}
    except ValueError as error:
        raise AddressError(f"LEADVIEW_REDIS_URL is not valid: {error}") from error
    if urlsplit(access.server).path.strip("/") and "db" not in options:  # redis-py would use database 0
        raise AddressError("LEADVIEW_REDIS_URL is not valid: the database is not a number")
    return access, access.over(options)


def _discovery_options(options: dict[str, Any]) -> dict[str, Any]:
    """Returns redis-py's options for connections to Sentinels and cluster nodes that are asked for addresses, without
    a user and without timeouts.
    """
    return {"retry": Retry(NoBackoff(), 0), "protocol": 2} | _tls_options(options)


def _timeouts(seconds: float) -> dict[str, Any]:
    return {"socket_timeout": seconds, "socket_connect_timeout": seconds}


def _tls_options(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name.startswith("ssl_")}


def _address(access: RedisAccess, options: dict[str, Any]) -> Address:
    tls = _tls_options(options)
    login = access.options.get("credential_provider")
    others = {"connection_class", *tls} | ({"credential_provider"} if login else set())
    server = {name: value for name, value in options.items() if name not in others}
    unusable = server.keys() - _SERVER_OPTIONS or (set() if access.encrypted else tls.keys())
    if unusable:
        raise AddressError(
            f"LEADVIEW_REDIS_URL has options that cannot be used: {', '.join(sorted(unusable))}. "
            "It takes db and, with rediss://, ssl_ options."
        )
    return Address(**server, login=login, tls=_tls(tls) if access.encrypted else None)


def _tls(options: dict[str, Any]) -> SSLContext:
    try:
        return redis.asyncio.SSLConnection(**options).ssl_context.get()
    except (OSError, RedisError, TypeError, ValueError) as error:
        raise AddressError(f"TLS to Redis cannot be set up (LEADVIEW_REDIS_TLS_…): {error}") from error
