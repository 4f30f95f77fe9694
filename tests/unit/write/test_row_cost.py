"""Arrow paths do nothing in Python for each row: as many steps and objects for many rows as for few."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa
import pytest

from tests.unit.client.producer_setup import Shop
from tests.unit.write.support import HEADERS, PATIENT, FaultyBrokers, Task, batch

pytestmark = pytest.mark.case("producer-work-each-row-arrow-batches")

FEW, MANY = 1_000, 6_000
STEPS_MAX, OBJECTS_MAX = 2_000, 2_000
"""What many rows may take more than few: far less than one for a row."""


def cost(run: Callable[[], object]) -> tuple[int, int]:
    """Return how many lines and calls this thread runs, and how many objects it holds at most besides."""
    steps, most = 0, 0

    def trace(_frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal steps, most
        steps += 1
        if event == "return":  # asking takes 1 ms in a process with many objects
            most = max(most, sys.getallocatedblocks())
        return trace

    def profile(_frame: FrameType, event: str, _argument: Any) -> None:
        nonlocal steps
        steps += event == "c_call"

    before = sys.getallocatedblocks()
    old = sys.gettrace()
    sys.settrace(trace)
    sys.setprofile(profile)
    try:
        run()
    finally:
        sys.setprofile(None)
        sys.settrace(old)
    return steps, most - before


def check(run: Callable[[pa.RecordBatch], object], **columns: Callable[[int], pa.Array]) -> None:
    def batch_of(count: int) -> pa.RecordBatch:
        return batch(count, **{name: make(count) for name, make in columns.items()})

    run(batch_of(FEW))  # what is made once is made here
    (few, few_objects), (many, many_objects) = (
        cost(lambda rows=rows: run(rows)) for rows in (batch_of(FEW), batch_of(MANY))
    )
    assert many - few < STEPS_MAX
    assert many_objects - few_objects < OBJECTS_MAX


COLUMNS: dict[str, dict[str, Callable[[int], pa.Array]]] = {
    "keyed": {},
    "without keys": {"key": lambda count: pa.nulls(count, pa.binary())},
    "to partitions": {"partition": lambda count: pa.array([number % 5 for number in range(count)], pa.int32())},
    "with headers": {"headers": lambda count: pa.array([[{"key": "h", "value": b"1"}]] * count, HEADERS)},
}


@pytest.mark.parametrize("columns", COLUMNS.values(), ids=COLUMNS)
def test_a_write_task(make_task: Callable[..., Task], columns: dict[str, Callable[[int], pa.Array]]) -> None:
    config = replace(PATIENT, buffer_memory_bytes=256 << 20)
    check(lambda rows: make_task(partitions=5, config=config).write(rows), **columns)


def test_a_write_task_whose_rows_name_their_topics(make_task: Callable[..., Task], make_topic: Any) -> None:
    topics = [make_topic(name, sets=((0, 1, 2),) * 3) for name in ("one", "two")]
    check(
        lambda rows: make_task(*topics, default_topic=None).write(rows),
        topic=lambda count: pa.array(["one", "two"] * (count // 2)),
    )


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    made = Shop(tmp_path, FaultyBrokers)
    yield made
    made.close()


@pytest.mark.parametrize("columns", COLUMNS.values(), ids=COLUMNS)
def test_a_producers_table(shop: Shop, columns: dict[str, Callable[[int], pa.Array]]) -> None:
    shop.topic(partitions=5)
    producer = shop.producer()
    check(lambda rows: producer.send_arrow("orders", rows), **columns)


def test_a_loop_over_rows_would_be_found() -> None:
    with pytest.raises(AssertionError):
        check(lambda rows: [value.as_py() for value in rows.column("value")])
    with pytest.raises(AssertionError):
        check(lambda rows: (lambda values: len(values))(rows.column("value").to_pylist()))
