"""What acks makes of a write task's answers, and which roots are asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from spark_replog.errors import ErrorCode
from spark_replog.write.data_request import RequestState
from tests.unit.write.task_sender_setup import CONFIG, REFUSED, RETRIABLE, STALE, TaskSetup


def asked(setup: TaskSetup) -> list[int]:
    return [put["broker_id"] for put in setup.transport.sent]


class TestSpares:
    """Two replicas in sync, two copies needed, one replica out of sync."""

    def test_nobody_is_asked_who_is_not_needed(self, make_task_sender: Callable[..., TaskSetup]) -> None:
        setup = make_task_sender()
        setup.add(brokers=(1, 2), spares=(0,))
        setup.run(0)
        setup.run(199)
        for broker_id in (1, 2):
            setup.transport.answer(broker_id)
        setup.run(200)
        setup.run(5_000)
        assert asked(setup) == [1, 2] and setup.first.holders == {1, 2}

    def test_copies_before_the_last_one_needed_need_no_run(self, make_task_sender: Callable[..., TaskSetup]) -> None:
        setup = make_task_sender()
        setup.add(brokers=(0, 1, 2))
        setup.run(0)
        one, *others = [put["quiet"] for put in setup.transport.sent]
        assert all(other is one for other in others) and len(list(one)) == setup.first.required_count - 1 == 1

    def test_a_spare_takes_the_place_of_one_that_fails(self, make_task_sender: Callable[..., TaskSetup]) -> None:
        setup = make_task_sender()
        setup.add(brokers=(1, 2), spares=(0,))
        setup.run(0)
        setup.transport.answer(1, RETRIABLE)
        setup.transport.answer(2)
        setup.run(1)
        assert asked(setup) == [1, 2, 0]
        setup.transport.answer(0)
        setup.run(2)
        setup.run(600)
        assert setup.first.holders == {0, 2} and setup.first.error is None

    def test_a_spare_takes_the_place_of_one_that_is_late(self, make_task_sender: Callable[..., TaskSetup]) -> None:
        setup = make_task_sender()
        setup.add(brokers=(1, 2), spares=(0,))
        setup.run(0)
        setup.transport.answer(2)
        assert setup.run(1) <= 199  # it asks to be called when the put is late
        setup.run(199)
        assert asked(setup) == [1, 2]
        setup.run(200)
        assert asked(setup) == [1, 2, 0]
        setup.transport.answer(0)
        setup.run(201)
        setup.run(701)
        assert setup.first.holders == {0, 2} and not setup.sender.has_open_requests

    def test_a_spare_that_is_not_there_is_asked_again_each_second(
        self, make_task_sender: Callable[..., TaskSetup]
    ) -> None:
        setup = make_task_sender()
        setup.add(brokers=(1, 2), spares=(0,))
        setup.run(0)
        setup.transport.answer(2)
        setup.run(200)
        setup.transport.answer(0, STALE)
        setup.run(201)
        setup.run(1_200)
        assert asked(setup) == [1, 2, 0] and setup.sender.failure is None  # broker 1 may still answer
        setup.run(1_201)
        assert asked(setup) == [1, 2, 0, 0]
        setup.transport.answer(0)
        setup.run(1_202)
        setup.run(1_800)
        assert setup.first.holders == {0, 2}

    def test_without_a_spare_left_it_fails_at_once(self, make_task_sender: Callable[..., TaskSetup]) -> None:
        setup = make_task_sender()
        setup.add(brokers=(1, 2), spares=(0,))
        setup.run(0)
        for broker_id in (1, 0):
            setup.transport.answer(broker_id, STALE)
            setup.run(1 - broker_id)
        error = setup.sender.failure
        assert error is not None and error.code is ErrorCode.NOT_ENOUGH_REPLICAS
        assert "Broker 0: [REPLOG_ROOT_STALE]" in str(error)


class TestAcks1:
    config = replace(CONFIG, acks=1)

    def test_the_leader_is_enough(self, make_task_sender: Callable[..., TaskSetup]) -> None:
        setup = make_task_sender(self.config)
        setup.add(brokers=(1, 0, 2))
        setup.run(0)
        assert [put["broker_id"] for put in setup.transport.sent] == [0, 1, 2]
        assert list(setup.transport.sent[0]["quiet"]) == [], "the first answer may be the leader's"
        setup.transport.answer(0)
        setup.run(1)
        assert setup.sender.has_open_requests
        setup.transport.answer(1)
        setup.run(2)
        assert not setup.sender.has_open_requests
        setup.transport.answer(2)
        setup.run(3)
        assert setup.first.holders == {0, 1, 2}

    def test_memory_stays_counted_while_followers_write(self, make_task_sender: Callable[..., TaskSetup]) -> None:
        setup = make_task_sender(self.config)
        setup.add(brokers=(1, 0, 2))
        setup.run(0)
        setup.transport.answer(1)
        setup.run(1)
        assert setup.pool.available_bytes < 1 << 20
        setup.run(501)
        assert setup.pool.available_bytes == 1 << 20

    def test_leader_refuses(self, make_task_sender: Callable[..., TaskSetup]) -> None:
        setup = make_task_sender(self.config)
        setup.add(brokers=(1, 0, 2))
        setup.run(0)
        for broker_id, error in ((0, None), (2, None), (1, REFUSED)):
            setup.transport.answer(broker_id, error)
        setup.run(1)
        assert setup.sender.failure is None and not setup.sender.has_open_requests
        assert setup.first.holders == {0, 2}

    def test_nobody_who_could_lead_takes_it(self, make_task_sender: Callable[..., TaskSetup]) -> None:
        setup = make_task_sender(self.config)
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
        self, make_task_sender: Callable[..., TaskSetup]
    ) -> None:
        setup = make_task_sender(self.config)
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

    def test_a_leader_that_only_is_slow_is_waited_for(self, make_task_sender: Callable[..., TaskSetup]) -> None:
        setup = make_task_sender(self.config)
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

    def test_leader_is_retried(self, make_task_sender: Callable[..., TaskSetup]) -> None:
        setup = make_task_sender(self.config)
        setup.add(brokers=(1, 0, 2))
        setup.run(0)
        setup.transport.answer(1, RETRIABLE)
        setup.run(1)
        setup.run(200)
        setup.transport.answer(1)
        setup.run(201)
        assert setup.first.error is None and not setup.sender.has_open_requests

    def test_leader_times_out(self, make_task_sender: Callable[..., TaskSetup]) -> None:
        setup = make_task_sender(self.config)
        setup.add(brokers=(1, 0, 2))
        setup.run(0)
        setup.run(10_000)
        error = setup.sender.failure
        assert error is not None and error.code is ErrorCode.REQUEST_TIMED_OUT
        assert "needed: broker 1" in str(error)


class TestAcks0:
    config = replace(CONFIG, acks=0)

    def test_without_the_leader_any_root_is_enough_and_no_put_is_repeated(
        self, make_task_sender: Callable[..., TaskSetup]
    ) -> None:
        setup = make_task_sender(self.config)
        setup.add()
        setup.run(0)
        setup.transport.answer(1)
        setup.run(1)
        assert setup.sender.has_open_requests  # the leader may still take it
        setup.transport.answer(0, RETRIABLE)
        setup.run(2)
        assert not setup.sender.has_open_requests
        assert setup.first.holders == {1}
        assert setup.sender.dropped_row_count == 0
        setup.run(5_000)
        assert len(setup.transport.sent) == 3

    def test_a_slow_follower_is_not_waited_for(self, make_task_sender: Callable[..., TaskSetup]) -> None:
        setup = make_task_sender(self.config)
        setup.add()
        setup.run(0)
        setup.transport.answer(0)
        setup.run(1)
        assert setup.first.state is RequestState.ANSWERED and setup.first.holders == {0}

    def test_dropped_rows_are_counted_and_reported(self, make_task_sender: Callable[..., TaskSetup]) -> None:
        setup = make_task_sender(self.config)
        setup.add()
        setup.run(0)
        for broker_id in (0, 1, 2):
            setup.transport.answer(broker_id, RETRIABLE)
        setup.run(1)
        assert setup.sender.failure is None
        assert setup.sender.dropped_row_count == 2
        assert setup.first.state is RequestState.DROPPED
        assert [error.code for error in setup.reported] == [ErrorCode.REPLOG_ACKS0_DROPPED]
        assert "2 rows for orders-0 were dropped" in str(setup.reported[0])

    def test_a_leader_that_hangs_is_waited_for_no_longer_than_request_timeout(
        self, make_task_sender: Callable[..., TaskSetup]
    ) -> None:
        setup = make_task_sender(self.config)
        setup.add()
        setup.run(0)
        setup.transport.answer(1)
        setup.run(2_999)
        assert setup.sender.has_open_requests
        setup.run(3_000)
        assert not setup.sender.has_open_requests and setup.first.holders == {1}
