"""The rate-limit headers (draft-ietf-httpapi-ratelimit-headers, and the older X-RateLimit-*), from the script's reply.

`r` requests remain, and the bucket is full again in `t` seconds. All seconds are rounded up, so that a client that
waits this long has waited long enough.
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
    key_full_in = seconds(reply.key_full_in)
    organization_full_in = seconds(reply.organization_full_in)
    policy, key_quota, organization_quota = _quotas(
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
            % (reply.key_remaining, key_full_in, reply.organization_remaining, organization_full_in),
        ),
        (b"x-ratelimit-limit", quota),
        (b"x-ratelimit-remaining", b"%d" % remaining),
        (b"x-ratelimit-reset", b"%d" % seconds(reply.now + full_in)),
    )


def exceeded(reply: Reply) -> RateLimitExceeded:
    """Returns the error for a reply with status 429. A client that waits for its `retry_after` is served then."""
    return RateLimitExceeded(max(1, seconds(reply.wait)), _VIOLATED[reply.violated], headers=headers(reply))


def address_headers(limit: Limit, full_in: int) -> Headers:
    """Returns the same headers for a client address that has tried too many unknown keys. `full_in` is in seconds."""
    return (
        (b"ratelimit-policy", b'"address";q=%d;w=%d' % (limit.quota, limit.window)),
        (b"ratelimit", b'"address";r=0;t=%d' % full_in),
        (b"x-ratelimit-limit", b"%d" % limit.quota),
        (b"x-ratelimit-remaining", b"0"),
        (b"x-ratelimit-reset", b"%d" % math.ceil(time.time() + full_in)),
    )


def seconds(microseconds: int) -> int:
    """Returns whole seconds, rounded up."""
    return -(-microseconds // _SECOND)


@lru_cache(maxsize=1024)
def _quotas(
    key_quota: int, key_window: int, organization_quota: int, organization_window: int
) -> tuple[bytes, bytes, bytes]:
    """Returns RateLimit-Policy and both quotas as text, cached because they are the same in nearly all responses."""
    policy = b'"key";q=%d;w=%d, "organization";q=%d;w=%d' % (
        key_quota,
        key_window,
        organization_quota,
        organization_window,
    )
    return policy, b"%d" % key_quota, b"%d" % organization_quota
