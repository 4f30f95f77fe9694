"""One write task while roots fail, and what an abort leaves."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_replog.errors import ErrorCode, InvalidConfigError, RetriableError
from spark_replog.log.write_plan import TopicPlan, WritePlan
from spark_replog.storage import direct_write
from spark_replog.storage.brokers import write_root_files
from spark_replog.storage.paths import ROOT_FILE_KEY, data_key, ledger_folders
from spark_replog.write import data_request
from spark_replog.write.task_writer import TaskResult, TaskWriter
from tests.faulty_store import Fault, FaultRates, FaultyStore
from tests.unit.write.support import HASTY, QUICK, Task, batch, written


class TestFaults:
    def test_a_lost_answer_costs_nothing(self, make_task: Callable[..., Task]) -> None:
        task = make_task(partitions=2, config=QUICK)
        task.brokers.faulty[1].fail_next("create", Fault.LOSE_ANSWER, key_part="/data/")
        result = task.write(batch(100))
        assert result.objects[0][1].holders == {0, 1, 2}
        assert len(task.brokers.data_keys(1)) == 1
        assert len(task.brokers.faulty[1].injected) == 1
        assert sum(len(values) for values in task.values(result).values()) == 100

    def test_one_root_down(self, make_task: Callable[..., Task]) -> None:
        task = make_task(partitions=4, config=QUICK)
        task.brokers.faulty[1].is_down = True
        result = task.write(*[batch(100, 100 * number) for number in range(5)])
        assert [item.holders for _, item in result.objects] == [{0, 2}]
        assert task.brokers.data_keys(1) == []
        assert sum(len(values) for values in task.values(result).values()) == 500

    def test_one_root_refuses(self, make_task: Callable[..., Task]) -> None:
        task = make_task(config=QUICK)
        task.brokers.faulty[0].fail_next("create", Fault.REFUSE, times=100)
        assert task.write(batch(10)).objects[0][1].holders == {1, 2}

    def test_a_root_without_its_file_is_out_and_stays_empty(self, make_task: Callable[..., Task]) -> None:
        task = make_task(config=QUICK)
        task.brokers.counting[1].store.delete(ROOT_FILE_KEY)
        task.brokers.faulty[1].fail_next("create", Fault.FAIL_BEFORE)
        assert task.write(batch(10)).objects[0][1].holders == {0, 2}
        assert list(task.brokers.counting[1].store.list_keys("")) == []

    def test_all_roots_refuse(self, make_task: Callable[..., Task]) -> None:
        task = make_task(partitions=2, config=QUICK)
        for store in task.brokers.faulty.values():
            store.fail_next("create", Fault.REFUSE, times=100)
        with pytest.raises(RetriableError) as caught:
            task.write(batch(10))
        assert caught.value.code is ErrorCode.NOT_ENOUGH_REPLICAS
        assert "10 records for orders-0, orders-1 need 2 copies" in str(caught.value)

    def test_all_roots_down_until_the_delivery_timeout(self, make_task: Callable[..., Task]) -> None:
        task = make_task(config=HASTY)
        for store in task.brokers.faulty.values():
            store.is_down = True
        with pytest.raises(RetriableError) as caught:
            task.write(batch(10))
        assert caught.value.code is ErrorCode.REQUEST_TIMED_OUT
        assert "10 records for orders-0" in str(caught.value)
        assert "delivery.timeout.ms (400)" in str(caught.value)

    def test_a_put_that_is_long_overdue_still_stores_the_bytes_of_its_own_object(
        self, make_task: Callable[..., Task], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(data_request, "DIRECT_SIZE_BYTES_MIN", 1)  # each object is copied for its roots
        monkeypatch.setattr(direct_write, "free_blocks", deque())
        task = make_task(config=replace(QUICK, max_request_size_bytes=30_000, delivery_timeout_ms=60_000))
        store = task.brokers.faulty[2]
        begin, end, create = threading.Event(), threading.Event(), store.create

        def late(key: str, data: Any, **options: Any) -> Any:
            begin.wait(60)
            try:
                return create(key, data, **options)
            finally:
                end.set()

        monkeypatch.setattr(store, "create", late)
        result = task.write(*[batch(300, 300 * number, size_bytes=100) for number in range(8)])
        holders = [item.holders for _, item in result.objects]
        assert len(holders) > 2 and holders == [{0, 1}] * len(holders)
        begin.set()
        assert end.wait(60)
        late_keys = task.brokers.data_keys(2)
        assert late_keys
        for key in late_keys:
            bodies = [bytes(task.brokers.counting[broker_id].store.get(key)) for broker_id in (0, 2)]
            assert bodies[0] == bodies[1]

    def test_a_root_comes_back_in_time(self, make_task: Callable[..., Task]) -> None:
        task = make_task(config=replace(QUICK, replica_grace_ms=5_000, delivery_timeout_ms=10_000))
        task.brokers.faulty[2].fail_next("create", Fault.FAIL_BEFORE, times=4)
        assert task.write(batch(10)).objects[0][1].holders == {0, 1, 2}

    @pytest.mark.parametrize("seed", range(6))
    def test_random_faults(self, make_task: Callable[..., Task], seed: int) -> None:
        config = replace(
            QUICK,
            max_request_size_bytes=30_000,
            batch_size_bytes=5_000,
            buffer_memory_bytes=300_000,
            delivery_timeout_ms=20_000,
        )
        task = make_task(partitions=4, config=config)
        rates = FaultRates(fail_before=0.15, lose_answer=0.15, stall=0.1)
        for number, store in task.brokers.counting.items():
            task.brokers.faulty[number] = FaultyStore(store, seed=10 * seed + number, rates=rates, stall_ms=5)
        batches = [batch(300, 300 * number, size_bytes=50) for number in range(10)]
        result = task.write(*batches)
        partitions = task.values(result)
        assert sorted(value for values in partitions.values() for value in values) == written(batches)
        assert all(values == sorted(values) for values in partitions.values())
        assert all(len(item.holders) >= 2 for _, item in result.objects)
        named = {item.id.name for _, item in result.objects}
        assert all(key.rpartition("/")[2] in named for number in range(3) for key in task.brokers.data_keys(number))

    def test_acks_0_drops_and_says_so(self, make_task: Callable[..., Task], caplog: pytest.LogCaptureFixture) -> None:
        task = make_task(config=replace(HASTY, acks=0))
        for store in task.brokers.faulty.values():
            store.is_down = True
        with caplog.at_level(logging.WARNING):
            result = task.write(batch(10))
        assert result == TaskResult((), 0, 0, 10)
        assert "[REPLOG_ACKS0_DROPPED] 10 rows for orders-0" in caplog.text

    def test_acks_1_wants_the_leader(
        self, make_task: Callable[..., Task], make_topic: Callable[..., TopicPlan]
    ) -> None:
        task = make_task(make_topic(sets=((1, 0, 2), (2, 1, 0))), config=replace(QUICK, acks=1))
        task.brokers.faulty[0].is_down = True
        result = task.write(batch(100))
        # One object per leader, and each leader holds its own.
        assert len(result.objects) == 2
        assert {item.sections[0].partition: item.holders for _, item in result.objects}.keys() == {0, 1}
        for _, item in result.objects:
            assert {0: 1, 1: 2}[item.sections[0].partition] in item.holders


class TestAbort:
    config = replace(QUICK, max_request_size_bytes=1000)

    def test_deletes_what_no_message_names(self, make_task: Callable[..., Task]) -> None:
        task = make_task(config=self.config)
        for number in range(5):
            task.writer.append(batch(50, 50 * number))
        while task.writer._sender.has_open_requests:
            task.writer._sender.run_once(0)
        assert task.brokers.data_keys(0)
        task.writer.abort()
        assert [task.brokers.data_keys(number) for number in range(3)] == [[], [], []]

    def test_deletes_nothing_after_close(self, make_task: Callable[..., Task]) -> None:
        task = make_task(config=self.config)
        result = task.write(batch(50))
        task.writer.abort()
        assert sum(len(values) for values in task.values(result).values()) == 50

    def test_after_a_failure(self, make_task: Callable[..., Task]) -> None:
        task = make_task(config=QUICK)
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
            writer = TaskWriter(plan, config, brokers, query_id="q" * 32, batch_id=0, task_id=0, default_topic="orders")
            writer.append(batch(1000))
            return writer.close()

        assert write().objects[0][1].holders == {0, 1, 2}
        (tmp_path / "broker-1").rename(tmp_path / "broker-1.away")
        assert write().objects[0][1].holders == {0, 2}
        assert not (tmp_path / "broker-1").exists()
        ((ledger_id, item),) = write().objects
        path = tmp_path / "broker-0" / data_key(ledger_id, *item.id)
        assert pa.ipc.open_file(str(path)).read_all().num_rows == 1000
