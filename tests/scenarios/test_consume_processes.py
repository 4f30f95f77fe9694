"""Members of a group that are ``replog consume`` commands, each a process of its own as a user starts it."""

from __future__ import annotations

import json
import queue
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from spark_replog.groups.group_coordinator import GroupCoordinator
from tests.unit.cli.test_consume_group import PATIENCE_S, committed, wait_for
from tests.unit.client.consumer_setup import Store, rows

ROOT = Path(__file__).parents[2]


class Member:
    """One ``replog consume --group app --follow`` and the lines that it prints."""

    def __init__(self, path: str) -> None:
        words = ["consume", "orders", "-g", "app", "--from-beginning", "--follow", "-f", "jsonl"]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "spark_replog", "-s", path, *words],
            cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        self.lines: queue.Queue[dict] = queue.Queue()
        self.reading = threading.Thread(target=self._read, daemon=True)
        self.reading.start()

    def _read(self) -> None:
        with self.process.stdout as lines:
            for line in lines:
                self.lines.put(json.loads(line))

    def take(self, count: int) -> list[tuple[int, int]]:
        """The next so many records as (partition, offset)."""
        records = [self.lines.get(timeout=PATIENCE_S) for _ in range(count)]
        return [(record["partition"], record["offset"]) for record in records]

    def stop(self, number: int) -> int:
        self.process.send_signal(number)
        return self.process.wait(timeout=PATIENCE_S)


@pytest.fixture
def store(tmp_path):
    made = Store.init(str(tmp_path / "store"))
    made.create("orders", 2)
    return made


@pytest.fixture
def start(store):
    made = []

    def make() -> Member:
        made.append(Member(store.path))
        return made[-1]

    yield make
    for member in made:
        member.process.kill()
        member.process.wait()
        member.reading.join()


def test_two_processes_share_and_hand_over_and_commit_what_they_printed(store, start):
    groups = GroupCoordinator(store.cluster)
    store.write("orders", rows(3), partition=0)
    first = start()
    assert first.take(3) == [(0, 0), (0, 1), (0, 2)]
    second = start()
    wait_for(groups, ("STABLE", 2))
    store.write("orders", rows(1, 3), partition=0)
    store.write("orders", rows(1), partition=1)
    shared = [first.take(1)[0], second.take(1)[0]]
    assert sorted(shared) == [(0, 3), (1, 0)]
    assert second.stop(signal.SIGTERM) == 130
    wait_for(groups, ("STABLE", 1))
    store.write("orders", rows(1, 1), partition=1)
    store.write("orders", rows(1, 4), partition=0)
    assert sorted(first.take(2)) == [(0, 4), (1, 1)]
    assert first.stop(signal.SIGINT) == 130
    wait_for(groups, ("EMPTY", 0))
    assert committed(groups) == {0: 5, 1: 2}
    assert first.lines.empty()
    assert second.lines.empty()
