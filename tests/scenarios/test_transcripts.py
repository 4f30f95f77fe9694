"""Replication as stories: text in, expected text out. `transcripts/README.md` says how to read them.

Each runs the real classes over real directories. Rewrite the answers after a change that is meant, and read
the difference: `REPLOG_WRITE_TRANSCRIPTS=1 python -m pytest tests/scenarios/test_transcripts.py`.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

from spark_replog.admin.admin import BrokerAdmin, PartitionAdmin
from spark_replog.admin.controller import Controller
from spark_replog.admin.coordinator_loop import CoordinatorLoop
from spark_replog.clock import SystemClock
from spark_replog.cluster.cluster import Cluster
from spark_replog.cluster.init_store import init_cluster
from spark_replog.commit.catch_up import CatchUp
from spark_replog.commit.replica_manager import ReplicaManager
from spark_replog.commit.write_plan import make_write_plan
from spark_replog.config.coordinator import CoordinatorConfig
from spark_replog.errors import ReplogError
from spark_replog.maintenance.upkeep import Upkeep

HERE = Path(__file__).parent
TRANSCRIPTS = sorted((HERE / "transcripts").glob("*.txt"))
_spec = importlib.util.spec_from_file_location("replog_transcript_kit", HERE / "conftest.py")
assert _spec is not None and _spec.loader is not None
kit = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(kit)


class ShiftedClock(SystemClock):
    """The machine's time, moved forward by hand."""

    def __init__(self) -> None:
        self.shift_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.shift_ms

    def monotonic_ms(self) -> int:
        return super().monotonic_ms() + self.shift_ms


class Coordinator(kit.LocalStore):
    """One process that plays coordinator."""

    def __init__(self, path: Path, clock: ShiftedClock) -> None:
        self.clock = clock
        super().__init__(path, CoordinatorConfig(replica_lag_time_max_ms=3_000))

    def reopen(self) -> None:
        self.cluster = Cluster.open(str(self.path), config=self.config, clock=self.clock)
        self.controller = Controller(self.cluster)
        self.manager = ReplicaManager(self.cluster)


