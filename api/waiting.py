"""Requests that wait until a record changes (`Prefer: wait`, RFC 7240).

The worker looks after all requests that wait for one server, many in one round trip: it reads the ETags of their
records, and the records of their keys and organizations. The more requests wait, the more rarely it looks, so that they
cost Redis no more than 5 % of its time. Whatever has changed only ends the wait: what is answered is read, checked and
charged like any other request.
"""

import asyncio
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import ClassVar

from msgspec import Struct, field

from api.redis.store import Standing, Store
from api.request import Credentials
from runtime.redis.errors import Unavailable
from schemas.layouts import NO_ETAG
from schemas.resources import Resource

_MOST_SECONDS = 30
"""The longest time for which a request waits."""
_PREFERENCES = re.compile(rb'(?:[^,"\n]|"(?:[^"\\\n]|\\[^\n])*"?)+')
"""The preferences of a header. A comma within quotes separates nothing. Quotes end with their line at the latest."""
_is_number = re.compile(rb'("?)[0-9]+\1').fullmatch
MOST = 5_000
"""Maximum number of requests that wait in a worker."""
MOST_OF_ONE = 64
"""Maximum number of them for one organization."""
_LEAST_SECONDS = 0.005
"""The shortest pause between two looks."""
_SECONDS_EACH = 150e-6
"""Each request that waits adds this much to the time from the beginning of one look to the beginning of the next: Redis
needs some five microseconds for each request. For `MOST` requests, the sum is three quarters of a second, because a
revoked key has to end a wait within one second. The pause between two looks is never less than `_LEAST_SECONDS`."""
MOST_IN_A_CALL = 100
"""Maximum number of requests in one call: Redis does nothing else meanwhile."""
_CALLS = 32
"""Calls that are under way at the same time on a cluster, where each is about the requests of one organization."""


def wait_of(prefer: bytes | None) -> int:
    """Returns for how many seconds the header `Prefer` lets a request wait (RFC 7240), at most 30; 0 if it names no
    wait, or one that cannot be parsed.
    """
    for preference in _PREFERENCES.findall(prefer or b""):
        name, _, value = preference.partition(b";")[0].partition(b"=")
        if name.strip(b" \t").lower() == b"wait":  # the first one counts
            value = value.strip(b" \t")
            digits = value.strip(b'"').lstrip(b"0") if _is_number(value) else b""
            # Python reads no number of thousands of digits.
            return min(int(digits[:3] or b"0"), _MOST_SECONDS)
    return 0


class Waiter(Struct, eq=False):
    """A request that waits for another ETag than `seen`; NO_ETAG if there was no record."""

    caller: Credentials
    resource: Resource
    record_id: str
    seen: bytes = NO_ETAG
    standing: Standing | None = None
    """What the last look has found. None until there was one: the request was checked before, and is checked again."""
    over: asyncio.Event = field(default_factory=asyncio.Event)


class Waiting:
    """The requests of a worker that wait."""

    most: ClassVar[int] = MOST
    """Fewer if the limit of open files is low."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiters: dict[bytes, set[Waiter]] = defaultdict(set)
        """By the tag of the organization."""
        self._begun = asyncio.Event()
        self.total = 0
        self.has_ended = False
        """True if the worker is about to stop: no request waits any more."""

    @contextmanager
    def place(self, waiter: Waiter) -> Iterator[bool]:
        """Let a request wait in the block. Yields False if no further request may wait."""
        tag = waiter.caller.organization_tag
        if self.has_ended or self.total >= self.most or len(self._waiters.get(tag, ())) >= MOST_OF_ONE:
            yield False
            return
        self._waiters[tag].add(waiter)
        self.total += 1
        self._begun.set()
        try:
            yield True
        finally:
            self.total -= 1
            self._waiters[tag].remove(waiter)
            if not self._waiters[tag]:
                del self._waiters[tag]

    def end(self) -> None:
        """End all waits, and let no further request wait: the worker is about to stop."""
        self.has_ended = True
        _wake(self._all())

    async def watch(self) -> None:
        """Look after all that wait, until it is cancelled."""
        clock, began_at = asyncio.get_running_loop().time, 0.0
        while True:
            await self._begun.wait()
            if not self.total:
                self._begun.clear()
                continue
            await asyncio.sleep(max(_LEAST_SECONDS, began_at + self.total * _SECONDS_EACH - clock()))
            began_at = clock()
            await self.look()

    async def look(self) -> None:
        """Wake those whose record, key or organization has changed, those whose key has ended, and those whose server
        cannot be asked. Each of them then finds out by itself why it was woken.
        """
        # On a cluster, the records of an organization are in one slot, and a command may read those of one slot only.
        sharded = self._store.sharded
        together = [[*waiters] for waiters in self._waiters.values()] if sharded else [self._all()]
        slices = (
            waiters[place : place + MOST_IN_A_CALL]
            for waiters in together
            for place in range(0, len(waiters), MOST_IN_A_CALL)
        )
        async with asyncio.TaskGroup() as group:
            for _ in range(_CALLS if sharded else 1):
                group.create_task(self._look_at(slices))

    async def _look_at(self, slices: Iterator[list[Waiter]]) -> None:
        for waiters in slices:
            try:
                looks = await self._store.look([(one.caller, one.resource, one.record_id) for one in waiters])
            except Unavailable:
                _wake(waiters)
            else:
                for one, (etag, standing) in zip(waiters, looks, strict=True):
                    if etag != one.seen or standing != one.standing or standing.ended:
                        one.standing = standing
                        one.over.set()

    def _all(self) -> list[Waiter]:
        return [one for waiters in self._waiters.values() for one in waiters]


def _wake(waiters: Iterable[Waiter]) -> None:
    for one in waiters:
        one.over.set()
