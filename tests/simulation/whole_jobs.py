"""The jobs of ``whole_system``: what processes do, each stopping where a real one may stall or die."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa

from spark_replog.commit.append_judge import AppendJudge, Settling, held_by_ledger, leader_epochs
from spark_replog.commit.append_request import SUCCESSES, AppendRequest
from spark_replog.commit.retention import decide_upkeep, raise_floor
from spark_replog.commit.state_changes import failover_commands
from spark_replog.config.registry import stored_topic_config
from spark_replog.errors import DataLossError, ReplogError, RetriableError
from spark_replog.ids import ObjectId
from spark_replog.log.codec.commands import encode_command
from spark_replog.log.fold.topic_state import TopicLedgerState
from spark_replog.log.model import (
    Append,
    DataObject,
    HoldersAdd,
    IdentityKind,
    IsrChange,
    LogClean,
    LogStartAdvance,
    LogStartReason,
    Outcome,
    ProducerIdentity,
    Replace,
    Section,
)
from spark_replog.maintenance.compaction import Compactor, KeyColumns, find_replaced, limits_of, plan_cleaning
from spark_replog.maintenance.garbage import GarbageCollector, GarbageFile
from spark_replog.maintenance.segment_writer import (
    CompactionLimits,
    CompactionRun,
    plan_compaction,
    plan_inline,
    replacement,
    slices_of,
)
from spark_replog.read.fetch_plan import FetchSlice, plan_fetch
from tests.simulation.whole_checks import Place, Row, Violation
from tests.simulation.whole_system import (
    BROKERS,
    COMPACTED,
    DAY_MS,
    DELETED,
    LEDGER,
    PARTITIONS,
    ROW_BYTES,
    Job,
    Lost,
    Process,
    World,
)

_ATTEMPTS = 6
_ANYBODY: Any = None
_NO_CLOCK: Any = None
"""What an AppendJudge needs for other questions than these."""


# -- writers ----------------------------------------------------------------------------------------


def rows_of(identity: ProducerIdentity) -> dict[Place, list[Row]]:
    """Return the rows of a batch: the same in every attempt, as a replay makes them."""
    batch = f"{identity.producer_id}/{identity.sequence}"
    rng = Random(batch)
    places = rng.sample(PARTITIONS, rng.choice((1, 1, 2)))
    return {
        place: [
            Row(f"{batch}/{place[0][0]}{place[1]}/{at}", b"k%d" % rng.randrange(4), rng.random() < 0.2)
            for at in range(rng.randint(1, 4))
        ]
        for place in sorted(places)
    }


def write(world: World, me: Process) -> Job:
    """A query writes its next batch, or a program one batch: until it is told that all of it is in the log."""
    if world.rng.random() < 0.3:
        name = f"once{world.next_unique()}"
        identity = ProducerIdentity(name, name, 0, "", IdentityKind.ONE_SHOT)
    else:
        name = world.rng.choice(("q0", "q1"))
        identity = ProducerIdentity(name, name, world.checkpoints.get(name, -1) + 1, me.name, IdentityKind.STREAM)
    for _ in range(_ATTEMPTS):
        rows = rows_of(identity)
        items = yield from put_rows(world, me, rows)
        append = Append(identity, "User:s", "", me.clock_ms, items)
        outcome = yield from commit(world, me, append, rows)
        if outcome is not Outcome.BELOW_FLOOR or identity.kind is IdentityKind.ONE_SHOT:
            return  # a program is told that its write was too long; a query begins the batch again
        world.checker.count("below floor")


def put_rows(world: World, me: Process, rows: Mapping[Place, list[Row]]) -> Job:  # type: ignore[misc]
    """Put an object per partition on the brokers that answer; return them."""
    if world.rng.random() < 0.7:
        me.refresh()
    generation, replicas = me.state.generations.newest, set(BROKERS)
    if world.rng.random() < 0.3:
        yield
    items = []
    for place, some in rows.items():
        took = {broker for broker in replicas - world.away if world.rng.random() < 0.8}
        after, parts = me.state.applied_index, [list(enumerate(some, 0))]
        item = new_object(world, generation, after, place, parts, took, "write", has_offsets=False)
        for broker_id in sorted(took):
            world.put(broker_id, item.id)
        items.append(item)
        if world.rng.random() < 0.3:
            yield
    return tuple(items)


def carry_rows(world: World, me: Process, rows: Mapping[Place, list[Row]]) -> Job:  # type: ignore[misc]
    """Return an inline object with a section per partition, as a plain producer makes it: no broker gets a file."""
    if world.rng.random() < 0.7:
        me.refresh()
    item, content, sections = ObjectId(me.state.generations.newest, f"send{world.next_unique()}.arrow"), {}, []
    for place, some in rows.items():
        start = sum(section.size_bytes for section in sections)
        content[start] = tuple((None, row) for row in some)
        sections.append(Section(*place, len(some), start, 8 * len(some), 0, world.now_ms, world.now_ms))
    inline = b"%08d" % world.next_unique() * sum(map(len, rows.values()))
    world.content[item], world.carried[item] = content, inline
    if world.rng.random() < 0.3:
        yield
    return (DataObject(item, len(inline), False, frozenset(), tuple(sections), inline=inline),)


def commit(world: World, me: Process, append: Append, rows: Mapping[Place, list[Row]]) -> Job:  # type: ignore[misc]
    """Propose until the answer is there and every in-sync replica has the rows; return what the fold refused with."""
    is_judged = world.rng.random() < 0.5
    judge = AppendJudge(LEDGER, AppendRequest(append, 0, -1), _ANYBODY, _NO_CLOCK)

    def propose(state: TopicLedgerState) -> tuple[bytes, ...] | None:
        sure = judge.replication.doubt(state, append)
        if sure is not append:
            sure = replace(append, objects=tuple(_looked_at(world, judge, item) for item in sure.objects))
        sure = held_by_ledger(state, sure)
        is_led = all(
            s.topic_id not in state.topics or state.topics[s.topic_id].partitions[s.partition].leader in item.holders
            for item in sure.objects
            for s in item.sections
        )
        is_refused = is_judged and state.judge(append).outcome is not Outcome.APPLIED
        if is_refused or not is_led:
            return None
        return (encode_command(sure),)

    for _ in range(_ATTEMPTS):
        try:
            outcome = me.append(propose)
        except Lost:
            yield
            continue
        result = outcome.result or me.state.judge(append)
        if result.outcome not in SUCCESSES or (outcome.result is None and result.outcome is Outcome.APPLIED):
            return result.outcome
        decided = outcome.result or result
        is_newest = me.state.applied_index == outcome.index
        epochs = leader_epochs(me.state, append) if is_newest else None
        settling = Settling(append, me.state.applied_index, epochs, decided)
        world.checker.count("appends", outcome.index >= 0)
        for _ in range(_ATTEMPTS):
            try:
                settling = judge.look_again(me.state, settling)
            except RetriableError:
                world.checker.count("cut off")
                break  # repeated
            if me.state.stable_index >= settling.stable_index:
                _acknowledge(world, append, rows, settling.result.base_offsets)
                return Outcome.DUPLICATE
            yield
            me.refresh()
    return None


def _looked_at(world: World, judge: AppendJudge, item: DataObject) -> DataObject:
    """Return an object with those of its doubtful copies that are there."""
    doubtful = judge.replication.doubtful.get(item.id, frozenset()) - world.away
    return replace(item, holders=item.holders | {broker for broker in doubtful if world.holds(broker, item.id)})


def _acknowledge(
    world: World, append: Append, rows: Mapping[Place, list[Row]], ranges: Mapping[Place, tuple[int, int]]
) -> None:
    identity = append.identity
    for place, some in rows.items():
        if place in ranges:
            base, end = ranges[place]
            if end - base != len(some):
                raise Violation(f"{identity.producer_id} was told {base} to {end} for {len(some)} rows of {place}")
            if place in world.checker.unclean and not _is_in_log(world, place, base, some[0]):
                world.checker.count("told of cut rows")  # an unclean election leaves producers alone (ADR 10)
                continue
            world.checker.told(place, base, some)
    if identity.kind is IdentityKind.STREAM:
        name = identity.producer_id
        world.checkpoints[name] = max(world.checkpoints.get(name, -1), identity.sequence)


def _is_in_log(world: World, place: Place, offset: int, row: Row) -> bool:
    for section in world.checker.state.sections(*place, offset, offset + 1):
        stored = world.content[section.object.id][section.start_byte]
        return any((section.base_offset + at, stored_row) == (offset, row) for at, (_, stored_row) in enumerate(stored))
    return False


def new_object(
    world: World,
    generation: int,
    after_index: int,
    place: Place,
    sections: Iterable[list[tuple[int, Row]]],
    holders: set[int],
    kind: str,
    *,
    has_offsets: bool,
) -> DataObject:
    """Return an object that is to be put, with a section for each list of rows and their offsets."""
    item, at_byte, made, content = ObjectId(generation, f"{kind}{world.next_unique()}.arrow"), 0, [], {}
    for rows in sections:
        size = ROW_BYTES * len(rows)
        content[at_byte] = tuple((offset if has_offsets else None, row) for offset, row in rows)
        made.append(Section(*place, len(rows), at_byte, size, 0, world.now_ms, world.now_ms))
        at_byte += size
    world.content[item] = content
    return DataObject(item, at_byte, False, frozenset(holders), tuple(made), has_offsets, after_index)


# -- readers ----------------------------------------------------------------------------------------


def read(world: World, me: Process) -> Job:
    """A reader plans, reads later, and plans what is left again where objects are gone, as RecordFetcher does."""
    topic_id, number = world.rng.choice(PARTITIONS)
    partition = me.state.topics[topic_id].partitions[number] if topic_id in me.state.topics else None
    if partition is None or partition.log_start_offset == partition.high_watermark:
        return
    start, end = world.rng.randrange(partition.log_start_offset, partition.high_watermark), partition.high_watermark
    slices = me.ask(lambda state: plan_fetch(state, "t", topic_id, number, start, end))
    while slices:
        yield
        rows = world.fetch(slices[0])
        if rows is None:
            slices = _plan_again(world, me, slices)
            world.checker.count("planned again")
            continue
        for offset, row in rows:
            world.checker.saw((topic_id, number), offset, row)
        slices = slices[1:]


def _plan_again(world: World, me: Process, slices: tuple[FetchSlice, ...]) -> tuple[FetchSlice, ...]:
    _, topic_id, number, start = slices[0][:4]
    if world.rules.plans_again:
        me.refresh()
    try:
        again = me.ask(lambda state: plan_fetch(state, "t", topic_id, number, start, slices[-1].end_offset))
    except DataLossError:
        if world.checker.state.topics[topic_id].partitions[number].log_start_offset <= start:
            raise Violation(f"offset {start} of {topic_id[0]}{number} is said to be gone") from None
        return ()
    if {part.object.id for part in again} <= {part.object.id for part in slices}:
        raise Violation(f"{slices[0].object.id} is gone, and the newest plan of {me.name} names it")
    return again


# -- compaction -------------------------------------------------------------------------------------


def compact(world: World, me: Process) -> Job:
    """Small objects become large ones."""
    topic_id = world.rng.choice((DELETED, DELETED, COMPACTED))
    me.refresh()
    limits = _any_span(me.state.topics[topic_id].config)
    runs = me.ask(lambda state: plan_compaction(state, topic_id, limits, sections_min=2))
    for run in runs[:2]:
        yield
        command = yield from _rewrite(world, run, np.empty(0, np.int64), has_offsets=False)
        result = Compactor(world.cluster_of(me)).decide(LEDGER, command)
        if result is not None:
            world.checker.count("replaced" if result.outcome is Outcome.APPLIED else "replace refused")


def move(world: World, me: Process) -> Job:
    """Inline rows move into data objects."""
    me.refresh()
    for run in me.ask(lambda state: plan_inline(state, _any_span, sections_min=1)):
        yield
        command = yield from _rewrite(world, run, np.empty(0, np.int64), has_offsets=False)
        result = Compactor(world.cluster_of(me)).decide(LEDGER, command)
        if result is not None:
            world.checker.count("moved" if result.outcome is Outcome.APPLIED else "move refused")


def _any_span(config: dict[str, str]) -> CompactionLimits:
    return limits_of(config)._replace(span_max_ms=None)


def clean(world: World, me: Process) -> Job:
    """One pass of compaction by key."""
    me.refresh()
    config = stored_topic_config(tuple(me.state.topics[COMPACTED].config.items()))[0]
    now_ms = me.retention_now_ms
    plan = me.ask(lambda state: plan_cleaning(state, COMPACTED, 0, config, now_ms, is_forced=True))
    if plan is None:
        return
    yield
    end_offset, cleaned = find_replaced(lambda run: _keys_of(world, run), plan, 1 << 20)
    for run, dropped in cleaned:
        yield
        command = yield from _rewrite(world, run, dropped, has_offsets=True)
        result = Compactor(world.cluster_of(me)).decide(LEDGER, command)
        if result is None or result.outcome is not Outcome.APPLIED:
            return
        world.checker.count("cleaned")
        yield
    me.append(lambda _: encode_command(LogClean(COMPACTED, 0, end_offset, now_ms)))


class Unreadable(ReplogError):
    """A run cannot be read any more: it is left to the next pass."""

    def __init__(self) -> None:
        Exception.__init__(self)


def _rows_of_run(world: World, run: CompactionRun) -> list[tuple[int, Row]]:
    numbered_rows: list[tuple[int, Row]] = []
    for part in slices_of(run):
        rows = world.fetch(part)
        if rows is None:
            raise Unreadable
        numbered_rows += rows
    return numbered_rows


def _keys_of(world: World, run: CompactionRun) -> KeyColumns:
    rows = _rows_of_run(world, run)
    keys = pa.chunked_array([pa.array([row.key for _, row in rows], pa.binary())])
    offsets = np.array([offset for offset, _ in rows], np.int64)
    return KeyColumns(keys, offsets, np.array([row.is_tombstone for _, row in rows], bool))


def _rewrite(world: World, run: CompactionRun, dropped: np.ndarray, *, has_offsets: bool) -> Job:  # type: ignore[misc]
    """Do what SegmentWriter.rewrite does; return its command."""
    rows = [row for row in _rows_of_run(world, run) if row[0] not in dropped]
    has_offsets = has_offsets or any(section.object.has_offsets for section in run.sections)
    if world.rules.renumbers:
        rows = [(run.first_offset + at, row) for at, (_, row) in enumerate(rows)]
    half = world.rng.randint(1, len(rows))
    parts = [part for part in (rows[:half], rows[half:]) if part]
    holders = set(run.replicas[: world.rules.copies_to])
    place = (run.topic_id, run.partition)
    where = (run.generation, run.after_index, place)
    item = new_object(world, *where, parts, set(run.replicas), "compact", has_offsets=has_offsets)
    for broker_id in sorted(holders):
        world.put(broker_id, item.id)
        yield
    command: Replace = replacement(run, item, (run.first_offset, *(part[0][0] for part in parts[1:])))
    return command


# -- retention and garbage --------------------------------------------------------------------------


def retain(world: World, me: Process) -> Job:
    """Retention, generations and their floor: the product's own entry."""
    decide_upkeep(me, me.retention_now_ms, me.clock_ms, DAY_MS, 0)  # type: ignore[arg-type]
    yield


