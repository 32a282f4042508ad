"""Trains the dictionary that documents are compressed with: `python -m bench.dictionary FILE`.

The same versions of Leadview and zstandard always write the same bytes. A new dictionary gets the next number: in
`schemas/dictionaries` and as `schemas.compression.DICTIONARY`. The old ones stay.
"""

import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import zstandard

from devstack.sample import SampleCrm
from projector import mapping
from schemas import bodies, compression

_SEED = 1  # not that of the other benchmarks
_RECORDS = 2000
_BYTES = 16_384
_AFTER_SUMMARY = b',"custom_fields":'
_NOW = datetime(2026, 1, 1, tzinfo=UTC)


def trained() -> bytes:
    """Returns the dictionary."""
    texts: list[bytes | bytearray | memoryview] = [*_texts()]
    level, number = compression.LEVEL, compression.DICTIONARY
    return zstandard.train_dictionary(_BYTES, texts, dict_id=number, level=level).as_bytes()


def _texts() -> Iterator[bytes]:
    """Yields what is compressed of sample data."""
    crm = SampleCrm(_SEED, contacts=_RECORDS, leads=_RECORDS, now=lambda: _NOW)
    for contact in crm.contacts.values():
        text = msgspec.json.encode(mapping.contact_document(contact))
        yield from bodies.parts_of_contact(text, text.index(_AFTER_SUMMARY))
    for lead in crm.leads.values():
        yield bodies.without_contact_id(msgspec.json.encode(mapping.lead_document(lead)))


if __name__ == "__main__":
    Path(sys.argv[1]).write_bytes(trained())
