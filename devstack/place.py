"""Where a server runs: on loopback, or in a network namespace with an address of its own."""

from typing import NamedTuple


class Place(NamedTuple):
    """`host` is the address that a server listens on. `prefix` is put before its command and starts it there."""

    host: str = "127.0.0.1"
    prefix: tuple[str, ...] = ()


LOOPBACK = Place()
