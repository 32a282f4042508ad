"""Limits what unknown API keys cost: each would be looked up in Redis, and nothing else limits how many are tried.

A key that was just found to be unknown is refused from memory for half a second. Beyond that, each client address may
try a number of unknown keys in a time; further ones get 429. Keys that Redis knew when they were used last are not
affected. Each worker counts for itself.
"""

import time
from collections.abc import Callable
from ipaddress import ip_address

from api.credentials import Credentials
from api.errors import InvalidApiKey, TooManyGuesses
from api.recent import Recent
from api.request import Request
from schemas.settings import Limit, Network

REFUSED_SECONDS = 0.5
_ADDRESSES = 8192


class Guesses:
    """The unknown keys that were tried lately, by client address.

    `proxies` are trusted to name the client's address in `X-Forwarded-For`.
    """

    def __init__(
        self, limit: Limit, proxies: tuple[Network, ...] = (), clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._interval = limit.window / limit.quota
        self._burst = float(limit.window)
        self._proxies = proxies
        self._clock = clock
        self._full_at: Recent[float] = Recent(_ADDRESSES)
        """When the bucket of each address is full again (GCRA)."""

    def check(self, caller: Credentials, request: Request) -> None:
        """Call this before a key that was not valid lately is looked up. Raises InvalidApiKey and TooManyGuesses."""
        now = self._clock()
        if now < caller.refused_until:
            raise InvalidApiKey("the key was unknown, revoked or expired a moment ago")
        if address := client_address(request, self._proxies):
            wait = self._after(address, now) - self._burst
            if wait > 0:
                raise TooManyGuesses(max(1, -int(-wait // 1)))

    def refused(self, caller: Credentials, request: Request) -> None:
        """Note that a key is unknown, revoked or expired."""
        now = self._clock()
        caller.was_valid, caller.refused_until = False, now + REFUSED_SECONDS
        if address := client_address(request, self._proxies):
            self._full_at.put(address.encode(), now + self._after(address, now))

    def _after(self, address: str, now: float) -> float:
        """Returns the seconds until the bucket of an address would be full again, after one more guess."""
        return max(0.0, (self._full_at.get(address.encode()) or 0.0) - now) + self._interval


def client_address(request: Request, proxies: tuple[Network, ...]) -> str | None:
    """Returns the address of the client; None if it is not known.

    Every proxy appends the address from which it was called. So the last one that is not a trusted proxy is the client.
    """
    address = request.client
    forwarded = request.headers.get(b"x-forwarded-for", b"").decode("latin-1").replace("\n", ",").split(",")
    while address is not None and _is_in(address, proxies):
        address = forwarded.pop().strip() if forwarded else None
    return address or None


def _is_in(address: str, proxies: tuple[Network, ...]) -> bool:
    try:
        found = ip_address(address)
    except ValueError:
        return False
    return any(found in network for network in proxies)
