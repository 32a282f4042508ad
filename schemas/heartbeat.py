"""What a program that writes says about itself, once a second (hash `lv3{ledger}:writers`).

Projectors store it, operators' commands read all of it, and the API reads how old what it serves is. What keeps a line
from its work is a kind with its data: `schemas.words` says it in English.
"""

from typing import ClassVar, Literal

from msgspec import Struct

from schemas.control import Stamp
from schemas.faults import Fault

SILENT_MS = 5_000
"""A writer that has stored no heartbeat for this time is not alive, or stands still."""
APART_MS = 2_000
"""The clocks of two machines that are further apart differ: what depends on the time may be wrong."""
State = Literal["running", "halted", "failing", "standing by"]
"""What a line does, in the heartbeats and in `status`."""


class HaltedLine(Struct, frozen=True, tag="halted"):
    """There are too many bad records: `count` of them, either consecutive (`row`) or among the last `window` (`share`).

    `most` is the setting that limits them. `last` has the coordinates of the last one that counted. `ranges` has all
    bad records that were read, also those behind the last one, as `dead-letters accept` takes them, and `bad` how many
    they are.
    """

    state: ClassVar[State] = "halted"
    limit: Literal["row", "share"]
    count: int
    window: int
    most: float
    last: str
    fault: Fault
    bad: int = 0
    ranges: tuple[str, ...] = ()


class FailingLine(Struct, frozen=True, tag="failing"):
    """A step of the line has failed with an error that nobody expected; `error` is the name of its type."""

    state: ClassVar[State] = "failing"
    line: str
    error: str


class StandingByLine(Struct, frozen=True, tag="standing by"):
    """The line leaves its work to newer programs: a generation requires a mapping version of theirs."""

    state: ClassVar[State] = "standing by"
    generation: int
    required: int
    mapping: int


class Clocks(Struct, frozen=True):
    """What a clock of Redis and that of a program said at the same moment, in milliseconds since 1970."""

    redis: int
    own: int

    @classmethod
    def read(cls, before: int, redis: int, after: int) -> "Clocks":
        """Returns the clocks, of which that of Redis was read between two readings of the other one."""
        return cls(redis, min(max(redis, before), after))

    @property
    def apart_ms(self) -> int:
        return abs(self.redis - self.own)

    @property
    def differ(self) -> bool:
        return self.apart_ms > APART_MS


class Former(Struct, frozen=True, tag="former"):
    """What a former version of the program said in its heartbeat, in its words."""

    state: str
    text: str


LineTrouble = HaltedLine | FailingLine | StandingByLine | Former


class KafkaRight(Struct, frozen=True):
    """A right that Kafka refuses to a user: an operation on resources of these names, as `kafka-acls.sh` calls them.
    `principal` is the user as Kafka knows it; empty if the program does not know that.
    """

    operation: str
    resource: Literal["topic", "group", "cluster", "transactional-id"]
    names: tuple[str, ...]
    principal: str = ""


class Condition(Struct, frozen=True, kw_only=True):
    """How a projector is.

    `lines` has the state of each line (`State`), `troubles` says why a line does not run,
    and `partitions` how many partitions each line has. `problems` are what its health check says, except what `status`
    finds by asking the servers itself. In the same order, `kinds` are the names of these problems, and `of_lines` the
    line, or the work beside the lines, that each of them is of. It is empty if a problem is of none, and where a former
    version does not say it. `seconds` is for how long each of them lasts, which their words do not say; 0 if it is not
    known, and where a former version says it in its words. `rights` are those that Kafka refuses, which `problems` has
    in words.

    Everything that Kafka had before `complete_until` was visible when it was measured last, at `measured_at`; both are
    in milliseconds since 1970, and 0 if it was never measured. `clocks` is None unless they differ. `hindered` are the
    lines whose last step has failed. `misplaced` are the topics with new records in other partitions than murmur2 gives
    for their message keys. `members` is what the coordinators of consumer groups call the lines; None if its
    version does not say it. `prefix` and `group` are LEADVIEW_TOPIC_PREFIX and LEADVIEW_GROUP_ID; None if its version
    does not say it. `expected` is LEADVIEW_EXPECTED_PROJECTORS.
    """

    lines: dict[str, str] = {}
    troubles: dict[str, LineTrouble] = {}
    partitions: dict[str, int] = {}
    problems: list[str] = []
    kinds: list[str] = []
    of_lines: list[str] = []
    seconds: list[float] = []
    hindered: list[str] = []
    members: list[str] | None = None
    measured_at: int = 0
    complete_until: int = 0
    clocks: Clocks | None = None
    prefix: str | None = None
    group: str | None = None
    expected: int = 0
    misplaced: list[str] = []
    rights: list[KafkaRight] = []


class Heartbeat(Condition, frozen=True):
    """What a writer says about itself.

    `role` is the command. `stamp` is the oldest control record under which it may still write. It was started at
    `started_at`, in milliseconds since 1970; 0 if its version does not say it.
    """

    role: str
    mapping: int
    stamp: str
    started_at: int = 0

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


class Freshness(Struct, frozen=True):
    """The fields of a `Heartbeat` that the API reads. It can read those of other versions that have these fields."""

    role: str
    measured_at: int = 0
    complete_until: int = 0
