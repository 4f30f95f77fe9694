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
    store, contents = spark_replog.open(path), {}
    for topic in TOPICS:
        table = store.topic(topic).scan().to_arrow()
        columns = (table.column(column).to_pylist() for column in ("partition", "offset", "key", "value"))
        contents[topic] = sorted(zip(*columns, strict=True))
    with store.consumer("plain", group="readers") as consumer:
        partitions = [TopicPartition("plain", number) for number in range(2)]
        contents["readers"] = sorted(consumer.committed(partitions).items())
    return contents


def kinds(path: Path) -> dict[str, list[str]]:
    """Return per kind of file that storage needs the keys of some, the first one to be damaged, on every root."""
    cluster = Cluster.open(str(path))
    cluster.refresh()
    keys_by_kind = {"replog.json": ["replog.json"]}
    names = {"plain": "plain", "groups": "__consumer_offsets"}
    ledgers: dict[str, Ledger[Any]] = {label: cluster.topic_state(cluster.lookup(at))[0] for label, at in names.items()}
    for name, ledger in {"cluster": cluster.cluster_ledger, **ledgers}.items():
        ledger.refresh()
        folders = journal_folder, marker_folder, snapshot_folder
        records, markers, heads = (_keys(path / "broker-0", folder(ledger.ledger_id)) for folder in folders)
        records = [record for record in records if int(record[-20:]) >= ledger.core.roots[0].floor.position]
        keys = sorted(ledger.snapshots.files())
        keys_by_kind[f"{name}: record"], keys_by_kind[f"{name}: last record"] = records, records[::-1]
        keys_by_kind[f"{name}: first marker"], keys_by_kind[f"{name}: marker"] = markers, markers[::-1]
        keys_by_kind[f"{name}: head"] = sorted(heads, key=lambda head: head not in keys)
        keys_by_kind[f"{name}: page"] = [key for key in keys if "/pages/" in key]
    for topic, kind in (("plain", "object"), ("keyed", "compacted segment")):
        handle = cluster.lookup(topic)
        ledger, _ = cluster.topic_state(handle)
        keys_by_kind[kind] = sorted(ledger.ask(partial(_objects, handle.topic_id)))
    return {kind: keys for kind, keys in keys_by_kind.items() if keys}


def _keys(root: Path, folder: str) -> list[str]:
    return sorted(f"{folder}{file.name}" for file in (root / folder).iterdir())


def _objects(topic_id: str, state: TopicLedgerState) -> set[str]:
    keys = set()
    for number, partition in enumerate(state.topics[topic_id].partitions):
        for section in state.sections(topic_id, number, partition.log_start_offset, partition.log_end_offset):
            if not section.object.inline:
                keys.add(data_key(section.object.ledger_id, *section.object.id))
    return keys
