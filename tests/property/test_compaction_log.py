"""Random logs, compactions by size and by key, trims, two compactors: what a reader may rely on always holds.

Rows are bytes, or columns whose schema changes now and then.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import spark_replog
from spark_replog.client.store import init_store
from spark_replog.cluster.cluster import Cluster
from spark_replog.log.fold import frozen_topics, paged_table
from spark_replog.maintenance import compaction, segment_writer
from spark_replog.maintenance.compaction import Compactor
from tests.examples import examples

KEYS = ["a", "b", "c", "d"]
VERSIONS = [
    "v INT, k STRING",
    "v INT, k STRING, gone BOOLEAN",
    "v BIGINT, k STRING, gone BOOLEAN, more ARRAY<STRING>",
    "v DECIMAL(24,2), k STRING, gone BOOLEAN, more ARRAY<STRING>, last INT",
]
batches = st.lists(st.tuples(st.sampled_from(KEYS), st.none() | st.integers(0, 99)), min_size=1, max_size=5)


class CompactedLog(RuleBasedStateMachine):
    """One partition in one root, and every row that was ever written to it."""

    @initialize(
        policy=st.sampled_from(["delete", "compact", "compact,delete"]),
        retention_ms=st.sampled_from(["0", "1000000000"]),
        group_bytes=st.sampled_from([1, 2_000, 10**9]),
        version=st.sampled_from([0, 2]),
    )
    def open(self, policy, retention_ms, group_bytes, version):
        self.folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.path = Path(self.folder.name) / "store"
        self.store = init_store(str(self.path), 1, fsync=False)
        config = {"cleanup.policy": policy, "delete.retention.ms": retention_ms, "min.cleanable.dirty.ratio": "0"}
        self.version = version
        """Of the rows' columns, which may delete from version 2 on; 0: rows are bytes."""
        typed = {"schema": VERSIONS[0], "key": ["k"]} if version else {}
        self.store.admin().create_topic("t", partitions=1, replicas=1, config=config, **typed)
        if version:
            self.store.admin().evolve_schema("t", VERSIONS[1])
            self.store.admin().alter_config("t", {"delete.column": "gone"})
        self.cluster = Cluster.open(str(self.path))
        self.policy = policy
        self.is_compacted, self.retention_ms = "compact" in policy, retention_ms
        self.group_bytes = group_bytes
        self.rows: list[tuple[str, int | None]] = []
        self.start = 0
        self.gone: set[int] = set()
        self.stale: list = []
        self.rows_before = paged_table.PAGE_ROWS, paged_table.FLUSH_ROWS, frozen_topics.FLUSH_ROWS
        paged_table.PAGE_ROWS, paged_table.FLUSH_ROWS, frozen_topics.FLUSH_ROWS = 4, 3, 3

    @rule(rows=batches)
    def write(self, rows):
        self.rows += rows
        keys = pa.array([key.encode() for key, _ in rows], pa.binary())
        values = pa.array([None if value is None else b"%d" % value for _, value in rows], pa.binary())
        table = pa.table({"key": keys, "value": values})
        if self.version:
            gone = [True if value is None else (None, False)[value % 2] for _, value in rows]
            numbers = pa.array([value for _, value in rows], pa.int32())
            table = pa.table({"k": [key for key, _ in rows], "v": numbers, "gone": pa.array(gone, pa.bool_())})
        with self.store.producer() as producer:
            producer.send_arrow("t", table)

    @precondition(lambda self: 0 < self.version < len(VERSIONS))
    @rule()
    def evolve(self):
        self.version += 1
        self.store.admin().evolve_schema("t", VERSIONS[self.version - 1])

    @rule(is_eager=st.booleans())
    def compact(self, is_eager):
        groups = compaction.group_sections
        compaction.group_sections = lambda sections, _: groups(sections, self.group_bytes)
        try:
            report = Compactor(self.cluster).compact(self.handle(), is_eager=is_eager)
        finally:
            compaction.group_sections = groups
        assert (report.failed_count, report.lost_race_count) == (0, 0)

    @rule()
    def plan(self):
        """Another compactor plans, and acts on it much later."""
        self.stale.append(Compactor(self.cluster).plan(self.handle(), sections_min=2))

    @precondition(lambda self: self.stale)
    @rule()
    def act_on_a_stale_plan(self):
        compactor = Compactor(self.cluster)
        for run in self.stale.pop(0):
            compactor.commit([(run, compactor._writer.rewrite(run))])

    @rule()
    def page_out(self):
        """What settled leaves the compactor's memory, behind a snapshot."""
        self.cluster.topic_ledger(self.handle().ledger_id).snapshot(timeout_ms=60_000)

    @precondition(lambda self: self.rows and self.policy != "compact")
    @rule(data=st.data())
    def trim(self, data):
        self.start = data.draw(st.integers(self.start, len(self.rows)))
        self.store.admin().delete_records("t", {0: self.start})

    @invariant()
    def readers_see_what_they_may(self):
        if not hasattr(self, "rows"):
            return
        names = ["_replog_offset", "k", "v", "gone"] if self.version else ["offset", "key", "value"]
        table = spark_replog.open(str(self.path)).topic("t").scan(columns=names).to_arrow()
        offsets, keys, values = [table.column(name).to_pylist() for name in names[:3]]
        keys = [key if self.version else key.decode() for key in keys]
        values = [None if value is None else int(value) for value in values]
        if self.version:
            assert [value is None for value in values] == [bool(gone) for gone in table.column("gone").to_pylist()]
        seen = dict(zip(offsets, zip(keys, values, strict=True), strict=True))
        assert offsets == sorted(set(offsets))
        assert all(self.rows[offset] == row for offset, row in seen.items()), "another row under an offset"
        assert not self.gone & seen.keys(), "a row came back"
        readable = range(self.start, len(self.rows))
        self.gone = set(readable) - seen.keys()
        if not self.is_compacted:
            assert offsets == list(readable)
        latest = {self.rows[offset][0]: offset for offset in readable}
        for offset in self.gone:
            key, value = self.rows[offset]
            is_replaced = latest[key] > offset
            assert is_replaced or (value is None and self.retention_ms == "0"), "the latest row of a key is gone"
        for key, offset in latest.items():
            kept = [at for at, row in seen.items() if row[0] == key]
            if offset in self.gone:
                assert kept == [], "an older value of a deleted key is there"
        if self.rows and self.start < len(self.rows):
            assert len(self.rows) - 1 in seen, "the newest row is gone"

    def handle(self):
        self.cluster.refresh()
        return self.cluster.lookup("t")

    def teardown(self):
        if hasattr(self, "folder"):
            self.folder.cleanup()
            paged_table.PAGE_ROWS, paged_table.FLUSH_ROWS, frozen_topics.FLUSH_ROWS = self.rows_before


