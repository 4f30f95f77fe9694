"""The whole system in seeded schedules: nothing told is lost, nothing is twice, nothing that is needed is deleted.

``--seeds`` sets how many schedules there are (twice as many here), ``--first-seed`` which is the first, ``--seed N``
replays one. One chunk of 83 runs with the plain tests, the others in the tier ``wide``. Every rule that is taken away
is caught.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import pytest

from spark_replog.commit import retention
from spark_replog.commit.append_judge import AppendJudge, Settling
from spark_replog.log.codec.commands import decode_commands
from spark_replog.log.codec.snapshot import decode_page
from spark_replog.log.fold import entry_fold, frozen_topics, group_state, paged_table, producer_state, topic_state
from spark_replog.log.fold.entry_fold import EntryFold
from spark_replog.log.fold.frozen_topics import FrozenTopics
from spark_replog.log.fold.object_table import ObjectTable
from spark_replog.log.fold.partition_state import PartitionState
from spark_replog.log.fold.producer_state import ProducerTable, SequenceTable
from spark_replog.log.fold.topic_state import TopicLedgerState
from spark_replog.log.fold.topic_table import TopicTable
from spark_replog.log.model import OK, CommandResult, SnapshotCommit
from spark_replog.maintenance import compaction
from spark_replog.snapshot import DecidedSnapshot
from tests.examples import chunks
from tests.simulation import whole_checks, whole_jobs
from tests.simulation.whole_run import FOUND, has_inline, run, schedule_of, shrunk, violation_of
from tests.simulation.whole_system import Rules

CHUNK_COUNT, PLAIN_CHUNK_COUNT = 83, 1
"""A prime number of chunks: the seeds of each have all last digits, and so inline rows (`has_inline`)."""
SCHEDULES_PER_SEED = 2
VARIANT_SEEDS = 2000
GARBAGE_OBJECTS = 50_000


@pytest.fixture(autouse=True)
def _garbage_of_schedules() -> Iterator[None]:
    """Collect the garbage of schedules, seldom, and never walk what was there before: a tenth of their time."""
    thresholds = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(GARBAGE_OBJECTS, *thresholds[1:])
    yield
    gc.set_threshold(*thresholds)
    gc.unfreeze()


@pytest.fixture(autouse=True)
def _small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paged_table, "PAGE_ROWS", 4)
    monkeypatch.setattr(paged_table, "FLUSH_ROWS", 3)
    monkeypatch.setattr(frozen_topics, "FLUSH_ROWS", 3)
    monkeypatch.setattr(topic_state, "PRODUCER_KEPT_MS", 0)  # an hour would be longer than a schedule
    # Every process folds every entry and reads pages: they are values, so one decoding serves all.
    monkeypatch.setattr(paged_table, "decode_page", lru_cache(256)(decode_page))
    decode_once = lru_cache(1024)(decode_commands)
    monkeypatch.setattr(entry_fold, "decode_commands", decode_once)
    monkeypatch.setattr(whole_checks, "decode_commands", decode_once)


def fail(seed: int, rules: Rules | None = None) -> None:
    """Fail with the shortest schedule that still shows what a seed found."""
    steps = shrunk(schedule_of(seed), rules)
    error = violation_of(steps, rules)
    pytest.fail(f"seed {seed}: {error!r}\n" + "\n".join(map(str, steps)))


@pytest.mark.guarantee("G2", "G4")
@pytest.mark.parametrize("chunk", chunks(CHUNK_COUNT, PLAIN_CHUNK_COUNT))
def test_nothing_is_lost_or_twice_whatever_is_deleted_meanwhile(request: pytest.FixtureRequest, chunk: int) -> None:
    only: int | None = request.config.getoption("--seed")
    count = request.config.getoption("--seeds") * SCHEDULES_PER_SEED
    first: int = request.config.getoption("--first-seed")
    seeds = range(first + chunk, first + count, CHUNK_COUNT) if only is None else [only] if chunk == 0 else []
    done: Counter[str] = Counter()
    for seed in seeds:
        try:
            done.update(run(schedule_of(seed)).checker.counts)
        except FOUND:
            fail(seed)
    # Not vacuous: the schedules do what they are there for. What is rare comes in clusters, so a chunk of 241 schedules
    # has between 2 and 30 of it: each chunk must have one.
    if only is None:
        least = {
            "rows acknowledged": 4,
            "rows read": 1.5,
            "snapshots": 0.5,
            "pages": 0.5,
            "deleted objects": 0.7,
            "replaced": 0.004,
            "sequenced acknowledged": 0.5,
            "transactions": 0.2,
            "commits": 1.5,
            "deleted topics": 0.2,
            "unclean elections": 0.004,
            "rebuilt roots": 0.3,
        }
        least = {what: number * len(seeds) for what, number in least.items()}
        inline_count = sum(map(has_inline, seeds))
        least |= {"sends acknowledged": 1.0 * inline_count, "moved": 0.01 * inline_count}
        few = {what: done[what] for what, number in least.items() if done[what] < number}
        assert not few, f"too seldom in {len(seeds)} schedules to show anything (by chance, if they are few): {few}"


SCHEDULES_KEPT = {
    46595: "a cut append of a deleted topic",
    98308: "the same, cleaned by key",
    126626: "a tombstone that superseded a row and went before anybody read it",
    270578: "one transaction in two topics of one name",
    505017: "an answer about an object without rows that only some processes remember",
}


@pytest.mark.guarantee("G2")
@pytest.mark.parametrize("seed", SCHEDULES_KEPT, ids=SCHEDULES_KEPT.values())
def test_schedules_that_once_found_a_defect_hold(seed: int) -> None:
    """In two, an append over two topics was cut, and one of them was deleted before its writer was told.

    In the third and fourth the checker was wrong: it knew only the rows that a writer was told of or a reader saw, and
    it took rows of two topics for one. In the fifth processes folded one command to different results, without harm.
    """
    if violation_of(schedule_of(seed)) is not None:
        fail(seed)


def test_same_seed_gives_same_log() -> None:
    for seed in range(5):
        assert run(schedule_of(seed)).checker.results == run(schedule_of(seed)).checker.results


# -- rules taken away -------------------------------------------------------------------------------

Patch = Callable[[pytest.MonkeyPatch], None]


def nothing(_: pytest.MonkeyPatch) -> None:
    """Leave the product as it is."""


def without_floor(method: str) -> Patch:
    """A method of the fold does not look at the floor."""
    real = getattr(TopicLedgerState, method)

    def call(state: TopicLedgerState, *arguments: Any) -> Any:
        floor, state.generations.floor = state.generations.floor, 0
        try:
            return real(state, *arguments)
        finally:
            state.generations.floor = floor

    return lambda patch: patch.setattr(TopicLedgerState, method, call)


def no_floor_for_replace(patch: pytest.MonkeyPatch) -> None:
    without_floor("_apply_replace")(patch)
    patch.setattr(compaction, "is_live", lambda *_: True)


def old_needed(patch: pytest.MonkeyPatch) -> None:
    """What is needed is asked once, what is below the floor each time."""
    real = TopicLedgerState.referenced_objects
    needed: dict[tuple[int, int], set[str]] = {}

    def referenced(state: TopicLedgerState, generation: int) -> set[str]:
        return needed.setdefault((id(state), generation), real(state, generation))

    patch.setattr(TopicLedgerState, "referenced_objects", referenced)
    real_refresh = whole_jobs.Process.refresh

    def refresh(process: Any) -> None:
        for generation in range(process.state.generations.floor, process.state.generations.newest + 1):
            needed[id(process.state), generation] = real(process.state, generation)
        real_refresh(process)

    patch.setattr(whole_jobs.Process, "refresh", refresh)


def stale_replace(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(topic_state, "judge_replace", lambda *_: "")


def any_snapshot_commit(patch: pytest.MonkeyPatch) -> None:
    def apply(state: EntryFold, command: SnapshotCommit, index: int) -> CommandResult:
        state.snapshot = DecidedSnapshot(state.snapshot.no + 1, command.index, command.name, index)
        return OK

    patch.setattr(EntryFold, "_apply_snapshot_commit", apply)


class _Open:
    """A partition of which everything may be retired."""

    def __init__(self, partition: PartitionState) -> None:
        self._partition = partition

    def __getattr__(self, name: str) -> Any:
        return self._partition.log_end_offset if name == "high_watermark" else getattr(self._partition, name)


def retention_above_high_watermark(patch: pytest.MonkeyPatch) -> None:
    real = retention.retire
    patch.setattr(retention, "retire", lambda partition, *more: real(_Open(partition), *more))  # type: ignore[arg-type]

    def apply(table: TopicTable, command: Any) -> CommandResult:
        for number, offset in command.offsets:
            partition = table.topics[command.topic_id].partitions[number]
            if offset > partition.log_start_offset:
                table._objects.drop_rows({partition: offset}, partition.advance_log_start(offset, command.reason))
        return OK

    patch.setattr(TopicTable, "apply_log_start_advance", apply)


def loses_producer(patch: pytest.MonkeyPatch) -> None:
    real = TopicLedgerState.restore

    def restore(state: TopicLedgerState, head: bytes, load_page: Any) -> None:
        real(state, head, load_page)
        if state.producers.producers:
            del state.producers.producers[next(iter(state.producers.producers))]

    patch.setattr(TopicLedgerState, "restore", restore)


def loses_cut(patch: pytest.MonkeyPatch) -> None:
    """A decided append is taken for one that is there whatever leaders were elected."""
    patch.setattr(AppendJudge, "look_again", lambda _, state, settling: settling)


def takes_any_repeated_append(patch: pytest.MonkeyPatch) -> None:
    """Another run's repeated append is taken for what was decided first."""
    real = AppendJudge.look_again

    def look_again(judge: AppendJudge, state: TopicLedgerState, settling: Settling) -> Settling:
        real(judge, state, settling)
        return settling

    patch.setattr(AppendJudge, "look_again", look_again)


