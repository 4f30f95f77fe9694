"""More jobs of ``whole_system``: sequenced and transactional producers, groups, deleted topics, unclean elections."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from spark_replog.client.transactions import claim_producer
from spark_replog.commit.state_changes import change_partition, close_topic, failover_commands, live_partitions
from spark_replog.ids import ObjectId
from spark_replog.log.codec.commands import encode_command
from spark_replog.log.codec.group_records import (
    GroupMember,
    GroupMetadata,
    GroupPhase,
    GroupRecord,
    OffsetAndMetadata,
    OffsetRecord,
    Record,
)
from spark_replog.log.fold.partition_state import SectionRef, elect_offline
from spark_replog.log.fold.topic_state import TopicLedgerState
from spark_replog.log.model import (
    BatchSequence,
    GroupRecords,
    IdentityKind,
    IsrChange,
    Outcome,
    ProducerIdentity,
    SequencedAppend,
    TopicInit,
    Truncate,
)
from spark_replog.storage.paths import data_key
from tests.simulation import whole_jobs
from tests.simulation.whole_checks import Place, Row, Violation
from tests.simulation.whole_jobs import carry_rows, commit, put_rows
from tests.simulation.whole_system import BROKERS, DELETED, LEDGER, RISKY, SHORT, Job, Lost, Process, World

_TRIES = 12
_TRANSACTIONAL_ID, _GROUP = "t", "g"
_Rows = dict[Place, list[Row]]
_Put = Callable[[World, Process, _Rows], Job]


# -- producers --------------------------------------------------------------------------------------


def _draw_rows(world: World, me: Process, batch: str) -> _Rows:
    places = [(topic_id, number) for topic_id, topic in me.state.topics.items() if not topic.closed
              for number in range(len(topic.partitions))]  # fmt: skip
    chosen = sorted(world.rng.sample(places, world.rng.choice((1, 1, 2))))
    return {
        place: [
            Row(
                f"{batch}/{place[0].lstrip(place[0][0])}{place[0][0]}{place[1]}/{at}",
                b"k%d" % world.rng.randrange(4),
                world.rng.random() < 0.2,
            )
            for at in range(world.rng.randint(1, 3))
        ]
        for place in chosen
    }


def _make_append(  # type: ignore[misc]
    world: World, me: Process, identity: ProducerIdentity, epoch: int, rows: _Rows, sequences: dict[Place, int],
    put: _Put = put_rows,
) -> Job:  # fmt: skip
    """Put rows and return their append, with the next sequences of its producer."""
    items = yield from put(world, me, rows)
    batches = []
    for place, some in rows.items():
        first = sequences.get(place, 0)
        batches.append(BatchSequence(*place, epoch, first, len(some)))
        sequences[place] = first + len(some)
    return SequencedAppend(identity, "User:s", "", me.clock_ms, items, tuple(batches))


def produce(world: World, me: Process, put: _Put = put_rows) -> Job:
    """An idempotent producer sends one append after the other; a request that lay in between comes once more."""
    name = f"i{world.next_unique()}"
    identity = ProducerIdentity(name, name, 0, "", IdentityKind.ONE_SHOT)
    sequences: dict[Place, int] = {}
    sent: list[tuple[SequencedAppend, _Rows]] = []
    for number in range(3):
        rows = _draw_rows(world, me, f"{name}/{number}")
        sent.append(((yield from _make_append(world, me, identity, 0, rows, sequences, put)), rows))
        late = world.rng.choice(sent)
        for append, its_rows in (sent[-1], late) if world.rng.random() < 0.3 else sent[-1:]:
            outcome = yield from _commit_until_answered(world, me, append, its_rows)
            if outcome in (Outcome.OUT_OF_SEQUENCE, Outcome.INVALID):
                raise Violation(f"append {number} of {name} is {outcome}, and all before it are in the log")
            if outcome is not Outcome.DUPLICATE:
                return  # below the floor, or the topic is gone: the program is told
            world.checker.count("sequenced acknowledged")
            world.checker.count("sends acknowledged", put is carry_rows)


def _commit_until_answered(world: World, me: Process, append: SequencedAppend, rows: _Rows) -> Job:  # type: ignore[misc]
    for _ in range(_TRIES):
        outcome = yield from commit(world, me, append, rows)
        if outcome is not None:
            return outcome
        yield
    return None


def transact(world: World, me: Process) -> Job:
    """A program claims its transactional.id and commits transactions; the one before it is fenced."""
    instance = f"t{world.next_unique()}"
    for _ in range(_TRIES):
        try:
            epoch = claim_producer(me, _TRANSACTIONAL_ID, instance, timeout_ms=0)  # type: ignore[arg-type]
            break
        except Lost:
            yield  # repeated with the same instance
    else:
        return
    identity = ProducerIdentity(_TRANSACTIONAL_ID, instance, 0, "", IdentityKind.TRANSACTIONAL)
    sequences: dict[Place, int] = {}
    for number in range(3):
        yield
        rows = _draw_rows(world, me, f"{instance}/{number}")
        append = yield from _make_append(world, me, identity, epoch, rows, sequences)
        outcome = yield from _commit_until_answered(world, me, append, rows)
        newest = world.checker.state.producers.sequenced.producers.get(_TRANSACTIONAL_ID)
        if outcome is Outcome.FENCED and newest is not None and newest.instance_id == instance:
            raise Violation(f"{instance} holds the id, and is told that it is fenced")
        if outcome in (Outcome.OUT_OF_SEQUENCE, Outcome.INVALID):
            raise Violation(f"transaction {number} of {instance} is {outcome}, and all before it are in the log")
        if outcome is not Outcome.DUPLICATE:
            return
        world.checker.count("transactions")


# -- groups -----------------------------------------------------------------------------------------


def consume(world: World, me: Process) -> Job:
    """A member takes the group over, then commits offsets until another one has taken it over."""
    member = GroupMember(f"m{world.next_unique()}", "", "", 0, 0, True, ())

    def join(state: TopicLedgerState) -> tuple[int, tuple[Record, ...]]:
        old_group = state.groups.get(_GROUP)
        generation = 1 if old_group is None else old_group.metadata.generation + 1
        metadata = GroupMetadata("consumer", generation, "range", member.member_id, GroupPhase.STABLE, 0, (member,))
        return 0 if old_group is None else old_group.revision, (GroupRecord(_GROUP, metadata),)

    yield from _decide(world, me, "", -1, join)
    group = me.state.groups.get(_GROUP)
    if group is None or group.metadata.leader != member.member_id:
        return  # another one was faster
    generation, offset = group.metadata.generation, 0
    for _ in range(4):
        yield
        offset += world.rng.randint(1, 5)
        value = OffsetAndMetadata(offset, topic_id=DELETED)
        record: tuple[Record, ...] = (OffsetRecord(_GROUP, "orders", 0, value),)
        is_told = yield from _decide(world, me, member.member_id, generation, lambda _, made=record: (-1, made))
        if not is_told:
            return
        if world.checker.commits.setdefault(generation, 0) < offset:
            world.checker.commits[generation] = offset


def _decide(  # type: ignore[misc]
    world: World,
    me: Process,
    member_id: str,
    generation: int,
    made: Callable[[TopicLedgerState], tuple[int, tuple[Record, ...]]],
) -> Job:
    """Decide one command as ``GroupLedger`` does; return whether it was applied, False where it is refused."""
    sequence = world.next_unique()
    for _ in range(_TRIES):
        answer: bool | None = None

        def propose(state: TopicLedgerState) -> bytes | None:
            nonlocal answer
            revision, records = made(state)
            command = GroupRecords(
                DELETED, _GROUP, me.name, sequence, member_id, "", generation, revision, me.clock_ms, records
            )
            if state.groups.is_applied(command):
                answer = True
            elif state.groups.judge(command) is not None:
                answer = False
            else:
                return encode_command(command)
            return None

        try:
            outcome = me.append(propose)
        except Lost:
            yield
            continue
        if answer is not None or outcome.result is None:
            return bool(answer)
        if outcome.result.outcome is Outcome.APPLIED:
            return True
        yield
    return False


# -- topics and leaders -----------------------------------------------------------------------------


def delete_topic(world: World, me: Process) -> Job:
    """Someone deletes a topic; another one of its name is made later."""
    me.refresh()
    for topic_id in [open_id for open_id in me.state.topics if open_id.startswith(SHORT)]:
        if me.append(lambda state, gone=topic_id: tuple(map(encode_command, close_topic(state, gone)))).index >= 0:
            world.checker.count("deleted topics")
    yield
    name = TopicInit(f"{SHORT}{world.next_unique():06d}", "short", ((0, 2, 1),), (("segment.bytes", "1048576"),))
    me.append(lambda _: encode_command(name))


def elect(world: World, me: Process) -> Job:
    """``replog topic elect --unclean``: someone gives up what only the lost leaders have."""
    me.refresh()
    in_sync = me.state.topics[RISKY].partitions[0].isr
    if not world.away and len(in_sync) < len(BROKERS):
        world.outage = set(in_sync)
    yield

    def propose(state: TopicLedgerState) -> bytes | None:
        partition, live = state.topics[RISKY].partitions[0], set(BROKERS) - world.away - state.fenced
        election = elect_offline(partition.replicas, partition.isr, live, is_unclean_allowed=True)
        if partition.leader in live or election is None or not election.is_unclean:
            return None
        change = change_partition(state, RISKY, 0, leader=election.leader, isr=election.isr, is_unclean=True)
        return encode_command(change)

    me.append(propose)


def rebuild(world: World, me: Process) -> Job:
    """A root is lost with all that it holds, and ``replog store repair`` rebuilds it as ``StoreRepair`` does."""
    if world.lost is None:
        if world.away:
            return  # of three roots one may be lost
        world.lose(world.rng.choice(BROKERS))
        yield
    broker_id, loss_no = world.lost, world.loss_no
    if broker_id is None:
        return  # another process was faster

    def leave(state: TopicLedgerState) -> tuple[bytes, ...]:
        commands = failover_commands(state, frozenset({broker_id}), me.clock_ms, is_forced=True)
        return tuple(map(encode_command, (*commands, IsrChange(None, broker_id, False, me.clock_ms))))

    me.append(leave)
    yield
    gone: set[ObjectId] = set()
    for section in me.ask(_live_sections):
        if section.object.inline:
            continue
        item = section.object.id
        if any(world.holds(broker, item) for broker in BROKERS):
            world.keys[broker_id].add(data_key(LEDGER, *item))
        else:
            gone.add(item)
        if world.rng.random() < 0.1:
            yield

    def cut(state: TopicLedgerState) -> bytes | None:
        lacking = [
            copy.entry_index for copy in state.under_replicated(include_out_of_sync=True) if copy.object.id in gone
        ]
        above = [index for index in lacking if index > state.stable_index]
        return encode_command(Truncate(min(above) - 1)) if above else None

    if gone:
        me.append(cut)
    if (world.lost, world.loss_no) == (broker_id, loss_no):
        world.lost = None
        world.checker.count("rebuilt roots")
        world.checker.check_copies()


def _live_sections(state: TopicLedgerState) -> list[SectionRef]:
    return [
        section
        for topic, number, partition in live_partitions(state)
        for section in state.sections(topic.topic_id, number, partition.log_start_offset, partition.log_end_offset)
    ]


JOBS: Mapping[str, Callable[[World, Process], Job]] = {
    "write": whole_jobs.write,
    "read": whole_jobs.read,
    "compact": whole_jobs.compact,
    "clean": whole_jobs.clean,
    "retain": whole_jobs.retain,
    "trim": whole_jobs.trim,
    "floor": whole_jobs.floor,
    "collect": whole_jobs.collect,
    "snapshot": whole_jobs.snapshot,
    "pages": whole_jobs.collect_pages,
    "catch_up": whole_jobs.catch_up,
    "fail_over": whole_jobs.fail_over,
    "produce": produce,
    "transact": transact,
    "consume": consume,
    "delete_topic": delete_topic,
    "elect": elect,
    "rebuild": rebuild,
}
INLINE_JOBS: Mapping[str, Callable[[World, Process], Job]] = {
    "send": partial(produce, put=carry_rows),
    "move": whole_jobs.move,
}
"""Jobs of some schedules only: the others are what they were before inline rows."""
WEIGHTS = {
    "write": 18, "read": 10, "compact": 8, "clean": 6, "retain": 1, "trim": 0.5, "floor": 1, "collect": 5,
    "snapshot": 5, "pages": 3, "catch_up": 9, "fail_over": 2.5, "outage": 2, "clock": 0.7, "restart": 1,
    "produce": 6, "transact": 5, "consume": 5, "delete_topic": 0.7, "elect": 0.7, "rebuild": 2,
}  # fmt: skip
