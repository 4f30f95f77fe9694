from __future__ import annotations

import mmap
import shutil
import threading
from concurrent.futures import wait
from itertools import chain

import numpy as np
import pyarrow as pa
import pytest

from spark_replog.errors import DataLossError, ErrorCode, RetriableError
from spark_replog.log.codec.data_object import TIMESTAMP_TYPE, data_schema
from spark_replog.read import batch_joiner
from spark_replog.read import fetcher as fetcher_module
from spark_replog.read.fetch_plan import in_log_order, plan_fetch
from spark_replog.read.fetcher import PREFETCH_READS_MAX, READ_SIZE_BYTES_MAX, Fetcher
from spark_replog.read.rows import read_schema

TOPIC = "ab" * 16


def plan(topic, partition=0, start=0, end=None):
    mark = topic.state.topics[TOPIC].partitions[partition].high_watermark
    return plan_fetch(topic.state, "orders", TOPIC, partition, start, mark if end is None else end)


def fetch(roots, slices, *, include_headers=False, fetcher=None):
    batches = list((fetcher or Fetcher(roots)).fetch(slices, include_headers=include_headers))
    for batch in batches:
        assert batch.schema.equals(read_schema(include_headers))
        batch.validate(full=True)
    return pa.Table.from_batches(batches, schema=read_schema(include_headers))


def test_rows_come_back_with_their_offsets(both_roots, make_topic):
    topic = make_topic(both_roots)
    topic.write([(0, [b"a", b"b"]), (1, [b"x"])])
    topic.write([(0, [b"c"])], compression="zstd")
    table = fetch(both_roots, plan(topic))
    assert table.to_pydict() == {
        "key": [b"ka", b"kb", b"kc"],
        "value": [b"a", b"b", b"c"],
        "topic": ["orders"] * 3,
        "partition": [0, 0, 0],
        "offset": [0, 1, 2],
        "timestamp": [*topic.batch([b"a", b"b"], None).column(2).to_pylist(), table["timestamp"][0].as_py()],
        "timestampType": [0, 0, 0],
    }


@pytest.mark.parametrize(("start", "end"), [(0, 9), (1, 8), (3, 6), (4, 5), (2, 7), (8, 9), (0, 1)])
def test_any_range_of_offsets(roots, make_topic, start, end):
    topic = make_topic(roots)
    for first in (0, 3, 6):
        topic.write([(0, [b"%d" % n for n in range(first, first + 3)])])
    table = fetch(roots, plan(topic, 0, start, end))
    assert table["offset"].to_pylist() == list(range(start, end))
    assert table["value"].to_pylist() == [b"%d" % n for n in range(start, end)]


def test_a_batch_never_spans_two_partitions(roots, make_topic):
    topic = make_topic(roots)
    topic.write([(0, [b"a", b"b"]), (1, [b"x"])])
    batches = list(Fetcher(roots).fetch([*plan(topic, 0), *plan(topic, 1)]))
    assert [(b["partition"].to_pylist(), b["offset"].to_pylist()) for b in batches] == [([0, 0], [0, 1]), ([1], [0])]


def test_ranges_with_a_hole_between_them_do_not_join(roots, make_topic):
    topic = make_topic(roots)
    topic.write([(0, [b"%d" % n for n in range(9)])])
    batches = list(Fetcher(roots).fetch([*plan(topic, 0, 0, 2), *plan(topic, 0, 5, 7)]))
    assert [b["offset"].to_pylist() for b in batches] == [[0, 1], [5, 6]]


def test_headers_are_null_where_there_are_none(roots, make_topic):
    topic = make_topic(roots)
    topic.write([(0, [b"a", b"b", b"c"])], headers=[[{"key": "h", "value": b"1"}], [], None])
    topic.write([(0, [b"d"])])
    table = fetch(roots, plan(topic), include_headers=True)
    assert table["headers"].to_pylist() == [[{"key": "h", "value": b"1"}], None, None, None]
    part = fetch(roots, plan(topic, 0, 1, 4), include_headers=True)
    assert part["headers"].to_pylist() == [None, None, None]
    assert fetch(roots, plan(topic)).num_columns == 7


def test_log_append_time_topics_show_the_append(roots, make_topic):
    topic = make_topic(roots, config=(("message.timestamp.type", "LogAppendTime"),))
    topic.write([(0, [b"a"])], time_ms=1000)
    topic.write([(0, [b"b"])], time_ms=2500)
    table = fetch(roots, plan(topic))
    assert table["timestampType"].to_pylist() == [1, 1]
    assert table["timestamp"].cast(pa.int64()).to_pylist() == [1_000_000, 2_500_000]


