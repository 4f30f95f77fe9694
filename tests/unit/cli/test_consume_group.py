"""``replog consume --group``: members of a group, each a process of its own as a user starts it."""

from __future__ import annotations

import json
import queue
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from spark_replog import Consumer, TopicPartition
from spark_replog.groups.group_coordinator import GroupCoordinator
from tests.unit.client.consumer_setup import Store, rows

ROOT = Path(__file__).parents[3]
PATIENCE_S = 60


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
        found = [self.lines.get(timeout=PATIENCE_S) for _ in range(count)]
        return [(each["partition"], each["offset"]) for each in found]

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
    for each in made:
        each.process.kill()
        each.process.wait()
        each.reading.join()


def wait_for(groups, wanted):
    pause = threading.Event()
    for _ in range(PATIENCE_S * 10):
        state = groups.group("app")
        found = None if state is None else (state.phase.name, len(state.metadata.members))
        if found == wanted:
            return
        pause.wait(0.1)
    raise AssertionError(f"{found}, wanted {wanted}")


def committed(groups):
    return {key.partition: value.offset for key, value in groups.fetch_offsets("app").items()}


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


def test_a_member_reads_its_share_to_the_end_of_now_and_leaves(store, replog):
    groups = GroupCoordinator(store.cluster)
    store.write("orders", rows(3), partition=0)
    store.write("orders", rows(2), partition=1)
    answer = replog("-s", store.path, "consume", "orders", "-g", "app", "-n", 4, "-f", "jsonl")
    assert len(answer.out.splitlines()) == 4
    assert groups.group("app").metadata.generation > 0
    assert committed(groups) == {0: 3, 1: 1}
    wait_for(groups, ("EMPTY", 0))
    assert len(replog("-s", store.path, "consume", "orders", "-g", "app", "-f", "jsonl").out.splitlines()) == 1
    assert replog("-s", store.path, "consume", "orders", "-g", "app").out == ""
    assert committed(groups) == {0: 3, 1: 2}


def test_a_group_without_an_offset_follows_from_the_end_and_from_beginning_holds_only_there(store, replog):
    store.write("orders", rows(2), partition=0)
    with Consumer(store.cluster, group="app", enable_auto_commit=False) as reader:
        reader.assign([TopicPartition("orders", 0)])
        reader.commit({TopicPartition("orders", 0): 1})
    follow = ["-s", store.path, "consume", "orders", "--follow", "--timeout-ms", 300]
    assert replog(*follow, "-g", "new").out == ""
    assert replog(*follow, "-g", "app", "--from-beginning").out == "v1\n"
    assert replog(*follow, "-g", "other", "--from-beginning").out == "v0\nv1\n"


def test_a_member_cannot_be_sent_to_an_offset_but_partitions_beside_the_group_can(store, replog):
    store.write("orders", rows(3), partition=0)
    consume = ["-s", store.path, "consume", "orders", "-g", "app", "-o", "1"]
    refused = replog(*consume)
    assert refused.exit_code == 2
    assert "reset-offsets" in refused.err
    assert replog(*consume, "-p", 0).out == "v1\nv2\n"
    assert committed(GroupCoordinator(store.cluster)) == {0: 3}
