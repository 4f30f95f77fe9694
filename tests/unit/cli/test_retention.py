"""``topic config`` with a retention that deletes rows, ``store gc``, and the retention part of ``coordinator run``."""

from __future__ import annotations

import pytest

import spark_replog

OLD_MS = 1_000


@pytest.fixture
def path(tmp_path, replog):
    folder = tmp_path / "store"
    assert replog("-s", folder, "init", "--brokers", 3, "--no-fsync").exit_code == 0
    assert replog("-s", folder, "topic", "create", "orders", "-p", 2, "-c", "retention.ms=-1").exit_code == 0
    store = spark_replog.open(folder)
    with store.producer() as producer:
        for _ in range(3):
            for partition in (0, 1):
                producer.send("orders", b"x" * 10, partition=partition, timestamp_ms=OLD_MS)
            producer.flush()
    return folder


def of_data(answer):
    """Without the files of snapshots, which commits write in the background."""
    return [item for item in answer.items if "snapshot" not in item["reason"]]


def test_a_retention_that_deletes_rows_is_set_after_a_question_only(path, replog):
    answer = replog("-s", path, "topic", "config", "orders", "set", "retention.ms=86400000")
    assert answer.exit_code == 2 and "add -y" in answer.err
    assert replog("-s", path, "topic", "config", "orders", "get", "-f", "json").items[0]["settings"][0]["value"] == "-1"
    assert replog("-s", path, "topic", "config", "orders", "set", "compression.type=lz4").exit_code == 0
    assert replog("-s", path, "topic", "config", "orders", "set", "retention.bytes=100000").exit_code == 0
    preview = spark_replog.open(path).admin().aged_out("orders", {"retention.ms": "86400000"})
    assert [(loss.partition, loss.start_offset, loss.row_count) for loss in preview] == [(0, 2, 2), (1, 2, 2)]
    assert spark_replog.open(path).admin().aged_out("orders") == []
    assert replog("-s", path, "topic", "config", "orders", "set", "retention.ms=86400000", "-y").exit_code == 0
    assert replog("-s", path, "topic", "config", "orders", "set", "retention.ms=-2", "-y").exit_code == 2


def test_a_question_names_rows_bytes_and_partitions(path, replog, monkeypatch):
    asked = []
    monkeypatch.setattr("spark_replog.cli.topic.confirm", lambda yes, question: asked.append((yes, question)))
    # The default counts from the append: nothing goes.
    assert replog("-s", path, "topic", "config", "orders", "unset", "retention.ms").exit_code == 0
    assert asked == []
    assert replog("-s", path, "topic", "config", "orders", "set", "retention.ms=604800000").exit_code == 0
    ((yes, question),) = asked
    assert not yes and question.startswith("4 rows of orders (") and "in 2 partitions" in question


def test_gc_deletes_what_the_retention_took_and_says_what(path, replog):
    assert replog("-s", path, "topic", "config", "orders", "set", "retention.ms=86400000", "-y").exit_code == 0
    assert of_data(replog("-s", path, "store", "gc", "--dry-run", "-f", "json")) == []
    assert replog("-s", path, "topic", "offsets", "orders", "--at", "start", "-f", "json").items[0]["offset"] == 0
    answer = replog("-s", path, "store", "gc", "-f", "json")
    assert answer.exit_code == 0
    assert [(item["broker"], item["files"], item["reason"]) for item in of_data(answer)] == [
        (broker, 2, "all of its rows were deleted") for broker in (0, 1, 2)
    ]
    assert replog("-s", path, "topic", "offsets", "orders", "--at", "start", "-f", "json").items[0]["offset"] == 2
    assert "0 files deleted, 0 bytes" in replog("-s", path, "store", "gc").out


def test_a_dry_run_explains_each_file(path, replog):
    assert replog("-s", path, "topic", "trim", "orders", "--partition", 0, "--to", 2, "-y").exit_code == 0
    assert replog("-s", path, "topic", "trim", "orders", "--partition", 1, "--to", 1, "-y").exit_code == 0
    answer = replog("-s", path, "store", "gc", "--dry-run", "-f", "json")
    assert sorted(item["broker"] for item in of_data(answer)) == [0, 1, 2]
    (item,) = [item for item in of_data(answer) if item["broker"] == 0]
    assert item["reason"] == "all of its rows were deleted" and item["bytes"] > 0 and item["since"]
    assert (path / "broker-0" / item["file"]).exists()
    text = replog("-s", path, "store", "gc", "--dry-run").out
    assert item["file"] in text and "3 files would be deleted" in text


def test_the_coordinator_applies_retention(path, replog):
    assert replog("-s", path, "topic", "config", "orders", "set", "retention.bytes=0", "-y").exit_code == 0
    assert replog("-s", path, "coordinator", "run", "--once").exit_code == 0
    assert replog("-s", path, "topic", "offsets", "orders", "--at", "start", "-f", "json").items[1]["offset"] == 2


def test_store_snapshot_covers_every_ledger_and_the_next_process_begins_there(path, replog):
    answer = replog("-s", path, "store", "snapshot", "-f", "json")
    assert answer.exit_code == 0 and len(answer.items) == 2 and all(item["ok"] for item in answer.items)
    counts = [len(list((path / f"broker-{root}" / "ledgers").glob("*/snapshots/*"))) for root in range(3)]
    assert sorted(counts)[1] >= 2, "two of three roots have them when the command ends"
    assert [item["written"] for item in replog("-s", path, "store", "snapshot", "-f", "json").items] == [0, 0]
    assert "DELETED" in replog("-s", path, "store", "snapshot").out
    store = spark_replog.open(path)
    ledger = store.admin()._cluster.topic_ledger(answer.items[1]["ledgerId"])
    ledger.refresh()
    assert ledger.state.snapshot.no > 0 and ledger.stats.gets < 30
