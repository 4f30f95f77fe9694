"""Data objects: plain Arrow IPC files whose record batches are grouped into sections.

`pyarrow.ipc.open_file` opens them. A section is a contiguous run of record batch messages of one
topic-partition; its byte range and CRC32C go to the ledger, so a reader needs neither footer nor schema
message. Format: `docs/format.md`, chapter "Data object".
"""

from __future__ import annotations

import functools
import io
import json
import mmap
import struct
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import crc32c as crc32c_module
import numpy as np
import pyarrow as pa

from spark_replog.errors import CorruptDataError, ErrorCode, InvalidConfigError, RetriableError
from spark_replog.log.codec.empty_lists import batch_with_offsets
from spark_replog.log.codec.section_statistics import (
    ColumnStatistics,
    Statistics,
    column_statistics,
    covered_names,
    encode_statistics,
    statistics_body,
    statistics_size,
)
from spark_replog.log.model import Section

if TYPE_CHECKING:
    from spark_replog.log.row_schema import RowSchema

DATA_OBJECT_FORMAT_VERSION = 1
BATCH_SIZE_BYTES_TARGET = 4 * 1024 * 1024
"""Record batches are cut and joined at about this size, so that a reader's memory stays bounded."""
SECTION_SIZE_BYTES_MAX = 8 * 1024 * 1024
"""Rows of one partition above this become several sections: a section is what a reader fetches and checks
as a whole. Before compression; a single batch may be larger when one record is."""
BUFFER_BYTES_MAX = 2**31
"""The reach of 32-bit offsets: no column of a section has more bytes."""
ROW_MEMORY = pa.system_memory_pool()
"""Allocates rows that are copied on their way. Arrow's default pool returns pages to the kernel within milliseconds,
and the kernel zeroes them for the next use: a quarter of a write task's CPU time, a third of a compaction's. malloc
keeps them."""
COMPRESSION_TYPES = ("none", "lz4", "zstd")
ZSTD_LEVEL = 1
"""Level 1 beats level 3 in speed and size on JSON-like rows."""

SMALL_SIZE_BYTES_MAX = 16 * 1024
"""Rows of at most this size are copied into their object."""
_PIECE_COPY_BYTES_MAX = 4096
"""Smaller pieces are copied together: fewer system calls than pieces."""
_SHARED_BYTES_MIN = 65_536
"""Values of fewer bytes, on average, are copied to join them: that costs less than the Python calls to share them."""
_STAND_IN = pa.py_buffer(mmap.mmap(-1, BATCH_SIZE_BYTES_TARGET))
"""Memory that is never touched, so the kernel gives it no pages."""
_CRC_PLACEHOLDERS = ("!CRC32C!", "?CRC32C?")
"""As long as a checksum in hex; no topic name, id or number can be one, and a producer can equal only one of them."""
_CRC_POLYNOMIAL = 0x82F63B78
_CRC_JOIN_BYTES_MIN = 1024 * 1024
"""Reading fewer bytes again costs less than joining two checksums."""
_MAGIC = b"ARROW1\0\0"
_CONTINUATION = b"\xff\xff\xff\xff"
_STREAM_END = _CONTINUATION + bytes(4)
_MESSAGE_PREFIX_BYTES = 8
"""Continuation marker and metadata length."""
_HEADER_STRUCT = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
HEADERS_TYPE = pa.list_(pa.field("element", _HEADER_STRUCT))
TIMESTAMP_TYPE = pa.timestamp("us", tz="UTC")
_BASE_FIELDS = [
    pa.field("key", pa.binary()),
    pa.field("value", pa.binary()),
    pa.field("timestamp", TIMESTAMP_TYPE),
]
LOG_PREFIX = "_replog_"
"""Begins the names of the log's own columns beside those of a typed topic, which may not have it."""
TYPED_TIMESTAMP, TYPED_HEADERS, TYPED_OFFSET = (LOG_PREFIX + name for name in ("timestamp", "headers", "offset"))
_HEADERS_FIELD, _OFFSET_FIELD = pa.field("headers", HEADERS_TYPE), pa.field("offset", pa.int64())
_SCHEMAS = {
    (has_headers, has_offsets): pa.schema(
        [*_BASE_FIELDS, *[_HEADERS_FIELD][:has_headers], *[_OFFSET_FIELD][:has_offsets]]
    )
    for has_headers in (False, True)
    for has_offsets in (False, True)
}
_FILE_METADATA = {b"replog.format": str(DATA_OBJECT_FORMAT_VERSION).encode()}
_FILE_SCHEMAS = {columns: schema.with_metadata(_FILE_METADATA) for columns, schema in _SCHEMAS.items()}

