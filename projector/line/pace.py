"""How much a line puts on its way to Redis at once: whatever a reader asks for waits behind it."""

from typing import NamedTuple


class Burst(NamedTuple):
    """`slice` records are decoded and sent together, `slices` of them are under way, a call holds `documents`."""

    slice: int
    slices: int
    documents: int


# Decoding shares the event loop with Kafka's heartbeat and with the other line, so slices are not larger. Several are
# under way: with one, Redis and we would wait for each other in turns.
WIDE = Burst(slice=200, slices=3, documents=20)
"""The most records a second."""
NARROW = Burst(slice=15, slices=1, documents=5)
"""A third of a millisecond of Redis: a reader's own way there and back. About half the rate."""
