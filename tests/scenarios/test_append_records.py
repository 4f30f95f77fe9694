"""Kafka's cases of ReplicaManager.appendRecords and Partition."""

from __future__ import annotations

import gc
import threading
import weakref
from dataclasses import replace
from types import SimpleNamespace

import pytest

from spark_replog.admin.admin import BrokerAdmin
from spark_replog.admin.coordinator_loop import CoordinatorLoop
from spark_replog.cluster.cluster import Cluster
from spark_replog.commit import catch_up, replica_manager
from spark_replog.commit import replication as replication_round
from spark_replog.commit.append_judge import AppendJudge
from spark_replog.commit.append_request import AppendRequest
from spark_replog.commit.catch_up import CatchUp
from spark_replog.config.coordinator import CoordinatorConfig
from spark_replog.errors import ErrorCode, ReplogError, RetriableError
from spark_replog.log.codec.commands import encode_command
from spark_replog.log.model import (
    UNKNOWN_OFFSET,
    Append,
    ConfigSet,
    DataObject,
    IdentityKind,
    IsrChange,
    Outcome,
    ProducerIdentity,
    Truncate,
)
from tests.waiting import wait_until


def ends(store, topic: str = "orders") -> list[int]:
    return [partition.log_end_offset for partition in store.controller.describe_topic(topic).partitions]


def codes(response) -> list[str | None]:
    """Per partition, in order of partition."""
    ordered = sorted(response.partitions.items(), key=lambda item: item[0][1])
    return [None if answer.error is None else answer.error.code.name for _, answer in ordered]


def bases(response) -> list[int]:
    return [answer.base_offset for _, answer in sorted(response.partitions.items(), key=lambda item: item[0][1])]


def move_to_partition(item: DataObject, number: int, to: int) -> DataObject:
    sections = tuple(piece._replace(partition=to) if piece.partition == number else piece for piece in item.sections)
    return replace(item, sections=sections)


def set_min_insync(store, value: int) -> None:
    handle = store.cluster.lookup("orders")
    command = encode_command(ConfigSet(handle.topic_id, (("min.insync.replicas", str(value)),)))
    store.cluster.topic_ledger(handle.ledger_id).append(lambda _: command, timeout_ms=10_000)


