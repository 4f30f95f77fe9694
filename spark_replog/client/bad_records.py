"""Headers of a record in an errors topic: where it is from and why it is bad, under the names of Kafka Connect.

Source of the names: Kafka's ``DeadLetterQueueReporter``. Whole columns at a time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_replog.errors import ErrorCode
from spark_replog.log.codec.data_object import HEADERS_TYPE, array_of

PREFIX = "__connect.errors."
TOPIC, PARTITION, OFFSET = (PREFIX + name for name in ("topic", "partition", "offset"))
CONNECTOR, STAGE = PREFIX + "connector.name", PREFIX + "stage"
"""The target topic, and the step that failed."""
CODE, REASON = PREFIX + "exception.class.name", PREFIX + "exception.message"
TIMESTAMP = "__replog.errors.timestamp"
"""The record's own time in milliseconds; Kafka Connect has no such header."""
_ORIGIN = (TOPIC, PARTITION, OFFSET, TIMESTAMP)
NAMES = (*_ORIGIN, CONNECTOR, STAGE, CODE, REASON)
_VALUE_CONVERTER = b"VALUE_CONVERTER"


def bad_headers(rows: pa.RecordBatch, target: str, reasons: pa.Array, *, keeps_origin: bool) -> pa.Array:
    """Return the headers of N bad records: those that they have, where they are from, and why they are bad.

    Args:
        rows: with the columns of ``rows.read_schema(True)``.
        reasons: N texts.
        keeps_origin: the rows are of an errors topic and say where they are from.
    """
    count = rows.num_rows
    code = ErrorCode.REPLOG_DESERIALIZATION.name.encode()
    made = {
        CONNECTOR: _same(target.encode(), count),
        STAGE: _same(_VALUE_CONVERTER, count),
        CODE: _same(code, count),
        REASON: reasons.cast(pa.binary()),
    }
    if not keeps_origin:
        millis = pc.divide(rows.column("timestamp").cast(pa.int64()), 1000)
        origin = dict(
            zip(_ORIGIN, (*(rows.column(name) for name in ("topic", "partition", "offset")), millis), strict=True)
        )
        made = {**{name: column.cast(pa.string()).cast(pa.binary()) for name, column in origin.items()}, **made}
    return _with_pairs(rows.column("headers"), made)


def plain_headers(headers: pa.Array) -> pa.Array:
    """Return the headers without those that `bad_headers` adds."""
    return headers if headers.null_count == len(headers) else _with_pairs(headers, {}, NAMES)


def header_values(headers: pa.Array, name: str) -> pa.Array:
    """Return the value of a header of each of N records, null where it has none: of several, the last."""
    keys, values, owners = _pairs(headers)
    at = np.flatnonzero(np.asarray(pc.equal(keys, name)))
    places = np.full(len(headers), -1, dtype=np.int64)
    places[owners[at]] = at
    return values.take(pa.array(places, mask=places < 0))


def _same(value: bytes, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, pa.binary()), count)


def _pairs(headers: pa.Array) -> tuple[pa.Array, pa.Array, np.ndarray]:
    """Return keys and values of all headers, and the number of the record that each belongs to."""
    pairs = headers.flatten()
    counts = np.asarray(pc.list_value_length(headers).fill_null(0)).astype(np.int64)
    return pc.struct_field(pairs, 0), pc.struct_field(pairs, 1), np.repeat(np.arange(len(headers)), counts)


def _with_pairs(headers: pa.Array, made: Mapping[str, pa.Array], without: Collection[str] = ()) -> pa.Array:
    """Return headers with more of them at each record's end, in place of those of the same names."""
    keys, values, owners = _pairs(headers)
    kept = np.flatnonzero(~np.asarray(pc.is_in(keys, value_set=pa.array([*made, *without], pa.string()))))
    every, count = np.arange(len(headers)), len(headers)
    keys = pa.concat_arrays([keys.take(array_of(kept)), *(pa.repeat(name, count) for name in made)])
    values = pa.concat_arrays([values.take(array_of(kept)), *made.values()])
    owners = np.concatenate([owners[kept], *(every for _ in made)])
    order = array_of(np.argsort(owners, kind="stable"))
    ends = np.zeros(count + 1, dtype=np.int32)
    np.cumsum(np.bincount(owners, minlength=count), out=ends[1:])
    pairs = pa.StructArray.from_arrays([keys.take(order), values.take(order)], fields=list(HEADERS_TYPE.value_type))
    return pa.ListArray.from_arrays(array_of(ends), pairs, type=HEADERS_TYPE, mask=pa.array(ends[1:] == ends[:-1]))