def trim(world: World, me: Process) -> Job:
    """Someone deletes rows up to an offset that was looked up some time ago."""
    topic_id, number = world.rng.choice(PARTITIONS)
    partition = me.state.topics[topic_id].partitions[number]
    offset = min(partition.log_start_offset + world.rng.randint(0, 6), partition.high_watermark)
    yield
    moved = LogStartAdvance(topic_id, LogStartReason.DELETE_RECORDS, ((number, offset),))
    me.append(lambda _: encode_command(moved))


def floor(world: World, me: Process) -> Job:
    """``replog store gc`` on a full disk, or an old store: what is written now is refused."""
    raise_floor(me, 0)  # type: ignore[arg-type]
    yield


def collect(world: World, me: Process) -> Job:
    """Garbage is listed by the newest fold, and deleted later, file by file."""
    me.refresh()
    collector = GarbageCollector(
        world.cluster_of(me), is_dry_run=world.rules.lists_first, is_floor_raised=world.rules.lists_first
    )
    dropped = me.state.dropped_objects()
    for broker_id in BROKERS:
        if broker_id in world.away:
            continue
        files: list[GarbageFile] = []
        for file in collector.find(me, broker_id, dropped):  # type: ignore[arg-type]
            files.append(file)
            if world.rng.random() < 0.3:
                yield
        if world.rules.lists_first:
            yield
            raise_floor(me, 0)  # type: ignore[arg-type]
        for file in files:
            world.delete(broker_id, file.id)
            if world.rng.random() < 0.3:
                yield
    me.state.forget_dropped(dropped)


