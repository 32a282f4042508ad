"""The rate limits of a worker, and the headers that tell of them.

Redis charges the limits of keys and organizations (`serve.lua`). A worker counts two things itself, in memory and on
its own clock: the unknown keys that an address tries, and the charges that Redis refused to write. It does not know
what the other workers granted: `n` workers let up to `n` times these limits pass.

In the headers (draft-ietf-httpapi-ratelimit-headers, and the older X-RateLimit-*), `r` requests remain, and in `t`
seconds there is one more (0: the bucket is full). Seconds are rounded up, so that it is enough to wait for them.
"""

import math
import time
from collections.abc import Callable
from functools import lru_cache

from msgspec.structs import replace

from api.errors import RateLimitExceeded, TooManyGuesses
from api.redis.store import Reply
from api.request import Credentials
from schemas.error_body import Policy
from schemas.gcra import Bucket, bucket, interval
from schemas.layouts import Outcome
from schemas.settings import Limit

MAX_BUCKETS = 8192
"""A key in use takes at most two: its own and its organization's."""
_SECOND = 1_000_000
_POLICIES: tuple[Policy, Policy] = "key", "organization"


class Buckets:
    """Buckets by name. Beyond `max_buckets`, the one that has not been charged for the longest time is forgotten."""

    def __init__(self, max_buckets: int = MAX_BUCKETS, clock: Callable[[], int] = time.monotonic_ns) -> None:
        """`clock` counts nanoseconds and never goes back."""
        self._max_buckets = max_buckets
        self._clock = clock
        self._full_at: dict[bytes, int] = {}  # in the order of their last charge

    def _read(self, name: bytes, limit: Limit, now: int) -> Bucket:
        return bucket(limit.quota, limit.window, self._full_at.get(name, 0) - now)

    def _charge(self, name: bytes, read: Bucket, now: int) -> Bucket:
        """Returns what is left. The bucket was just read, and allows a request."""
        charged = read.charged()
        self._full_at.pop(name, None)
        self._full_at[name] = now + charged.full_in
        if len(self._full_at) > self._max_buckets:
            del self._full_at[next(iter(self._full_at))]
        return charged


class LocalLimiter(Buckets):
    """Decides about a request whose charge Redis refused to write. Quotas and windows are those of Redis."""

    def charge(self, caller: Credentials, reply: Reply) -> Reply:
        """Returns the reply with the limits of this worker in place of those in Redis. Either both buckets are charged,
        or neither is, and the outcome is LIMITED.
        """
        now = self._clock() // 1000
        key = self._read(caller.key_limit, Limit(reply.key_quota, reply.key_window), now)
        by_organization = Limit(reply.organization_quota, reply.organization_window)
        organization = self._read(caller.organization_limit, by_organization, now)
        if key.wait or organization.wait:
            reply = replace(reply, outcome=Outcome.LIMITED, value=b"")
        else:
            key = self._charge(caller.key_limit, key, now)
            organization = self._charge(caller.organization_limit, organization, now)
        return replace(reply, key_full_in=key.full_in, organization_full_in=organization.full_in)


class Guesses(Buckets):
    """Limits how many unknown API keys are tried from one client address."""

    def __init__(self, limit: Limit) -> None:
        super().__init__()
        self._limit = limit

    def charge(self, address: bytes) -> None:
        """Call this before a key is looked up that may be unknown. Raises TooManyGuesses."""
        now = self._clock() // 1000
        found = self._read(address, self._limit, now)
        if found.wait:
            raise TooManyGuesses(seconds(found.wait), ["address"], headers=_address_headers(self._limit, found))
        self._charge(address, found, now)

    def refund(self, address: bytes) -> None:
        """Call this if the key was not unknown."""
        if address in self._full_at:
            self._full_at[address] -= interval(self._limit.quota, self._limit.window)


def headers(reply: Reply) -> bytes:
    """Returns the lines of all rate-limit headers. X-RateLimit-* describe the bucket with fewer requests left, that of
    the key if both have the same.
    """
    lines, key_interval, organization_interval = _lines(
        reply.key_quota, reply.key_window, reply.organization_quota, reply.organization_window
    )
    # As `Reply.buckets` has it, without two calls for each request.
    key_remaining = reply.key_quota + -reply.key_full_in // key_interval
    organization_remaining = reply.organization_quota + -reply.organization_full_in // organization_interval
    if key_remaining <= organization_remaining:
        quota, remaining, full_in = reply.key_quota, key_remaining, reply.key_full_in
    else:
        quota, remaining, full_in = reply.organization_quota, organization_remaining, reply.organization_full_in
    return lines % (
        key_remaining,
        _more_in(reply.key_full_in, key_interval),
        organization_remaining,
        _more_in(reply.organization_full_in, organization_interval),
        quota,
        remaining,
        seconds(reply.now + full_in),
    )


def exceeded(reply: Reply) -> RateLimitExceeded:
    """Returns the error for a reply with LIMITED. A client that waits for its `retry_after` is served then."""
    waits = [left.wait for left in reply.buckets()]
    violated = [policy for policy, wait in zip(_POLICIES, waits, strict=True) if wait]
    return RateLimitExceeded(max(1, seconds(max(waits))), violated, headers=headers(reply))


def _address_headers(limit: Limit, found: Bucket) -> bytes:
    """Returns the same headers for a client address that has tried too many unknown keys."""
    return (
        b'ratelimit-policy: "address";q=%d;w=%d\r\nratelimit: "address";r=0;t=%d\r\n'
        b"x-ratelimit-limit: %d\r\nx-ratelimit-remaining: 0\r\nx-ratelimit-reset: %d\r\n"
    ) % (limit.quota, limit.window, seconds(found.wait), limit.quota, math.ceil(time.time() + seconds(found.full_in)))


def seconds(microseconds: int) -> int:
    """Returns whole seconds, rounded up."""
    return (microseconds + _SECOND - 1) // _SECOND


def _more_in(full_in: int, interval: int) -> int:
    """Returns the seconds until one more request remains; 0 if the bucket is full. Parameters are in microseconds."""
    return ((full_in % interval or interval) + _SECOND - 1) // _SECOND if full_in else 0


@lru_cache(maxsize=1024)
def _lines(
    key_quota: int, key_window: int, organization_quota: int, organization_window: int
) -> tuple[bytes, int, int]:
    """Returns the lines with places for the numbers that change, and both intervals, cached because they are the same
    for nearly all responses.
    """
    lines = (
        b'ratelimit-policy: "key";q=%d;w=%d, "organization";q=%d;w=%d\r\n'
        b'ratelimit: "key";r=%%d;t=%%d, "organization";r=%%d;t=%%d\r\n'
        b"x-ratelimit-limit: %%d\r\nx-ratelimit-remaining: %%d\r\nx-ratelimit-reset: %%d\r\n"
    ) % (key_quota, key_window, organization_quota, organization_window)
    return lines, interval(key_quota, key_window), interval(organization_quota, organization_window)
