"""Parses `LEADVIEW_REDIS_URL`: one server, the master that Sentinels monitor, or a cluster.

    redis://[user:password@]host[:port][/database]
    redis+sentinel://[user:password@]host[:port][,host[:port]…]/master name[/database]
    redis+cluster://[user:password@]host[:port][,host[:port]…]

`rediss` in place of `redis` means TLS. User and password are those of the Redis servers, never of the Sentinels.
"""

import re
from typing import Literal
from urllib.parse import unquote, urlsplit

from msgspec import Struct

Kind = Literal["server", "sentinel", "cluster"]
Host = tuple[str, int]

_PORTS: dict[Kind, int] = {"server": 6379, "sentinel": 26379, "cluster": 6379}
_FORM = re.compile(
    r"(?P<scheme>rediss?)(\+(?P<kind>sentinel|cluster))?://((?P<user>[^/?#]*)@)?"
    r"(?P<hosts>[^@/?#]*)(?P<path>/[^?#]*)?(?P<query>\?[^#]*)?"
)


class RedisUrl(Struct, frozen=True):
    """The parts of a URL. `server` is a plain URL of the first host, with all that a connection to any server needs."""

    kind: Kind
    server: str
    hosts: tuple[Host, ...]
    master: str = ""
    """The name by which the Sentinels know the master."""


def redis_url(text: str) -> RedisUrl:
    """Parse the URL. Raises ValueError; the message contains nothing of the text, which may include a password."""
    match = _FORM.fullmatch(text)
    if not match:
        raise ValueError(
            "it begins with redis://, redis+sentinel:// or redis+cluster:// (rediss… with TLS); "
            "in a password, write special characters as %2F and the like"
        )
    kind: Kind = match["kind"] or "server"  # type: ignore[assignment]  # the pattern matches no other kinds
    _host(f"{match['user'] or ''}@h", kind)  # redis-py parses it again, and its error would show the password
    hosts = tuple(_host(part, kind) for part in match["hosts"].split(","))
    path = match["path"] or ""
    if kind == "server":
        if len(hosts) > 1:
            raise ValueError("it has several hosts: write redis+cluster:// or redis+sentinel://")
        return RedisUrl(kind, text, hosts)
    master, database = _master(path) if kind == "sentinel" else ("", _no_path(path))
    user = f"{match['user']}@" if match["user"] else ""
    server = f"{match['scheme']}://{user}{match['hosts'].split(',')[0]}{database}{match['query'] or ''}"
    return RedisUrl(kind, server, hosts, master)


def _host(text: str, kind: Kind) -> Host:
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port
    except ValueError:
        raise ValueError("it has an invalid host or port") from None
    if port == 0:
        raise ValueError("its port must be 1 to 65535")
    if not host and kind != "server":
        raise ValueError("it lacks a host")
    return host or "127.0.0.1", _PORTS[kind] if port is None else port


def _master(path: str) -> tuple[str, str]:
    name, slash, database = path.removeprefix("/").partition("/")
    if not name:
        raise ValueError("it lacks the master's name: redis+sentinel://host,host/name")
    return unquote(name), slash + database


def _no_path(path: str) -> str:
    if path.strip("/") not in ("", "0"):
        raise ValueError("a cluster has only database 0")
    return ""


def without_password(url: str) -> str:
    """Returns the URL with its passwords hidden.

    Uses a pattern instead of a parser, because a URL that cannot be parsed is shown in an error message, too.
    """
    url = re.sub(r"^([^:@/?#]*://)?([^:@/?#]*):(?!//).*@", r"\1\2:***@", url)
    return re.sub(r"([?&][a-z_]*password=)[^&#]*", r"\1***", url)
