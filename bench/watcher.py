"""Sends one request to a server again and again, from a thread, and notes each response."""

import http.client
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Self

from msgspec import Struct

from bench.server import words

_PAUSE_SECONDS = 0.01
_TIMEOUT_SECONDS = 10.0


class Seen(Struct, frozen=True):
    """A response, and when it was complete. The status is 0 if there was none."""

    at: float
    status: int
    body: bytes = b""
    retry_after: str | None = None


class Watcher:
    """Notes the responses to a request in `seen`, which may be read meanwhile."""

    def __init__(self, port: int, request: bytes) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_SECONDS)
        self._method, self._path, self._headers = words(request)
        self._stopped = threading.Event()
        self.seen: list[Seen] = []

    def first(self, matches: Callable[[Seen], bool], since: float = 0.0) -> float | None:
        """Returns when the first response since then that matches was complete; None if there is none."""
        return next((each.at for each in self.seen if each.at >= since and matches(each)), None)

    def count(self, status: int) -> int:
        """Returns the number of responses with this status."""
        return sum(each.status == status for each in self.seen)

    @contextmanager
    def running(self) -> Iterator[Self]:
        """Watch while the block runs."""
        thread = threading.Thread(target=self._run)
        thread.start()
        try:
            yield self
        finally:
            self._stopped.set()
            thread.join()
            self._connection.close()

    def _run(self) -> None:
        while not self._stopped.wait(_PAUSE_SECONDS):
            self.seen.append(self._ask())

    def _ask(self) -> Seen:
        try:
            self._connection.request(self._method, self._path, headers=self._headers)
            response = self._connection.getresponse()
            body = response.read()
        except (OSError, http.client.HTTPException):
            self._connection.close()
            return Seen(time.monotonic(), 0)
        return Seen(time.monotonic(), response.status, body, response.getheader("Retry-After"))
