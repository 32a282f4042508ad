"""The scalar types that events and documents share, with the limits that their JSON Schemas show."""

from datetime import datetime
from typing import Annotated

from msgspec import Meta

UUID_PATTERN = "^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$"

# Checking the pattern of each id took half the time of decoding a lead, so all ids are checked at once (`schemas.ids`).
Uuid = Annotated[str, Meta(min_length=36, max_length=36, extra_json_schema={"format": "uuid", "pattern": UUID_PATTERN})]
Version = Annotated[int, Meta(ge=1, le=2**53 - 1, description="Grows with each change of the entity")]
Timestamp = Annotated[datetime, Meta(tz=True)]
Sha256Hex = Annotated[str, Meta(pattern="^[0-9a-fA-F]{64}$", min_length=64, max_length=64)]
# JSON's own grammar of a number, so that the text can stand in a document exactly as it was sent; with an exponent that
# readers can take: many refuse what is beyond an IEEE double. Here, too, `$` alone would let a trailing line feed pass.
DecimalText = Annotated[str, Meta(pattern=r"^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]{1,2})?$(?!\n)", max_length=64)]
UUID_AS_0 = b"00000000-0000-0000-0000-000000000000"
"""A canonical UUID whose digits were made 0: comparing with it takes a third of a regular expression's time."""
CustomFieldValue = str | int | float | bool | list[str] | None


def digits_as_0(digits: str) -> bytes:
    """The table for `bytes.translate` that makes each of these digits 0."""
    return bytes(ord("0") if chr(code) in digits else code for code in range(256))


_ANY_CASE = digits_as_0("0123456789abcdefABCDEF")
_LOWER_CASE = digits_as_0("0123456789abcdef")


def are_uuids(texts: list[str]) -> bool:
    """Returns whether each of these texts of 36 characters is a canonical UUID, in any case."""
    return "".join(texts).encode().translate(_ANY_CASE) == UUID_AS_0 * len(texts)


def are_lower_uuids(texts: list[str]) -> bool:
    """Returns whether each of these texts of 36 characters is a canonical UUID in lower case."""
    return "".join(texts).encode().translate(_LOWER_CASE) == UUID_AS_0 * len(texts)