def test_neighbours_in_one_object_cost_one_read(roots, make_topic):
    topic = make_topic(roots)
    topic.write([(0, [b"a"]), (1, [b"x"])])
    fetcher = Fetcher(roots)
    table = fetch(roots, [*plan(topic, 0), *plan(topic, 1)], fetcher=fetcher)
    assert table["value"].to_pylist() == [b"a", b"x"]
    assert (len(roots.gets), fetcher.stats.reads) == (1, 1)


def test_small_sections_are_joined_and_large_ones_are_not(roots, make_topic):
    topic = make_topic(roots)
    for _ in range(5):
        topic.write([(0, [b"x" * 300_000])])
    sizes = [b.num_rows for b in Fetcher(roots).fetch(plan(topic))]
    assert sizes == [2, 2, 1]  # 600 KB a row, key and value


def test_rows_of_one_partition_are_joined_also_if_others_are_between_them(roots, make_topic):
    topic = make_topic(roots)
    for number in range(3):
        topic.write([(part, [b"%d" % number] * 2) for part in (0, 1)])
    slices = in_log_order([plan(topic, 0), plan(topic, 1)])
    batches = list(Fetcher(roots).fetch(slices))
    assert [b["partition"][0].as_py() for b in batches] == [0, 1]
    assert [b["offset"].to_pylist() for b in batches] == [[*range(6)]] * 2
    assert len(roots.gets) == 3  # one an object


@pytest.mark.parametrize(("limit", "most"), [("PASSED_BYTES_MAX", 5_000), ("PARTS_MAX", 4)])
def test_few_rows_do_not_wait_for_more_than_some_reads(roots, make_topic, monkeypatch, limit, most):
    monkeypatch.setattr(batch_joiner, limit, most)
    topic = make_topic(roots)
    topic.write([(0, [b"few"]), (1, [b"x" * 1_000])])
    for _ in range(4):
        topic.write([(1, [b"x" * 1_000])])
    slices = in_log_order([plan(topic, 0), plan(topic, 1)])
    batches = Fetcher(roots).fetch(slices, batch_bytes_min=1_500)
    order = [(b["partition"][0].as_py(), b["offset"].to_pylist()) for b in batches]
    assert order == [(1, [0]), (1, [1]), (1, [2]), (0, [0]), (1, [3]), (1, [4])]


class HugeRow(Fetcher):
    """Reads a small row and then one that fills the reach of 32-bit offsets, in memory that is never touched."""

    def _sections(self, slices):
        small, large = slices
        times = pa.array([0], TIMESTAMP_TYPE)
        for piece, size in (small, 1000), (large, 2**31 - 1000):
            ends = pa.py_buffer(np.array([0, size], dtype=np.int32))
            value = pa.Array.from_buffers(pa.binary(), 1, [None, ends, pa.py_buffer(mmap.mmap(-1, size))])
            columns = [pa.nulls(1, pa.binary()), value, times]
            yield piece, [pa.RecordBatch.from_arrays(columns, schema=data_schema(False))]


@pytest.mark.guarantee("G10")
def test_a_row_of_two_gib_is_not_lost_beside_a_small_one(roots, make_topic):
    """Arrow joins them to two batches."""
    topic = make_topic(roots)
    for _ in range(2):
        topic.write([(0, [b"a"])])
    batches = list(HugeRow(roots).fetch(plan(topic)))
    assert [(b["offset"].to_pylist(), b.nbytes > 2**30) for b in batches] == [([0], False), ([1], True)]


def test_a_part_of_a_section_counts_only_its_own_bytes(roots, make_topic):
    topic = make_topic(roots)
    topic.write([(0, [b"x" * 300_000] * 4)])
    pieces = [piece for first in range(4) for piece in plan(topic, 0, first, first + 1)]
    assert [b.num_rows for b in Fetcher(roots).fetch(pieces)] == [2, 2]


def test_a_message_without_rows_makes_no_batch(roots, make_topic, monkeypatch):
    topic = make_topic(roots)
    topic.write([(0, [b"a", b"b"])])
    decode = fetcher_module.decode_section

    def with_empty(*given):
        batches = list(decode(*given))
        return [batches[0].slice(0, 0), *batches, batches[0].slice(0, 0)]

    monkeypatch.setattr(fetcher_module, "decode_section", with_empty)
    assert [b.num_rows for b in Fetcher(roots).fetch(plan(topic), batch_bytes_min=0)] == [2]