def drops_what_was_cut(patch: pytest.MonkeyPatch) -> None:
    """Objects of appends that were cut are taken for garbage; a repeated append names them again."""
    real = ObjectTable.truncate

    def truncate(table: ObjectTable, after_index: int, undo: Any) -> int:
        gone = [item.id for entry in table.unstable if entry.index > after_index for item in entry.objects.values()]
        count = real(table, after_index, undo)
        table.dropped.update(dict.fromkeys(gone, 0))
        return count

    patch.setattr(ObjectTable, "truncate", truncate)


def drops_all_of_an_object(patch: pytest.MonkeyPatch) -> None:
    """One section of an object went: all of it is taken for garbage."""
    real = ObjectTable._note_dropped

    def note(table: ObjectTable, item: Any) -> None:
        table.dropped[item.id] = 0
        real(table, item)

    patch.setattr(ObjectTable, "_note_dropped", note)


def forgets_programs(patch: pytest.MonkeyPatch) -> None:
    """One-shot producers are forgotten before the floor refuses their repeated append."""
    real = ProducerTable.forget_one_shots
    patch.setattr(ProducerTable, "forget_one_shots", lambda table, floor: real(table, floor + 5))


def takes_back_trims(patch: pytest.MonkeyPatch) -> None:
    """A snapshot forgets how far the log was trimmed, so rows are back whose objects are gone."""
    real = TopicLedgerState.restore

    def restore(state: TopicLedgerState, head: bytes, load_page: Any) -> None:
        real(state, head, load_page)
        for topic in state.topics.values():
            for partition in topic.partitions:
                partition.log_start_offset = 0

    patch.setattr(TopicLedgerState, "restore", restore)


