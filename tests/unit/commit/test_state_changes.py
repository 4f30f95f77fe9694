"""Every change of topics, partitions and replicas through the state machines, against a slow and obvious model."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_replog.commit import state_changes as reassignment
from spark_replog.commit.state_changes import (
    PartitionPhase,
    ReplicaPhase,
    change_partition,
    check_deleted,
    close_topic,
    create_topic,
    grow_topic,
    join_isr,
    leave_empty,
    leave_isr,
    leaving_replicas,
    partition_phase,
    replica_phase,
    settle_fences,
)
from spark_replog.errors import ReplogError
from spark_replog.log.codec.commands import encode_command, encode_entry
from spark_replog.log.fold.partition_state import NO_LEADER
from spark_replog.log.fold.topic_state import TopicLedgerState
from spark_replog.log.model import BrokerFence, IsrChange, Outcome, PartitionsAdd, TopicClose, TopicInit
from tests.examples import examples

P, R = PartitionPhase, ReplicaPhase
BROKERS = range(4)
T = "a" * 32

# Kafka's tables, source by target, and the walks of several steps that one entry makes.
PARTITION_STEPS = {
    (P.NON_EXISTENT, P.ONLINE), (P.NON_EXISTENT, P.OFFLINE),  # both by New
    (P.ONLINE, P.ONLINE), (P.ONLINE, P.OFFLINE), (P.OFFLINE, P.ONLINE), (P.OFFLINE, P.OFFLINE),
}  # fmt: skip
REPLICA_STEPS = {
    (R.NON_EXISTENT, R.ONLINE), (R.NON_EXISTENT, R.OFFLINE),  # both by New
    (R.ONLINE, R.ONLINE), (R.ONLINE, R.OFFLINE), (R.OFFLINE, R.ONLINE), (R.OFFLINE, R.OFFLINE),
    (R.ONLINE, R.NON_EXISTENT), (R.OFFLINE, R.NON_EXISTENT),  # the first by Offline
    (R.NON_EXISTENT, R.NON_EXISTENT),
}  # fmt: skip


class Sut:
    """The fold, changed only by what the state machines decide."""

    def __init__(self):
        self.state = TopicLedgerState("L")

    def decide(self, make):
        """Return "" or the code of who refused: the state machine, or the fold."""
        try:
            commands = make(self.state)
        except ReplogError as error:
            return error.code.name
        if not commands:
            return ""
        entry = encode_entry([encode_command(command) for command in commands])
        results = self.state.apply(self.state.applied_index + 1, entry)
        refused = [result for result in results if result.outcome not in (Outcome.APPLIED, Outcome.SKIPPED)]
        return (refused[0].error_code.name if refused[0].error_code else refused[0].outcome.name) if refused else ""

    def phases(self):
        topics = self.state.topics.values()
        partitions = {
            (topic.topic_id, number): partition_phase(topic, number) for topic in topics for number in range(6)
        }
        replicas = {
            (topic.topic_id, number, broker): replica_phase(partition, broker, self.state.fenced)
            for topic in topics
            for number, partition in enumerate(topic.partitions)
            for broker in BROKERS
        }
        return partitions, replicas


class ModelPartition:
    def __init__(self, replicas, fenced):
        self.replicas, self.adding, self.removing = list(replicas), [], []
        live = [replica for replica in replicas if replica not in fenced]
        self.isr, self.leader = live or list(replicas), live[0] if live else NO_LEADER
        if live and replicas[0] in live:
            self.leader = replicas[0]

    def first(self, among, order=None):
        return next((replica for replica in order or self.replicas if replica in among), NO_LEADER)

    def leave(self, broker):
        if broker in self.isr and len(self.isr) > 1:
            self.isr.remove(broker)
            if self.leader == broker:
                self.leader = self.first(self.isr)

    def move(self, isr, replicas, adding, removing, fenced):
        target = [replica for replica in replicas if replica not in removing]
        if self.leader not in isr:
            self.leader = self.first([replica for replica in isr if replica not in fenced], [*target, *isr])
        self.isr, self.replicas, self.adding, self.removing = list(isr), list(replicas), adding, removing

    def seen(self):
        return self.leader, tuple(self.isr), tuple(self.replicas), tuple(self.adding), tuple(self.removing)


class SlowModel:
    """Topics as plain lists; every rule of Kafka's controller written out where it applies."""

    def __init__(self):
        self.topics, self.closed, self.fenced = {}, set(), set()

    def live(self):
        return [part for topic, parts in self.topics.items() if topic not in self.closed for part in parts]

    def create(self, topic, rows, away):
        if topic in self.closed:
            return "INVALID_REQUEST"  # an id never comes back
        if topic not in self.topics:
            self.topics[topic] = [ModelPartition(row, self.fenced) for row in rows]
            for partition in self.topics[topic]:
                for broker in sorted(away):
                    partition.leave(broker)
        return ""

    def grow(self, topic, count, rows):
        if topic in self.closed:
            return "UNKNOWN_TOPIC_OR_PARTITION"
        if count < len(self.topics[topic]):
            return "INVALID_REQUEST"  # somebody else was first
        self.topics[topic] += [ModelPartition(row, self.fenced) for row in rows]
        return ""

    def close(self, topic):
        self.closed.add(topic)
        return ""

    def free_name(self, topic):
        is_offline = topic in self.closed or all(part.leader == NO_LEADER for part in self.topics[topic])
        in_service = [replica for part in self.topics[topic] for replica in part.isr if replica not in self.fenced]
        return "" if topic in self.closed or (is_offline and not in_service) else "INVALID_REQUEST"

    def leave(self, broker):
        for partition in self.live():
            partition.leave(broker)
        return ""

    def join(self, broker):
        for partition in self.live():
            if broker not in self.fenced and broker in partition.replicas:
                partition.isr = [holder for holder in partition.replicas if holder in partition.isr or holder == broker]
                self.lead(partition)
        return ""

    def lead(self, partition):
        live = [replica for replica in partition.isr if replica not in self.fenced]
        if partition.leader == NO_LEADER and live:
            partition.isr, partition.leader = live, partition.first(live)

    def fence(self, broker):
        self.fenced.add(broker)
        for partition in self.live():
            if broker in partition.isr:
                live = [replica for replica in partition.isr if replica not in self.fenced]
                partition.isr = live or partition.isr
                if partition.leader not in live:
                    partition.leader = partition.first(live)
        return ""

    def unfence(self, broker):
        self.fenced.discard(broker)
        for partition in self.live():
            self.lead(partition)
        return ""

    def elect(self, topic, partition, broker):
        if topic in self.closed:
            return "UNKNOWN_TOPIC_OR_PARTITION"
        part = self.topics[topic][partition]
        if broker not in part.replicas:
            return "INVALID_REQUEST"
        if broker in self.fenced:
            return "INELIGIBLE_REPLICA"
        if broker not in part.isr:
            return "INVALID_REQUEST"
        part.leader = broker
        return ""

    def reassign(self, topic, partition, target):
        if topic in self.closed:
            return "UNKNOWN_TOPIC_OR_PARTITION"
        part = self.topics[topic][partition]
        original = [replica for replica in part.replicas if replica not in part.adding]
        adding = [replica for replica in target if replica not in original]
        removing = [replica for replica in original if replica not in target]
        isr = [replica for replica in [*target, *removing] if replica in part.isr]
        if not isr:
            return "INVALID_REPLICA_ASSIGNMENT"
        part.move(isr, [*target, *removing], adding, removing, self.fenced)
        return ""

    def cancel(self, topic, partition):
        if topic in self.closed:
            return "UNKNOWN_TOPIC_OR_PARTITION"
        part = self.topics[topic][partition]
        if not part.adding and not part.removing:
            return "NO_REASSIGNMENT_IN_PROGRESS"
        replicas = [replica for replica in part.replicas if replica not in part.adding]
        isr = [replica for replica in replicas if replica in part.isr]
        if not isr:
            return "INVALID_REPLICA_ASSIGNMENT"
        part.move(isr, replicas, [], [], self.fenced)
        return ""

    def complete(self):
        for partition in self.live():
            target = [replica for replica in partition.replicas if replica not in partition.removing]
            if (partition.adding or partition.removing) and set(target) <= set(partition.isr):
                partition.move(target, target, [], [], self.fenced)
        return ""


