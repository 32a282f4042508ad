"""How far the running projectors are behind what the topics hold."""

from collections.abc import Mapping

from projector.ledger import Ledger
from projector.record import Partition
from projector.store import Store


async def lag(store: Store, ranges: Mapping[Partition, tuple[int, int]]) -> int:
    """Records of these ranges [first, last) that the live line has not applied yet. Raises Unavailable."""
    positions = await Ledger(store).positions(list(ranges))
    return sum(max(0, last - max(positions[p] or 0, first)) for p, (first, last) in ranges.items())
