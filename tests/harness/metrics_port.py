"""The metrics port of a projector, read over plain HTTP."""

import urllib.error
import urllib.request
from typing import Any

import orjson


def ask(port: int, path: str, host: str = "127.0.0.1") -> tuple[int, Any]:
    """Returns the status and the body, which is JSON or text. The status is 0 if nothing listens."""
    try:
        with urllib.request.urlopen(f"http://{host}:{port}{path}", timeout=5) as response:
            return response.status, _body(response.read())
    except urllib.error.HTTPError as error:
        return error.code, _body(error.read())
    except OSError:
        return 0, None


def metric(port: int, name: str, host: str = "127.0.0.1") -> float | None:
    """Returns the sum of a metric over its labels. None if there is no such metric or nothing listens."""
    lines = (ask(port, "/metrics", host)[1] or "").splitlines()
    values = [float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith((f"{name} ", f"{name}{{"))]
    return sum(values) if values else None


def _body(content: bytes) -> Any:
    return orjson.loads(content) if content.startswith(b"{") else content.decode()
