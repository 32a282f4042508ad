"""What somebody may paste into the box "Where did my event go?". Pure."""

import re
from uuid import UUID

import msgspec

from projector.record import Partition
from schemas.api_keys import PREFIX

_COORDINATES = re.compile(r"([A-Za-z0-9._-]{1,249}):(\d{1,10}):(\d{1,19})")
_UUID = "[0-9a-fA-F]{8}(?:-?[0-9a-fA-F]{4}){3}-?[0-9a-fA-F]{12}"
_INSIDE = re.compile(rf"(?<![\w:-]){_UUID}(?::{_UUID})?(?![\w:-])")
_HASH = re.compile(r"[0-9a-fA-F]{64}")
LONGEST = 200
"""In characters. A key, a message key, and coordinates are shorter."""


class MessageKey(msgspec.Struct, frozen=True):
    """That of an entity of an organization."""

    organization: str
    id: str


class Id(msgspec.Struct, frozen=True):
    """An id of which nobody has said what it is."""

    id: str


class Coordinates(msgspec.Struct, frozen=True):
    """A record in Kafka."""

    partition: Partition
    offset: int


class KeyHash(msgspec.Struct, frozen=True):
    """The SHA-256 of an API key, in lower case."""

    hash: str


class Unknown(msgspec.Struct, frozen=True):
    """Nothing that Leadview could look up; perhaps a request id."""


class Key(msgspec.Struct, frozen=True):
    """An API key itself, which must not come here."""


Question = MessageKey | Id | Coordinates | KeyHash | Key | Unknown


def question(text: str) -> Question:
    """Returns what this text asks for. An id or a message key may stand in a longer text, such as a line of a log."""
    text = text.strip()
    if PREFIX in text:
        return Key()
    if _HASH.fullmatch(text):
        return KeyHash(text.lower())
    if match := _COORDINATES.fullmatch(text):
        return Coordinates(Partition(match[1], int(match[2])), int(match[3]))
    match [[str(UUID(word)) for word in found.split(":")] for found in _INSIDE.findall(text)]:
        case [[id_]]:
            return Id(id_)
        case [[organization, id_]]:
            return MessageKey(organization, id_)
    return Unknown()