@pytest.fixture
def parked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many partitions each append that had to wait waited for."""
    seen: list[int] = []
    made = replica_manager.WaitingRound

    def noting(copy_round, *args):
        seen.append(len(copy_round.partitions))
        return made(copy_round, *args)

    monkeypatch.setattr(replica_manager, "WaitingRound", noting)
    return seen


@pytest.mark.case("kafka-95")
@pytest.mark.parametrize("acks", [3, 2, -2])
def test_illegal_acks_answer_every_partition_and_append_nothing(store, acks: int) -> None:
    store.create("orders", 3)
    response = store.append("orders", {0: 1, 1: 2, 2: 3}, batch=0, acks=acks)
    assert codes(response) == ["INVALID_REQUIRED_ACKS"] * 3
    assert bases(response) == [UNKNOWN_OFFSET] * 3
    assert ends(store) == [0, 0, 0]


@pytest.mark.case("server-success-reply-base-offset-append")
def test_the_answer_of_a_success(store) -> None:
    store.create("orders", 2)
    store.create("stamped", 1, config={"message.timestamp.type": "LogAppendTime"})
    for batch, first in enumerate(([0, 0], [2, 3], [4, 6])):
        response = store.append("orders", {0: 2, 1: 3}, batch=batch)
        assert codes(response) == [None, None]
        assert bases(response) == first
        assert [(a.log_append_time_ms, a.log_start_offset) for a in response.partitions.values()] == [(None, 0)] * 2
    (answer,) = store.append("stamped", {0: 1}, batch=0).partitions.values()
    assert answer.log_append_time_ms > 1_600_000_000_000


@pytest.mark.case("server-acks-0-1-never-wait-acks-0-tells")
def test_acks_0_tells_no_offset_and_acks_1_tells_it(store) -> None:
    store.create("orders")
    assert bases(store.append("orders", {0: 1}, batch=0, acks=0)) == [-1]
    assert bases(store.append("orders", {0: 1}, batch=1, acks=1)) == [1]
    assert ends(store) == [2]


@pytest.mark.case("server-delayed-iff-acks-1-data-one")
@pytest.mark.case("server-acks-0-1-never-wait-acks-0-tells")
@pytest.mark.parametrize("acks", [0, 1])
def test_acks_0_and_1_never_wait(store, acks: int, parked: list[int]) -> None:
    store.create("orders")
    assert store.append("orders", {0: 1}, batch=0, holders={0}, acks=acks).error is None
    assert parked == []


@pytest.mark.case("server-unknown-partition-deleted-topic")
def test_one_bad_partition_never_harms_another(store) -> None:
    store.create("orders", 3)
    item = move_to_partition(store.put("orders", {0: 2, 1: 3, 2: 4}, {0, 1, 2}), 1, 9)
    response = store.append("orders", {}, batch=0, objects=(item,), is_atomic=False)
    assert response.error is None
    assert codes(response) == [None, None, "UNKNOWN_TOPIC_OR_PARTITION"]
    assert bases(response) == [0, 0, UNKNOWN_OFFSET]
    assert ends(store) == [2, 0, 4]
    # The bytes of the refused rows stay in the object and belong to no section.
    assert [section.row_count for section in store.sections("orders", 2)] == [4]


@pytest.mark.case("server-micro-batch-refused-whole-ours")
def test_a_micro_batch_is_refused_whole(store) -> None:
    store.create("orders", 3)
    item = move_to_partition(store.put("orders", {0: 2, 1: 3}, {0, 1, 2}), 1, 9)
    response = store.append("orders", {}, batch=0, objects=(item,))
    assert response.error is not None
    assert codes(response) == ["UNKNOWN_TOPIC_OR_PARTITION"] * 2
    assert ends(store) == [0, 0, 0]


@pytest.mark.case("server-delayed-iff-acks-1-data-one")
@pytest.mark.case("kafka-96")
def test_all_partitions_bad_is_an_error_of_the_whole_and_nobody_waits(store, parked: list[int]) -> None:
    store.create("orders", 2)
    item = store.put("orders", {0: 1, 1: 1}, {0})
    item = move_to_partition(move_to_partition(item, 0, 8), 1, 9)
    response = store.append("orders", {}, batch=0, objects=(item,), is_atomic=False)
    assert response.error is not None and response.error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert codes(response) == ["UNKNOWN_TOPIC_OR_PARTITION"] * 2
    assert parked == []


@pytest.mark.case("server-delayed-iff-acks-1-data-one")
@pytest.mark.case("kafka-96")
def test_one_of_two_partitions_failing_is_parked_and_keeps_its_own_error(store, parked: list[int]) -> None:
    store.create("orders", 2)
    item = move_to_partition(store.put("orders", {0: 2, 1: 3}, {0}), 1, 9)
    response = store.append("orders", {}, batch=0, objects=(item,), is_atomic=False)
    assert parked == [1]
    assert codes(response) == [None, "UNKNOWN_TOPIC_OR_PARTITION"]
    assert ends(store) == [2, 0]
    assert store.held_by("orders", 1) == store.held_by("orders", 2) == {item.id.name}


@pytest.mark.case("server-unknown-partition-deleted-topic")
def test_a_deleted_topic_of_the_same_ledger_harms_only_itself(store) -> None:
    store.create("orders", 1, ledger_name="shared")
    store.create("clicks", 1, ledger_name="shared")
    assert store.cluster.lookup("orders").ledger_id == store.cluster.lookup("clicks").ledger_id
    objects = (store.put("orders", {0: 2}, {0, 1, 2}), store.put("clicks", {0: 3}, {0, 1, 2}))
    store.controller.delete_topic("clicks")
    response = store.append("orders", {}, batch=0, objects=objects, is_atomic=False)
    assert sorted(str(code) for code in codes(response)) == ["None", "UNKNOWN_TOPIC_OR_PARTITION"]
    assert ends(store) == [2]


@pytest.mark.case("server-internal-topics")
def test_an_internal_topic_of_the_same_ledger_harms_only_itself(store) -> None:
    store.create("orders", 1, ledger_name="shared")
    store.create("__consumer_offsets", 1, ledger_name="shared")
    objects = (store.put("orders", {0: 2}, {0, 1, 2}), store.put("__consumer_offsets", {0: 3}, {0, 1, 2}))
    response = store.append("orders", {}, batch=0, objects=objects, is_atomic=False)
    assert sorted(str(code) for code in codes(response)) == ["INVALID_TOPIC_EXCEPTION", "None"]
    assert (ends(store), ends(store, "__consumer_offsets")) == ([2], [0])


@pytest.mark.case("kafka-97")
@pytest.mark.parametrize(("acks", "appended"), [(-1, False), (1, True), (0, True)])
def test_the_isr_gate_is_for_acks_all_alone(store, acks: int, appended: bool) -> None:
    # min ISR 2, ISR {leader}; nobody may come back by himself
    store.create("orders", config={"min.insync.replicas": "1"})
    store.away(1), store.away(2)
    store.back(1)  # journals need two roots
    assert store.append("orders", {0: 1}, batch=0, holders={0, 1}).error is None
    store.cluster.brokers.check_root(1)
    BrokerAdmin(store.cluster).fence(1)
    assert store.isr("orders") == (0,)
    set_min_insync(store, 2)
    response = store.append("orders", {0: 5}, batch=1, holders={0}, acks=acks)
    assert codes(response) == [None if appended else "NOT_ENOUGH_REPLICAS"]
    assert ends(store) == [6 if appended else 1]
    # Under the minimum the high watermark rests.
    assert store.high_watermarks("orders") == [1]


def test_an_append_that_is_short_of_replicas_brings_back_a_root_that_is_there_again(store) -> None:
    store.config = CoordinatorConfig(replica_rejoin_wait_ms=3_600_000)
    store.reopen()
    store.create("orders", config={"min.insync.replicas": "2"})
    store.away(2)
    assert store.append("orders", {0: 1}, batch=0, holders={0, 1}).error is None
    set_min_insync(store, 3)
    assert codes(store.append("orders", {0: 1}, batch=1, holders={0, 1})) == ["NOT_ENOUGH_REPLICAS"]
    store.back(2)
    # Kafka's follower would fetch and join by itself.
    assert store.append("orders", {0: 1}, batch=1, holders={0, 1}).error is None
    assert set(store.isr("orders")) == {0, 1, 2}


@pytest.mark.case("kafka-98")
def test_a_repeated_append_whose_isr_shrank_is_in_the_log_and_not_on_enough_replicas(store) -> None:
    # required 10, min ISR 2, ISR {1, 2}: the rows are there, then the ISR is {1}: NOT_ENOUGH_REPLICAS_AFTER_APPEND.
    store.config = CoordinatorConfig(replica_catchup_budget_ms=0, replica_rejoin_wait_ms=3_600_000)
    store.reopen()
    store.create("orders", 1, 3, config={"min.insync.replicas": "2"})
    assert store.append("orders", {0: 10}, batch=0, holders={0}, acks=1).error is None
    handle = store.cluster.lookup("orders")
    for broker_id in (1, 2):
        shrink = encode_command(IsrChange(None, broker_id, False, store.cluster.clock.now_ms()))
        store.cluster.topic_ledger(handle.ledger_id).append(lambda _, shrink=shrink: shrink, timeout_ms=10_000)
    again = store.append("orders", {0: 10}, batch=0)
    assert codes(again) == ["NOT_ENOUGH_REPLICAS_AFTER_APPEND"]
    assert ends(store) == [10]
    assert store.high_watermarks("orders") == [0]


@pytest.mark.parametrize(
    "error",
    [
        RetriableError(ErrorCode.REPLOG_NO_QUORUM, "too few roots answer; nothing was decided. Repeat it."),
        ReplogError(ErrorCode.REPLOG_STORE_REFUSED, "too few roots take a write; nothing was decided."),
        RuntimeError("can't start new thread"),
    ],
)
def test_what_is_in_the_log_is_never_said_to_be_undecided(store, monkeypatch, error) -> None:
    store.config = CoordinatorConfig(replica_catchup_budget_ms=0, replica_rejoin_wait_ms=3_600_000)
    store.reopen()
    store.create("orders")
    assert store.append("orders", {0: 10}, batch=0, holders={0}, acks=1).error is None

    def without_a_majority(*_):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(AppendJudge, "judge_settling", without_a_majority)
        assert codes(store.append("orders", {0: 10}, batch=0)) == ["NOT_ENOUGH_REPLICAS_AFTER_APPEND"]
    assert codes(store.append("orders", {0: 10}, batch=0)) == [None]
    assert ends(store) == [10]


@pytest.mark.parametrize("acks", [-1, 1])
def test_a_decided_append_does_not_fail_by_what_comes_after_it(store, monkeypatch, acks) -> None:
    """Where a process may start no more threads, its rows would be told as lost and written again."""
    store.config = CoordinatorConfig(replica_rejoin_wait_ms=0)
    store.reopen()
    store.create("orders")

    def without_a_thread(*_, **__):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(CatchUp, "readmit", without_a_thread)
        patch.setattr(catch_up, "IO_POOL", SimpleNamespace(post_to=without_a_thread))
        assert codes(store.append("orders", {0: 10}, batch=0, acks=acks)) == [None]
    assert codes(store.append("orders", {0: 10}, batch=1, holders={0}, acks=1)) == [None]
    assert store.high_watermarks("orders") == [20]


@pytest.mark.case("kafka-99-100")
def test_a_replica_joins_at_the_log_end_and_not_before(store) -> None:
    # testIsrExpansion, FollowerDoesNotJoinISRUntilCaughtUpToLeaderEpoch: Kafka asks for the high watermark and the
    # start of the leader's epoch; here a replica needs every object, which is at least both.
    store.config = CoordinatorConfig(replica_rejoin_wait_ms=0, replica_lag_time_max_ms=3_000, replica_catchup_bytes=1)
    store.reopen()
    store.create("orders")
    store.away(2)
    for batch in range(3):
        assert store.append("orders", {0: 3}, batch=batch, holders={0, 1}).error is None
    store.back(2)
    seen = []
    for batch in range(3, 9):
        assert store.append("orders", {0: 1}, batch=batch, holders={0, 1, 2}).error is None
        missing = len(store.held_by("orders", 0) - store.held_by("orders", 2))
        seen.append((missing, 2 in store.isr("orders")))
        assert (missing == 0) == (2 in store.isr("orders"))
    assert not seen[0][1] and seen[-1][1]


@pytest.mark.case("kafka-108", "server-5-8-high-watermark-kept-kafka-new")
def test_offsets_never_go_back_when_the_leader_changes(store) -> None:
    # MonotonicOffsetsAfterLeaderChange: HW 2, LEO 5, then another leads. Kafka answers OFFSET_NOT_AVAILABLE while its
    # high watermark is below the epoch's start; here the high watermark is the fold's and stays.
    store.config = CoordinatorConfig(replica_catchup_budget_ms=0, replica_rejoin_wait_ms=3_600_000)
    store.reopen()
    store.create("orders")
    assert store.append("orders", {0: 2}, batch=0).error is None
    leader = store.controller.describe_topic("orders").partitions[0].leader
    others = {0, 1, 2} - {leader}
    assert store.append("orders", {0: 3}, batch=1, holders={leader, min(others)}, acks=1).error is None
    assert (store.high_watermarks("orders"), ends(store)) == ([2], [5])
    store.away(leader)
    assert store.append("orders", {0: 1}, batch=2, holders=others).error is None
    partition = store.controller.describe_topic("orders").partitions[0]
    assert partition.leader in others and partition.leader_epoch == 1
    assert store.high_watermarks("orders") == [6]


@pytest.mark.case("kafka-61-110")
def test_followers_copy_above_the_high_watermark_and_readers_stay_below(store) -> None:
    # FetchBeyondHighWatermark
    store.config = CoordinatorConfig(replica_catchup_budget_ms=0)
    store.reopen()
    store.create("orders")
    assert store.append("orders", {0: 4}, batch=0, holders={0}, acks=1).error is None
    assert store.sections("orders") == []  # empty, not an error
    assert store.append("orders", {0: 1}, batch=1).error is None
    assert len(store.held_by("orders", 2)) == 2
    assert sum(section.row_count for section in store.sections("orders")) == 5


@pytest.mark.case("kafka-111")
def test_an_election_answers_a_parked_append_at_once(store, faults) -> None:
    # ClearPurgatoryOnBecomingFollower. Nothing is decided yet, so instead of handing NOT_LEADER_OR_FOLLOWER to the
    # client, who would repeat the request, the append is judged again on the new fold.
    store.create("orders")
    config = CoordinatorConfig(replica_lag_time_max_ms=10_000)
    with faults(store, config) as broken:
        objects = (store.put("orders", {0: 1}, {0, 1}),)
        broken.stores[2].data_gate.clear()
        answers: list = []
        waiting = threading.Thread(
            target=lambda: answers.append(store.append("orders", {0: 1}, batch=0, objects=objects))
        )
        waiting.start()
        purgatory = store.purgatory
        wait_until(lambda: purgatory.timer.size)
        handle = store.cluster.lookup("orders")
        leader = store.controller.describe_topic("orders").partitions[0].leader
        for broker_id in {leader, 2}:
            BrokerAdmin(store.cluster).fence(broker_id)
        purgatory.check_and_complete((handle.topic_id, 0))
        waiting.join(5)
        is_alive, broken.stores[2].data_gate = waiting.is_alive(), threading.Event()
        assert not is_alive  # long before the lag time
        # One replica is left, and the topic wants two.
        assert codes(answers[0]) == ["NOT_ENOUGH_REPLICAS"]


@pytest.mark.case("server-5-5-6-4-shrink-completes-waits")
def test_an_isr_change_of_another_process_wakes_a_parked_append(store, faults, monkeypatch) -> None:
    monkeypatch.setattr(replication_round, "LOOK_INTERVAL_MS", 1)
    store.create("orders")
    leader, second, third = store.controller.describe_topic("orders").partitions[0].replicas
    config = CoordinatorConfig(replica_lag_time_max_ms=30_000, request_timeout_ms=90_000, replica_rejoin_wait_ms=60_000)
    with faults(store, config) as broken:
        objects = (store.put("orders", {0: 1}, {leader, second}),)
        broken.stores[third].data_gate.clear()
        answers: list = []
        waiting = threading.Thread(
            target=lambda: answers.append(store.append("orders", {0: 1}, batch=0, objects=objects))
        )
        waiting.start()
        wait_until(lambda: store.purgatory.timer.size)
        other = Cluster.open(store.cluster.path)
        leave = encode_command(IsrChange(None, third, False, other.clock.now_ms()))
        other.topic_ledger(other.lookup("orders").ledger_id).append(lambda _: leave, timeout_ms=10_000)
        waiting.join(15)
        is_alive, broken.stores[third].data_gate = waiting.is_alive(), threading.Event()
        assert not is_alive  # long before the lag time
        assert codes(answers[0]) == [None]
        assert set(store.isr("orders")) == {leader, second}
        assert ends(store) == [1]


@pytest.mark.case("kafka-111")
@pytest.mark.parametrize("acks", [-1, 1])
def test_an_append_that_elects_wakes_those_that_wait(store, faults, parked, monkeypatch, acks: int) -> None:
    # With acks=all the leader leaves because it takes no copy, with acks=1 because it is looked for and not there.
    monkeypatch.setattr(replication_round, "LOOK_INTERVAL_MS", 10**6)  # not by looking for other processes' entries
    store.create("orders")
    leader, second, third = store.controller.describe_topic("orders").partitions[0].replicas
    config = CoordinatorConfig(replica_lag_time_max_ms=10_000, replica_catchup_budget_ms=0)
    with faults(store, config) as broken:
        waits = (store.put("orders", {0: 1}, {leader, second}),)
        elects = (store.put("orders", {0: 1}, {second, third} if acks == -1 else {second}),)
        broken.stores[third].data_gate.clear()
        answers: list = []
        waiting = threading.Thread(target=lambda: answers.append(store.append("orders", {}, batch=0, objects=waits)))
        waiting.start()
        purgatory = store.purgatory
        wait_until(lambda: purgatory.timer.size)
        assert len(parked) == 1
        store.away(leader)
        other = store.append("orders", {}, batch=0, query="query-2", objects=elects, acks=acks)
        assert codes(other) == [None]
        assert store.controller.describe_topic("orders").partitions[0].leader == second
        rounds = 2 if acks == 1 else 3  # with acks=all the other waited once itself
        wait_until(lambda: len(parked) == rounds, lambda: f"{rounds} rounds, {len(parked)} so far")
        broken.stores[third].data_gate.set()
        waiting.join(30)
        assert codes(answers[0]) == [None]
        assert ends(store) == [2]


@pytest.mark.case("server-not-leader-follower-maybe")
def test_an_append_that_is_cut_off_while_it_waits_is_not_acknowledged(store, faults) -> None:
    # Decided by acks=1, repeated with acks=all; while that waits for copies a newer leader cuts the log back.
    store.create("orders")
    config = CoordinatorConfig(replica_lag_time_max_ms=10_000, replica_catchup_budget_ms=0)
    with faults(store, config) as broken:
        assert store.append("orders", {0: 1}, batch=0).error is None
        handle = store.cluster.lookup("orders")
        ledger = store.cluster.topic_ledger(handle.ledger_id)
        stable = ledger.state.stable_index
        objects = (store.put("orders", {0: 5}, {0}),)
        assert store.append("orders", {}, batch=1, objects=objects, acks=1).error is None
        broken.stores[2].data_gate.clear()
        answers: list = []
        waiting = threading.Thread(target=lambda: answers.append(store.append("orders", {}, batch=1, objects=objects)))
        waiting.start()
        purgatory = store.purgatory
        wait_until(lambda: purgatory.timer.size)
        cut = (
            encode_command(Truncate(stable)),
            encode_command(IsrChange(None, 0, False, store.cluster.clock.now_ms())),
        )
        ledger.append(lambda _: cut, timeout_ms=10_000)
        assert ends(store) == [1]
        purgatory.check_and_complete((handle.topic_id, 0))
        waiting.join(5)
        is_alive = waiting.is_alive()
        broken.stores[2].data_gate.set()
        assert not is_alive
        assert codes(answers[0]) == ["NOT_LEADER_OR_FOLLOWER"]
        # The replay writes it again, and at the offsets that were given up.
        again = store.append("orders", {}, batch=1, objects=objects)
        assert again.error is None and bases(again) == [1]


@pytest.mark.case("server-records-let-go-once-appended")
def test_what_was_appended_is_let_go_while_its_operation_is_still_listed(store, faults) -> None:
    class Tracked(Append):
        """An append that can be seen to die."""

        __slots__ = ("__weakref__",)

    store.create("orders")
    with faults(store, CoordinatorConfig(replica_lag_time_max_ms=2000)) as broken:
        objects = (store.put("orders", {0: 1}, {0, 1}),)
        broken.stores[2].data_gate.clear()
        identity = ProducerIdentity("q", "q", 0, "run", IdentityKind.STREAM)
        append = Tracked(identity, "User:test", "", 0, objects)
        alive = weakref.ref(append)
        ledger_id = store.cluster.lookup("orders").ledger_id
        answers = store.manager.append_records({ledger_id: AppendRequest(append, 100)})
        assert answers[ledger_id].error.code is ErrorCode.REQUEST_TIMED_OUT
        del append
        answers.clear()
        gc.collect()
        assert store.purgatory.watchers  # completed, not purged
        assert alive() is None


@pytest.mark.case("server-request-timed-out-mixed-results")
def test_replies_are_mixed_after_a_time_out(store, faults) -> None:
    store.create("orders", 1, 3, ledger_name="shared")
    store.create("two", 1, 2, ledger_name="shared")
    with faults(store, CoordinatorConfig(replica_lag_time_max_ms=5000)) as broken:
        where = store.controller.describe_topic("two").partitions[0].replicas
        slow = next(iter({0, 1, 2} - set(where)))
        objects = (store.put("orders", {0: 1}, {0, 1, 2} - {slow}), store.put("two", {0: 2}, set(where)))
        broken.stores[slow].data_gate.clear()
        response = store.append("orders", {}, batch=0, objects=objects, timeout_ms=200, is_atomic=False)
        assert response.error is None
        assert sorted(str(code) for code in codes(response)) == ["None", "REQUEST_TIMED_OUT"]
        broken.stores[slow].data_gate.set()
        assert (ends(store), ends(store, "two")) == ([0], [2])


def test_a_repeated_call_finds_itself(store) -> None:
    store.create("orders")
    objects = (store.put("orders", {0: 3}, {0, 1, 2}),)
    assert bases(store.append("orders", {}, batch=0, objects=objects)) == [0]
    again = store.append("orders", {}, batch=0, objects=objects)
    assert again.result.outcome is Outcome.DUPLICATE
    assert bases(again) == [0]
    assert ends(store) == [3]


def test_an_unexpected_error_is_answered_for_every_partition_and_nobody_waits(store, monkeypatch) -> None:
    store.create("orders", 2)

    def fail(_this):
        raise RuntimeError("a mistake of ours")

    with monkeypatch.context() as patch:
        patch.setattr(replica_manager.LedgerAppend, "run", fail)
        assert codes(store.append("orders", {0: 1, 1: 1}, batch=0)) == ["UNKNOWN_SERVER_ERROR"] * 2
    assert ends(store) == [0, 0]
    assert store.append("orders", {0: 1, 1: 1}, batch=0).error is None


@pytest.fixture
def other(store):
    """Another process, and this one owns the ledger, on a streak: it proposes without reading first."""
    store.create("orders")
    for batch in range(4):
        assert store.append("orders", {0: 1}, batch=batch).error is None
    return type(store)(store.path, store.config)


def test_an_owner_takes_rows_for_a_partition_that_another_process_added(store, other) -> None:
    other.controller.add_partitions("orders", 3)
    planned = other.put("orders", {2: 1}, {0, 1, 2})
    assert codes(store.append("orders", {}, batch=4, objects=(planned,))) == [None]
    assert ends(store) == [4, 0, 1]


def test_an_owner_sees_that_replicas_are_back_before_it_refuses(store, other) -> None:
    for broker_id in (0, 1):
        BrokerAdmin(store.cluster).fence(broker_id)
    assert codes(store.append("orders", {0: 1}, batch=4, holders={2})) == ["NOT_ENOUGH_REPLICAS"]
    for broker_id in (0, 1):
        BrokerAdmin(other.cluster).unfence(broker_id)
    CoordinatorLoop(other.cluster).run_once()
    assert other.isr("orders") == (0, 1, 2)
    assert codes(store.append("orders", {0: 1}, batch=4)) == [None]


@pytest.mark.parametrize("is_atomic", [True, False])
def test_a_partition_below_min_isr_holds_back_no_request_without_its_rows(store, is_atomic: bool) -> None:
    store.create("weak", 1, 2, ledger_name="shared")
    store.create("orders", 1, 3, ledger_name="shared")
    assert store.append("weak", {0: 1}, batch=0, holders=set(range(3))).error is None
    first, second = store.controller.describe_topic("weak").partitions[0].replicas
    BrokerAdmin(store.cluster).fence(second)
    assert codes(store.append("weak", {0: 1}, batch=1, holders={first})) == ["NOT_ENOUGH_REPLICAS"]
    holders = {0, 1, 2} - {second}
    response = store.append("orders", {0: 1}, batch=2, query="other", holders=holders, is_atomic=is_atomic)
    assert response.error is None and store.high_watermarks("orders") == [1]
    # Rows of acks=1 in it do: they could still be cut, and what comes after them with them.
    assert store.append("weak", {0: 1}, batch=0, query="third", holders={first}, acks=1).error is None
    error = store.append("orders", {0: 1}, batch=3, query="other", holders=holders, is_atomic=is_atomic).error
    assert error is not None and (error.context["topic"], error.context["partition"]) == ("weak", 0)


def test_an_unfinished_partition_that_holds_back_its_ledger_is_named(store) -> None:
    store.config = CoordinatorConfig(replica_catchup_budget_ms=0, replica_rejoin_wait_ms=3_600_000)
    store.reopen()
    store.create("clicks", 1, 2, ledger_name="shared")
    store.create("orders", 1, 3, ledger_name="shared")
    leader, follower = store.controller.describe_topic("clicks").partitions[0].replicas
    assert store.append("clicks", {0: 1}, batch=0, holders={leader}, acks=1).error is None
    store.away(follower)
    error = store.append(
        "orders", {0: 1}, batch=0, query="other", holders={0, 1, 2} - {follower}, is_atomic=False
    ).error
    assert error is not None and error.code is ErrorCode.NOT_ENOUGH_REPLICAS
    assert (error.context["topic"], error.context["partition"]) == ("clicks", 0)
