"""Limits how many unknown API keys are tried from one client address. Each worker counts for itself."""

import time
from collections.abc import Callable

from api import limits
from api.errors import TooManyGuesses
from api.keys.client_address import client_address
from api.keys.recent import Recent
from api.request import Request
from schemas.settings import Limit, Network

_ADDRESSES = 8192


class Guesses:
    """A bucket for each client address, as in `redis/lua/serve.lua` (GCRA). No request is without one."""

    def __init__(
        self, limit: Limit, proxies: tuple[Network, ...] = (), clock: Callable[[], int] = time.monotonic_ns
    ) -> None:
        """`proxies` are trusted to name the client's address in `X-Forwarded-For`. `clock` counts nanoseconds."""
        self._limit = limit
        self._interval = limits.interval(limit.quota, limit.window)
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
            seconds = limits.seconds(wait)
            raise TooManyGuesses(seconds, headers=limits.address_headers(self._limit, seconds, limits.seconds(full_in)))
        self._full_at.put(address, now + full_in + self._interval)

    def refund(self, request: Request) -> None:
        """Call this if the key was not unknown."""
        address = client_address(request, self._proxies)
        full_at = self._full_at.get(address)
        if full_at is not None:
            self._full_at.put(address, full_at - self._interval)
