"""What can go wrong, by what is to be done about it.

ProjectorError
├── BadRecord         a record breaks the contract: it is parked as a dead letter
├── LineStopped       too many bad records: the line stands still until a person has looked
├── Unavailable       Redis or Kafka cannot be reached or cannot write: tried again until it can
└── Refused           what an operator asked for cannot be done: the message says why, and what to do
"""


class ProjectorError(Exception):
    """Base of all errors of this package."""


class BadRecord(ProjectorError):
    """A record breaks the contract. `reason` never holds a value of the payload: it is kept and shown."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class LineStopped(ProjectorError):
    """Too many bad records: going on would drain a topic into the dead letters."""


class Superseded(ProjectorError):
    """A generation that is being written wants a newer mapping version than this program has."""


class Unavailable(ProjectorError):
    """A service cannot be reached, or refuses to write, right now."""


class Refused(ProjectorError):
    """What was asked for cannot be done. The message is for the operator."""