def loses_groups(patch: pytest.MonkeyPatch) -> None:
    real = TopicLedgerState.restore

    def restore(state: TopicLedgerState, head: bytes, load_page: Any) -> None:
        real(state, head, load_page)
        for group in state.groups.groups.values():
            group.offsets.clear()

    patch.setattr(TopicLedgerState, "restore", restore)


def takes_deleted(patch: pytest.MonkeyPatch) -> None:
    real = TopicLedgerState.judge

    def judge(state: TopicLedgerState, append: Any) -> Any:
        closed = [candidate for candidate in state.topics.values() if candidate.closed]
        for topic in closed:
            topic.closed = False
        try:
            return real(state, append)
        finally:
            for topic in closed:
                topic.closed = True

    patch.setattr(TopicLedgerState, "judge", judge)


def fences_nobody(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SequenceTable, "judge_fenced", lambda *_: None)
    patch.setattr(producer_state, "_judge_partition", lambda *_: None)


def forgets_inline_rows(patch: pytest.MonkeyPatch) -> None:
    """A snapshot's pages take inline objects too: their bytes are gone."""
    real = ObjectTable.leave_to_pages

    def leave(table: ObjectTable, frozen: FrozenTopics) -> None:
        for number in [inline for inline in table.inline_numbers if inline < frozen.tables.settled_below]:
            table.drop_inline(number)
        real(table, frozen)

    patch.setattr(ObjectTable, "leave_to_pages", leave)


def drops_inline_rows_early(patch: pytest.MonkeyPatch) -> None:
    """The rows of one partition moved: those of the other partitions in the object are gone."""
    real = ObjectTable._leave

    def leave(table: ObjectTable, number: int, partition: PartitionState) -> None:
        real(table, number, partition)
        table.drop_inline(number)

    patch.setattr(ObjectTable, "_leave", leave)