Buffer = bytes | bytearray | memoryview
_Written = tuple[str, int, int, tuple[int, int], list[str]]
"""Of a section: topic id, partition, rows, times in ms, and the place for the checksum of each of its messages."""
SectionInput = tuple[str, str, int, "pa.RecordBatch | Iterable[pa.RecordBatch]", str]
"""(topic name, topic id, partition, rows, producer); rows are consumed while they are written."""


def data_schema(has_headers: bool, has_offsets: bool = False, rows: RowSchema | None = None) -> pa.Schema:
    """Return the columns of a data object: key, value, timestamp[, headers][, offset].

    With `rows`: the columns of that schema, then ``_replog_timestamp``[, ``_replog_headers``][, ``_replog_offset``].
    """
    return _SCHEMAS[has_headers, has_offsets] if rows is None else _typed_schema(rows, has_headers, has_offsets)


@functools.lru_cache(maxsize=256)
def _typed_schema(rows: RowSchema, has_headers: bool, has_offsets: bool) -> pa.Schema:
    fields = [*rows.arrow, pa.field(TYPED_TIMESTAMP, TIMESTAMP_TYPE)]
    fields += [pa.field(TYPED_HEADERS, HEADERS_TYPE)] * has_headers + [pa.field(TYPED_OFFSET, pa.int64())] * has_offsets
    return pa.schema(fields)


def _file_schema(has_headers: bool, has_offsets: bool, rows: RowSchema | None) -> pa.Schema:
    if rows is None:
        return _FILE_SCHEMAS[has_headers, has_offsets]
    metadata = {**_FILE_METADATA, b"replog.schema_version": b"%d" % rows.version}
    metadata |= {b"replog.schema": rows.ddl.encode(), b"replog.key": json.dumps(rows.key).encode()}
    return _typed_schema(rows, has_headers, has_offsets).with_metadata(metadata)


def times_of(batch: pa.RecordBatch) -> pa.Array:
    """Return the times of stored rows, whatever their other columns are."""
    names = batch.schema.names
    is_typed = names[-1].startswith(LOG_PREFIX)
    return batch.column(len(names) - 1 - names[::-1].index(TYPED_TIMESTAMP if is_typed else "timestamp"))


def has_offsets(batch: pa.RecordBatch) -> bool:
    """Return whether rows that are to be stored have a column of offsets; it is the last one."""
    return bool(batch.schema.names[-1] == "offset")


def has_headers(batch: pa.RecordBatch) -> bool:
    """Return whether rows that are to be stored have a column of headers."""
    return bool(batch.schema.names[-2 if has_offsets(batch) else -1] in ("headers", TYPED_HEADERS))


