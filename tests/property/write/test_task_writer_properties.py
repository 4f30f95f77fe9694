"""A task of any batches against a row-by-row model: every row once, where it belongs, in order."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_replog.config.producer import ProducerConfig
from spark_replog.ids import new_id
from spark_replog.log.codec.data_object import decode_section
from spark_replog.log.write_plan import TopicPlan, WritePlan
from spark_replog.storage.brokers import write_root_files
from spark_replog.storage.paths import data_key
from spark_replog.write.partitioner import murmur2_array
from spark_replog.write.task_writer import TaskWriter
from tests.examples import examples

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
COUNTS = {"a": 1, "b": 5, "c": 300}

row_strategy = st.fixed_dictionaries(
    {
        "topic": st.sampled_from(sorted(COUNTS)),
        "key": st.one_of(st.none(), st.binary(max_size=12)),
        "value": st.one_of(st.none(), st.binary(max_size=60)),
        "partition": st.one_of(st.none(), st.just(0)),
        "headers": st.one_of(
            st.none(),
            st.lists(
                st.fixed_dictionaries(
                    {"key": st.text(max_size=3), "value": st.one_of(st.none(), st.binary(max_size=3))}
                ),
                max_size=2,
            ),
        ),
    }
)
batch_strategy = st.tuples(
    st.lists(row_strategy, min_size=1, max_size=40),
    st.integers(0, 10),
    st.sampled_from([pa.binary(), pa.large_binary()]),
    st.booleans(),
)


def to_batch(rows: list[dict[str, Any]], cut: int, kind: pa.DataType, has_headers: bool) -> pa.RecordBatch:
    """Return the rows behind ``cut`` as a slice of all of them."""
    columns = {
        "headers": pa.array([row["headers"] for row in rows], HEADERS),
        "value": pa.array([row["value"] for row in rows], kind),
        "topic": pa.array([row["topic"] for row in rows], pa.string()),
        "ignored": pa.array(range(len(rows))),
        "partition": pa.array([row["partition"] for row in rows], pa.int32()),
        "key": pa.array([row["key"] for row in rows], kind),
    }
    if not has_headers:
        del columns["headers"]
    return pa.RecordBatch.from_pydict(columns).slice(min(cut, len(rows) - 1))


def partition_of(row: dict[str, Any]) -> int | None:
    if row["partition"] is not None:
        return int(row["partition"])
    if row["key"] is None:
        return None
    return (int(murmur2_array(pa.array([row["key"]], pa.binary()))[0]) & 0x7FFFFFFF) % COUNTS[row["topic"]]


@pytest.mark.guarantee("G1")
@settings(max_examples=examples(30), deadline=None)
@given(
    st.lists(batch_strategy, max_size=6),
    st.sampled_from([100, 1_000, 100_000]),
    st.sampled_from([300, 5_000, 1_000_000]),
    st.sampled_from(["none", "lz4"]),
)
def test_every_row_once_in_its_place(
    batches: list[tuple[Any, ...]], batch_size: int, request_size: int, compression: str
) -> None:
    brokers = write_root_files([f"memory://{new_id()}"])
    topics = tuple(
        TopicPlan(name, f"id-{name}", "l" * 32, 0, ((0,),) * count, ((0,),) * count, 1, compression, 10_000, False)
        for name, count in COUNTS.items()
    )
    plan = WritePlan("memory://store", topics, "User:t", 0)
    config = ProducerConfig(
        batch_size_bytes=batch_size, max_request_size_bytes=max(300, request_size), buffer_memory_bytes=50_000
    )
    writer = TaskWriter(plan, config, brokers, query_id="q" * 32, batch_id=0, task_id=0, default_topic=None)
    expected: list[dict[str, Any]] = []
    for rows, cut, kind, has_headers in batches:
        writer.append(to_batch(rows, cut, kind, has_headers))
        expected += [
            row | {"headers": (row["headers"] or None) if has_headers else None}
            for row in rows[min(cut, len(rows) - 1) :]
        ]
    result = writer.close()

    partition_rows: dict[tuple[str, int], list[dict[str, Any]]] = defaultdict(list)
    for ledger_id, item in result.objects:
        body = brokers.store(0).get(data_key(ledger_id, 0, item.id.name))
        assert body is not None
        for section in item.sections:
            part = bytes(body[section.start_byte : section.start_byte + section.size_bytes])
            for batch in decode_section(part, section.crc32c, section.row_count, item.has_headers):
                partition_rows[section.topic_id.removeprefix("id-"), section.partition] += batch.to_pylist()

    def seen(row: dict[str, Any]) -> tuple[Any, ...]:
        pairs = row.get("headers")
        return (
            row["key"],
            row["value"],
            None if pairs is None else tuple((pair["key"], pair["value"]) for pair in pairs),
        )

    assert result.row_count == len(expected) == sum(len(rows) for rows in partition_rows.values())
    for (topic, partition), rows in partition_rows.items():
        mine = [row for row in expected if row["topic"] == topic]
        placed = [seen(row) for row in mine if partition_of(row) == partition]
        keyed = [seen(row) for row in rows if row["key"] is not None]
        assert keyed == [row for row in placed if row[0] is not None]
        # Rows without key and partition may lie anywhere, but in order.
        rest = iter(seen(row) for row in mine if row["key"] is None)
        assert all(row in rest for row in (seen(row) for row in rows if row["key"] is None))