def snapshot_without_inline_rows(patch: pytest.MonkeyPatch) -> None:
    real = ObjectTable.read_open

    def read(table: ObjectTable, reader: Any, partitions: Any) -> None:
        real(table, reader, partitions)
        for number in list(table.inline_numbers):
            table.drop_inline(number)

    patch.setattr(ObjectTable, "read_open", read)


def attribute(owner: Any, name: str, value: Any) -> Patch:
    """Replace one function."""
    return lambda patch: patch.setattr(owner, name, value)


def _log_end(_: ObjectTable, partition: PartitionState, __: int) -> int:
    return partition.log_end_offset


def _nobody(*_: Any) -> frozenset[int]:
    return frozenset()


VARIANTS: dict[str, tuple[Rules, Patch]] = {
    "appends below the floor are taken": (Rules(), without_floor("judge")),
    "replacements below the floor are taken": (Rules(), no_floor_for_replace),
    "garbage is listed before the floor is decided": (Rules(lists_first=True), nothing),
    "what is needed is asked of an older fold than the floor": (Rules(), old_needed),
    "a replacement of other sections is taken": (Rules(), stale_replace),
    "a compacted object is on one replica": (Rules(copies_to=1), nothing),
    "a snapshot of an older one than the decided one counts": (Rules(), any_snapshot_commit),
    "pages of the newest number are collected": (Rules(is_old_page=lambda base, decided: base <= decided), nothing),
    "a process whose snapshot lost adopts it": (Rules(adopts_loser=True), nothing),
    "a reader does not plan again": (Rules(plans_again=False), nothing),
    "retention goes above the high watermark": (Rules(), retention_above_high_watermark),
    "a snapshot loses a producer": (Rules(), loses_producer),
    "a snapshot loses the log start": (Rules(), takes_back_trims),
    "compaction gives new offsets": (Rules(renumbers=True), nothing),
    "what was cut off is acknowledged": (Rules(), loses_cut),
    "a repeated append is acknowledged as early as the first": (Rules(), takes_any_repeated_append),
    "objects of what was cut off are garbage": (Rules(), drops_what_was_cut),
    "an object is garbage when a part of it is": (Rules(), drops_all_of_an_object),
    "a repeated sequenced append is not found": (Rules(), attribute(SequenceTable, "judge_duplicate", lambda *_: None)),
    "sequences of what was cut off stay": (Rules(), attribute(SequenceTable, "undo", lambda *_: None)),
    "a replaced instance writes on": (Rules(), fences_nobody),
    "a member of an older generation commits": (Rules(), attribute(group_state, "judge_member", lambda *_, **__: None)),
    "a snapshot loses committed offsets": (Rules(), loses_groups),
    "rows go to a deleted topic": (Rules(), takes_deleted),
    "programs are forgotten before the floor passes them": (Rules(), forgets_programs),
    "an unclean leader keeps rows that it lacks": (Rules(), attribute(ObjectTable, "end_of", _log_end)),
    "a snapshot's pages take inline rows": (Rules(), forgets_inline_rows),
    "inline rows go with the first partition that leaves": (Rules(), drops_inline_rows_early),
    "a snapshot loses inline rows": (Rules(), snapshot_without_inline_rows),
    "what was put before a loss counts after the rebuild": (Rules(), attribute(TopicLedgerState, "doubtful", _nobody)),
}


CAUGHT_BY = {
    "a process whose snapshot lost adopts it": 363,
    "a reader does not plan again": 576,
    "a repeated append is acknowledged as early as the first": 1401,
    "a replacement of other sections is taken": 890,
    "a snapshot loses a producer": 47,
    "a snapshot loses inline rows": 154,
    "a snapshot of an older one than the decided one counts": 164,
    "an object is garbage when a part of it is": 144,
    "an unclean leader keeps rows that it lacks": 187,
    "compaction gives new offsets": 24,
    "garbage is listed before the floor is decided": 232,
    "objects of what was cut off are garbage": 443,
    "pages of the newest number are collected": 144,
    "replacements below the floor are taken": 154,
    "rows go to a deleted topic": 30,
    "sequences of what was cut off stay": 46,
    "what was cut off is acknowledged": 46,
}
"""The first schedule that caught a rare one: tried first, as those before it take long. All others follow."""


@pytest.mark.parametrize("name", VARIANTS)
def test_rule_taken_away_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rules, patch = VARIANTS[name]
    patch(monkeypatch)
    for seed in (CAUGHT_BY.get(name, 0), *range(VARIANT_SEEDS)):
        error = violation_of(schedule_of(seed), rules)
        if error is not None:
            print(f"{name}: seed {seed}: {error}")
            return
    pytest.fail(f"{name}: not caught in {VARIANT_SEEDS} schedules")
