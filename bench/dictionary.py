"""The dictionary that documents are compressed with: what it is trained on, and how.

`python -m bench.dictionary` trains a dictionary on today's sample data. It writes the dictionary with its number, which
is the next one, to `schemas/dictionaries`, and what it was trained on to `tests/data`. Then name it in
`schemas.compression.DICTIONARY`. The old ones stay, and so does what each was trained on, so that a later field of a
document does not change it: the same texts and the same version of zstandard always give the same dictionary.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import zstandard

from devstack.programs import ROOT
from devstack.sample import SampleCrm
from projector import mapping
from schemas import bodies, compression

_SEED = 1  # not that of the other benchmarks
_RECORDS = 2000
_BYTES = 16_384
_AFTER_SUMMARY = b',"custom_fields":'
_NOW = datetime(2026, 1, 1, tzinfo=UTC)
_FILE_LEVEL = 19


def trained(corpus: Sequence[bytes], number: int) -> bytes:
    """Returns the dictionary with this number for these texts."""
    texts: list[bytes | bytearray | memoryview] = [*corpus]
    return zstandard.train_dictionary(_BYTES, texts, dict_id=number, level=compression.LEVEL).as_bytes()


def corpus_of(number: int) -> Path:
    """Returns the file with the texts that a dictionary is trained on: a line each, because JSON has no line break."""
    return ROOT / "tests" / "data" / f"dictionary-{number}.zst"


def _texts() -> Iterator[bytes]:
    crm = SampleCrm(_SEED, contacts=_RECORDS, leads=_RECORDS, now=lambda: _NOW)
    for contact in crm.contacts.values():
        text = msgspec.json.encode(mapping.contact_document(contact))
        yield from bodies.parts_of_contact(text, text.index(_AFTER_SUMMARY))
    for lead in crm.leads.values():
        yield bodies.without_contact_id(msgspec.json.encode(mapping.lead_document(lead)))


if __name__ == "__main__":
    number, corpus = compression.DICTIONARY + 1, list(_texts())
    corpus_of(number).write_bytes(zstandard.ZstdCompressor(_FILE_LEVEL).compress(b"\n".join(corpus)))
    (ROOT / "schemas" / "dictionaries" / f"{number}.zdict").write_bytes(trained(corpus, number))
