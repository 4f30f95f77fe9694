"""Backup, restore and lost roots, as docs/operations.md says: with real directories, and writers that go on."""

from __future__ import annotations

import shutil
import threading
from contextlib import suppress
from pathlib import Path

import pytest

import spark_replog
from spark_replog import Producer
from spark_replog.cli.main import run
from spark_replog.maintenance.scrub import scrub


def values(path: Path, topic: str = "orders") -> list[bytes]:
    table = spark_replog.open(str(path)).topic(topic).scan().to_arrow()
    return sorted(table.column("value").to_pylist())


@pytest.fixture
def path(tmp_path):
    made = tmp_path / "store"
    spark_replog.init(made, 3, fsync=False, racks=["east", "east", "west"]).admin().create_topic("orders", 2)
    return made


class Writing:
    """Sends rows until it is left; `told` are those that were acknowledged."""

    def __init__(self, path: Path) -> None:
        self.told: list[bytes] = []
        self._path, self._is_over, self._more = path, threading.Event(), threading.Condition()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        with Producer(str(self._path)) as producer:
            while not self._is_over.is_set():
                value = b"%06d" % len(self.told)
                producer.send("orders", value).result(60)
                with self._more:
                    self.told.append(value)
                    self._more.notify_all()

    def until(self, count: int) -> list[bytes]:
        """Wait for so many more rows; return all that were acknowledged before this call."""
        with self._more:
            before = list(self.told)
            assert self._more.wait_for(lambda: len(self.told) >= len(before) + count, 60)
        return before

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._is_over.set()
        self._thread.join()


def test_a_backup_by_copy_while_writers_go_on_holds_all_that_was_acknowledged_before(path, tmp_path):
    backup = tmp_path / "elsewhere"
    spark_replog.init(backup, 1, fsync=False).admin().create_topic("orders", 2)
    with Writing(path) as writing:
        writing.until(30)
        before = writing.until(1)
        assert run(["-s", str(path), "copy", "orders", "orders", "--to-store", str(backup), "-q"]) == 0
        writing.until(5)
    backup_values = values(backup)
    assert set(before) <= set(backup_values) <= set(writing.told) and len(backup_values) == len(set(backup_values))


def test_roots_copied_without_writers_are_the_store_at_another_place(path, tmp_path):
    with Writing(path) as writing:
        writing.until(30)
    restored = tmp_path / "restored"
    shutil.copytree(path, restored)
    shutil.rmtree(path)
    assert run(["-s", str(restored), "store", "verify", "--deep", "-q"]) == 0
    assert values(restored) == writing.told
    with Producer(str(restored)) as producer:
        producer.send("orders", b"new").result(60)
    assert values(restored) == sorted([*writing.told, b"new"])


def test_roots_copied_one_after_another_under_writers_are_found_out(path, tmp_path):
    torn = tmp_path / "torn"
    with Writing(path) as writing:
        writing.until(30)
        for broker in range(3):
            for file in sorted(entry for entry in (path / f"broker-{broker}").rglob("*") if entry.is_file()):
                target = torn / file.relative_to(path)
                target.parent.mkdir(parents=True, exist_ok=True)
                with suppress(FileNotFoundError):  # renamed or deleted since it was listed
                    shutil.copy2(file, target)
            writing.until(10)
    assert run(["-s", str(torn), "store", "verify", "-q"]) != 0  # the first root went back, as the others name


@pytest.mark.parametrize("gone", [(1,), (2,)], ids=["a machine", "all of one rack"])
def test_lost_roots_are_made_new_while_writers_go_on(path, gone):
    with Writing(path) as writing:
        writing.until(20)
        for broker in gone:
            lost = path.parent / f"lost-{broker}"
            (path / f"broker-{broker}").rename(lost)
            shutil.rmtree(lost, ignore_errors=True)
        writing.until(20)
        assert run(["-s", str(path), "store", "repair", "-y", "-q"]) == 0
        writing.until(5)
    assert values(path) == writing.told
    assert run(["-s", str(path), "coordinator", "run", "--once", "-q"]) == 0
    cluster = spark_replog.open(str(path)).cluster
    cluster.refresh()
    assert scrub(cluster).findings == []
