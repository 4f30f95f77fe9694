"""A store whose keepers die, stop, meet a full disk, a root away or a wrong clock: a checker that knows what was told.

The checker knows what writers were told and what readers saw, nothing else. ``REPLOG_TEST_LIFE=1`` runs every step with
every trouble (some minutes); without it a share of them runs.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

import spark_replog
from spark_replog.cli.main import run
from spark_replog.errors import ReplogError
from tests.scenarios.committing import SMALL
from tests.scenarios.living import TOPICS
from tests.waiting import wait_until_stopped

IS_LONG = os.environ.get("REPLOG_TEST_LIFE") == "1"
DAY_MS = 86_400_000
COUNT = 36 if IS_LONG else 12


class Life:
    """One store, its processes, and the checker."""

    def __init__(self, path: Path, disks: Path | None = None) -> None:
        self.path, self.disks = path, disks
        self.told: dict[tuple[str, int], tuple[str, str]] = {}
        self.sent: dict[tuple[str, str], str] = {}
        self.seen: dict[tuple[str, int], tuple[str, str]] = {}
        self.starts: Counter[str] = Counter()
        self.said: list[dict] = []
        self.names = iter(range(1000))
        store = spark_replog.open(path)
        for topic, config in TOPICS.items():
            store.admin().create_topic(topic, partitions=1, replicas=3, config=config)

    def start(self, role: str, count: int, fault: str = "", ahead_ms: int = 0) -> subprocess.Popen[str]:
        command = [
            sys.executable,
            "-m",
            "tests.scenarios.living",
            str(self.path),
            role,
            f"w{next(self.names)}",
            str(count),
        ]
        extra = {"REPLOG_FAULT_POINT": fault, "REPLOG_TEST_CLOCK_MS": str(ahead_ms)}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(command, env={**os.environ, **extra}, cwd=Path(__file__).parents[2], text=True, **pipes)

    def write(self, count: int) -> None:
        """Have a process write rows while others go on."""
        writer = self.start("writer", count)
        errors = self.hear(writer)
        assert writer.returncode == 0, errors

    def hear(self, process: subprocess.Popen[str]) -> str:
        """Read on while a process lives; take what it said; return its errors."""
        reads = threading.Event()
        reader = threading.Thread(target=self._read_on, args=(reads,))
        reader.start()
        try:
            output, errors = process.communicate(timeout=240)
        finally:
            reads.set()
            reader.join()
        for line in output.splitlines():
            if not line.startswith("{"):
                continue  # what commands print
            said = json.loads(line)
            self.said.append(said)
            if "sent" in said:
                self.sent[said["topic"], said["sent"]] = said["key"]
            if "told" in said:
                where = said["topic"], said["offset"]
                assert self.told.setdefault(where, (said["key"], said["told"])) == (said["key"], said["told"])
        return errors

    def _read_on(self, is_over: threading.Event) -> None:
        while not is_over.wait(0.2):
            for topic in TOPICS:
                with suppress(ReplogError):  # a root is away, or rows aged out on the way
                    self.read(topic)

    def read(self, topic: str) -> list[tuple[int, str, str]]:
        """Return a topic's rows; an offset has the same row for ever, and no row comes before an older start."""
        table = spark_replog.open(self.path).topic(topic).scan().to_arrow()
        columns = (table.column(column).to_pylist() for column in ("offset", "key", "value"))
        rows = [(offset, key.decode(), value.decode()) for offset, key, value in zip(*columns, strict=True)]
        for offset, *row in rows:
            assert self.seen.setdefault((topic, offset), tuple(row)) == tuple(row), (topic, offset)
        return rows

    def check(self) -> None:
        """Hold the topics against what was told and seen."""
        for topic in TOPICS:
            rows = self.read(topic)
            start = spark_replog.open(self.path).admin().offsets(topic, "start")[0]
            end = spark_replog.open(self.path).admin().offsets(topic, "end")[0]
            offsets = [offset for offset, *_ in rows]
            assert offsets == sorted(set(offsets)) and all(start <= offset < end for offset in offsets)
            values = Counter(value for *_, value in rows)
            assert not values or max(values.values()) == 1, "a row is there twice"
            assert all((topic, value) in self.sent for value in values)
            assert start >= self.starts[topic]
            self.starts[topic] = start
            expected = {offset: row for (name, offset), row in {**self.told, **self.seen}.items() if name == topic}
            assert all(offset < end for offset in expected), (topic, start, end, sorted(expected)[-5:], len(rows))
            there = {offset: (key, value) for offset, key, value in rows}
            if topic == "keyed":
                latest = {key: offset for offset, (key, _) in sorted(expected.items())}
                assert {offset: expected[offset] for offset in latest.values()}.items() <= there.items()
            else:
                assert offsets == list(range(start, end))
                assert {offset: row for offset, row in expected.items() if offset >= start} == {
                    offset: row for offset, row in there.items() if offset in expected
                }
            if topic == "plain":
                assert start == 0
            self._check_order(topic, rows)

    def _check_order(self, topic: str, rows: list[tuple[int, str, str]]) -> None:
        last: dict[str, int] = {}
        for _, _, value in rows:
            writer, number = value.split("-")
            assert last.get(writer, -1) < int(number), (topic, value)
            last[writer] = int(number)

    def settle(self) -> None:
        """End a trial: a keeper and a writer that nothing troubles do their work, and all is checked."""
        for process in (self.start("writer", 6), self.start("keeper", 2)):
            errors = self.hear(process)
            assert process.returncode == 0, errors
        assert self.said[-1].get("codes") == [0] * (len(TOPICS) + 1), self.said[-1]
        self.check()
        assert run(["-q", "-s", str(self.path), "store", "verify", "--deep"]) == 0


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, value in SMALL:
        monkeypatch.setattr(module, name, value)


