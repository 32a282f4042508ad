"""Where Redis is and how to log in: the address of one server, the Sentinels that name a master, or the slot map of a
cluster. redis-py parses the options of URLs, sets up TLS, and talks to Sentinels and to the nodes of a cluster.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from ssl import SSLContext
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import redis.asyncio
from msgspec import Struct
from redis.asyncio import Sentinel
from redis.asyncio.cluster import ClusterNode, NodesManager
from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisClusterException, RedisError

from runtime.keep_alive import OPTIONS
from runtime.redis.errors import AddressError, Unavailable
from runtime.tls import Tls
from schemas import names, secret_files
from schemas.redis_url import Host, Kind, redis_url
from schemas.settings import RedisSettings

_ASK_SECONDS = 1.0
_TLS_FILES = ("ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile")
_SERVER_OPTIONS = {"host", "port", "db", "username", "password", "connection_class"}


class Login(Struct, frozen=True):
    """User and password of Redis. If they come from files, these are read again for each new connection. redis-py takes
    it as a `credential_provider`.
    """

    settings: RedisSettings
    of_sentinels: bool = False

    def get_credentials(self) -> tuple[str, ...]:
        """Returns the words after AUTH: none, a password, or a user and a password. A user without a password has an
        empty one: without AUTH, Redis would take the program for its default user.
        """
        user, password = self._user_and_password()
        if user is not None:
            return user, password or ""
        return () if password is None else (password,)

    def user(self) -> str | None:
        """Returns the user; None if it is the default one."""
        return self._user_and_password()[0]

    async def get_credentials_async(self) -> tuple[str, ...]:
        """Returns the same. It reads a small file, which takes no longer than a step of the event loop."""
        return self.get_credentials()

    def _user_and_password(self) -> tuple[str | None, str | None]:
        if self.of_sentinels:
            password = secret_files.current(self.settings, "redis_sentinel_password")
            return self.settings.redis_sentinel_username, password
        try:
            user, password = _in_url(secret_files.current(self.settings, "redis_url"))
        except ValueError:  # what the file holds at this moment
            user, password = _in_url(self.settings.redis_url)
        own_user, own_password = self.settings.redis_username, secret_files.current(self.settings, "redis_password")
        return user if own_user is None else own_user, password if own_password is None else own_password


class RedisTls(Tls):
    """TLS as redis-py sets it up with these options."""

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__(map(options.get, _TLS_FILES), self._set_up)
        self.options = options

    def _set_up(self) -> SSLContext:
        try:
            return redis.asyncio.SSLConnection(**self.options).ssl_context.get()
        except (OSError, RedisError, TypeError, ValueError) as error:
            raise AddressError(f"TLS to Redis cannot be set up (LEADVIEW_REDIS_TLS_…): {error}") from error


class Address(Struct, frozen=True):
    """One Redis server."""

    host: str = "127.0.0.1"
    port: int = 6379
    db: int = 0
    login: Login | None = None
    tls: RedisTls | None = None
    must_be_master: bool = False
    """The server must confirm that it is a master: even one that Sentinels name may have been demoted a moment ago."""

    def credentials(self) -> tuple[str, ...]:
        """Returns the words after AUTH, as they are now: none, a password, or a user and a password."""
        return self.login.get_credentials() if self.login else ()

    def ssl_context(self) -> SSLContext | None:
        """Returns what a connection needs for TLS; None without TLS. Raises AddressError."""
        return self.tls.context() if self.tls else None

    async def find(self) -> "Address":
        return self

    async def renew(self) -> None:
        """There is nothing to renew: the name of the host is resolved for each connection."""

    async def close(self) -> None:
        """There is nothing to close."""

    def __repr__(self) -> str:
        return f"{self.host}:{self.port}/{self.db}"  # never the password


class Access(Struct, frozen=True):
    """The way to Redis that the settings describe."""

    kind: Kind
    hosts: tuple[Host, ...]
    """The server, the Sentinels, or some nodes of the cluster."""
    master: str
    """The name by which the Sentinels know the master."""
    db: int
    login: Login
    tls: RedisTls | None
    """For Sentinels as well; None without TLS."""

    def server(self, host: Host) -> Address:
        """Returns the address of a server that holds documents."""
        return Address(host[0], host[1], self.db, self.login, self.tls, self.kind == "sentinel")


def access(settings: RedisSettings) -> Access:
    """Resolve the settings. Raises AddressError."""
    try:
        url = redis_url(settings.redis_url)
        options: dict[str, Any] = {**parse_url(url.server)}
    except ValueError as error:
        raise AddressError(f"LEADVIEW_REDIS_URL is not valid: {error}") from error
    if urlsplit(url.server).path.strip("/") and "db" not in options:  # redis-py would use database 0
        raise AddressError("LEADVIEW_REDIS_URL is not valid: the database is not a number")
    tls = None
    if url.server.startswith("rediss://"):
        files = {
            "ssl_ca_certs": settings.redis_tls_ca_file,
            "ssl_certfile": settings.redis_tls_cert_file,
            "ssl_keyfile": settings.redis_tls_key_file,
        }
        of_url = {name: value for name, value in options.items() if name.startswith("ssl_")}
        tls = RedisTls(of_url | {name: value for name, value in files.items() if value is not None})
    if unusable := options.keys() - _SERVER_OPTIONS - (tls.options if tls else {}).keys():
        raise AddressError(
            f"LEADVIEW_REDIS_URL has options that cannot be used: {', '.join(sorted(unusable))}. "
            "It takes db and, with rediss://, ssl_ options."
        )
    found = Access(url.kind, url.hosts, url.master, options.get("db", 0), Login(settings), tls)
    found.server(url.hosts[0]).ssl_context()  # raises at once if it cannot be set up
    return found


def server_info(settings: RedisSettings) -> dict[str, Any]:
    """Returns what the first server, Sentinel or node of the settings that answers says about itself (`INFO server`).
    It is nothing if none answers at once, or if the user may not ask. Raises AddressError.
    """
    found = access(settings)
    login: Any = Login(settings, of_sentinels=True) if found.kind == "sentinel" else found.login
    options: dict[str, Any] = {
        "socket_timeout": _ASK_SECONDS,
        "socket_connect_timeout": _ASK_SECONDS,
        "retry": redis.retry.Retry(NoBackoff(), 0),
    }
    for host, port in found.hosts:
        with (
            suppress(RedisError, OSError),
            redis.Redis(
                host=host,
                port=port,
                credential_provider=login,
                ssl=found.tls is not None,
                protocol=2,
                driver_info=None,  # a user with the least rights may not set it
                **options,
                **(found.tls.options if found.tls else {}),
            ) as client,
        ):
            info: Any = client.info("server")
            return dict(info)
    return {}


def location(settings: RedisSettings, longest: float, *, first: float = 0.5) -> "Address | Sentinels | SlotMap":
    """Returns where Redis is. It has to be called in an event loop. Raises AddressError.

    A Sentinel or node that is asked has `first` seconds to answer, then the next one is asked. If none of them has said
    where Redis is, each has twice as long at the next attempt, and at most `longest` seconds: TLS is slow to a distant
    region, but one that does not answer must not delay a failover.
    """
    found = access(settings)
    match found.kind:
        case "cluster":
            return SlotMap(found, longest, first)
        case "sentinel":
            return Sentinels(found, longest, first)
        case "server":
            return found.server(found.hosts[0])


def _in_url(text: str) -> tuple[str | None, str | None]:
    """Returns the user and the password in a URL of Redis, as redis-py finds them. Raises ValueError."""
    parts = urlsplit(redis_url(text).server)
    options = parse_qs(parts.query)
    user = unquote(parts.username) if parts.username else options.get("username", [None])[0]
    password = unquote(parts.password) if parts.password else options.get("password", [None])[0]
    return user, password


class _Asked(ABC):
    """Servers that are asked where Redis is, through redis-py. One that does not answer has more time next time."""

    def __init__(self, access_: Access, longest: float, first: float) -> None:
        self._access = access_
        self._longest = longest
        self._timeout = min(first, longest)
        self._files = self._tls_files()
        self._client = self._opened()

    @abstractmethod
    async def close(self) -> None:
        """Close all connections."""

    @abstractmethod
    def _opened(self) -> Any:
        """Returns redis-py's object, which is not connected yet."""

    async def renew(self) -> None:
        """Ask over new connections from now on: those that exist may lead to servers that know nothing new."""
        await self.close()
        self._files = self._tls_files()
        self._client = self._opened()

    async def _renew_tls(self) -> None:
        """Ask over new connections if a file of TLS has changed: redis-py's read it once, for all their attempts."""
        if self._files != self._tls_files():
            await self.renew()

    def _tls_files(self) -> object:
        return self._access.tls.files() if self._access.tls else None

    async def _failed(self) -> None:
        if self._timeout < self._longest:
            self._timeout = min(2 * self._timeout, self._longest)
            await self.renew()

    def _options(self, login: Login) -> dict[str, Any]:
        """Returns redis-py's options for a connection to one of them."""
        return {
            "socket_timeout": self._timeout,
            "socket_connect_timeout": self._timeout,
            "socket_keepalive": True,
            "socket_keepalive_options": OPTIONS,
            "retry": Retry(NoBackoff(), 0),
            "protocol": 2,
            "credential_provider": login,
            **(self._access.tls.options if self._access.tls else {}),
        }


