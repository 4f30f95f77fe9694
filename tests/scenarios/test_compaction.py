"""Compaction of small objects on a real store: the same rows for ever, from fewer objects."""

from __future__ import annotations

import logging
import os
import random
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest

import spark_replog
from spark_replog.client.store import init_store
from spark_replog.cluster.cluster import Cluster
from spark_replog.config.coordinator import CoordinatorConfig
from spark_replog.errors import ReplogError
from spark_replog.log.codec.commands import encode_command
from spark_replog.log.fold import frozen_topics, paged_table
from spark_replog.log.fold.topic_state import TopicLedgerState
from spark_replog.log.model import GenerationAdvance, Outcome
from spark_replog.maintenance.compaction import CompactionRounds, Compactor, open_topics
from spark_replog.maintenance.garbage import GarbageCollector
from spark_replog.maintenance.scrub import scrub
from spark_replog.maintenance.segment_writer import SegmentWriter
from spark_replog.read.fetcher import Fetcher

BATCHES, ROWS = 24, 50


class Topic:
    """One topic in a store of three brokers, as one process sees it.

    Attributes:
        versions: of the columns that its rows get in turn; none: rows are bytes.
    """

    def __init__(self, path: Path, *, versions: Sequence[str] = (), **config: str) -> None:
        self.path = path
        self.versions = versions
        self.store = init_store(str(path), 3, fsync=False)
        settings = {key.replace("_", "."): value for key, value in config.items()}
        typed = {"schema": versions[0], "key": ["key"]} if versions else {}
        self.store.admin().create_topic("orders", partitions=2, replicas=3, config=settings, **typed)
        self.cluster = Cluster.open(str(path))
        self.count = 0

    def write(
        self, batches: int = BATCHES, rows: int = ROWS, *, headers: bool = False, keys: int | None = None
    ) -> None:
        random.seed(self.count)
        parts = self.versions or ("",)
        for number, version in enumerate(parts):
            if version:
                self.store.admin().evolve_schema("orders", version)
            with self.store.producer() as producer:
                for _ in range(batches * number // len(parts), batches * (number + 1) // len(parts)):
                    producer.send_arrow("orders", self.table(rows, headers=headers, keys=keys))
                    producer.flush()

    def table(self, rows: int, *, headers: bool, keys: int | None) -> pa.Table:
        """Return the next rows, of both partitions in turn."""
        numbers = range(self.count, self.count + rows)
        self.count += rows
        key = [b"k%d" % (n if keys is None else random.randrange(keys)) for n in numbers]
        columns = {
            "key": key,
            "value": [b"v%d" % n for n in numbers],
            "partition": pa.array([n % 2 for n in numbers], pa.int32()),
        }
        if self.versions:
            columns["_replog_partition"] = columns.pop("partition")
            columns["many"] = pa.array([[n] for n in numbers], pa.list_(pa.int32()))
        if headers:
            columns["headers"] = [[{"key": "n", "value": b"%d" % n}] for n in numbers]
        return pa.table(columns)

    def handle(self):
        self.cluster.refresh()
        return self.cluster.lookup("orders")

    def rows(self) -> list[dict]:
        return spark_replog.open(str(self.path)).topic("orders").scan().to_arrow().to_pylist()

    def sections(self, partition: int = 0):
        topic_id = self.handle().topic_id
        ledger, _ = self.cluster.folded_topic(self.handle())
        ledger.refresh()

        def look(state):
            return state.sections(topic_id, partition, 0, state.topics[topic_id].partitions[partition].log_end_offset)

        return ledger.ask(look)

    def compact(self, **how):
        return Compactor(self.cluster).compact(self.handle(), **how)


@pytest.fixture
def topic(tmp_path):
    return Topic(tmp_path / "store")


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd", "ZSTD", "uncompressed", "producer"])
def test_many_small_objects_become_few_and_no_row_changes(tmp_path, compression):
    topic = Topic(tmp_path / "store", compression_type=compression)
    topic.write(12)
    topic.write(12, headers=True)
    before = topic.rows()
    report = topic.compact()
    assert (report.run_count, report.failed_count, report.lost_race_count, report.removed_count) == (2, 0, 0, 0)
    assert [len(topic.sections(number)) for number in (0, 1)] == [2, 2]  # the newest stays as it is
    assert topic.rows() == before
    first = topic.sections()[0]
    assert first.object.holders == {0, 1, 2}
    for broker_id in range(3):
        (path,) = (topic.path / f"broker-{broker_id}").rglob(first.object.id.name)
        assert pa.ipc.open_file(pa.memory_map(str(path))).read_all().num_rows == first.row_count
    assert topic.compact().run_count == 0
    topic.write(30)
    assert topic.compact(is_eager=True).run_count == 2
    assert len(topic.rows()) == topic.count


def test_append_times_are_kept_row_by_row(tmp_path):
    topic = Topic(tmp_path / "store", message_timestamp_type="LogAppendTime")
    topic.write(15)
    before = topic.rows()
    assert len({row["timestamp"] for row in before}) > 1
    assert topic.compact().run_count == 2
    assert topic.sections()[0].timestamp_type == 2
    assert topic.rows() == before
    assert {row["timestampType"] for row in before} == {1}
    assert topic.compact(is_eager=True).run_count == 0


def test_a_reader_of_an_old_plan_gets_the_same_rows(topic, caplog):
    topic.write()
    before = topic.rows()
    old = {section.object.id.name for number in (0, 1) for section in topic.sections(number)}
    scan = spark_replog.open(str(topic.path)).topic("orders").scan().to_batches()
    first = next(scan)
    topic.compact()
    live = {section.object.id.name for number in (0, 1) for section in topic.sections(number)}
    for name in old - live:
        for path in topic.path.rglob(name):
            path.unlink()
    with caplog.at_level(logging.INFO):
        rest = list(scan)
    assert pa.Table.from_batches([first, *rest]).to_pylist() == before
    with spark_replog.open(str(topic.path)).consumer("orders", auto_offset_reset="earliest") as consumer:
        assert consumer.to_arrow().to_pylist() == before


def test_of_two_compactors_one_wins(topic):
    topic.write()
    before = topic.rows()
    first, second = Compactor(topic.cluster), Compactor(Cluster.open(str(topic.path)))
    plans = [compactor.plan(topic.handle()) for compactor in (first, second)]
    assert plans[0] == plans[1]
    commands = [[SegmentWriter(topic.cluster.brokers).rewrite(run) for run in plan] for plan in plans]
    reports = [
        compactor.commit(zip(plan, made, strict=True))
        for compactor, plan, made in zip((first, second), plans, commands, strict=True)
    ]
    assert [(report.run_count, report.lost_race_count) for report in reports] == [(2, 0), (0, 2)]
    assert topic.rows() == before
    assert second.decide(topic.handle().ledger_id, commands[0][0]).outcome is Outcome.REFUSED  # a late repetition


def test_rows_written_meanwhile_stay(topic):
    topic.write()
    plan = Compactor(topic.cluster).plan(topic.handle())
    topic.write(3)
    writer = SegmentWriter(topic.cluster.brokers)
    report = Compactor(topic.cluster).commit((run, writer.rewrite(run)) for run in plan)
    assert report.run_count == 2
    assert sorted(int(row["value"][1:]) for row in topic.rows()) == list(range(topic.count))


def test_no_copy_is_lost_while_a_root_is_away(topic):
    topic.write()
    (topic.path / "broker-2").rename(topic.path / "broker-2.away")
    report = topic.compact()
    assert (report.run_count, report.failed_count) == (0, 2)
    (topic.path / "broker-2.away").rename(topic.path / "broker-2")
    assert topic.compact().run_count == 2


@pytest.mark.parametrize("is_known", [False, True])
def test_rounds_while_a_root_is_away_leave_no_copies_on_the_others(topic, is_known):
    """Each round would leave the same again, and the floor passes them a week later."""
    topic.write()
    (topic.path / "broker-2").rename(topic.path / "broker-2.away")
    if is_known:
        topic.write(1)
    before = set(topic.path.rglob("*.arrow"))
    reports = [topic.compact() for _ in range(2)]
    assert [(report.run_count, report.failed_count) for report in reports] == [(0, 0 if is_known else 2)] * 2
    assert set(topic.path.rglob("*.arrow")) == before


def test_a_damaged_copy_is_never_copied(topic):
    topic.write()
    before = topic.rows()
    victim = topic.sections()[3]
    for path in sorted((topic.path / "broker-0").rglob(victim.object.id.name)):
        data = bytearray(path.read_bytes())
        data[victim.start_byte + 60 : victim.start_byte + 64] = b"oops"
        path.write_bytes(data)
    assert topic.compact().run_count == 2  # from another replica
    assert topic.rows() == before
    topic.write()
    victim = topic.sections()[3]
    for path in topic.path.rglob(victim.object.id.name):
        data = bytearray(path.read_bytes())
        data[victim.start_byte + 60 : victim.start_byte + 64] = b"oops"
        path.write_bytes(data)
    report = topic.compact(is_eager=True)
    assert report.failed_count == 1
    assert report.run_count == 1


@pytest.mark.parametrize("is_by_key", [False, True])
def test_rows_that_cannot_be_read_are_not_read_again_by_each_round(tmp_path, monkeypatch, is_by_key):
    topic = Topic(tmp_path / "store", **({"cleanup_policy": "compact"} if is_by_key else {}))
    topic.write()
    (victim, *_) = topic.sections()[-2:]
    for path in topic.path.rglob(victim.object.id.name):
        data = bytearray(path.read_bytes())
        data[victim.start_byte + 60 : victim.start_byte + 64] = b"oops"
        path.write_bytes(data)
    topic.cluster = Cluster.open(str(topic.path), config=CoordinatorConfig(log_cleaner_backoff_ms=0))
    rounds = CompactionRounds(topic.cluster)
    assert rounds.run_once().failed_count >= 1
    fetched = []
    fetch = Fetcher.fetch
    monkeypatch.setattr(Fetcher, "fetch", lambda *args, **how: fetched.append(args) or fetch(*args, **how))
    assert rounds.run_once().failed_count == 0
    assert fetched == []
    topic.write(30)  # the other partition goes on
    assert rounds.run_once().run_count == 1


def test_a_topic_that_always_has_something_to_compact_does_not_keep_the_others_from_their_turn(topic):
    topic.store.admin().create_topic("parcels", partitions=1, replicas=3)
    topic.write()
    with topic.store.producer() as producer:
        for number in range(BATCHES):
            producer.send_arrow("parcels", pa.table({"value": [b"p%d" % number]}))
            producer.flush()
    rounds, (orders, parcels) = CompactionRounds(topic.cluster, bytes_max=1), open_topics(topic.cluster)
    compactor = Compactor(topic.cluster)
    assert [rounds.run_once().run_count for _ in range(2)] == [1, 1]
    assert len(compactor.plan(orders)) == 1 and compactor.plan(parcels) == []


def test_a_deep_verification_understands_objects_that_are_replaced_in_part(topic):
    topic.write()
    assert topic.compact(partitions=[0]).run_count == 1
    assert scrub(Cluster.open(str(topic.path)), deep=True).findings == []


def test_a_round_is_bounded_and_looks_only_at_what_is_new(topic, monkeypatch):
    topic.write()
    rounds = CompactionRounds(topic.cluster, bytes_max=1)
    assert [rounds.run_once().run_count for _ in range(3)] == [1, 1, 0]
    assert rounds.run_once().run_count == 0
    compactor = Compactor(topic.cluster)
    assert compactor.plan(topic.handle()) == []
    topic.write(30)
    assert [run.partition for run in compactor.plan(topic.handle())] == [0, 1]
    assert compactor.compact(topic.handle()).run_count == 2
    topic.write(1)
    answers = []
    sections = TopicLedgerState.sections
    monkeypatch.setattr(TopicLedgerState, "sections", lambda *args: answers.append(sections(*args)) or answers[-1])
    assert compactor.plan(topic.handle()) == []
    assert [len(answer) < 5 for answer in answers] == [True, True]


def test_a_full_disk_changes_nothing(topic, monkeypatch):
    topic.write()
    before = topic.rows()

    def full(self, key, data, **more):
        raise ReplogError(spark_replog.errors.ErrorCode.KAFKA_STORAGE_ERROR, "no space left on device")

    store = type(topic.cluster.brokers.store(0))
    monkeypatch.setattr(store, "create", full)
    report = topic.compact()
    monkeypatch.undo()
    assert (report.run_count, report.failed_count) == (0, 2)
    assert topic.rows() == before
    assert topic.compact().run_count == 2


def test_a_compactor_that_stood_still_past_the_floor_changes_nothing(topic):
    """Its object may have been collected: the fold refuses it, whatever the compactor believes."""
    topic.write()
    before = topic.rows()
    compactor = Compactor(topic.cluster)
    plan = compactor.plan(topic.handle())
    commands = [SegmentWriter(topic.cluster.brokers).rewrite(run) for run in plan]
    ledger = topic.cluster.topic_ledger(topic.handle().ledger_id)
    ledger.append(lambda _: encode_command(GenerationAdvance(2, 2)), timeout_ms=5000)
    collector = GarbageCollector(Cluster.open(str(topic.path)))
    collector.run_ledger(ledger.ledger_id)
    for command in commands:
        assert not list(topic.path.rglob(command.outputs[0].id.name))
    assert compactor.commit(zip(plan, commands, strict=True)).lost_race_count == 2
    for command in commands:  # as decided by a process that folded nothing since
        refused = ledger.append(lambda _, replacement=command: encode_command(replacement), timeout_ms=5000).result
        assert refused.outcome is Outcome.BELOW_FLOOR
    assert topic.rows() == before
    assert topic.compact().run_count == 2
    assert topic.sections()[0].object.id.generation == 2
    assert topic.rows() == before


def test_sections_in_pages_are_replaced_too(without_snapshots, topic, monkeypatch):
    """Sections that left memory behind a snapshot."""
    monkeypatch.setattr(paged_table, "PAGE_ROWS", 4)
    monkeypatch.setattr(paged_table, "FLUSH_ROWS", 3)
    monkeypatch.setattr(frozen_topics, "FLUSH_ROWS", 3)
    topic.write()
    before = topic.rows()
    ledger = topic.cluster.topic_ledger(topic.handle().ledger_id)
    ledger.refresh()
    with ledger.lock:
        frozen = ledger.state.freeze()
        pages = dict(frozen.pages)
        ledger.state.page_cache.load = pages.__getitem__
        ledger.state.adopted(frozen)
    assert pages
    assert topic.compact().run_count == 2
    paged = [topic.sections(number) for number in (0, 1)]
    topic.cluster = Cluster.open(str(topic.path))
    assert paged == [topic.sections(number) for number in (0, 1)]
    assert topic.rows() == before


def test_the_coordinator_compacts(topic):
    topic.write()
    before = topic.rows()
    command = [sys.executable, "-m", "spark_replog", "-s", str(topic.path), "coordinator", "run", "--once"]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0
    assert len(topic.sections()) == 2
    assert topic.rows() == before
    topic.write()
    off = subprocess.run([*command, "-c", "log.cleaner.enable=false"], capture_output=True, check=False)
    assert off.returncode == 0, off.stderr
    assert len(topic.sections()) > 20


STEPS = [
    *("compaction.written:1", "compaction.written:2", "compaction.copied:1", "compaction.copied:3"),
    *("compaction.before_entry:1", "compaction.before_entry:2", "compaction.after_entry:1", "compaction.after_entry:2"),
]


VERSIONS = (
    "value BINARY, key BINARY, many ARRAY<INT>",
    "value BINARY, key BINARY, many ARRAY<BIGINT>, note STRING",
    "value BINARY, key BINARY, many ARRAY<DECIMAL(20,1)>, note STRING, paid BOOLEAN",
)
IN_EACH_RUN = {(): STEPS[::2], VERSIONS: STEPS[1::4]}


@pytest.mark.parametrize(
    ("versions", "step"),
    [
        pytest.param(versions, step, marks=() if step in steps else pytest.mark.wide)
        for versions, steps in IN_EACH_RUN.items()
        for step in STEPS
    ],
)
def test_a_compactor_that_is_killed_at_a_step_is_finished_by_the_next(tmp_path, versions, step):
    topic = Topic(tmp_path / "store", versions=versions)
    topic.write()
    before = topic.rows()
    assert killed(topic.path, step) == -signal.SIGKILL
    assert topic.rows() == before
    topic.versions = versions[-1:]
    topic.write(1)
    topic.compact()
    assert topic.rows()[: len(before) // 2] == before[: len(before) // 2]
    assert {row["value"] for row in topic.rows()} >= {row["value"] for row in before}
    assert [len(topic.sections(number)) <= 3 for number in (0, 1)] == [True, True]


def killed(path: Path, step: str) -> int:
    """Compact in a process that ends at a step; return its exit code."""
    command = [sys.executable, "-m", "spark_replog", "-s", str(path), "topic", "compact", "orders"]
    environment = {**os.environ, "REPLOG_FAULT_POINT": step}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False).returncode


# -- sections of several versions of a schema ---------------------------------------------------------


def versions_of(topic):
    """The version of each section, in order."""
    return [[section.object.schema_version for section in topic.sections(number)] for number in (0, 1)]


def test_small_objects_of_several_versions_become_one_of_the_newest_and_older_readers_sleep_over_it(tmp_path):
    topic = Topic(tmp_path / "store", versions=VERSIONS)
    topic.versions = VERSIONS[:1]
    topic.write(12)
    asleep = spark_replog.open(str(topic.path)).topic("orders").scan()
    old_rows = topic.rows()
    with spark_replog.open(str(topic.path)).consumer("orders", auto_offset_reset="earliest") as consumer:
        first = consumer.poll(timeout_ms=5000, max_records=1)
        topic.versions = VERSIONS[1:]
        topic.write(12)
        with topic.store.producer() as producer:
            for partition in (0, 1):
                for _ in range(2):  # the newest section stays as it is
                    many = pa.array([[1 << 40]], pa.list_(pa.int64()))
                    row = {"key": [b"k"], "many": many, "_replog_partition": pa.array([partition], pa.int32())}
                    producer.send_arrow("orders", pa.table(row)).result(60)
        before = topic.rows()
        ends = [section.end_offset for number in (0, 1) for section in topic.sections(number)[-2:-1]]
        assert [sorted(set(versions)) for versions in versions_of(topic)] == [[1, 2, 3]] * 2
        assert topic.compact().run_count == 2
        assert versions_of(topic) == [[3, 3]] * 2
        assert topic.rows() == before
        assert asleep.to_arrow().to_pylist() == old_rows
        rows = [record.value for record in first]
        try:
            while len(rows) < len(before):
                rows += [record.value for record in consumer.poll(timeout_ms=5000)]
        except ReplogError as error:
            assert error.code is spark_replog.errors.ErrorCode.REPLOG_INVALID_SCHEMA
    assert ends[0] == ends[1] == len(before) // 2 - 1
    values = [row["value"] for row in rows]
    assert len(values) == len(set(values)) and all(isinstance(row["many"][0], int) for row in rows)


@pytest.mark.parametrize("is_older_first", [True, False])
def test_of_two_compactors_with_different_versions_one_wins_and_no_column_is_lost(tmp_path, is_older_first):
    topic = Topic(tmp_path / "store", versions=VERSIONS)
    topic.write()
    before, plans, compactors = topic.rows(), [], []
    for ddl in (VERSIONS[-1], f"{VERSIONS[-1]}, late INT"):  # decided between what one plans and its entry
        topic.store.admin().evolve_schema("orders", ddl)
        compactors.append(Compactor(Cluster.open(str(topic.path))))
        plans.append([(run, SegmentWriter(topic.cluster.brokers).rewrite(run))
                      for run in compactors[-1].plan(topic.handle())])  # fmt: skip
    assert [run.schemas[-1].version for plan in plans for run, _ in plan] == [3, 3, 4, 4]
    order = (0, 1) if is_older_first else (1, 0)
    reports = [compactors[at].commit(plans[at]) for at in order]
    assert [(report.run_count, report.lost_race_count) for report in reports] == [(2, 0), (0, 2)]
    assert versions_of(topic) == [[3 if is_older_first else 4, 3]] * 2
    assert topic.rows() == [row | {"late": None} for row in before]
    topic.versions = [f"{VERSIONS[-1]}, late INT"]
    topic.write(12)
    topic.compact(is_eager=True)
    assert topic.rows()[: len(before) // 2] == [row | {"late": None} for row in before[: len(before) // 2]]
    assert {row["value"] for row in topic.rows()} >= {row["value"] for row in before}
