"""A fetch that waits: Kafka's four immediate answers, and what completes a parked one."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from spark_replog.admin.controller import Controller
from spark_replog.client.record_fetcher import FetchPartition, is_answered, look, wait_for_rows
from spark_replog.errors import ErrorCode
from spark_replog.log.fold.partition_state import PartitionState
from tests.unit.client.consumer_setup import rows

MAX = 1 << 20


class Reader:
    """Asks for partitions of one topic, as a consumer does."""

    def __init__(self, store, topic="orders"):
        self.store = store
        self.topic = topic
        self.refreshes = 0

    def at(self, offset, partition=0, max_bytes=MAX):
        handle = self.store.cluster.lookup(self.topic)
        ledger = self.store.cluster.topic_ledger(handle.ledger_id)
        ledger.refresh()
        return FetchPartition(ledger, handle.topic_id, partition, offset, max_bytes)

    def fetch(self, *items, max_wait_ms=500, min_bytes=1):
        began = self.store.clock.added_ms
        self.refreshes = 0

        def look():
            for item in items:
                item.ledger.refresh()
            self.refreshes += 1
            return self.store.clock.monotonic_ms() + 100

        wait_for_rows(
            items,
            max_wait_ms=max_wait_ms,
            min_bytes=min_bytes,
            clock=self.store.clock,
            look=look,
            pause=self.store.clock.sleep_ms,
        )
        return self.store.clock.added_ms - began


@pytest.fixture
def reader(store):
    store.create("orders", 2)
    store.write("orders", rows(10))
    return Reader(store)


@pytest.mark.case("consumer-wait-wanted-answered-at-once")
@pytest.mark.parametrize("max_wait_ms", [0, -1])
def test_no_wait_wanted_answers_at_once(reader, max_wait_ms):
    assert reader.fetch(reader.at(10), max_wait_ms=max_wait_ms) == 0
    assert reader.refreshes == 0


@pytest.mark.case("consumer-nothing-asked-at-once")
def test_nothing_asked_for_answers_at_once(reader):
    assert reader.fetch() == 0


@pytest.mark.case("consumer-bytes-fetch-min-bytes-at-once")
def test_enough_bytes_answer_at_once(reader):
    have = look(reader.at(0)).available_bytes
    assert reader.fetch(reader.at(0), min_bytes=have) == 0
    assert reader.fetch(reader.at(0), min_bytes=have + 1) > 0


@pytest.mark.case("consumer-any-partition-error-at-once")
@pytest.mark.parametrize(
    ("offset", "partition", "code"),
    [(11, 0, ErrorCode.OFFSET_OUT_OF_RANGE), (0, 2, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)],
)
def test_an_error_answers_at_once(reader, offset, partition, code):
    asked = reader.at(offset, partition)
    assert look(asked).error is code
    assert reader.fetch(reader.at(10), asked) == 0


class OnePartition:
    """A ledger whose fold is one partition of the test's making."""

    def __init__(self, partition):
        topic = SimpleNamespace(closed=False, partitions=[partition])
        self.state = SimpleNamespace(topics={"t": topic})

    def ask(self, question):
        return question(self.state)

    def look(self, offset, epoch=-1):
        answer = look(FetchPartition(self, "t", 0, offset, MAX, epoch))
        return answer.error, answer.diverging_offset, answer.available_bytes


def partition_of(log_start, log_end, *epochs):
    made = PartitionState((0,))
    for epoch, start_offset in epochs:
        made.leader_epochs.assign(epoch, start_offset)
    made.leader_epochs.truncate_from_start(log_start)
    made.leader_epoch = epochs[-1][0] if epochs else 0
    made.log_start_offset, made.log_end_offset, made.high_watermark = log_start, log_end, log_start
    return OnePartition(made)


@pytest.mark.case("kafka-62")
@pytest.mark.parametrize(
    ("offset", "error"), [(1025, None), (0, ErrorCode.OFFSET_OUT_OF_RANGE), (1026, ErrorCode.OFFSET_OUT_OF_RANGE)]
)
def test_reading_out_of_range(offset, error):
    """testReadOutOfRange: a log of one record at 1,024."""
    assert partition_of(1024, 1025).look(offset) == (error, None, 0)


@pytest.mark.case("kafka-114")
@pytest.mark.parametrize(
    ("log_start", "epoch", "offset", "cut"),
    [
        (0, 2, 5, 2),
        (0, 0, 4, 2),
        (0, 6, 6, None),
        (0, 5, 9, None),
        (0, 0, 2, None),
        (0, 7, 14, None),
        (0, 9, 17, None),
        (0, 10, 17, None),
        (5, 2, 8, 5),
        (5, 0, 5, None),
        (5, 3, 5, None),
    ],
)
def test_where_a_readers_rows_and_the_logs_part(log_start, epoch, offset, cut):
    """testLastFetchedOffsetValidation, for a reader (KIP-320): rows of an older epoch beyond its end were cut.

    A follower of (6, 6) and (5, 9) is told the epoch 4 as well, to search on; a reader has nothing to search in.
    """
    log = partition_of(log_start, 17, (0, 0), (3, 2), (4, 8), (7, 13), (9, 14), (10, 17))
    assert log.look(offset, epoch)[:2] == ((ErrorCode.OFFSET_OUT_OF_RANGE, cut) if cut is not None else (None, None))


