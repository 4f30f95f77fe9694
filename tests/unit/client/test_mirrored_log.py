"""A mirrored topic in a store: what is written at offsets is read at them, by every kind of reader."""

from __future__ import annotations

import threading

import numpy as np
import pyarrow as pa
import pytest

from spark_replog import Consumer, Producer
from spark_replog.admin.controller import Controller, MirrorOf
from spark_replog.client.chunk_append import ChunkAppender
from spark_replog.client.mirrored_log import MirroredLog
from spark_replog.cluster.cluster import Cluster
from spark_replog.cluster.init_store import init_cluster
from spark_replog.errors import ErrorCode, FencedError, InvalidConfigError, ReplogError
from spark_replog.health.readers import lag_of
from spark_replog.log.codec.data_object import HEADERS_TYPE, TIMESTAMP_TYPE
from spark_replog.maintenance.compaction import Compactor
from spark_replog.read.offsets_for_times import offsets_for_times

SOURCE = "kafka:cluster/orders/id"


@pytest.fixture
def cluster(tmp_path):
    init_cluster(str(tmp_path / "store"), 3, {}, fsync=False)
    return Cluster.open(str(tmp_path / "store"))


@pytest.fixture
def mirror(cluster):
    Controller(cluster).create_topic("orders", 2, mirror=MirrorOf(SOURCE, (100, 7)))
    return MirroredLog(cluster, ChunkAppender(cluster, "mirror"), "orders", SOURCE)


def rows(places, *, headers=None):
    """places: (partition, offset) pairs; every third value is a tombstone."""
    keys = [b"k%d" % offset for _, offset in places]
    values = [None if offset % 3 == 0 else b"v%d-%d" % place for place in places for offset in place[1:]]
    columns = {
        "key": pa.array(keys, pa.binary()),
        "value": pa.array(values, pa.binary()),
        "timestamp": pa.array([1_700_000_000_000_000 + offset * 1000 for _, offset in places], TIMESTAMP_TYPE),
        "headers": pa.array([headers] * len(places), HEADERS_TYPE),
        "partition": pa.array([partition for partition, _ in places], pa.int32()),
        "offset": pa.array([offset for _, offset in places], pa.int64()),
    }
    return pa.RecordBatch.from_pydict(columns)


def read(cluster, topic="orders"):
    with Consumer(cluster, topic, auto_offset_reset="earliest", enable_auto_commit=False) as consumer:
        table = consumer.to_arrow()
    places = zip(*(table.column(name).to_pylist() for name in ("partition", "offset", "value")), strict=True)
    return sorted(places)


def written(places):
    return [(*place, None if place[1] % 3 == 0 else b"v%d-%d" % place) for place in sorted(places)]


GAPS = [(0, 101), (0, 102), (1, 7), (0, 109), (1, 8)]


@pytest.mark.guarantee("G1")
@pytest.mark.parametrize("headers", [None, [("h", b"1"), ("h", None)]])
def test_readers_show_the_offsets_of_the_source(cluster, mirror, headers):
    assert mirror.ends() == [100, 7]
    mirror.append([rows(GAPS, headers=headers)], {0: (100, 112), 1: (7, 9)})
    assert mirror.ends() == [112, 9]
    assert read(cluster) == written(GAPS)
    assert Controller(cluster).offsets("orders", "earliest") == {0: 100, 1: 7}
    mirror.append([rows([(0, 112), (0, 113)])], {0: (112, 114)})
    assert read(cluster) == written([*GAPS, (0, 112), (0, 113)])
    with Consumer(cluster, "orders", auto_offset_reset="earliest", enable_auto_commit=False) as consumer:
        shown = {(r.partition, r.offset): (r.key, list(r.headers or ())) for r in consumer.poll(20)}
    assert shown[0, 109] == (b"k109", headers or [])


def test_dense_rows_store_no_offsets(cluster, mirror):
    mirror.append([rows([(0, 100), (0, 101), (1, 7)])], {0: (100, 105), 1: (7, 8)})
    mirror.append([rows([(0, 106)])], {0: (105, 107)})
    ledger, _ = cluster.topic_state(mirror.handle)
    refs = ledger.ask(lambda state: state.sections(mirror.handle.topic_id, 0, 100, 107))
    assert [(ref.base_offset, ref.end_offset, ref.object.has_offsets) for ref in refs] == [
        (100, 105, False),
        (105, 107, True),
    ]
    assert read(cluster) == written([(0, 100), (0, 101), (0, 106), (1, 7)])


