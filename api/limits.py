"""The rate-limit headers (draft-ietf-httpapi-ratelimit-headers, and the older X-RateLimit-*), from the script's reply.

`r` requests remain, and in `t` seconds there is one more (0: the bucket is full). All seconds are rounded up, so that a
client that waits this long has waited long enough.


The local fallback limiter, used for a request whose charge Redis refused to write. Each worker counts for itself, in
memory, on its own clock.

Buckets, quotas and windows are those of `redis/lua/serve.lua`, but the workers do not know what the others granted:
`n` workers let up to `n` times the limits pass.


Limits how many unknown API keys are tried from one client address. Each worker counts for itself."""

import math
import time
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

from msgspec.structs import replace

from api.credentials import Credentials
from api.errors import Headers, RateLimitExceeded, TooManyGuesses
from api.keys import Recent
from api.redis.store import Reply
from api.request import Request, client_address
from schemas.problems import Policy
from schemas.settings import Limit, Network

_SECOND = 1_000_000
_VIOLATED: dict[int, list[Policy]] = {1: ["key"], 2: ["organization"], 3: ["key", "organization"]}


def headers(reply: Reply) -> Headers:
    """Returns all rate-limit headers. X-RateLimit-* describe the bucket with fewer requests left, the key's if both
    have the same.
    """
    policy, key_quota, organization_quota, key_interval, organization_interval = _quotas(
        reply.key_quota, reply.key_window, reply.organization_quota, reply.organization_window
    )
    if reply.key_remaining <= reply.organization_remaining:
        quota, remaining, full_in = key_quota, reply.key_remaining, reply.key_full_in
    else:
        quota, remaining, full_in = organization_quota, reply.organization_remaining, reply.organization_full_in
    return (
        (b"ratelimit-policy", policy),
        (
            b"ratelimit",
            b'"key";r=%d;t=%d, "organization";r=%d;t=%d'
            % (
                reply.key_remaining,
                _more_in(reply.key_full_in, key_interval),
                reply.organization_remaining,
                _more_in(reply.organization_full_in, organization_interval),
            ),
        ),
        (b"x-ratelimit-limit", quota),
        (b"x-ratelimit-remaining", b"%d" % remaining),
        (b"x-ratelimit-reset", b"%d" % seconds(reply.now + full_in)),
    )


def exceeded(reply: Reply) -> RateLimitExceeded:
    """Returns the error for a reply with status 429. A client that waits for its `retry_after` is served then."""
    return RateLimitExceeded(max(1, seconds(reply.wait)), _VIOLATED[reply.violated], headers=headers(reply))


def address_headers(limit: Limit, wait: int, full_in: int) -> Headers:
    """Returns the same headers for a client address that has tried too many unknown keys. `wait` and `full_in` are the
    seconds until it may try another one, and until the bucket is full again.
    """
    return (
        (b"ratelimit-policy", b'"address";q=%d;w=%d' % (limit.quota, limit.window)),
        (b"ratelimit", b'"address";r=0;t=%d' % wait),
        (b"x-ratelimit-limit", b"%d" % limit.quota),
        (b"x-ratelimit-remaining", b"0"),
        (b"x-ratelimit-reset", b"%d" % math.ceil(time.time() + full_in)),
    )