def with_headers(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows that are to be stored with a headers column: all null if they had none."""
    if has_headers(batch):
        return batch
    name = TYPED_HEADERS if batch.schema.names[-1] == TYPED_TIMESTAMP else "headers"
    at = batch.num_columns - has_offsets(batch)
    columns = [*batch.columns[:at], pa.nulls(len(batch), HEADERS_TYPE), *batch.columns[at:]]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema.insert(at, pa.field(name, HEADERS_TYPE)))


@dataclass(frozen=True, slots=True)
class EncodedObject:
    """A data object ready to be put. The buffers may share memory with the rows they came from."""

    buffers: list[Buffer]
    size_bytes: int
    sections: tuple[Section, ...]


class _Gather(io.RawIOBase):
    """A file for Arrow's writer that keeps pieces instead of copying them; small ones are joined.

    Attributes:
        starts: byte at which each part begins.
        size_bytes: of what was written.
    """

    def __init__(self) -> None:
        super().__init__()
        self.starts: list[int] = []
        self.size_bytes = 0
        self._pieces: list[Buffer] = []
        self._cuts: list[int] = []
        self._open: bytearray | None = None
        self._values: deque[list[memoryview]] = deque()
        """What each stand-in that is written next is replaced by."""

    def write(self, data: Any, /) -> int:
        view = memoryview(data)
        self.size_bytes += view.nbytes
        is_stand_in = isinstance(data, pa.Buffer) and data.address == _STAND_IN.address
        for piece in self._values.popleft() if is_stand_in else [view]:
            self._add(piece)
        return view.nbytes

    def join(self, batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
        """Return the batch that must be written next, uncompressed, to write the rows of these batches of one schema.

        Its values are not there: a stand-in of their size is, and `write` takes the batches' own memory instead.
        """
        if len(batches) == 1:
            return batches[0]
        columns = [self._join([batch.column(index) for batch in batches]) for index in range(batches[0].num_columns)]
        return pa.RecordBatch.from_arrays(columns, schema=batches[0].schema)

    def _join(self, arrays: Sequence[pa.Array]) -> pa.Array:
        size_bytes = 0
        if arrays[0].type == pa.binary() and not any(array.null_count for array in arrays):
            offsets = [_offsets(array) for array in arrays]
            size_bytes = sum([int(bounds[-1] - bounds[0]) for bounds in offsets])
        if not _SHARED_BYTES_MIN * len(arrays) <= size_bytes <= _STAND_IN.size:
            return pa.concat_arrays(arrays, ROW_MEMORY)
        joined, at, end = np.zeros(sum(map(len, arrays)) + 1, dtype=np.int32), 0, 0
        for array_offsets in offsets:
            np.subtract(array_offsets[1:], array_offsets[0] - end, out=joined[at + 1 : at + len(array_offsets)])
            at, end = at + len(array_offsets) - 1, end + int(array_offsets[-1] - array_offsets[0])
        spans = [(array, int(bounds[0]), int(bounds[-1])) for array, bounds in zip(arrays, offsets, strict=True)]
        self._values.append([memoryview(array.buffers()[2])[start:end] for array, start, end in spans if start < end])
        buffers = [None, pa.py_buffer(joined), _STAND_IN.slice(0, size_bytes)]
        return pa.Array.from_buffers(pa.binary(), len(joined) - 1, buffers, null_count=0)

    def _add(self, piece: memoryview) -> None:
        if piece.nbytes <= _PIECE_COPY_BYTES_MAX:
            if self._open is None:
                self._open = bytearray()
                self._pieces.append(self._open)
            self._open += piece
        else:
            self._pieces.append(piece)
            self._open = None

    def cut(self) -> None:
        """Begin a part with what is written next; the first part begins with the file."""
        self._open = None
        self.starts.append(self.size_bytes)
        self._cuts.append(len(self._pieces))

    def parts(self) -> list[list[Buffer]]:
        """Return the pieces of each part, once the file is written."""
        cuts = [0, *self._cuts[1:], len(self._pieces)]
        return [self._pieces[start:end] for start, end in pairwise(cuts)]

    def tell(self) -> int:
        return self.size_bytes

    def writable(self) -> bool:
        return True


class _Copy:
    """A file of few bytes for Arrow's writer, as ``_Gather``: a copy costs less than a Python call for each piece."""

    def __init__(self) -> None:
        self.file = pa.BufferOutputStream()
        self.starts: list[int] = []

    def cut(self) -> None:
        self.starts.append(self.file.tell())

    def parts(self) -> list[list[Buffer]]:
        body = memoryview(self.file.getvalue())
        return [[bytearray(body[start:end])] for start, end in pairwise([0, *self.starts[1:], body.nbytes])]


def encode_data_object(
    sections: Iterable[SectionInput],
    *,
    compression: str,
    has_headers: bool,
    has_offsets: bool = False,
    is_sized: bool = False,
    is_small: bool = False,
    rows: RowSchema | None = None,
) -> EncodedObject:
    """Return one Arrow IPC file with the rows of each input, in order, as zero or more sections each.

    Args:
        sections: rows with the columns of `data_schema(has_headers, has_offsets, rows)`, by name; no null timestamp.
        compression: none, lz4 or zstd.
        has_headers: whether the object has a headers column.
        has_offsets: whether it has an offset column: compaction left gaps.
        is_sized: whether batches are written as they come, which copies nothing; else they are cut and joined first.
        is_small: whether all rows together have at most `SMALL_SIZE_BYTES_MAX` bytes. Then the object is a copy.
        rows: the columns of typed rows.

    Raises:
        InvalidConfigError: UNSUPPORTED_COMPRESSION_TYPE; INVALID_TIMESTAMP.
    """
    _check_compression(compression)
    schema = data_schema(has_headers, has_offsets, rows)
    sink: _Gather | _Copy = _Copy() if is_small else _Gather()
    codec = pa.Codec("zstd", ZSTD_LEVEL) if compression == "zstd" else None if compression == "none" else compression
    options = pa.ipc.IpcWriteOptions(compression=codec, metadata_version=pa.ipc.MetadataVersion.V5)
    written: list[_Written] = []
    covered = [] if rows is None or is_small else covered_names(rows.arrow)
    statistics: list[Statistics] = []
    join = sink.join if isinstance(sink, _Gather) and codec is None else join_batches
    file = sink.file if isinstance(sink, _Copy) else pa.PythonFile(sink, mode="w")
    with pa.ipc.new_file(file, _file_schema(has_headers, has_offsets, rows), options=options) as writer:
        for topic, topic_id, partition, records, producer in sections:
            batches = [records] if isinstance(records, pa.RecordBatch) else records
            conformed = (batch if batch.schema.equals(schema) else _conform(batch, schema) for batch in batches)
            for group in [[list(conformed)]] if is_small else _sections_of(conformed, is_sized=is_sized):
                micros, holes, row_count, seen = list[int](), list[str](), 0, dict[str, ColumnStatistics]()
                for message in group:
                    batch = join(message)
                    sink.cut()
                    low_us, high_us = _time_range_us(batch)
                    micros += low_us, high_us
                    holes.append(_CRC_PLACEHOLDERS[producer == _CRC_PLACEHOLDERS[0]])
                    metadata = {
                        "replog.topic": topic,
                        "replog.topic_id": topic_id,
                        "replog.partition": str(partition),
                        "replog.rows": str(batch.num_rows),
                        "replog.min_timestamp_us": str(low_us),
                        "replog.max_timestamp_us": str(high_us),
                        "replog.producer": producer,
                        "replog.body_crc32c": holes[-1],
                    }
                    writer.write_batch(batch, metadata)
                    row_count += batch.num_rows
                    for name in covered:
                        part = column_statistics(_values_of(batch, message, name))
                        seen[name] = seen[name].joined(part) if name in seen else part
                times_ms = min(micros) // 1000, -(-max(micros) // 1000)
                written.append((topic_id, partition, row_count, times_ms, holes))
                statistics.append(seen)
        sink.cut()
    return _sealed(sink, written, statistics, rows)


def _values_of(batch: pa.RecordBatch, parts: Sequence[pa.RecordBatch], name: str) -> pa.Array | pa.ChunkedArray:
    """Return a column of a joined batch; of binary values, for which it may have a stand-in, that of its parts."""
    if batch.schema.field(name).type != pa.binary():
        return batch.column(name)
    return pa.chunked_array([part.column(name) for part in parts])


def _check_compression(compression: str) -> None:
    if compression not in COMPRESSION_TYPES:
        raise InvalidConfigError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            f"compression.type '{compression}' is not supported. Use one of: {', '.join(COMPRESSION_TYPES)}.",
        )


