"""What a poll gives, how much at once, and what it costs; reading as Arrow."""

from __future__ import annotations

import os
import threading
from collections import Counter
from contextlib import suppress

import pyarrow as pa
import pytest

from spark_replog import Producer
from spark_replog.client.record_fetcher import ConsumerMetrics, FetchPartition, RecordFetcher
from spark_replog.client.store import open_store
from spark_replog.clock import SYSTEM_CLOCK
from spark_replog.cluster.init_store import init_cluster
from spark_replog.config.consumer import ConsumerConfig
from spark_replog.errors import ErrorCode, InvalidConfigError
from spark_replog.ids import new_id
from spark_replog.ledger.ledger import Ledger
from spark_replog.log.fold.object_table import ObjectTable
from spark_replog.log.fold.partition_state import PartitionState
from spark_replog.storage.folder_watch import FolderWatch
from tests.unit.client.consumer_setup import P0, P1, ManualClock, Store, assigned, consumer, rows, values


def test_a_subscription_without_a_group_reads_all_partitions_in_offset_order(filled):
    with consumer(filled, "orders") as reader:
        records = reader.poll(max_records=100)
    assert reader.assignment() == {P0, P1}
    assert values(records.records(P0)) == rows(10)
    assert values(records.records(P1)) == rows(10, 100)
    assert [record.offset for record in records.records(P0)] == list(range(10))
    assert records.partitions() == [P0, P1]


def test_a_poll_that_would_end_before_it_began_is_refused(filled):
    with consumer(filled, "orders") as reader:
        with pytest.raises(InvalidConfigError, match="timeout_ms -1") as refused:
            reader.poll(timeout_ms=-1)
        assert refused.value.code is ErrorCode.INVALID_REQUEST
        assert len(reader.poll(max_records=100)) == 20


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


class StoppedClock(ManualClock):
    """Only what a test adds passes."""

    START_MS = SYSTEM_CLOCK.now_ms()

    def now_ms(self):
        return self.START_MS + self.added_ms

    def monotonic_ms(self):
        return self.added_ms


def test_an_idle_poll_costs_one_get_a_root_and_a_waiting_one_a_get_per_look():
    store3 = Store.init(f"memory://{new_id()}", 3, StoppedClock())
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
    assert 20 <= looks <= 50  # the pauses grow from 1 ms
    assert store3.calls() == {"get": 3 * looks}


def test_a_long_idle_poll_looks_once_per_interval_and_no_more(store3):
    """The waits of fetch.max.wait.ms follow each other without a look between them; ACLs are looked at too."""
    store3.create("orders", 2)
    store3.count_calls()
    reader = assigned(store3, fetch_refresh_interval_ms=250, fetch_max_wait_ms=500)
    reader.poll()
    store3.forget_calls()
    reader.poll(timeout_ms=2_500)  # until the pauses are the longest
    store3.forget_calls()
    reader.poll(timeout_ms=10_000)
    looks = 10_000 // 250 + 10
    assert looks * 3 // 4 < store3.calls()["get"] <= looks + 6 * (looks // 16 + 2)  # one get each; one in 16 reads all


def test_buffered_rows_cost_no_storage_call(store3):
    store3.create("orders")
    store3.write("orders", rows(100))
    store3.count_calls()
    reader = assigned(store3, P0, max_poll_records=10)
    reader.poll()
    store3.forget_calls()
    assert len(reader.poll()) == 10
    assert store3.calls() == {}


def test_a_wait_for_more_bytes_ends_after_fetch_max_wait(filled):
    reader = assigned(filled, P0, fetch_min_bytes=1_000_000)
    began, began_ms = filled.clock.added_ms, filled.clock.monotonic_ms()
    assert len(reader.poll(timeout_ms=60_000)) == 10
    assert filled.clock.monotonic_ms() - began_ms >= 500
    assert filled.clock.added_ms - began <= 1_000


@pytest.mark.case("consumer-partitions-take-turns")
def test_partitions_take_turns_when_the_fetch_is_limited(filled):
    reader = assigned(filled, fetch_max_bytes=1)
    seen = [records.partitions()[0] for records in (reader.poll() for _ in range(4))]
    assert seen == [P0, P1, P0, P1]


