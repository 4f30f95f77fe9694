"""Kafka's record batches (version 2) from and to the columns of a topic of bytes, without a step per row.

Only the lengths of the records are followed one by one: where a record begins is known from the one before it. All
other fields of all records of a batch are read, and written, at once. What is checked, and with which code it is
refused, follows Kafka's ``LogValidator`` and ``DefaultRecord``.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, repeat
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from crc32c import crc32c

from spark_replog.errors import CorruptDataError, ErrorCode, InvalidConfigError, ReplogError
from spark_replog.gateway import few_records
from spark_replog.gateway.compression import CODECS, compress, decompress, too_large
from spark_replog.gateway.few_records import (
    HEADER_MEMORY_BYTES,
    INT_BYTES_MAX,
    LONG_BYTES_MAX,
    NO_KEY,
    NO_ROOM,
    NOT_CONSECUTIVE,
    WRONG_FIELDS,
    WRONG_LENGTH,
    FewColumns,
    FewRecords,
    header_column,
    invalid,
    read_few,
    too_long_number,
    validity,
    varint,
    wrong_record,
)
from spark_replog.log.codec.data_object import BUFFER_BYTES_MAX, ROW_MEMORY, TIMESTAMP_TYPE, data_schema
from spark_replog.write.columns import offsets_of

Buffer = bytes | bytearray | memoryview
Array = np.ndarray[Any, Any]

MAGIC = 2
HEADER_BYTES = 61
ENCODED_BYTES_TARGET = 512 * 1024
"""Rows are cut into batches of about this size, before compression: half of what a consumer asks of a partition."""
_HEADER = struct.Struct(">qiibIhiqqqhii")
_UNCHECKED, _CHECKED = struct.Struct(">qiibI"), struct.Struct(">hiqqqhii")
"""The same in two parts: the checksum at the end of the first is of all that follows it."""
_LENGTH_FROM = 12
"""A batch's length counts from here."""
_CRC_FROM = _UNCHECKED.size
_CODEC_BITS, _APPEND_TIME_BIT, _TRANSACTION_BIT, _CONTROL_BIT = 0x07, 0x08, 0x10, 0x20
_NONE = -1
"""A batch without a producer, epoch, sequence or time."""
_RECORD_BYTES_MIN = 7
"""Length, attributes, two differences, two lengths and a count, of a byte each."""
_RECORD_MEMORY_BYTES = 160
"""What the numbers of a record take while they are read."""
_FEW_HEADERS = 16
"""The headers of so few records are read one by one: that costs less than steps for all of them."""
_TIME_MS_MAX = (2**63 - 1) // 1000
_DELTA_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class ProducedBatch:
    """A record batch as a producer sent it.

    Args:
        data: key, value, timestamp[, headers] of N >= 1 rows, as `data_schema` has them.
        compression: one of `CODECS`.
        producer_id: -1, as its epoch and its first sequence, if the producer is not idempotent.
        size_bytes: as it was sent, its header included.
    """

    data: pa.RecordBatch
    compression: str
    producer_id: int
    producer_epoch: int
    base_sequence: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class EncodedBatch:
    """A record batch for a consumer: it takes the offsets from `base_offset` to `last_offset`, both included."""

    base_offset: int
    last_offset: int
    data: bytes


class _Header(NamedTuple):
    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int