def _sealed(
    sink: _Gather | _Copy, written: Sequence[_Written], statistics: Sequence[Statistics], rows: RowSchema | None
) -> EncodedObject:
    """Return the object of a written file: one part for each message, and one for the end, with the statistics."""
    parts, starts = sink.parts(), sink.starts
    buffers: list[Buffer] = []
    if written:
        # Arrow writes the magic and the schema message with the first batch. They belong to no section.
        schema_at = len(_MAGIC) + _MESSAGE_PREFIX_BYTES
        head = _join_head(parts[0], schema_at)
        starts[0] = schema_at + int.from_bytes(head[schema_at - 4 : schema_at], "little")
        head = _join_head(parts[0], starts[0])
        buffers.append(head[: starts[0]])
        parts[0][0] = head[starts[0] :]
    number, sections = 0, list[Section]()
    for topic_id, partition, row_count, times_ms, holes in written:
        start, crc = starts[number], 0
        for hole in holes:
            crc = _seal(parts[number], hole, crc)
            number += 1
        sections.append(Section(topic_id, partition, row_count, start, starts[number] - start, crc, *times_ms))
    if rows is not None and any(statistics):
        head = _join_head(parts[-1], len(_STREAM_END))
        extra = encode_statistics(list(zip(sections, statistics, strict=True)), rows.arrow)
        head[len(_STREAM_END) : len(_STREAM_END)] = extra
    for part in parts:
        buffers += part
    return EncodedObject(buffers, sum([len(piece) for piece in buffers]), tuple(sections))


