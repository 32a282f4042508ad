"""The control record: which generation is served, which ones are written, and how far (`docs/how-it-works.md`).

It is a hash in Redis, of which every shard of a cluster has a copy (`schemas.names.copy`). These fields are the same
in all copies:

    layout      the layout of everything that Leadview stores: `LAYOUT`
    stamp       grows with each change of these fields (`Stamp`)
    copies      the hash tags of all copies, separated by spaces
    live        the generation that the API serves (`GenerationId`)
    known       the generations that may have keys in Redis, separated by commas
    slots       which copies answer for which slots of a cluster (`parse_slots`); empty if Redis is not a cluster. For
                a slot of which none of its copies says so, the API believes a server only if all copies are complete
    state       JSON: everything else (`projector.ledger.control.State`)

These fields belong to one copy, and describe its shard:

    incarnation   random; new whenever the copy had to be created, and so whenever its shard was emptied
    filling       the generations that were written when the copy was created, separated by commas
    filled        the generations of which this shard holds every record below the positions of this copy. The API
                  serves a shard only if its copy names the live generation here
    swept         the generations that are being dropped and of which this shard holds no key any more
    <topic>:<partition>   "<next offset> <time of the last event> <time of the checkpoint> <leader epoch> <topic id>",
                  times in ms since 1970; -1 and `-` if the brokers do not say it
"""

import re
import secrets
import time
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import NewType

from msgspec import Struct

from schemas import base62

LAYOUT = 3
"""Increase it with every change of names or values in Redis that an older program would misread (docs/upgrading.md).
The name of every key begins with it."""

GenerationId = NewType("GenerationId", str)
"""The identity of a generation, such as `2.k3x9Qz`: a number for people, and a random tag.

The number may be used again after Redis was emptied or went back in time. The identity never is: so what was decided
about one generation, and is carried out late, cannot meet another one.
"""

LAYOUT_FIELD = "layout"
STAMP = "stamp"
COPIES = "copies"
LIVE = "live"
KNOWN = "known"
SLOTS = "slots"
STATE = "state"
INCARNATION = "incarnation"
FILLING = "filling"
FILLED = "filled"
SWEPT = "swept"

SERVED_FIELDS = (LAYOUT_FIELD, LIVE, FILLED, COPIES)
"""What the API reads with every request. On a cluster it reads `STAMP` as well, and `SLOTS` once for each stamp."""

_TIME, _LINEAGE, _EPOCH, _NONCE = 12, 24, 36, 44


class Stamp(Struct, frozen=True, order=True):
    """Identifies one state of the control record. Later states have a greater `text`, compared as text.

    `text` has 44 hexadecimal digits: the lineage (the time of the first record in milliseconds, 12, and random, 12),
    the epoch, which counts the changes (12), and a random number (8), so that two changes never have the same stamp.
    """

    text: str

    @classmethod
    def first(cls, before: "Stamp | None" = None) -> "Stamp":
        """Returns the stamp of a new lineage, later than any stamp from before, also if the clock was set back."""
        began = max(int(time.time() * 1000), int(before.text[:_TIME] or "0", 16) + 1 if before else 0)
        return cls(f"{began:012x}{secrets.token_hex(6)}{1:012x}{secrets.token_hex(4)}")

    def next(self) -> "Stamp":
        """Returns the stamp of a change of the state with this stamp."""
        return Stamp(f"{self.lineage}{self.epoch + 1:012x}{secrets.token_hex(4)}")

    def follows(self, other: "Stamp") -> bool:
        """Returns whether this is the other stamp, or that of a state that came after it."""
        return self == other or (self.lineage, self.epoch) > (other.lineage, other.epoch)

    @property
    def lineage(self) -> str:
        return self.text[:_LINEAGE]

    @property
    def epoch(self) -> int:
        return int(self.text[_LINEAGE:_EPOCH] or "0", 16)


_TAG = 6
_GENERATION = re.compile(rb"[1-9][0-9]*\.[0-9A-Za-z]{%d}" % _TAG)


def new_generation(number: int) -> GenerationId:
    """Returns an identity that nobody has used before."""
    return GenerationId(f"{number}.{''.join(secrets.choice(base62.ALPHABET) for _ in range(_TAG))}")


def parse_generation(text: bytes) -> GenerationId:
    """Returns the identity that is stored as this text. Raises ValueError if it is none."""
    if not _GENERATION.fullmatch(text):
        raise ValueError(f"not a generation: {text!r:.20}")
    return GenerationId(text.decode())


def number_of(generation: GenerationId) -> int:
    """Returns the number by which people know a generation."""
    return int(generation.partition(".")[0])


def in_order(generations: Iterable[GenerationId]) -> tuple[GenerationId, ...]:
    """Returns the generations in the order of their numbers."""
    return tuple(sorted(generations, key=lambda generation: (number_of(generation), generation)))


def parse_generations(text: bytes | str | None) -> tuple[GenerationId, ...]:
    """Parse generations as they are stored: `1.Ab3dE6,2.k3x9Qz`. No text means no generations."""
    if not text:
        return ()
    return tuple(map(GenerationId, (text.decode() if isinstance(text, bytes) else text).split(",")))


def format_generations(generations: Iterable[GenerationId]) -> str:
    """Format generations as they are stored."""
    return ",".join(generations)


def parse_slots(text: bytes) -> dict[bytes, list[range]]:
    """Parse for which slots each copy answers, by its hash tag: `12:5461-10922 ledger:0-5459,5460`. A slot may have
    several copies, those that its server has, or none. Raises ValueError.
    """
    found = {}
    for word in text.split():
        tag, _, ranges = word.partition(b":")
        bounds = [each.partition(b"-") for each in ranges.split(b",")]
        found[tag] = [range(int(first), int(last or first) + 1) for first, _, last in bounds]
    return found


def format_slots(slots: Mapping[bytes, frozenset[int]]) -> str:
    """Format what `parse_slots` takes; always the same text for the same slots. What has no slots is left out.

    It is done for every look at the control record, and takes more than a millisecond for sets that it has not seen.
    """
    return _formatted(tuple(sorted(slots.items())))


@lru_cache(maxsize=4)
def _formatted(slots: tuple[tuple[bytes, frozenset[int]], ...]) -> str:
    return " ".join(f"{tag.decode()}:{ranges}" for tag, of_tag in slots if (ranges := _ranges(of_tag)))


def _ranges(slots: frozenset[int]) -> str:
    found: list[list[int]] = []
    for slot in sorted(slots):
        if found and slot == found[-1][1] + 1:
            found[-1][1] = slot
        else:
            found.append([slot, slot])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in found)
