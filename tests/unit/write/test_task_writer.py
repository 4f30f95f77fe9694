"""One write task on memory roots, whole: what lies where, what it cost, what happens when roots fail."""

from __future__ import annotations

import gc
import math
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pytest

from spark_replog.config.producer import TaskHooks
from spark_replog.daemon_thread import DaemonThread
from spark_replog.errors import ErrorCode, InvalidConfigError, NotFoundError, ReplogError, RetriableError
from spark_replog.log.codec.data_object import ROW_MEMORY
from spark_replog.log.write_plan import TopicPlan
from spark_replog.storage.direct_write import free_blocks
from spark_replog.storage.paths import data_key
from spark_replog.write import buffer_pool, data_request, task_writer
from spark_replog.write.buffer_pool import KeptPages
from spark_replog.write.task_writer import TaskResult, TaskWriter, pool_bytes_of
from tests.faulty_store import FaultRates, FaultyStore
from tests.unit.write.support import HEADERS, PATIENT, Task, batch, written

pytestmark = pytest.mark.case("kafka-68")


class TestContent:
    def test_rows_keep_their_order_within_a_partition(self, make_task: Callable[..., Task]) -> None:
        task = make_task(partitions=5)
        batches = [batch(1000, 1000 * number) for number in range(4)]
        result = task.write(*batches)
        partitions = task.values(result)
        assert len(partitions) == 5
        assert sorted(value for values in partitions.values() for value in values) == sorted(written(batches))
        assert all(values == sorted(values) for values in partitions.values())
        assert (result.row_count, result.dropped_rows) == (4000, 0)
        assert result.size_bytes == sum(item.size_bytes for _, item in result.objects)

    def test_key_decides_like_kafka(self, make_task: Callable[..., Task]) -> None:
        task = make_task(partitions=12)
        columns = {
            "key": pa.array([b"21", b"foobar", b"kafka", b""]),
            "value": pa.array(["a", "b", "c", "d"]),
        }
        partitions = task.values(task.write(pa.RecordBatch.from_pydict(columns)))
        assert partitions == {
            ("orders", 0): [b"a"],
            ("orders", 6): [b"b"],
            ("orders", 4): [b"c"],
            ("orders", 9): [b"d"],
        }

    def test_partition_column(self, make_task: Callable[..., Task]) -> None:
        task = make_task(partitions=3)
        partitions = task.values(task.write(batch(4, partition=pa.array([2, 0, 2, 1], pa.int32()))))
        assert partitions["orders", 2] == [b"%010d" % 0, b"%010d" % 2]
        assert partitions["orders", 0] == [b"%010d" % 1]

    def test_rows_name_their_topics(self, make_task: Callable[..., Task], make_topic: Callable[..., TopicPlan]) -> None:
        sets = ((0, 1, 2),) * 3
        task = make_task(
            make_topic("a", sets),
            make_topic("b", sets),
            make_topic("c", sets, ledger_id="c" * 32),
            default_topic=None,
        )
        topics = pa.array(["a", "b", "c", "a", "b"])
        partitions = pa.array([0, 0, 2, 0, 1], pa.int32())
        result = task.write(batch(5, topic=topics, partition=partitions))
        assert {name: [int(value) for value in values] for name, values in task.values(result).items()} == {
            ("a", 0): [0, 3],
            ("b", 0): [1],
            ("b", 1): [4],
            ("c", 2): [2],
        }
        # One object per ledger.
        assert sorted(ledger_id for ledger_id, _ in result.objects) == ["a" * 32, "c" * 32]

    def test_headers_appear_from_some_batch_on(self, make_task: Callable[..., Task]) -> None:
        task = make_task()
        pairs = [{"key": "h", "value": b"1"}]
        with_headers = batch(2, 2, headers=pa.array([pairs, None], HEADERS))
        result = task.write(batch(2), with_headers, batch(1, 4, headers=pa.array([[]], HEADERS)))
        rows = task.rows(result)["orders", 0]
        assert [row["headers"] for row in rows] == [None, None, pairs, None, None]
        assert result.objects[0][1].has_headers

    def test_no_headers_no_column(self, make_task: Callable[..., Task]) -> None:
        task = make_task()
        result = task.write(batch(2, headers=pa.array([None, []], HEADERS)))
        assert not result.objects[0][1].has_headers

    def test_null_values_and_times(self, make_task: Callable[..., Task]) -> None:
        task = make_task()
        times = pa.array([5_000, None], pa.timestamp("us", tz="Europe/Berlin"))
        rows = task.rows(task.write(batch(2, value=pa.array([None, "x"]), key=None, timestamp=times)))["orders", 0]
        assert [(row["key"], row["value"]) for row in rows] == [(None, None), (None, b"x")]
        assert rows[0]["timestamp"].timestamp() == 0.005
        assert rows[1]["timestamp"].year > 2020

    def test_a_timestamp_column_that_is_none_is_left_out_as_by_kafkas_sink(
        self, make_task: Callable[..., Task]
    ) -> None:
        task = make_task()
        rows = batch(2, timestamp=pa.array(["then", None]))
        assert task.values(task.write(rows))["orders", 0] == written([rows])

    def test_a_schema_may_change_between_batches(self, make_task: Callable[..., Task]) -> None:
        task = make_task()
        partitions = task.values(task.write(batch(1), batch(1, 1, value=pa.array(["s"]), other=pa.array([1]))))
        assert partitions["orders", 0] == [b"%010d" % 0, b"s"]

    @pytest.mark.parametrize("compression", ["lz4", "zstd"])
    def test_compression_of_the_topic(
        self, make_task: Callable[..., Task], make_topic: Callable[..., TopicPlan], compression: str
    ) -> None:
        task = make_task(make_topic(sets=((0, 1, 2),) * 2, compression=compression))
        result = task.write(batch(5000, size_bytes=100))
        assert result.size_bytes < 250_000
        assert sum(len(values) for values in task.values(result).values()) == 5000

    def test_names_say_who_wrote(self, make_task: Callable[..., Task]) -> None:
        task = make_task()
        ((ledger_id, item),) = task.write(batch(1)).objects
        assert item.id.name.startswith("queryid--7-3-") and item.id.name.endswith(".arrow")
        assert item.id.generation == 3
        assert task.brokers.data_keys(0) == [data_key(ledger_id, 3, item.id.name)]

    def test_partitioner_of_the_user(self, make_task: Callable[..., Task], monkeypatch: pytest.MonkeyPatch) -> None:
        class Last:
            def partition_array(self, keys: pa.Array, count: int) -> Any:
                return np.full(len(keys), count - 1)

        monkeypatch.setattr("spark_replog.ids.Last", Last, raising=False)
        task = make_task(partitions=4, config=replace(PATIENT, partitioner_class="spark_replog.ids.Last"))
        assert list(task.values(task.write(batch(10)))) == [("orders", 3)]


