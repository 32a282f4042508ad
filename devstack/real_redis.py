"""Checks the user's Redis before anything is started."""

import socket

from devstack.failure import StackFailed
from schemas.redis_url import Host, redis_url

_TIMEOUT_SECONDS = 5.0


def reach_redis(url: str) -> None:
    """Raises StackFailed if no host of the URL accepts a connection. The projector and the API check the login."""
    failures = [_failure(address) for address in redis_url(url).hosts]
    if all(failures):
        raise StackFailed("; ".join(str(failure) for failure in failures))


def _failure(address: Host) -> str | None:
    try:
        socket.create_connection(address, _TIMEOUT_SECONDS).close()
    except OSError as error:
        host, port = address
        return f"Redis at {host}:{port} cannot be reached: {error.strerror or error}"
    return None
