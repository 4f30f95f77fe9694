"""The sender of a write task under a time and answers that the test gives: retries, timeouts, requests in flight."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from spark_replog.errors import ErrorCode, RetriableError
from spark_replog.write.data_request import PutState, RequestState
from spark_replog.write.transport import AWAY_MS
from tests.unit.write.task_sender_setup import CONFIG, REFUSED, RETRIABLE, STALE, TaskSetup


class TestAcksAll:
    def test_all_copies_at_once(self, make_task_sender: Callable[..., TaskSetup]) -> None:
        setup = make_task_sender()
        setup.add()
        setup.run(0)
        assert [put["broker_id"] for put in setup.transport.sent] == [0, 1, 2]
        assert len({put["key"] for put in setup.transport.sent}) == 1
        for broker_id in (0, 1, 2):
            setup.transport.answer(broker_id)
        setup.run(5)
        assert setup.first.state is RequestState.ANSWERED
        assert setup.first.holders == {0, 1, 2}
        assert setup.pool.available_bytes == 1 << 20

    def test_waits_for_the_rest_no_longer_than_the_grace(self, make_task_sender: Callable[..., TaskSetup]) -> None:
        setup = make_task_sender()
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

    def test_a_late_copy_is_told_too(self, make_task_sender: Callable[..., TaskSetup]) -> None:
        setup = make_task_sender()
        setup.add()
        setup.run(0)
        setup.transport.answer(0)
        setup.transport.answer(2)
        setup.run(0)
        setup.run(500)
        setup.transport.answer(1)
        setup.run(2_000)
        assert setup.first.to_data_object().holders == {0, 1, 2}

    def test_a_hanging_root_gets_nothing_more_until_it_answers(
        self, make_task_sender: Callable[..., TaskSetup]
    ) -> None:
        setup = make_task_sender()
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

    def test_it_gets_more_where_there_would_be_too_few_copies(self, make_task_sender: Callable[..., TaskSetup]) -> None:
        setup = make_task_sender()
        setup.add()
        setup.run(0)
        setup.transport.answer(0)
        setup.transport.answer(2)
        setup.run(0)
        setup.run(500)
        setup.add(brokers=(0, 1), partition=1)
        setup.run(501)
        assert len(setup.transport.on(1)) == 2

    def test_min_insync_of_the_topic(self, make_task_sender: Callable[..., TaskSetup]) -> None:
        setup = make_task_sender(min_insync=3)
        setup.add()
        setup.run(0)
        setup.transport.answer(0)
        setup.transport.answer(1)
        setup.run(2_000)
        assert setup.sender.has_open_requests
        setup.transport.answer(2)
        setup.run(2_001)
        assert not setup.sender.has_open_requests

    def test_too_few_in_sync_replicas(self, make_task_sender: Callable[..., TaskSetup]) -> None:
        setup = make_task_sender()
        setup.add(brokers=(1,))
        setup.run(0)
        error = setup.sender.failure
        assert error is not None and error.code is ErrorCode.NOT_ENOUGH_REPLICAS
        assert "2 records for orders-0 need 2 copies" in str(error)
        assert setup.transport.sent == []

    def test_refusals_that_leave_too_few(self, make_task_sender: Callable[..., TaskSetup]) -> None:
        setup = make_task_sender()
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
    def test_same_name_same_bytes_after_the_backoff(self, make_task_sender: Callable[..., TaskSetup]) -> None:
        setup = make_task_sender(replace(CONFIG, retry_backoff_ms=100))
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

    def test_backoff_doubles_up_to_the_cap(self, make_task_sender: Callable[..., TaskSetup]) -> None:
        config = replace(CONFIG, retry_backoff_ms=100, retry_backoff_max_ms=300, delivery_timeout_ms=100_000)
        setup = make_task_sender(config)
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

    def test_root_is_checked_before_a_put_counts_again(self, make_task_sender: Callable[..., TaskSetup]) -> None:
        setup = make_task_sender()
        setup.add()
        setup.run(0)
        assert [put["check_root"] for put in setup.transport.sent] == [False] * 3
        setup.transport.answer(1, RETRIABLE)
        setup.run(0)
        setup.run(200)
        assert setup.transport.on(1)[-1]["check_root"]
        setup.transport.answer(1)
        setup.run(201)
        assert setup.first.puts[1].state is PutState.HELD
        setup.add()
        setup.run(202)
        assert not setup.transport.on(1)[-1]["check_root"]

    def test_a_put_that_succeeds_beside_a_failing_one_is_checked_first(
        self, make_task_sender: Callable[..., TaskSetup]
    ) -> None:
        setup = make_task_sender()
        setup.add()
        setup.add(partition=1)
        setup.run(0)
        setup.transport.answer(1, RETRIABLE, sequence=0)
        setup.transport.answer(1, sequence=1)
        setup.run(1)
        assert setup.sender.requests[1].puts[1].state is not PutState.HELD
        assert setup.transport.on(1)[-1]["check_root"]
        assert setup.transport.on(1)[-1]["sequence"] == 1
        setup.transport.answer(1, sequence=1)
        setup.run(2)
        assert setup.sender.requests[1].puts[1].state is PutState.HELD

    def test_a_stale_root_is_out_at_once_and_for_good(self, make_task_sender: Callable[..., TaskSetup]) -> None:
        setup = make_task_sender()
        setup.add()
        setup.add(partition=1)
        setup.run(0)
        setup.transport.answer(1, STALE, sequence=0)
        for broker_id in (0, 2, 0, 2):
            setup.transport.answer(broker_id)
        setup.run(1)
        assert not setup.sender.has_open_requests
        assert [request.holders for request in setup.sender.requests] == [{0, 2}, {0, 2}]
        setup.add()
        setup.run(2)
        assert len(setup.transport.on(1)) == 2

    def test_no_answer_within_request_timeout_is_tried_again(self, make_task_sender: Callable[..., TaskSetup]) -> None:
        setup = make_task_sender(replace(CONFIG, retry_backoff_ms=0))
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
        assert setup.first.puts[0].state is not PutState.HELD
        setup.transport.answer(0)
        setup.run(3_002)
        assert setup.first.puts[0].state is PutState.HELD


class TestTimeouts:
    def test_delivery_timeout_names_records_and_partition(self, make_task_sender: Callable[..., TaskSetup]) -> None:
        setup = make_task_sender()
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
        assert "10 records for orders-0, orders-1, orders-2 and 2 more partitions" in text
        assert "delivery.timeout.ms (10000)" in text
        assert "copies on brokers [2]; needed: 2" in text
        assert "roker 1" in text and "request.timeout.ms" in text

    def test_waiting_rows_do_not_expire(self, make_task_sender: Callable[..., TaskSetup]) -> None:
        setup = make_task_sender()
        setup.add(10)
        setup.run(0)
        setup.run(10**9)
        assert setup.sender.failure is None
        setup.accumulator.close()
        setup.run(10**9)
        assert len(setup.transport.sent) == 3

    def test_a_pause_of_the_owner_is_not_held_against_a_request(
        self, make_task_sender: Callable[..., TaskSetup]
    ) -> None:
        setup = make_task_sender()
        setup.add()
        setup.run(0)
        for broker_id in (0, 1, 2):
            setup.transport.answer(broker_id, RETRIABLE)
        setup.sender.run_once(10)
        setup.sender.run_once(600_010)
        assert setup.sender.failure is None
        assert len(setup.transport.sent) == 6

    def test_nothing_is_drained_after_a_failure(self, make_task_sender: Callable[..., TaskSetup]) -> None:
        setup = make_task_sender()
        setup.add(brokers=(1,))
        setup.run(0)
        setup.add(partition=1)
        setup.run(1)
        assert setup.transport.sent == []


class TestInFlight:
    def test_at_most_so_many_per_root(self, make_task_sender: Callable[..., TaskSetup]) -> None:
        setup = make_task_sender(replace(CONFIG, max_in_flight=2))
        for _ in range(3):
            setup.add()
        setup.add(brokers=(0, 1), partition=1)
        setup.run(0)
        assert [len(setup.transport.on(broker_id)) for broker_id in (0, 1, 2)] == [2, 2, 1]
        for broker_id in (0, 1, 2):
            setup.transport.answer(broker_id)
        setup.run(1)
        assert [len(setup.transport.on(broker_id)) for broker_id in (0, 1, 2)] == [3, 3, 2]

    def test_drain_order_is_the_order_of_the_requests(self, make_task_sender: Callable[..., TaskSetup]) -> None:
        setup = make_task_sender()
        for partition in (0, 1, 2):
            setup.add(partition=partition)
        setup.run(0)
        for sequence in (2, 0, 1):
            for broker_id in (0, 1, 2):
                setup.transport.answer(broker_id, sequence=sequence)
            setup.run(1)
        assert [request.data_object.sections[0].partition for request in setup.sender.requests] == [0, 1, 2]
        assert [request.sequence for request in setup.sender.requests] == [0, 1, 2]


def test_says_when_it_must_run_again(make_task_sender: Callable[..., TaskSetup]) -> None:
    setup = make_task_sender()
    assert setup.run(0) == 1_000
    setup.add()
    assert setup.run(0) == 1_000
    assert setup.run(2_700) == 300


def test_asks_what_is_ready_only_while_a_batch_waits(
    make_task_sender: Callable[..., TaskSetup], monkeypatch: pytest.MonkeyPatch
) -> None:
    setup = make_task_sender()
    asked = []
    ready = setup.accumulator.ready
    monkeypatch.setattr(
        setup.accumulator, "ready", lambda *args, **kwargs: asked.append(args) or ready(*args, **kwargs)
    )
    setup.run(0)
    assert asked == []
    setup.add()
    setup.run(0)
    assert len(asked) == 1
    for broker_id in (0, 1, 2):
        setup.transport.answer(broker_id)
        setup.run(1)
    assert len(asked) == 1


def test_a_root_that_was_gone_is_checked_and_used_again_after_a_while(
    make_task_sender: Callable[..., TaskSetup],
) -> None:
    setup = make_task_sender()
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
    assert setup.sender.requests[-1].puts[1].state is PutState.HELD