class TestCost:
    @pytest.mark.guarantee("G9")
    def test_partitions_cost_no_more_than_one(self, make_task: Callable[..., Task]) -> None:
        for partitions in (1, 64):
            task = make_task(partitions=partitions)
            result = task.write(batch(2000))
            assert len(task.values(result)) == partitions
            assert task.brokers.put_count() == 3

    @pytest.mark.guarantee("G9")
    def test_five_brokers_have_at_most_ten_sets(
        self, make_task: Callable[..., Task], make_topic: Callable[..., TopicPlan]
    ) -> None:
        sets = tuple(tuple((first + step * gap) % 5 for step in range(3)) for first in range(5) for gap in (1, 2))
        task = make_task(make_topic(sets=sets * 10), brokers=5)
        result = task.write(batch(20_000))
        distinct = {frozenset(replicas) for replicas in sets}
        assert len(distinct) == 10
        assert len(result.objects) == 10
        assert {item.holders for _, item in result.objects} == distinct
        assert task.brokers.put_count() == 30

    @pytest.mark.parametrize("partitions", [1, 3, 64])
    @pytest.mark.parametrize("keyed", [True, False])
    def test_large_tasks_cost_bytes_by_request_size(
        self, make_task: Callable[..., Task], partitions: int, keyed: bool
    ) -> None:
        config = replace(
            PATIENT, max_request_size_bytes=300_000, batch_size_bytes=20_000, buffer_memory_bytes=4_000_000
        )
        task = make_task(partitions=partitions, config=config)
        more = {} if keyed else {"key": None}
        batches = [batch(500, 500 * number, size_bytes=100, **more) for number in range(40)]
        result = task.write(*batches)
        assert sum(len(values) for values in task.values(result).values()) == 20_000
        payload_bytes = sum(item.nbytes for item in batches)
        assert len(result.objects) <= math.ceil(result.size_bytes / 300_000)
        assert len(result.objects) >= payload_bytes // (300_000 + 3 * 20_000)
        assert task.brokers.put_count() == 3 * len(result.objects)

    def test_memory_pressure_makes_no_crumbs(self, make_task: Callable[..., Task]) -> None:
        # Memory for less than three objects, and roots that take their time.
        config = replace(
            PATIENT, max_request_size_bytes=300_000, batch_size_bytes=20_000, buffer_memory_bytes=1_000_000
        )
        task = make_task(partitions=8, config=config)
        for number, store in task.brokers.counting.items():
            task.brokers.faulty[number] = FaultyStore(store, rates=FaultRates(stall=1.0), stall_ms=20)
        result = task.write(*[batch(500, 500 * number, size_bytes=100) for number in range(40)])
        assert sum(len(values) for values in task.values(result).values()) == 20_000
        assert len(result.objects) <= math.ceil(result.size_bytes / 300_000)

    def test_nothing_written_costs_nothing(self, make_task: Callable[..., Task]) -> None:
        task = make_task()
        result = task.write(batch(0), batch(0))
        assert result == TaskResult((), 0, 0, 0)
        assert task.brokers.put_count() == 0

    def test_roots_that_are_not_in_sync_get_nothing(
        self, make_task: Callable[..., Task], make_topic: Callable[..., TopicPlan]
    ) -> None:
        task = make_task(make_topic(in_sync=((0, 2),)))
        result = task.write(batch(10))
        assert result.objects[0][1].holders == {0, 2}
        assert task.brokers.data_keys(1) == []

    def test_rows_without_a_key_avoid_partitions_without_a_leader(
        self, make_task: Callable[..., Task], make_topic: Callable[..., TopicPlan]
    ) -> None:
        task = make_task(make_topic(sets=((0, 1, 2),) * 4, offline=frozenset({0, 1, 3})))
        rows = pa.record_batch({"value": pa.array([b"x"] * 1000)})
        assert {partition for _, partition in task.values(task.write(rows))} == {2}

    def test_a_fenced_replica_gets_no_copy_in_place_of_one_that_is_late(
        self, make_task: Callable[..., Task], make_topic: Callable[..., TopicPlan]
    ) -> None:
        topic = make_topic(in_sync=((0, 1),), fenced=frozenset({2}))
        assert topic.spares(0) == ()
        assert make_topic(in_sync=((0, 1),)).spares(0) == (2,)
        assert make_topic(sets=((2, 0, 3, 1),), in_sync=((0,),), fenced=frozenset({2})).spares(0) == (1, 3)


