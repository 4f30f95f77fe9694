"""`cleanup.policy=compact` on a real store: of each key the latest row stays, under the offset that it had."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest

import spark_replog
from spark_replog import Producer
from spark_replog.client.store import init_store
from spark_replog.cluster.cluster import Cluster
from spark_replog.errors import ErrorCode, InvalidConfigError, ReplogError
from spark_replog.log.model import CommandResult, Outcome
from spark_replog.maintenance import compaction
from spark_replog.maintenance.compaction import CompactionRounds, Compactor, KeyColumns, OffsetMap, read_keys
from spark_replog.maintenance.segment_writer import SegmentWriter, compactable, make_run
from tests.unit.client.consumer_setup import ManualClock

COLUMNS = "text STRING, name STRING, more ARRAY<BIGINT>, gone BOOLEAN"


class Table:
    """A compacted topic of one partition, of bytes or typed rows, and what should be in it."""

    def __init__(self, path, *, is_typed=False, **config):
        self.path, self.is_typed = path, is_typed
        self.store = init_store(str(path), 3, fsync=False)
        settings = {"cleanup.policy": "compact", "delete.retention.ms": "0"}
        settings |= {key.replace("_", "."): str(value) for key, value in config.items()}
        typed = {}
        if is_typed:
            settings["delete.column"] = "gone"
            typed = {"schema": COLUMNS, "key": ["name"]}
        self.store.admin().create_topic("users", partitions=1, replicas=3, config=settings, **typed)
        self.cluster = Cluster.open(str(path))
        self.written = []

    def write(self, *batches):
        """Each batch is one object: {key: value or None}, or a list of pairs."""
        with self.store.producer() as producer:
            for batch in batches:
                rows = list(batch.items()) if isinstance(batch, dict) else batch
                self.written += rows
                if self.is_typed:
                    producer.send_arrow("users", self.typed(rows))
                    producer.flush()
                    continue
                keys = pa.array([key.encode() for key, _ in rows], pa.binary())
                values = pa.array([None if value is None else value.encode() for _, value in rows], pa.binary())
                producer.send_arrow("users", pa.table({"key": keys, "value": values}))
                producer.flush()

    @staticmethod
    def typed(rows):
        """A row that deletes keeps its columns; in others the column that says so is false or null in turn."""
        names, texts = [key for key, _ in rows], [value if value is not None else "old" for _, value in rows]
        gone = [True if value is None else (None, False)[at % 2] for at, (_, value) in enumerate(rows)]
        return pa.table({"name": names, "gone": gone, "text": texts, "more": [[1, 2]] * len(rows)})

    def compact(self, **how):
        self.cluster.refresh()
        return Compactor(self.cluster).compact(self.cluster.lookup("users"), is_eager=True, **how)

    def rows(self, start="earliest"):
        columns = ["name", "text", "gone", OFFSET] if self.is_typed else None
        scan = spark_replog.open(str(self.path)).topic("users").scan(start, columns=columns)
        rows = scan.to_arrow().to_pylist()
        if self.is_typed:
            return [(row[OFFSET], row["name"], None if row["gone"] else row["text"]) for row in rows]
        return [(row["offset"], row["key"].decode(), row["value"] and row["value"].decode()) for row in rows]

    def latest(self, end=None):
        """{key: (offset, value)} of the rows below an offset."""
        return {key: (at, value) for at, (key, value) in enumerate(self.written[:end])}


OFFSET = "_replog_offset"


BOTH = pytest.mark.parametrize("users", [False, True], ids=["bytes", "typed"], indirect=True)


@pytest.fixture
def users(request, tmp_path):
    return Table(tmp_path / "store", is_typed=getattr(request, "param", False))


@pytest.mark.case("kafka-86")
@BOTH
def test_the_latest_row_of_each_key_stays_where_it_was(users):
    users.write({"a": "1"}, {"b": "1"}, {"a": "2"}, {"c": "1"}, {"end": "1"})
    report = users.compact()
    assert (report.removed_count, report.failed_count, report.lost_race_count) == (1, 0, 0)
    assert users.rows() == [(1, "b", "1"), (2, "a", "2"), (3, "c", "1"), (4, "end", "1")]
    assert users.rows(start=0)[0][0] == 1
    assert users.rows(start=2)[0][0] == 2
    users.write({"b": "2"}, {"end": "2"})
    assert users.compact().removed_count == 1  # the newest section is not looked at
    assert users.rows() == [(2, "a", "2"), (3, "c", "1"), (4, "end", "1"), (5, "b", "2"), (6, "end", "2")]


@pytest.mark.case("kafka-86")
@BOTH
def test_tombstones_wait_and_nothing_comes_back(users):
    users.write({"a": "1", "b": "1"}, {"a": "2"}, {"a": None}, {"end": "1"})
    users.compact()
    assert users.rows() == [(1, "b", "1"), (3, "a", None), (4, "end", "1")]
    users.write({"c": "1"}, {"end": "2"})
    users.compact()
    assert users.rows() == [(1, "b", "1"), (4, "end", "1"), (5, "c", "1"), (6, "end", "2")]
    users.compact()
    assert "a" not in {key for _, key, _ in users.rows()}


def test_young_tombstones_stay(tmp_path):
    users = Table(tmp_path / "store", delete_retention_ms=10**12)
    users.write({"a": "1"}, {"a": None}, {"end": "1"})
    users.compact()
    users.write({"b": "1"}, {"end": "2"})
    users.compact()
    assert users.rows() == [(1, "a", None), (2, "end", "1"), (3, "b", "1"), (4, "end", "2")]


DAY_MS = 86_400_000


def test_tombstones_wait_from_the_end_of_a_pass_whose_process_slept(tmp_path, monkeypatch):
    """A reader may have read the replaced row just before it went: it must still see the tombstone."""
    users = Table(tmp_path / "store", delete_retention_ms=DAY_MS)
    users.write({"a": "1"}, {"a": None}, {"end": "1"})
    clock = ManualClock()
    users.cluster = Cluster.open(str(users.path), clock=clock)
    decide = Compactor.decide

    def slept(self, *args):
        clock.advance(2 * DAY_MS)
        with Producer(Cluster.open(str(users.path), clock=clock)) as producer:
            producer.send("users", b"2", key=b"end").result(60)
        self._cluster.topic_ledger(args[0]).refresh()
        return decide(self, *args)

    with monkeypatch.context() as patched:
        patched.setattr(Compactor, "decide", slept)
        assert users.compact().removed_count == 1
    users.compact()
    assert [row[:2] for row in users.rows()] == [(1, "a"), (2, "end"), (3, "end")]


def test_runs_of_which_nothing_stays(tmp_path):
    """Their offsets belong to the next section, and where all of it was deleted, to its last tombstone."""
    users = Table(tmp_path / "store", segment_bytes=2**20)
    big = "x" * 600_000
    users.write(*({"a": f"{number}{big}"} for number in range(5)), {"a": None}, {"end": "1"})
    users.compact()
    assert [(at, key) for at, key, _ in users.rows()] == [(5, "a"), (6, "end")]
    users.write({"end": "2"})
    users.compact()
    users.write({"end": "3"})
    users.compact()
    assert [row for row in users.rows() if row[1] == "end"] == [(7, "end", "2"), (8, "end", "3")]
    consumer = spark_replog.open(str(users.path)).consumer("users", auto_offset_reset="earliest")
    with consumer:
        seen = [(record.offset, record.key) for record in consumer.poll(timeout_ms=5000)]
        assert seen[-1] == (8, b"end")
        (key,) = consumer.assignment()
        assert consumer.position(key) == 9


@BOTH
def test_where_all_was_deleted_the_last_tombstone_stays(users):
    users.write({"a": "1"}, {"b": "1"}, {"a": None}, {"b": None}, {"end": "1"})
    users.compact()
    assert users.rows() == [(2, "a", None), (3, "b", None), (4, "end", "1")]
    report = users.compact()
    assert (report.removed_count, report.failed_count) == (1, 0)
    assert users.rows() == [(3, "b", None), (4, "end", "1")]


def test_a_small_fetch_passes_a_gap_at_the_end_of_a_section(users):
    users.write([("a", "1"), ("b", "1"), ("b", "2"), ("a", "2")], {"a": "3"}, {"end": "1"})
    users.compact()
    assert [at for at, *_ in users.rows()] == [2, 4, 5]
    users.write({"end": "2"})
    users.compact()
    consumer = users.store.consumer("users", auto_offset_reset="earliest", max_partition_fetch_bytes=1)
    with consumer:
        seen = [record.offset for _ in range(8) for record in consumer.poll(timeout_ms=200)]
    assert seen == [2, 4, 5, 6]


def test_a_time_leads_to_a_row_that_is_there(users):
    users.write({"a": "1"}, {"a": "2"}, {"b": "1"}, {"end": "1"})
    users.compact()
    consumer = users.store.consumer("users", auto_offset_reset="earliest")
    with consumer:
        consumer.poll(0)
        (key,) = consumer.assignment()
        assert consumer.offsets_for_times({key: 0}) == {key: 1}


def test_positions_pass_gaps(users):
    """A consumer that waits in a gap goes on behind it, also where a fetch brings no row."""
    users.write([("a", str(number)) for number in range(6)], {"b": "1"}, {"b": "2"}, {"end": "1"})
    users.compact()
    assert [at for at, *_ in users.rows()] == [5, 7, 8]
    consumer = spark_replog.open(str(users.path)).consumer("users", auto_offset_reset="earliest")
    with consumer:
        consumer.poll(0)
        (key,) = consumer.assignment()
        for start, expected in ((0, 5), (3, 5), (5, 5), (6, 7), (8, 8)):
            consumer.seek(key, start)
            (record,) = consumer.poll(timeout_ms=5000, max_records=1)
            assert record.offset == expected
            assert consumer.position(key) == expected + 1
        consumer.seek(key, 0)
        assert consumer.to_arrow().column("offset").to_pylist() == [5, 7, 8]
        assert consumer.position(key) == 9
    table = spark_replog.open(str(users.path)).topic("users")
    assert table.scan({0: 0}, {0: 5}).to_arrow().num_rows == 0
    assert table.scan({0: 6}, {0: 7}).to_arrow().num_rows == 0


@pytest.mark.case("kafka-67")
def test_rows_without_a_key_are_refused(users):
    with users.store.producer() as producer:
        for send in (
            lambda: producer.send("users", b"v").result(5),
            lambda: producer.send_arrow("users", pa.table({"key": [b"k", None], "value": [b"v", b"w"]})),
        ):
            with pytest.raises(InvalidConfigError) as refused:
                send()
                producer.flush()
            assert refused.value.code is ErrorCode.INVALID_RECORD
        producer.send("users", b"v", key=b"k").result(5)
    assert len(users.rows()) == 1


def test_rows_that_go_by_key_are_not_trimmed(users):
    users.write({"a": "1"}, {"end": "1"})
    with pytest.raises(ReplogError) as refused:
        users.store.admin().delete_records("users", {0: 1})
    assert refused.value.code is ErrorCode.POLICY_VIOLATION
    assert len(users.rows()) == 2


@BOTH
def test_a_pass_that_runs_out_of_memory_goes_on_the_next_time(users, monkeypatch):
    monkeypatch.setattr(OffsetMap, "is_full", property(lambda self: self._latest.num_rows >= 3))
    for number in range(4):
        users.write({f"k{number}-{suffix}": "1" for suffix in range(3)}, {f"k{number}-0": "2"})
    users.write({"end": "1"})
    monkeypatch.setattr(compaction, "group_sections", lambda sections, _: ([section] for section in sections))
    removed = [users.compact().removed_count for _ in range(4)]
    assert sum(removed) == 4
    assert removed[0] < 4
    assert {key: (at, value) for at, key, value in users.rows()} == users.latest()


@BOTH
def test_keys_that_are_kept_keep_no_values(users):
    """Columns of a batch share its bytes: one that is kept keeps all of them in memory."""
    drawn = random.Random(1)  # no compression makes these small
    users.write({f"k{number}": drawn.randbytes(11_000).hex() for number in range(100)}, {"end": "1"})
    users.cluster.refresh()
    ledger, _ = users.cluster.topic_state(handle := users.cluster.lookup("users"))
    run = ledger.ask(lambda state: make_run(state, handle.topic_id, 0, compactable(state, handle.topic_id, 0)))
    columns = read_keys(users.cluster.brokers, "gone" if users.is_typed else None, run)
    assert run.size_bytes > 1_000_000 and len(columns.keys) == 100
    held = [buffer for chunk in columns.keys.chunks for buffer in chunk.buffers() if buffer is not None]
    assert sum((buffer.parent or buffer).size for buffer in held) < 10_000


def test_a_pass_is_due_by_its_ratio(tmp_path):
    users = Table(tmp_path / "store", min_cleanable_dirty_ratio="0.5")
    users.write(*({f"k{number}": "1"} for number in range(8)), {"end": "1"})
    rounds = CompactionRounds(users.cluster)
    assert rounds.run_once().removed_count == 0
    users.write({"k0": "2"}, {"end": "2"})
    rounds = CompactionRounds(users.cluster)
    assert rounds.run_once().removed_count == 0  # two new sections beside nine clean ones
    users.write(*({f"k{number}": "3"} for number in range(8)), {"end": "3"})
    rounds = CompactionRounds(users.cluster)
    assert rounds.run_once().removed_count > 8
    assert {key: (at, value) for at, key, value in users.rows()} == users.latest()


def test_young_rows_are_left(tmp_path):
    users = Table(tmp_path / "store", min_compaction_lag_ms=10**9)
    users.write({"a": "1"}, {"a": "2"}, {"end": "1"})
    assert users.compact().removed_count == 0


def test_a_run_that_failed_leaves_the_rest_to_the_next_pass(users, monkeypatch):
    users.write({"a": "1"}, {"a": "2"}, {"b": "1"}, {"b": "2"}, {"end": "1"})
    monkeypatch.setattr(compaction, "group_sections", lambda sections, _: ([section] for section in sections))
    calls, rewrite = [], SegmentWriter.rewrite

    def fail_second(self, run, dropped=None):
        calls.append(run)
        if len(calls) == 2:
            raise ReplogError(ErrorCode.KAFKA_STORAGE_ERROR, "no space left on device")
        return rewrite(self, run, dropped)

    monkeypatch.setattr(SegmentWriter, "rewrite", fail_second)
    report = users.compact()
    assert (report.failed_count, report.removed_count) == (1, 1)
    assert users.compact().removed_count == 1
    assert {key: (at, value) for at, key, value in users.rows()} == users.latest()


def test_a_pass_that_lost_a_race_does_not_call_the_log_clean(users, monkeypatch):
    users.write({"a": "1"}, {"a": "2"}, {"b": "1"}, {"b": "2"}, {"end": "1"})
    monkeypatch.setattr(compaction, "group_sections", lambda sections, _: ([section] for section in sections))
    lost = CommandResult(Outcome.REFUSED)
    with monkeypatch.context() as patched:
        patched.setattr(Compactor, "decide", lambda *_: lost)
        assert users.compact(partitions=[0]).lost_race_count >= 1
    _, topic = users.cluster.folded_topic(users.cluster.lookup("users"))
    assert topic.partitions[0].clean_points == ()
    assert users.compact().removed_count == 2
    _, topic = users.cluster.folded_topic(users.cluster.lookup("users"))  # another one where the state was restored
    assert topic.partitions[0].clean_points[-1][0] == 4


def test_the_map_compares_keys_not_hashes():
    keys = pa.chunked_array([pa.array([b"a", b"", None, b"a"], pa.binary())])
    rows = KeyColumns(keys, np.array([3, 5, 6, 9]), np.array([False, True, False, True]))
    latest = OffsetMap(2**20)
    latest.add(rows)
    assert latest.dropped(rows, 0).tolist() == [3]
    assert latest.dropped(rows, 10).tolist() == [3, 5, 9]
    assert not latest.is_full


STEPS = [
    "compaction.written:1",
    "compaction.copied:2",
    "compaction.before_entry:1",
    "compaction.after_entry:1",
    "compaction.before_clean:1",
]


IN_EACH_RUN = {False: STEPS[::2], True: STEPS[1:4:2]}


@pytest.mark.parametrize(
    ("users", "step"),
    [
        pytest.param(kind, step, marks=() if step in IN_EACH_RUN[kind] else pytest.mark.wide)
        for kind in (False, True)
        for step in STEPS
    ],
    indirect=["users"],
)
def test_a_pass_that_is_killed_at_a_step_is_made_again(users, step):
    users.write({"a": "1", "b": "1"}, {"a": "2"}, {"b": None}, {"a": "3"}, {"end": "1"})
    command = [sys.executable, "-m", "spark_replog", "-s", str(users.path), "topic", "compact", "users", "--all"]
    died = subprocess.run(command, env={**os.environ, "REPLOG_FAULT_POINT": step}, capture_output=True, check=False)
    assert died.returncode == -signal.SIGKILL, died.stderr
    assert users.rows()[-3:] == [(3, "b", None), (4, "a", "3"), (5, "end", "1")]
    users.compact()
    users.compact()
    assert users.rows() == [(4, "a", "3"), (5, "end", "1")]


@pytest.mark.parametrize("is_asleep", [False, True])
def test_a_schema_that_changes_beside_a_pass_keeps_each_column(tmp_path, monkeypatch, is_asleep):
    """Rows of two versions; the next one is decided before the pass, or between what it wrote and its entry."""
    users = Table(tmp_path / "store", is_typed=True)
    admin = spark_replog.open(str(users.path)).admin()
    users.write({"a": "1", "b": "1"}, {"a": "2"})
    old_scan = spark_replog.open(str(users.path)).topic("users").scan(columns=["name", "text", OFFSET])

    def evolve():
        admin.evolve_schema("users", f"{COLUMNS}, note STRING")
        with spark_replog.open(str(users.path)).producer() as producer:
            producer.send("users", {"name": "b", "note": "n", "text": "2"}).result(60)
            producer.send("users", {"name": "end", "note": "e"}).result(60)

    if is_asleep:
        decide = Compactor.decide
        with monkeypatch.context() as patched:
            patched.setattr(Compactor, "decide", lambda *given: (patched.undo(), evolve(), decide(*given))[2])
            users.write({"c": "1"})
            assert users.compact().removed_count == 1
    else:
        evolve()
        users.write({"c": "1"})
    users.compact()
    rows = {row["name"]: row for row in users.store.topic("users").scan().to_arrow().to_pylist()}
    assert {name: (row["text"], row["note"]) for name, row in rows.items()} == {
        "a": ("2", None),
        "b": ("2", "n"),
        "c": ("1", None),
        "end": (None, "e"),
    }
    asleep = [(row["name"], row["text"]) for row in old_scan.to_arrow().to_pylist()]
    assert asleep in ([("a", "2")], [("b", "1"), ("a", "2")])


def test_what_compaction_cannot_do_with_columns_is_refused(users):
    admin = users.store.admin()
    admin.create_topic("log", schema="id INT, gone BOOLEAN")
    admin.create_topic("typed", schema="id INT, Gone BOOLEAN, is BOOLEAN", key=["id", "is"])
    for topic, changes, code, words in (
        ("log", {"cleanup.policy": "compact,delete"}, "POLICY_VIOLATION", "no key columns"),
        ("users", {"delete.column": "gone"}, "INVALID_CONFIG", "are bytes"),
        ("typed", {"delete.column": "gone"}, "INVALID_CONFIG", "'Gone'"),
        ("typed", {"delete.column": "id"}, "INVALID_CONFIG", "INT"),
        ("typed", {"delete.column": "is"}, "INVALID_CONFIG", "key column"),
    ):
        with pytest.raises(ReplogError, match=rf"{code}.*{words}"):
            admin.alter_config(topic, changes)
        schema = {name: None if name == "users" else admin.describe_topic(name).schema for name in [topic]}[topic]
        with pytest.raises(ReplogError, match=rf"{code}.*{words}"):
            admin.create_topic("other", config=changes, schema=schema)
    admin.alter_config("typed", {"delete.column": "Gone", "cleanup.policy": "compact"})
    admin.alter_config("typed", {"delete.column": None})
