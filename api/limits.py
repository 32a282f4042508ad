"""The rate-limit headers (draft-ietf-httpapi-ratelimit-headers, and the older X-RateLimit-*), from the script's reply.

`r` requests remain, and in `t` seconds there is one more (0: the bucket is full). All seconds are rounded up, so that a
client that waits this long has waited long enough.
"""

import math
import time
from functools import lru_cache

from api.errors import Headers, RateLimitExceeded
from api.redis.store import Reply
from schemas.problems import Policy
from schemas.settings import Limit

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