CompactedLog.TestCase.settings = settings(
    max_examples=examples(10), stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
)
TestCompactedLog = CompactedLog.TestCase


def test_a_plan_that_pays_is_bounded():
    """Every row is rewritten a few times at most, however slowly a partition grows."""
    from spark_replog.ids import ObjectId
    from spark_replog.log.fold.partition_state import ObjectRef, SectionRef

    def section(base, end, size_bytes):
        item = ObjectRef("L", ObjectId(0, f"o{base}"), size_bytes, False, frozenset((0,)))
        return SectionRef(base, end - base, item, 8, size_bytes, 0, 0, 0, 0, 0, end)

    sections: list[SectionRef] = []
    written = rewritten = 0
    limits = segment_writer.CompactionLimits(1 << 26, None)
    for base in range(3000):
        sections.append(section(base, base + 1, 1000))
        written += 1000
        for stretch in list(segment_writer._stretches(sections, limits)):
            kept = segment_writer.worth_joining(stretch, limits.size_max_bytes, segment_writer.SECTIONS_MIN)
            if kept:
                size_bytes = sum(kept_section.size_bytes for kept_section in kept)
                rewritten += size_bytes
                at = sections.index(kept[0])
                joined = section(kept[0].base_offset, kept[-1].end_offset, size_bytes)
                sections[at : at + len(kept)] = [joined]
    assert len(sections) < 60
    assert rewritten < 8 * written
    assert pytest.approx(sum(log_section.size_bytes for log_section in sections)) == written
