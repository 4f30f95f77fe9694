"""The plain Python consumer without membership: positions, polls, limits, commits, and what they cost."""

from __future__ import annotations

import subprocess
import sys

import pyarrow as pa
import pytest

import spark_replog
from spark_replog import Consumer, OffsetAndMetadata, TopicPartition
from spark_replog.coordinator.controller import Controller
from spark_replog.errors import (
    CorruptDataError,
    ErrorCode,
    InvalidConfigError,
    NotFoundError,
    ReplogError,
)
from tests.unit.consumer.support import rows

P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)


@pytest.fixture
def filled(store):
    """Two partitions of ten rows each, in two sections."""
    store.create("orders", 2)
    for first in (0, 5):
        store.write("orders", rows(5, first), partition=0, times_ms=[1000 * (first + n) for n in range(5)])
        store.write("orders", rows(5, 100 + first), partition=1, times_ms=[1000] * 5)
    return store


def consumer(store, *topics, **settings):
    settings.setdefault("auto_offset_reset", "earliest")
    return Consumer(store.cluster, *topics, **settings)


def assigned(store, *keys, **settings):
    made = consumer(store, **settings)
    made.assign(keys or (P0, P1))
    return made


def values(records):
    return [record.value for record in records]


def test_a_subscription_without_a_group_reads_all_partitions_in_offset_order(filled):
    with consumer(filled, "orders") as reader:
        found = reader.poll(max_records=100)
    assert reader.assignment() == {P0, P1}
    assert values(found.records(P0)) == rows(10)
    assert values(found.records(P1)) == rows(10, 100)
    assert [record.offset for record in found.records(P0)] == list(range(10))
    assert found.partitions() == [P0, P1]


def test_records_carry_key_headers_and_times(store):
    store.create("orders")
    store.write(
        "orders", [b"a", None], keys=[b"k", None], times_ms=[1234, 5678], headers=[[{"key": "h", "value": b"1"}], None]
    )
    first, second = assigned(store, P0).poll()
    assert (first.topic, first.partition, first.offset) == ("orders", 0, 0)
    assert (first.key, first.value, first.headers) == (b"k", b"a", (("h", b"1"),))
    assert (first.timestamp_ms, first.timestamp_type) == (1234, "CreateTime")
    assert (second.key, second.value, second.headers) == (None, None, ())


def test_log_append_time_is_shown_as_such(store):
    store.create("orders", message_timestamp_type="LogAppendTime")
    store.write("orders", rows(1), times_ms=[5])
    (record,) = assigned(store, P0).poll()
    assert record.timestamp_type == "LogAppendTime"
    assert record.timestamp_ms > 1_000_000


def test_a_poll_gives_at_most_max_poll_records_and_goes_on_where_it_ended(filled):
    reader = assigned(filled, P0, max_poll_records=3)
    assert [values(reader.poll()) for _ in range(5)] == [
        rows(3),
        rows(3, 3),
        rows(3, 6),
        rows(1, 9),
        [],
    ]
    assert reader.position(P0) == 10


def test_rows_written_later_are_seen_by_a_later_poll(filled):
    reader = assigned(filled, P0)
    assert len(reader.poll()) == 10
    filled.another_process().write("orders", rows(2, 10))
    assert values(reader.poll()) == rows(2, 10)


def test_a_poll_waits_for_rows_of_another_process(filled):
    reader = assigned(filled, P0)
    reader.poll()
    other = filled.another_process()
    filled.clock.on_sleep = [lambda: None, lambda: other.write("orders", rows(1, 10))]
    began = filled.clock.added_ms
    assert values(reader.poll(timeout_ms=10_000)) == rows(1, 10)
    assert filled.clock.added_ms - began < 1_000


def test_an_idle_poll_costs_one_get_a_root_and_a_waiting_one_a_get_per_look(store3):
    store3.create("orders", 2)
    store3.write("orders", rows(3))
    store3.count_calls()
    reader = assigned(store3)
    reader.poll()
    store3.forget_calls()
    reader.poll()
    assert store3.calls() == {"get": 3}
    store3.forget_calls()
    looks = reader.metrics().refreshes
    reader.poll(timeout_ms=500)
    looks = reader.metrics().refreshes - looks
    assert 3 <= looks <= 8
    assert store3.calls() == {"get": 3 * looks}


def test_buffered_rows_cost_no_storage_call(store3):
    store3.create("orders")
    store3.write("orders", rows(100))
    store3.count_calls()
    reader = assigned(store3, P0, max_poll_records=10)
    reader.poll()
    store3.forget_calls()
    assert len(reader.poll()) == 10
    assert store3.calls() == {}


