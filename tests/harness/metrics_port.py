"""The metrics port of a projector, read over plain HTTP."""

from typing import Any

import orjson

from devstack import programs

_TIMEOUT_SECONDS = 5.0


def ask(port: int, path: str) -> tuple[int, Any]:
    """Returns the status and the body, which is JSON or text. The status is 0 if nothing listens."""
    reply = programs.ask("127.0.0.1", port, path, timeout=_TIMEOUT_SECONDS)
    return reply.status, orjson.loads(reply.body) if reply.body.startswith("{") else reply.body


def metric(port: int, name: str, **labels: str) -> float | None:
    """Returns the sum of a metric over its labels, or over the series with these labels. None if there is no such
    metric or nothing listens.
    """
    lines = [line for line in ask(port, "/metrics")[1].splitlines() if line.startswith((f"{name} ", f"{name}{{"))]
    wanted = [f'{label}="{value}"' for label, value in labels.items()]
    values = [float(line.rsplit(" ", 1)[1]) for line in lines if all(text in line for text in wanted)]
    return sum(values) if values else None