def _join_head(pieces: list[Buffer], size_bytes: int) -> bytearray:
    """Make the first bytes of a part one piece, if they are not: those of hundreds of columns are written apart."""
    head = pieces[0] if isinstance(pieces[0], bytearray) else bytearray(pieces[0])
    count = 1
    while len(head) < size_bytes:
        head += pieces[count]
        count += 1
    pieces[:count] = [head]
    return head


def decode_section(
    buffer: Buffer,
    crc32c: int,
    row_count: int,
    has_headers: bool,
    has_offsets: bool = False,
    rows: RowSchema | None = None,
    columns: Collection[str] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the record batches of a section; columns point into the buffer unless compressed.

    The checksum is verified on the call, before anything is yielded. `buffer` is exactly the section's byte range;
    the other arguments come from the ledger, but for `columns`: the only ones to decode and yield, at least one, in
    the order in which they are stored; None: all.

    Raises:
        CorruptDataError: CORRUPT_MESSAGE: wrong checksum, or bytes that are not a section of this shape.
        RetriableError: KAFKA_STORAGE_ERROR: this process has too little memory for the rows, which proves nothing
            about the bytes.
    """
    crc = crc32c_module.crc32c(buffer)
    if crc != crc32c:
        raise _damaged(f"its checksum is {crc:08x}, the ledger has {crc32c:08x}")
    schema = data_schema(has_headers, has_offsets, rows)
    assert columns is None or columns, "Arrow takes no columns for all of them"
    if columns is None or len(columns) == len(schema):
        return _read_batches(buffer, row_count, schema, rows)
    return _read_batches(buffer, row_count, schema, rows, [n for n, name in enumerate(schema.names) if name in columns])


class _Joined(io.RawIOBase):
    """A file of several buffers, read from its begin to its end without a copy."""

    def __init__(self, *parts: Buffer) -> None:
        super().__init__()
        self._parts = deque([memoryview(part) for part in parts])

    def read(self, size_bytes: int = -1, /) -> Any:
        while len(self._parts) > 1 and not self._parts[0].nbytes:
            self._parts.popleft()
        part = self._parts[0]
        size_bytes = part.nbytes if size_bytes < 0 else size_bytes
        self._parts[0] = part[size_bytes:]
        return part[:size_bytes]

    def readable(self) -> bool:
        return True


def _some_columns(message: Buffer, schema: pa.Schema, numbers: list[int]) -> pa.RecordBatch:
    """Return only some columns of a record batch message; the others are not even decompressed."""
    options = pa.ipc.IpcReadOptions(included_fields=numbers)
    with pa.ipc.open_stream(pa.PythonFile(_Joined(schema.serialize(), message), mode="r"), options=options) as reader:
        return reader.read_next_batch()


def _read_batches(
    buffer: Buffer, row_count: int, schema: pa.Schema, typed: RowSchema | None, numbers: list[int] | None = None
) -> Iterator[pa.RecordBatch]:
    view = memoryview(buffer)
    source = pa.BufferReader(pa.py_buffer(buffer))
    size_bytes, rows = view.nbytes, 0
    while (at := source.tell()) < size_bytes:
        try:
            message = pa.ipc.read_message(source)
            if _largest_claim(message) > max(BUFFER_BYTES_MAX, 8 * (row_count + 1)):
                raise _damaged("a compressed buffer claims more bytes than a column of its rows can have")
            if numbers is None:
                batch = pa.ipc.read_record_batch(message, schema)
            else:
                batch = _some_columns(view[at : source.tell()], schema, numbers)
            # The checksum proves that the bytes are the writer's, not that Arrow may follow their offsets.
            batch.validate(full=True)
            batch = batch if typed is None else batch_with_offsets(batch)
            if _has_holes(batch) if typed is None else _has_typed_holes(batch):
                raise _damaged("a row lacks its timestamp, its offset, a NOT NULL value, or the key of a header")
        except MemoryError as error:
            raise RetriableError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"a section of {size_bytes} bytes cannot be decoded in the memory of this process: {error}. Give the"
                " process more memory, or read with fewer tasks at once.",
            ) from error
        except (pa.ArrowException, OSError, EOFError, ValueError, LookupError, struct.error) as error:
            raise _damaged(f"Arrow cannot read it: {error}") from error
        rows += batch.num_rows
        if rows > row_count:
            break
        yield batch
    if rows != row_count:
        raise _damaged(f"it has {rows} rows or more, the ledger has {row_count}")


def _has_holes(batch: pa.RecordBatch) -> bool:
    """Return whether there is a null that no writer makes and no reader expects."""
    names = batch.schema.names
    if batch.column(2).null_count or (names[-1] == "offset" and batch.column(-1).null_count):
        return True
    pairs = batch.column(3).values if "headers" in names else None
    return pairs is not None and pairs.null_count + pairs.field(0).null_count > 0


def _has_typed_holes(batch: pa.RecordBatch) -> bool:
    """Return the same of typed rows, of which some columns may be left out."""
    for field, column in zip(batch.schema, batch.columns, strict=True):
        is_required = not field.nullable or field.name in (TYPED_TIMESTAMP, TYPED_OFFSET)
        if is_required and column.null_count:
            return True
        if field.name == TYPED_HEADERS and column.values.null_count + column.values.field(0).null_count:
            return True
    return False


def _largest_claim(message: pa.Message) -> int:
    """Return the largest size that a compressed buffer claims to have, before Arrow allocates it; 0 without any.

    Source: Arrow's ``Message.fbs``: the buffers are field 2 of the RecordBatch, which is field 2 of the Message, and
    each compressed one begins with its size, -1 if it is not compressed after all.
    """
    data, body = memoryview(message.metadata), memoryview(message.body)

    def field(table: int, number: int) -> int:
        """Return the position of what a table's field points at, 0 if it is absent."""
        vtable: int = table - struct.unpack_from("<i", data, table)[0]
        size, at = struct.unpack_from("<H", data, vtable)[0], 4 + 2 * number
        offset: int = struct.unpack_from("<H", data, vtable + at)[0] if at < size else 0
        at = table + offset
        return at + int(struct.unpack_from("<I", data, at)[0]) if offset else 0

    batch = field(struct.unpack_from("<I", data)[0], 2)
    if message.type != "record batch" or not batch or not field(batch, 3):
        return 0
    at = field(batch, 2)
    (count,) = struct.unpack_from("<I", data, at)
    buffers = struct.iter_unpack("<qq", data[at + 4 : at + 4 + 16 * count])
    return max((struct.unpack_from("<q", body, start)[0] for start, size in buffers if size >= 8), default=0)


def _damaged(what: str) -> CorruptDataError:
    return CorruptDataError(
        ErrorCode.CORRUPT_MESSAGE,
        f"section is damaged: {what}. Run `replog store verify --deep` to see which copies are bad.",
    )


def frame_damage(body: Buffer, sections: Iterable[tuple[int, int]]) -> str | None:
    """Return what is wrong with a whole object outside its sections, as far as its own bytes tell.

    Checks the magic, the ends of the schema message and of the stream, the statistics, and that the footer names each
    message of the sections. Arrow does not get the schema and the footer: no checksum proves them, and damaged ones
    can crash it.

    Args:
        sections: (start byte, size) of sections, whose checksums are right.
    """
    view = memoryview(body)
    if view[: len(_MAGIC)] != _MAGIC or view[-6:] != _MAGIC[:6]:
        return "it does not start and end with the magic of an Arrow file"
    schema_end = 16 + int.from_bytes(view[12:16], "little")
    if view[8:12] != _CONTINUATION or view[schema_end : schema_end + 4] != _CONTINUATION:
        return "its schema message has a wrong length"
    footer_at = view.nbytes - 10 - int.from_bytes(view[-10:-6], "little")
    try:
        statistics = statistics_body(view)
    except ValueError as error:
        return f"its {error}"
    stream_end = footer_at - (0 if statistics is None else statistics_size(statistics))
    if stream_end < 8 or view[stream_end - 8 : stream_end] != _STREAM_END:
        return "no end of stream is before its footer"
    footer = bytes(view[footer_at:])
    for start, size_bytes in sections:
        source, at = pa.BufferReader(pa.py_buffer(view[start : start + size_bytes])), 0
        while at < size_bytes:
            try:
                body_bytes = pa.ipc.read_message(source).body.size
            except (pa.ArrowException, OSError, EOFError, ValueError) as error:
                return f"Arrow cannot read the message at byte {start + at}: {error}"
            metadata_bytes = source.tell() - at - body_bytes
            if struct.pack("<qi4xq", start + at, metadata_bytes, body_bytes) not in footer:
                return f"its footer does not name the message at byte {start + at}"
            at = source.tell()
    return None


def _messages(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, list[pa.RecordBatch]]]:
    """Yield bytes and rows of messages of about 4 MiB each: large batches are sliced, small neighbours share one."""
    waiting: list[pa.RecordBatch] = []
    waiting_bytes = 0
    for batch in batches:
        size_bytes = batch.nbytes
        if batch.num_rows == 0:
            continue
        if waiting and waiting_bytes + size_bytes > BATCH_SIZE_BYTES_TARGET:
            yield waiting_bytes, waiting
            waiting, waiting_bytes = [], 0
        if size_bytes <= BATCH_SIZE_BYTES_TARGET:
            waiting.append(batch)
            waiting_bytes += size_bytes
            continue
        rows = max(1, batch.num_rows * BATCH_SIZE_BYTES_TARGET // size_bytes)
        for start in range(0, batch.num_rows, rows):
            piece = batch.slice(start, rows)
            yield piece.nbytes, [piece]
    if waiting:
        yield waiting_bytes, waiting


def array_of(values: np.ndarray[Any, Any]) -> pa.Array:
    """Return numbers as an Arrow array over the same memory.

    ``pa.array`` would import pandas, if it is installed, to see whether the values are of its types: 0.3 s in a new
    process.
    """
    buffer = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, buffer])


