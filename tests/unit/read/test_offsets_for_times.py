"""From a time to an offset: what the sections say, what their rows say, and a log that is trimmed meanwhile."""

from __future__ import annotations

import pytest

from spark_replog import TopicPartition
from spark_replog.admin.controller import Controller
from spark_replog.errors import DataLossError
from spark_replog.read import offsets_for_times as module
from tests.unit.client.consumer_setup import P0, assigned, rows


def write_at(store, *times_ms):
    store.write("orders", rows(len(times_ms)), times_ms=list(times_ms))


@pytest.fixture
def mixed(store):
    """Sections whose times overlap: rows 0 to 2, 3 and 4, 5, 6."""
    store.create("orders")
    for times_ms in ([9000, 1000, 2000], [6000, 7000], [3000], [8000]):
        write_at(store, *times_ms)
    return store


@pytest.mark.parametrize(
    ("start", "time_ms", "offset"),
    [(0, 5000, 0), (1, 5000, 3), (1, 1500, 2), (1, 9000, None), (4, 6000, 4), (5, 3000, 5), (5, 3001, 6), (7, 0, None)],
)
def test_rows_below_the_log_start_are_passed_over(mixed, start, time_ms, offset):
    Controller(mixed.cluster).delete_records("orders", {0: start})
    assert assigned(mixed, P0).offsets_for_times({P0: time_ms}) == {P0: offset}


def test_a_log_that_is_trimmed_while_its_rows_are_read_answers_no_offset_that_is_gone(mixed, monkeypatch):
    Controller(mixed.cluster).delete_records("orders", {0: 1})
    other, read = Controller(mixed.another_process().cluster), []

    class Trimming(module.Fetcher):
        def fetch(self, slices, **named):
            read.append([(piece.start_offset, piece.end_offset) for piece in slices])
            yield from super().fetch(slices, **named)
            other.delete_records("orders", {0: 4})
            mixed.cluster.refresh_topics([mixed.cluster.lookup("orders")])

    monkeypatch.setattr(module, "Fetcher", Trimming)
    assert assigned(mixed, P0).offsets_for_times({P0: 5000}) == {P0: 4}
    assert read == [[(1, 3)]]


def test_a_topic_that_is_deleted_while_its_rows_are_read_is_named(mixed, monkeypatch):
    other = Controller(mixed.another_process().cluster)

    class Deleting(module.Fetcher):
        def fetch(self, slices, **named):
            yield from super().fetch(slices, **named)
            handle = mixed.cluster.lookup("orders")
            other.delete_topic("orders")
            mixed.cluster.refresh_topics([handle])

    monkeypatch.setattr(module, "Fetcher", Deleting)
    Controller(mixed.cluster).delete_records("orders", {0: 1})
    with pytest.raises(DataLossError, match="topic 'orders' cannot be read: the topic was deleted"):
        assigned(mixed, P0).offsets_for_times({P0: 5000})


def test_a_large_section_is_searched_to_its_row(store):
    store.create("orders")
    big = bytes(700_000)
    store.write("orders", [big] * 6, times_ms=[1, 2, 3, 4, 5, 6])
    assert assigned(store, P0).offsets_for_times({P0: 5}) == {P0: 4}


def test_only_a_section_between_whose_times_the_time_lies_is_read(mixed, monkeypatch):
    read = []

    class Noting(module.Fetcher):
        def fetch(self, slices, **named):
            read.append([(piece.start_offset, piece.end_offset) for piece in slices])
            yield from super().fetch(slices, **named)

    monkeypatch.setattr(module, "Fetcher", Noting)
    reader = assigned(mixed, P0)
    assert [reader.offsets_for_times({P0: time_ms})[P0] for time_ms in (0, 1000, 9000, 9001)] == [0, 0, 0, None]
    assert read == [[(0, 3)]]
    read.clear()
    assert reader.offsets_for_times({P0: 2500}) == {P0: 0}
    Controller(mixed.cluster).delete_records("orders", {0: 3})
    assert [reader.offsets_for_times({P0: time_ms})[P0] for time_ms in (6000, 7000, 7001)] == [3, 4, 6]
    assert read == [[(0, 3)], [(3, 5)]]


def test_without_a_thread_partitions_are_searched_one_after_another(store, monkeypatch):
    """As at a container's limit of pids."""

    def without_a_thread(*_):
        raise RuntimeError("can't start new thread")

    store.create("orders", 3)
    for number in range(3):
        store.write("orders", rows(2), partition=number, times_ms=[1_000, 2_000 + number])
    keys = [TopicPartition("orders", number) for number in range(3)]
    reader = assigned(store, *keys)
    monkeypatch.setattr(module.IO_POOL, "submit_to", without_a_thread)
    assert reader.offsets_for_times(dict.fromkeys(keys, 2_001)) == {keys[0]: None, keys[1]: 1, keys[2]: 1}
