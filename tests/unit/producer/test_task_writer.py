"""One write task on memory roots, whole: what lies where, what it cost, what happens when roots fail."""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_replog.config import ProducerConfig
from spark_replog.errors import ErrorCode, InvalidConfigError, NotFoundError, ReplogError, RetriableError
from spark_replog.log.data_object import decode_section
from spark_replog.log.write_plan import TopicPlan, WritePlan
from spark_replog.producer.task_writer import TaskResult, TaskWriter
from spark_replog.storage.brokers import write_root_files
from spark_replog.storage.paths import ROOT_FILE_KEY, data_key, ledger_folders
from spark_replog.testing.faulty_store import Fault, FaultRates, FaultyStore

QUICK = ProducerConfig(
    replica_grace_ms=30,
    request_timeout_ms=200,
    delivery_timeout_ms=400,
    retry_backoff_ms=1,
    retry_backoff_max_ms=5,
)
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


class Task:
    """A writer with its roots."""

    def __init__(
        self, brokers: Any, plan: WritePlan, config: ProducerConfig, default_topic: str | None
    ) -> None:
        self.brokers = brokers
        self.plan = plan
        for store in brokers.counting.values():
            store.reset()
        self.writer = TaskWriter(
            plan,
            config,
            brokers,
            query_id="queryid-" + "0" * 24,
            batch_id=7,
            task_id=3,
            default_topic=default_topic,
        )

    def write(self, *batches: pa.RecordBatch) -> TaskResult:
        for batch in batches:
            self.writer.append(batch)
        return self.writer.close()

    def rows(self, result: TaskResult) -> dict[tuple[str, int], list[dict[str, Any]]]:
        """Return what lies on every holder, by topic and partition, in the order of the message."""
        names = {topic.topic_id: topic.name for topic in self.plan.topics}
        found: dict[tuple[str, int], list[dict[str, Any]]] = defaultdict(list)
        for ledger_id, item in result.objects:
            bodies = {
                bytes(
                    self.brokers.counting[broker_id].store.get(
                        data_key(ledger_id, item.generation, item.name)
                    )
                )
                for broker_id in item.holders
            }
            assert len(bodies) == 1
            body = bodies.pop()
            assert len(body) == item.size_bytes
            for section in item.sections:
                part = body[section.start_byte : section.start_byte + section.size_bytes]
                for batch in decode_section(part, section.crc32c, section.row_count, item.has_headers):
                    found[names[section.topic_id], section.partition] += batch.to_pylist()
        return dict(found)

    def values(self, result: TaskResult) -> dict[tuple[str, int], list[bytes]]:
        return {name: [row["value"] for row in rows] for name, rows in self.rows(result).items()}


@pytest.fixture
def make(
    make_brokers: Callable[..., Any],
    make_plan: Callable[..., WritePlan],
    make_topic: Callable[..., TopicPlan],
) -> Callable[..., Task]:
    def build(
        *topics: TopicPlan,
        config: ProducerConfig = QUICK,
        brokers: int = 3,
        partitions: int = 1,
        default_topic: str | None = "orders",
    ) -> Task:
        cluster = make_brokers(brokers)
        plans = topics or (make_topic(sets=(tuple(range(brokers)),) * partitions),)
        return Task(cluster, make_plan(cluster, *plans), config, default_topic)

    return build


def batch(count: int, first: int = 0, *, size_bytes: int = 10, **columns: Any) -> pa.RecordBatch:
    """Rows with values that count; keys likewise unless given."""
    numbers = range(first, first + count)
    values = {
        "key": pa.array([b"key%d" % number for number in numbers], pa.binary()),
        "value": pa.array([b"%0*d" % (size_bytes, number) for number in numbers], pa.binary()),
    }
    return pa.RecordBatch.from_pydict(
        {key: column for key, column in (values | columns).items() if column is not None}
    )


def written(batches: Sequence[pa.RecordBatch]) -> list[bytes]:
    return [value for item in batches for value in item.column("value").to_pylist()]