broker = st.sampled_from(BROKERS)
rows = st.lists(st.permutations(BROKERS).map(lambda all_: tuple(all_[:3])), min_size=1, max_size=2)
topic = st.sampled_from([T, T, T, T, "b" * 32])
small = st.sampled_from([0, 0, 1])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("create"), topic, rows, st.sets(broker, max_size=2)),
        st.tuples(st.just("grow"), topic, st.integers(0, 1), rows),
        st.tuples(st.sampled_from(["close", "free_name", "free_name"]), topic),
        st.tuples(st.sampled_from(["leave", "leave", "join"]), broker),
        st.tuples(st.just("toggle"), broker),
        st.tuples(st.just("toggle"), broker),
        st.tuples(st.just("elect"), topic, small, broker),
        st.tuples(st.just("reassign"), topic, small, st.permutations(BROKERS), st.integers(1, 3)),
        st.tuples(st.just("cancel"), topic, small),
        st.tuples(st.just("complete")),
    ),
    min_size=5,
    max_size=30,
)


def take(step, sut, model):
    """Make one step in both; return both answers, None where the step is nonsense in this state."""
    verb, *given = step
    decide, state = sut.decide, sut.state
    if verb == "create":
        topic, assignments, away = given
        made = TopicInit(topic, topic[:1], tuple(assignments), ())
        fenced = frozenset(model.fenced)
        answer = decide(lambda state: create_topic(state, made, fenced=fenced, away=away, now_ms=0))
        return answer, model.create(topic, assignments, away)
    if verb in ("leave", "join"):
        change = (
            (lambda state: leave_isr(state, given, 0)) if verb == "leave" else lambda state: join_isr(state, *given, 0)
        )
        return decide(change), getattr(model, verb)(*given)
    if verb == "toggle":
        change = model.unfence if given[0] in model.fenced else model.fence
        wanted = frozenset(model.fenced ^ set(given))
        return decide(lambda state: settle_fences(state, wanted)), change(*given)
    if verb == "complete":
        return decide(reassignment.completions), model.complete()
    topic = given[0]
    if topic not in model.topics or (verb in ("elect", "reassign", "cancel") and given[1] >= len(model.topics[topic])):
        return None
    if verb == "close":
        return decide(lambda state: close_topic(state, topic)), model.close(topic)
    if verb == "free_name":
        return decide(lambda state: check_deleted(state, topic, "t")), model.free_name(topic)
    number = given[1]
    if verb == "grow":
        count = max(1, len(model.topics[topic]) - number)  # a view that may be old
        if count + len(given[2]) > 5:
            return None
        grown = PartitionsAdd(topic, count + len(given[2]), tuple(given[2]))
        answer = decide(lambda state: grow_topic(state, grown, fenced=frozenset(model.fenced)))
        return answer, model.grow(topic, count, given[2])
    if verb == "elect":
        return (
            decide(lambda state: [change_partition(state, topic, number, leader=given[2])]),
            model.elect(topic, number, given[2]),
        )
    if verb == "reassign":
        target = given[2][: given[3]]
        answer = decide(lambda state: [reassignment.begin(state, topic, number, target)])
        return answer, model.reassign(topic, number, target)
    assert verb == "cancel", state
    return decide(lambda state: [reassignment.cancel(state, topic, number)]), model.cancel(topic, number)


