"""Kafka's cases of the idempotent producer: what is numbered how, and what an answer changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from spark_replog.errors import ErrorCode, ReplogError
from spark_replog.log.model import PartitionResponse
from spark_replog.write.data_request import Delivered, DeliveryResult
from spark_replog.write.producer_batch import SEQUENCE_MAX, ProducerIdAndEpoch, increment_sequence
from spark_replog.write.sequences import EPOCH_MAX
from tests.unit.write.sender_setup import (
    AFTER_APPEND,
    CONFIG,
    DISCONNECT,
    FENCED,
    NOT_LEADER,
    OUT_OF_ORDER,
    TOO_LARGE,
    TP,
    UNKNOWN,
    Setup,
)


class TestIdempotence:
    @pytest.mark.case("kafka-43")
    def test_case_43_multiple_in_flight(self, make: Callable[..., Setup]) -> None:
        setup = make()
        assert setup.sequences is not None
        first, second = setup.send_and_run(), setup.send_and_run()
        assert setup.numbers() == [(0, 0), (0, 1)]
        assert setup.next_sequence() == 2
        assert setup.last_acked_sequence() is None
        setup.answer(setup.open[0], offset=0)
        assert setup.last_acked_sequence() == 0
        setup.answer(setup.open[0], offset=1)
        assert setup.last_acked_sequence() == 1
        assert (first.result(0).offset, second.result(0).offset) == (0, 1)
        setup.check_clean()

    @pytest.mark.case("kafka-44")
    def test_case_44_retried_in_order(self, make: Callable[..., Setup]) -> None:
        setup = make(replace(CONFIG, max_in_flight=3))
        assert setup.sequences is not None
        handles = [setup.send_and_run() for _ in range(3)]
        handles.append(setup.send_and_run())
        assert setup.numbers() == [(0, 0), (0, 1), (0, 2)]
        assert setup.next_sequence() == 3
        for request, error in zip(list(setup.open), (NOT_LEADER, OUT_OF_ORDER, OUT_OF_ORDER), strict=True):
            setup.answer(request, error)
        for number in range(3):
            setup.run(after_ms=20)
            # The fourth never had a number: it goes with the last of the others, in one object.
            assert setup.numbers() == ([(0, number)] if number < 2 else [(0, 2), (0, 3)])
            assert setup.next_sequence() == (3 if number < 2 else 4)
            setup.answer(setup.open[0], offset=number)
            assert setup.last_acked_sequence() == (number if number < 2 else 3)
        assert [handle.result(0).offset for handle in handles] == [0, 1, 2, 3]

    @pytest.mark.case("kafka-45")
    def test_case_45_first_fails_fatally(self, make: Callable[..., Setup]) -> None:
        setup = make()
        assert setup.sequences is not None
        first, second = setup.send_and_run(), setup.send_and_run()
        one, two = setup.open
        setup.answer(one, TOO_LARGE)
        assert first.exception(0) is TOO_LARGE
        setup.answer(two, OUT_OF_ORDER)
        setup.run(after_ms=20)
        assert setup.numbers() == [(1, 0)]
        setup.answer(setup.open[0], offset=0)
        assert second.result(0).offset == 0
        assert setup.last_acked_sequence() == 0

    @pytest.mark.case("kafka-46")
    def test_case_46_out_of_order_for_the_next_batch_raises_the_epoch(self, make: Callable[..., Setup]) -> None:
        setup = make()
        setup.send_and_run()
        setup.answer(setup.open[0], offset=0)
        handle = setup.send_and_run()
        assert setup.numbers() == [(0, 1)]
        setup.answer(setup.open[0], OUT_OF_ORDER)
        setup.run(after_ms=20)
        assert setup.numbers() == [(1, 0)]
        setup.answer(setup.open[0], offset=1)
        assert handle.result(0).offset == 1

    @pytest.mark.case("kafka-47")
    def test_case_47_out_of_order_responses(self, make: Callable[..., Setup]) -> None:
        setup = make()
        assert setup.sequences is not None
        handles = [setup.send_and_run(), setup.send_and_run()]
        one, two = setup.open
        setup.answer(two, OUT_OF_ORDER)
        assert [batch.base_sequence for batch in setup.queues[0].batches] == [1]
        assert not handles[1].done()
        setup.answer(one, NOT_LEADER)
        assert [batch.base_sequence for batch in setup.queues[0].batches] == [0, 1]
        for number in range(2):
            setup.run(after_ms=20)
            assert setup.numbers() == [(0, number)]
            setup.answer(setup.open[0], offset=number)
        assert [handle.result(0).offset for handle in handles] == [0, 1]

    @pytest.mark.case("kafka-47")
    def test_case_47_retries_are_in_order_in_whatever_order_they_come_back(self, make: Callable[..., Setup]) -> None:
        setup = make()
        for _ in range(4):
            setup.send_and_run()
        requests = list(setup.open)
        for number in (3, 1, 2, 0):
            setup.answer(requests[number], OUT_OF_ORDER if number else NOT_LEADER)
        assert [batch.base_sequence for batch in setup.queues[0].batches] == [0, 1, 2, 3]

    @pytest.mark.case("kafka-48")
    def test_case_48_second_succeeds_first(self, make: Callable[..., Setup]) -> None:
        setup = make()
        assert setup.sequences is not None
        handles = [setup.send_and_run(), setup.send_and_run()]
        one, two = setup.open
        setup.answer(two, offset=1)
        assert setup.last_acked_sequence() == 1
        setup.run(after_ms=20)
        assert setup.numbers() == [(0, 0)]
        setup.answer(one, offset=0)
        assert [handle.result(0).offset for handle in handles] == [0, 1]
        assert setup.last_acked_sequence() == 1

    @pytest.mark.case("kafka-49")
    def test_case_49_expiry_of_an_unsent_batch(self, make: Callable[..., Setup]) -> None:
        setup = make()
        assert setup.sequences is not None
        setup.accumulator.mute([TP[0]])
        handle = setup.send_and_run()
        setup.run(after_ms=2_000)
        error = handle.exception(0)
        assert error is not None and error.code is ErrorCode.REQUEST_TIMED_OUT
        assert not setup.has_unresolved()
        assert setup.sequences.producer == ("me", 0)

    @pytest.mark.case("kafka-50")
    def test_case_50_expired_first_batch_and_those_behind_it_succeed(self, make: Callable[..., Setup]) -> None:
        setup = make()
        assert setup.sequences is not None
        first = setup.send_and_run()
        setup.clock.time_ms = 1_000
        second = setup.send_and_run()
        one, two = setup.open
        setup.clock.time_ms = 1_495
        setup.run(after_ms=5)
        assert first.exception(0) is not None
        setup.answer(one, UNKNOWN)
        assert setup.has_unresolved()
        third = setup.send_and_run()
        assert setup.open == [two]
        setup.answer(two, offset=1)
        assert second.result(0).offset == 1
        setup.run()
        assert not setup.has_unresolved()
        assert setup.numbers() == [(0, 2)]
        setup.answer(setup.open[0], offset=2)
        assert third.result(0).offset == 2

    def test_a_retry_that_expires_lets_nothing_new_go_before_its_hole_is_closed(
        self, make: Callable[..., Setup]
    ) -> None:
        setup = make(replace(CONFIG, retry_backoff_ms=10_000, retry_backoff_max_ms=10_000))
        first = setup.send_and_run()
        setup.answer(setup.open[0], NOT_LEADER)
        setup.clock.time_ms = 1_000
        second = setup.send_and_run()
        setup.clock.time_ms = 1_500
        setup.sender.run_once(1_500)
        assert first.exception(0) is not None
        assert len(setup.transport.sent) == 1
        setup.run()
        assert setup.numbers() == [(1, 0)]
        setup.answer(setup.open[0], offset=0)
        assert second.result(0).offset == 0

    @pytest.mark.case("kafka-51")
    def test_case_51_expiry_of_all_sent_batches(self, make: Callable[..., Setup]) -> None:
        setup = make()
        assert setup.sequences is not None
        handle = setup.send_and_run()
        setup.clock.time_ms = 1_495
        setup.run()
        assert not handle.done()
        setup.clock.time_ms = 1_500
        setup.sender._completion.run_once = lambda _now_ms: None  # type: ignore[method-assign]
        setup.sender.run_once(1_500)
        assert handle.exception(0) is not None
        setup.answer(setup.open[0], UNKNOWN)
        assert setup.has_unresolved()
        setup.sequences.resolve()
        assert not setup.has_unresolved()
        assert setup.sequences.producer.epoch == 1
        assert setup.next_sequence() == 0

    @pytest.mark.case("kafka-57")
    def test_case_57_sequences_wrap(self) -> None:
        assert increment_sequence(SEQUENCE_MAX, 1) == 0
        assert increment_sequence(SEQUENCE_MAX, 10) == 9

    @pytest.mark.case("kafka-57")
    def test_case_57_a_producer_goes_on_behind_the_wrap(self, make: Callable[..., Setup]) -> None:
        setup = make()
        assert setup.sequences is not None
        entry = setup.entry()
        entry.next_sequence, entry.last_acked_sequence = SEQUENCE_MAX - 1, SEQUENCE_MAX - 2
        handles = [setup.send_and_run(count=2), setup.send_and_run()]
        assert setup.numbers() == [(0, SEQUENCE_MAX - 1), (0, 0)]
        one, two = setup.open
        setup.answer(two, OUT_OF_ORDER)
        setup.answer(one, NOT_LEADER)
        assert [batch.base_sequence for batch in setup.queues[0].batches] == [SEQUENCE_MAX - 1, 0]
        for offset in (0, 2):
            setup.run(after_ms=20)
            setup.answer(setup.open[0], offset=offset)
        assert [handle.result(0).offset for handle in handles] == [0, 2]
        assert setup.last_acked_sequence() == 0

    def test_other_partitions_follow_to_the_new_epoch_when_they_are_idle(self, make: Callable[..., Setup]) -> None:
        setup = make()
        assert setup.sequences is not None
        setup.send_and_run(1)
        setup.send_and_run(0)
        other, request = setup.open
        setup.answer(request, OUT_OF_ORDER)
        setup.run(after_ms=20)
        assert setup.numbers() == [(0, 0), (1, 0)]
        waiting = setup.send_and_run(1)
        assert len(setup.open) == 2
        setup.answer(other, offset=0)
        setup.run()
        assert setup.numbers() == [(1, 0), (1, 0)]
        setup.answer(setup.open[1], offset=1)
        assert waiting.result(0).offset == 1

    def test_behind_the_last_epoch_comes_a_fresh_producer_id(self, make: Callable[..., Setup]) -> None:
        setup = make()
        assert setup.sequences is not None
        setup.sequences.producer = ProducerIdAndEpoch("me", EPOCH_MAX)
        setup.send_and_run()
        setup.answer(setup.open[0], OUT_OF_ORDER)
        setup.run(after_ms=20)
        assert setup.sequences.producer.id != "me"
        assert setup.numbers() == [(0, 0)]

    def test_an_exhausted_retry_of_unknown_outcome_leaves_the_partition_unresolved(
        self, make: Callable[..., Setup]
    ) -> None:
        setup = make(replace(CONFIG, retries=0))
        assert setup.sequences is not None
        handle = setup.send_and_run()
        setup.delivery.results.append(DeliveryResult(setup.open[0].sequence, {TP[0]: PartitionResponse(UNKNOWN)}))
        setup.sender.run_once(setup.clock.time_ms)
        assert handle.exception(0) is UNKNOWN
        setup.send_and_run()
        assert setup.numbers() == [(1, 0)]

    def test_objects_are_handed_over_in_drain_order(self, make: Callable[..., Setup]) -> None:
        setup = make()
        setup.answers_puts = False
        for _ in range(3):
            setup.send_and_run()
        setup.transport.answer(0, sequence=2)
        setup.transport.answer(0, sequence=1)
        setup.run()
        assert setup.delivery.delivered == []
        setup.transport.answer(0, sequence=0)
        setup.run()
        assert [request.sequence for request in setup.delivery.delivered] == [0, 1, 2]

    def test_another_partition_does_not_wait(self, make: Callable[..., Setup]) -> None:
        setup = make()
        setup.answers_puts = False
        setup.send_and_run(0)
        setup.send_and_run(1)
        setup.transport.answer(1)
        setup.run()
        assert [request.topic_partitions for request in setup.delivery.delivered] == [{TP[1]}]

    def test_five_in_flight_for_each_root(self, make: Callable[..., Setup]) -> None:
        setup = make()
        for _ in range(7):
            setup.send_and_run()
        assert len(setup.open) == 5
        setup.send_and_run(1)
        assert len(setup.open) == 6
        setup.answer(setup.open[0], offset=0)
        assert setup.numbers() == [(0, 1), (0, 2), (0, 3), (0, 4), (0, 0), (0, 5)]

    def test_a_newer_owner_ends_all(self, make: Callable[..., Setup]) -> None:
        setup = make(replace(CONFIG, max_in_flight=1))
        first, second = setup.send_and_run(), setup.send_and_run()
        setup.answer(setup.open[0], FENCED)
        assert (first.exception(0), second.exception(0)) == (FENCED, FENCED)
        assert setup.sender.failure is FENCED
        setup.send_and_run()
        assert len(setup.delivery.delivered) == 1

    def test_partitions_left_behind_by_a_new_epoch_follow_with_what_they_have(self, make: Callable[..., Setup]) -> None:
        setup = make()
        other = setup.send_and_run(1)
        setup.send_and_run(0)
        one, two = setup.open
        setup.answer(two, OUT_OF_ORDER)
        setup.run(after_ms=20)
        setup.answer(one, ReplogError(ErrorCode.INVALID_PRODUCER_EPOCH, "epoch 0 is older than 1."))
        setup.run(after_ms=20)
        assert setup.numbers() == [(1, 0), (1, 0)]
        assert setup.sequences is not None and setup.sequences.producer.epoch == 1
        setup.answer(setup.open[1], offset=8)
        assert other.result(0).offset == 8

    def test_an_epoch_that_is_the_newest_known_and_refused_is_final(self, make: Callable[..., Setup]) -> None:
        setup = make()
        handle = setup.send_and_run()
        error = ReplogError(ErrorCode.INVALID_PRODUCER_EPOCH, "epoch 0 is older than 7.")
        setup.answer(setup.open[0], error)
        assert handle.exception(0) is error

    @pytest.mark.guarantee("G3")
    @pytest.mark.parametrize("error", [UNKNOWN, AFTER_APPEND], ids=["unknown", "in the log"])
    def test_what_may_be_in_the_log_goes_into_no_other_object(
        self, make: Callable[..., Setup], error: ReplogError
    ) -> None:
        setup = make()
        handle = setup.send_and_run()
        (request,) = setup.open
        setup.answer(request, error)
        assert handle.exception(0) is error
        behind = setup.send_and_run()
        setup.run(after_ms=20)
        assert len(setup.delivery.delivered) == 2
        # The next batch begins another epoch: with the number after the first one it would be behind a hole, if any.
        assert setup.numbers() == [(1, 0)]
        setup.answer(setup.open[0], offset=1)
        assert behind.result(0).offset == 1
        setup.check_clean()

    @pytest.mark.guarantee("G3")
    def test_a_refused_batch_does_not_renumber_an_earlier_one_that_may_have_landed(
        self, make: Callable[..., Setup]
    ) -> None:
        setup = make()
        handles = [setup.send_and_run(), setup.send_and_run()]
        one, two = setup.open
        setup.answer(two, TOO_LARGE)
        handles.append(setup.send_and_run())
        setup.run(after_ms=20)
        # Under other numbers the log would not know it again, and have its rows twice.
        assert setup.numbers() == [(0, 0)]
        setup.answer(one, offset=0)
        setup.run(after_ms=20)
        assert setup.numbers()[-1] == (1, 0)
        setup.answer(setup.open[-1], offset=1)
        assert [handle.result(0).offset for handle in (handles[0], handles[2])] == [0, 1]
        assert handles[1].exception(0) is TOO_LARGE
        setup.check_clean()

    @pytest.mark.guarantee("G3")
    def test_a_batch_of_unknown_outcome_does_not_renumber_later_ones_that_may_have_landed(
        self, make: Callable[..., Setup]
    ) -> None:
        setup = make()
        handles = [setup.send_and_run(), setup.send_and_run()]
        one, two = setup.open
        setup.answer(one, UNKNOWN)
        assert handles[0].exception(0) is UNKNOWN
        setup.run(after_ms=20)
        assert setup.numbers() == [(0, 1)]
        setup.answer(two, offset=1)
        assert handles[1].result(0).offset == 1
        setup.check_clean()

    def test_a_retry_and_a_new_batch_share_no_object_while_others_are_between_them(
        self, make: Callable[..., Setup]
    ) -> None:
        setup = make()
        for _ in range(3):
            setup.send_and_run()
        setup.answer(setup.open[0], NOT_LEADER)
        setup.send()
        setup.run(after_ms=20)
        assert setup.numbers() == [(0, 1), (0, 2), (0, 0), (0, 3)]
        assert [len(request.batches) for request in setup.open] == [1, 1, 1, 1]

    def test_no_more_appends_than_the_log_knows_again(self, make: Callable[..., Setup]) -> None:
        setup = make(replace(CONFIG, max_in_flight=9))
        for _ in range(8):
            setup.send_and_run()
        assert setup.numbers() == [(0, number) for number in range(5)]
        for request in setup.open[1:]:
            setup.answer(request, offset=1)
        assert setup.numbers() == [(0, 0)]
        setup.answer(setup.open[0], offset=0)
        (request,) = setup.open
        assert [(batch.base_sequence, batch.row_count) for batch in request.batches] == [(5, 3)]


class TestParked:
    def test_memory_goes_and_the_outcome_comes_with_the_end_of_the_transaction(
        self, make: Callable[..., Setup]
    ) -> None:
        setup = make(replace(CONFIG, max_in_flight=1))
        setup.delivery.outcome = Delivered.PARKED
        handles = [setup.send_and_run() for _ in range(3)]
        assert setup.pool.available_bytes == setup.pool.total_bytes
        assert not setup.sender.has_open_requests
        assert setup.accumulator.flush(0)
        assert not any(handle.done() for handle in handles)
        setup.run(after_ms=10_000)
        assert not any(handle.done() for handle in handles)
        one, two, three = setup.delivery.delivered
        setup.answer(one, offset=0)
        setup.answer(three, offset=2)
        setup.answer(two, DISCONNECT)
        assert [handles[index].result(0).offset for index in (0, 2)] == [0, 2]
        assert handles[1].exception(0) is DISCONNECT
        setup.check_clean()
        assert setup.sender._table.released == {}