@pytest.mark.guarantee("G8")
def test_reads_run_ahead_and_are_bounded_by_their_bytes(roots, make_topic, jobs):
    roots.local = False
    topic = make_topic(roots)
    for _ in range(12):
        topic.write([(0, [b"x" * 3_000_000])])
    batches = Fetcher(roots).fetch(plan(topic))
    next(batches)
    wait([future for lane in jobs.values() for future in lane])
    assert 12_000_000 <= sum(size_bytes for *_, size_bytes in roots.gets) <= 3 * READ_SIZE_BYTES_MAX
    batches.close()


def test_small_reads_wait_for_a_remote_root_together(roots, make_topic, monkeypatch):
    roots.local = False
    topic = make_topic(roots)
    for _ in range(3 * PREFETCH_READS_MAX):
        topic.write([(0, [b"x"])])
    arrived = threading.Barrier(PREFETCH_READS_MAX)
    plain = roots.store

    def store(broker_id):
        arrived.wait(timeout=60)  # each read waits until as many are under way; else it is broken and raises
        return plain(broker_id)

    monkeypatch.setattr(roots, "store", store)
    assert sum(batch.num_rows for batch in Fetcher(roots, hedge_ratio=0).fetch(plan(topic))) == 3 * PREFETCH_READS_MAX


def damage(path, at=-200):
    data = bytearray(path.read_bytes())
    data[at] ^= 0xFF
    path.write_bytes(bytes(data))


def damage_all(topic, roots, name, brokers, partition=0):
    for section in topic.state.sections(TOPIC, partition, 0, 1):
        for broker_id in brokers:
            damage(roots.path(broker_id, name), section.start_byte + section.size_bytes - 8)


@pytest.mark.guarantee("G8")
def test_the_next_compressed_read_is_decoded_while_the_caller_works(both_roots, make_topic, warnings_logged, jobs):
    topic = make_topic(both_roots)
    values = [[b"%d" % number * 1_200_000] for number in range(3)]
    names = [topic.write([(0, value), (1, value)], compression="zstd") for value in values]
    for name in names[1:]:
        damage_all(topic, both_roots, name, [0, 1, 2], partition=1)
    batches = Fetcher(both_roots).fetch(chain(*zip(plan(topic, 0), plan(topic, 1), strict=True)))
    assert [next(batches)["partition"].to_pylist() for _ in range(2)] == [[0], [1]]
    (decoding,) = jobs["decoding"]  # of the second read, not of the third
    decoding.result(timeout=60)
    assert warnings_logged.records
    assert [record.getMessage() for record in warnings_logged.records if names[1] not in record.getMessage()] == []
    assert next(batches)["partition"].to_pylist() == [0]  # before the section that is lost
    with pytest.raises(DataLossError, match=names[1]):
        next(batches)
    wait(jobs["decoding"])  # of the third read, whose warnings would reach the next test


@pytest.mark.guarantee("G8")
@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_a_section_of_the_first_read_is_decoded_when_its_rows_are_asked_for(
    both_roots, make_topic, monkeypatch, jobs, compression
):
    decoded, plain = [], fetcher_module._decode

    def decode(piece, *more):
        decoded.append(piece.partition)
        return plain(piece, *more)

    monkeypatch.setattr(fetcher_module, "_decode", decode)
    topic = make_topic(both_roots)
    topic.write([(number, [b"x" * 1_200_000]) for number in range(2)], compression=compression)
    batches = Fetcher(both_roots).fetch([*plan(topic, 0), *plan(topic, 1)])
    assert next(batches)["partition"].to_pylist() == [0]
    assert decoded == [0]
    assert next(batches)["partition"].to_pylist() == [1]
    assert "decoding" not in jobs  # there is no next read


def test_without_a_thread_rows_are_read_when_they_are_asked_for(both_roots, make_topic, monkeypatch):
    """As at a container's limit of pids."""

    def without_a_thread(*_):
        raise RuntimeError("can't start new thread")

    topic = make_topic(both_roots)
    for number in range(3):
        topic.write([(0, [b"%d" % number * 1_200_000])], compression="zstd")
    monkeypatch.setattr(fetcher_module.IO_POOL, "submit_to", without_a_thread)
    assert fetch(both_roots, plan(topic))["offset"].to_pylist() == [0, 1, 2]


