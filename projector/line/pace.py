"""How many writes a line keeps in flight. Redis is single-threaded, so API reads queue behind them."""

from typing import NamedTuple, Protocol


class Pace(NamedTuple):
    """Records per slice, slices in flight at the same time, and maximum documents per script call."""

    slice_records: int
    slices_in_flight: int
    max_documents: int


# Decoding shares the event loop with Kafka's heartbeat and with the other line, so slices are not larger. Several are
# in flight: with one only, Redis and the projector would take turns waiting for each other.
FULL = Pace(slice_records=200, slices_in_flight=3, max_documents=20)
"""The pace with the highest throughput."""
YIELDING = Pace(slice_records=6, slices_in_flight=1, max_documents=3)
"""Occupies Redis for about 0.15 ms, less than a reader's own round trip. Has a third to a half of the throughput."""
YIELDING_ON_CLUSTER = Pace(slice_records=15, slices_in_flight=1, max_documents=5)
"""The same for a cluster, whose masters share each slice, and where a slice takes longer."""


class Pacer(Protocol):
    """Decides how fast a line writes. Its methods never raise."""

    async def pace(self, records: int) -> Pace:
        """Returns the pace of the next batch, which has so many records."""

    async def wait(self) -> None:
        """Wait as long as necessary before the next slice."""


class FullSpeed:
    """The `Pacer` of a line that never yields to readers."""

    async def pace(self, records: int) -> Pace:  # noqa: ARG002 - required by Pacer
        return FULL

    async def wait(self) -> None:
        return
