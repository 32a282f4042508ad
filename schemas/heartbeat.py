"""What a program that writes says about itself, once a second (hash `lv3{ledger}:writers`).

Projectors store it, operators' commands read all of it, and the API reads how old what it serves is.
"""

import msgspec

from schemas.control import Stamp
from schemas.line_states import Former, LineTrouble

SILENT_MS = 5_000
"""A writer that has stored no heartbeat for this time is not alive, or stands still."""


class Condition(msgspec.Struct, frozen=True, kw_only=True):
    """How a projector is.

    `lines` has the state of each line (`schemas.line_states.State`), `troubles` why those do not work that do not run,
    and `partitions` how many partitions each line has. `problems` are what its health check says, except what `status`
    finds by asking the servers itself, and `kinds` the names of these problems, in the same order. Everything that
    Kafka had before `complete_until` was visible when it was measured last, at `measured_at`; both are in milliseconds
    since 1970, and 0 if it was never measured.
    """

    lines: dict[str, str] = {}
    troubles: dict[str, LineTrouble] = {}
    partitions: dict[str, int] = {}
    problems: list[str] = []
    kinds: list[str] = []
    measured_at: int = 0
    complete_until: int = 0


class Heartbeat(Condition, frozen=True):
    """What a writer says about itself.

    `role` is the command. `stamp` is the oldest control record under which it may still write.
    """

    role: str
    mapping: int
    stamp: str

    def trouble(self, line: str) -> LineTrouble | None:
        """Returns why a line does not work; None if it does."""
        if found := self.troubles.get(line):
            return found
        state, _, said = self.lines[line].partition(": ")  # a former program has stored words behind the state
        return None if state == "running" else Former(state, said)

    @property
    def acknowledged(self) -> Stamp:
        return Stamp(self.stamp)

    def has_seen(self, stamp: Stamp) -> bool:
        """Returns whether the writer writes under this control record or one that followed it."""
        return self.acknowledged.follows(stamp)


class Freshness(msgspec.Struct, frozen=True):
    """The fields of a `Heartbeat` that the API reads. It can read those of other versions that have these fields."""

    role: str
    measured_at: int = 0
    complete_until: int = 0
