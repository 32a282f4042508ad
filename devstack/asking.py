"""Asking the processes on this machine over HTTP, past any proxy."""

import http.client
from typing import NamedTuple

_TIMEOUT_SECONDS = 2.0


class Reply(NamedTuple):
    """`status` is 0 where there was no answer, with the reason as `body`."""

    status: int
    etag: str
    body: str


def ask(host: str, port: int, path: str, key: str | None = None) -> Reply:
    """GET, with an API key where one is given. Raises nothing."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    connection = http.client.HTTPConnection(host, port, timeout=_TIMEOUT_SECONDS)
    try:
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        return Reply(response.status, response.headers.get("ETag", ""), response.read().decode())
    except (OSError, http.client.HTTPException) as error:
        return Reply(0, "", str(error) or type(error).__name__)
    finally:
        connection.close()