@pytest.mark.case("consumer-5-6-byte-budget-shared-order-at")
def test_fetch_max_bytes_gives_the_first_partition_a_section_and_others_what_fits(filled):
    size = _plan(filled, P0, P1)[0].size_bytes
    one = assigned(filled, fetch_max_bytes=size)
    assert len(one.poll(max_records=100)) == 5
    three = assigned(filled, fetch_max_bytes=3 * size + 10)
    assert len(three.poll(max_records=100)) in (10, 15)


@pytest.mark.parametrize(("fetch_max_bytes", "walked", "planned"), [(1, 1, 1), (50 << 20, 2, 4)])
def test_a_plan_asks_a_ledger_once_and_walks_each_partition_once(filled, monkeypatch, fetch_max_bytes, walked, planned):
    calls = Counter()

    def counted(kind, name):
        before = getattr(kind, name)

        def call(*arguments):
            calls[name] += 1
            return before(*arguments)

        monkeypatch.setattr(kind, name, call)

    counted(Ledger, "ask")
    counted(ObjectTable, "refs")
    counted(PartitionState, "sections_between")
    assert len(_plan(filled, P0, P1, fetch_max_bytes=fetch_max_bytes)) == planned
    assert calls == {"ask": 1, "refs": 1, "sections_between": walked}


def _plan(store, *keys, **settings):
    handle = store.cluster.lookup("orders")
    ledger = store.cluster.topic_ledger(handle.ledger_id)
    asked = {key: FetchPartition(ledger, handle.topic_id, key.partition, 0, 1 << 20) for key in keys}
    slices, errors = RecordFetcher(store.cluster, ConsumerConfig(**settings), ConsumerMetrics()).plan(asked)
    assert not errors
    return slices


def test_max_partition_fetch_bytes_limits_one_partition(filled):
    reader = assigned(filled, P0, max_partition_fetch_bytes=1)
    assert [len(reader.poll()) for _ in range(3)] == [5, 5, 0]


def test_paused_partitions_give_nothing_and_lose_nothing(filled):
    reader = assigned(filled, max_poll_records=100)
    reader.poll(max_records=2)
    reader.pause([P0])
    assert reader.paused() == {P0}
    assert {record.partition for record in [*reader.poll(), *reader.poll()]} == {1}
    reader.resume([P0])
    assert values(reader.poll()) == rows(8, 2)


def test_to_arrow_keeps_little_more_in_memory_than_the_rows(store):
    store.create("wide", 300)
    with Producer(store.path) as producer:
        for number in range(300):
            producer.send("wide", b"v" * 100, partition=number)
    table = consumer(store.another_process(), "wide").to_arrow()
    assert table.num_rows == 300
    assert table.get_total_buffer_size() <= 3 * table.nbytes


@pytest.mark.parametrize("how", ["poll", "to_arrow"])
def test_a_cold_read_of_many_partitions_gets_each_object_once(store, how):
    store.create("wide", 40)
    with Producer(store.path, inline_max_bytes=0) as producer:
        for turn in range(3):
            for number in range(40):
                producer.send("wide", b"%d" % turn, partition=number)
            producer.flush()
    process = store.another_process()
    counted = process.count_calls()
    reader = consumer(process, "wide")
    if how == "poll":
        records = [(record.partition, record.offset, record.value) for record in reader.poll(20_000, max_records=200)]
    else:
        table = reader.to_arrow()
        records = list(zip(*(table[name].to_pylist() for name in ("partition", "offset", "value")), strict=True))
    assert sorted(records) == [(number, turn, b"%d" % turn) for number in range(40) for turn in range(3)]
    assert [record[1] for record in records if record[0] == 7] == [0, 1, 2]
    gets = [key for root in counted.values() for verb, key in root.calls if verb == "get" and "/data/" in key]
    assert 3 <= len(gets) == len(set(gets)) < 40


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


