"""What one micro-batch takes: Kafka's rules by the connector's own examples, and the limit of bytes."""

from __future__ import annotations

import pytest

from spark_replog.ids import TopicPartition
from spark_replog.spark.source.sizing import BatchDelay, TriggerLimits, limit_amount, limit_rows

pytestmark = pytest.mark.case("connector-maxoffsetspertrigger", "connector-minoffsetspertrigger")


def limited(starts, ends, limit):
    keys = [TopicPartition("t", number) for number in range(len(starts))]
    result = limit_rows(dict(zip(keys, starts, strict=True)), dict(zip(keys, ends, strict=True)), limit)
    return tuple(result[key] for key in keys)


def test_limit_is_shared_in_proportion():
    at, seen = (0, 0, 0), []
    for _ in range(12):
        at = limited(at, (101, 11, 1), 10)
        seen.append(at)
    assert seen[:3] == [(8, 1, 1), (17, 2, 1), (26, 3, 1)]
    assert seen[-2:] == [(98, 11, 1), (101, 11, 1)]


def test_limit_trace_of_21_11_1():
    assert limited((0, 0, 0), (21, 11, 1), 20) == (12, 6, 1)
    assert limited((12, 6, 1), (29, 21, 2), 20) == (22, 15, 2)


def test_shares_of_one_and_more_are_rounded_down():
    assert limited((0, 0), (15, 5), 6) == (4, 1)


def test_the_largest_limit_takes_everything():
    assert limited((5, 0), (10, 2**62), 2**63 - 1) == (10, 2**62)


def test_every_partition_with_data_advances():
    assert limited((0,) * 20, (1,) * 20, 5) == (1,) * 20


def test_nothing_waits():
    assert limited((4, 5), (4, 5), 1) == (4, 5)


def test_two_partitions_with_a_limit_of_one_both_advance():
    assert limited((0, 0), (5, 5), 1) == (1, 1)
    assert limited((1, 1), (5, 5), 1) == (2, 2)


A, B = TopicPartition("t", 0), TopicPartition("t", 1)


def delay(rows_min=15, delay_max_ms=1000):
    return BatchDelay(rows_min, delay_max_ms)


def test_the_first_batch_after_a_start_always_runs():
    assert delay().is_due({A: 0}, {A: 1}, 0)
    assert delay().is_due({A: 0}, {A: 0}, 0)


def test_later_batches_wait_for_the_minimum():
    waiting = delay()
    assert waiting.is_due({A: 0}, {A: 1}, 0)
    assert not waiting.is_due({A: 1, B: 0}, {A: 10, B: 5}, 10)
    assert waiting.is_due({A: 1, B: 0}, {A: 10, B: 6}, 20)
    assert not waiting.is_due({A: 10, B: 6}, {A: 11, B: 6}, 30)


def test_rows_wait_no_longer_than_the_delay():
    waiting = delay()
    assert waiting.is_due({A: 0}, {A: 1}, 0)
    assert not waiting.is_due({A: 1}, {A: 2}, 100)
    assert not waiting.is_due({A: 1}, {A: 3}, 1099)
    assert waiting.is_due({A: 1}, {A: 3}, 1100)
    assert not waiting.is_due({A: 3}, {A: 4}, 1101)


def test_time_without_rows_does_not_count():
    """Kafka's clock runs on while nothing is there, so that what comes then may wait twice the delay or not at all."""
    waiting = delay()
    assert waiting.is_due({A: 0}, {A: 1}, 0)
    assert not waiting.is_due({A: 1}, {A: 1}, 5000)
    assert not waiting.is_due({A: 1}, {A: 2}, 9000)
    assert waiting.is_due({A: 1}, {A: 2}, 10_000)


def even(size_per_row):
    def end_within(key, start, end, size_bytes):
        if (end - start) * size_per_row[key] <= size_bytes:
            return end, (end - start) * size_per_row[key]
        return start + size_bytes // size_per_row[key], size_bytes

    return end_within


def test_bytes_are_shared_by_the_bytes_that_wait():
    sizes = even({A: 10, B: 30})
    assert limit_amount({A: 0, B: 0}, {A: 100, B: 100}, 400, sizes) == {A: 20, B: 6}
    assert limit_amount({A: 0, B: 0}, {A: 3, B: 100}, 400, sizes) == {A: 2, B: 12}
    assert limit_amount({A: 0, B: 0}, {A: 30, B: 10}, 400, sizes) == {A: 20, B: 6}, "each alone would fit"


def test_everything_is_taken_when_it_fits():
    assert limit_amount({A: 5, B: 0}, {A: 10, B: 10}, 350, even({A: 10, B: 30})) == {A: 10, B: 10}
    assert limit_amount({A: 10}, {A: 10}, 1, even({A: 10})) == {A: 10}


def test_whole_partitions_do_not_let_the_others_past_the_limit():
    size_per_row = {A: 10, B: 60}

    def whole_rows(key, start, end, size_bytes):
        count = min(end - start, size_bytes // size_per_row[key])
        return start + count, size_per_row[key] * count

    assert limit_amount({A: 0, B: 0}, {A: 1, B: 100}, 100, whole_rows) == {A: 1, B: 1}


def test_a_row_larger_than_the_limit_is_still_taken():
    assert limit_amount({A: 0, B: 7}, {A: 9, B: 7}, 5, even({A: 1000, B: 1})) == {A: 1, B: 7}
    assert limit_amount({A: 0, B: 0}, {A: 9, B: 9}, 1, even({A: 1, B: 1})) == {A: 1, B: 1}


@pytest.mark.parametrize(
    ("limits", "is_set"),
    [
        (TriggerLimits(), False),
        (TriggerLimits(delay_max_ms=3), False),
        (TriggerLimits(rows_min=3), True),
        (TriggerLimits(rows_max=3), True),
        (TriggerLimits(size_max_bytes=3), True),
    ],
)
def test_no_limit_applies_unless_its_option_is_set(limits, is_set):
    assert limits.is_set is is_set
