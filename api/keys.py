"""The API keys that callers sent lately: a key that was valid is used at once, any other one is tried first.

Redis is asked for the same key once at a time, and not again for half a second after it refused the key. So unknown
keys cost little, however often they are sent, and `Guesses` limits how many of them a client may try. A key that was
valid when it was used last is not affected. No key is kept, only hashes. Each worker knows only keys sent to itself.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from hashlib import sha256
from typing import Generic, TypeVar

from msgspec import Struct, field

from api.errors import InvalidApiKey, TooManyGuesses, Unavailable
from api.limits import Guesses
from api.redis.fair_queue import SHARED_BY
from api.redis.store import Store
from api.request import Credentials, Request, client_address
from schemas.settings import Network

REFUSED_SECONDS = 0.5
_MOST_KEYS = 8192

T = TypeVar("T")


class Trial(Struct):
    """A key that Redis is being asked for, by the first request that sent it."""

    address: bytes
    """The client's address, which is charged if the key is unknown."""
    over: asyncio.Event = field(default_factory=asyncio.Event)
    accepted: bool | None = None
    """None if Redis did not answer."""


class KnownKeys:
    """The keys of one worker. `authorization` is always the header of this name.

    A request with a key that is not `known` is admitted, then served, then settled.
    """

    def __init__(
        self,
        store: Store,
        guesses: Guesses,
        max_in_flight: int,
        proxies: tuple[Network, ...] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """At most `max_in_flight` requests wait for Redis or for the trial of their key. At most one in `SHARED_BY` of
        these places is for trials of keys that name the same organization. `proxies` are trusted to name the client's
        address in `X-Forwarded-For`. `clock` counts seconds and never goes back.
        """
        self._store = store
        self._guesses = guesses
        self._max_in_flight = max_in_flight
        self._most_of_one = max(1, max_in_flight // SHARED_BY)
        self._proxies = proxies
        self._clock = clock
        self._valid: Recent[Credentials] = Recent(_MOST_KEYS)
        """By the hash of the header: finding a key takes 0.5 µs, parsing it 3 µs."""
        self._refused_until: Recent[float] = Recent(_MOST_KEYS)
        self._trials: dict[bytes, Trial] = {}
        self._waiting: Counter[bytes] = Counter()
        """Requests that wait for a trial, by the organization that their key names."""

    def known(self, authorization: bytes | None) -> Credentials | None:
        """Returns the credentials of a key that was valid when it was used last; None if it has to be tried."""
        return self._valid.get(sha256(authorization).digest()) if authorization else None

    async def admit(self, caller: Credentials, request: Request) -> Trial | None:
        """Admit a request whose key is not known. Returns the trial of its key, which this request makes and settles
        itself; None if the trial of another request has shown that the key is valid.

        Raises InvalidApiKey, TooManyGuesses and Unavailable.
        """
        trial = self._trials.get(caller.key_record)
        if trial is not None:
            await self._wait(trial, caller.organization_tag)
            return None
        if self._clock() < (self._refused_until.get(caller.key_record) or 0.0) and self._store.believes(
            caller.organization_tag
        ):
            raise InvalidApiKey("the key was unknown, revoked or expired a moment ago")
        trial = Trial(client_address(request, self._proxies))
        try:
            self._guesses.charge(trial.address)
        except TooManyGuesses:
            if self._store.believes(caller.organization_tag):
                raise
            raise Unavailable("the shard of the key is not complete, and its address has tried too many keys") from None
        self._trials[caller.key_record] = trial
        return trial

    def settle(self, authorization: bytes, caller: Credentials, trial: Trial | None, accepted: bool | None) -> None:
        """Note whether Redis has accepted a key; None if it did not answer. `trial` is what `admit` returned."""
        if trial is not None:
            trial.accepted = accepted
            del self._trials[caller.key_record]
            trial.over.set()
            if accepted is not False:
                self._guesses.refund(trial.address)
        name = sha256(authorization).digest()
        if accepted:
            self._valid.put(name, caller)
        elif accepted is False:
            self._valid.remove(name)
            self._refused_until.put(caller.key_record, self._clock() + REFUSED_SECONDS)

    async def _wait(self, trial: Trial, organization: bytes) -> None:
        """Returns if the key is valid. Raises InvalidApiKey and Unavailable."""
        if self._waiting.total() + self._store.pending >= self._max_in_flight:
            raise Unavailable(f"{self._max_in_flight} requests are waiting for Redis already")
        if self._waiting[organization] >= self._most_of_one:
            raise Unavailable(f"{self._most_of_one} requests wait for keys of this organization to be tried already")
        self._waiting[organization] += 1
        try:
            await trial.over.wait()
        finally:
            self._waiting[organization] -= 1
            if not self._waiting[organization]:
                del self._waiting[organization]
        if trial.accepted is None:
            raise Unavailable("Redis did not answer another request with the same key")
        if not trial.accepted:
            raise InvalidApiKey("another request with the same key was refused a moment ago")


class Recent(Generic[T]):
    """Holds at most `most` values, in two halves. When the newer half is full, the older one is dropped, with all
    values that were not used since it was filled.

    `functools.lru_cache` would keep the arguments of its function, which may be secrets.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._used: dict[bytes, T] = {}
        self._before: dict[bytes, T] = {}

    def get(self, name: bytes) -> T | None:
        found = self._used.get(name)
        if found is None and (found := self._before.get(name)) is not None:
            self.put(name, found)
        return found

    def put(self, name: bytes, value: T) -> None:
        self.remove(name)
        self._used[name] = value
        if 2 * len(self._used) >= self._most:
            self._used, self._before = {}, self._used

    def remove(self, name: bytes) -> None:
        self._used.pop(name, None)
        self._before.pop(name, None)
