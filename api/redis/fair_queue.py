"""Who may call Redis now: the organizations in turn."""

import asyncio
from asyncio import CancelledError, Future
from collections import deque

from runtime.redis.errors import Unavailable

SHARED_BY = 4
"""The least number of organizations that share the places of the calls that wait or are under way."""


class FairQueue:
    """Decides who may call Redis now: at most `each` calls of one organization, and `together` calls of all, are under
    way. The waiting calls of an organization get their turns in order, and the organizations one after the other.

    All organizations share a connection to Redis, and its replies arrive in the order of the calls. So the calls of one
    organization that are under way delay all others: their number must not grow with what that organization sends.

    At most `most` calls are under way or wait, a quarter of them of one organization. None waits longer than `timeout`
    seconds for its turn.

    `queue` names the organization for which a call is counted. Its calls with keys that are not known yet have a queue
    of their own (`api/documents.py`).
    """

    def __init__(self, each: int, together: int, *, most: int, timeout: float) -> None:
        self._each = each
        self._together = together
        self._most_each = max(each, most // SHARED_BY)
        self._most = most
        self._timeout = timeout
        self._under_way: dict[bytes, int] = {}
        self._count = 0
        self._waiting: dict[bytes, deque[Future[None]]] = {}
        self._waiters = 0
        self._line: deque[bytes] = deque()
        """Those who wait and may have a turn: they have fewer than `each` calls under way."""

    @property
    def pending(self) -> int:
        """The calls that are under way or wait."""
        return self._count + self._waiters

    def take(self, queue: bytes) -> Future[None] | None:
        """Take a turn. Returns None if it is this call's turn now, otherwise what to pass to `wait`. In the end, call
        `leave`. Raises Unavailable.
        """
        under_way = self._under_way.get(queue, 0)
        if self._count + self._waiters >= self._most:
            raise Unavailable(f"{self._most} requests are waiting for Redis already")
        if under_way < self._each and self._count < self._together:
            self._under_way[queue] = under_way + 1
            self._count += 1
            return None
        waiting = self._waiting.get(queue)
        if under_way + (len(waiting) if waiting else 0) >= self._most_each:
            raise Unavailable(f"{self._most_each} requests of this organization are waiting for Redis already")
        if waiting is None:
            waiting = self._waiting[queue] = deque()
            if under_way < self._each:
                self._line.append(queue)
        turn: Future[None] = asyncio.get_running_loop().create_future()
        waiting.append(turn)
        self._waiters += 1
        return turn

    async def wait(self, queue: bytes, turn: Future[None]) -> None:
        """Returns when this turn has come. Raises Unavailable."""
        timer = asyncio.get_running_loop().call_later(self._timeout, self._expire, turn)
        try:
            await turn
        except CancelledError:
            if not turn.cancelled() and not turn.exception():
                self.leave(queue)  # it had its turn in the same moment
            raise
        finally:
            timer.cancel()
            self._waiters -= 1

    def leave(self, queue: bytes) -> None:
        """End a call."""
        self._count -= 1
        left = self._under_way[queue] - 1
        if left:
            self._under_way[queue] = left
        else:
            del self._under_way[queue]
        if self._waiting:
            if left + 1 == self._each and queue in self._waiting:
                self._line.append(queue)
            self._give()

    def _give(self) -> None:
        while self._line and self._count < self._together:
            queue = self._line.popleft()
            waiting = self._waiting[queue]
            turn = waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                self._under_way[queue] = self._under_way.get(queue, 0) + 1
                self._count += 1
            if not waiting:
                del self._waiting[queue]
            elif self._under_way.get(queue, 0) < self._each:
                self._line.append(queue)

    def _expire(self, turn: Future[None]) -> None:
        if not turn.done():
            turn.set_exception(Unavailable(f"it was not this request's turn within {self._timeout:g} s"))
