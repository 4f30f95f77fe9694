"""Lists of no values without offsets, as Spark 4.0 and 4.1 send them: they are written and read, no process ends."""

from __future__ import annotations

import pyarrow as pa
import pytest

import spark_replog
from spark_replog.ids import new_id
from spark_replog.log.codec.empty_lists import batch_with_offsets, with_offsets

NUMBERS = pa.array([], pa.int64())
ENTRIES = pa.array([], pa.struct([pa.field("key", pa.int32(), nullable=False), ("value", pa.int64())]))


def bare(child: pa.Array, count: int = 0) -> pa.Array:
    """Return `count` empty lists; the offsets of none are left out."""
    offsets = pa.py_buffer(bytes(4 * (count + 1))) if count else None
    return pa.Array.from_buffers(pa.list_(pa.field("element", child.type)), count, [None, offsets], children=[child])


def bare_map() -> pa.Array:
    return pa.Array.from_buffers(pa.map_(pa.int32(), pa.int64()), 0, [None, None], children=[ENTRIES])


BARE = {
    "list": bare(bare(NUMBERS), 2),
    "deep": bare(bare(bare(NUMBERS)), 2),
    "struct": bare(pa.StructArray.from_arrays([bare(NUMBERS)], ["x"]), 2),
    "map": bare(bare(bare_map()), 2),
}


@pytest.mark.parametrize("kind", BARE)
def test_offsets_are_made_anew(kind):
    array = BARE[kind]
    array.validate(full=True)
    made = with_offsets(array)
    assert made.nbytes >= 8  # of `array` this ends the process
    assert made.equals(array) and made.to_pylist() == [[], []]
    assert with_offsets(made) is made
    batch = pa.record_batch({"a": array, "b": pa.array([1, 2])})
    assert batch_with_offsets(batch).column(0).nbytes == made.nbytes
    assert batch_with_offsets(batch_with_offsets(batch)).equals(batch)


def test_they_are_written_stored_and_read():
    store = spark_replog.init(f"memory://{new_id()}", 1, fsync=False)
    batch = pa.record_batch({f"{kind}_{number}": array for kind, array in BARE.items() for number in range(2)})
    store.admin().create_topic("rows", partitions=1, schema=batch.schema)
    with store.producer(inline_max_bytes=0) as producer:
        for _ in range(3):
            producer.send_arrow("rows", pa.Table.from_batches([batch])).result()
    with store.consumer("rows", auto_offset_reset="earliest") as consumer:
        table = consumer.to_arrow()
    assert table.num_rows == 6
    assert [table[name].to_pylist() for name in batch.schema.names] == [[[]] * 6] * 8
