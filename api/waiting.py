"""Requests that wait until a record changes (`Prefer: wait`, RFC 7240).

The worker looks after all that wait at one server in one call, and reads the ETags of their records. It looks more
rarely the more of them there are, so that they cost Redis no more than a twentieth of its time. Twice a second it also
asks whether their keys are still valid. A look only ends the wait: what is answered is read, checked and charged like
any other request.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice

from msgspec import Struct, field

from api.redis.store import Store
from api.request import Credentials
from runtime.redis.errors import Unavailable
from schemas.layouts import NO_ETAG
from schemas.resources import Resource

MOST = 5_000
"""Maximum number of requests that wait in a worker."""
MOST_OF_ONE = 64
"""Maximum number of them for one organization."""
_LEAST_SECONDS = 0.005
"""The shortest pause between two looks."""
_SECONDS_EACH = 40e-6
"""The pause for each request that waits, if their sum is longer: Redis reads an ETag in one or two microseconds."""
_CHECK_SECONDS = 0.5
"""The time between two checks of the keys."""
_SLICE = 250
"""Maximum number of ETags that are read in one call: Redis does nothing else meanwhile."""


class Waiter(Struct, eq=False):
    """A request that waits for another ETag than `seen`; NO_ETAG if there was no record."""

    caller: Credentials
    resource: Resource
    record_id: str
    seen: bytes = NO_ETAG
    over: asyncio.Event = field(default_factory=asyncio.Event)


class Waiting:
    """The requests of a worker that wait."""

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
        of_organization = self._waiters[waiter.caller.organization_tag]
        admits = not self.has_ended and self.total < MOST and len(of_organization) < MOST_OF_ONE
        if admits:
            of_organization.add(waiter)
            self.total += 1
            self._begun.set()
        try:
            yield admits
        finally:
            if admits:
                of_organization.discard(waiter)
                self.total -= 1
            if not of_organization:
                self._waiters.pop(waiter.caller.organization_tag, None)

    def end(self) -> None:
        """End all waits, and let no further request wait: the worker is about to stop."""
        self.has_ended = True
        _wake(self._all())

    async def watch(self) -> None:
        """Look after all that wait, until it is cancelled."""
        clock, checked_at = asyncio.get_running_loop().time, 0.0
        while True:
            await self._begun.wait()
            if not self.total:
                self._begun.clear()
                continue
            await asyncio.sleep(max(_LEAST_SECONDS, self.total * _SECONDS_EACH))
            if clock() - checked_at > _CHECK_SECONDS:
                checked_at = clock()
                await self._check_keys()
            await self._look()

    async def _look(self) -> None:
        """Wake those whose record has changed, and those whose server cannot be asked: they find out why."""
        # On a cluster, the records of an organization are in one slot, and a script may read those of one slot only.
        together = [*map(list, self._waiters.values())] if self._store.sharded else [self._all()]
        for waiters in together:
            rest = iter(waiters)
            while some := list(islice(rest, _SLICE)):
                try:
                    etags = await self._store.etags([(one.caller, one.resource, one.record_id) for one in some])
                except Unavailable:
                    _wake(some)
                else:
                    _wake(one for one, etag in zip(some, etags, strict=True) if etag != one.seen)

    async def _check_keys(self) -> None:
        """Wake those whose key is not valid any more, or whose organization has no access."""
        by_key: dict[bytes, list[Waiter]] = defaultdict(list)
        for one in self._all():
            by_key[one.caller.key_record].append(one)
        for waiters in by_key.values():
            try:
                is_valid = await self._store.admits(waiters[0].caller, waiters[0].resource)
            except Unavailable:
                is_valid = False
            if not is_valid:
                _wake(waiters)

    def _all(self) -> list[Waiter]:
        return [one for waiters in self._waiters.values() for one in waiters]


def _wake(waiters: Iterable[Waiter]) -> None:
    for one in waiters:
        one.over.set()
