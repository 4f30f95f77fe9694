"""Compression of Kafka's record batches: four codecs, each within a bound of bytes.

Arrow has all of them; only the frames around snappy are Kafka's own (those of xerial's snappy for Java).
"""

from __future__ import annotations

import pyarrow as pa

from spark_replog.errors import CorruptDataError, ErrorCode, InvalidConfigError, ReplogError
from spark_replog.log.codec.data_object import ROW_MEMORY

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
"""By Kafka's number of them: the lowest three bits of a batch's attributes."""
_GZIP_LEVEL = 1
"""Arrow's own is 9, which takes a hundred times the time of lz4."""
_ZSTD_LEVEL = 1
_READ_BYTES_MIN = 64 * 1024
_GROWTH = 8
"""Records of text become about so many times as large."""
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES = 16
"""The magic and two versions."""
_SNAPPY_LENGTH_BYTES_MAX = 5


def compress(payload: bytes | pa.Buffer, codec: str) -> bytes | pa.Buffer:
    """Return the payload as a batch holds it.

    Args:
        codec: one of `CODECS`.
    """
    return payload if codec == "none" else _codec(codec).compress(payload, memory_pool=ROW_MEMORY)


def decompress(payload: memoryview, codec: str, bytes_max: int) -> bytes:
    """Return the records of a batch. No more than `bytes_max` of them are ever in memory.

    Args:
        codec: one of `CODECS`.

    Raises:
        CorruptDataError: CORRUPT_MESSAGE.
        InvalidConfigError: MESSAGE_TOO_LARGE.
    """
    if codec == "none":
        if len(payload) > bytes_max:
            raise too_large(bytes_max)
        return bytes(payload)
    try:
        parts = _snappy_parts(payload, bytes_max) if codec == "snappy" else _stream_parts(payload, codec, bytes_max)
    except (OSError, pa.ArrowException) as error:
        raise CorruptDataError(
            ErrorCode.CORRUPT_MESSAGE, f"a record batch is not {codec}: {error}. Send it again.", codec=codec
        ) from error
    return parts[0] if len(parts) == 1 else b"".join(parts)


def too_large(bytes_max: int) -> ReplogError:
    """Return the refusal of records that take more memory than one request may."""
    return InvalidConfigError(
        ErrorCode.MESSAGE_TOO_LARGE,
        f"the records of one request take more than {bytes_max:,} bytes when they are decompressed. Send fewer in one "
        "request: lower batch.size and max.request.size of the producer.",
        bytes_max=bytes_max,
    )


def _stream_parts(payload: memoryview, codec: str, bytes_max: int) -> list[bytes]:
    parts: list[bytes] = []
    left = bytes_max
    with pa.CompressedInputStream(pa.BufferReader(pa.py_buffer(payload)), codec) as stream:
        size = max(_READ_BYTES_MIN, _GROWTH * len(payload))
        while part := stream.read(min(size, left + 1)):
            if (left := left - len(part)) < 0:
                raise too_large(bytes_max)
            parts.append(part)
            size *= 2
    return parts


def _snappy_parts(payload: memoryview, bytes_max: int) -> list[bytes]:
    if bytes(payload[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        return [_snappy_block(payload, bytes_max)]
    parts: list[bytes] = []
    at, left = _XERIAL_HEADER_BYTES, bytes_max
    while at < len(payload):
        start = at + 4
        at = start + int.from_bytes(payload[at:start], "big")
        if at > len(payload) or at == start:
            raise OSError("a block is cut short")
        block = _snappy_block(payload[start:at], left)
        left -= len(block)
        parts.append(block)
    return parts


def _snappy_block(block: memoryview, bytes_max: int) -> bytes:
    """Return the content of a block, which begins with its size: a varint."""
    size, shift = 0, 0
    for byte in block[:_SNAPPY_LENGTH_BYTES_MAX]:
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    else:
        raise OSError("a block has no size")
    if size > bytes_max:
        raise too_large(bytes_max)
    content: bytes = _codec("snappy").decompress(block, size, asbytes=True)
    return content


def _codec(name: str) -> pa.Codec:
    """Return a codec for one call: gzip's may not serve two threads."""
    level = {"gzip": _GZIP_LEVEL, "zstd": _ZSTD_LEVEL}.get(name)
    return pa.Codec(name, level)
