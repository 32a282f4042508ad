"""A record that could not be applied, as it is stored for an operator."""

import time

import msgspec

from projector.record import Record
from schemas import names, words
from schemas.faults import Fault
from schemas.fields import MAX_VERSION, UUID_AS_0, are_uuids
from schemas.limits import MAX_KEY_BYTES


class DeadLetter(msgspec.Struct, frozen=True):
    """The coordinates of a record that could not be applied, and what is wrong with it. Never contains the payload."""

    topic: str
    partition: int
    offset: int
    key: str
    reason: str
    """What is wrong with the record, in words. They are made from the `fault`, and stored only without one: former
    versions of the program stored no fault."""
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
    fault: Fault | None = None
    """What is wrong with the record, for programs."""

    def __post_init__(self) -> None:
        if self.fault:
            msgspec.structs.force_setattr(self, "reason", words.fault(self.fault))

    @property
    def stored(self) -> bytes:
        """The JSON that Redis holds."""
        without_words = {"reason": ""} if self.fault else {}
        return msgspec.json.encode(msgspec.to_builtins(self) | without_words)

    @classmethod
    def of(cls, record: Record, fault: Fault, version: int | None = None) -> "DeadLetter":
        """Its size is limited, whatever the record was: a key that is too long is cut, and each part of a fault is
        short.
        """
        key = (record.key or b"")[:MAX_KEY_BYTES].decode(errors="backslashreplace")
        now = int(time.time() * 1000)
        known = version if version is not None and 1 <= version <= MAX_VERSION else None
        return cls(
            record.topic,
            record.partition,
            record.offset,
            key,
            "",
            now,
            offsets=record.offsets,
            version=known,
            fault=fault,
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