# -- snapshots --------------------------------------------------------------------------------------


def snapshot(world: World, me: Process) -> Job:
    """A snapshot is frozen, stored page by page, then its head; its commit rides in the next entry, or has its own."""
    if me.stored is not None:
        me.append(lambda _: ())
        return
    me.refresh()
    if not me.is_derived():
        me.restore_newest()
        me.refresh()
    frozen, decided = me.state.freeze(), me.state.snapshot
    yield
    for name, data in frozen.pages.items():
        world.pages[name] = data
        if world.rng.random() < 0.3:
            yield
    name = world.store_head(frozen, decided)
    yield
    me.stored = (frozen, name)
    if world.rng.random() < 0.5:
        me.append(lambda _: ())


def collect_pages(world: World, me: Process) -> Job:
    """Pages and heads that no snapshot can name any more go."""
    me.refresh()
    decided = me.state.snapshot
    if not decided.no:
        return
    named = world.checker.named_pages[decided.name]
    listed = list(world.pages)
    yield
    for name in listed:
        if name in world.pages and name not in named and world.rules.is_old_page(int(name[:12]), decided.no):
            world.checker.deletes_page(name)
            del world.pages[name]
            if world.rng.random() < 0.3:
                yield
    for name in list(world.heads):
        if int(name[:20]) < decided.entry_index and name != decided.name and name != world.checker.state.snapshot.name:
            del world.heads[name]