class Sentinels(_Asked):
    """Sentinels, which know the present master."""

    async def find(self) -> Address:
        """Returns the address of the master. Raises Unavailable."""
        await self._renew_tls()
        try:
            with _cancelled_if_told():
                return self._access.server(await self._client.discover_master(self._access.master))
        except (OSError, RedisError) as error:
            await self._failed()
            # redis-py adds a list of connections to the message.
            raise Unavailable(str(error).partition(" : <")[0]) from error
        except RuntimeError as error:
            # For a connection that was reset while idle, asyncio raises an error of connections, and uvloop this one.
            if "the handler is closed" not in str(error):
                raise
            raise Unavailable("the connection to a Sentinel was reset") from error

    async def close(self) -> None:
        await self._client.aclose()

    def _opened(self) -> Sentinel:
        options = self._options(Login(self._access.login.settings, of_sentinels=True))
        options["ssl"] = self._access.tls is not None
        return Sentinel(list(self._access.hosts), sentinel_kwargs=options)  # type: ignore[no-untyped-call]

    def __repr__(self) -> str:
        return f"the master {self._access.master!r} of the Sentinels"


class SlotMap(_Asked):
    """The slot map of a cluster: which primary serves which slot."""

    async def read(self, failed: Host | None = None) -> list[Host | None]:
        """Returns the primary of each slot, or None for a slot without one. Raises Unavailable.

        The node at `failed` is asked last.
        """
        await self._renew_tls()
        # The hosts of the URL are asked last, unless they are asked anyway: redis-py makes nodes of them that it never
        # closes.
        others = [host for host in self._access.hosts if ClusterNode(*host).name not in self._client.startup_nodes]
        try:
            with _cancelled_if_told():
                await self._client.initialize(others, failed and f"{failed[0]}:{failed[1]}")
        except (OSError, RedisError, RedisClusterException) as error:
            await self._failed()
            raise Unavailable(str(error)) from error
        owners: list[Host | None] = [None] * names.SLOTS
        for slot, nodes in self._client.slots_cache.items():
            owners[slot] = (nodes[0].host, int(nodes[0].port))
        return owners

    def address(self, host: Host) -> Address:
        """Returns the address of a primary."""
        return self._access.server(host)

    async def close(self) -> None:
        await asyncio.gather(self._client.aclose(), self._client.aclose("startup_nodes"))

    def _opened(self) -> NodesManager:
        options = self._options(self._access.login)
        if self._access.tls is not None:
            options["connection_class"] = redis.asyncio.SSLConnection
        seeds = [ClusterNode(host, port, **options) for host, port in self._access.hosts]
        return NodesManager(seeds, require_full_coverage=False, connection_kwargs=options)


@contextmanager
def _cancelled_if_told() -> Iterator[None]:
    """Raises CancelledError at the end of the block if the task was cancelled inside.

    redis-py sends with `asyncio.wait_for`, which swallows a cancellation that comes with the reply (Python 3.11). The
    task would never end, nor would the worker.
    """
    try:
        yield
    finally:
        task = asyncio.current_task()
        if task and task.cancelling():
            raise asyncio.CancelledError
