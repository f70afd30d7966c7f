"""The five codecs of Kafka, over cramjam.

Why cramjam: one maintained wheel brings native gzip, snappy, lz4 frames and zstd with the same two calls for each,
reads any buffer without a copy, releases the interpreter lock, and decompresses into a buffer of a given size. The
last point is what bounds a decompression bomb: a few bytes of zstd can claim gigabytes, so output goes into a buffer
that grows by steps up to a limit, never to whatever the input asks for.

Two formats need care so that Kafka's own readers take what is written here: lz4 frames must have independent blocks,
and snappy is framed as the xerial library does it. Raw snappy (some clients send it) is read as well.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import Final

import cramjam

from headrace.records.errors import CorruptMessage, RecordTooLarge, UnknownCodec

Bytes = bytes | bytearray | memoryview

DEFAULT_MAX_DECOMPRESSED: Final = 128 * 1024 * 1024

_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = _XERIAL_MAGIC + b"\x00\x00\x00\x01\x00\x00\x00\x01"
_XERIAL_BLOCK: Final = 32 * 1024
_UINT32: Final = Struct(">I")
_GZIP_LEVEL: Final = 6
_ZSTD_LEVEL: Final = 3
_OUTPUT_FULL: Final = "failed to write whole buffer"
"""How cramjam's native side words an output buffer that is too small; any other text means damaged input."""


class Codec(IntEnum):
    """The codec numbers of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


_DECOMPRESS_INTO: Final = {
    Codec.GZIP: cramjam.gzip.decompress_into,
    Codec.LZ4: cramjam.lz4.decompress_into,
    Codec.ZSTD: cramjam.zstd.decompress_into,
}


def compress(codec: int, data: Bytes) -> Bytes:
    """`data` as `codec` stores it in a batch."""
    match codec:
        case Codec.NONE:
            return data
        case Codec.GZIP:
            return bytes(cramjam.gzip.compress(data, level=_GZIP_LEVEL))
        case Codec.SNAPPY:
            return _compress_xerial(data)
        case Codec.LZ4:
            compressor = cramjam.lz4.Compressor(block_linked=False)
            compressor.compress(bytes(data))
            return bytes(compressor.finish())
        case Codec.ZSTD:
            return bytes(cramjam.zstd.compress(data, level=_ZSTD_LEVEL))
    raise _unknown(codec)


def decompress(codec: int, data: Bytes, max_size: int = DEFAULT_MAX_DECOMPRESSED) -> Bytes:
    """What `compress` was given. More than `max_size` bytes is `RecordTooLarge`, malformed input `CorruptMessage`."""
    if codec == Codec.NONE:
        return data
    try:
        if codec == Codec.SNAPPY:
            return _decompress_snappy(data, max_size)
        return _decompress_growing(Codec(codec), data, max_size)
    except cramjam.DecompressionError as error:
        raise CorruptMessage(f"{Codec(codec).name.lower()} data does not decompress: {error}") from None
    except ValueError:
        raise _unknown(codec) from None


def _decompress_growing(codec: Codec, data: Bytes, max_size: int) -> Bytes:
    into = _DECOMPRESS_INTO[codec]
    room = min(max_size, max(4096, 4 * len(data)))
    while True:
        out = bytearray(room)
        try:
            return memoryview(out)[: into(data, out)]
        except cramjam.DecompressionError as error:
            if _OUTPUT_FULL not in str(error):
                raise
        if room == max_size:
            raise _too_large(max_size)
        room = min(max_size, 4 * room)


def _compress_xerial(data: Bytes) -> bytes:
    out = bytearray(_XERIAL_HEADER)
    view = memoryview(data)
    for start in range(0, len(view), _XERIAL_BLOCK):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK]))
        out += _UINT32.pack(len(block))
        out += block
    return bytes(out)


def _decompress_snappy(data: Bytes, max_size: int) -> Bytes:
    view = memoryview(data)
    if not _starts_stream(view, 0):
        return _decompress_raw_snappy(view, max_size)
    out = bytearray()
    position, end = 0, len(view)
    while position < end:
        if _starts_stream(view, position):
            # Streams may be concatenated, each with its own header.
            position += len(_XERIAL_HEADER)
            continue
        if position + 4 > end:
            raise CorruptMessage("snappy data ends inside a block length")
        (length,) = _UINT32.unpack_from(view, position)
        position += 4
        if length > end - position:
            raise CorruptMessage(f"a snappy block of {length} bytes, only {end - position} are left")
        out += _decompress_raw_snappy(view[position : position + length], max_size, len(out))
        position += length
    return out


def _starts_stream(view: memoryview, position: int) -> bool:
    return bytes(view[position : position + len(_XERIAL_MAGIC)]) == _XERIAL_MAGIC


def _decompress_raw_snappy(block: memoryview, max_size: int, before: int = 0) -> bytearray:
    size = cramjam.snappy.decompress_raw_len(block)
    if before + size > max_size:
        raise _too_large(max_size)
    out = bytearray(size)
    written = cramjam.snappy.decompress_raw_into(block, out)
    if written != size:
        raise CorruptMessage(f"a snappy block says {size} bytes and has {written}")
    return out


def _too_large(max_size: int) -> RecordTooLarge:
    return RecordTooLarge(f"a batch decompresses to more than {max_size} bytes: send smaller batches")


def _unknown(codec: int) -> UnknownCodec:
    return UnknownCodec(f"codec {codec}: use none, gzip, snappy, lz4 or zstd (0 to 4)")
