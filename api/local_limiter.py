"""The local fallback limiter, used for a request whose charge Redis refused to write. Each worker counts for itself, in
memory, on its own clock.

Buckets, quotas and windows are those of `redis/lua/serve.lua`, but the workers do not know what the others granted:
`n` workers let up to `n` times the limits pass.
"""

import time
from collections.abc import Callable
from typing import NamedTuple

from msgspec.structs import replace

from api import limits
from api.credentials import Credentials
from api.redis.store import Reply

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
        interval = limits.interval(quota, window)
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
