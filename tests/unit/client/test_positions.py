"""Where a consumer begins, goes on and is sent to."""

from __future__ import annotations

import pytest

from spark_replog import OffsetAndMetadata, TopicPartition
from spark_replog.admin.controller import Controller
from spark_replog.client.store import Topic
from spark_replog.errors import ErrorCode, ReplogError
from tests.unit.client.consumer_setup import P0, P1, assigned, consumer, rows, values


def test_seek_moves_the_position_and_drops_what_was_buffered(filled):
    reader = assigned(filled, P0, max_poll_records=2)
    reader.poll()
    reader.seek(P0, 7)
    assert values(reader.poll()) == rows(2, 7)
    reader.seek(P0, 1)
    assert values(reader.poll()) == rows(2, 1)
    reader.seek_to_beginning()
    assert reader.position(P0) == 0
    reader.seek_to_end([P0])
    assert values(reader.poll()) == []
    assert reader.position(P0) == 10


@pytest.mark.parametrize(("time_ms", "offset"), [(0, 0), (1, 1), (3000, 3), (4001, 5), (9000, 9), (9001, None)])
def test_offsets_for_times_are_the_first_at_or_after(filled, time_ms, offset):
    assert assigned(filled, P0).offsets_for_times({P0: time_ms}) == {P0: offset}


def test_seek_to_time_reads_from_there_and_from_the_end_where_none_is_late_enough(filled):
    reader = assigned(filled)
    reader.seek_to_time(7000)
    assert reader.position(P0) == 7
    assert reader.position(P1) == 10


def test_a_time_before_1970_is_refused(filled):
    reader = assigned(filled)
    for ask in (lambda: reader.offsets_for_times({P0: 0, P1: -1}), lambda: reader.seek_to_time(-1)):
        with pytest.raises(ReplogError) as refused:
            ask()
        assert refused.value.code is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    ("ask", "answer"),
    [
        (lambda reader, _: reader.partitions_for("orders"), [P0, P1, TopicPartition("orders", 2)]),
        (lambda reader, _: reader.end_offsets([P0]), {P0: 3}),
        (lambda reader, _: reader.beginning_offsets([P1]), {P1: 0}),
        (lambda reader, _: reader.offsets_for_times({P0: 0}), {P0: 0}),
        (lambda _, store: Topic(store.cluster, "orders").scan().to_arrow()["value"].to_pylist(), rows(3)),
    ],
    ids=["partitions_for", "end_offsets", "beginning_offsets", "offsets_for_times", "scan"],
)
def test_a_topic_that_another_process_made_again_is_found_by_its_name(filled, ask, answer):
    reader, other = assigned(filled), filled.another_process()
    reader.partitions_for("orders")
    Controller(other.cluster).delete_topic("orders")
    other.create("orders", 3)
    other.write("orders", rows(3))
    assert ask(reader, filled) == answer


def test_a_committed_offset_can_be_sought(filled):
    reader = assigned(filled, P0, group="g")
    reader.commit({P0: 4})
    reader.seek(P0, reader.committed([P0])[P0])
    assert values(reader.poll(max_records=1)) == rows(1, 4)
    with pytest.raises(ReplogError, match="-1"):
        reader.seek(P0, OffsetAndMetadata(-1))


def test_the_current_lag_is_what_is_left_before_the_end_as_last_seen(filled):
    filled.count_calls()
    reader = assigned(filled, P0)
    assert reader.current_lag(P0) is None
    reader.poll(max_records=4)
    filled.another_process().write("orders", rows(2, 10))
    filled.forget_calls()
    assert reader.current_lag(P0) == 6
    assert filled.calls() == {}
    reader.poll(max_records=100)
    reader.poll()
    assert reader.current_lag(P0) == 0
    reader.seek(P0, 99)
    assert reader.current_lag(P0) == 0
    with pytest.raises(ReplogError, match="INVALID_REQUEST"):
        reader.current_lag(P1)


def test_beginning_and_end_offsets(filled):
    reader = consumer(filled)
    assert reader.beginning_offsets([P0, P1]) == {P0: 0, P1: 0}
    assert reader.end_offsets([P0]) == {P0: 10}


@pytest.mark.case("consumer-auto-offset-reset-latest-earliest")
def test_where_to_begin_without_an_offset(filled):
    assert assigned(filled, P0, auto_offset_reset="latest").position(P0) == 10
    assert assigned(filled, P0, auto_offset_reset="earliest").position(P0) == 0
    reader = assigned(filled, P0, auto_offset_reset="none", group="g")
    for _ in range(2):  # the second poll does not begin at the end instead
        with pytest.raises(ReplogError) as refused:
            reader.poll()
        assert refused.value.code is ErrorCode.REPLOG_NO_OFFSET_FOR_PARTITION
    reader.seek(P0, 4)
    assert values(reader.poll(max_records=1)) == rows(1, 4)
    with pytest.raises(ReplogError, match="REPLOG_NO_OFFSET_FOR_PARTITION"):
        assigned(filled, P0, auto_offset_reset="none").poll()


@pytest.mark.parametrize(
    ("duration", "offset"), [("PT0S", 4), ("PT5S", 4), ("PT600.5S", 3), ("PT1H", 2), ("PT24H", 1), ("P9999999D", 0)]
)
def test_by_duration_begins_at_the_first_record_of_that_time_and_at_the_end_where_there_is_none(
    store, duration, offset
):
    now_ms = store.clock.now_ms()
    ages_ms = [100 * 86_400_000, 5 * 3_600_000, 1_800_000, 90_000]
    store.create("orders")
    store.write("orders", rows(4), times_ms=[now_ms - age_ms for age_ms in ages_ms])
    reader = assigned(store, P0, auto_offset_reset=f"by_duration:{duration}")
    assert reader.position(P0) == offset
    reader.seek(P0, 99)
    reader.poll(max_records=0)
    assert reader.position(P0) == offset


def test_a_known_position_is_told_though_another_partition_has_none(filled):
    reader = assigned(filled, auto_offset_reset="none")
    reader.seek(P0, 3)
    assert reader.position(P0) == 3
    with pytest.raises(ReplogError) as refused:
        reader.position(P1)
    assert refused.value.code is ErrorCode.REPLOG_NO_OFFSET_FOR_PARTITION


@pytest.mark.case("consumer-auto-offset-reset-latest-earliest")
@pytest.mark.parametrize(("policy", "position"), [("earliest", 0), ("latest", 10)])
def test_a_position_out_of_range_is_reset_with_a_warning(filled, policy, position, caplog):
    reader = assigned(filled, P0, auto_offset_reset=policy)
    reader.seek(P0, 11)
    reader.poll(max_records=0)
    assert reader.position(P0) == position
    assert "OFFSET_OUT_OF_RANGE" in caplog.text


@pytest.mark.case("kafka-62", "consumer-auto-offset-reset-latest-earliest")
def test_a_position_out_of_range_is_an_error_where_the_policy_is_none(filled):
    reader = assigned(filled, P0, auto_offset_reset="none")
    reader.seek(P0, 11)
    with pytest.raises(ReplogError) as refused:
        reader.poll()
    assert refused.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    assert "orders-0 at 11, which has 0 to 10" in str(refused.value)
