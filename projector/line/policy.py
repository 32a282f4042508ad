"""The limits of a line: how many records it takes at once, how long it waits, and when it halts."""

from typing import Protocol

import msgspec

from schemas.settings import ProjectorSettings


class Clock(Protocol):
    """Tells the time as the module `time` does: in seconds from any beginning, and in seconds since 1970."""

    def monotonic(self) -> float: ...

    def time(self) -> float: ...


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """All times are in seconds."""

    batch_records: int
    """The line takes in no more polls after this many records."""
    bad_share: float
    """The line halts if a larger share of the last 1000 records is bad."""
    bad_row: int
    """The line halts after this many consecutive bad records."""
    poll: float = 0.5
    """The longest time that a poll waits for records."""
    batch: float = 0.02
    """The time for which a batch takes in further polls. Each record is written at once, and visible from then on, but
    a checkpoint for every few records would take as long as their writes."""
    slice: float = 0.01
    """The time for which records are decoded at once: the event loop does nothing else meanwhile."""
    fan_out: float = 0.005
    """The time for which the line makes steps of fan-outs before it polls again. While records arrive, it makes one:
    the records of others come first."""
    check: float = 1.0
    """The time between two comparisons of the positions with Redis and Kafka."""
    first_pause: float = 0.1
    """The pause after the first failure. It doubles with each further one."""
    longest_pause: float = 1.0
    """The longest pause while Redis or Kafka is not available. It is short: what was published during an outage, such
    as the revocation of a key, waits for the next attempt."""
    longest_pause_after_defect: float = 5.0
    """The longest pause after another error."""
    halted: float = 2.0
    """The time between two checks of a halted line for accepted bad records."""
    superseded: float = 1.0
    """The time between two attempts of a line that stands by to write again."""

    @classmethod
    def of(cls, settings: ProjectorSettings) -> "Policy":
        return cls(
            batch_records=settings.batch_records,
            bad_share=settings.dead_letter_share,
            bad_row=settings.dead_letter_row,
        )
