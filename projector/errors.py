"""The errors of the projector, by what has to be done about them.

ProjectorError
├── BadRecord         a record breaks the contract: the line parks it as a dead letter and continues
├── LineStopped       there are too many bad records: the line halts until an operator accepts them or restarts it
├── Superseded        a newer program has to write: the line waits until this one may write again
├── Unavailable       Redis or Kafka cannot be reached, or refuses writes: the line retries until it succeeds
│   ├── Denied        this user lacks a right: the line retries, and says so at once, since waiting changes nothing
│   └── SessionEnded  the control record was changed by a command: the line reads again at once
├── NotKnown          `doctor` cannot check something: the message says why
└── Refused           an operator's command cannot be carried out: the message says why, and what to do
    └── Conflict      the control record was changed at the same time

Unavailable and Refused carry the reason as a kind with data (`projector/reason.py`, `projector/problem.py`), and `str`
of them is the words for it. A text is raised at the edge only, by commands (`operate`), or was said by others.
"""

from collections.abc import Sequence

from projector.problem import KafkaDenies, Problem
from projector.reason import Reason
from projector.words import why
from schemas import words
from schemas.faults import Fault
from schemas.heartbeat import HaltedLine, KafkaRight, StandingByLine

Coordinates = tuple[str, int, int]
"""The topic, partition and offset of a record."""


class ProjectorError(Exception):
    """Base of all errors of this package."""


class BadRecord(ProjectorError):
    """A record breaks the contract. `fault` is stored and shown, so it never contains a value of the payload.

    `version` is the version that the record gives its entity, as far as it can be read; `projector.interpret` adds it.
    """

    def __init__(self, fault: Fault, version: int | None = None) -> None:
        super().__init__(fault)
        self.fault = fault
        self.version = version

    @property
    def reason(self) -> str:
        """The fault in words."""
        return words.fault(self.fault)

    def __str__(self) -> str:
        return self.reason


class LineStopped(ProjectorError):
    """There are too many bad records. To continue would move a whole topic into the dead letters.

    `bad` are the records that counted. The line tries again as soon as any of them is accepted.
    """

    def __init__(self, halt: HaltedLine, bad: Sequence[Coordinates]) -> None:
        super().__init__(halt)
        self.halt = halt
        self.bad = tuple(bad)

    def __str__(self) -> str:
        return words.trouble(self.halt)


class Superseded(ProjectorError):
    """A generation that has to be written requires a newer mapping version than this program has."""

    def __init__(self, reason: StandingByLine) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return words.trouble(self.reason)


class WithReason(ProjectorError):
    """An error that carries why it was raised."""

    def __init__(self, reason: Reason | Problem | str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return why(self.reason)


class Unavailable(WithReason):
    """Redis or Kafka cannot be reached, or refuses writes, at the moment."""


class Denied(Unavailable):
    """Redis or Kafka lets this user not do what a step needs, until somebody grants it. `right` is what Kafka refuses;
    None if it is not that.
    """

    @property
    def right(self) -> KafkaRight | None:
        return self.reason.right if isinstance(self.reason, KafkaDenies) else None


class SessionEnded(Unavailable):
    """The control record is no longer the one that the session was opened with. Another one can be opened at once."""


class NotKnown(ProjectorError):
    """A check is not possible. The message says why."""


class Refused(WithReason):
    """A command cannot be carried out. The message is for the operator."""


class Conflict(Refused):
    """The control record has changed since it was read."""