def decode(records: Buffer, *, bytes_max: int, now_ms: int) -> list[ProducedBatch]:
    """Return the record batches that a produce request has for one partition: one or more.

    Args:
        records: a field of the request. The result does not share its memory.
        bytes_max: of memory, that the decompressed records of all batches may take.
        now_ms: the time of records that have none.

    Raises:
        CorruptDataError: CORRUPT_MESSAGE: the bytes are not those that were sent.
        InvalidConfigError: INVALID_RECORD, INVALID_TIMESTAMP, INVALID_TXN_STATE, MESSAGE_TOO_LARGE,
            UNSUPPORTED_COMPRESSION_TYPE. Where one record is refused, the error's context has its number: `record`.
    """
    view = memoryview(records)
    batches: list[ProducedBatch] = []
    at, left = 0, min(bytes_max, BUFFER_BYTES_MAX - 1)
    while at < len(view) or not batches:
        if len(view) - at < HEADER_BYTES:
            raise invalid(f"{len(view) - at} bytes hold no record batch. Send a whole batch")
        header = _Header(*_HEADER.unpack_from(view, at))
        size_bytes = header.length + _LENGTH_FROM
        if not 0 <= header.magic <= MAGIC:
            raise _corrupt(f"a record batch has format {header.magic}")
        if header.magic != MAGIC:
            raise invalid(f"a record batch has format {header.magic}. Use a client that writes format {MAGIC}")
        if size_bytes < HEADER_BYTES:
            raise _corrupt(f"a record batch claims {header.length} bytes")
        if size_bytes > len(view) - at:
            raise invalid(f"{len(view) - at} of {size_bytes} bytes of a record batch came. Send a whole batch")
        body = view[at : at + size_bytes]
        if (crc := crc32c(body[_CRC_FROM:])) != header.crc:
            raise _corrupt(f"the checksum of a record batch is {crc:08x}, it says {header.crc:08x}")
        _check_header(header)
        payload = decompress(body[HEADER_BYTES:], CODECS[header.attributes & _CODEC_BITS], left)
        data, taken_bytes = _columns(header, payload, left, now_ms)
        left -= taken_bytes
        batches.append(
            ProducedBatch(
                data=data,
                compression=CODECS[header.attributes & _CODEC_BITS],
                producer_id=header.producer_id,
                producer_epoch=header.producer_epoch,
                base_sequence=header.base_sequence,
                size_bytes=size_bytes,
            )
        )
        at += size_bytes
    return batches


@dataclass(frozen=True, slots=True)
class StoredRows:
    """Rows of neighbouring record batches, as a broker has them.

    Attributes:
        data: key, value, timestamp[, headers] of the rows; None: there are none that a reader may see.
        offsets: of these rows, ascending.
        next_offset: the one after the batches.
        is_append_time: whether the times are those of the broker (LogAppendTime).
    """

    data: pa.RecordBatch | None
    offsets: Array
    next_offset: int
    is_append_time: bool = False


_NO_OFFSETS = np.empty(0, np.int64)
_MARKER = struct.Struct(">hh")
"""The key of a control record: its version, and 0 for the end of a transaction that was aborted."""
_JOINED_BYTES = 4 * 1024 * 1024
"""Decompressed batches are read together up to this size: the steps for one cost as much as those for many."""


def decode_stored(records: Buffer, aborted: Iterable[tuple[int, int]], *, bytes_max: int) -> Iterator[StoredRows]:
    """Yield the rows of a fetch of committed records; a batch that is cut short ends it.

    Source: Kafka's ``CompletedFetch`` (consumer).

    Args:
        aborted: (producer id, first offset) of the transactions that the answer names: their records are left out.
        bytes_max: of memory, that one batch may take.

    Raises:
        CorruptDataError: CORRUPT_MESSAGE.
        InvalidConfigError: INVALID_RECORD, MESSAGE_TOO_LARGE.
    """
    waiting = sorted(((first, producer) for producer, first in aborted), reverse=True)
    gone: set[int] = set()
    run: list[tuple[_Header, bytes]] = []
    size_bytes, next_offset = 0, None
    for header, body in _whole_batches(memoryview(records)):
        next_offset = header.base_offset + header.last_offset_delta + 1
        while waiting and waiting[-1][0] < next_offset:
            gone.add(waiting.pop()[1])
        attributes = header.attributes
        if attributes & _CONTROL_BIT:
            if header.record_count and _is_abort(_payload(header, body, bytes_max)):
                gone.discard(header.producer_id)
            continue
        if not header.record_count or (attributes & _TRANSACTION_BIT and header.producer_id in gone):
            continue
        payload = _payload(header, body, bytes_max)
        is_other = run and (run[0][0].attributes ^ attributes) & _APPEND_TIME_BIT
        if is_other or size_bytes + len(payload) > _JOINED_BYTES:
            yield from _joined(run, bytes_max)
            run, size_bytes = [], 0
        run.append((header, payload))
        size_bytes += len(payload)
    yield from _joined(run, bytes_max)
    if next_offset is not None:
        yield StoredRows(None, _NO_OFFSETS, next_offset)


