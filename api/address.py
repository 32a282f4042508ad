"""Where Redis is and how to get in, from the settings. URL and TLS options are read by redis-py."""

from ssl import SSLContext
from typing import Any
from urllib.parse import urlsplit

import redis.asyncio
from msgspec import Struct
from redis.asyncio.connection import SSLConnection, parse_url
from redis.exceptions import RedisError

from api.errors import AddressError
from schemas.settings import RedisSettings

_TLS = "ssl_"


class Address(Struct, frozen=True):
    """One Redis server."""

    host: str = "127.0.0.1"
    port: int = 6379
    db: int = 0
    username: str | None = None
    password: str | None = None
    tls: SSLContext | None = None

    def __repr__(self) -> str:
        return f"{self.host}:{self.port}/{self.db}"  # never the password


def address(settings: RedisSettings) -> Address:
    """The address that the settings name. Raises AddressError."""
    options = _options(settings.redis_url)
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


def _options(url: str) -> dict[str, Any]:
    try:
        options: dict[str, Any] = {**parse_url(url)}
    except ValueError as error:
        raise AddressError(f"LEADVIEW_REDIS_URL is not valid: {error}") from error
    if urlsplit(url).path.strip("/") and "db" not in options:  # redis-py would take database 0
        raise AddressError("LEADVIEW_REDIS_URL is not valid: a database is a number")
    return options


def _tls(settings: RedisSettings, options: dict[str, Any]) -> SSLContext:
    options |= _given(
        ssl_ca_certs=settings.redis_tls_ca_file,
        ssl_certfile=settings.redis_tls_cert_file,
        ssl_keyfile=settings.redis_tls_key_file,
    )
    try:
        return redis.asyncio.SSLConnection(**options).ssl_context.get()
    except (OSError, RedisError, TypeError, ValueError) as error:
        raise AddressError(f"TLS to Redis cannot be set up (LEADVIEW_REDIS_TLS_…): {error}") from error


def _given(**options: str | None) -> dict[str, str]:
    return {name: value for name, value in options.items() if value is not None}
