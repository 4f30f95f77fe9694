"""Single records become the columns that Arrow slices have."""

from __future__ import annotations

import sys
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_replog.clock import SYSTEM_CLOCK
from spark_replog.ids import TopicPartition
from spark_replog.log.codec.data_object import data_schema
from spark_replog.write.buffer_pool import BufferPool, PinnedBytes
from spark_replog.write.columns import row_ends
from spark_replog.write.producer_batch import RecordColumns, record_size
from spark_replog.write.record_handle import BatchResult
from tests.examples import examples

LIMIT_BYTES = 400
record_strategy = st.tuples(
    st.one_of(st.none(), st.binary(max_size=30)),
    st.one_of(st.none(), st.binary(max_size=60)),
    st.one_of(
        st.none(),
        st.lists(st.tuples(st.text(max_size=3), st.one_of(st.none(), st.binary(max_size=3))), max_size=2),
    ),
    st.integers(0, 2**45),
)


def columns_of(limit_bytes: int = LIMIT_BYTES, buffer_bytes: int = 0) -> RecordColumns:
    # A used buffer: what it held before must not show.
    buffer = bytearray(b"\xff" * (buffer_bytes or limit_bytes))
    pinned = PinnedBytes(BufferPool(len(buffer), clock=SYSTEM_CLOCK), len(buffer), buffer)
    return RecordColumns(buffer, limit_bytes, BatchResult(TopicPartition("orders", 0)), pinned)


def append(columns: RecordColumns, key: Any, value: Any, headers: Any = None, timestamp_ms: int = 0) -> int:
    return columns.try_append(key, value, headers, timestamp_ms, record_size(key, value, headers))


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(record_strategy, min_size=1, max_size=20))
def test_what_was_appended_is_what_is_built(records: list[tuple[Any, ...]]) -> None:
    columns = columns_of()
    taken = []
    for record in records:
        index = append(columns, *record)
        if index < 0:
            break
        assert index == len(taken)
        taken.append(record)
    built = columns.build()
    assert built.column(0).to_pylist() == [key for key, *_ in taken]
    assert built.column(1).to_pylist() == [value for _, value, *_ in taken]
    assert built.column(2).cast(pa.int64()).to_pylist() == [time_ms * 1000 for *_, time_ms in taken]
    has_headers = any(headers for _, _, headers, _ in taken)
    assert built.schema.equals(data_schema(has_headers))
    if has_headers:
        expected = [
            [{"key": name, "value": content} for name, content in headers] if headers else None
            for _, _, headers, _ in taken
        ]
        assert built.column(3).to_pylist() == expected
    assert columns.size_bytes == int(row_ends(built)[-1])
    built.validate(full=True)


RECORDS = [(b"key", b"value", None), (b"", b"", [("h", b"1")]), (None, None, None), (b"k", b"v" * 9, None)]


@pytest.mark.parametrize("record", RECORDS)
def test_an_interrupt_at_any_line_appends_the_record_or_nothing(record: tuple[Any, ...]) -> None:
    """Ctrl-C: the producer is closed afterwards and sends what it has."""
    for line_count in range(1, 100):
        columns = columns_of()
        append(columns, b"a", b"1")
        left = line_count

        def interrupt(frame: Any, event: str, argument: object) -> Any:
            nonlocal left
            if frame.f_code is RecordColumns.try_append.__code__ and event == "line":
                left -= 1
                if left == 0:
                    raise KeyboardInterrupt
            return interrupt

        old = sys.gettrace()
        sys.settrace(interrupt)
        try:
            append(columns, *record, 5)
            return
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(old)
        taken = [(b"a", b"1", None), *[record] * (columns.row_count - 1), *RECORDS]
        for other_record in RECORDS:
            append(columns, *other_record)
        built = columns.build()
        built.validate(full=True)
        assert list(zip(*(built.column(index).to_pylist() for index in (0, 1)), strict=True)) == [
            (key, value) for key, value, _ in taken
        ]
        assert [value is not None for value in built.column(3).to_pylist()] == [bool(headers) for *_, headers in taken]
        assert columns.size_bytes == int(row_ends(built)[-1])
    raise AssertionError("an append has fewer lines")


def test_room_is_counted_and_a_first_record_always_has_it() -> None:
    columns = columns_of(100, buffer_bytes=500)
    assert append(columns, None, b"v" * 484) == 0
    assert append(columns, None, b"") == -1
    columns = columns_of(100)
    assert append(columns, None, b"v" * 34) == 0
    assert append(columns, b"k" * 4, b"v" * 30) == 1
    assert append(columns, None, None) == -1
    assert columns.row_count == 2


def test_keys_and_values_fill_the_buffer_to_the_last_byte() -> None:
    columns = columns_of(10_000, buffer_bytes=8)
    append(columns, b"ab", b"cd")
    append(columns, b"ef", b"gh")
    built = columns.build()
    assert built.column(0).to_pylist() == [b"ab", b"ef"]
    assert built.column(1).to_pylist() == [b"cd", b"gh"]


def test_a_value_that_is_not_bytes_changes_nothing() -> None:
    columns = columns_of()
    append(columns, b"k", b"v")
    with pytest.raises(TypeError):
        append(columns, b"other", "text")
    with pytest.raises(TypeError):
        append(columns, b"", "text")
    with pytest.raises(TypeError):
        append(columns, "text", b"")
    append(columns, None, None)
    append(columns, b"l", b"w")
    built = columns.build()
    assert built.column(0).to_pylist() == [b"k", None, b"l"]
    assert built.column(1).to_pylist() == [b"v", None, b"w"]