def test_partitions_take_turns_when_the_fetch_is_limited(filled):
    reader = assigned(filled, fetch_max_bytes=1)
    seen = [found.partitions()[0] for found in (reader.poll() for _ in range(4))]
    assert seen == [P0, P1, P0, P1]


def test_fetch_max_bytes_gives_the_first_partition_a_section_and_others_what_fits(filled):
    size = next(iter(assigned(filled, P0)._fetcher.plan(_asked(filled, P0, P1))[0])).size_bytes
    one = assigned(filled, fetch_max_bytes=size)
    assert len(one.poll(max_records=100)) == 5
    three = assigned(filled, fetch_max_bytes=3 * size + 10)
    assert len(three.poll(max_records=100)) in (10, 15)


def _asked(store, *keys):
    reader = assigned(store, *keys)
    reader.poll(max_records=0)
    handles = {key: store.cluster.lookup(key.topic) for key in keys}
    return {key: reader._fetcher._ask(handles[key], key, 0) for key in keys}


def test_max_partition_fetch_bytes_limits_one_partition(filled):
    reader = assigned(filled, P0, max_partition_fetch_bytes=1)
    assert [len(reader.poll()) for _ in range(3)] == [5, 5, 0]


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


def test_beginning_and_end_offsets(filled):
    reader = consumer(filled)
    assert reader.beginning_offsets([P0, P1]) == {P0: 0, P1: 0}
    assert reader.end_offsets([P0]) == {P0: 10}


def test_paused_partitions_give_nothing_and_lose_nothing(filled):
    reader = assigned(filled, max_poll_records=100)
    reader.poll(max_records=2)
    reader.pause([P0])
    assert reader.paused() == {P0}
    assert {record.partition for record in [*reader.poll(), *reader.poll()]} == {1}
    reader.resume([P0])
    assert values(reader.poll()) == rows(8, 2)


def test_where_to_begin_without_an_offset(filled):
    assert assigned(filled, P0, auto_offset_reset="latest").position(P0) == 10
    assert assigned(filled, P0, auto_offset_reset="earliest").position(P0) == 0
    reader = assigned(filled, P0, auto_offset_reset="none", group="g")
    with pytest.raises(ReplogError) as refused:
        reader.poll()
    assert refused.value.code is ErrorCode.REPLOG_NO_OFFSET_FOR_PARTITION
    reader.seek(P0, 4)
    assert values(reader.poll(max_records=1)) == rows(1, 4)


@pytest.mark.parametrize(("policy", "position"), [("earliest", 0), ("latest", 10)])
def test_a_position_out_of_range_is_reset_with_a_warning(filled, policy, position, caplog):
    reader = assigned(filled, P0, auto_offset_reset=policy)
    reader.seek(P0, 11)
    reader.poll(max_records=0)
    assert reader.position(P0) == position
    assert "OFFSET_OUT_OF_RANGE" in caplog.text


def test_a_position_out_of_range_is_an_error_where_the_policy_is_none(filled):
    reader = assigned(filled, P0, auto_offset_reset="none")
    reader.seek(P0, 11)
    with pytest.raises(ReplogError) as refused:
        reader.poll()
    assert refused.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    assert "orders-0 at 11, which has 0 to 10" in str(refused.value)


def test_commits_are_where_the_next_consumer_begins(filled):
    with assigned(filled, P0, group="g", enable_auto_commit=False) as reader:
        reader.poll(max_records=4)
        reader.commit()
        reader.poll(max_records=4)
    again = assigned(filled.another_process(), P0, group="g")
    assert again.committed([P0, P1]) == {P0: again.committed([P0])[P0], P1: None}
    assert values(again.poll(max_records=1)) == rows(1, 4)


def test_offsets_can_be_committed_with_a_text(filled):
    reader = assigned(filled, P0, group="g")
    reader.commit({P0: OffsetAndMetadata(3, -1, "run 7"), P1: 5})
    found = reader.committed([P0, P1])
    assert (found[P0].offset, found[P0].metadata, found[P1].offset) == (3, "run 7", 5)
    with pytest.raises(InvalidConfigError) as refused:
        reader.commit({P0: OffsetAndMetadata(3, -1, "x" * 4097)})
    assert refused.value.code is ErrorCode.OFFSET_METADATA_TOO_LARGE


@pytest.mark.parametrize("act", [lambda c: c.commit(), lambda c: c.committed([P0])])
def test_without_a_group_there_are_no_commits(filled, act):
    with pytest.raises(InvalidConfigError) as refused:
        act(assigned(filled, P0))
    assert refused.value.code is ErrorCode.INVALID_GROUP_ID


