"""HTTP requests to the processes on this machine, without any proxy."""

import http.client
from typing import NamedTuple

_TIMEOUT_SECONDS = 2.0


class Reply(NamedTuple):
    """A response. If there was none, `status` is 0 and `body` is the reason."""

    status: int
    etag: str
    body: str


def ask(host: str, port: int, path: str, key: str | None = None) -> Reply:
    """Send a GET request, with an API key if one is given. It never raises an error."""
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
