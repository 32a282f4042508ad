"""Compression of what Redis stores of documents: zstd with a dictionary that ships with Leadview.

A packed text is a byte with the number of its dictionary, then a frame of zstd without its first four bytes, which are
the same in all frames. Dictionaries are files in `schemas/dictionaries` (`python -m bench.dictionary` trains them).
None is ever changed or removed, because Redis may hold what was packed with it.
"""

from functools import cache
from importlib.resources import files
from threading import get_ident

import zstandard

from schemas.limits import MAX_DOCUMENT_BYTES

DICTIONARY = 1
"""The dictionary that new texts are packed with. Its number is at most 31, so that no JSON begins with that byte."""
LEVEL = 3
"""Level 5 takes twice the time, and saves 4 %."""
_TAG = bytes([DICTIONARY])
_MAGIC = zstandard.FRAME_HEADER


class Unreadable(ValueError):
    """A stored value is corrupt, or was written by a newer version of Leadview. The message says which."""


def packed(text: bytes) -> bytes:
    """Returns a text as it is stored."""
    return _TAG + _compressor(get_ident()).compress(text)[len(_MAGIC) :]


def unpacked(stored: bytes) -> bytes:
    """Returns the text that was packed; what follows it is ignored. Raises Unreadable, also for more than the largest
    document.
    """
    frame = _MAGIC + stored[1:]
    try:
        size = zstandard.frame_content_size(frame)
        if not 0 <= size <= MAX_DOCUMENT_BYTES:
            raise Unreadable(f"its compressed text claims to have {size:,} bytes")
        return _decompressor(stored[0], get_ident()).decompress(frame)
    except zstandard.ZstdError as error:
        raise Unreadable(f"its compressed text is corrupt: {error}") from None


def dictionary(number: int) -> bytes:
    """Returns the bytes of a dictionary. Raises Unreadable if this version of Leadview does not have it."""
    try:
        return (files("schemas") / "dictionaries" / f"{number}.zdict").read_bytes()
    except FileNotFoundError:
        raise Unreadable(
            f"it begins with the byte {number}, which is neither JSON nor the number of a dictionary of this version: "
            "it is corrupt, or a newer version of Leadview wrote it"
        ) from None


# A compressor is used by one thread at a time.
@cache
def _compressor(_thread: int) -> zstandard.ZstdCompressor:
    return zstandard.ZstdCompressor(
        LEVEL, zstandard.ZstdCompressionDict(dictionary(DICTIONARY)), write_checksum=False, write_dict_id=False
    )


@cache
def _decompressor(number: int, _thread: int) -> zstandard.ZstdDecompressor:
    return zstandard.ZstdDecompressor(zstandard.ZstdCompressionDict(dictionary(number)))