def test_auto_commit_is_paced_and_done_at_the_end(filled):
    reader = assigned(filled, P0, group="g")
    reader.poll(max_records=2)
    reader.poll(max_records=2)
    assert reader.committed([P0]) == {P0: None}
    filled.clock.advance(5_000)
    reader.poll(max_records=2)
    assert reader.committed([P0])[P0].offset == 4
    reader.close()
    reader.close()
    assert assigned(filled, P0, group="g").committed([P0])[P0].offset == 6


def test_an_idle_consumer_commits_nothing_again(filled):
    again = filled.another_process()
    again.count_calls()
    reader = assigned(again, P0, group="g")
    reader.poll()
    again.clock.advance(5_000)
    reader.poll()
    assert again.calls()["create"] > 0
    again.forget_calls()
    for _ in range(3):
        again.clock.advance(5_000)
        reader.poll()
    assert "create" not in again.calls()


def test_an_auto_commit_that_fails_is_logged_and_tried_again(filled, caplog, monkeypatch):
    reader = assigned(filled, P0, group="g")
    reader.poll(max_records=2)
    real = reader._coordinator.commit_offsets
    answers = [ReplogError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "not now.")]
    monkeypatch.setattr(
        reader._coordinator,
        "commit_offsets",
        lambda *args: (_ for _ in ()).throw(answers.pop()) if answers else real(*args),
    )
    filled.clock.advance(5_000)
    assert len(reader.poll(max_records=2)) == 2
    assert "COORDINATOR_NOT_AVAILABLE" in caplog.text
    filled.clock.advance(200)
    reader.poll(max_records=2)
    assert reader.committed([P0])[P0].offset == 4


def test_a_process_that_dies_between_poll_and_commit_gives_the_records_again(filled):
    first = assigned(filled, P0, group="g", enable_auto_commit=False)
    first.poll(max_records=3)
    first.commit()
    first.poll(max_records=3)
    del first  # no close, no commit
    again = assigned(filled.another_process(), P0, group="g")
    assert values(again.poll(max_records=3)) == rows(3, 3)


def test_to_arrow_brings_everything_up_to_now_and_moves_the_positions(filled):
    reader = consumer(filled, "orders")
    table = reader.to_arrow()
    assert table.column_names == [
        "key",
        "value",
        "topic",
        "partition",
        "offset",
        "timestamp",
        "timestampType",
        "headers",
    ]
    assert table.num_rows == 20
    assert table["offset"].to_pylist() == [*range(10), *range(10)]
    assert reader.to_arrow().num_rows == 0
    filled.write("orders", rows(1))
    assert reader.to_arrow()["value"].to_pylist() == [b"v0"]


def test_to_batches_moves_a_position_only_behind_what_was_taken(filled):
    reader = assigned(filled)
    batches = reader.to_batches()
    assert isinstance(next(batches), pa.RecordBatch)
    next(batches)
    batches.close()
    assert (reader.position(P0), reader.position(P1)) == (10, 0)


def test_iterating_goes_on_for_ever(filled):
    reader = assigned(filled, P0, max_poll_records=4)
    stream = iter(reader)
    assert values(next(stream) for _ in range(10)) == rows(10)
    other = filled.another_process()
    filled.clock.on_sleep = [lambda: other.write("orders", rows(1, 10))]
    assert next(stream).offset == 10


@pytest.mark.parametrize(
    ("deserializer", "data", "made"),
    [
        ("string", "né".encode(), "né"),
        ("json", b'{"a": 1}', {"a": 1}),
        ("long", (7).to_bytes(8, "big"), 7),
        ("bytes", b"x", b"x"),
        (int, b"12", 12),
        ("tests.unit.consumer.test_consumer.Shouting", b"a", "orders:A"),
    ],
)
def test_deserializers(store, deserializer, data, made):
    store.create("orders")
    store.write("orders", [data, None])
    reader = assigned(store, P0, value_deserializer=deserializer)
    assert values(reader.poll()) == [made, None]


class Shouting:
    """A deserializer of a user's."""

    def deserialize(self, topic, data):
        return f"{topic}:{data.decode().upper()}"


def test_a_record_that_cannot_be_deserialised_stops_there_and_can_be_passed_over(store):
    store.create("orders")
    store.write("orders", [b"1", b"2", b"x", b"4"])
    reader = assigned(store, P0, value_deserializer=int)
    assert values(reader.poll()) == [1, 2]
    with pytest.raises(CorruptDataError) as refused:
        reader.poll()
    assert (refused.value.code, refused.value.context["offset"]) == (ErrorCode.REPLOG_DESERIALIZATION, 2)
    reader.seek(P0, 3)
    assert values(reader.poll()) == [4]


class Interceptor:
    """Sees polls and commits."""

    committed: list = []  # noqa: RUF012

    def on_consume(self, records):
        return [record for record in records if record.offset % 2]

    def on_commit(self, offsets):
        self.committed.append({key: value.offset for key, value in offsets.items()})


