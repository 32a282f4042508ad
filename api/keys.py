"""The API keys that callers sent lately: a key that was valid is used at once, any other one is tried first.

Redis is asked for the same key once at a time, and not again for half a second after it refused the key. So unknown
keys cost little, as often as they are sent, and `Guesses` limits how many of them a client may try. A key that was
valid when it was used last is not affected. No key is kept, only hashes. Each worker knows what it has seen itself.


Remembers what was used recently, up to a number."""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from hashlib import sha256
from typing import Generic, TypeVar

from msgspec import Struct, field

from api.credentials import Credentials, credentials
from api.errors import InvalidApiKey, Unavailable
from api.limits import Guesses
from api.redis.store import Reply
from api.redis.turns import SHARE
from api.request import Request

REFUSED_SECONDS = 0.5
_VALID_KEYS = 8192
_REFUSED_KEYS = 8192

Serve = Callable[[Credentials], Awaitable[Reply]]


class _Trial(Struct):
    """A key that Redis is being asked for."""

    over: asyncio.Event = field(default_factory=asyncio.Event)
    valid: bool | None = None
    """None if Redis did not answer."""


class KnownKeys:
    """The keys of one worker. `authorization` is always the header of this name."""

    def __init__(self, guesses: Guesses, max_in_flight: int, clock: Callable[[], float] = time.monotonic) -> None:
        """At most `max_in_flight` requests wait for Redis, with those that wait for the trial of their key, and of the
        latter a part (`turns.SHARE`) with keys that name the same organization. `clock` counts seconds and never goes
        back.
        """
        self._guesses = guesses
        self._max_in_flight = max_in_flight
        self._most_of_one = max(1, max_in_flight // SHARE)
        self._clock = clock
        self._valid: Recent[Credentials] = Recent(_VALID_KEYS)
        """By the hash of the header: finding a key takes 0.5 µs, parsing it 3 µs."""
        self._refused_until: Recent[float] = Recent(_REFUSED_KEYS)
        self._trials: dict[bytes, _Trial] = {}
        self._waiting: Counter[bytes] = Counter()
        """Requests that wait for a trial, by the organization that their key names."""

    def valid(self, authorization: bytes | None) -> Credentials | None:
        """Returns the names of a key that was valid when it was used last; None if it has to be tried."""
        return self._valid.get(sha256(authorization).digest()) if authorization else None

    async def try_out(self, authorization: bytes | None, request: Request, serve: Serve) -> tuple[Credentials, Reply]:
        """Serve a request whose key may be unknown.

        Raises MissingApiKey, InvalidApiKey, TooManyGuesses, Unavailable, and what `serve` raises.
        """
        caller = request.caller = credentials(authorization)
        trial = self._trials.get(caller.active_key)
        if trial is None:
            reply = await self._first(caller, request, serve)
        else:
            await self._wait(trial, caller.organization_tag, request.state["store"].pending)
            reply = await serve(caller)
        if authorization and reply.status != InvalidApiKey.status:
            self._valid.put(_name(authorization), caller)
        return caller, reply

    def refuse(self, authorization: bytes | None, caller: Credentials) -> None:
        """Note that Redis refused a key."""
        self._refused_until.put(caller.active_key, self._clock() + REFUSED_SECONDS)
        if authorization:
            self._valid.remove(_name(authorization))

    async def _first(self, caller: Credentials, request: Request, serve: Serve) -> Reply:
        if self._is_refused(caller, request):
            raise InvalidApiKey("the key was unknown, revoked or expired a moment ago")
        self._guesses.charge(request)
        trial = self._trials[caller.active_key] = _Trial()
        try:
            reply = await serve(caller)
            trial.valid = reply.status != InvalidApiKey.status
        finally:
            del self._trials[caller.active_key]
            trial.over.set()
            if trial.valid is not False:
                self._guesses.refund(request)
        return reply

    def _is_refused(self, caller: Credentials, request: Request) -> bool:
        """Returns whether Redis refused the key a moment ago, and holds everything, as far as this worker knows."""
        if self._clock() >= (self._refused_until.get(caller.active_key) or 0.0):
            return False
        state, tag = request.state, caller.organization_tag
        return state["serving"].known(state["servers"].link(tag), tag) is not None

    async def _wait(self, trial: _Trial, organization: bytes, pending: int) -> None:
        """Returns if the key is valid. `pending` requests wait for Redis. Raises InvalidApiKey and Unavailable."""
        if self._waiting.total() + pending >= self._max_in_flight:
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
        if trial.valid is None:
            raise Unavailable("Redis did not answer another request with the same key")
        if not trial.valid:
            raise InvalidApiKey("another request with the same key was refused a moment ago")


def _name(authorization: bytes) -> bytes:
    return sha256(authorization).digest()


T = TypeVar("T")


class Recent(Generic[T]):
    """Holds at most `most` values: once half of them are newer than the others, those others are forgotten.

    `functools.lru_cache` would keep the arguments of its function, which may be secrets.
    """

    def __init__(self, most: int) -> None:
        self._half = max(1, most // 2)
        self._newer: dict[bytes, T] = {}
        self._older: dict[bytes, T] = {}

    def get(self, name: bytes) -> T | None:
        """Returns the value, which is now one of the newer ones; None if there is none."""
        found = self._newer.get(name)
        if found is None:
            found = self._older.pop(name, None)
            if found is not None:
                self.put(name, found)
        return found

    def put(self, name: bytes, value: T) -> None:
        if len(self._newer) >= self._half and name not in self._newer:
            self._older, self._newer = self._newer, {}
        self._newer[name] = value

    def remove(self, name: bytes) -> None:
        self._newer.pop(name, None)
        self._older.pop(name, None)