def test_what_is_not_compressed_is_not_decoded_ahead(both_roots, make_topic, jobs):
    topic = make_topic(both_roots)
    for number in range(3):
        topic.write([(0, [b"%d" % number * 1_200_000])])
    assert fetch(both_roots, plan(topic)).num_rows == 3
    assert "decoding" not in jobs


def test_rows_before_a_lost_section_are_given_out_first(both_roots, make_topic):
    topic = make_topic(both_roots)
    for number in range(3):
        name = topic.write([(0, [b"%d" % number * 600_000])])
    for broker_id in (0, 1, 2):
        both_roots.path(broker_id, name).unlink()
    batches = Fetcher(both_roots).fetch(plan(topic))
    assert [next(batches)["offset"].to_pylist() for _ in range(2)] == [[0], [1]]
    with pytest.raises(DataLossError):
        next(batches)


@pytest.mark.guarantee("G7")
def test_a_bad_copy_is_read_elsewhere_and_reported(both_roots, make_topic, warnings_logged):
    topic = make_topic(both_roots)
    name = topic.write([(0, [b"a", b"b"])])
    damage_all(topic, both_roots, name, [0, 1])
    fetcher = Fetcher(both_roots)
    assert fetch(both_roots, plan(topic), fetcher=fetcher)["value"].to_pylist() == [b"a", b"b"]
    assert len(warnings_logged.records) <= 2
    assert all("checksum" in record.getMessage() for record in warnings_logged.records)


def test_only_the_bad_section_is_read_again(roots, make_topic):
    topic = make_topic(roots)
    name = topic.write([(0, [b"a"]), (1, [b"x"])])
    damage_all(topic, roots, name, [0, 1, 2])
    for broker_id in (1, 2):
        damage_all(topic, roots, name, [broker_id])  # two flips heal
    roots.stores[1].delete(f"ledgers/L/data/000000/{name}")
    fetcher = Fetcher(roots)
    table = fetch(roots, [*plan(topic, 0), *plan(topic, 1)], fetcher=fetcher)
    assert table["value"].to_pylist() == [b"a", b"x"]


@pytest.mark.parametrize("keep", [0, 1, 2])
def test_an_absent_copy_is_read_elsewhere(both_roots, make_topic, keep, warnings_logged):
    topic = make_topic(both_roots)
    name = topic.write([(0, [b"a"])])
    for broker_id in {0, 1, 2} - {keep}:
        both_roots.path(broker_id, name).unlink()
    fetcher = Fetcher(both_roots)
    assert fetch(both_roots, plan(topic), fetcher=fetcher)["value"].to_pylist() == [b"a"]
    assert len(warnings_logged.records) <= 2


@pytest.mark.parametrize("keep", [0, 1, 2])
def test_a_root_that_is_away_is_not_in_the_way(both_roots, make_topic, keep):
    topic = make_topic(both_roots)
    topic.write([(0, [b"a"])])
    both_roots.away = {0, 1, 2} - {keep}
    fetcher = Fetcher(both_roots)
    assert fetch(both_roots, plan(topic), fetcher=fetcher)["value"].to_pylist() == [b"a"]


def test_a_truncated_object_is_read_elsewhere(both_roots, make_topic):
    topic = make_topic(both_roots)
    name = topic.write([(0, [b"x" * 200_000])])
    for broker_id in (0, 1):
        path = both_roots.path(broker_id, name)
        path.write_bytes(path.read_bytes()[:70_000])
    assert fetch(both_roots, plan(topic))["value"].to_pylist() == [b"x" * 200_000]


def test_every_copy_bad_is_an_error_that_names_object_and_roots(both_roots, make_topic):
    topic = make_topic(both_roots)
    name = topic.write([(0, [b"a"])])
    damage_all(topic, both_roots, name, [0, 1, 2])
    with pytest.raises(DataLossError) as caught:
        fetch(both_roots, plan(topic))
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE
    assert name in str(caught.value)
    for broker_id in (0, 1, 2):
        assert both_roots.url(broker_id) in str(caught.value)


def test_bad_and_absent_copies_are_an_error(roots, make_topic):
    topic = make_topic(roots)
    name = topic.write([(0, [b"a"])])
    damage_all(topic, roots, name, [0])
    roots.path(1, name).unlink()
    path = roots.path(2, name)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(DataLossError) as caught:
        fetch(roots, plan(topic))
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE


