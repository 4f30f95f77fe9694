"""A store with all that ages: transactions, groups, compaction, retention, inline rows, snapshots with pages, cuts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import spark_replog
from spark_replog.cli.main import run
from spark_replog.cluster.cluster import Cluster
from spark_replog.config.coordinator import CoordinatorConfig
from spark_replog.ids import TopicPartition
from spark_replog.ledger.ledger import Ledger
from spark_replog.log.fold.topic_state import TopicLedgerState
from spark_replog.maintenance.upkeep import Upkeep
from spark_replog.storage.paths import data_key, journal_folder, marker_folder, snapshot_folder
from spark_replog.storage.root_file import decode_root_file, encode_root_file
from tests.at_rest import wait_at_rest
from tests.scenarios.committing import SMALL

TOPICS: Mapping[str, Mapping[str, str]] = {
    "plain": {},
    "aged": {"retention.ms": "-1", "retention.bytes": "3000"},
    "keyed": {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"},
}
UPKEEP = CoordinatorConfig(log_retention_check_interval_ms=1, file_delete_delay_ms=0, gc_floor_lag_ms=1)
ROUNDS = 3


def age(path: Path, patch: pytest.MonkeyPatch) -> None:
    """Make the store with snapshots and cuts at each commit; three roots, all of them with all files."""
    for module, name, value in SMALL:
        patch.setattr(module, name, value)
    store = spark_replog.init(path, 3, fsync=False)
    for topic, config in TOPICS.items():
        store.admin().create_topic(topic, partitions=2, replicas=3, config=config)
    cluster = Cluster.open(str(path), config=UPKEEP)
    upkeep = Upkeep(cluster)
    for number in range(ROUNDS):
        with store.producer() as producer:
            for topic in TOPICS:
                for row in range(6):
                    producer.send(topic, f"{topic}-{number}-{row}".encode(), key=b"k%d" % (row % 3)).result(60)
        with store.producer({"inline.max.bytes": 4096}) as producer:
            producer.send("plain", f"inline-{number}".encode(), key=b"i").result(60)
        with store.producer({"transactional.id": "t"}) as producer, producer.transaction():
            producer.send("plain", f"transaction-{number}".encode(), key=b"t")
        with store.consumer("plain", group="readers", auto_offset_reset="earliest") as consumer:
            assert len(consumer.poll(timeout_ms=60_000))
            consumer.commit()
        for topic in TOPICS:
            cluster.refresh()
            ledger, _ = cluster.folded_topic(cluster.lookup(topic))
            upkeep.run(ledger)
            ledger.snapshot(timeout_ms=60_000)
        assert run(["-q", "-s", str(path), "topic", "compact", "keyed", "--all"]) == 0
    wait_at_rest(store.cluster.brokers)
    wait_at_rest(cluster.brokers)
    for broker_id in range(3):  # flushing 1,000 files takes long on a disk; what follows must treat them as flushed
        file = path / f"broker-{broker_id}" / "replog.json"
        file.write_bytes(encode_root_file(replace(decode_root_file(file.read_bytes(), url=str(file)), fsync=True)))


def content(path: Path) -> dict[str, Any]:
    """Return all that a new process reads: rows by topic, and the group's offsets.

    Args:
        path: of a copy of the store that `age` made: this process keeps what it knows of that one's root files.
    """
    store, found = spark_replog.open(path), {}
    for topic in TOPICS:
        table = store.topic(topic).scan().to_arrow()
        columns = (table.column(each).to_pylist() for each in ("partition", "offset", "key", "value"))
        found[topic] = sorted(zip(*columns, strict=True))
    with store.consumer("plain", group="readers") as consumer:
        partitions = [TopicPartition("plain", each) for each in range(2)]
        found["readers"] = sorted(consumer.committed(partitions).items())
    return found


def kinds(path: Path) -> dict[str, list[str]]:
    """Return per kind of file that storage needs the keys of some, the first one to be damaged, on every root."""
    cluster = Cluster.open(str(path))
    cluster.refresh()
    found = {"replog.json": ["replog.json"]}
    names = {"plain": "plain", "groups": "__consumer_offsets"}
    ledgers: dict[str, Ledger[Any]] = {each: cluster.topic_state(cluster.lookup(at))[0] for each, at in names.items()}
    for name, ledger in {"cluster": cluster.cluster_ledger, **ledgers}.items():
        ledger.refresh()
        folders = journal_folder, marker_folder, snapshot_folder
        records, markers, heads = (_keys(path / "broker-0", each(ledger.ledger_id)) for each in folders)
        records = [each for each in records if int(each[-20:]) >= ledger.core.roots[0].floor.position]
        keys = sorted(ledger.snapshots.files())
        found[f"{name}: record"], found[f"{name}: last record"] = records, records[::-1]
        found[f"{name}: first marker"], found[f"{name}: marker"] = markers, markers[::-1]
        found[f"{name}: head"] = sorted(heads, key=lambda each: each not in keys)
        found[f"{name}: page"] = [each for each in keys if "/pages/" in each]
    for topic, kind in (("plain", "object"), ("keyed", "compacted segment")):
        handle = cluster.lookup(topic)
        ledger, _ = cluster.topic_state(handle)
        found[kind] = sorted(ledger.ask(partial(_objects, handle.topic_id)))
    return {kind: keys for kind, keys in found.items() if keys}


def _keys(root: Path, folder: str) -> list[str]:
    return sorted(f"{folder}{each.name}" for each in (root / folder).iterdir())


def _objects(topic_id: str, state: TopicLedgerState) -> set[str]:
    found = set()
    for number, each in enumerate(state.topics[topic_id].partitions):
        for section in state.sections(topic_id, number, each.log_start_offset, each.log_end_offset):
            if not section.object.inline:
                found.add(data_key(section.object.ledger_id, *section.object.id))
    return found
