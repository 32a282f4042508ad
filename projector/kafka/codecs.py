"""Decompresses a record batch, up to a limit."""

import struct
import zlib
from collections.abc import Callable
from typing import Any

import cramjam

from schemas.limits import MAX_BATCH_BYTES

_GZIP, _SNAPPY, _LZ4, _ZSTD = range(1, 5)
_XERIAL, _XERIAL_HEADER = b"\x82SNAPPY\x00", 16
_MOST_BLOCKS = MAX_BATCH_BYTES // 1024
"""Clients write blocks of 1 KiB or more. Each one takes a while, even an empty one."""
_LENGTH = struct.Struct(">i")
_TOO_LARGE = f"it has more than {MAX_BATCH_BYTES:,} bytes"


def decompressed(codec: int, data: memoryview) -> bytes | bytearray:
    """Raises whatever the library of the codec raises; ValueError for an unknown codec or too many bytes."""
    if codec == _GZIP:
        decompressor = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
        found = decompressor.decompress(data, MAX_BATCH_BYTES)
        if decompressor.unconsumed_tail or not decompressor.eof:
            raise ValueError(_TOO_LARGE if decompressor.unconsumed_tail else "it is cut off")
        return found
    if codec == _SNAPPY:
        return _snappy(data)
    if codec in _CODECS:
        return _within_limit(_CODECS[codec], data)
    raise ValueError(f"codec {codec} is unknown")


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
    """Decompress what Java clients write (blocks behind a header), or a single block."""
    if bytes(data[: len(_XERIAL)]) != _XERIAL:
        return _snappy_block(data, MAX_BATCH_BYTES)
    found, at = bytearray(), _XERIAL_HEADER
    for _ in range(_MOST_BLOCKS):
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
