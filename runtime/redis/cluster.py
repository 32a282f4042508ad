"""The primaries of a cluster: which of them serves which slot.

The program decides what it has for a primary (`N`): it may keep a connection to each one, or open connections when they
are needed. The key of a command decides which primary gets it. While slots are being moved, or after a replica was
promoted, Redis redirects (`runtime/redis/errors.py`), and the slot map has to be read again.
"""

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from runtime.redis.access import Address, SlotMap
from runtime.redis.errors import Unavailable
from schemas import names
from schemas.redis_url import Host

N = TypeVar("N")


class Primaries(Generic[N]):
    """The primaries, as the slot map said it last."""

    def __init__(self, slot_map: SlotMap, opened: Callable[[Address], N], dropped: Callable[[N], None]) -> None:
        """`opened` makes the program's object for a primary, and `dropped` is called with it when the node is no longer
        a primary.
        """
        self._map = slot_map
        self._opened = opened
        self._dropped = dropped
        self.owners: list[N | None] = [None] * names.SLOTS
        """The program's object for the primary of each slot."""
        self.nodes: dict[Host, N] = {}
        """The primaries, and nodes that were named by a redirection since the map was read."""
        self.version = 0
        """Increases whenever slots may have moved."""
        self._shards: tuple[int, list[frozenset[int]]] = 0, []
        self._failure = ""
        """Why the map could not be read last; nothing if it was read."""
        self.outdated = asyncio.Event()
        """Is set if the map has to be read again."""

    async def read(self, failed: Host | None = None) -> None:
        """Read the slot map; the node at `failed` is asked last. Raises Unavailable."""
        self.outdated.clear()
        try:
            hosts = await self._map.read(failed)
        except Unavailable as error:
            self._failure = f" ({error})"
            raise
        self._failure = ""
        primaries = {host: self.node(host) for host in set(filter(None, hosts))}
        owners = [primaries[host] if host else None for host in hosts]
        self.version += owners != self.owners
        self.owners = owners
        for host in self.nodes.keys() - primaries.keys():
            self._dropped(self.nodes.pop(host))

    def owner(self, slot: int) -> N:
        """Returns the program's object for the primary of a slot. Raises Unavailable if none is known."""
        node = self.owners[slot]
        if node is None:
            if self.version:  # otherwise it has not been read yet, and is going to be
                self.outdated.set()
            raise Unavailable(f"no primary of the Redis Cluster is known to serve this slot{self._failure}")
        return node

    def node(self, host: Host) -> N:
        """Returns the program's object for the node at this address."""
        if host not in self.nodes:
            self.nodes[host] = self._opened(self._map.address(host))
        return self.nodes[host]

    def move(self, slot: int, node: N) -> None:
        """Note that a slot has moved, until the map is read again."""
        self.version += self.owners[slot] is not node
        self.owners[slot] = node

    def shards(self) -> list[frozenset[int]]:
        """Returns the slots of each primary, the same sets while the map is the same."""
        if self._shards[0] != self.version:
            found: dict[int, set[int]] = {}
            for slot, node in enumerate(self.owners):
                if node is not None:
                    found.setdefault(id(node), set()).add(slot)
            self._shards = self.version, list(map(frozenset, found.values()))
        return self._shards[1]

    async def renew(self) -> None:
        """Read the map over new connections, as soon as possible."""
        await self._map.renew()
        self.outdated.set()

    async def close(self) -> None:
        """Close the connections over which the map is read."""
        await self._map.close()