def _whole_batches(view: memoryview) -> Iterator[tuple[_Header, memoryview]]:
    """Yield the header and the records of each batch, checked against its checksum, up to one that is cut short."""
    at = 0
    while len(view) - at >= HEADER_BYTES:
        header = _Header(*_HEADER.unpack_from(view, at))
        size_bytes = header.length + _LENGTH_FROM
        if header.magic != MAGIC or size_bytes < HEADER_BYTES:
            raise _corrupt(f"a record batch has format {header.magic} and {size_bytes} bytes")
        if size_bytes > len(view) - at:
            return
        body = view[at : at + size_bytes]
        if (crc := crc32c(body[_CRC_FROM:])) != header.crc:
            raise _corrupt(f"the checksum of a record batch is {crc:08x}, it says {header.crc:08x}")
        yield header, body[HEADER_BYTES:]
        at += size_bytes


def _payload(header: _Header, body: memoryview, bytes_max: int) -> bytes:
    if header.attributes & _CODEC_BITS >= len(CODECS):
        raise _corrupt(f"a record batch has compression number {header.attributes & _CODEC_BITS}")
    return decompress(body, CODECS[header.attributes & _CODEC_BITS], bytes_max)


def _is_abort(payload: bytes) -> bool:
    key = read_few(payload, 1, len(payload), len(payload)).keys[0].as_py() or b""
    return len(key) >= _MARKER.size and _MARKER.unpack_from(key)[1] == 0


def _joined(run: Sequence[tuple[_Header, bytes]], bytes_max: int) -> Iterator[StoredRows]:
    """Yield the rows of neighbouring batches with one kind of times; nothing for none."""
    if not run:
        return
    headers = [header for header, _ in run]
    counts = [header.record_count for header in headers]
    payload = run[0][1] if len(run) == 1 else b"".join([part for _, part in run])
    read, _ = _records(sum(counts), payload, max(bytes_max, _JOINED_BYTES * _RECORD_MEMORY_BYTES))
    bases = np.repeat([header.base_offset for header in headers], counts)
    lasts = np.repeat([header.last_offset_delta for header in headers], counts)
    deltas, offsets = read.offset_deltas, read.offset_deltas + bases
    if ((deltas < 0) | (deltas > lasts)).any() or (np.diff(offsets) <= 0).any():
        raise _corrupt("the offsets of a record batch do not ascend")
    is_append_time = bool(headers[0].attributes & _APPEND_TIME_BIT)
    if is_append_time:
        times_ms = np.repeat([header.max_timestamp_ms for header in headers], counts)
    else:
        times_ms = read.time_deltas_ms + np.repeat([header.base_timestamp_ms for header in headers], counts)
    yield StoredRows(_rows(read, _times(0, times_ms, 0)), offsets, int(offsets[-1]) + 1, is_append_time)


def _check_header(header: _Header) -> None:
    attributes = header.attributes
    if attributes & _CODEC_BITS >= len(CODECS):
        raise InvalidConfigError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            f"compression number {attributes & _CODEC_BITS} is not one of Kafka's. Use one of: {', '.join(CODECS)}.",
        )
    if attributes & _CONTROL_BIT:
        raise invalid("a client may not write control records. Send records only")
    if attributes & _TRANSACTION_BIT:
        raise InvalidConfigError(
            ErrorCode.INVALID_TXN_STATE,
            "the batch belongs to a transaction, and the gateway has none. Remove transactional.id.",
        )
    if attributes & _APPEND_TIME_BIT:
        raise InvalidConfigError(
            ErrorCode.INVALID_TIMESTAMP,
            "a producer may not set append times. Send times of creation; the topic's message.timestamp.type decides.",
        )
    if header.base_offset != 0:
        raise invalid(f"a record batch begins with offset {header.base_offset}. Begin with 0: the log gives offsets")
    if header.record_count < 1 or header.last_offset_delta != header.record_count - 1:
        raise invalid(
            f"a record batch has {header.record_count} records and {header.last_offset_delta + 1} offsets. Send a "
            "record for each offset"
        )
    if header.producer_id >= 0 and (header.base_sequence < 0 or header.producer_epoch < 0):
        raise invalid(
            f"a batch of producer {header.producer_id} has epoch {header.producer_epoch} and sequence "
            f"{header.base_sequence}. Number an idempotent producer's records from 0"
        )


