"""API keys: `lv_live_` and 58 base62 characters (docs/reading.md).

    lv_live_ | 22: the organization's UUID as a 128-bit number | 30: random | 6: CRC-32 of all before

With the organization in the key, one round trip to the right node of a Redis Cluster is enough. That part grants
nothing: the stored record alone decides what a key may read. Test vectors for other languages: `docs/reading.md`.
"""

import re
import secrets
import zlib
from hashlib import sha256
from uuid import UUID

import msgspec

from schemas import base62

PREFIX = "lv_live_"
ORGANIZATION_LENGTH = 22
RANDOM_LENGTH = 30
CHECKSUM_LENGTH = 6
KEY_LENGTH = len(PREFIX) + ORGANIZATION_LENGTH + RANDOM_LENGTH + CHECKSUM_LENGTH
_CHECKSUM_START = KEY_LENGTH - CHECKSUM_LENGTH
_PREFIX = PREFIX.encode()
_CRC_OF_PREFIX = zlib.crc32(_PREFIX)
# 128 bits begin with a digit up to 7 of the organization, and 32 bits with one up to 4 of the checksum.
_LIKE_THE_REST = re.compile(rb"(?=([0-7][0-9A-Za-z]{51})([0-4][0-9A-Za-z]{5}))")


class MalformedKey(ValueError):
    """The text is not an API key: its prefix, length, alphabet or checksum is wrong. Never contains the text itself."""


class ParsedKey(msgspec.Struct, frozen=True):
    """What can be read from the text of a key: the organization, and the hash under which the key is stored."""

    organization_tag: str
    """22 base62 characters: the hash tag of the organization's keys in Redis."""
    hash: str
    """SHA-256 of the whole key, 64 lower-case hex digits."""

    @property
    def organization_id(self) -> str:
        return str(UUID(int=base62.decode(self.organization_tag)))


def organization_tag(organization_id: str) -> str:
    """Returns the organization's UUID as 22 base62 characters."""
    return base62.encode(UUID(organization_id).int, ORGANIZATION_LENGTH)


def mint(organization_id: str, random_part: str | None = None) -> str:
    """Returns a new key of an organization. `random_part` (30 base62 characters) is for test vectors only."""
    if random_part is None:
        random_part = "".join(secrets.choice(base62.ALPHABET) for _ in range(RANDOM_LENGTH))
    if len(random_part) != RANDOM_LENGTH:
        raise ValueError(f"the random part must have {RANDOM_LENGTH} base62 characters")
    base62.decode(random_part)
    body = PREFIX + organization_tag(organization_id) + random_part
    return body + checksum(body)


def key_hash(key: str) -> str:
    """Returns the SHA-256 of the whole key in lower-case hex. Nothing else of a key is ever stored."""
    return sha256(key.encode()).hexdigest()


def parse(key: str) -> ParsedKey:
    """Check the form and the checksum of a key, without a look-up. Raises MalformedKey."""
    if len(key) != KEY_LENGTH or not key.isascii() or not key.startswith(PREFIX):
        raise MalformedKey(f"an API key consists of {PREFIX} and {KEY_LENGTH - len(PREFIX)} base62 characters")
    if not key[len(PREFIX) :].isalnum():
        raise MalformedKey("an API key contains only base62 characters")
    body = key[:_CHECKSUM_START]
    if key[_CHECKSUM_START:] != checksum(body):
        raise MalformedKey("the checksum of the API key is wrong")
    tag = body[len(PREFIX) : len(PREFIX) + ORGANIZATION_LENGTH]
    if base62.decode(tag) >> 128:
        raise MalformedKey("the organization part of the API key is out of range")
    return ParsedKey(tag, key_hash(key))


def is_in(text: bytes) -> bool:
    """Returns whether a text contains the prefix of a key, or everything after it, whatever stands before and behind.
    So it cannot be used as a key, nor be completed to one. Takes time in proportion to the length of the text.
    """
    if text.find(_PREFIX) >= 0:
        return True
    if len(text) < KEY_LENGTH - len(PREFIX):
        return False
    for rest in _LIKE_THE_REST.finditer(text):
        crc, sent = zlib.crc32(rest[1], _CRC_OF_PREFIX), rest[2].decode()
        if base62.ALPHABET[crc % 62] == sent[-1] and _checksum(crc) == sent:  # the last character is compared faster
            return True
    return False


def checksum(body: str) -> str:
    """Returns the CRC-32 of everything before the checksum, as six base62 characters."""
    return _checksum(zlib.crc32(body.encode()))


def _checksum(crc: int) -> str:
    return base62.encode(crc, CHECKSUM_LENGTH)
