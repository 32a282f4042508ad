"""The generic cell rate algorithm, as `serve.lua` has it too: what is left of a rate limit, from one stored number.

Of a bucket only the time is stored at which it is full again. Each request moves it by one interval into the future, as
long as it is no farther away than the whole bucket. So there is no edge of a window at which a client gets twice its
quota. All times are in microseconds, windows in seconds.
"""

from typing import NamedTuple

_SECOND = 1_000_000


class Bucket(NamedTuple):
    """What is left of a rate limit at one moment."""

    interval: int
    """The time in which one request becomes available."""
    remaining: int
    full_in: int
    """The time until the bucket is full again; 0 if it is."""
    wait: int
    """The time until a request is allowed; 0 if one is allowed now."""

    def charged(self) -> "Bucket":
        """Returns the bucket after one request, which has to be allowed."""
        return self._replace(remaining=self.remaining - 1, full_in=self.full_in + self.interval)


def bucket(quota: int, window: int, full_in: int) -> Bucket:
    """Returns the bucket that is full again in this time, which may be negative, or longer than the limit allows: then
    the limit was lowered, and the bucket is empty.
    """
    step = interval(quota, window)
    burst = step * quota
    full_in = min(max(full_in, 0), burst)
    room = burst - full_in
    return Bucket(step, room // step, full_in, max(0, step - room))


def interval(quota: int, window: int) -> int:
    """Returns the time in which one request becomes available. It is rounded up to a whole number, so that exactly
    `quota` requests fit and no rounding adds up.
    """
    return -(-window * _SECOND // quota)
