"""The error that ends `make run`, with a message for the user."""

from collections.abc import Iterable
from pathlib import Path

_LINES = 15


class StackFailed(Exception):
    """Leadview could not be started, or a part of it failed. The message says what happened and what to do."""


def with_logs(message: str, logs: Iterable[Path]) -> StackFailed:
    """Returns an error whose message contains the last lines of these logs."""
    return StackFailed("\n\n".join([message, *(_tail(log) for log in logs)]))


def _tail(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()[-_LINES:] if log.exists() else []
    return "\n".join([f"The last lines of {log.name}:", *(f"  {line}" for line in lines or ["(none)"])])
