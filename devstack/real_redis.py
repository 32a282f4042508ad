"""A Redis of the user's, before anything is started for it."""

import socket
from urllib.parse import urlsplit

from devstack.failure import StackFailed

_PORT = 6379
_TIMEOUT_SECONDS = 5.0


def reach_redis(url: str) -> None:
    """Raises StackFailed where nothing listens. Whether it lets us in, the projector and the API find out."""
    parts = urlsplit(url)
    address = (parts.hostname or "127.0.0.1", parts.port or _PORT)
    try:
        socket.create_connection(address, _TIMEOUT_SECONDS).close()
    except OSError as error:
        host, port = address
        raise StackFailed(f"Redis at {host}:{port} cannot be reached: {error.strerror or error}") from error
