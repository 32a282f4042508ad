"""The scalar types that events and documents share, with the limits that their JSON Schemas show."""

import re
from datetime import datetime
from typing import Annotated, TypeVar

from msgspec import Meta

from schemas.limits import MAX_ENTRIES, MAX_INTEGER, MIN_INTEGER

T = TypeVar("T")

UUID_PATTERN = "^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$"
UUID_BYTES = re.compile(UUID_PATTERN.encode())
"""For what Redis holds. Its `fullmatch` takes no final line feed, which `$` alone would accept."""

# A pattern for each id took half the time of decoding a lead. Instead, all ids are checked at once (`schemas.ids`).
Uuid = Annotated[str, Meta(min_length=36, max_length=36, extra_json_schema={"format": "uuid", "pattern": UUID_PATTERN})]
MAX_VERSION = 2**53 - 1
Version = Annotated[int, Meta(ge=1, le=MAX_VERSION)]
Timestamp = Annotated[datetime, Meta(tz=True)]
Sha256Hex = Annotated[str, Meta(pattern="^[0-9a-fA-F]{64}$", min_length=64, max_length=64)]
# A number of JSON without an exponent, so that a document can contain the text exactly as it was sent, and readers that
# take the digits of an amount as they are find them all. `$` alone would accept a final line feed.
DecimalText = Annotated[str, Meta(pattern=r"^-?(0|[1-9][0-9]*)(\.[0-9]+)?$(?!\n)", max_length=64)]
UUID_AS_0 = b"00000000-0000-0000-0000-000000000000"
"""A canonical UUID with every digit replaced by 0. Comparing with it is three times as fast as a regular expression."""
Integer = Annotated[int, Meta(ge=MIN_INTEGER, le=MAX_INTEGER)]
List = Annotated[list[T], Meta(max_length=MAX_ENTRIES)]
CustomFieldValue = str | Integer | float | bool | List[str] | None


def digits_as_0(digits: str) -> bytes:
    """Returns the table for `bytes.translate` that replaces each of these digits by 0."""
    return bytes(ord("0") if chr(code) in digits else code for code in range(256))


_ANY_CASE = digits_as_0("0123456789abcdefABCDEF")
LOWER_CASE = digits_as_0("0123456789abcdef")
"""Makes `UUID_AS_0` of a canonical UUID in lower case."""


def are_uuids(texts: list[str]) -> bool:
    """Returns whether each of these texts of 36 characters is a canonical UUID, in any case."""
    return "".join(texts).encode().translate(_ANY_CASE) == UUID_AS_0 * len(texts)


def are_lower_uuids(joined: bytes) -> bool:
    """Returns whether these are only canonical UUIDs in lower case, one after the other."""
    return joined.translate(LOWER_CASE) == UUID_AS_0 * (len(joined) // len(UUID_AS_0))