@pytest.mark.case("server-7-4-7-5-creation-growth-deletion")
@settings(max_examples=examples(100), deadline=None)
@given(STEPS)
def test_every_change_is_the_slow_models_and_a_walk_of_kafkas_state_machines(steps):
    sut, model = Sut(), SlowModel()
    take(("create", T, [(0, 1, 2)], set()), sut, model)
    for step in steps:
        partitions, replicas = sut.phases()
        before = {
            (topic, number): (old_partition.leader, old_partition.leader_epoch, old_partition.partition_epoch)
            for topic, old_topic in sut.state.topics.items()
            for number, old_partition in enumerate(old_topic.partitions)
        }
        answers = take(step, sut, model)
        if answers is None:
            continue
        assert answers[0] == answers[1], step
        for topic, sut_topic in sut.state.topics.items():
            assert sut_topic.closed == (topic in model.closed)
            if sut_topic.closed:
                assert partition_phase(sut_topic, 0) is P.OFFLINE
                continue
            assert len(sut_topic.partitions) == len(model.topics[topic])
            for number, (partition, expected) in enumerate(zip(sut_topic.partitions, model.topics[topic], strict=True)):
                seen = partition.leader, partition.isr, partition.replicas, partition.adding, partition.removing
                assert seen == expected.seen(), (step, number)
                leader, leader_epoch, partition_epoch = before.get((topic, number), (partition.leader, 0, 0))
                if (topic, number) in before:
                    assert (partition.leader_epoch > leader_epoch) == (partition.leader != leader)
                    assert partition.partition_epoch >= partition_epoch
        now_partitions, now_replicas = sut.phases()
        for key, phase in partitions.items():
            now = now_partitions[key]
            assert (phase, now) in PARTITION_STEPS or phase is now is P.NON_EXISTENT, (step, key)
        for place, state in replicas.items():
            assert (state, now_replicas[place]) in REPLICA_STEPS, (step, place)


# -- single moves -------------------------------------------------------------------------------------