def test_many_sections_of_a_chunk_join_without_a_gap(cluster, mirror):
    places = [(number % 2, 100 + number * 2) for number in range(4000)]
    batches = [rows(places[at : at + 500], headers=[("pad", bytes(9000))]) for at in range(0, 4000, 500)]
    mirror.append(batches, {0: (100, 8101), 1: (7, 8102)})
    assert read(cluster) == written(places)
    ledger, _ = cluster.topic_state(mirror.handle)
    refs = ledger.ask(lambda state: state.sections(mirror.handle.topic_id, 0, 100, 8101))
    assert len(refs) > 1, "several sections"
    assert [ref.end_offset for ref in refs[:-1]] == [ref.base_offset for ref in refs[1:]]


def test_ends_move_over_offsets_without_rows(cluster, mirror):
    assert mirror.extend({1: (7, 12)}), "an empty partition"
    mirror.append([rows([(0, 100), (0, 104)])], {0: (100, 105)})
    assert mirror.extend({0: (105, 120)})
    assert mirror.extend({0: (105, 120)}) is False, "it follows another end"
    assert mirror.ends() == [120, 12]
    mirror.append([rows([(0, 120), (1, 30)])], {0: (120, 121), 1: (12, 31)})
    assert read(cluster) == written([(0, 100), (0, 104), (0, 120), (1, 30)])


def test_an_append_that_is_there_already_changes_nothing(cluster, mirror):
    for _ in range(2):
        mirror.append([rows(GAPS)], {0: (100, 112), 1: (7, 9)})
    with pytest.raises(FencedError) as caught:
        mirror.append([rows([(0, 108), (0, 115)])], {0: (108, 116)})
    assert caught.value.code is ErrorCode.PRODUCER_FENCED and "112" in str(caught.value)
    assert read(cluster) == written(GAPS)