@pytest.fixture
def life(tmp_path: Path) -> Life:
    assert run(["-q", "-s", str(tmp_path / "store"), "init", "--brokers", "3", "--no-fsync"]) == 0
    return Life(tmp_path / "store")


KILLS = [
    *("compaction.written:1", "compaction.copied:2", "compaction.before_entry:1", "compaction.after_entry:1"),
    *("compaction.before_clean:1", "gc.decided:1", "gc.delete:1", "gc.delete:4"),
    *("snapshot.page:2", "snapshot.pages:1", "snapshot.head:2", "snapshot.stored:2", "snapshot.delete_head:1"),
    *("snapshot.delete_page:1", "truncate.before_marker:2", "truncate.marker:1", "truncate.delete:3"),
    *("journal.create:5", "journal.created:8"),
]
STEPS = KILLS if IS_LONG else ["compaction.before_entry:1", "gc.delete:2"]


def test_keepers_that_are_killed_at_every_step_lose_nothing(life: Life) -> None:
    """One store, one death after the other, beside a writer."""
    for step in STEPS:
        life.write(COUNT)
        writer, keeper = life.start("writer", 6), life.start("keeper", 4, step)
        errors = life.hear(keeper)
        assert keeper.returncode == -signal.SIGKILL, (step, errors, life.said[-3:])
        errors = life.hear(writer)
        assert writer.returncode == 0, errors
        life.check()
    life.settle()


STOPS = [step for step in KILLS if step not in ("snapshot.pages:1", "snapshot.stored:2")]


@pytest.mark.parametrize("step", STOPS if IS_LONG else ["gc.delete:1"])
def test_a_keeper_that_sleeps_over_collections_and_truncations_does_no_harm(life: Life, step: str) -> None:
    """SIGSTOP, longer than every timeout as others go on, SIGCONT: what it deletes or decides late is harmless."""
    life.write(COUNT)
    sleeper = life.start("keeper", 2, f"{step}:stop")
    try:
        wait_until_stopped(sleeper)
        for process in (life.start("writer", COUNT), life.start("keeper", 2)):
            errors = life.hear(process)
            assert process.returncode == 0, errors
    finally:
        sleeper.send_signal(signal.SIGCONT)
        errors = life.hear(sleeper)
    assert sleeper.returncode == 0, errors
    life.settle()


@pytest.mark.wide
@pytest.mark.parametrize("away", [None, 0, 1, 2] if IS_LONG else [1])
@pytest.mark.parametrize("ahead_ms", [DAY_MS, -DAY_MS] if IS_LONG else [DAY_MS])
def test_two_keepers_at_once_one_with_a_wrong_clock_while_a_root_is_away(
    life: Life, ahead_ms: int, away: int | None
) -> None:
    life.write(COUNT)
    root = life.path / f"broker-{away}"
    if away is not None:
        os.rename(root, f"{root}.away")
    roles = [("writer", COUNT, 0), ("writer", COUNT, ahead_ms), ("keeper", 2, 0), ("keeper", 2, ahead_ms)]
    running = [life.start(role, count, "", shift_ms) for role, count, shift_ms in roles]
    errors = [life.hear(process) for process in running]
    assert [process.returncode for process in running] == [0] * 4, errors
    if away is not None:
        os.rename(f"{root}.away", root)
    assert run(["-q", "-s", str(life.path), "coordinator", "run", "--once"]) == 0
    life.settle()


@pytest.mark.wide
@pytest.mark.parametrize("full", [(0,), (0, 1, 2)] if IS_LONG else [(0,)])
def test_a_full_disk_during_all_of_it_loses_nothing(tmp_path: Path, full: tuple[int, ...]) -> None:
    """A real ENOSPC: each root is a file system of its own."""
    roots = [tmp_path / f"disk-{number}" for number in range(3)]
    mounted = []
    try:
        for root in roots:
            root.mkdir()
            made = subprocess.run(
                ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(root)],
                capture_output=True,
                text=True,
                check=False,
            )
            if made.returncode:
                pytest.skip(f"no file system may be mounted here: {made.stderr.strip()}")
            mounted.append(root)
        store = tmp_path / "store"
        store.mkdir()
        for number, root in enumerate(roots):
            (store / f"broker-{number}").symlink_to(root / "root")
            (root / "root").mkdir()
        _run_full(store, [roots[broker_id] for broker_id in full])
    finally:
        for root in mounted:
            subprocess.run(["umount", "-l", str(root)], check=False)


def _run_full(store: Path, full: list[Path]) -> None:
    assert run(["-q", "-s", str(store), "init", "--brokers", "3", "--no-fsync"]) == 0
    life = Life(store)
    life.write(COUNT)
    for root in full:
        with (root / "ballast").open("wb", buffering=0) as ballast:
            try:
                while True:
                    ballast.write(bytes(1 << 12))
            except OSError:
                pass
    # With all of them full nothing is decided, until what upkeep deletes makes room: so the writer comes first.
    steps = [[("writer", 3), ("keeper", 1)]] if len(full) == 1 else [[("writer", 1)], [("upkeep", 1)]]
    for step in steps:
        running = [life.start(role, count) for role, count in step]
        errors = [life.hear(process) for process in running]
        assert [process.returncode for process in running] == [0] * len(step), errors
    assert len(full) == 1 or any("refused" in line for line in life.said), "the disks were full"
    life.check()
    for root in full:
        (root / "ballast").unlink()
    assert run(["-q", "-s", str(store), "coordinator", "run", "--once"]) == 0
    life.settle()