def test_no_copy_anywhere_is_data_loss(roots, make_topic):
    topic = make_topic(roots)
    name = topic.write([(0, [b"a"])])
    for broker_id in (0, 1, 2):
        roots.path(broker_id, name).unlink()
    with pytest.raises(DataLossError) as caught:
        fetch(roots, plan(topic))
    assert caught.value.code is ErrorCode.REPLOG_DATA_LOSS


def assert_outage(caught, *facts):
    """The error may be retried, names the facts, and nothing may take it for lost rows."""
    assert not isinstance(caught.value, DataLossError)
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    for fact in facts:
        assert fact in str(caught.value)


@pytest.mark.parametrize("away", [(0,), (2,), (0, 1, 2)])
def test_a_missing_mount_is_an_outage_and_not_a_loss(both_roots, make_topic, away):
    """The folder of the mount point is there and empty, so a get finds nothing."""
    topic = make_topic(both_roots)
    name = topic.write([(0, [b"a"])])
    for broker_id in (0, 1, 2):
        both_roots.path(broker_id, name).unlink()
    for broker_id in away:
        shutil.rmtree(both_roots.folder / f"broker-{broker_id}")
        (both_roots.folder / f"broker-{broker_id}").mkdir()
    with pytest.raises(RetriableError) as caught:
        fetch(both_roots, plan(topic))
    assert_outage(caught, name, "orders", *(both_roots.url(broker_id) for broker_id in away), "REPLOG_ROOT_STALE")


def test_a_broker_that_this_process_does_not_know_is_an_outage(roots, make_topic):
    topic = make_topic(roots)
    name = topic.write([(0, [b"a"])])
    for broker_id in (0, 1):
        roots.path(broker_id, name).unlink()
    roots.broker_ids = (0, 1)
    with pytest.raises(RetriableError) as caught:
        fetch(roots, plan(topic))
    assert_outage(caught, "broker 2")
    roots.broker_ids = ()
    with pytest.raises(RetriableError) as caught:
        fetch(roots, plan(topic))
    assert_outage(caught, "broker 0", "broker 1", "broker 2")


def test_an_object_that_no_broker_ever_held_is_lost(roots, make_topic):
    topic = make_topic(roots)
    topic.write([(0, [b"a"])])
    (piece,) = plan(topic)
    with pytest.raises(DataLossError) as caught:
        fetch(roots, [piece._replace(object=piece.object._replace(holders=frozenset()))])
    assert caught.value.code is ErrorCode.REPLOG_DATA_LOSS


def test_bad_copies_with_a_root_away_may_be_tried_again(roots, make_topic):
    topic = make_topic(roots)
    name = topic.write([(0, [b"a"])])
    damage_all(topic, roots, name, [0, 1])
    roots.away = {2}
    with pytest.raises(RetriableError, match="KAFKA_STORAGE_ERROR"):
        fetch(roots, plan(topic))


def test_rows_before_a_bad_section_are_given_first(roots, make_topic):
    topic = make_topic(roots)
    topic.write([(0, [b"x" * 2_000_000])])
    name = topic.write([(0, [b"a"])])
    for section in topic.state.sections(TOPIC, 0, 1, 2):
        for broker_id in (0, 1, 2):
            damage(roots.path(broker_id, name), section.start_byte + 20)
    batches = Fetcher(roots).fetch(plan(topic))
    assert next(batches)["offset"].to_pylist() == [0]
    with pytest.raises(DataLossError):
        next(batches)


def test_columns_of_the_topic_are_views_of_one_array(roots, make_topic):
    topic = make_topic(roots)
    topic.write([(0, [b"a"] * 10), (1, [b"b"] * 7)])
    first, second = (next(iter(Fetcher(roots).fetch(plan(topic, p)))) for p in (0, 1))
    addresses = {b.column("topic").buffers()[2].address for b in (first, second)}
    assert len(addresses) == 1


def test_a_root_that_failed_once_is_asked_last(roots, make_topic):
    topic = make_topic(roots)
    for _ in range(9):
        topic.write([(0, [b"a"])])
    roots.away = {1}
    fetcher = Fetcher(roots)
    for section_end in range(1, 10):
        fetch(roots, plan(topic, 0, section_end - 1, section_end), fetcher=fetcher)
    assert sum(1 for broker_id, *_ in roots.gets if broker_id == 1) == 1
