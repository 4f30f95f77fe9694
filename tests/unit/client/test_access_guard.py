"""Who may call a consumer: one thread, of the process that made it, until it is closed; and what ends a poll."""

from __future__ import annotations

import threading

import pytest

from spark_replog import Consumer
from spark_replog.errors import ErrorCode, ReplogError
from tests.unit.client.consumer_setup import P0, assigned, consumer, rows, values

CALLS = {
    "subscribe": lambda c: c.subscribe(["orders"]),
    "assign": lambda c: c.assign([P0]),
    "unsubscribe": lambda c: c.unsubscribe(),
    "poll": lambda c: c.poll(),
    "to_batches": lambda c: next(c.to_batches(), None),
    "iterate": lambda c: next(iter(c)),
    "position": lambda c: c.position(P0),
    "seek": lambda c: c.seek(P0, 0),
    "seek_to_beginning": lambda c: c.seek_to_beginning(),
    "seek_to_end": lambda c: c.seek_to_end(),
    "seek_to_time": lambda c: c.seek_to_time(0),
    "offsets_for_times": lambda c: c.offsets_for_times({P0: 0}),
    "beginning_offsets": lambda c: c.beginning_offsets([P0]),
    "end_offsets": lambda c: c.end_offsets([P0]),
    "current_lag": lambda c: c.current_lag(P0),
    "partitions_for": lambda c: c.partitions_for("orders"),
    "list_topics": lambda c: c.list_topics(),
    "enforce_rebalance": lambda c: c.enforce_rebalance(),
    "pause": lambda c: c.pause([P0]),
    "resume": lambda c: c.resume([P0]),
    "commit": lambda c: c.commit(),
    "committed": lambda c: c.committed([P0]),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_closed_consumer_refuses_every_call(filled, name):
    reader = assigned(filled, P0, group="g")
    reader.close()
    reader.close()
    with pytest.raises(ReplogError) as refused:
        CALLS[name](reader)
    assert refused.value.code is ErrorCode.INVALID_REQUEST
    assert "closed" in str(refused.value)


@pytest.mark.parametrize("name", [*CALLS, "close"])
def test_a_second_thread_is_refused_while_a_call_goes_on(filled, name):
    reader = assigned(filled, P0, group="g")
    refused = []

    def from_elsewhere():
        try:
            Consumer.close(reader) if name == "close" else CALLS[name](reader)
        except ReplogError as error:
            refused.append(error.code)

    def meanwhile():
        thread = threading.Thread(target=from_elsewhere)
        thread.start()
        thread.join()

    reader.seek_to_end()
    filled.clock.on_sleep = [meanwhile]
    reader.poll(timeout_ms=30_000)
    assert refused == [ErrorCode.REPLOG_CONCURRENT_ACCESS]
    reader.seek_to_beginning()
    assert len(reader.poll()) == 10  # the first thread goes on


def test_a_listener_may_call_the_consumer_that_calls_it(filled):
    seen = []
    reader = consumer(filled)
    reader.subscribe(["orders"], on_assigned=lambda keys: seen.extend(reader.end_offsets(keys).values()))
    reader.poll()
    assert seen == [10, 10]


def test_wakeup_ends_a_poll_that_waits_and_loses_nothing(filled):
    reader = assigned(filled, P0)
    reader.poll(max_records=4)
    began = filled.clock.added_ms
    reader.pause([P0])
    filled.clock.on_sleep = [reader.wakeup]
    with pytest.raises(ReplogError) as ended:
        reader.poll(timeout_ms=60_000)
    assert ended.value.code is ErrorCode.REPLOG_WAKEUP
    assert filled.clock.added_ms - began < 1_000
    reader.resume([P0])
    assert values(reader.poll()) == rows(6, 4)


def test_wakeup_ends_a_fetch_that_waits_for_bytes(filled):
    reader = assigned(filled, P0)
    reader.poll()
    filled.clock.on_sleep = [reader.wakeup]
    with pytest.raises(ReplogError) as ended:
        reader.poll(timeout_ms=30_000)
    assert ended.value.code is ErrorCode.REPLOG_WAKEUP
    assert len(reader.poll()) == 0


def test_wakeup_ends_a_poll_that_waits_for_its_group(filled):
    first, second = (consumer(filled, "orders", group="g", enable_auto_commit=False) for _ in range(2))
    first.poll(timeout_ms=5_000)
    filled.clock.on_sleep = [lambda: None, second.wakeup]
    with pytest.raises(ReplogError) as ended:
        second.poll(timeout_ms=60_000)  # the first one does not poll, so the group waits
    assert ended.value.code is ErrorCode.REPLOG_WAKEUP
    first.close()
    second.close()


def test_a_wakeup_before_a_poll_ends_that_poll_and_no_other(filled):
    reader = assigned(filled, P0)
    reader.wakeup()
    reader.wakeup()
    with pytest.raises(ReplogError):
        reader.poll()
    assert len(reader.poll()) == 10