def test_interceptors_see_polls_and_commits(filled):
    reader = assigned(filled, P0, group="g", interceptor_classes="tests.unit.consumer.test_consumer.Interceptor")
    assert [record.offset for record in reader.poll()] == [1, 3, 5, 7, 9]
    reader.commit()
    assert Interceptor.committed == [{P0: 10}]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"bootstrap.servers": "a:1"}, "There are no servers"),
        ({"sasl.mechanism": "PLAIN"}, "no connection"),
        ({"group.protocol": "consumer"}, "assignors"),
        ({"metric.reporters": "x"}, "Consumer.metrics()"),
        ({"fetch.min.bites": "1"}, "Did you mean 'fetch.min.bytes'?"),
        ({"auto.offset.reset": "soon"}, "latest, earliest, none"),
        ({"check.crcs": "false"}, "true"),
        ({"heartbeat.interval.ms": "20000"}, "a third of session.timeout.ms"),
        ({"partition.assignment.strategy": "best"}, "range, roundrobin, sticky"),
        ({"value.deserializer": "no.such.Class"}, "cannot be made"),
        ({"key.deserializer": 7}, "module.Class"),
    ],
)
def test_settings_that_mean_nothing_here_are_refused_with_the_reason(store, settings, said):
    with pytest.raises(InvalidConfigError) as refused:
        Consumer(store.cluster, config=settings)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("act", "code"),
    [
        (lambda c: c.seek(P0, -1), ErrorCode.INVALID_REQUEST),
        (lambda c: c.seek(TopicPartition("orders", 9), 1), ErrorCode.INVALID_REQUEST),
        (lambda c: c.subscribe(["orders"]), ErrorCode.REPLOG_CONFLICTING_OPTIONS),
        (lambda c: c.end_offsets([TopicPartition("orders", 9)]), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (lambda c: c.end_offsets([TopicPartition("nothing", 0)]), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_misuse_is_refused_by_code(filled, act, code):
    with pytest.raises(ReplogError) as refused:
        act(assigned(filled, P0))
    assert refused.value.code is code


def test_a_subscription_and_an_assignment_exclude_each_other_until_unsubscribed(filled):
    reader = consumer(filled, "orders")
    with pytest.raises(InvalidConfigError):
        reader.assign([P0])
    reader.unsubscribe()
    reader.assign([P0])
    assert reader.assignment() == {P0}
    with pytest.raises(InvalidConfigError):
        consumer(filled).subscribe(["orders"], pattern="o.*")
    with pytest.raises(InvalidConfigError):
        consumer(filled).subscribe(pattern="(")


def test_a_closed_consumer_says_so(filled):
    reader = assigned(filled)
    reader.close()
    with pytest.raises(ReplogError) as refused:
        reader.poll()
    assert "closed" in str(refused.value)


def test_a_pattern_finds_topics_made_later_and_never_the_internal_one(filled):
    reader = consumer(filled, group=None)
    reader.subscribe(pattern=".*")
    reader.poll()
    with assigned(filled, P0, group="g") as other:
        other.commit({P0: 1})
    filled.create("clicks")
    filled.clock.advance(300_000)
    reader.poll()
    assert {key.topic for key in reader.assignment()} == {"orders", "clicks"}


def test_a_topic_that_does_not_exist_or_is_deleted_is_an_error(filled):
    with pytest.raises(NotFoundError):
        consumer(filled, "nothing").poll()
    reader = assigned(filled, P0)
    reader.poll()
    Controller(filled.cluster).delete_topic("orders")
    with pytest.raises(NotFoundError) as refused:
        reader.poll()
    assert refused.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_settings_of_the_coordinator_hold_for_this_consumer_alone(filled):
    own = Consumer(filled.path, "orders", config={"metadata.max.age.ms": "5"})
    other = Consumer(filled.path, "orders")
    assert own._cluster.config.metadata_max_age_ms == 5
    assert other._cluster.config.metadata_max_age_ms == 300_000
    assert other._cluster is Consumer(filled.path)._cluster


def test_both_isolation_levels_read_the_same(filled):
    for level in ("read_committed", "read_uncommitted"):
        assert len(assigned(filled, P0, isolation_level=level).poll()) == 10


def test_the_package_shows_its_classes_and_imports_nothing_before_they_are_asked_for():
    done = subprocess.run(
        [sys.executable, "-c", "import spark_replog, sys; print(sorted({'pyarrow', 'numpy'} & set(sys.modules)))"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"
    assert spark_replog.Consumer is Consumer
    with pytest.raises(AttributeError):
        _ = spark_replog.nothing
