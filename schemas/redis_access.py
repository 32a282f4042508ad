"""How to reach Redis and log in: `LEADVIEW_REDIS_URL` together with the settings that override parts of it."""

from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from msgspec import Struct

from schemas import secret_files
from schemas.redis_url import Host, Kind, redis_url
from schemas.settings import RedisSettings


class Login(Struct, frozen=True):
    """User and password of Redis whose files are read again for each new connection. redis-py takes it as a
    `credential_provider`.
    """

    settings: RedisSettings
    of_sentinels: bool = False

    def get_credentials(self) -> tuple[str, ...]:
        """Returns the words after AUTH: none, a password, or a user and a password."""
        user, password = self._user_and_password()
        if password is None:
            return ()
        return (password,) if user is None else (user, password)

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
    options: dict[str, Any]
    """User, password and TLS files from the separate settings. They override those in the URL."""
    sentinel_user: dict[str, Any]
    """User and password of the Sentinels themselves."""

    def over(self, url_options: dict[str, Any]) -> dict[str, Any]:
        """Returns the options for connections to Redis servers; `url_options` are those in `server`."""
        if "credential_provider" in self.options:
            url_options = {name: url_options[name] for name in url_options if name not in ("username", "password")}
        return url_options | self.options


def was_reset(error: RuntimeError) -> bool:
    """Returns whether redis-py wrote to a connection that had been reset while nobody used it: asyncio has errors of
    connections for that, uvloop has this one.
    """
    return "the handler is closed" in str(error)


def redis_access(settings: RedisSettings) -> RedisAccess:
    """Resolve the settings. Raises ValueError if the URL is not valid; the message contains nothing of the URL."""
    url = redis_url(settings.redis_url)
    encrypted = url.server.startswith("rediss://")
    if secret_files.rotates(settings, "redis_url", "redis_password"):
        options = _given(credential_provider=Login(settings))
    else:
        options = _given(username=settings.redis_username, password=settings.redis_password)
    if encrypted:
        options |= _given(
            ssl_ca_certs=settings.redis_tls_ca_file,
            ssl_certfile=settings.redis_tls_cert_file,
            ssl_keyfile=settings.redis_tls_key_file,
        )
    if secret_files.rotates(settings, "redis_sentinel_password"):
        sentinel_user = _given(credential_provider=Login(settings, of_sentinels=True))
    else:
        sentinel_user = _given(username=settings.redis_sentinel_username, password=settings.redis_sentinel_password)
    return RedisAccess(url.kind, url.hosts, url.master, url.server, encrypted, options, sentinel_user)


def _given(**options: object) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _in_url(text: str) -> tuple[str | None, str | None]:
    """Returns the user and the password in a URL of Redis, as redis-py finds them. Raises ValueError."""
    parts = urlsplit(redis_url(text).server)
    options = parse_qs(parts.query)
    user = unquote(parts.username) if parts.username else options.get("username", [None])[0]
    password = unquote(parts.password) if parts.password else options.get("password", [None])[0]
    return user, password
