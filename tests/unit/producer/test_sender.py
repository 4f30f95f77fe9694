"""The sender under a time and answers that the test gives."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from spark_replog.clock import SYSTEM_CLOCK
from spark_replog.config import ProducerConfig
from spark_replog.errors import ErrorCode, OutcomeUnknownError, ReplogError, RetriableError
from spark_replog.ids import TopicPartition
from spark_replog.log.data_object import data_schema
from spark_replog.log.write_plan import TopicPlan, WritePlan
from spark_replog.producer.accumulator import RecordAccumulator
from spark_replog.producer.buffer_pool import BufferPool, PinnedBytes
from spark_replog.producer.in_flight import DataRequest
from spark_replog.producer.object_builder import ObjectBuilder
from spark_replog.producer.partition_queue import Destination
from spark_replog.producer.root_health import AWAY_MS
from spark_replog.producer.sender import Sender
from spark_replog.producer.task_writer import TaskReport
from tests.unit.producer.sender_setup import FakeTransport

RETRIABLE = OutcomeUnknownError(ErrorCode.REPLOG_STORE_OUTCOME_UNKNOWN, "lost.")
REFUSED = ReplogError(ErrorCode.REPLOG_STORE_REFUSED, "no room.")
STALE = RetriableError(ErrorCode.REPLOG_ROOT_STALE, "gone.")
CONFIG = ProducerConfig(delivery_timeout_ms=10_000, request_timeout_ms=3_000)


class Setup:
    def __init__(self, plan: WritePlan, config: ProducerConfig) -> None:
        self.pool = BufferPool(1 << 20, clock=SYSTEM_CLOCK)
        self.accumulator = RecordAccumulator(
            self.pool, batch_size_bytes=1000, max_request_size_bytes=3000, linger_ms=None, fills_requests=True
        )
        self.transport = FakeTransport()
        self.reported: list[ReplogError] = []
        self.acks = config.acks
        self.ran_ms = 0
        self.report = TaskReport()
        self.sender = Sender(
            self.accumulator,
            self.transport,  # type: ignore[arg-type]
            ObjectBuilder(plan, self.pool, query_id="q" * 32, batch_id=1, task_id=2),
            config,
            delivery=self.report,
            report=self.reported.append,
            random_source=random.Random(0),
        )

    def add(self, size_bytes: int = 3000, *, brokers: tuple[int, ...] = (0, 1, 2), partition: int = 0) -> None:
        columns = [
            pa.nulls(2, pa.binary()),
            pa.array([b"a", b"b"]),
            pa.array([1, 2]).cast(pa.timestamp("us", tz="UTC")),
        ]
        records = pa.RecordBatch.from_arrays(columns, schema=data_schema(False))
        self.pool.allocate(size_bytes, 0)
        pinned = PinnedBytes(self.pool, size_bytes)
        leader = None if self.acks == -1 else brokers[0]
        destination = Destination("ledger", 0, tuple(sorted(brokers)), leader, "none")
        self.accumulator.append(TopicPartition("orders", partition), destination, records, size_bytes, pinned, 0)
        pinned.release()

    def run(self, now_ms: int) -> int:
        """Run as an owner that waits for answers does: at least once a second."""
        for step_ms in range(self.ran_ms + 1_000, min(now_ms, self.ran_ms + 60_000), 1_000):
            self.sender.run_once(step_ms)
        self.ran_ms = now_ms
        return self.sender.run_once(now_ms)

    @property
    def first(self) -> DataRequest:
        return self.report.requests[0]


@pytest.fixture
def make(make_topic: Callable[..., TopicPlan]) -> Callable[..., Setup]:
    def build(config: ProducerConfig = CONFIG, **topic: Any) -> Setup:
        plan = WritePlan("memory://store", (), "c", (make_topic(sets=((0, 1, 2),) * 8, **topic),), (), "User:t", 0)
        return Setup(plan, config)

    return build


class TestAcksAll:
    def test_all_copies_at_once(self, make: Callable[..., Setup]) -> None:
        setup = make()
        setup.add()
        setup.run(0)
        assert [put["broker_id"] for put in setup.transport.sent] == [0, 1, 2]
        assert len({put["key"] for put in setup.transport.sent}) == 1
        for broker_id in (0, 1, 2):
            setup.transport.answer(broker_id)
        setup.run(5)
        assert setup.first.completed_ms == 5
        assert setup.first.holders == {0, 1, 2}
        assert setup.pool.available_bytes == 1 << 20

    def test_waits_for_the_rest_no_longer_than_the_grace(self, make: Callable[..., Setup]) -> None:
        setup = make()
        setup.add()
        setup.run(0)
        setup.transport.answer(0)
        setup.transport.answer(2)
        assert setup.run(100) == CONFIG.replica_grace_ms
        assert setup.sender.has_open_requests
        setup.run(599)
        assert setup.sender.has_open_requests
        setup.run(600)
        assert not setup.sender.has_open_requests
        assert setup.first.holders == {0, 2}
        assert "broker 1 did not take its copy within replica.grace.ms (500)" in str(setup.reported[0])
        setup.add()
        setup.run(601)
        assert len(setup.reported) == 1

    def test_a_late_copy_is_told_too(self, make: Callable[..., Setup]) -> None:
        setup = make()
        setup.add()
        setup.run(0)
        setup.transport.answer(0)
        setup.transport.answer(2)
        setup.run(0)
        setup.run(500)
        setup.transport.answer(1)
        setup.run(2_000)
        assert setup.first.to_data_object().holders == {0, 1, 2}

    def test_a_hanging_root_gets_nothing_more_until_it_answers(self, make: Callable[..., Setup]) -> None:
        setup = make()
        setup.add()
        setup.run(0)
        setup.transport.answer(0)
        setup.transport.answer(2)
        setup.run(0)
        setup.run(500)
        setup.add()
        setup.run(501)
        assert len(setup.transport.on(1)) == 1
        setup.transport.answer(1)
        setup.run(502)
        setup.add()
        setup.run(503)
        assert len(setup.transport.on(1)) == 2

    def test_it_gets_more_where_there_would_be_too_few_copies(self, make: Callable[..., Setup]) -> None:
        setup = make()
        setup.add()
        setup.run(0)
        setup.transport.answer(0)
        setup.transport.answer(2)
        setup.run(0)
        setup.run(500)
        setup.add(brokers=(0, 1), partition=1)
        setup.run(501)
        assert len(setup.transport.on(1)) == 2

    def test_min_insync_of_the_topic(self, make: Callable[..., Setup]) -> None:
        setup = make(min_insync=3)
        setup.add()
        setup.run(0)
        setup.transport.answer(0)
        setup.transport.answer(1)
        setup.run(2_000)
        assert setup.sender.has_open_requests
        setup.transport.answer(2)
        setup.run(2_001)
        assert not setup.sender.has_open_requests

    def test_too_few_in_sync_replicas(self, make: Callable[..., Setup]) -> None:
        setup = make()
        setup.add(brokers=(1,))
        setup.run(0)
        error = setup.sender.failure
        assert error is not None and error.code is ErrorCode.NOT_ENOUGH_REPLICAS
        assert "2 records for orders-0 need 2 copies" in str(error)
        assert setup.transport.sent == []

    def test_refusals_that_leave_too_few(self, make: Callable[..., Setup]) -> None:
        setup = make()
        setup.add()
        setup.run(0)
        setup.transport.answer(0, REFUSED)
        setup.run(1)
        assert setup.sender.failure is None
        setup.transport.answer(1, REFUSED)
        setup.run(2)
        error = setup.sender.failure
        assert error is not None and error.code is ErrorCode.NOT_ENOUGH_REPLICAS
        assert "no room" in str(error)
        assert setup.pool.available_bytes == 1 << 20


class TestRetries:
    def test_same_name_same_bytes_after_the_backoff(self, make: Callable[..., Setup]) -> None:
        setup = make(replace(CONFIG, retry_backoff_ms=100))
        setup.add()
        setup.run(0)
        setup.transport.answer(1, RETRIABLE)
        setup.run(10)
        setup.run(10 + 79)
        assert len(setup.transport.on(1)) == 1
        setup.run(10 + 121)
        first, second = setup.transport.on(1)
        assert (first["key"], first["body"]) == (second["key"], second["body"])
        assert (first["attempt"], second["attempt"]) == (1, 2)

    def test_backoff_doubles_up_to_the_cap(self, make: Callable[..., Setup]) -> None:
        config = replace(CONFIG, retry_backoff_ms=100, retry_backoff_max_ms=300, delivery_timeout_ms=100_000)
        setup = make(config)
        setup.add()
        now_ms = 0
        setup.run(now_ms)
        for expected_ms in (100, 200, 300, 300):
            setup.transport.answer(1, RETRIABLE)
            setup.run(now_ms)
            due_ms = setup.first.puts[1].next_attempt_ms - now_ms
            assert 0.8 * expected_ms - 1 <= due_ms <= 1.2 * expected_ms
            now_ms += due_ms
            setup.run(now_ms)

    def test_root_is_checked_before_a_put_counts_again(self, make: Callable[..., Setup]) -> None:
        setup = make()
        setup.add()
        setup.run(0)
        assert [put["check_root"] for put in setup.transport.sent] == [False] * 3
        setup.transport.answer(1, RETRIABLE)
        setup.run(0)
        setup.run(200)
        assert setup.transport.on(1)[-1]["check_root"]
        setup.transport.answer(1)
        setup.run(201)
        assert setup.first.puts[1].is_held
        setup.add()
        setup.run(202)
        assert not setup.transport.on(1)[-1]["check_root"]

    def test_a_put_that_succeeds_beside_a_failing_one_is_checked_first(self, make: Callable[..., Setup]) -> None:
        setup = make()
        setup.add()
        setup.add(partition=1)
        setup.run(0)
        setup.transport.answer(1, RETRIABLE, sequence=0)
        setup.transport.answer(1, sequence=1)
        setup.run(1)
        assert not setup.report.requests[1].puts[1].is_held
        assert setup.transport.on(1)[-1]["check_root"]
        assert setup.transport.on(1)[-1]["sequence"] == 1
        setup.transport.answer(1, sequence=1)
        setup.run(2)
        assert setup.report.requests[1].puts[1].is_held

    def test_a_stale_root_is_out_at_once_and_for_good(self, make: Callable[..., Setup]) -> None:
        setup = make()
        setup.add()
        setup.add(partition=1)
        setup.run(0)
        setup.transport.answer(1, STALE, sequence=0)
        for broker_id in (0, 2, 0, 2):
            setup.transport.answer(broker_id)
        setup.run(1)
        assert not setup.sender.has_open_requests
        assert [request.holders for request in setup.report.requests] == [{0, 2}, {0, 2}]
        setup.add()
        setup.run(2)
        assert len(setup.transport.on(1)) == 2

    def test_no_answer_within_request_timeout_is_tried_again(self, make: Callable[..., Setup]) -> None:
        setup = make(replace(CONFIG, retry_backoff_ms=0))
        setup.add()
        setup.run(0)
        setup.run(2_999)
        assert len(setup.transport.sent) == 3
        setup.run(3_000)
        assert len(setup.transport.sent) == 6
        # The late answers of the first attempts count: the bytes are the same. But the root gave no
        # answer before, so it is checked.
        setup.transport.answer(0)
        setup.run(3_001)
        assert not setup.first.puts[0].is_held
        setup.transport.answer(0)
        setup.run(3_002)
        assert setup.first.puts[0].is_held


class TestTimeouts:
    def test_delivery_timeout_names_records_and_partition(self, make: Callable[..., Setup]) -> None:
        setup = make()
        for partition in range(5):
            setup.add(700, partition=partition)
        setup.run(0)
        setup.transport.answer(2)
        setup.transport.answer(1, RETRIABLE)
        setup.run(9_999)
        assert setup.sender.failure is None
        setup.run(10_000)
        error = setup.sender.failure
        assert isinstance(error, RetriableError)
        assert error.code is ErrorCode.REQUEST_TIMED_OUT
        text = str(error)
        assert "expiring 10 records for orders-0, orders-1, orders-2 and 2 more partitions" in text
        assert "delivery.timeout.ms (10000)" in text
        assert "copies on brokers [2]; needed: 2" in text
        assert "broker 1 did not answer a put within request.timeout.ms" in text

    def test_waiting_rows_do_not_expire(self, make: Callable[..., Setup]) -> None:
        setup = make()
        setup.add(10)
        setup.run(0)
        setup.run(10**9)
        assert setup.sender.failure is None
        setup.accumulator.close()
        setup.run(10**9)
        assert len(setup.transport.sent) == 3

    def test_a_pause_of_the_owner_is_not_held_against_a_request(self, make: Callable[..., Setup]) -> None:
        setup = make()
        setup.add()
        setup.run(0)
        for broker_id in (0, 1, 2):
            setup.transport.answer(broker_id, RETRIABLE)
        setup.sender.run_once(10)
        setup.sender.run_once(600_010)
        assert setup.sender.failure is None
        assert len(setup.transport.sent) == 6

    def test_nothing_is_drained_after_a_failure(self, make: Callable[..., Setup]) -> None:
        setup = make()
        setup.add(brokers=(1,))
        setup.run(0)
        setup.add(partition=1)
        setup.run(1)
        assert setup.transport.sent == []


class TestAcks1:
    config = replace(CONFIG, acks=1)

    def test_the_leader_is_enough(self, make: Callable[..., Setup]) -> None:
        setup = make(self.config)
        setup.add(brokers=(1, 0, 2))
        setup.run(0)
        assert [put["broker_id"] for put in setup.transport.sent] == [0, 1, 2]
        setup.transport.answer(0)
        setup.run(1)
        assert setup.sender.has_open_requests
        setup.transport.answer(1)
        setup.run(2)
        assert not setup.sender.has_open_requests
        setup.transport.answer(2)
        setup.run(3)
        assert setup.first.holders == {0, 1, 2}

    def test_memory_stays_counted_while_followers_write(self, make: Callable[..., Setup]) -> None:
        setup = make(self.config)
        setup.add(brokers=(1, 0, 2))
        setup.run(0)
        setup.transport.answer(1)
        setup.run(1)
        assert setup.pool.available_bytes < 1 << 20
        setup.run(501)
        assert setup.pool.available_bytes == 1 << 20

    def test_leader_refuses(self, make: Callable[..., Setup]) -> None:
        setup = make(self.config)
        setup.add(brokers=(1, 0, 2))
        setup.run(0)
        for broker_id, error in ((0, None), (2, None), (1, REFUSED)):
            setup.transport.answer(broker_id, error)
        setup.run(1)
        assert setup.sender.failure is None and not setup.sender.has_open_requests
        assert setup.first.holders == {0, 2}

    def test_nobody_who_could_lead_takes_it(self, make: Callable[..., Setup]) -> None:
        setup = make(self.config)
        setup.add(brokers=(1, 0, 2))
        setup.run(0)
        setup.transport.answer(1, REFUSED)
        setup.transport.answer(0, REFUSED)
        setup.run(1)
        assert setup.sender.failure is None  # broker 2 has not answered
        setup.transport.answer(2, REFUSED)
        setup.run(2)
        error = setup.sender.failure
        assert error is not None and error.code is ErrorCode.LEADER_NOT_AVAILABLE
        assert "orders-0" in str(error) and "Nothing was committed" in str(error)

    def test_a_leader_that_fails_is_waited_for_as_long_as_other_replicas_with_acks_all(
        self, make: Callable[..., Setup]
    ) -> None:
        setup = make(self.config)
        setup.add(brokers=(1, 0, 2))
        setup.run(0)
        setup.transport.answer(1, RETRIABLE)
        setup.transport.answer(0)
        setup.run(10)
        setup.run(509)
        assert setup.sender.has_open_requests
        setup.run(510)
        assert not setup.sender.has_open_requests
        assert setup.first.error is None and setup.first.holders == {0}

    def test_a_leader_that_only_is_slow_is_waited_for(self, make: Callable[..., Setup]) -> None:
        setup = make(self.config)
        setup.add(brokers=(1, 0, 2))
        setup.run(0)
        setup.transport.answer(0)
        setup.transport.answer(2)
        setup.run(1)
        setup.run(900)
        assert setup.sender.has_open_requests
        setup.transport.answer(1)
        setup.run(901)
        assert setup.first.holders == {0, 1, 2} and not setup.sender.has_open_requests

    def test_leader_is_retried(self, make: Callable[..., Setup]) -> None:
        setup = make(self.config)
        setup.add(brokers=(1, 0, 2))
        setup.run(0)
        setup.transport.answer(1, RETRIABLE)
        setup.run(1)
        setup.run(200)
        setup.transport.answer(1)
        setup.run(201)
        assert setup.first.error is None and not setup.sender.has_open_requests

    def test_leader_times_out(self, make: Callable[..., Setup]) -> None:
        setup = make(self.config)
        setup.add(brokers=(1, 0, 2))
        setup.run(0)
        setup.run(10_000)
        error = setup.sender.failure
        assert error is not None and error.code is ErrorCode.REQUEST_TIMED_OUT
        assert "needed: broker 1" in str(error)


class TestAcks0:
    config = replace(CONFIG, acks=0)

    def test_no_retry_and_the_object_lives_where_it_landed(self, make: Callable[..., Setup]) -> None:
        setup = make(self.config)
        setup.add()
        setup.run(0)
        setup.transport.answer(0, RETRIABLE)
        setup.transport.answer(1)
        setup.run(1)
        assert setup.sender.has_open_requests
        setup.transport.answer(2, RETRIABLE)
        setup.run(2)
        assert setup.first.holders == {1}
        assert setup.sender.dropped_row_count == 0
        setup.run(5_000)
        assert len(setup.transport.sent) == 3

    def test_dropped_rows_are_counted_and_reported(self, make: Callable[..., Setup]) -> None:
        setup = make(self.config)
        setup.add()
        setup.run(0)
        for broker_id in (0, 1, 2):
            setup.transport.answer(broker_id, RETRIABLE)
        setup.run(1)
        assert setup.sender.failure is None
        assert setup.sender.dropped_row_count == 2
        assert setup.first.is_dropped
        assert [error.code for error in setup.reported] == [ErrorCode.REPLOG_ACKS0_DROPPED]
        assert "2 rows for orders-0 were dropped" in str(setup.reported[0])

    def test_a_hanging_root_is_waited_for_no_longer_than_request_timeout(self, make: Callable[..., Setup]) -> None:
        setup = make(self.config)
        setup.add()
        setup.run(0)
        setup.transport.answer(0)
        setup.transport.answer(1)
        setup.run(2_999)
        assert setup.sender.has_open_requests
        setup.run(3_000)
        assert not setup.sender.has_open_requests


class TestInFlight:
    def test_at_most_so_many_per_root(self, make: Callable[..., Setup]) -> None:
        setup = make(replace(CONFIG, max_in_flight=2))
        for _ in range(3):
            setup.add()
        setup.add(brokers=(0, 1), partition=1)
        setup.run(0)
        assert [len(setup.transport.on(broker_id)) for broker_id in (0, 1, 2)] == [2, 2, 1]
        for broker_id in (0, 1, 2):
            setup.transport.answer(broker_id)
        setup.run(1)
        assert [len(setup.transport.on(broker_id)) for broker_id in (0, 1, 2)] == [3, 3, 2]

    def test_drain_order_is_the_order_of_the_requests(self, make: Callable[..., Setup]) -> None:
        setup = make()
        for partition in (0, 1, 2):
            setup.add(partition=partition)
        setup.run(0)
        for sequence in (2, 0, 1):
            for broker_id in (0, 1, 2):
                setup.transport.answer(broker_id, sequence=sequence)
            setup.run(1)
        assert [request.sections[0].partition for request in setup.report.requests] == [0, 1, 2]
        assert [request.sequence for request in setup.report.requests] == [0, 1, 2]


def test_says_when_it_must_run_again(make: Callable[..., Setup]) -> None:
    setup = make()
    assert setup.run(0) == 1_000
    setup.add()
    assert setup.run(0) == 1_000
    assert setup.run(2_700) == 300


def test_a_root_that_was_gone_is_checked_and_used_again_after_a_while(make: Callable[..., Setup]) -> None:
    setup = make()
    setup.add()
    setup.run(0)
    for broker_id, error in ((1, STALE), (0, None), (2, None)):
        setup.transport.answer(broker_id, error)
    setup.run(1)
    for now_ms, put_count in ((AWAY_MS, 1), (AWAY_MS + 1, 2)):
        setup.add()
        setup.run(now_ms)
        assert len(setup.transport.on(1)) == put_count
    assert setup.transport.on(1)[-1]["check_root"]
    setup.transport.answer(1)
    setup.run(AWAY_MS + 2)
    assert setup.report.requests[-1].puts[1].is_held