class Stage:
    """What the lines of a transcript act on."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = ShiftedClock()
        self.actors: dict[str, Coordinator] = {}
        self.batches: dict[str, int] = {}
        self.names: dict[str, str] = {}

    def run(self, line: str) -> list[str]:
        """Run one line and return what it shows."""
        name, separator, rest = line.partition(": ")
        actor = name if separator and name.isalpha() else "one"
        verb, *words = (rest if separator and name.isalpha() else line).split()
        if verb == "brokers":
            init_cluster(str(self.path), int(words[0]), fsync=False)
            return []
        if actor not in self.actors:
            self.actors[actor] = Coordinator(self.path, self.clock)
        try:
            return getattr(self, f"do_{verb.replace('-', '_')}")(self.actors[actor], *words)
        except ReplogError as error:
            return [f"refused: {error.code.name}"]

    def do_create(self, one, topic, partitions, replicas, *settings):
        one.create(topic, int(partitions), int(replicas), config=dict(setting.split("=") for setting in settings))
        return self.do_describe(one, topic)

    def do_describe(self, one, topic):
        return [
            f"{topic}-{log.partition}: leader {'none' if log.leader < 0 else log.leader}, epoch {log.leader_epoch},"
            f" replicas {','.join(map(str, log.replicas))}, in sync {','.join(map(str, log.isr))};"
            f" readable up to {log.high_watermark}, log end {log.log_end_offset}"
            for log in one.controller.describe_topic(topic).partitions
        ]

    def do_write(self, one, topic, rows, acks, copies, *more):
        """rows: PARTITION=ROWS,...; acks: acks=all; copies: on=BROKERS; then by=QUERY, batch=N, dies."""
        given = dict(option.split("=") for option in more if "=" in option)
        query = given.get("by", "query")
        batch = int(given.get("batch", self.batches.get(query, -1) + 1))
        self.batches[query] = max(batch, self.batches.get(query, -1))
        wanted = {int(p): int(n) for p, n in (pair.split("=") for pair in rows.split(","))}
        holders = {int(broker) for broker in copies.removeprefix("on=").split(",")}
        level = {"all": -1, "1": 1, "0": 0}[acks.removeprefix("acks=")]
        with pytest.MonkeyPatch.context() as patch:
            if "dies" in more:  # right after its entry is decided
                patch.setattr(CatchUp, "copy_to_followers", lambda *_: None)
                patch.setattr(CatchUp, "readmit", lambda *_, **__: False)
            answer = one.append(topic, wanted, batch=batch, holders=holders, acks=level, query=query)
        if answer.error is not None:
            return [f"refused: {answer.error.code.name}"]
        offsets = ", ".join(
            f"{topic}-{number} {base} to {end - 1}" for (_, number), (base, end) in answer.result.base_offsets.items()
        )
        return [f"batch {batch}: {answer.result.outcome.value}{', ' if offsets else ''}{offsets}"]

    def do_read(self, one, topic):
        lines = []
        for number in range(len(one.controller.describe_topic(topic).partitions)):
            sections = one.sections(topic, number)
            rows = sum(section.row_count for section in sections)
            lost = [
                section.object.id.name
                for section in sections
                if not any(section.object.id.name in one.held_by(topic, broker) for broker in section.object.holders)
            ]
            lines.append(f"{topic}-{number}: {rows} rows{', UNREADABLE' if lost else ''}")
        return lines

    def do_files(self, one, topic, broker):
        """How many data objects lie on a root, and how many of them the log names."""
        named = {
            section.object.id.name
            for number in range(len(one.controller.describe_topic(topic).partitions))
            for section in one.sections(topic, number)
        }
        held = one.held_by(topic, int(broker))
        return [f"{len(held)} objects, {len(held - named)} of them garbage"]

    def do_away(self, one, broker):
        one.away(int(broker))
        return []

    def do_back(self, one, broker):
        one.back(int(broker))
        return []

    def do_wait(self, one, seconds, unit):
        assert unit == "seconds"
        self.clock.shift_ms += 1000 * int(seconds)
        return []

    def do_round(self, one):
        report = CoordinatorLoop(one.cluster).run_once()
        return [
            f"failovers {report.failover_count}, joined {report.joined_count}, moved {report.reassigned_count},"
            f" preferred leaders {report.elected_count}"
        ]

    def do_fence(self, one, broker):
        BrokerAdmin(one.cluster).fence(int(broker))
        return []

    def do_unfence(self, one, broker):
        BrokerAdmin(one.cluster).unfence(int(broker))
        return []

    def do_elect(self, one, topic, *how):
        outcomes = PartitionAdmin(one.cluster).elect_leaders(topic, is_unclean="unclean" in how)
        return [f"{topic}-{reply.partition}: {reply.error.code.name if reply.error else 'ok'}" for reply in outcomes]

    def do_reassign(self, one, topic, target):
        number, brokers = target.split("=")
        (outcome,) = PartitionAdmin(one.cluster).reassign(topic, {int(number): [int(b) for b in brokers.split(",")]})
        adding, removing = (",".join(map(str, replicas)) or "none" for replicas in (outcome.adding, outcome.removing))
        return [f"adding {adding}, removing {removing}"]

    def do_cancel(self, one, topic):
        return [str(move.error.code.name if move.error else "ok") for move in PartitionAdmin(one.cluster).cancel(topic)]


def play(text: str, path: Path) -> str:
    """Run every line that begins with '$' and return the text with what they showed."""
    stage = Stage(path)
    made: list[str] = []
    is_answer = False
    for line in text.splitlines():
        if line.startswith("$ "):
            made += [line, *(f"  {answer}" for answer in stage.run(line[2:]))]
            is_answer = True
        elif not (is_answer and line.startswith("  ")):
            made.append(line)
            is_answer = False
    return "\n".join(made) + "\n"


@pytest.mark.case("server-stories")
@pytest.mark.parametrize("transcript", TRANSCRIPTS, ids=lambda path: path.stem)
def test_the_transcript_says_what_happens(transcript: Path, tmp_path: Path) -> None:
    text = transcript.read_text()
    made = play(text, tmp_path / "store")
    if os.environ.get("REPLOG_WRITE_TRANSCRIPTS"):
        transcript.write_text(made)
    assert made == text


def test_there_is_a_transcript_of_each_story() -> None:
    assert {path.stem for path in TRANSCRIPTS} == {
        "high_watermark", "isr_shrink_and_expand", "leader_loss", "reassignment", "truncation",
        "two_coordinators", "unclean_election",
    }  # fmt: skip


def test_commits_move_the_data_generation_on_once_a_day(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "store")
    for line in ("brokers 1", "create orders 1 1", "write orders 0=1 acks=all on=0"):
        stage.run(line)
    one = stage.actors["one"]
    assert make_write_plan(one.cluster, ["orders"]).topics[0].generation == 0
    for day in (1, 2):
        stage.run("wait 86401 seconds")
        upkeep = Upkeep(one.cluster)
        one.manager = ReplicaManager(one.cluster, after_append=upkeep.start)
        stage.run("write orders 0=1 acks=all on=0")
        assert upkeep.wait(10_000)
        one.reopen()
        assert make_write_plan(one.cluster, ["orders"]).topics[0].generation == day
    stage.run("write orders 0=1 acks=all on=0")
    assert make_write_plan(one.cluster, ["orders"]).topics[0].generation == 2
