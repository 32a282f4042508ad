"""Who may call Redis now: so many calls of one organization at the same time, and the others wait for their turn.

All organizations share a connection to Redis, and its replies arrive in the order of the calls. So what one of them has
on its way is what another one waits for, and must not depend on how much the first one sends.
"""

import asyncio
from asyncio import CancelledError, Future
from collections import deque

from leadview.redis.errors import Unavailable

SHARE = 4
"""The places of those that wait, or are under way, are shared by at least so many organizations."""


class Turns:
    """Lets `each` calls of one organization, and `together` calls of all, be under way. Those that wait get their turns
    in their order, and the organizations one after the other.

    At most `most` calls are under way or wait, a quarter of them of one organization. None waits longer than `timeout`
    seconds for its turn.
    """

    def __init__(self, each: int, together: int, *, most: int, timeout: float) -> None:
        self._each = each
        self._together = together
        self._most_each = max(each, most // SHARE)
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

    def take(self, name: bytes) -> Future[None] | None:
        """Take a turn for the organization with this name. Returns None if it has one now, otherwise what to pass to
        `wait`. In the end, call `leave`. Raises Unavailable.
        """
        under_way = self._under_way.get(name, 0)
        if self._count + self._waiters >= self._most:
            raise Unavailable(f"{self._most} requests are waiting for Redis already")
        if under_way < self._each and self._count < self._together:
            self._under_way[name] = under_way + 1
            self._count += 1
            return None
        queue = self._waiting.get(name)
        if under_way + (len(queue) if queue else 0) >= self._most_each:
            raise Unavailable(f"{self._most_each} requests of this organization are waiting for Redis already")
        if queue is None:
            queue = self._waiting[name] = deque()
            if under_way < self._each:
                self._line.append(name)
        turn: Future[None] = asyncio.get_running_loop().create_future()
        queue.append(turn)
        self._waiters += 1
        return turn

    async def wait(self, name: bytes, turn: Future[None]) -> None:
        """Returns when it is this turn. Raises Unavailable."""
        timer = asyncio.get_running_loop().call_later(self._timeout, self._expire, turn)
        try:
            await turn
        except CancelledError:
            if not turn.cancelled() and not turn.exception():
                self.leave(name)  # it had its turn in the same moment
            raise
        finally:
            timer.cancel()
            self._waiters -= 1

    def leave(self, name: bytes) -> None:
        """End a call of this organization."""
        self._count -= 1
        left = self._under_way[name] - 1
        if left:
            self._under_way[name] = left
        else:
            del self._under_way[name]
        if self._waiting:
            if left + 1 == self._each and name in self._waiting:
                self._line.append(name)
            self._give()

    def _give(self) -> None:
        while self._line and self._count < self._together:
            name = self._line.popleft()
            queue = self._waiting[name]
            turn = queue.popleft()
            if not turn.done():
                turn.set_result(None)
                self._under_way[name] = self._under_way.get(name, 0) + 1
                self._count += 1
            if not queue:
                del self._waiting[name]
            elif self._under_way.get(name, 0) < self._each:
                self._line.append(name)

    def _expire(self, turn: Future[None]) -> None:
        if not turn.done():
            turn.set_exception(Unavailable(f"it was not this request's turn within {self._timeout:g} s"))
