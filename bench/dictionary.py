"""The dictionary that documents are compressed with: what it is trained on, and how.

python -m bench.dictionary corpus FILE          writes the texts of today's sample data
python -m bench.dictionary train CORPUS FILE    trains a dictionary on such a file

A new dictionary gets the next number: in `schemas/dictionaries` and as `schemas.compression.DICTIONARY`. The old ones
stay, and so does what each was trained on (`tests/data/dictionary-<number>.zst`), so that a later field of a document
does not change it: the same texts and the same version of zstandard always give the same dictionary.
"""

import sys
from collections.abc import Iterator, Sequence
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
_FILE_LEVEL = 19


def trained(corpus: Sequence[bytes]) -> bytes:
    """Returns the dictionary."""
    texts: list[bytes | bytearray | memoryview] = [*corpus]
    level, number = compression.LEVEL, compression.DICTIONARY
    return zstandard.train_dictionary(_BYTES, texts, dict_id=number, level=level).as_bytes()


def read_corpus(path: Path) -> list[bytes]:
    """Returns the texts of a file that `write_corpus` wrote: a line each, for JSON has no line break."""
    return zstandard.ZstdDecompressor().decompress(path.read_bytes()).split(b"\n")


def write_corpus(path: Path) -> None:
    """Write what is compressed of today's sample data."""
    path.write_bytes(zstandard.ZstdCompressor(_FILE_LEVEL).compress(b"\n".join(_texts())))


def _texts() -> Iterator[bytes]:
    crm = SampleCrm(_SEED, contacts=_RECORDS, leads=_RECORDS, now=lambda: _NOW)
    for contact in crm.contacts.values():
        text = msgspec.json.encode(mapping.contact_document(contact))
        yield from bodies.parts_of_contact(text, text.index(_AFTER_SUMMARY))
    for lead in crm.leads.values():
        yield bodies.without_contact_id(msgspec.json.encode(mapping.lead_document(lead)))


def main(arguments: list[str]) -> int:
    match arguments:
        case ["corpus", path]:
            write_corpus(Path(path))
        case ["train", corpus, path]:
            Path(path).write_bytes(trained(read_corpus(Path(corpus))))
        case _:
            sys.stderr.write(f"{__doc__}\n")
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