def test_mirrors_at_once_append_every_row_once(cluster, mirror):
    path = cluster.path
    end, errors = 400, []

    def run(step):
        mine = Cluster.open(path)
        log = MirroredLog(mine, ChunkAppender(mine, "mirror"), "orders", SOURCE)
        while (at := log.ends()[0]) < end:
            upto = min(at + step, end)
            try:
                log.append([rows([(0, offset) for offset in range(at, upto)])], {0: (at, upto)})
            except FencedError:
                continue
            except BaseException as error:
                errors.append(error)
                raise

    threads = [threading.Thread(target=run, args=(step,)) for step in (7, 11, 30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert read(cluster) == written([(0, offset) for offset in range(100, end)])


def test_ordinary_programs_are_refused_until_it_is_promoted(cluster, mirror):
    mirror.append([rows(GAPS)], {0: (100, 112), 1: (7, 9)})
    with Producer(cluster) as producer, pytest.raises(InvalidConfigError) as caught:
        producer.send("orders", b"x", partition=0).result(20)
    assert caught.value.code is ErrorCode.REPLOG_MIRRORED_TOPIC
    assert "topic promote" in str(caught.value)
    assert Controller(cluster).describe_topic("orders").mirror == SOURCE
    assert Controller(cluster).promote("orders").mirror == ""
    with Producer(cluster) as producer:
        assert producer.send("orders", b"x", partition=0).result(20).offset == 112
        assert producer.send("orders", b"y", partition=0).result(20).offset == 113
    with pytest.raises(InvalidConfigError) as caught:
        mirror.append([rows([(1, 20)])], {1: (9, 21)})
    assert caught.value.code is ErrorCode.REPLOG_MIRRORED_TOPIC
    with pytest.raises(InvalidConfigError) as caught:
        Controller(cluster).promote("orders")
    assert caught.value.code is ErrorCode.REPLOG_MIRRORED_TOPIC
    assert read(cluster) == [*written([place for place in GAPS if not place[0]]), (0, 112, b"x"), (0, 113, b"y"),
                             *written([place for place in GAPS if place[0]])]  # fmt: skip


def test_a_topic_of_another_source_is_never_mixed_in(cluster, mirror):
    for source in ("kafka:cluster/orders/other", ""):
        with pytest.raises(ReplogError) as caught:
            MirroredLog(cluster, ChunkAppender(cluster, "mirror"), "orders", source or "kafka:x")
        assert caught.value.code is ErrorCode.REPLOG_MIRROR_MISMATCH
    Controller(cluster).create_topic("plain", 1)
    with pytest.raises(ReplogError) as caught:
        MirroredLog(cluster, ChunkAppender(cluster, "mirror"), "plain", SOURCE)
    assert caught.value.code is ErrorCode.REPLOG_MIRROR_MISMATCH


def test_rules_of_the_topic_do_not_apply_to_rows_that_the_source_took(cluster):
    config = {"cleanup.policy": "compact", "max.message.bytes": "100"}
    Controller(cluster).create_topic("compacted", 1, config=config, mirror=MirrorOf(SOURCE))
    log = MirroredLog(cluster, ChunkAppender(cluster, "mirror"), "compacted", SOURCE)
    batch = rows([(0, 5)]).set_column(0, "key", pa.nulls(1, pa.binary())).set_column(1, "value", [b"x" * 1000])
    late = pa.array([9_000_000_000_000_000], TIMESTAMP_TYPE)
    log.append([batch.set_column(2, "timestamp", late)], {0: (0, 6)})
    assert read(cluster, "compacted") == [(0, 5, b"x" * 1000)]


@pytest.mark.guarantee("G1")
@pytest.mark.parametrize("gaps", ["behind", "inside", "both"])
def test_compaction_keeps_the_offsets(cluster, mirror, gaps):
    places = []
    for at in range(12):
        first = 100 + at * 10
        is_dense = gaps == "behind" or (gaps == "both" and at % 2)
        here = [(0, first), (0, first + 1)] if is_dense else [(0, first + 3), (0, first + 8)]
        mirror.append([rows(here)], {0: (first, first + 10)})
        places += here
    report = Compactor(cluster).compact(mirror.handle, is_eager=True)
    assert report.run_count and report.sections_after < report.sections_before
    assert read(cluster) == written(places)
    mirror.append([rows([(0, 220)])], {0: (220, 221)})
    assert read(cluster) == written([*places, (0, 220)])


def test_times_find_the_rows(cluster, mirror):
    mirror.append([rows([(0, 100), (0, 101)])], {0: (100, 110)})
    mirror.append([rows([(0, 115), (0, 119)])], {0: (110, 120)})
    ledger, _ = cluster.topic_state(mirror.handle)
    for offset, expected in ((99, 100), (101, 101), (102, 115), (116, 119), (120, None)):
        times = {0: 1_700_000_000_000 + offset}
        got = offsets_for_times(ledger, cluster.brokers, "orders", mirror.handle.topic_id, times)
        assert got == {0: expected}, offset


@pytest.mark.parametrize("start", [100, 103, 110, 112, 119])
def test_reading_begins_anywhere(cluster, mirror, start):
    mirror.append([rows([(0, 100), (0, 101)])], {0: (100, 110)})
    mirror.append([rows([(0, 112), (0, 119)])], {0: (110, 125)})
    with Consumer(cluster, enable_auto_commit=False) as consumer:
        key = consumer.partitions_for("orders")[0]
        consumer.assign([key])
        consumer.seek(key, start)
        got = [offset for batch in consumer.to_batches() for offset in batch.column("offset").to_pylist()]
        assert consumer.position(key) == 125
    assert got == [offset for offset in (100, 101, 112, 119) if offset >= start]


def test_a_times_type_is_kept(cluster, mirror):
    mirror.append([rows([(0, 100)])], {0: (100, 101)}, is_append_time=True)
    mirror.append([rows([(0, 101)])], {0: (101, 102)})
    with Consumer(cluster, "orders", auto_offset_reset="earliest", enable_auto_commit=False) as consumer:
        table = consumer.to_arrow()
    assert table.column("timestampType").to_pylist() == [1, 0]
    times = np.array(table.column("timestamp").cast("int64"))
    assert times.tolist() == [1_700_000_000_100_000, 1_700_000_000_101_000]


def test_lag_counts_rows_not_offsets(cluster, mirror):
    mirror.append([rows([(0, 100), (0, 101)])], {0: (100, 1_000_000)})
    mirror.append([rows([(0, 1_000_000), (0, 1_000_007)])], {0: (1_000_000, 1_000_010)})
    ledger, _ = cluster.topic_state(mirror.handle)

    def lag(position):
        return ledger.ask(lambda state: lag_of(state, mirror.handle.topic_id, 0, position, 0)).lag

    assert [lag(at) for at in (100, 1_000_000, 1_000_010)] == [4, 2, 0]
    assert lag(101) == 4, "inside of a section it says at most how many"
    assert lag(90) == 14, "what was deleted unread counts by its offsets"
