"""Looks through the keys of Redis for those of deleted organizations, which all share a pass.

On a cluster, all keys of an organization are in one slot, so only the server of the slot is asked, and the server to
which the slot is being moved. A pass yields to readers. Its cursor is stored every second: if its program ends, another
one continues there, on the same server.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping

import msgspec

from projector.line.pace import Pacer
from projector.redis.node import Node, fields
from projector.redis.store import Store
from projector.verify.comparison import MAX_LATENCY
from schemas import names

_STORE_SECONDS = 1.0

Drop = Callable[[bytes, list[bytes]], Awaitable[int]]
"""Deletes these keys of an organization, and returns how many existed."""


class _PassProgress(msgspec.Struct, frozen=True):
    """The progress of a pass: the organizations that it looks for, with the heads of their deletions, its cursor, and
    the number of keys that it has deleted of each.
    """

    heads: dict[str, str]
    cursor: str
    found: dict[str, int]


class Passes:
    """The passes for some organizations, by their names and the heads of their deletions."""

    def __init__(self, store: Store, heads: Mapping[bytes, bytes], drop: Drop) -> None:
        self._store = store
        self._heads = heads
        self._drop = drop
        self._pacer = Pacer.of_replay(store, MAX_LATENCY)
        self._looked = False

    async def run(self, owners: Collection[bytes]) -> dict[bytes, int]:
        """Make a pass. Returns how many keys it has deleted of each organization that it has looked for: perhaps not of
        all, if it is the rest of a pass that another program has begun. Raises Unavailable.
        """
        before = await self._servers(owners)
        found: Counter[bytes] = Counter()
        continued: set[bytes] = set()
        for node, some in before.items():
            run_id = fields(await node.ask(b"INFO", b"server"))["run_id"].encode()
            progress = None if self._looked or self._store.sharded else await self._stored(run_id, some)
            if progress:
                some = {owner.encode() for owner in progress.heads}  # noqa: PLW2901 - those of the pass that was begun
                continued |= some
            found.update(await self._over(node, run_id, some, progress))
        self._looked = True
        looked_for = continued or set(owners)
        if await self._servers(owners) != before:  # slots were moved meanwhile: another pass has to find nothing
            found.update(owners)
        return {owner: found[owner] for owner in looked_for}

    async def _servers(self, owners: Collection[bytes]) -> dict[Node, set[bytes]]:
        servers: dict[Node, set[bytes]] = {}
        for owner in owners:
            for node in await self._store.nodes_of(owner + b"-"):
                servers.setdefault(node, set()).add(owner)
        return servers

    async def _stored(self, run_id: bytes, owners: set[bytes]) -> _PassProgress | None:
        """Returns how far a pass for some of these organizations has come, whose program has ended."""
        stored = await self._store.ask_one(b"HGET", names.ERASURES, run_id)
        try:
            progress = msgspec.json.decode(stored or b"null", type=_PassProgress | None)
        except msgspec.MsgspecError:  # of another version
            return None
        own = {owner.decode(): self._heads[owner].hex() for owner in owners}
        return progress if progress and progress.heads.items() <= own.items() else None

    async def _over(
        self, node: Node, run_id: bytes, owners: set[bytes], progress: _PassProgress | None
    ) -> dict[bytes, int]:
        """Look through the keys of a server, from where the pass has come to. Returns how many keys the whole pass has
        deleted of each organization.
        """
        found = Counter({owner.encode(): count for owner, count in progress.found.items()} if progress else {})
        heads = {owner.decode(): self._heads[owner].hex() for owner in owners}
        [first, *others] = owners
        length, pattern = len(first), names.ALL if others else names.of_organization(first)
        is_stored, stored_at = progress is not None, time.monotonic()
        asked_at = time.monotonic()
        async for cursor, keys in self._store.scan_from(node, pattern, progress.cursor.encode() if progress else b"0"):
            seconds = time.monotonic() - asked_at
            own: dict[bytes, list[bytes]] = {}
            for key in keys:
                if len(key) > length and (owner := key[:length]) in owners:
                    own.setdefault(owner, []).append(key)
            for owner, some in own.items():
                found[owner] += await self._drop(owner, some)
            if time.monotonic() - stored_at > _STORE_SECONDS:
                is_stored, stored_at = True, time.monotonic()
                counts = {owner.decode(): count for owner, count in found.items()}
                text = msgspec.json.encode(_PassProgress(heads, cursor.decode(), counts))
                await self._store.ask_one(b"HSET", names.ERASURES, run_id, text)
            await self._pacer.wait()
            if self._pacer.yields:
                await asyncio.sleep(seconds)
            asked_at = time.monotonic()
        if is_stored:
            await self._store.ask_one(b"HDEL", names.ERASURES, run_id)
        return found