def test_a_loop_that_ends_early_counts_only_the_records_that_it_got(filled):
    with consumer(filled, "orders", group="g") as reader:
        for record in reader:
            if (record.partition, record.offset) == (0, 2):
                break
        assert {key: at and at.offset for key, at in reader.committed([P0, P1]).items()} == {P0: None, P1: None}
        reader.commit()
        assert reader.committed([P0])[P0].offset == 3
        stream = iter(reader)
        assert [(next(stream).partition, reader.position(P0)) for _ in range(2)] == [(0, 4), (0, 5)]
    with consumer(filled, group="g") as reader:
        committed = reader.committed([P0, P1])
        assert (committed[P0].offset, committed[P1].offset) == (5, 0), "the last auto commit"


def test_a_loop_goes_on_with_what_a_seek_a_pause_or_a_poll_left(filled):
    reader = assigned(filled, P0, P1, max_poll_records=20)
    stream = iter(reader)
    assert [(record.partition, record.offset) for record in (next(stream), next(stream))] == [(0, 0), (0, 1)]
    reader.seek(P0, 9)
    assert [(record.partition, record.offset) for record in (next(stream), next(stream))] == [(1, 0), (1, 1)]
    reader.pause([P1])
    assert (next(stream).offset, reader.position(P0), reader.position(P1)) == (9, 10, 2)
    reader.resume([P1])
    assert [record.offset for record in reader.poll()] == list(range(2, 10))
    filled.write("orders", rows(1, 10))
    assert (lambda record: (record.partition, record.offset))(next(stream)) == (0, 10)


@pytest.mark.case("consumer-read-committed-ends-at-lso")
def test_both_isolation_levels_read_the_same(filled):
    for level in ("read_committed", "read_uncommitted"):
        assert len(assigned(filled, P0, isolation_level=level).poll()) == 10


def watch_count():
    links = []
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # closed meanwhile
            links.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return sum("inotify" in link for link in links)


def test_a_poll_for_no_records_finds_the_positions_and_does_not_fill_its_memory(filled):
    with assigned(filled) as reader:
        for _ in range(3):
            assert list(reader.poll(1_000, max_records=0)) == []
        assert (reader.metrics().fetches, reader.metrics().bytes_consumed) == (0, 0)
        assert {key: reader.position(key) for key in (P0, P1)} == {P0: 0, P1: 0}
        assert len(reader.poll(max_records=100)) == 20
        with pytest.raises(InvalidConfigError, match=r"INVALID_REQUEST.*max_records"):
            reader.poll(max_records=-1)


@pytest.mark.parametrize("offset", [3, 10])
def test_as_arrow_a_position_that_was_sought_between_two_batches_stays(filled, offset):
    with assigned(filled) as reader:
        batches = reader.to_batches()
        assert next(batches).column("value").to_pylist() == rows(10)
        reader.seek(P0, offset)
        assert [batch.num_rows for batch in batches] == [10]
        assert (reader.position(P0), reader.position(P1)) == (offset, 10)


def test_a_waiting_poll_of_local_journals_is_woken_by_the_entry_and_looks_no_more_than_that(tmp_path):
    """The longest pause is a minute: without the watch the poll would look all the time at first, or come that late."""
    try:
        FolderWatch([[str(tmp_path)]])
    except OSError as error:
        pytest.skip(f"no inotify here: {error}")
    init_cluster(str(tmp_path / "s"), 3, {}, fsync=False)
    store = open_store(str(tmp_path / "s"))
    store.admin().create_topic("orders", partitions=1, replicas=3, config={})
    waits = {"fetch_refresh_interval_ms": 60_000, "fetch_max_wait_ms": 60_000, "auto_offset_reset": "earliest"}
    with store.consumer("orders", **waits) as reader, store.producer() as writer:
        reader.poll()  # watches from now on
        writer.send("orders", b"0").result(60)
        assert [record.value for record in reader.poll(60_000)] == [b"0"]
        looks = reader.metrics().refreshes
        for number in range(1, 6):
            sent = threading.Timer(0.05, writer.send, ("orders", b"%d" % number))
            sent.start()
            assert [record.value for record in reader.poll(60_000)] == [b"%d" % number]
            sent.join()
        watches = watch_count()
        assert watches
        assert reader.metrics().refreshes - looks <= 40  # looks all the time would be some 150
    assert watch_count() < watches, "close gives it back"