@pytest.mark.case("kafka-114")
@pytest.mark.parametrize(("log_start", "epoch", "offset"), [(0, 10, 18), (5, 0, 0), (10, 5, 6), (10, 3, 6)])
def test_a_position_outside_of_the_log_is_out_of_range_whatever_its_epoch(log_start, epoch, offset):
    log = partition_of(log_start, 17, (0, 0), (3, 2), (4, 8), (7, 13), (9, 14), (10, 17))
    assert log.look(offset, epoch)[:2] == (ErrorCode.OFFSET_OUT_OF_RANGE, None)


@pytest.mark.case("consumer-time-out-answers-there-once")
def test_a_fetch_at_the_end_waits_its_time_and_looks_once_per_interval(reader):
    began_ms = reader.store.clock.monotonic_ms()
    assert reader.fetch(reader.at(10)) <= 600
    assert reader.store.clock.monotonic_ms() - began_ms >= 500
    assert 1 <= reader.refreshes <= 6


@pytest.mark.case("consumer-completion-read-done-anew")
def test_rows_that_another_process_appends_complete_the_fetch(store, reader):
    other = store.another_process()
    store.clock.on_sleep = [lambda: None, lambda: other.write("orders", rows(1))]
    asked = reader.at(10)
    assert reader.fetch(asked) < 500
    assert reader.refreshes == 3
    assert look(asked).end_offset == 11


@pytest.mark.case("server-6-4-delayed-fetch", "consumer-g-bytes-over-all-partitions-each")
def test_bytes_add_up_over_partitions(store, reader):
    other = store.another_process()
    one = look(reader.at(0)).available_bytes
    store.clock.on_sleep = [
        lambda: other.write("orders", rows(10), partition=1),
        lambda: other.write("orders", rows(10)),
    ]
    reader.fetch(reader.at(10), reader.at(0, 1), min_bytes=one + 1)
    assert reader.refreshes == 3


@pytest.mark.case("consumer-g-bytes-over-all-partitions-each")
def test_a_partition_counts_up_to_its_own_limit_only(reader):
    asked = reader.at(0, max_bytes=10)
    assert look(asked).available_bytes > 10  # the first section is read whole
    assert reader.fetch(asked, min_bytes=11) >= 400


@pytest.mark.case("consumer-c-partition-unknown-while-parked")
def test_a_deleted_topic_completes_the_fetch(store, reader):
    other = store.another_process()
    store.clock.on_sleep = [lambda: Controller(other.cluster).delete_topic("orders")]
    asked = reader.at(10)
    assert reader.fetch(asked) < 500
    assert look(asked).error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.case("consumer-f-offset-beyond-end-below-start")
def test_an_offset_that_falls_out_of_range_meanwhile_completes_the_fetch(store, reader):
    asked = reader.at(5)
    assert not is_answered([asked], MAX)
    with asked.ledger.lock:  # as a trim or a truncation leaves it
        asked.ledger.state.topics[asked.topic_id].partitions[0].log_start_offset = 6
    assert is_answered([asked], MAX)
    assert look(asked).error is ErrorCode.OFFSET_OUT_OF_RANGE


@pytest.mark.case("kafka-61-110", "kafka-110")
def test_between_high_watermark_and_log_end_there_is_nothing_and_no_error(reader):
    asked = reader.at(10)
    with asked.ledger.lock:
        asked.ledger.state.topics[asked.topic_id].partitions[0].log_end_offset = 15
    for offset in (10, 12, 15):
        answer = look(FetchPartition(asked.ledger, asked.topic_id, 0, offset, MAX))
        assert (answer.error, answer.end_offset, answer.available_bytes) == (None, offset, 0)
    assert look(FetchPartition(asked.ledger, asked.topic_id, 0, 16, MAX)).error is ErrorCode.OFFSET_OUT_OF_RANGE


@pytest.mark.case("consumer-equal-offsets-contribute-0")
def test_equal_offsets_contribute_nothing(reader):
    assert look(reader.at(10)).available_bytes == 0
    assert not is_answered([reader.at(10)], 1)


@pytest.mark.case("consumer-4-6-first-batch-given-whatever")
def test_the_first_section_is_given_whatever_its_size_and_later_ones_only_if_they_fit(store, reader):
    first = look(reader.at(0)).available_bytes
    store.write("orders", rows(10))
    assert look(reader.at(0, max_bytes=1)).end_offset == 10
    assert look(reader.at(0, max_bytes=2 * first - 1)).end_offset == 10
    assert look(reader.at(0, max_bytes=2 * first)).end_offset == 20
    assert look(reader.at(0), 1, one_section_min=False).end_offset == 0