def _columns(header: _Header, payload: bytes, bytes_max: int, now_ms: int) -> tuple[pa.RecordBatch, int]:
    """Return the records of a batch, and the bytes of memory that they took."""
    records, taken_bytes = _records(header.record_count, payload, bytes_max)
    _refuse(records.offset_deltas != np.arange(header.record_count), NOT_CONSECUTIVE)
    return _rows(records, _times(header.base_timestamp_ms, records.time_deltas_ms, now_ms)), taken_bytes


def _records(count: int, payload: bytes, bytes_max: int) -> tuple[FewRecords, int]:
    """Return the columns of the records of a batch, and the bytes of memory that they took."""
    if count > len(payload) // _RECORD_BYTES_MIN:
        raise invalid(f"{len(payload)} bytes cannot hold {count} records. Send a whole batch")
    taken_bytes = len(payload) + count * _RECORD_MEMORY_BYTES
    if taken_bytes > bytes_max:
        raise too_large(bytes_max)
    read = read_few if count <= few_records.FEW_ROWS else _read_many
    records = read(payload, count, bytes_max - taken_bytes, bytes_max)
    return records, taken_bytes + records.header_count * HEADER_MEMORY_BYTES


def _rows(records: FewRecords, times: pa.Array) -> pa.RecordBatch:
    columns = [records.keys, records.values, times]
    if records.headers is not None:
        columns.append(records.headers)
    return pa.RecordBatch.from_arrays(columns, schema=data_schema(records.headers is not None))