# -- replicas ---------------------------------------------------------------------------------------


def catch_up(world: World, me: Process) -> Job:
    """Replicas get what they lack."""
    me.refresh()
    after, adds = me.state.applied_index, []
    for copy in me.ask(lambda state: state.under_replicated(include_out_of_sync=True)):
        sources = [broker for broker in BROKERS if broker not in world.away and world.holds(broker, copy.object.id)]
        to = tuple(broker for broker in copy.missing if broker not in world.away)
        if sources and to:
            for broker_id in to:
                world.put(broker_id, copy.object.id)
            adds.append(HoldersAdd(copy.entry_index, copy.command_no, copy.object_no, to))
    if world.rng.random() < 0.3:
        yield

    def propose(state: TopicLedgerState) -> tuple[bytes, ...]:
        left = state.leadership.left_at
        sure = (replace(add, broker_ids=tuple(b for b in add.broker_ids if left.get(b, -1) <= after)) for add in adds)
        return tuple(encode_command(add) for add in sure if add.broker_ids)

    if adds:
        me.append(propose)
    yield


def fail_over(world: World, me: Process) -> Job:
    """Brokers that are away leave the ISR, with what only they hold; others come back."""
    me.refresh()
    gone, is_forced = frozenset(world.away), world.rng.random() < 0.5

    def propose(state: TopicLedgerState) -> tuple[bytes, ...] | None:
        commands = failover_commands(state, gone, me.clock_ms, is_forced=is_forced) if gone else []
        partitions = [partition for topic in state.topics.values() for partition in topic.partitions]
        back = [broker for broker in BROKERS if broker not in gone and any(broker not in p.isr for p in partitions)]
        joins = [] if gone else [IsrChange(None, broker, True, me.clock_ms) for broker in back]
        return tuple(encode_command(command) for command in [*commands, *joins]) or None

    me.append(propose)
    yield
