"""How much a line takes at once, how long it waits, and when it halts."""

from typing import Protocol

import msgspec

from schemas.settings import ProjectorSettings


class Clock(Protocol):
    """What the module `time` has: seconds from any beginning, and seconds since 1970."""

    def monotonic(self) -> float: ...

    def time(self) -> float: ...


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """All times are in seconds."""

    batch_records: int
    """The line takes in no more polls after this many records."""
    bad_share: float
    """The line halts if a larger share of the last 1000 records is bad,"""
    bad_row: int
    """or if this many consecutive records are."""
    poll: float = 0.5
    """How long a poll waits for records."""
    batch: float = 0.02
    """How long a batch takes in further polls, and waits for them: each record is written at once, and visible from
    then on, but a checkpoint for every few of them would take as long as to write them."""
    slice: float = 0.01
    """How long records are decoded at once: the event loop does nothing else meanwhile."""
    fan_out: float = 0.005
    """How long the line makes steps of fan-outs before it polls again."""
    check: float = 1.0
    """The time between two comparisons of the positions with Redis and Kafka."""
    first_pause: float = 0.1
    """The pause after a failure. It doubles with each failure, so that the first attempt after an outage applies what
    was published meanwhile, such as the revocation of a key,"""
    longest_pause: float = 1.0
    """up to this while Redis or Kafka is not available,"""
    longest_pause_after_defect: float = 5.0
    """and up to this after another error."""
    halted: float = 2.0
    """The time between two looks whether an operator has accepted bad records,"""
    superseded: float = 1.0
    """and whether the newer program is gone."""

    @classmethod
    def of(cls, settings: ProjectorSettings) -> "Policy":
        return cls(
            batch_records=settings.batch_records,
            bad_share=settings.dead_letter_share,
            bad_row=settings.dead_letter_row,
        )
