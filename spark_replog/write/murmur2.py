"""Kafka's murmur2 over a whole Arrow column at once.

Source: Kafka ``Utils.murmur2``; all arithmetic is modulo 2**32, words are little-endian.

How it is vectorised: words are gathered one word index at a time, so a step mixes the i-th word
of every key of a chunk. Chunks are small enough to stay in the CPU's cache. Keys of one length
need no gather: their i-th words form a strided view. A few keys much longer than the rest would
cost a step per word for hardly any key, so those are finished one by one on plain integers.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pyarrow as pa

from spark_replog.write.columns import Int32Array, Int64Array, offsets_of

SEED = 0x9747B28C
MULTIPLIER = 0x5BD1E995
CHUNK_ROW_COUNT = 8192
LONE_KEY_COUNT = 4
"""At most this many keys longer than the rest: cheaper one by one than as a vector step per word."""

_MASK = 0xFFFFFFFF
_M = np.uint32(MULTIPLIER)
_POSITIVE = np.uint32(0x7FFFFFFF)

UInt32Array = np.ndarray[Any, np.dtype[np.uint32]]


def murmur2_array(keys: pa.Array) -> UInt32Array:
    """Return the hash of every key; null rows get some value.

    Args:
        keys: binary or string array of N rows (32-bit offsets), whole or a slice.

    Returns:
        N hashes as uint32; Kafka prints the same bits as signed.
    """
    row_count = len(keys)
    hashes = np.empty(row_count, dtype=np.uint32)
    if row_count == 0:
        return hashes
    offsets = offsets_of(keys)
    data = _padded(keys.buffers()[2])
    for start in range(0, row_count, CHUNK_ROW_COUNT):
        stop = min(row_count, start + CHUNK_ROW_COUNT)
        bounds = offsets[start : stop + 1].astype(np.int64)
        lengths = np.diff(bounds)
        longest = int(lengths.max())
        if int(lengths.min()) == longest:
            hashes[start:stop] = _hash_one_length(data, int(bounds[0]), stop - start, longest)
        else:
            hashes[start:stop] = _hash_any_length(data, bounds[:-1], lengths)
    return hashes


def murmur2(key: bytes) -> int:
    """Return the hash of one key, unsigned; Kafka prints the same bits as signed."""
    length = len(key)
    value = SEED ^ length
    whole = length & ~3
    for word in struct.unpack_from(f"<{length >> 2}I", key):
        word = word * MULTIPLIER & _MASK
        word = (word ^ word >> 24) * MULTIPLIER
        value = (value * MULTIPLIER ^ word) & _MASK
    if whole != length:
        value = (value ^ int.from_bytes(key[whole:], "little")) * MULTIPLIER & _MASK
    value = (value ^ value >> 13) * MULTIPLIER & _MASK
    return value ^ value >> 15


def partition_of(key: bytes, partition_count: int) -> int:
    """Return Kafka's partition for one key."""
    return (murmur2(key) & 0x7FFFFFFF) % partition_count


def partitions_of(hashes: UInt32Array, partition_count: int) -> Int32Array:
    """Return Kafka's partition for hashes: the sign bit cleared (not the absolute value), then modulo."""
    assert partition_count > 0
    return ((hashes & _POSITIVE) % np.uint32(partition_count)).astype(np.int32)


def _padded(buffer: pa.Buffer | None) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return the value bytes, at least one word of them, so that a word view exists."""
    data = np.frombuffer(buffer, dtype=np.uint8) if buffer is not None else np.empty(0, dtype=np.uint8)
    if data.size >= 4:
        return data
    return np.concatenate([data, np.zeros(4, dtype=np.uint8)])


def _mix(words: UInt32Array) -> UInt32Array:
    words = words * _M
    words ^= words >> np.uint32(24)
    words *= _M
    return words


def _finish(hashes: UInt32Array) -> UInt32Array:
    hashes ^= hashes >> np.uint32(13)
    hashes *= _M
    hashes ^= hashes >> np.uint32(15)
    return hashes


def _hash_one_length(data: np.ndarray[Any, np.dtype[np.uint8]], start: int, count: int, length: int) -> UInt32Array:
    """Hash adjacent keys of one length."""
    if count <= LONE_KEY_COUNT:
        starts = start + length * np.arange(count, dtype=np.int64)
        return _hash_any_length(data, starts, np.full(count, length, dtype=np.int64))
    hashes = np.full(count, (SEED ^ length) & _MASK, dtype=np.uint32)
    word_count = length // 4
    for index in range(word_count):
        words = np.ndarray((count,), dtype="<u4", buffer=data, offset=start + 4 * index, strides=(length,))
        hashes *= _M
        hashes ^= _mix(words)
    tail = length % 4
    if tail:
        tail_start = start + 4 * word_count
        for index in range(tail):
            column = np.ndarray((count,), dtype=np.uint8, buffer=data, offset=tail_start + index, strides=(length,))
            hashes ^= column.astype(np.uint32) << np.uint32(8 * index)
        hashes *= _M
    return _finish(hashes)


def _hash_any_length(data: np.ndarray[Any, np.dtype[np.uint8]], starts: Int64Array, lengths: Int64Array) -> UInt32Array:
    """Hash keys of mixed lengths."""
    words = np.ndarray((data.size - 3,), dtype="<u4", buffer=data, strides=(1,))
    hashes = np.uint32(SEED) ^ lengths.astype(np.uint32)
    word_counts = lengths >> 2
    fewest = int(word_counts.min()) if starts.size > LONE_KEY_COUNT else 0
    most = int(word_counts.max())
    index = 0
    while index < most:
        if index < fewest:
            hashes *= _M
            hashes ^= _mix(words[starts + 4 * index])
            index += 1
            continue
        active = np.flatnonzero(word_counts > index)
        if active.size <= LONE_KEY_COUNT:
            for row in active.tolist():
                hashes[row] = _hash_words_alone(words, int(starts[row]), index, int(word_counts[row]), int(hashes[row]))
            break
        hashes[active] = (hashes[active] * _M) ^ _mix(words[starts[active] + 4 * index])
        index += 1
    return _finish(_hash_tails(words, starts + lengths, lengths & 3, hashes))


def _hash_words_alone(words: UInt32Array, start: int, first: int, end: int, value: int) -> int:
    """Mix words [first, end) of one key into its hash."""
    for word in _mix(words[start + 4 * first : start + 4 * end : 4]).tolist():
        value = ((value * MULTIPLIER) & _MASK) ^ word
    return value


def _hash_tails(words: UInt32Array, ends: Int64Array, tails: Int64Array, hashes: UInt32Array) -> UInt32Array:
    """Mix the 0 to 3 bytes after each key's last whole word.

    They are cut out of the word that ends with the key, so nothing after the buffer is read; at
    the very start of the buffer that word would begin before it and is shifted.
    """
    at = np.maximum(ends - 4, 0)
    shift = ((ends - at - tails) << 3).astype(np.uint32)
    # A shift by 32 is undefined; it occurs only where there is no tail.
    values = words[np.minimum(at, words.size - 1)] >> np.minimum(shift, np.uint32(31))
    values &= (np.uint32(1) << (tails.astype(np.uint32) << np.uint32(3))) - np.uint32(1)
    return np.where(tails > 0, (hashes ^ values) * _M, hashes)