def join_batches(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Return the rows of one or more batches of one schema as one batch; all together below `BUFFER_BYTES_MAX`."""
    if len(batches) == 1:
        return batches[0]
    table = pa.Table.from_batches(batches).combine_chunks(ROW_MEMORY)
    (joined,) = table.to_batches()  # Arrow would make a second one of what 32-bit offsets cannot reach
    return joined


def _conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the schema's columns of a batch, cast where their type is another."""
    columns = []
    for field in schema:
        column = batch.column(batch.schema.get_field_index(field.name))
        columns.append(column if column.type.equals(field.type) else column.cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _sections_of(batches: Iterable[pa.RecordBatch], *, is_sized: bool) -> Iterator[list[list[pa.RecordBatch]]]:
    """Yield the sections of a partition's rows, each as its messages, each as the batches to join."""
    return _group_sections(((batch.nbytes, [batch]) for batch in batches) if is_sized else _messages(batches))


def _group_sections(messages: Iterable[tuple[int, list[pa.RecordBatch]]]) -> Iterator[list[list[pa.RecordBatch]]]:
    group: list[list[pa.RecordBatch]] = []
    size_bytes = 0
    for message_bytes, message in messages:
        if group and size_bytes + message_bytes > SECTION_SIZE_BYTES_MAX:
            yield group
            group, size_bytes = [], 0
        group.append(message)
        size_bytes += message_bytes
    if group:
        yield group


def _offsets(array: pa.Array) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Return the N + 1 offsets of the values of N >= 1 binary values."""
    return np.frombuffer(array.buffers()[1], dtype="<i4")[array.offset : array.offset + len(array) + 1]


def _time_range_us(batch: pa.RecordBatch) -> tuple[int, int]:
    times = times_of(batch)
    if times.null_count:
        raise InvalidConfigError(ErrorCode.INVALID_TIMESTAMP, "a record has no timestamp.")
    micros = np.frombuffer(times.buffers()[1], dtype="<i8")[times.offset : times.offset + len(times)]
    return int(micros.min()), int(micros.max())


def _seal(message: list[Buffer], hole: str, section_crc: int) -> int:
    """Write the body's checksum into a message; return the section's CRC.

    The checksum is part of the message's metadata, before the body, so it is filled in afterwards.
    """
    head = _join_head(message, _MESSAGE_PREFIX_BYTES)
    metadata_end = _MESSAGE_PREFIX_BYTES + int.from_bytes(head[4:_MESSAGE_PREFIX_BYTES], "little")
    head = _join_head(message, metadata_end)
    body = [memoryview(head)[metadata_end:], *message[1:]]
    body_crc = 0
    for piece in body:
        body_crc = crc32c_module.crc32c(piece, body_crc)
    field = len(hole).to_bytes(4, "little") + hole.encode()  # a flatbuffer string follows its length
    at = head.index(field, 0, metadata_end)
    head[at + 4 : at + len(field)] = b"%08x" % body_crc
    section_crc = crc32c_module.crc32c(memoryview(head)[:metadata_end], section_crc)
    body_bytes = sum([len(piece) for piece in body])
    if body_bytes >= _CRC_JOIN_BYTES_MIN:
        return joined_crc(section_crc, body_crc, body_bytes)
    for piece in body:
        section_crc = crc32c_module.crc32c(piece, section_crc)
    return section_crc


def joined_crc(first: int, second: int, second_bytes: int) -> int:
    """Return the CRC32C of bytes from those of their two parts and the length of the second.

    Source: zlib's ``crc32_combine``. A CRC is a polynomial over the bits, modulo CRC32C's; the first part's is shifted
    by the length of the second.
    """
    exponent = 3  # a byte has 2**3 bits
    while second_bytes:
        if second_bytes & 1:
            first = _product(first, _multiples(exponent))
        second_bytes >>= 1
        exponent += 1
    return first ^ second


@functools.cache
def _multiples(exponent: int) -> tuple[int, ...]:
    """Return the polynomial that shifts by ``2**exponent`` bits, times x to the power of 0 to 31."""
    multiple = _product(_multiples(exponent - 1)[0], _multiples(exponent - 1)) if exponent else 1 << 30
    multiples = [multiple]
    for _ in range(31):
        multiple = multiple >> 1 ^ (_CRC_POLYNOMIAL if multiple & 1 else 0)
        multiples.append(multiple)
    return tuple(multiples)


def _product(left: int, multiples: Sequence[int]) -> int:
    """Return the product of two polynomials; of the right one come the multiples."""
    product = 0
    for bit, multiple in zip(f"{left:032b}", multiples, strict=True):
        if bit == "1":
            product ^= multiple
    return product