class TestMemory:
    def test_a_batch_larger_than_the_memory_goes_through(self, make_task: Callable[..., Task]) -> None:
        config = replace(PATIENT, max_request_size_bytes=100_000, batch_size_bytes=10_000, buffer_memory_bytes=400_000)
        task = make_task(partitions=3, config=config)
        large = batch(20_000, size_bytes=100)
        assert large.nbytes > 2_000_000
        partitions = task.values(task.write(large))
        assert sorted(value for values in partitions.values() for value in values) == written([large])
        assert all(values == sorted(values) for values in partitions.values())

    def test_rows_nearly_as_large_as_a_small_memory_go_through_one_by_one(self, make_task: Callable[..., Task]) -> None:
        task = make_task(config=replace(PATIENT, buffer_memory_bytes=16_384))
        rows = batch(20, size_bytes=15_000)
        assert task.values(task.write(rows))["orders", 0] == written([rows])

    @pytest.mark.parametrize(
        ("memory_bytes", "lent_bytes"),
        [(16_384, 16_384), (4 << 20, 4 << 20), (5 << 20, 4 << 20), (128 << 20, 96 << 20)],
    )
    def test_of_a_large_memory_a_quarter_is_not_lent(self, memory_bytes: int, lent_bytes: int) -> None:
        assert pool_bytes_of(replace(PATIENT, buffer_memory_bytes=memory_bytes)) == lent_bytes

    def test_rows_are_in_memory_whose_pages_are_kept_for_the_next_task_and_then_returned(
        self, make_task: Callable[..., Task], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # Enough for all rows: roots that are slow for a while do not fill it.
        config = replace(PATIENT, buffer_memory_bytes=20_000_000, max_request_size_bytes=200_000)
        task, kept, returned = make_task(partitions=3, config=config), KeptPages(), threading.Event()
        monkeypatch.setattr(data_request, "DIRECT_SIZE_BYTES_MIN", 1)  # blocks are used too
        monkeypatch.setattr(data_request, "KEPT_PAGES", kept)
        monkeypatch.setattr(data_request, "trim_row_memory", lambda: pytest.fail("the next rows need the pages"))
        monkeypatch.setattr(buffer_pool, "trim_row_memory", returned.set)
        monkeypatch.setattr(buffer_pool.KEPT_PAGES, "_give_back", lambda: None)  # those of the tests before this one
        monkeypatch.setattr(buffer_pool, "PAGES_KEPT_MS", 3_600_000)
        gc.collect()  # rows of the tests before this one
        idle_bytes = ROW_MEMORY.bytes_allocated()
        task.writer.append(batch(250, size_bytes=600))
        assert ROW_MEMORY.bytes_allocated() - idle_bytes >= 150_000
        for number in range(1, 40):
            task.writer.append(batch(250, 250 * number, size_bytes=600))
        task.writer.close()
        assert free_blocks and not returned.is_set()

        again = KeptPages()
        monkeypatch.setattr(buffer_pool, "PAGES_KEPT_MS", 10)
        again.keep()
        again.keep()
        assert returned.wait(60) and not free_blocks
        returned.clear()
        again.keep()
        assert returned.wait(60), "each time"

    @pytest.mark.parametrize(("is_far", "object_count"), [(False, 6), (True, 2)])
    def test_on_near_roots_objects_are_smaller(
        self, make_task: Callable[..., Task], monkeypatch: pytest.MonkeyPatch, is_far: bool, object_count: int
    ) -> None:
        monkeypatch.setattr(task_writer, "NEAR_REQUEST_BYTES_MAX", 100_000)
        monkeypatch.setattr("spark_replog.storage.brokers.is_far", lambda _url: is_far)
        config = replace(PATIENT, max_request_size_bytes=400_000, batch_size_bytes=1_000)
        task = make_task(partitions=1, config=config)
        rows = [batch(100, 100 * number, size_bytes=1_000) for number in range(6)]
        result = task.write(*rows, batch(1, size_bytes=150_000))
        assert len(result.objects) == object_count + (not is_far), "a record may be larger, up to max.request.size"
        assert task.values(result)["orders", 0][:600] == written(rows)

    def test_without_a_thread_the_pages_are_returned_at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        returned: list[bool] = []
        monkeypatch.setattr(buffer_pool, "trim_row_memory", lambda: returned.append(True))
        monkeypatch.setattr(DaemonThread, "start", Mock(side_effect=RuntimeError("can't start new thread")))
        KeptPages().keep()
        assert returned

    @pytest.mark.parametrize("is_slow", [True, False])
    def test_pages_of_rows_that_were_copied_go_back_while_half_of_the_memory_is_lent(
        self, make_task: Callable[..., Task], monkeypatch: pytest.MonkeyPatch, is_slow: bool
    ) -> None:
        config = replace(PATIENT, buffer_memory_bytes=2_000_000, max_request_size_bytes=200_000)
        task = make_task(partitions=3, config=config)
        pool, lent_bytes = task.writer._pool, list[int]()
        monkeypatch.setattr(data_request, "DIRECT_SIZE_BYTES_MIN", 1)
        monkeypatch.setattr(
            data_request, "trim_row_memory", lambda: lent_bytes.append(pool.total_bytes - pool.available_bytes)
        )
        pool.charge(pool.total_bytes // 2 if is_slow else 0)  # objects on their way to slow roots
        task.write(batch(250, size_bytes=600))
        assert bool(lent_bytes) is is_slow
        assert all(lent > pool.total_bytes // 2 for lent in lent_bytes)

    def test_a_small_task_gives_no_pages_back(
        self, make_task: Callable[..., Task], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(data_request, "KEPT_PAGES", None)  # asking for it would cost more than it brings
        assert make_task(partitions=3).write(batch(1_000, size_bytes=600)).row_count == 1_000

    def test_a_sliced_batch_that_pins_much_is_copied(self, make_task: Callable[..., Task]) -> None:
        task = make_task(config=replace(PATIENT, buffer_memory_bytes=200_000, max_request_size_bytes=100_000))
        whole = batch(20_000, size_bytes=100)
        parts = [whole.slice(start, 10) for start in range(0, 20_000, 500)]
        assert task.values(task.write(*parts))["orders", 0] == written(parts)

    def test_exhausted_names_the_settings(self, make_task: Callable[..., Task]) -> None:
        config = replace(
            PATIENT,
            buffer_memory_bytes=40_000,
            max_request_size_bytes=10_000,
            batch_size_bytes=1_000,
            max_block_ms=60,
        )
        task = make_task(config=config)
        for number, store in task.brokers.counting.items():
            task.brokers.faulty[number] = FaultyStore(store, rates=FaultRates(stall=1.0), stall_ms=150)
        with pytest.raises(RetriableError, match=r"max\.block\.ms \(60\)") as caught:
            task.write(batch(2000, size_bytes=100))
        assert caught.value.code is ErrorCode.REPLOG_BUFFER_EXHAUSTED
        task.writer.abort()


class TestRefusals:
    def refused(self, task: Task, rows: pa.RecordBatch, kind: type[ReplogError] = InvalidConfigError) -> ReplogError:
        with pytest.raises(kind) as caught:
            task.writer.append(rows)
        assert task.brokers.put_count() == 0
        return caught.value

    def test_row_over_max_request_size(self, make_task: Callable[..., Task]) -> None:
        task = make_task(config=replace(PATIENT, max_request_size_bytes=1000))
        error = self.refused(task, batch(3, value=pa.array([b"", b"x" * 1000, b""])))
        assert error.code is ErrorCode.MESSAGE_TOO_LARGE
        assert "1020 bytes when serialized" in str(error) and "max.request.size (1000)" in str(error)
        assert error.context["row"] == 1

    def test_row_over_the_topics_limit(
        self, make_task: Callable[..., Task], make_topic: Callable[..., TopicPlan]
    ) -> None:
        error = self.refused(make_task(make_topic(max_message_bytes=50)), batch(1, size_bytes=100))
        assert error.code is ErrorCode.MESSAGE_TOO_LARGE and "max.message.bytes" in str(error)

    def test_row_larger_than_the_memory(self, make_task: Callable[..., Task]) -> None:
        error = self.refused(make_task(config=replace(PATIENT, buffer_memory_bytes=100)), batch(1, size_bytes=100))
        assert error.code is ErrorCode.MESSAGE_TOO_LARGE and "buffer.memory" in str(error)

    def test_unknown_topic_in_a_row(self, make_task: Callable[..., Task]) -> None:
        error = self.refused(
            make_task(default_topic=None), batch(2, topic=pa.array(["orders", "ordres"])), NotFoundError
        )
        assert error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and "'ordres'" in str(error)

    def test_a_name_in_a_row_that_no_topic_can_have(self, make_task: Callable[..., Task]) -> None:
        error = self.refused(
            make_task(default_topic=None), batch(2, topic=pa.array(["orders", "no such"])), InvalidConfigError
        )
        assert error.code is ErrorCode.INVALID_TOPIC_EXCEPTION and "topic 'no such' is invalid" in str(error)

    def test_unknown_topic_option(self, make_task: Callable[..., Task]) -> None:
        with pytest.raises(NotFoundError):
            make_task(default_topic="other")

    def test_partition_out_of_range(self, make_task: Callable[..., Task]) -> None:
        error = self.refused(make_task(partitions=2), batch(1, partition=pa.array([2], pa.int32())))
        assert error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def test_wrong_schema_without_rows(self, make_task: Callable[..., Task]) -> None:
        assert (
            self.refused(make_task(), batch(0, value=pa.array([], pa.int64()))).code is ErrorCode.REPLOG_INVALID_SCHEMA
        )

    def test_append_after_close(self, make_task: Callable[..., Task]) -> None:
        task = make_task()
        task.write()
        assert self.refused(task, batch(1)).code is ErrorCode.INVALID_REQUEST


class Doubled:
    """An interceptor of a write task."""

    closed = 0

    def on_send_batch(self, topic, batch):
        return pa.concat_tables([pa.table(batch)] * 2).combine_chunks().to_batches()[0]

    def close(self):
        Doubled.closed += 1


class Hearing:
    """An interceptor that waits for what a write task never hears."""

    def on_acknowledgement(self, metadata, error):
        raise AssertionError("a task is over when its rows are acknowledged")


class Exclaimed:
    """A serializer with both forms."""

    def serialize(self, topic, value):
        return value + b"!"

    def serialize_array(self, topic, array):
        return pa.array([value.as_py() + b"!" for value in array], pa.binary())


class OneByOne:
    """Works record by record only."""

    def on_send(self, record):
        return record

    def serialize(self, topic, value):
        return value


def hooked(task, **names):
    """The task's writer, with classes of this module."""
    paths = {name: f"{__name__}.{kind.__name__}" for name, kind in names.items()}
    return TaskWriter(
        task.plan,
        PATIENT,
        task.brokers,
        query_id="q" * 32,
        batch_id=1,
        task_id=0,
        default_topic="orders",
        hooks=TaskHooks(**paths),
    )


def test_interceptors_and_serializers_of_the_user_run_in_the_task(make_task):
    task = make_task()
    writer = hooked(task, interceptor_classes=Doubled, value_serializer=Exclaimed)
    writer.append(batch(2, size_bytes=1))
    Doubled.closed = 0
    assert task.values(writer.close()) == {("orders", 0): [b"0!", b"1!", b"0!", b"1!"]}
    assert Doubled.closed == 1
    hooked(make_task(), interceptor_classes=Doubled).abort()
    assert Doubled.closed == 2


def test_an_interceptor_that_a_task_would_never_call_is_refused(make_task):
    with pytest.raises(InvalidConfigError, match="Hearing has no method on_send_batch"):
        hooked(make_task(), interceptor_classes=Hearing)


@pytest.mark.parametrize(
    ("name", "method"),
    [("interceptor_classes", "on_send_batch"), ("value_serializer", "serialize_array")],
)
def test_a_class_without_its_arrow_form_is_refused_before_any_row(make_task, name, method):
    task = make_task()
    with pytest.raises(InvalidConfigError, match=method):
        hooked(task, **{name: OneByOne})
    assert task.brokers.put_count() == 0
