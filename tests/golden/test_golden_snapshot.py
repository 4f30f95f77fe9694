"""Snapshots of every released format stay readable and mean the same.

A NEW format version gets files of its own: ``python tests/golden/test_golden_snapshot.py tests/golden/v<N>``.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from spark_replog.ids import ObjectId
from spark_replog.log.codec.commands import encode_command, encode_entry
from spark_replog.log.fold import frozen_topics, paged_table
from spark_replog.log.fold.cluster_state import ClusterLedgerState
from spark_replog.log.fold.topic_state import TopicLedgerState
from spark_replog.log.model import (
    Append,
    BrokerRegister,
    ClusterConfigSet,
    DataObject,
    IdentityKind,
    IsrChange,
    LedgerRegister,
    LogStartAdvance,
    LogStartReason,
    ProducerIdentity,
    SchemaEvolve,
    Section,
    TopicInit,
    TopicPublish,
)
from spark_replog.log.row_schema import RowSchema

HERE = Path(__file__).parent
FOLDERS = sorted(path.parent for path in HERE.glob("v*/snapshot.json"))
LEDGER, TOPIC, TYPED = "fedcba9876543210" * 2, "0123456789abcdef" * 2, "89abcdef01234567" * 2


def meaning(topics, cluster):
    """What the states say, as JSON can hold it."""
    partitions = topics.topics[TOPIC].partitions
    refs = [row.object for p in range(len(partitions)) for row in topics.sections(TOPIC, p, 0, 999)]
    inline = {reference.id.name: reference.inline.hex() for reference in refs if reference.inline}
    typed = topics.topics[TYPED]
    return {
        "schemas": [[schema.version, schema.ddl, list(schema.key)] for schema in typed.schemas],
        "typed": [
            [row.base_offset, row.row_count, row.object.id.name, row.object.schema_version]
            for row in topics.sections(TYPED, 0, 0, 999)
        ],
        "inline": inline,
        "cluster": [cluster.topics, cluster.ledgers, cluster.config, [root.url for root in cluster.brokers.values()]],
        "index": topics.applied_index,
        "bounds": [partition.bounds for partition in partitions],
        "marks": [partition.high_watermark for partition in partitions],
        "sections": [
            [
                [*row[:2], row.object.id, sorted(row.object.holders), *row[3:]]
                for row in topics.sections(TOPIC, p, 0, 999)
            ]
            for p in range(len(partitions))
        ],
        "missing": [[*copy[:3], copy.missing] for copy in topics.under_replicated(include_out_of_sync=True)],
        "objects": sorted(topics.referenced_objects(0)),
        "last": topics.producers.get(ProducerIdentity("q", "q", 0, "", IdentityKind.STREAM)).last_sequences,
    }


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_snapshots_mean_what_they_meant(folder):
    topics, cluster = TopicLedgerState(LEDGER), ClusterLedgerState()
    topics.restore((folder / "snapshot_topic.bin").read_bytes(), lambda name: (folder / "pages" / name).read_bytes())
    cluster.restore((folder / "snapshot_cluster.bin").read_bytes(), lambda name: b"")
    assert json.loads(json.dumps(meaning(topics, cluster))) == json.loads((folder / "snapshot.json").read_text())
    assert {path.name for path in (folder / "pages").iterdir()} == set(topics.page_names())


def test_a_head_says_when_brokers_left():
    topics, old = TopicLedgerState(LEDGER), TopicLedgerState(LEDGER)
    old.restore((FOLDERS[-1] / "snapshot_topic.bin").read_bytes(), lambda name: b"")
    assert old.leadership.left_at == {}
    leave = [IsrChange(None, 1, False, 5), IsrChange(None, 0, True, 5), IsrChange(TOPIC, 0, False, 5)]
    old.apply(old.applied_index + 1, encode_entry([encode_command(command) for command in leave]))
    topics.restore(old.freeze().head, lambda name: b"")
    assert topics.leadership.left_at == old.leadership.left_at == {1: old.applied_index}
    item = DataObject(ObjectId(0, "o"), 1, False, frozenset({0, 1, 2}), (), after_index=old.applied_index - 1)
    assert topics.doubtful(item) == {1}


def write(folder):
    """Write the files: ten pages of four rows, merged, and a head."""
    paged_table.PAGE_ROWS, paged_table.FLUSH_ROWS, frozen_topics.FLUSH_ROWS = 4, 8, 8
    topics, cluster, pages = TopicLedgerState(LEDGER), ClusterLedgerState(), {}
    topics.load_page = pages.__getitem__

    def entry(state, *commands):
        state.apply(state.applied_index + 1, encode_entry([encode_command(command) for command in commands]))

    entry(
        cluster,
        BrokerRegister(0, "file:///r0", None, "{}"),
        LedgerRegister("main", LEDGER),
        TopicPublish("orders", TOPIC, LEDGER),
        ClusterConfigSet((("x", "1"),)),
    )
    entry(topics, TopicInit(TOPIC, "orders", ((0, 1), (1, 0)), (("retention.ms", "1000"),)))
    entry(topics, TopicInit(TYPED, "typed", ((0, 1),), (), RowSchema("id BIGINT, at TIMESTAMP", ("id",))))
    for number in range(40):
        sections = tuple(Section(TOPIC, p, 2 + p, 100 * p, 90, 2**31 + number, number, number + 5) for p in range(2))
        holders = frozenset({0, 1} if number != 31 else {0})
        item = DataObject(ObjectId(0, f"o-{number}"), 200, number % 2 == 1, holders, sections[: 1 + number % 2])
        rows = DataObject(
            ObjectId(0, f"t-{number}"), 90, False, holders, (Section(TYPED, 0, 3, 0, 90, number, number, number),),
            schema_version=1 + (number > 20),
        )  # fmt: skip
        if number in (3, 38):
            inline = bytes(range(number, number + 200))
            item = replace(item, id=ObjectId(0, f"i-{number}"), holders=frozenset(), inline=inline)
        who = ProducerIdentity("q", "q", number, "r", IdentityKind.STREAM)
        entry(topics, Append(who, "u", "c", number, (item, rows)))
        if number % 6 == 5:
            frozen = topics.freeze()
            pages.update(frozen.pages)
            topics.adopted(frozen)
        if number == 20:
            entry(topics, SchemaEvolve(TYPED, 2, RowSchema("id BIGINT, at TIMESTAMP, more STRING", ("id",))))
            entry(topics, LogStartAdvance(TOPIC, LogStartReason.RETENTION, ((0, 7),)))
    frozen = topics.freeze()
    (folder / "pages").mkdir()
    pages.update(frozen.pages)
    topics.adopted(frozen)
    for name in topics.page_names():
        (folder / "pages" / name).write_bytes(pages[name])
    (folder / "snapshot_topic.bin").write_bytes(frozen.head)
    (folder / "snapshot_cluster.bin").write_bytes(cluster.freeze().head)
    (folder / "snapshot.json").write_text(json.dumps(meaning(topics, cluster), indent=1) + "\n")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
