"""How to reach Redis and log in: `LEADVIEW_REDIS_URL` together with the settings that override parts of it."""

from msgspec import Struct

from schemas.redis_url import Host, Kind, redis_url
from schemas.settings import RedisSettings


class RedisAccess(Struct, frozen=True):
    """The connection to Redis that the settings describe. Options have the names of redis-py's keyword arguments."""

    kind: Kind
    hosts: tuple[Host, ...]
    """The server, the Sentinels, or some nodes of the cluster."""
    master: str
    """The name by which the Sentinels know the master."""
    server: str
    """A plain URL of the first host; its user, password, database and query apply to every Redis server."""
    encrypted: bool
    options: dict[str, str]
    """User, password and TLS files from the separate settings. They override those in the URL."""
    sentinel_user: dict[str, str]
    """User and password of the Sentinels themselves."""


def redis_access(settings: RedisSettings) -> RedisAccess:
    """Resolve the settings. Raises ValueError if the URL is not valid; the message contains nothing of the URL."""
    url = redis_url(settings.redis_url)
    encrypted = url.server.startswith("rediss://")
    options = _given(username=settings.redis_username, password=settings.redis_password)
    if encrypted:
        options |= _given(
            ssl_ca_certs=settings.redis_tls_ca_file,
            ssl_certfile=settings.redis_tls_cert_file,
            ssl_keyfile=settings.redis_tls_key_file,
        )
    sentinel_user = _given(username=settings.redis_sentinel_username, password=settings.redis_sentinel_password)
    return RedisAccess(url.kind, url.hosts, url.master, url.server, encrypted, options, sentinel_user)


def _given(**options: str | None) -> dict[str, str]:
    return {name: value for name, value in options.items() if value is not None}
