"""Kafka's ``SenderTest`` without idempotence: a plain producer's requests, answered by the test."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace

import pytest

from spark_replog.errors import ErrorCode, ReplogError, RetriableError
from spark_replog.log.model import PartitionResponse
from spark_replog.write import data_request
from spark_replog.write.data_request import DeliveryResult
from spark_replog.write.record_handle import RecordHandle
from spark_replog.write.transport import REFUSED_MS
from tests.unit.write.sender_setup import (
    CONFIG,
    DISCONNECT,
    INVALID,
    NODES,
    TP,
    Setup,
)


class TestWithoutIdempotence:
    @pytest.mark.case("kafka-40")
    def test_case_40_retries(self, make: Callable[..., Setup]) -> None:
        setup = make(replace(CONFIG, retries=1), idempotent=False)
        handle = setup.send_and_run()
        setup.answer(setup.open[0], DISCONNECT)
        assert setup.open == [] and not handle.done()
        setup.run(after_ms=20)
        (again,) = setup.open
        assert again.key != setup.delivery.delivered[0].key
        setup.answer(again, offset=0)
        assert handle.result(0).offset == 0
        handle = setup.send_and_run()
        for _ in range(2):
            assert not handle.done()
            setup.answer(setup.open[0], DISCONNECT)
            setup.run(after_ms=20)
        assert handle.exception(0) is DISCONNECT
        assert len(setup.delivery.delivered) == 4
        setup.check_clean()

    def test_nothing_is_due_while_an_answer_is_waited_for_beyond_the_grace(self, make: Callable[..., Setup]) -> None:
        setup = make(replace(CONFIG, replica_grace_ms=100), idempotent=False)
        setup.send_and_run()
        setup.run(after_ms=200)
        assert len(setup.open) == 1
        # The thread sleeps until the record expires: with 0 it would turn without a pause until the answer comes.
        assert setup.sender.run_once(setup.clock.time_ms) == 1_000
        setup.answer(setup.open[0], offset=0)
        setup.check_clean()

    def test_records_that_wait_for_more_than_a_second_are_told_once_until_one_gets_through(
        self, make: Callable[..., Setup], caplog: pytest.LogCaptureFixture
    ) -> None:
        setup = make(replace(CONFIG, delivery_timeout_ms=9_000), idempotent=False)
        for said_count in (1, 2):
            handle = setup.send_and_run()
            setup.answer(setup.open[0], DISCONNECT)
            assert len(caplog.messages) == said_count - 1
            for _ in range(2):
                setup.run(after_ms=1_000)
                setup.answer(setup.open[0], DISCONNECT)
                assert len(caplog.messages) == said_count
            setup.run(after_ms=20)
            setup.answer(setup.open[0], offset=0)
            assert handle.done()
        assert "records for orders-0 wait" in caplog.text and "delivery.timeout.ms (9000)" in caplog.text
        assert str(DISCONNECT) in caplog.text

    @pytest.mark.case("kafka-41")
    def test_case_41_one_in_flight_keeps_order_over_a_leader_change(self, make: Callable[..., Setup]) -> None:
        setup = make(replace(CONFIG, max_in_flight=1), idempotent=False)
        setup.send_and_run()
        setup.clock.time_ms += 900
        setup.send()
        setup.accumulator.assign(setup.queues[0], NODES[1])
        setup.run()
        assert len(setup.open) == 1
        setup.answer(setup.open[0], offset=0)
        (second,) = setup.open
        assert second.destination == NODES[1]

    @pytest.mark.case("kafka-42")
    def test_case_42_acks_0(self, make: Callable[..., Setup]) -> None:
        setup = make(replace(CONFIG, acks=0), idempotent=False)
        handle = setup.send_and_run()
        assert handle.result(0) == ("orders", 0, -1, 5)
        setup.check_clean()
        (request,) = setup.delivery.delivered
        setup.delivery.results.append(DeliveryResult(request.sequence, {TP[0]: PartitionResponse(DISCONNECT)}))
        setup.run()
        assert handle.exception(0) is None

    def test_acks_0_is_acknowledged_before_a_put_is_answered_and_reports_what_no_root_took(
        self, make: Callable[..., Setup]
    ) -> None:
        setup = make(replace(CONFIG, acks=0), idempotent=False)
        setup.answers_puts = False
        handle = setup.send_and_run()
        assert handle.result(0) == ("orders", 0, -1, 5)
        assert setup.sender.has_open_requests  # a close waits for it
        setup.transport.answer(0, DISCONNECT)
        setup.run()
        assert [error.code for error in setup.reported] == [ErrorCode.REPLOG_ACKS0_DROPPED]
        assert setup.sender.dropped_row_count == 1
        assert setup.delivery.delivered == []
        setup.check_clean()

    @pytest.mark.case("kafka-53")
    def test_case_53_a_response_behind_the_delivery_timeout_is_ignored(self, make: Callable[..., Setup]) -> None:
        setup = make(idempotent=False)
        handle = setup.send_and_run()
        setup.run(after_ms=1_500)
        error = handle.exception(0)
        assert error is not None and error.code is ErrorCode.REQUEST_TIMED_OUT
        assert "1 records for orders-0" in str(error) and "may still be appended" in str(error)
        setup.answer(setup.open[0], offset=0)
        assert handle.exception(0) is error
        setup.check_clean()

    @pytest.mark.parametrize("has_silent_attempt", [False, True])
    def test_a_batch_that_expires_says_why_an_attempt_failed(
        self, make: Callable[..., Setup], has_silent_attempt: bool
    ) -> None:
        setup = make(idempotent=False)
        handle = setup.send_and_run()
        if has_silent_attempt:  # no root answers it: what it could say is less than what failed before
            setup.answers_puts = False
            setup.answer(setup.open[0], DISCONNECT)
            setup.run(after_ms=100)
            assert len(setup.transport.sent) == 2
        else:
            setup.answer(setup.open[0], DISCONNECT)
        setup.run(after_ms=1_500)
        error = handle.exception(0)
        assert error is not None and error.code is ErrorCode.REQUEST_TIMED_OUT
        assert f"An attempt failed: [{DISCONNECT.code.name}] {DISCONNECT.args[0]}" in str(error)
        assert "may still be appended" not in str(error)

    @pytest.mark.case("kafka-54")
    def test_case_54_an_expired_batch_keeps_its_partition_muted_until_its_response(
        self, make: Callable[..., Setup]
    ) -> None:
        setup = make(replace(CONFIG, max_in_flight=1), idempotent=False)
        first = setup.send_and_run()
        setup.clock.time_ms = 750
        second = setup.send()
        setup.accumulator.assign(setup.queues[0], NODES[1])
        setup.run()
        assert len(setup.delivery.delivered) == 1
        setup.clock.time_ms = 1_500
        setup.run()
        assert first.exception(0) is not None
        assert len(setup.delivery.delivered) == 1
        setup.answer(setup.delivery.delivered[0], DISCONNECT)
        assert len(setup.delivery.delivered) == 2
        setup.answer(setup.delivery.delivered[1], offset=4)
        assert second.result(0).offset == 4

    @pytest.mark.case("kafka-55")
    def test_case_55_a_refused_batch_fails_all_its_records_and_no_other_batch(self, make: Callable[..., Setup]) -> None:
        setup = make(idempotent=False)
        setup.send(count=3)
        result = setup.queues[0].batches[0].result
        handles = [RecordHandle(result, index) for index in range(3)]
        other = setup.send(1)
        setup.run()
        request, others = setup.open
        setup.answer(request, INVALID)
        setup.answer(others, offset=7)
        assert [handle.exception(0) for handle in handles] == [INVALID] * 3
        assert other.result(0).offset == 7

    @pytest.mark.case("kafka-56")
    def test_case_56_append_from_an_expiry_callback(self, make: Callable[..., Setup]) -> None:
        setup = make(idempotent=False)
        setup.accumulator.mute([TP[0]])
        setup.send(count=10)
        result = setup.queues[0].batches[0].result
        seen: list[ErrorCode] = []

        def again(handle: RecordHandle) -> None:
            error = handle.exception(0)
            assert error is not None
            seen.append(error.code)
            setup.send()

        for index in range(10):
            RecordHandle(result, index).add_done_callback(again)
        setup.run(after_ms=10_000)
        assert seen == [ErrorCode.REQUEST_TIMED_OUT] * 10
        (batch,) = setup.queues[0].batches
        assert batch.row_count == 10

    def test_copies_that_never_came_are_tried_again_with_a_new_object(self, make: Callable[..., Setup]) -> None:
        setup = make(idempotent=False)
        setup.answers_puts = False
        handle = setup.send_and_run()
        setup.transport.answer(0, ReplogError(ErrorCode.REPLOG_STORE_REFUSED, "full."))
        setup.run()
        assert not handle.done()
        setup.answers_puts = True
        setup.run(after_ms=20)
        assert len({put["key"] for put in setup.transport.sent}) == 2
        setup.answer(setup.open[0], offset=3)
        assert handle.result(0).offset == 3
        setup.check_clean()

    @pytest.mark.parametrize("is_read_refused", [False, True])
    def test_where_too_many_roots_go_on_refusing_records_fail_and_say_so(
        self, make: Callable[..., Setup], is_read_refused: bool
    ) -> None:
        refused = (RetriableError if is_read_refused else ReplogError)(ErrorCode.REPLOG_STORE_REFUSED, "no permission.")
        setup = make()
        setup.answers_puts = False
        handle = setup.send_and_run()
        setup.refuse_puts(refused)
        assert not handle.done()
        setup.refuse_puts(refused, until_ms=REFUSED_MS)
        error = handle.exception(0)
        assert error is not None and error.code is ErrorCode.REPLOG_STORE_REFUSED
        assert "no permission" in str(error) and "Nothing was committed" in str(error)
        assert setup.clock.time_ms < CONFIG.delivery_timeout_ms
        following = setup.send_and_run()
        setup.refuse_puts(refused)
        assert following.exception(0).code is ErrorCode.REPLOG_STORE_REFUSED
        setup.answers_puts = True
        allowed = setup.send_and_run()
        setup.answer(setup.open[0], offset=0)
        assert allowed.result(0).offset == 0
        setup.check_clean()

    def test_a_full_disk_may_have_room_again(self, make: Callable[..., Setup]) -> None:
        refused = ReplogError(ErrorCode.REPLOG_STORE_REFUSED, "full.")
        refused.__cause__ = OSError(errno.ENOSPC, "no space left")
        setup = make()
        setup.answers_puts = False
        handle = setup.send_and_run()
        setup.refuse_puts(refused, until_ms=REFUSED_MS + 100)
        assert not handle.done()
        setup.answers_puts = True
        setup.run(after_ms=20)
        setup.answer(setup.open[0], offset=3)
        assert handle.result(0).offset == 3

    def test_several_batches_of_a_partition_in_one_object(self, make: Callable[..., Setup]) -> None:
        setup = make(idempotent=False)
        setup.accumulator.config = replace(setup.accumulator.config, max_request_size_bytes=1 << 20)
        first = setup.send(value=b"a" * 900)
        second = setup.send(value=b"b" * 900)
        other = setup.send(1)
        setup.run()
        shared_request, others = setup.open
        assert len(shared_request.batches) == 2
        setup.answer(shared_request, DISCONNECT)
        setup.run(after_ms=20)
        again = next(request for request in setup.open if request is not others)
        assert [batch.row_count for batch in again.batches] == [1, 1]
        body = next(put["body"] for put in setup.transport.sent if put["key"] == again.key)
        assert 0 < body.index(b"a" * 900) < body.index(b"b" * 900)
        setup.answer(again, offset=70)
        setup.answer(others, offset=5)
        assert [handle.result(0).offset for handle in (first, second, other)] == [70, 71, 5]
        setup.check_clean()

    @pytest.mark.parametrize("answers", [True, False])
    @pytest.mark.parametrize("is_copied", [True, False])
    def test_a_buffer_that_a_hanging_put_may_still_read_is_not_written_again(
        self, make: Callable[..., Setup], monkeypatch: pytest.MonkeyPatch, answers: bool, is_copied: bool
    ) -> None:
        if not is_copied:
            monkeypatch.setattr(data_request, "SMALL_SIZE_BYTES_MAX", 0)
        setup = make(idempotent=False)
        setup.accumulator.assign(setup.queues[0], replace(NODES[0], brokers=(0, 1)))
        setup.answers_puts = False
        setup.send(value=b"v" * 900)
        setup.run()
        setup.transport.answer(0)
        if answers:
            setup.transport.answer(1)
        setup.run(after_ms=CONFIG.replica_grace_ms)
        setup.run(after_ms=CONFIG.replica_grace_ms)
        setup.answer(setup.open[0], offset=0)
        setup.check_clean()
        kept_bytes = setup.pool.available_bytes - setup.pool.unallocated_bytes
        assert kept_bytes == (1000 if answers or is_copied else 0)
