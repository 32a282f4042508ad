"""Test vectors of API keys for other languages, and what finds keys that leaked: `docs/api-keys.json`, parts of
`docs/reading.md`, and `docs/examples/gitleaks.toml`.
"""

from collections.abc import Iterable

from msgspec import Struct

from docs.generate.tables import table
from schemas import api_keys
from schemas.base62 import ALPHABET

_FIRST = "00000000-0000-0000-0000-000000000000"
_LAST = "ffffffff-ffff-ffff-ffff-ffffffffffff"
_USUAL = "2b9f4d8e-6c3a-4e51-b7d0-9a8c1f2e3d4b"


class Vector(Struct, frozen=True):
    """A valid key and its parts."""

    organization_id: str
    random_part: str
    key: str
    sha256: str


class Malformed(Struct, frozen=True):
    """A text that is not a valid key, and the reason."""

    text: str
    why: str


class Vectors(Struct, frozen=True):
    valid: tuple[Vector, ...]
    malformed: tuple[Malformed, ...]


PATTERN = rf"{api_keys.PREFIX}[0-7][0-9A-Za-z]{{51}}[0-4][0-9A-Za-z]{{5}}"
"""Every key. What else it finds has the form of a key and a wrong checksum: no regular expression can compute that. 128
bits begin with a digit up to 7 of the organization, and 32 bits with one up to 4 of the checksum.
"""
_RULE = """\
# A rule for gitleaks, which finds API keys of Leadview. `python -m docs.generate` writes it.
[[rules]]
id = "leadview-api-key"
description = "An API key of Leadview, which can read the leads and contacts of an organization"
regex = '''({pattern})(?:[^0-9A-Za-z]|$)'''
secretGroup = 1
keywords = ["{prefix}"]
"""


def scanner_rule() -> str:
    """Returns the configuration of gitleaks in TOML. In Go's expressions nothing looks ahead, so the character behind a
    key is a part of what is found.
    """
    return _RULE.format(pattern=PATTERN, prefix=api_keys.PREFIX)


def vectors() -> Vectors:
    """Returns the test vectors, which are the same at every call."""
    return Vectors(tuple(_valid()), tuple(_malformed(api_keys.mint(_USUAL, ALPHABET[10:40]))))


def parts() -> dict[str, str]:
    """Returns the parts of docs/reading.md by name: `pattern`, and the tables `valid` and `malformed`."""
    known = vectors()
    valid = (
        (f"`{row.organization_id}`", f"`{row.random_part}`", f"`{row.key}`", f"`{row.sha256}`") for row in known.valid
    )
    malformed = ((row.why, _code(row.text)) for row in known.malformed)
    return {
        "pattern": f"```text\n{PATTERN}\n```",
        "valid": table(("Organization", "Random part", "Key", "SHA-256"), valid),
        "malformed": table(("Why", "Text"), malformed),
    }


def _valid() -> Iterable[Vector]:
    inputs = (
        (_FIRST, "0" * 30),
        ("00000000-0000-0000-0000-000000000001", "1" * 30),
        (_USUAL, ALPHABET[10:40]),
        (_USUAL, ALPHABET[32:62]),
        ("9d3c1a7e-52f4-4b0e-8c6d-e1f2a3b4c5d6", ALPHABET[30:0:-1]),
        (_LAST, "z" * 30),
    )
    for organization_id, random_part in inputs:
        key = api_keys.mint(organization_id, random_part)
        yield Vector(organization_id, random_part, key, api_keys.key_hash(key))


def _malformed(key: str) -> Iterable[Malformed]:
    start = len(api_keys.PREFIX)
    other = "1" if key[-1] == "0" else "0"
    rows = (
        ("", "empty"),
        (api_keys.PREFIX, "the prefix alone"),
        (key[:-1], "one character short"),
        (key + "0", "one character long"),
        (key + "\n", "a line feed at the end"),
        (" " + key[:-1], "a space at the start, right length"),
        (key[start:], "no prefix"),
        (key.replace("lv_live_", "lv_test_"), "another prefix"),
        (key.replace("lv_live_", "LV_LIVE_"), "prefix in upper case"),
        (key[:-1] + other, "wrong checksum"),
        (key[:40] + key[41] + key[40] + key[42:], "two characters swapped"),
        (key.swapcase().replace("LV_LIVE_", "lv_live_"), "upper and lower case swapped"),
        (_checked(key[:40] + "-" + key[41:-6]), "`-` is not base62, right checksum"),
        (_checked(key[:40] + "é" + key[41:-6]), "`é` is not base62, right checksum over UTF-8"),
        (_checked(key[:40] + "٣" + key[41:-6]), "a digit, but not an ASCII one"),
        (
            _checked(api_keys.PREFIX + "7n42DGM5Tflk9n8mt7Fhc8" + "0" * 30),
            "the organization part is 2^128, one more than a UUID can be; right checksum",
        ),
    )
    return (Malformed(text, why) for text, why in rows)


def _checked(body: str) -> str:
    return body + api_keys.checksum(body)


def _code(text: str) -> str:
    """Returns `text` as code for a table cell: a line feed, which would end the row, as `\\n`; no text as "(empty)"."""
    return f"`{text}`".replace("\n", "\\n") if text else "(empty)"
