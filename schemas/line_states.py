"""What keeps a line of a projector from its work, as heartbeats hold it. `schemas.words` says it in English."""

from typing import ClassVar, Literal

from msgspec import Struct

from schemas.faults import Fault

State = Literal["running", "halted", "failing", "standing by"]
"""What a line does, in the heartbeats and in `status`."""


class Halted(Struct, frozen=True, tag="halted"):
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


class Failing(Struct, frozen=True, tag="failing"):
    """A step of the line has failed with an error that nobody expected; `error` is the name of its type."""

    state: ClassVar[State] = "failing"
    line: str
    error: str


class StandingBy(Struct, frozen=True, tag="standing by"):
    """The line leaves its work to newer programs: a generation requires a mapping version of theirs."""

    state: ClassVar[State] = "standing by"
    generation: int
    required: int
    mapping: int


class Former(Struct, frozen=True, tag="former"):
    """What a former version of the program said in its heartbeat, in its words."""

    state: str
    text: str


LineTrouble = Halted | Failing | StandingBy | Former