class TestContent:
    def test_rows_keep_their_order_within_a_partition(self, make: Callable[..., Task]) -> None:
        task = make(partitions=5)
        batches = [batch(1000, 1000 * number) for number in range(4)]
        result = task.write(*batches)
        found = task.values(result)
        assert len(found) == 5
        assert sorted(value for values in found.values() for value in values) == sorted(written(batches))
        assert all(values == sorted(values) for values in found.values())
        assert (result.row_count, result.dropped_rows) == (4000, 0)
        assert result.size_bytes == sum(item.size_bytes for _, item in result.objects)

    def test_key_decides_like_kafka(self, make: Callable[..., Task]) -> None:
        task = make(partitions=12)
        columns = {
            "key": pa.array([b"21", b"foobar", b"kafka", b""]),
            "value": pa.array(["a", "b", "c", "d"]),
        }
        found = task.values(task.write(pa.RecordBatch.from_pydict(columns)))
        assert found == {
            ("orders", 0): [b"a"],
            ("orders", 6): [b"b"],
            ("orders", 4): [b"c"],
            ("orders", 9): [b"d"],
        }

    def test_partition_column(self, make: Callable[..., Task]) -> None:
        task = make(partitions=3)
        found = task.values(task.write(batch(4, partition=pa.array([2, 0, 2, 1], pa.int32()))))
        assert found["orders", 2] == [b"%010d" % 0, b"%010d" % 2]
        assert found["orders", 0] == [b"%010d" % 1]

    def test_rows_name_their_topics(
        self, make: Callable[..., Task], make_topic: Callable[..., TopicPlan]
    ) -> None:
        sets = ((0, 1, 2),) * 3
        task = make(
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

    def test_headers_appear_from_some_batch_on(self, make: Callable[..., Task]) -> None:
        task = make()
        pairs = [{"key": "h", "value": b"1"}]
        with_headers = batch(2, 2, headers=pa.array([pairs, None], HEADERS))
        result = task.write(batch(2), with_headers, batch(1, 4, headers=pa.array([[]], HEADERS)))
        rows = task.rows(result)["orders", 0]
        assert [row["headers"] for row in rows] == [None, None, pairs, None, None]
        assert result.objects[0][1].has_headers

    def test_no_headers_no_column(self, make: Callable[..., Task]) -> None:
        task = make()
        result = task.write(batch(2, headers=pa.array([None, []], HEADERS)))
        assert not result.objects[0][1].has_headers

    def test_null_values_and_times(self, make: Callable[..., Task]) -> None:
        task = make()
        times = pa.array([5_000, None], pa.timestamp("us", tz="Europe/Berlin"))
        rows = task.rows(task.write(batch(2, value=pa.array([None, "x"]), key=None, timestamp=times)))[
            "orders", 0
        ]
        assert [(row["key"], row["value"]) for row in rows] == [(None, None), (None, b"x")]
        assert rows[0]["timestamp"].timestamp() == 0.005
        assert rows[1]["timestamp"].year > 2020

    def test_a_schema_may_change_between_batches(self, make: Callable[..., Task]) -> None:
        task = make()
        found = task.values(task.write(batch(1), batch(1, 1, value=pa.array(["s"]), other=pa.array([1]))))
        assert found["orders", 0] == [b"%010d" % 0, b"s"]

    @pytest.mark.parametrize("compression", ["lz4", "zstd"])
    def test_compression_of_the_topic(
        self, make: Callable[..., Task], make_topic: Callable[..., TopicPlan], compression: str
    ) -> None:
        task = make(make_topic(sets=((0, 1, 2),) * 2, compression=compression))
        result = task.write(batch(5000, size_bytes=100))
        assert result.size_bytes < 250_000
        assert sum(len(values) for values in task.values(result).values()) == 5000

    def test_names_say_who_wrote(self, make: Callable[..., Task]) -> None:
        task = make()
        ((ledger_id, item),) = task.write(batch(1)).objects
        assert item.name.startswith("queryid--7-3-") and item.name.endswith(".arrow")
        assert item.generation == 3
        assert task.brokers.data_keys(0) == [data_key(ledger_id, 3, item.name)]

    def test_partitioner_of_the_user(
        self, make: Callable[..., Task], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Last:
            def partition_array(self, keys: pa.Array, count: int) -> Any:
                return np.full(len(keys), count - 1)

        monkeypatch.setattr("spark_replog.ids.Last", Last, raising=False)
        task = make(partitions=4, config=replace(QUICK, partitioner_class="spark_replog.ids.Last"))
        assert list(task.values(task.write(batch(10)))) == [("orders", 3)]


class TestCost:
    def test_partitions_cost_no_more_than_one(self, make: Callable[..., Task]) -> None:
        for partitions in (1, 64):
            task = make(partitions=partitions)
            result = task.write(batch(2000))
            assert len(task.values(result)) == partitions
            assert task.brokers.put_count() == 3

    def test_five_brokers_have_at_most_ten_sets(
        self, make: Callable[..., Task], make_topic: Callable[..., TopicPlan]
    ) -> None:
        sets = tuple(
            tuple((first + step * gap) % 5 for step in range(3)) for first in range(5) for gap in (1, 2)
        )
        task = make(make_topic(sets=sets * 10), brokers=5)
        result = task.write(batch(20_000))
        distinct = {frozenset(replicas) for replicas in sets}
        assert len(distinct) == 10
        assert len(result.objects) == 10
        assert {item.holders for _, item in result.objects} == distinct
        assert task.brokers.put_count() == 30

    @pytest.mark.parametrize("partitions", [1, 3, 64])
    @pytest.mark.parametrize("keyed", [True, False])
    def test_large_tasks_cost_bytes_by_request_size(
        self, make: Callable[..., Task], partitions: int, keyed: bool
    ) -> None:
        config = replace(
            QUICK, max_request_size_bytes=300_000, batch_size_bytes=20_000, buffer_memory_bytes=4_000_000
        )
        task = make(partitions=partitions, config=config)
        more = {} if keyed else {"key": None}
        batches = [batch(500, 500 * number, size_bytes=100, **more) for number in range(40)]
        result = task.write(*batches)
        assert sum(len(values) for values in task.values(result).values()) == 20_000
        payload_bytes = sum(item.nbytes for item in batches)
        assert len(result.objects) <= math.ceil(result.size_bytes / 300_000)
        assert len(result.objects) >= payload_bytes // (300_000 + 3 * 20_000)
        assert task.brokers.put_count() == 3 * len(result.objects)

    def test_memory_pressure_makes_no_crumbs(self, make: Callable[..., Task]) -> None:
        # Memory for less than three objects, and roots that take their time.
        config = replace(
            QUICK, max_request_size_bytes=300_000, batch_size_bytes=20_000, buffer_memory_bytes=1_000_000
        )
        task = make(partitions=8, config=config)
        for number, store in task.brokers.counting.items():
            task.brokers.faulty[number] = FaultyStore(store, rates=FaultRates(stall=1.0), stall_ms=20)
        result = task.write(*[batch(500, 500 * number, size_bytes=100) for number in range(40)])
        assert sum(len(values) for values in task.values(result).values()) == 20_000
        assert len(result.objects) <= math.ceil(result.size_bytes / 300_000)

    def test_nothing_written_costs_nothing(self, make: Callable[..., Task]) -> None:
        task = make()
        result = task.write(batch(0), batch(0))
        assert result == TaskResult((), 0, 0, 0)
        assert task.brokers.put_count() == 0

    def test_roots_that_are_not_in_sync_get_nothing(
        self, make: Callable[..., Task], make_topic: Callable[..., TopicPlan]
    ) -> None:
        task = make(make_topic(in_sync=((0, 2),)))
        result = task.write(batch(10))
        assert result.objects[0][1].holders == {0, 2}
        assert task.brokers.data_keys(1) == []


class TestMemory:
    def test_a_batch_larger_than_the_memory_goes_through(self, make: Callable[..., Task]) -> None:
        config = replace(
            QUICK, max_request_size_bytes=100_000, batch_size_bytes=10_000, buffer_memory_bytes=400_000
        )
        task = make(partitions=3, config=config)
        large = batch(20_000, size_bytes=100)
        assert large.nbytes > 2_000_000
        found = task.values(task.write(large))
        assert sorted(value for values in found.values() for value in values) == written([large])
        assert all(values == sorted(values) for values in found.values())

    def test_a_sliced_batch_that_pins_much_is_copied(self, make: Callable[..., Task]) -> None:
        task = make(config=replace(QUICK, buffer_memory_bytes=200_000, max_request_size_bytes=100_000))
        whole = batch(20_000, size_bytes=100)
        parts = [whole.slice(start, 10) for start in range(0, 20_000, 500)]
        assert task.values(task.write(*parts))["orders", 0] == written(parts)

    def test_exhausted_names_the_settings(self, make: Callable[..., Task]) -> None:
        config = replace(
            QUICK,
            buffer_memory_bytes=40_000,
            max_request_size_bytes=10_000,
            batch_size_bytes=1_000,
            max_block_ms=60,
        )
        task = make(config=config)
        for number, store in task.brokers.counting.items():
            task.brokers.faulty[number] = FaultyStore(store, rates=FaultRates(stall=1.0), stall_ms=150)
        with pytest.raises(RetriableError, match=r"max\.block\.ms \(60\)") as caught:
            task.write(batch(2000, size_bytes=100))
        assert caught.value.code is ErrorCode.REPLOG_BUFFER_EXHAUSTED
        task.writer.abort()


class TestRefusals:
    def refused(
        self, task: Task, rows: pa.RecordBatch, kind: type[ReplogError] = InvalidConfigError
    ) -> ReplogError:
        with pytest.raises(kind) as caught:
            task.writer.append(rows)
        assert task.brokers.put_count() == 0
        return caught.value

    def test_row_over_max_request_size(self, make: Callable[..., Task]) -> None:
        task = make(config=replace(QUICK, max_request_size_bytes=1000))
        error = self.refused(task, batch(3, value=pa.array([b"", b"x" * 1000, b""])))
        assert error.code is ErrorCode.MESSAGE_TOO_LARGE
        assert "1020 bytes when serialized" in str(error) and "max.request.size (1000)" in str(error)
        assert error.context["row"] == 1

    def test_row_over_the_topics_limit(
        self, make: Callable[..., Task], make_topic: Callable[..., TopicPlan]
    ) -> None:
        error = self.refused(make(make_topic(max_message_bytes=50)), batch(1, size_bytes=100))
        assert error.code is ErrorCode.MESSAGE_TOO_LARGE and "max.message.bytes" in str(error)

    def test_row_larger_than_the_memory(self, make: Callable[..., Task]) -> None:
        error = self.refused(make(config=replace(QUICK, buffer_memory_bytes=100)), batch(1, size_bytes=100))
        assert error.code is ErrorCode.MESSAGE_TOO_LARGE and "buffer.memory" in str(error)

    def test_unknown_topic_in_a_row(self, make: Callable[..., Task]) -> None:
        error = self.refused(
            make(default_topic=None), batch(2, topic=pa.array(["orders", "ordres"])), NotFoundError
        )
        assert error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and "'ordres'" in str(error)

    def test_unknown_topic_option(self, make: Callable[..., Task]) -> None:
        with pytest.raises(NotFoundError):
            make(default_topic="other")

    def test_partition_out_of_range(self, make: Callable[..., Task]) -> None:
        error = self.refused(make(partitions=2), batch(1, partition=pa.array([2], pa.int32())))
        assert error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def test_wrong_schema_without_rows(self, make: Callable[..., Task]) -> None:
        assert (
            self.refused(make(), batch(0, value=pa.array([], pa.int64()))).code
            is ErrorCode.REPLOG_INVALID_SCHEMA
        )

    def test_append_after_close(self, make: Callable[..., Task]) -> None:
        task = make()
        task.write()
        assert self.refused(task, batch(1)).code is ErrorCode.INVALID_REQUEST


class TestFaults:
    def test_a_lost_answer_costs_nothing(self, make: Callable[..., Task]) -> None:
        task = make(partitions=2)
        task.brokers.faulty[1].fail_next("create", Fault.LOSE_ANSWER, key_part="/data/")
        result = task.write(batch(100))
        assert result.objects[0][1].holders == {0, 1, 2}
        assert len(task.brokers.data_keys(1)) == 1
        assert len(task.brokers.faulty[1].injected) == 1
        assert sum(len(values) for values in task.values(result).values()) == 100

    def test_one_root_down(self, make: Callable[..., Task]) -> None:
        task = make(partitions=4)
        task.brokers.faulty[1].is_down = True
        result = task.write(*[batch(100, 100 * number) for number in range(5)])
        assert [item.holders for _, item in result.objects] == [{0, 2}]
        assert task.brokers.data_keys(1) == []
        assert sum(len(values) for values in task.values(result).values()) == 500

    def test_one_root_refuses(self, make: Callable[..., Task]) -> None:
        task = make()
        task.brokers.faulty[0].fail_next("create", Fault.REFUSE, times=100)
        assert task.write(batch(10)).objects[0][1].holders == {1, 2}

    def test_a_root_without_its_file_is_out_and_stays_empty(self, make: Callable[..., Task]) -> None:
        task = make()
        task.brokers.counting[1].store.delete(ROOT_FILE_KEY)
        task.brokers.faulty[1].fail_next("create", Fault.FAIL_BEFORE)
        assert task.write(batch(10)).objects[0][1].holders == {0, 2}
        assert list(task.brokers.counting[1].store.list_keys("")) == []

    def test_all_roots_refuse(self, make: Callable[..., Task]) -> None:
        task = make(partitions=2)
        for store in task.brokers.faulty.values():
            store.fail_next("create", Fault.REFUSE, times=100)
        with pytest.raises(RetriableError) as caught:
            task.write(batch(10))
        assert caught.value.code is ErrorCode.NOT_ENOUGH_REPLICAS
        assert "10 records for orders-0, orders-1 need 2 copies" in str(caught.value)

    def test_all_roots_down_until_the_delivery_timeout(self, make: Callable[..., Task]) -> None:
        task = make()
        for store in task.brokers.faulty.values():
            store.is_down = True
        with pytest.raises(RetriableError) as caught:
            task.write(batch(10))
        assert caught.value.code is ErrorCode.REQUEST_TIMED_OUT
        assert "expiring 10 records for orders-0" in str(caught.value)
        assert "delivery.timeout.ms (400)" in str(caught.value)

    def test_a_root_comes_back_in_time(self, make: Callable[..., Task]) -> None:
        task = make(config=replace(QUICK, replica_grace_ms=5_000, delivery_timeout_ms=10_000))
        task.brokers.faulty[2].fail_next("create", Fault.FAIL_BEFORE, times=4)
        assert task.write(batch(10)).objects[0][1].holders == {0, 1, 2}

    @pytest.mark.parametrize("seed", range(6))
    def test_random_faults(self, make: Callable[..., Task], seed: int) -> None:
        config = replace(
            QUICK,
            max_request_size_bytes=30_000,
            batch_size_bytes=5_000,
            buffer_memory_bytes=300_000,
            delivery_timeout_ms=20_000,
        )
        task = make(partitions=4, config=config)
        rates = FaultRates(fail_before=0.15, lose_answer=0.15, stall=0.1)
        for number, store in task.brokers.counting.items():
            task.brokers.faulty[number] = FaultyStore(store, seed=10 * seed + number, rates=rates, stall_ms=5)
        batches = [batch(300, 300 * number, size_bytes=50) for number in range(10)]
        result = task.write(*batches)
        found = task.values(result)
        assert sorted(value for values in found.values() for value in values) == written(batches)
        assert all(values == sorted(values) for values in found.values())
        assert all(len(item.holders) >= 2 for _, item in result.objects)
        named = {item.name for _, item in result.objects}
        assert all(
            key.rpartition("/")[2] in named for number in range(3) for key in task.brokers.data_keys(number)
        )

    def test_acks_0_drops_and_says_so(
        self, make: Callable[..., Task], caplog: pytest.LogCaptureFixture
    ) -> None:
        task = make(config=replace(QUICK, acks=0))
        for store in task.brokers.faulty.values():
            store.is_down = True
        with caplog.at_level(logging.WARNING):
            result = task.write(batch(10))
        assert result == TaskResult((), 0, 0, 10)
        assert "[REPLOG_ACKS0_DROPPED] 10 rows for orders-0" in caplog.text

    def test_acks_1_wants_the_leader(
        self, make: Callable[..., Task], make_topic: Callable[..., TopicPlan]
    ) -> None:
        task = make(make_topic(sets=((1, 0, 2), (2, 1, 0))), config=replace(QUICK, acks=1))
        task.brokers.faulty[0].is_down = True
        result = task.write(batch(100))
        # One object per leader, and each leader holds its own.
        assert len(result.objects) == 2
        assert {item.sections[0].partition: item.holders for _, item in result.objects}.keys() == {0, 1}
        for _, item in result.objects:
            assert {0: 1, 1: 2}[item.sections[0].partition] in item.holders


class TestAbort:
    config = replace(QUICK, max_request_size_bytes=1000)

    def test_deletes_what_no_message_names(self, make: Callable[..., Task]) -> None:
        task = make(config=self.config)
        for number in range(5):
            task.writer.append(batch(50, 50 * number))
        while task.writer._sender.has_open_requests:
            task.writer._sender.run_once(0)
        assert task.brokers.data_keys(0)
        task.writer.abort()
        assert [task.brokers.data_keys(number) for number in range(3)] == [[], [], []]

    def test_deletes_nothing_after_close(self, make: Callable[..., Task]) -> None:
        task = make(config=self.config)
        result = task.write(batch(50))
        task.writer.abort()
        assert sum(len(values) for values in task.values(result).values()) == 50

    def test_after_a_failure(self, make: Callable[..., Task]) -> None:
        task = make()
        for number in (0, 1):
            task.brokers.faulty[number].fail_next("create", Fault.REFUSE, times=100)
        with pytest.raises(RetriableError):
            task.write(batch(10))
        task.writer.abort()
        task.writer.abort()
        assert task.brokers.data_keys(2) == []
        with pytest.raises(InvalidConfigError):
            task.writer.append(batch(1))


class TestLocalRoots:
    def test_a_root_that_is_moved_away_is_not_made_again(
        self, tmp_path: Path, make_plan: Callable[..., WritePlan], make_topic: Callable[..., TopicPlan]
    ) -> None:
        urls = [str(tmp_path / f"broker-{number}") for number in range(3)]
        brokers = write_root_files(urls, fsync=False)
        topic = make_topic(sets=((0, 1, 2),) * 4)
        for broker_id in brokers.broker_ids:
            for folder in ledger_folders(topic.ledger_id):
                brokers.store(broker_id).make_folder(folder)
        config = replace(QUICK, request_timeout_ms=5_000, delivery_timeout_ms=10_000)
        plan = make_plan(brokers, topic)

        def write() -> TaskResult:
            writer = TaskWriter(
                plan, config, brokers, query_id="q" * 32, batch_id=0, task_id=0, default_topic="orders"
            )
            writer.append(batch(1000))
            return writer.close()

        assert write().objects[0][1].holders == {0, 1, 2}
        (tmp_path / "broker-1").rename(tmp_path / "broker-1.away")
        assert write().objects[0][1].holders == {0, 2}
        assert not (tmp_path / "broker-1").exists()
        ((ledger_id, item),) = write().objects
        path = tmp_path / "broker-0" / data_key(ledger_id, item.generation, item.name)
        assert pa.ipc.open_file(str(path)).read_all().num_rows == 1000
