"""Decompresses record batches within a limit, whatever was sent."""

import zlib
from collections.abc import Callable
from struct import Struct
from typing import Any

import cramjam

from schemas.limits import MAX_BATCH_BYTES

_LENGTH = Struct(">i")
_GZIP, _SNAPPY, _LZ4, _ZSTD = range(1, 5)
_XERIAL, _XERIAL_HEADER = b"\x82SNAPPY\x00", 16
_MEMBER, _FIRST_BYTES = b"\x1f\x8b", 1024
"""The first bytes of a member of gzip, and the number of bytes of a further member that are read first."""
_MOST_BLOCKS = MAX_BATCH_BYTES // 1024
"""Clients write blocks of 1 KiB or more. Each block takes time, even an empty one."""
_TOO_LARGE = f"it has more than {MAX_BATCH_BYTES:,} bytes"


def decompressed(codec: int, data: memoryview) -> bytes | bytearray:
    """Returns everything that was compressed, also if it was in several pieces, one behind the other.

    Raises whatever the library of the codec raises; ValueError for an unknown codec or too many bytes.
    """
    if codec == _GZIP:
        return _gzip(data)
    if codec == _SNAPPY:
        return _snappy(data)
    if codec in _CODECS:
        return _within_limit(_CODECS[codec], data)
    raise ValueError(f"codec {codec} is unknown")


def _gzip(data: memoryview) -> bytes | bytearray:
    """Decompress all members of gzip. What follows them and is no member is ignored, as by Kafka."""
    content, rest = _gzip_member(data, MAX_BATCH_BYTES, len(data))
    if not rest:
        return content
    contents = bytearray(content)
    for _ in range(_MOST_BLOCKS):
        if bytes(rest[: len(_MEMBER)]) != _MEMBER:
            return contents
        content, rest = _gzip_member(rest, MAX_BATCH_BYTES - len(contents), _FIRST_BYTES)
        contents += content
    raise ValueError(f"it has more than {_MOST_BLOCKS:,} members")


def _gzip_member(data: memoryview, most: int, size: int) -> tuple[bytes, memoryview]:
    """Decompress the first member. Returns its content, and what follows it.

    zlib gets it in pieces. The first has `size` bytes, and each further one twice as many as the one before. Small
    pieces come first, because zlib copies what follows the member in the same piece.
    """
    decompressor, contents, at, left = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16), [], 0, most
    while not decompressor.eof:
        if at >= len(data):
            raise ValueError("it is cut off")
        contents.append(decompressor.decompress(data[at : at + size], left + 1))
        left -= len(contents[-1])
        if left < 0 or decompressor.unconsumed_tail:
            raise ValueError(_TOO_LARGE)
        at, size = at + size, 2 * size
    return b"".join(contents), data[min(at, len(data)) - len(decompressor.unused_data) :]


def _within_limit(decompress_into: Callable[[Any, Any], int], data: memoryview) -> bytearray:
    """Decompress into a buffer that grows up to the limit."""
    size = min(MAX_BATCH_BYTES, max(4096, 8 * len(data)))
    while True:
        buffer = bytearray(size)
        try:
            del buffer[decompress_into(data, buffer) :]
        except cramjam.DecompressionError:
            # It does not say whether the buffer was too small.
            if size == MAX_BATCH_BYTES:
                raise ValueError(f"it is corrupt, or {_TOO_LARGE}") from None
            size = min(MAX_BATCH_BYTES, 8 * size)
        else:
            return buffer


def _snappy(data: memoryview) -> bytes | bytearray:
    """Decompress what Java clients write (blocks behind a header, perhaps several times), or a single block."""
    if bytes(data[: len(_XERIAL)]) != _XERIAL:
        return _snappy_block(data, MAX_BATCH_BYTES)
    found, at = bytearray(), _XERIAL_HEADER
    for _ in range(_MOST_BLOCKS):
        if bytes(data[at : at + len(_XERIAL)]) == _XERIAL:
            at += _XERIAL_HEADER
        if at >= len(data):
            return found
        end = at + _LENGTH.size + _LENGTH.unpack_from(data, at)[0]
        if not at < end <= len(data):
            raise ValueError("a block has a wrong length")
        found += _snappy_block(data[at + _LENGTH.size : end], MAX_BATCH_BYTES - len(found))
        at = end
    raise ValueError(f"it has more than {_MOST_BLOCKS:,} blocks")


def _snappy_block(block: memoryview, most: int) -> bytes:
    if cramjam.snappy.decompress_raw_len(block) > most:
        raise ValueError(_TOO_LARGE)
    return bytes(cramjam.snappy.decompress_raw(block))


_CODECS: dict[int, Callable[[Any, Any], int]] = {_LZ4: cramjam.lz4.decompress_into, _ZSTD: cramjam.zstd.decompress_into}
