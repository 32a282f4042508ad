"""The control record: which generation is served, which ones are written, and how far (`docs/control-record.md`).

It is a hash in Redis, of which every shard of a cluster has a copy (`schemas.names.control`). These fields are the same
in all copies:

    layout      the layout of everything that Leadview stores: `LAYOUT`
    stamp       grows with each change of these fields (`Stamp`)
    copies      the hash tags of all copies, separated by spaces
    live        the number of the generation that the API serves
    known       the generations that may have keys in Redis, separated by commas
    state       JSON: everything else (`projector.ledger.control.State`)

These fields belong to one copy, and describe its shard:

    incarnation   random; new whenever the copy had to be created, and so whenever its shard was emptied
    filling       the generations that were written when the copy was created, separated by commas
    filled        the generations of which this shard holds every record below the positions of this copy. The API
                  serves a shard only if its copy names the live generation here
    swept         the generations that are being dropped and of which this shard holds no key any more
    <topic>:<partition>   "<next offset> <time of the newest event> <time of the checkpoint> <leader epoch> <topic id>",
                  times in ms since 1970; -1 and `-` if the brokers do not say it
"""

import secrets
import time

from msgspec import Struct

LAYOUT = 2
"""Increase it with every change of names or values in Redis that an older program would misread (docs/upgrading.md)."""

LAYOUT_FIELD = "layout"
STAMP = "stamp"
COPIES = "copies"
LIVE = "live"
KNOWN = "known"
STATE = "state"
INCARNATION = "incarnation"
FILLING = "filling"
FILLED = "filled"
SWEPT = "swept"

SERVED_FIELDS = (LAYOUT_FIELD, LIVE, FILLED, COPIES)
"""What the API reads with every request."""

_TIME, _LINEAGE, _EPOCH, _NONCE = 12, 24, 36, 44


class Stamp(Struct, frozen=True, order=True):
    """Identifies one state of the control record. Later states have a greater `text`, compared as text.

    `text` has 44 hexadecimal digits: the lineage (the time of the first record in milliseconds, 12, and random, 12),
    the epoch, which counts the changes (12), and a random number (8), so that two changes never have the same stamp.
    """

    text: str

    @classmethod
    def first(cls) -> "Stamp":
        """Returns the stamp of a new lineage."""
        return cls(f"{int(time.time() * 1000):012x}{secrets.token_hex(6)}{1:012x}{secrets.token_hex(4)}")

    def next(self) -> "Stamp":
        """Returns the stamp of a change of the state with this stamp."""
        return Stamp(f"{self.lineage}{self.epoch + 1:012x}{secrets.token_hex(4)}")

    @property
    def lineage(self) -> str:
        return self.text[:_LINEAGE]

    @property
    def epoch(self) -> int:
        return int(self.text[_LINEAGE:_EPOCH] or "0", 16)


def new_incarnation() -> str:
    """Returns a random text."""
    return secrets.token_hex(8)


def parse_generations(text: bytes | str | None) -> tuple[int, ...]:
    """Parse generations as they are stored: `1,2`. No text means no generations."""
    if not text:
        return ()
    return tuple(int(number) for number in (text.decode() if isinstance(text, bytes) else text).split(","))


def format_generations(generations: tuple[int, ...]) -> str:
    """Format generations as they are stored: `1,2`."""
    return ",".join(str(number) for number in generations)