def _read_many(payload: bytes, count: int, bytes_left: int, bytes_max: int) -> FewRecords:
    """Return the columns of so many records; arguments and errors as of `read_few`."""
    data = np.frombuffer(payload, np.uint8)
    starts = _record_starts(payload, count)
    length, at = _varints(data, starts, INT_BYTES_MAX)
    ends = np.append(starts[1:], len(payload))
    _refuse(at + length != ends, WRONG_LENGTH)
    time_delta, at = _varints(data, at + 1, LONG_BYTES_MAX)  # a byte of attributes, of which none exists
    offset_delta, at = _varints(data, at, INT_BYTES_MAX)
    key_length, key_start = _varints(data, at, INT_BYTES_MAX)
    key_end = key_start + np.maximum(key_length, 0)
    value_length, value_start = _varints(data, key_end, INT_BYTES_MAX)
    value_end = value_start + np.maximum(value_length, 0)
    header_count, at = _varints(data, value_end, INT_BYTES_MAX)
    headers: pa.Array | None = None
    if not header_count.any():
        _refuse(at != ends, WRONG_FIELDS)
    else:
        _refuse((at > ends) | (header_count < 0) | (header_count > (ends - at) // 2), NO_ROOM)
        if int(header_count.sum()) * HEADER_MEMORY_BYTES > bytes_left:
            raise too_large(bytes_max)
        headers = _headers(payload, at, header_count, ends)
    keys = _cut_out(payload, key_start, key_end, key_length < 0)
    values = _cut_out(payload, value_start, value_end, value_length < 0)
    return FewRecords(keys, values, time_delta, headers, int(header_count.sum()), offset_delta)


def _record_starts(payload: bytes, count: int) -> Array:
    """Return where each record begins; what is wrong with a length shows where it ends."""
    starts = array("q")
    append = starts.append
    at = 0
    try:
        for _ in repeat(None, count):
            append(at)
            size = payload[at]
            if size < 0x80:
                at += 1 + (size >> 1)
                continue
            more = payload[at + 1]
            if more < 0x80:
                at += 2 + ((size & 0x7F | more << 7) >> 1)
                continue
            size = size & 0x7F | (more & 0x7F) << 7 | (payload[at + 2] & 0x7F) << 14
            if payload[at + 2] < 0x80:
                at += 3 + (size >> 1)
            elif payload[at + 3] < 0x80:
                at += 4 + ((size | payload[at + 3] << 21) >> 1)
            else:
                at += 5 + ((size | (payload[at + 3] & 0x7F) << 21 | payload[at + 4] << 28) >> 1)
    except IndexError:
        raise invalid(f"the batch ends in record {len(starts) - 1}. Send a whole batch", len(starts) - 1) from None
    return np.frombuffer(starts, np.int64)


def _varints(data: Array, at: Array, bytes_max: int) -> tuple[Array, Array]:
    """Return the zigzag varints at these places of the data, and where each ends.

    A place behind the end reads the last byte: it shows when the ends are compared.
    """
    first = data.take(at, mode="clip")
    end = at + 1
    if not len(first) or first.max() < 0x80:
        value = first.astype(np.int64)
        return (value >> 1) ^ -(value & 1), end
    value = (first & 0x7F).astype(np.int64)
    more: Array | slice = slice(None) if first.min() >= 0x80 else np.flatnonzero(first >= 0x80)
    for number in range(1, bytes_max):
        byte = data.take(end[more], mode="clip")
        value[more] |= (byte & 0x7F).astype(np.int64) << (7 * number)
        end[more] += 1
        if byte.max() < 0x80:
            break
        if not isinstance(more, slice):
            more = more[byte >= 0x80]
        elif byte.min() < 0x80:
            more = np.flatnonzero(byte >= 0x80)
    else:
        places = np.arange(len(at))[more]
        raise too_long_number(bytes_max, int(places[0]))
    unsigned = value.view(np.uint64)
    return (unsigned >> np.uint64(1)).view(np.int64) ^ -(value & 1), end


def _cut_out(payload: bytes, starts: Array, ends: Array, is_null: Array) -> pa.Array:
    """Return the bytes from each start to its end, ascending and apart, as a binary array."""
    count = len(starts)
    if is_null.all():
        return pa.nulls(count, pa.binary())
    bounds = np.empty(2 * count, np.int32)
    bounds[::2] = starts
    bounds[1::2] = ends
    pieces = pa.Array.from_buffers(
        pa.binary(), 2 * count - 1, [None, pa.py_buffer(bounds), pa.py_buffer(payload)], null_count=0
    )
    places = pa.Array.from_buffers(pa.int64(), count, [validity(is_null), pa.py_buffer(np.arange(0, 2 * count, 2))])
    return pc.take(pieces, places, boundscheck=False, memory_pool=ROW_MEMORY)


def _headers(payload: bytes, at: Array, counts: Array, ends: Array) -> pa.Array:
    """Return the headers of all records: the first of each, then the second of those that have two, and so on."""
    data = np.frombuffer(payload, np.uint8)
    offsets = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    bounds = np.empty((offsets[-1], 4), np.int64)
    is_null = np.empty(offsets[-1], np.bool_)
    last = at.copy()
    rows, number = np.flatnonzero(counts), 0
    at = at[rows]
    while len(rows) > _FEW_HEADERS:
        key_length, key_start = _varints(data, at, INT_BYTES_MAX)
        _refuse(key_length < 0, NO_KEY, rows)
        key_end = key_start + key_length
        value_length, value_start = _varints(data, key_end, INT_BYTES_MAX)
        at = value_start + np.maximum(value_length, 0)
        _refuse(at > ends[rows], NO_ROOM, rows)
        slots = offsets[rows] + number
        bounds[slots] = np.stack([key_start, key_end, value_start, at], axis=1)
        is_null[slots] = value_length < 0
        last[rows] = at
        number += 1
        goes_on = counts[rows] > number
        rows, at = rows[goes_on], at[goes_on]
    for row, place in zip(rows.tolist(), at.tolist(), strict=True):
        start, end = int(offsets[row]) + number, int(offsets[row + 1])
        bounds[start:end], is_null[start:end], last[row] = _headers_of_row(payload, row, place, end - start)
    _refuse(last != ends, WRONG_FIELDS)
    keys = _cut_out(payload, bounds[:, 0], bounds[:, 1], np.zeros(len(bounds), np.bool_))
    values = _cut_out(payload, bounds[:, 2], bounds[:, 3], is_null)
    return header_column(keys, values, offsets)


def _headers_of_row(payload: bytes, row: int, at: int, count: int) -> tuple[Array, Array, int]:
    """Return where keys and values of so many headers begin and end, which values are null, and where they end."""
    bounds, nulls = array("q"), bytearray()
    try:
        for _ in repeat(None, count):
            key_length, key_start = varint(payload, at, row)
            if key_length < 0:
                raise wrong_record(row, NO_KEY)
            key_end = key_start + key_length
            value_length, value_start = varint(payload, key_end, row)
            at = value_start + max(value_length, 0)
            bounds.extend((key_start, key_end, value_start, at))
            nulls.append(value_length < 0)
    except IndexError:
        raise wrong_record(row, NO_ROOM) from None
    return np.frombuffer(bounds, np.int64).reshape(-1, 4), np.frombuffer(nulls, np.bool_), at


def _times(base_ms: int, delta_ms: Array, now_ms: int) -> pa.Array:
    low, high = base_ms + int(delta_ms.min()), base_ms + int(delta_ms.max())
    if low < _NONE or high > _TIME_MS_MAX:
        raise InvalidConfigError(
            ErrorCode.INVALID_TIMESTAMP,
            f"records have times from {low} to {high} ms after 1970. Send times from 0 to {_TIME_MS_MAX} ms, or none.",
        )
    times_ms = delta_ms + base_ms
    if low == _NONE:
        times_ms[times_ms == _NONE] = now_ms
    return pa.Array.from_buffers(TIMESTAMP_TYPE, len(times_ms), [None, pa.py_buffer(times_ms * 1000)])


def encode(
    rows: pa.RecordBatch,
    start_offset: int,
    end_offset: int,
    *,
    compression: str = "none",
    leader_epoch: int = _NONE,
    size_bytes: int = ENCODED_BYTES_TARGET,
) -> list[EncodedBatch]:
    """Return rows as record batches for a consumer: one or more, which take every offset of the range.

    Offsets that compaction left without a row belong to the batch before them, so that a consumer goes past them. With
    no row there is one batch without records. Times lose their microseconds.

    Args:
        rows: of one partition, as a read of bytes gives them: key, value, timestamp, timestampType, offset[, headers].
            Offsets ascend.
        start_offset: at most the first row's.
        end_offset: above the last row's, and above `start_offset`.
        compression: one of `CODECS`.
        leader_epoch: of the partition's leader; -1: none.
        size_bytes: of a batch, at about which the rows are cut, before compression.
    """
    if not rows.num_rows:
        last = min(end_offset - 1, start_offset + _DELTA_MAX)
        return [_sealed(start_offset, last, leader_epoch, 0, (_NONE, _NONE), 0, b"")]
    offsets = _numbers(rows.column("offset"), np.int64)
    times_ms = _numbers(rows.column("timestamp"), np.int64) // 1000
    is_append_time = _numbers(rows.column("timestampType"), np.int32) == 1
    columns = FewColumns(rows) if len(rows) <= few_records.FEW_ROWS else _Columns(rows)
    cuts = _cuts(columns.body_ends(), offsets, times_ms, is_append_time, size_bytes)
    batches = []
    for start, end in pairwise(cuts):
        base, last = int(offsets[start]), int(offsets[end]) - 1 if end < len(offsets) else end_offset - 1
        last = min(last, base + _DELTA_MAX)
        part = times_ms[start:end]
        payload = columns.records(start, end, part - part[0], offsets[start:end] - base)
        attributes = CODECS.index(compression) | _APPEND_TIME_BIT * bool(is_append_time[start])
        times = int(part[0]), int(part.max())
        payload = compress(payload, compression)
        batches.append(_sealed(base, last, leader_epoch, attributes, times, end - start, payload))
    return batches


def _cuts(body_ends: Array, offsets: Array, times_ms: Array, is_append_time: Array, size_bytes: int) -> list[int]:
    """Return where batches begin, and the end: at sizes, at gaps that no batch spans, and at other times of append.

    A batch has one time of append, or none.
    """
    if body_ends[-1] <= size_bytes and offsets[-1] - offsets[0] <= _DELTA_MAX and not is_append_time.any():
        return [0, len(offsets)]
    kind = np.where(is_append_time, times_ms, _NONE)
    changes = set((np.flatnonzero(kind[1:] != kind[:-1]) + 1).tolist())
    cuts = [0]
    for stop in [*sorted(changes), len(offsets)]:
        while cuts[-1] < stop:
            start = cuts[-1]
            by_size = int(np.searchsorted(body_ends, body_ends[start] + size_bytes, "right")) - 1
            by_offset = int(np.searchsorted(offsets, offsets[start] + _DELTA_MAX, "right"))
            cuts.append(min(stop, max(by_size, start + 1), by_offset))
    return cuts


class _Columns:
    """Keys, values and headers of N rows, and the sizes that say where each goes.

    Args:
        rows: as `encode` takes them.
    """

    def __init__(self, rows: pa.RecordBatch) -> None:
        self._key, self._value = rows.column("key"), rows.column("value")
        self._key_sizes, self._value_sizes = _sizes(self._key), _sizes(self._value)
        self._headers: pa.Array | None = None
        if "headers" in rows.schema.names and rows.column("headers").null_count < len(rows):
            self._headers = _header_bytes(rows.column("headers"))

    def body_ends(self) -> Array:
        """Return the running sum of the bytes of keys, values and headers: N + 1 values."""
        ends = np.zeros(len(self._key) + 1, np.int64)
        sizes = np.maximum(self._key_sizes, 0) + np.maximum(self._value_sizes, 0)
        if self._headers is not None:
            sizes += _sizes(self._headers)
        np.cumsum(sizes + _RECORD_BYTES_MIN, out=ends[1:])
        return ends

    def records(self, start: int, end: int, time_deltas: Array, offset_deltas: Array) -> pa.Buffer:
        """Return the records of some rows, each with its length before it."""
        key_sizes, value_sizes = self._key_sizes[start:end], self._value_sizes[start:end]
        has_keys = bool((key_sizes >= 0).any())
        before = [np.zeros(end - start, np.int64), time_deltas, offset_deltas, key_sizes]
        sizes = sum(map(_varint_sizes, [*before, value_sizes]))
        sizes += np.maximum(key_sizes, 0) + np.maximum(value_sizes, 0)
        headers = _NO_HEADERS if self._headers is None else self._headers.slice(start, end - start)
        sizes += 1 if self._headers is None else _sizes(headers)
        pieces = [self._value.slice(start, end - start), headers]
        if has_keys:
            head, middle = _varint_bytes(sizes, *before), _varint_bytes(value_sizes)
            pieces = [head, self._key.slice(start, end - start), middle, *pieces]
        else:
            pieces = [_varint_bytes(sizes, *before, value_sizes), *pieces]
        joined = pc.binary_join_element_wise(
            *pieces, _EMPTY, null_handling="replace", null_replacement=b"", memory_pool=ROW_MEMORY
        )
        return joined.buffers()[2].slice(0, int(offsets_of(joined)[-1]))


def _constant(value: bytes) -> pa.Scalar:
    """Return bytes for a kernel; ``pa.scalar`` would import pandas, if it is installed."""
    offsets = np.array([0, len(value)], np.int32)
    return pa.Array.from_buffers(pa.binary(), 1, [None, pa.py_buffer(offsets), pa.py_buffer(value)])[0]


_EMPTY, _NO_HEADERS = _constant(b""), _constant(b"\0")


def _header_bytes(column: pa.Array) -> pa.Array:
    """Return the count and the headers of each row, as a record has them."""
    counts = np.maximum(_sizes(column), 0)
    pairs = column.flatten()
    keys, values = (pc.struct_field(pairs, place).cast(pa.binary()) for place in (0, 1))
    pieces = [_varint_bytes(_sizes(keys)), keys, _varint_bytes(_sizes(values)), values]
    flat = pc.binary_join_element_wise(*pieces, _EMPTY, null_handling="replace", null_replacement=b"")
    bounds = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=bounds[1:])
    ends = np.append(0, np.cumsum(_sizes(flat)))[bounds].astype(np.int32)
    grouped = pa.Array.from_buffers(pa.binary(), len(counts), [None, pa.py_buffer(ends), flat.buffers()[2]])
    return pc.binary_join_element_wise(_varint_bytes(counts), grouped, _EMPTY)


def _sizes(column: pa.Array) -> Array:
    """Return the length of each value of a binary or list array, -1 where it is null."""
    sizes = np.diff(offsets_of(column)).astype(np.int64)
    if column.null_count:
        sizes[_is_null(column)] = _NONE
    return sizes


def _is_null(column: pa.Array) -> Array:
    bits = np.unpackbits(np.frombuffer(column.buffers()[0], np.uint8), bitorder="little")
    is_null: Array = bits[column.offset : column.offset + len(column)] == 0
    return is_null


def _numbers(column: pa.Array, kind: type[np.integer[Any]]) -> Array:
    """Return the values of a column without nulls; ``to_numpy`` would import pandas, as `_constant` says."""
    numbers: Array = np.frombuffer(column.buffers()[1], kind)
    return numbers[column.offset : column.offset + len(column)]


def _zigzag(values: Array) -> Array:
    return ((values << 1) ^ (values >> 63)).view(np.uint64)


def _varint_sizes(values: Array) -> Array:
    zigzag = _zigzag(values)
    sizes = np.ones(len(values), np.int64)
    limit, highest = 0x80, int(zigzag.max())
    while limit <= highest:
        sizes += zigzag >= np.uint64(limit)
        limit <<= 7
    return sizes


def _varint_bytes(*columns: Array) -> pa.Array:
    """Return the zigzag varints of each row, one after the other, as a binary array."""
    byte_columns: list[Array] = []
    is_there: list[Array] = []
    for values in columns:
        rest = _zigzag(values)
        there = np.ones(len(values), np.bool_)
        while True:
            byte = (rest & np.uint64(0x7F)).astype(np.uint8)
            rest = rest >> np.uint64(7)
            byte_columns.append(byte)
            is_there.append(there)
            there = rest > 0
            if not there.any():
                break
            byte |= there.view(np.uint8) << np.uint8(7)
    mask = np.stack(is_there, axis=1)
    flat = np.stack(byte_columns, axis=1)[mask]
    offsets = np.zeros(len(mask) + 1, np.int32)
    np.cumsum(mask.sum(axis=1), out=offsets[1:])
    return pa.Array.from_buffers(pa.binary(), len(mask), [None, pa.py_buffer(offsets), pa.py_buffer(flat)])


def _sealed(
    base_offset: int,
    last_offset: int,
    leader_epoch: int,
    attributes: int,
    times_ms: tuple[int, int],
    record_count: int,
    payload: bytes | pa.Buffer,
) -> EncodedBatch:
    """Return a batch with its header.

    Args:
        times_ms: the first row's and the latest.
    """
    body = memoryview(payload)
    length = HEADER_BYTES + body.nbytes - _LENGTH_FROM
    checked = _CHECKED.pack(attributes, last_offset - base_offset, *times_ms, _NONE, _NONE, _NONE, record_count)
    head = _UNCHECKED.pack(base_offset, length, leader_epoch, MAGIC, crc32c(body, crc32c(checked)))
    return EncodedBatch(base_offset, last_offset, b"".join([head, checked, body]))


def _refuse(is_wrong: Array, reason: str, rows: Array | None = None) -> None:
    """Refuse the first record for which this is true.

    Args:
        rows: the number of each record; None: they are all.
    """
    if is_wrong.any():
        place = int(is_wrong.argmax())
        record = place if rows is None else int(rows[place])
        raise wrong_record(record, reason)


def _corrupt(message: str) -> ReplogError:
    return CorruptDataError(ErrorCode.CORRUPT_MESSAGE, f"{message}. Send it again.")
