"""GCRA, the arithmetic of the rate limits. A bucket is stored as the time at which it will be full again, and
`api/redis/lua/serve.lua` computes the same in Redis. All times are whole microseconds. Pure.
"""

from typing import NamedTuple

MICROSECONDS = 1_000_000
"""In a second."""


class Bucket(NamedTuple):
    """A bucket at one moment: `remaining` requests are allowed now, and the next one after `wait`, which is 0 if one is
    allowed now. One request becomes available in each `interval`, and after `full_in` all of them are.
    """

    interval: int
    remaining: int
    full_in: int
    wait: int


def interval(quota: int, window: int) -> int:
    """Returns the time in which one request becomes available. `window` is in seconds. It is rounded up to a whole
    number, so that exactly `quota` requests fit and no rounding adds up.
    """
    return -(-window * MICROSECONDS // quota)


def bucket(quota: int, window: int, full_in: int) -> Bucket:
    """Returns the bucket of a limit of `quota` requests per `window` seconds that will be full again after `full_in`. A
    time that has passed is 0, and one that is too long for the limit (it was lowered) is as long as possible.
    """
    each = interval(quota, window)
    full_in = min(max(full_in, 0), each * quota)
    room = each * quota - full_in
    return Bucket(each, room // each, full_in, max(0, each - room))
