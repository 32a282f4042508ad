"""Parts of the organizations, so that a comparison needs only as much memory as the settings allow.

What follows from the records of one organization is kept until the organization is compared. So a comparison takes the
organizations in parts, by a hash of their ids, and reads the topics once for each part. How many parts there are
follows from the number of records. A part that turns out to have more entities than there is memory for is split.
"""

from typing import NamedTuple
from zlib import crc32

_UUID_LENGTH = 36
_MOST_PARTS = 1 << 20
_ENTITY_BYTES = 1400
"""What a comparison keeps of an entity, whatever its size: ids, the newest event, hashes. Measured: 1,040 bytes for a
document, and 1,400 for an API key.
"""


class Part(NamedTuple):
    """The organizations whose hash has this remainder."""

    remainder: int = 0
    modulus: int = 1

    def has(self, organization_id: str) -> bool:
        """Returns whether an organization is in this part."""
        return self.modulus == 1 or crc32(organization_id.encode()) % self.modulus == self.remainder

    def has_key(self, key: bytes | None) -> bool:
        """Returns whether a record with this message key is of an organization in this part. One without a key is of
        every part, because nobody knows whose it is.
        """
        return self.modulus == 1 or key is None or crc32(key[:_UUID_LENGTH]) % self.modulus == self.remainder

    def halves(self) -> "tuple[Part, Part] | None":
        """Returns the two parts that this one consists of; None if it is not worth it."""
        if self.modulus >= _MOST_PARTS:
            return None
        return Part(self.remainder, 2 * self.modulus), Part(self.remainder + self.modulus, 2 * self.modulus)


ALL = Part()
"""All organizations."""


def parts_of(records: int, most: int) -> list[Part]:
    """Returns as many parts of all organizations as keep each of them at `most` entities or fewer, if all parts of this
    number of records are equal in size.
    """
    modulus = min(_MOST_PARTS, max(1, -(-records // most)))
    return [Part(remainder, modulus) for remainder in range(modulus)]


def most_entities(memory: int) -> int:
    """Returns how many entities fit into this number of megabytes."""
    return max(1, memory * 1_000_000 // _ENTITY_BYTES)