def seconds(microseconds: int) -> int:
    """Returns whole seconds, rounded up."""
    return -(-microseconds // _SECOND)


def interval(quota: int, window: int) -> int:
    """Returns the time in which one request becomes available, in microseconds. `window` is in seconds. It is rounded
    up to a whole number, so that exactly `quota` requests fit and no rounding adds up.
    """
    return -(-window * _SECOND // quota)


def _more_in(full_in: int, interval: int) -> int:
    """Returns the seconds until one more request remains; 0 if the bucket is full. Parameters are in microseconds."""
    return seconds(full_in % interval or interval) if full_in else 0


@lru_cache(maxsize=1024)
def _quotas(
    key_quota: int, key_window: int, organization_quota: int, organization_window: int
) -> tuple[bytes, bytes, bytes, int, int]:
    """Returns RateLimit-Policy, both quotas as text and both intervals, cached because they are the same in nearly all
    responses.
    """
    policy = b'"key";q=%d;w=%d, "organization";q=%d;w=%d' % (
        key_quota,
        key_window,
        organization_quota,
        organization_window,
    )
    intervals = interval(key_quota, key_window), interval(organization_quota, organization_window)
    return policy, b"%d" % key_quota, b"%d" % organization_quota, *intervals


MAX_BUCKETS = 8192
"""A key in use takes at most two: its own and its organization's. Beyond this number, the bucket that has not been
charged for the longest time is forgotten."""


class _Bucket(NamedTuple):
    """The present state of a bucket. Times are in microseconds."""

    interval: int
    remaining: int
    full_in: int
    wait: int


class LocalLimiter:
    """The buckets of one worker, by their names in Redis. Each is stored as the time at which it is full again."""

    def __init__(self, max_buckets: int = MAX_BUCKETS, clock: Callable[[], int] = time.monotonic_ns) -> None:
        """`clock` counts nanoseconds and never goes back."""
        self._max_buckets = max_buckets
        self._clock = clock
        self._full_at: dict[bytes, int] = {}  # in the order of their last charge

    def charge(self, caller: Credentials, reply: Reply) -> Reply:
        """Returns the reply with the limits of this worker in place of those in Redis. Either both buckets are charged,
        or neither is, and the status is 429.
        """
        now = self._clock() // 1000
        key = self._read(caller.key_limit, reply.key_quota, reply.key_window, now)
        organization = self._read(caller.organization_limit, reply.organization_quota, reply.organization_window, now)
        violated = (key.wait > 0) + 2 * (organization.wait > 0)
        if violated:
            reply = replace(reply, status=429, value=b"", violated=violated, wait=max(key.wait, organization.wait))
        else:
            key = self._charge(caller.key_limit, key, now)
            organization = self._charge(caller.organization_limit, organization, now)
        return replace(
            reply,
            key_remaining=key.remaining,
            key_full_in=key.full_in,
            organization_remaining=organization.remaining,
            organization_full_in=organization.full_in,
        )

    def _read(self, name: bytes, quota: int, window: int, now: int) -> _Bucket:
        interval = interval(quota, window)
        burst = interval * quota
        full_in = min(max(self._full_at.get(name, 0) - now, 0), burst)  # the limit may have been lowered
        room = burst - full_in
        return _Bucket(interval, room // interval, full_in, max(0, interval - room))

    def _charge(self, name: bytes, bucket: _Bucket, now: int) -> _Bucket:
        full_in = bucket.full_in + bucket.interval
        self._full_at.pop(name, None)
        self._full_at[name] = now + full_in
        if len(self._full_at) > self._max_buckets:
            del self._full_at[next(iter(self._full_at))]
        return bucket._replace(remaining=bucket.remaining - 1, full_in=full_in)


_ADDRESSES = 8192


class Guesses:
    """A bucket for each client address, as in `redis/lua/serve.lua` (GCRA). No request is without one."""

    def __init__(
        self, limit: Limit, proxies: tuple[Network, ...] = (), clock: Callable[[], int] = time.monotonic_ns
    ) -> None:
        """`proxies` are trusted to name the client's address in `X-Forwarded-For`. `clock` counts nanoseconds."""
        self._limit = limit
        self._interval = interval(limit.quota, limit.window)
        self._proxies = proxies
        self._clock = clock
        self._full_at: Recent[int] = Recent(_ADDRESSES)
        """When the bucket of each address is full again, in microseconds."""

    def charge(self, request: Request) -> None:
        """Call this before a key is looked up that may be unknown. Raises TooManyGuesses."""
        address = client_address(request, self._proxies)
        now = self._clock() // 1000
        full_in = max(0, (self._full_at.get(address) or 0) - now)
        wait = full_in + self._interval - self._interval * self._limit.quota
        if wait > 0:
            seconds = seconds(wait)
            raise TooManyGuesses(seconds, headers=address_headers(self._limit, seconds, seconds(full_in)))
        self._full_at.put(address, now + full_in + self._interval)

    def refund(self, request: Request) -> None:
        """Call this if the key was not unknown."""
        address = client_address(request, self._proxies)
        full_at = self._full_at.get(address)
        if full_at is not None:
            self._full_at.put(address, full_at - self._interval)
