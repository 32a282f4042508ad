"""A record that could not be applied, as it is stored for an operator."""

import time

import msgspec

from projector.record import Record
from schemas import names
from schemas.fields import MAX_VERSION, UUID_AS_0, are_uuids
from schemas.limits import MAX_KEY_BYTES

MAX_REASON = 1000
"""In characters."""


class DeadLetter(msgspec.Struct, frozen=True):
    """The coordinates of a record that could not be applied, and the reason. Never contains the payload."""

    topic: str
    partition: int
    offset: int
    key: str
    reason: str
    time: int
    """When the record was parked, in milliseconds since 1970."""
    accepted: bool = False
    """An operator knows that the record is bad: it does not count against the limits of bad records."""
    note: str = ""
    """Why it was accepted, in the words of the operator."""
    accepted_at: int | None = None
    """When it was accepted, in milliseconds since 1970."""
    offsets: int = 1
    """How many offsets it stands for, from its own on: more than one if a whole batch could not be read."""

    version: int | None = None
    """The version that the record gives its entity, as far as it can be read."""

    @classmethod
    def of(cls, record: Record, reason: str, version: int | None = None) -> "DeadLetter":
        """Its size is limited, whatever the record was: a key that is too long is cut, and so is the reason."""
        key = (record.key or b"")[:MAX_KEY_BYTES].decode(errors="backslashreplace")
        now = int(time.time() * 1000)
        known = version if version is not None and 1 <= version <= MAX_VERSION else None
        return cls(
            record.topic,
            record.partition,
            record.offset,
            key,
            reason[:MAX_REASON],
            now,
            offsets=record.offsets,
            version=known,
        )

    def accept(self, note: str, accepted_at: int) -> "DeadLetter":
        """Returns this dead letter as an accepted one."""
        return msgspec.structs.replace(self, accepted=True, note=note, accepted_at=accepted_at)

    @property
    def organization_id(self) -> str | None:
        """The id that the message key begins with, in lower case; None if it begins with none."""
        start = self.key[: len(UUID_AS_0)].lower()
        return start if len(start) == len(UUID_AS_0) and are_uuids([start]) else None

    @property
    def is_of_organization(self) -> bool:
        """Whether the message key is the id of an organization alone, as in the topic of organizations."""
        return self.key.lower() == self.organization_id

    @property
    def next_offset(self) -> int:
        return self.offset + self.offsets

    @property
    def field(self) -> str:
        return names.dead_letter(self.topic, self.partition, self.offset)