def made(*rows, fenced=(), away=()):
    sut = Sut()
    init = TopicInit(T, "orders", rows, ())
    assert sut.decide(lambda s: create_topic(s, init, fenced=frozenset(fenced), away=away, now_ms=7)) == ""
    return sut, sut.state.topics[T].partitions


@pytest.mark.case("server-7-4-7-8-illegal-move-refused")
def test_a_topic_is_made_once_and_its_id_never_again():
    sut, _ = made((0, 1, 2))
    init = TopicInit(T, "orders", ((0, 1, 2),), ())
    assert create_topic(sut.state, init, fenced=frozenset(), away=[1], now_ms=0) == []
    assert close_topic(sut.state, T) == [TopicClose(T)]
    assert sut.decide(lambda state: close_topic(state, T)) == ""
    assert close_topic(sut.state, T) == [], "a repeated deletion writes nothing"
    with pytest.raises(ReplogError, match="OfflinePartition cannot become NewPartition"):
        create_topic(sut.state, init, fenced=frozenset(), away=[], now_ms=0)


def test_the_entry_that_makes_a_topic_settles_the_fences_before_and_who_is_away_behind_it():
    init = TopicInit(T, "orders", ((0, 1, 2), (2, 3, 0)), ())
    commands = create_topic(TopicLedgerState("L"), init, fenced=frozenset({2}), away={3, 0}, now_ms=7)
    assert commands == [BrokerFence(2, True), init, IsrChange(T, 0, False, 7), IsrChange(T, 3, False, 7)]
    _, (first, second) = made((0, 1, 2), (2, 3, 0), fenced={2}, away={3, 0})
    assert (first.leader, first.isr) == (1, (1,))
    assert (second.leader, second.isr) == (3, (3,)), "the last one stays in sync though it is away"


@pytest.mark.case("kafka-117b")
def test_a_partition_of_fenced_brokers_is_made_without_a_leader_and_gets_one_with_the_first_that_is_back():
    """Kafka: it stays NewPartition, which only differs by having no ISR yet."""
    sut, (partition,) = made((1, 2), fenced={1, 2})
    assert (partition_phase(sut.state.topics[T], 0), partition.leader) == (P.OFFLINE, NO_LEADER)
    assert sut.decide(lambda state: settle_fences(state, frozenset({1}))) == ""
    assert (partition_phase(sut.state.topics[T], 0), partition.leader, partition.isr) == (P.ONLINE, 2, (2,))


def test_growth_starts_as_creation_does_and_is_refused_where_somebody_else_was_first():
    sut, partitions = made((0, 1))
    grown = PartitionsAdd(T, 3, ((1, 0), (0, 1)))
    assert grow_topic(sut.state, grown, fenced=frozenset({1})) == [BrokerFence(1, True), grown]
    assert sut.decide(lambda state: grow_topic(state, grown, fenced=frozenset({1}))) == ""
    assert [(partition.leader, partition.isr) for partition in partitions] == [(0, (0,))] * 3
    with pytest.raises(
        ReplogError, match=r"INVALID_REQUEST.*OnlinePartition cannot become NewPartition.*partition=`1`"
    ):
        grow_topic(sut.state, grown, fenced=frozenset({1}))


def test_brokers_that_are_away_leave_new_partitions_only_while_these_are_empty():
    sut, partitions = made((0, 1), (1, 0), (1, 2), (1,))
    partitions[1].log_end_offset = 3
    changes = leave_empty(sut.state, T, range(4), {1})
    assert [(change.partition, change.leader, change.isr) for change in changes] == [(0, 0, (0,)), (2, 2, (2,))]
    assert leave_empty(sut.state, T, range(1, 2), {0, 2}) == leave_empty(sut.state, T, range(1), {2}) == []


def test_no_fenced_broker_leads_or_joins_by_any_change():
    sut, (partition,) = made((0, 1, 2))
    assert sut.decide(lambda state: leave_isr(state, [1, 2], 0)) == ""
    assert sut.decide(lambda state: settle_fences(state, frozenset({0, 1}))) == ""
    assert (partition.leader, partition.isr) == (NO_LEADER, (0,))
    for leader, isr in ((0, (0,)), (2, (0, 1, 2)), (1, (0, 1))):
        with pytest.raises(ReplogError, match="INELIGIBLE_REPLICA"):
            change_partition(sut.state, T, 0, leader=leader, isr=isr)
    # A reassignment while nobody in sync is in service leads nobody into office.
    assert sut.decide(lambda state: [reassignment.begin(state, T, 0, (3, 0))]) == ""
    assert (partition.leader, partition.replicas) == (NO_LEADER, (3, 0, 1, 2))
    assert sut.decide(lambda state: [reassignment.begin(state, T, 0, (0,))]) == ""
    assert sut.decide(reassignment.completions) == ""
    assert (partition.leader, partition.replicas) == (NO_LEADER, (0,))
    assert sut.decide(lambda state: settle_fences(state, frozenset())) == ""
    assert partition.leader == 0


def test_a_replica_joins_only_once_it_is_there():
    sut, _ = made((0, 1))
    for leader, isr in ((3, (0, 3)), (0, (0, 3))):
        with pytest.raises(ReplogError, match="NonExistentReplica cannot become OnlineReplica"):
            change_partition(sut.state, T, 0, leader=leader, isr=isr, replicas=(0, 1, 3), adding=(3,))


def test_a_reassignment_never_leaves_a_partition_without_any_replica_in_sync():
    sut, (partition,) = made((0, 1))
    assert sut.decide(lambda state: [reassignment.begin(state, T, 0, (2, 3))]) == ""
    assert sut.decide(lambda state: join_isr(state, 2, 0)) == ""
    assert sut.decide(lambda state: leave_isr(state, [0, 1], 0)) == ""
    assert (partition.isr, partition.leader, partition.adding) == ((2,), 2, (2, 3))
    for change in (
        lambda state: [reassignment.cancel(state, T, 0)],
        lambda state: [reassignment.begin(state, T, 0, (3,))],
    ):
        assert sut.decide(change) == "INVALID_REPLICA_ASSIGNMENT"
    assert sut.decide(lambda state: join_isr(state, 1, 0)) == ""
    assert sut.decide(lambda state: [reassignment.cancel(state, T, 0)]) == ""
    assert (partition.replicas, partition.isr, partition.leader) == ((0, 1), (1,), 1)


def test_what_changes_no_isr_writes_nothing():
    sut, _ = made((0, 1), (2,))
    assert leave_isr(sut.state, [2, 3], 5) == [], "the last one in sync stays, and 3 has no replica"
    assert leave_isr(sut.state, [1, 0], 5) == [IsrChange(None, 0, False, 5), IsrChange(None, 1, False, 5)]
    assert join_isr(sut.state, 1, 5) == []
    assert sut.decide(lambda state: leave_isr(state, [1], 5)) == ""
    assert join_isr(sut.state, 1, 5) == [IsrChange(None, 1, True, 5)]
    assert sut.decide(lambda state: settle_fences(state, frozenset({1}))) == ""
    assert join_isr(sut.state, 1, 5) == [], "a fenced broker comes back by command only"
    assert settle_fences(sut.state, frozenset({1})) == []
    assert sut.decide(lambda state: close_topic(state, T)) == ""
    assert leave_isr(sut.state, [0], 5) == join_isr(sut.state, 1, 5) == []


def test_a_name_is_freed_only_when_its_partitions_and_replicas_are_offline():
    sut, _ = made((0, 1))
    with pytest.raises(ReplogError, match="OnlinePartition cannot become NonExistentPartition"):
        check_deleted(sut.state, T, "orders")
    assert sut.decide(lambda state: close_topic(state, T)) == ""
    check_deleted(sut.state, T, "orders")
    check_deleted(sut.state, "never made", "orders")
    for change in (
        lambda state: grow_topic(state, PartitionsAdd(T, 2, ((0, 1),)), fenced=frozenset()),
        lambda state: [change_partition(state, T, 0, leader=1)],
        lambda state: [reassignment.begin(state, T, 0, (1,))],
        lambda state: [reassignment.cancel(state, T, 0)],
        lambda state: leave_empty(state, T, [0], {1}),
    ):
        assert sut.decide(change) == "UNKNOWN_TOPIC_OR_PARTITION"


@pytest.mark.parametrize(
    ("late", "partitions", "leaving"),
    [
        ({2}, [({0, 1, 2}, 2)], {2}),
        ({1}, [({0, 1}, 2)], set()),
        ({1, 2}, [({0, 1, 2}, 2)], set()),  # together or not at all
        ({1, 2}, [({0, 1}, 2), ({0, 1, 2}, 2)], {2}),  # 1 is needed by the first partition alone
        ({1}, [({0, 1}, 3)], {1}),  # too few are in sync already: it changes nothing
        ({1}, [({0, 1, 2}, 2), ({1, 2}, 2)], set()),
    ],
)
def test_late_replicas_leave_where_min_isr_stays(late, partitions, leaving) -> None:
    assert leaving_replicas(late, partitions) == leaving
