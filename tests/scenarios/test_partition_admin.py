"""Elections, fencing, reassignments and the coordinator's own process, on real directories."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_replog.admin import coordinator_loop
from spark_replog.admin.admin import BrokerAdmin, PartitionAdmin
from spark_replog.admin.coordinator_loop import CoordinatorLoop, preferred_elections
from spark_replog.client.producer import Producer
from spark_replog.cluster.init_store import init_cluster
from spark_replog.commit.state_changes import change_partition
from spark_replog.errors import ErrorCode, InvalidConfigError, NotFoundError, ReplogError, RetriableError
from spark_replog.log.codec.commands import encode_command, encode_entry
from spark_replog.log.fold.topic_state import TopicLedgerState
from spark_replog.log.model import Outcome, TopicInit
from spark_replog.monitor.store_monitor import StoreMonitor

UNCLEAN = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}


def is_applied(response) -> bool:
    return response.error is None and response.result.outcome is Outcome.APPLIED


def codes(outcomes) -> list[str]:
    return [outcome.error.code.name if outcome.error else "ok" for outcome in outcomes]


def at(store, partition=0, topic="orders"):
    return store.controller.describe_topic(topic).partitions[partition]


@pytest.fixture
def five(tmp_path, request):
    """Five brokers, of which topics use three."""
    kit = request.getfixturevalue("store")
    path = tmp_path / "five"
    init_cluster(str(path), 5, fsync=False)
    return type(kit)(path, kit.config)


# -- elections ----------------------------------------------------------------------------------------


@pytest.mark.case("server-7-6-electleaders-election-not")
def test_leaders_go_back_to_the_preferred_replicas(store) -> None:
    store.create("orders", 3)
    store.append("orders", {0: 1}, batch=0)
    store.away(0)
    assert is_applied(store.append("orders", {0: 1, 1: 1}, batch=1, holders={1, 2}))
    admin = PartitionAdmin(store.cluster)
    assert codes(admin.elect_leaders("orders")) == [
        "PREFERRED_LEADER_NOT_AVAILABLE", "ELECTION_NOT_NEEDED", "ELECTION_NOT_NEEDED",
    ]  # fmt: skip
    store.back(0)
    assert is_applied(store.append("orders", {0: 1}, batch=2, holders={1, 2}))
    assert (at(store).leader, at(store).leader_epoch) == (1, 1)
    assert codes(admin.elect_leaders("orders", [0, 7])) == ["ok", "UNKNOWN_TOPIC_OR_PARTITION"]
    assert (at(store).leader, at(store).leader_epoch) == (0, 2)
    with pytest.raises(NotFoundError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        admin.elect_leaders("nope")


def only_broker_0_is_in_sync(store) -> None:
    """Broker 0 holds 5 rows, the others the first 2; then they are back, and 0 is gone."""
    store.create("orders", config={**UNCLEAN, "unclean.leader.election.enable": "false"})
    assert is_applied(store.append("orders", {0: 2}, batch=0))
    BrokerAdmin(store.cluster).fence(1)
    BrokerAdmin(store.cluster).fence(2)
    assert is_applied(store.append("orders", {0: 3}, batch=1, holders={0}))
    BrokerAdmin(store.cluster).unfence(1)
    BrokerAdmin(store.cluster).unfence(2)
    assert (at(store).isr, at(store).high_watermark) == ((0,), 5)


@pytest.mark.case("server-7-6-electleaders-election-not")
def test_an_unclean_election_needs_the_setting_and_cuts_where_the_new_leader_ends(store) -> None:
    store.config = replace(store.config, replica_rejoin_wait_ms=60_000)
    store.reopen()
    only_broker_0_is_in_sync(store)
    admin = PartitionAdmin(store.cluster)
    assert codes(admin.elect_leaders("orders", is_unclean=True)) == ["ELECTION_NOT_NEEDED"]
    BrokerAdmin(store.cluster).fence(0)
    assert at(store).leader == -1
    refused = store.append("orders", {0: 1}, batch=2, holders={1, 2})
    assert refused.error is not None and refused.error.code.name == "LEADER_NOT_AVAILABLE"
    assert codes(admin.elect_leaders("orders", is_unclean=True)) == ["ELIGIBLE_LEADERS_NOT_AVAILABLE"]
    store.controller.alter_config("orders", {"unclean.leader.election.enable": "true"})
    (won,) = admin.elect_leaders("orders", is_unclean=True)
    assert (won.error, won.leader, won.isr) == (None, 1, (1,))
    assert (at(store).high_watermark, at(store).log_end_offset) == (2, 2)
    assert is_applied(store.append("orders", {0: 1}, batch=2, holders={1}))
    assert at(store).high_watermark == 3


# -- fencing ------------------------------------------------------------------------------------------


def test_a_fenced_broker_leads_nothing_and_comes_back_only_by_command(store) -> None:
    store.create("orders", 3)
    BrokerAdmin(store.cluster).fence(0)
    assert [at(store, number).leader for number in range(3)] == [1, 1, 2]
    assert is_applied(store.append("orders", {0: 1, 1: 1, 2: 1}, batch=0, holders={1, 2}))
    # Its root answers all the time, and it stays out.
    assert is_applied(store.append("orders", {0: 1}, batch=1, holders={1, 2}))
    CoordinatorLoop(store.cluster).run_once()
    assert set(store.isr("orders")) == {1, 2}
    store.create("later")
    assert at(store, topic="later").isr == (1, 2)
    view = StoreMonitor(store.cluster).look()
    assert (view.brokers[0].is_fenced, view.brokers[0].is_away, view.leader_count(0)) == (True, False, 0)
    BrokerAdmin(store.cluster).unfence(0)
    assert is_applied(store.append("orders", {0: 1}, batch=2, holders={1, 2}))
    assert set(store.isr("orders")) == {0, 1, 2}
    with pytest.raises(NotFoundError, match="BROKER_ID_NOT_REGISTERED"):
        BrokerAdmin(store.cluster).fence(7)


def test_a_fence_that_died_half_way_is_finished_by_the_next_coordinator(store) -> None:
    store.create("orders")
    from spark_replog.log.codec.commands import encode_command
    from spark_replog.log.model import BrokerFence

    store.cluster.cluster_ledger.append(lambda _: encode_command(BrokerFence(0, True)), timeout_ms=5000)
    assert 0 in store.isr("orders")
    store.reopen()
    CoordinatorLoop(store.cluster).run_once()
    assert set(store.isr("orders")) == {1, 2}


@pytest.mark.parametrize("is_at_once", [True, False])
def test_fences_give_up_the_rows_that_only_fenced_lost_roots_hold(five, is_at_once) -> None:
    five.config = replace(five.config, replica_catchup_budget_ms=0)
    five.reopen()
    config = {"min.insync.replicas": "1"}
    five.controller.create_topic("orders", assignment=[(0, 1, 2)], config=config)
    assert is_applied(five.append("orders", {0: 4}, batch=0, holders={0, 1}, acks=1))
    five.away(0)
    if is_at_once:
        five.away(1)
    admin = BrokerAdmin(five.cluster)
    admin.fence(0)
    assert at(five).log_end_offset == 4
    if not is_at_once:
        five.away(1)
    admin.fence(1)
    assert is_applied(five.append("orders", {0: 5}, batch=1, holders={2}, acks=1))
    assert (at(five).log_end_offset, at(five).isr, five.high_watermarks("orders")) == (5, (2,), [5])


def test_a_fence_gives_up_the_rows_that_only_a_lost_root_holds(store) -> None:
    store.config = replace(store.config, replica_catchup_budget_ms=0)
    store.reopen()
    store.create("orders", config={"min.insync.replicas": "3"})
    assert is_applied(store.append("orders", {0: 4}, batch=0, holders={0}, acks=1))
    store.away(0)
    CoordinatorLoop(store.cluster).run_once()  # two in-sync replicas would be too few: the rows wait
    assert at(store).log_end_offset == 4
    BrokerAdmin(store.cluster).fence(0)
    assert (at(store).log_end_offset, at(store).leader, at(store).isr) == (0, 1, (1, 2))


# -- reassignment -------------------------------------------------------------------------------------


@pytest.mark.case("server-7-8-reassignment-add-catch-up")
def test_a_partition_moves_to_other_brokers_with_all_its_rows(five) -> None:
    five.create("orders", 2)
    for batch in range(3):
        assert is_applied(five.append("orders", {0: 2, 1: 1}, batch=batch))
    before = at(five)
    assert before.replicas == (0, 1, 2)
    (moving,) = PartitionAdmin(five.cluster).reassign("orders", {0: (3, 4, 0)})
    assert (moving.replicas, moving.adding, moving.removing) == ((3, 4, 0, 1, 2), (3, 4), (1, 2))
    assert [move.partition for move in PartitionAdmin(five.cluster).list_reassignments("orders")] == [0]
    report = CoordinatorLoop(five.cluster).run_once()
    assert (report.failed_count, report.reassigned_count) == (0, 1)
    now = at(five)
    assert (now.replicas, set(now.isr), now.high_watermark) == ((3, 4, 0), {3, 4, 0}, 6)
    named = {section.object.id.name for section in five.sections("orders")}
    for broker_id in (3, 4):
        assert five.held_by("orders", broker_id) == named
    assert at(five, 1).replicas == (1, 2, 3) or set(at(five, 1).replicas) == {1, 2, 3}
    # The brokers that left may go away: nothing that is read lies on them alone.
    five.away(1)
    five.away(2)
    five.reopen()
    assert sum(section.row_count for section in five.sections("orders")) == 6
    assert is_applied(five.append("orders", {0: 1}, batch=9, holders={0, 3, 4}))


@pytest.mark.case("server-7-8-reassignment-add-catch-up")
def test_a_reassignment_goes_on_in_commits_and_the_leader_that_leaves_is_followed_by_a_target(five) -> None:
    five.create("orders")
    assert is_applied(five.append("orders", {0: 2}, batch=0))
    PartitionAdmin(five.cluster).reassign("orders", {0: (3, 4)})
    assert at(five).leader == 0
    for batch in range(1, 4):
        assert is_applied(five.append("orders", {0: 1}, batch=batch))
    now = at(five)
    assert (now.replicas, now.leader in (3, 4), now.leader_epoch) == ((3, 4), True, 1)


@pytest.mark.case("server-7-8-reassignment-add-catch-up")
def test_a_reassignment_is_cancelled_replaced_or_refused(five) -> None:
    five.create("orders")
    admin = PartitionAdmin(five.cluster)
    assert codes(admin.cancel("orders")) == ["NO_REASSIGNMENT_IN_PROGRESS"]
    five.append("orders", {0: 2}, batch=0)
    admin.reassign("orders", {0: (3, 4, 0)})
    with pytest.raises(RetriableError, match="REASSIGNMENT_IN_PROGRESS"):
        five.controller.add_partitions("orders", 3)
    (newer,) = admin.reassign("orders", {0: (0, 1, 4)})
    assert (newer.replicas, newer.adding, newer.removing) == ((0, 1, 4, 2), (4,), (2,))
    (back,) = admin.cancel("orders")
    assert (set(back.replicas), back.adding, back.removing) == ({0, 1, 2}, (), ())
    for target in ((), (0, 0), (0, 9)):
        with pytest.raises(InvalidConfigError, match="INVALID_REPLICA_ASSIGNMENT"):
            admin.reassign("orders", {0: target})


def test_a_wrong_assignment_names_its_partition(five) -> None:
    five.create("orders", 3)
    with pytest.raises(InvalidConfigError, match="partition=`2`"):
        PartitionAdmin(five.cluster).reassign("orders", {1: [0, 1], 2: [0, 0]})
    with pytest.raises(InvalidConfigError, match="partition=`4`"):
        five.controller.add_partitions("orders", 5, [[0, 1, 2], [0, 1, 9]])


def test_a_reassignment_to_a_subset_is_done_at_once(five) -> None:
    five.create("orders")
    (now,) = PartitionAdmin(five.cluster).reassign("orders", {0: (2, 1)})
    assert (now.replicas, now.isr, now.leader, now.removing) == ((2, 1), (2, 1), 2, ())


def test_a_partition_with_fewer_replicas_than_the_first_one_takes_rows(store) -> None:
    store.create("orders", 2)
    (now,) = PartitionAdmin(store.cluster).reassign("orders", {1: (1,)})
    assert (now.error, now.replicas) == (None, (1,))
    with Producer(store.cluster, delivery_timeout_ms=5_000, request_timeout_ms=4_500, linger_ms=0) as producer:
        for number in range(2):
            assert producer.send("orders", b"v", partition=number).result(30).offset == 0


# -- the coordinator's process ------------------------------------------------------------------------


@pytest.mark.case("server-7-6-automatic-preferred")
def test_a_round_readmits_a_root_and_gives_it_its_leaders_back(store) -> None:
    store.create("orders", 3)
    store.away(0)
    loop = CoordinatorLoop(store.cluster)
    report = loop.run_once()
    assert (report.failover_count, report.failed_count) == (1, 0)
    assert [set(at(store, number).isr) for number in range(3)] == [{1, 2}] * 3
    assert is_applied(store.append("orders", {0: 1}, batch=0, holders={1, 2}))
    store.back(0)
    report = CoordinatorLoop(store.cluster).run_once()
    assert report.joined_count == 1
    assert report.elected_count == 1
    assert [at(store, number).leader for number in range(3)] == [0, 1, 2]
    assert store.held_by("orders", 0) == store.held_by("orders", 1)
    again = CoordinatorLoop(store.cluster).run_once()
    assert (again.failover_count, again.joined_count, again.elected_count) == (0, 0, 0)


def test_a_part_of_a_round_that_fails_leaves_the_others_alone(store, monkeypatch, caplog) -> None:
    """A ledger with a full disk keeps its upkeep: it deletes garbage, and nothing else makes room."""
    store.create("orders")
    store.create("parcels")
    store.away(0)

    def full(*_: object) -> bool:
        raise ReplogError(ErrorCode.REPLOG_STORE_REFUSED, "the disks are full. Make room.")

    monkeypatch.setattr(coordinator_loop, "fail_over", full)
    kept, ended = [], []

    def upkeep(ledger) -> None:
        kept.append(ledger.ledger_id)
        if len(kept) == 1:
            raise RuntimeError("can't start new thread")

    steps = [lambda: full(), lambda: ended.append(True)]
    report = CoordinatorLoop(store.cluster, steps, upkeep).run_once()
    assert (report.ledger_count, report.failed_count) == (2, 3)
    assert len(set(kept)) == 2 and ended == [True]
    assert "can't start new thread" in caplog.text


def test_a_round_does_not_ask_a_fenced_root_for_each_ledger(store, monkeypatch) -> None:
    """It may be fenced because it hangs: each question takes five seconds, of a ledger that has the fence already."""
    for name in ("orders", "parcels"):
        store.create(name)
    BrokerAdmin(store.cluster).fence(2)
    asked = []
    away = lambda _, broker_ids, *more: asked.extend(broker_ids) or set()  # noqa: E731
    monkeypatch.setattr("spark_replog.admin.admin.roots_there", away)
    report = CoordinatorLoop(store.cluster).run_once()
    assert (report.ledger_count, report.failed_count, asked) == (2, 0, [])


def test_the_loop_stops_when_it_is_told_to(store) -> None:
    store.create("orders")
    answers = iter([False, False, True, True])
    assert CoordinatorLoop(store.cluster).run(lambda: next(answers), interval_ms=1) >= 1


@pytest.mark.parametrize(("led_by_another", "elected"), [(2, 0), (3, 3)])
def test_leaders_go_back_where_more_than_the_percentage_is_with_others(led_by_another, elected) -> None:
    state = TopicLedgerState("L")
    commands = [TopicInit("a" * 32, "orders", ((0, 1),) * 20, ())]
    for _ in range(2):
        results = state.apply(state.applied_index + 1, encode_entry([encode_command(command) for command in commands]))
        assert {result.outcome for result in results} == {Outcome.APPLIED}
        commands = [change_partition(state, "a" * 32, number, leader=1) for number in range(led_by_another)]
    assert [change.leader for change in preferred_elections(state, {0, 1}, 10)] == [0] * elected
    assert preferred_elections(state, {1}, 10) == []


def test_leaders_of_a_partition_that_moves_are_left_alone_until_it_has_moved(five):
    five.controller.create_topic("orders", assignment=[(0, 1, 2)])
    PartitionAdmin(five.cluster).reassign("orders", {0: (3, 4, 0)})
    five.away(4)
    report = CoordinatorLoop(five.cluster).run_once()
    assert (at(five).leader, set(at(five).isr), report.elected_count) == (0, {0, 1, 2, 3}, 0)


def test_rows_that_only_a_fenced_broker_has_are_kept_while_its_root_answers(store):
    store.config = replace(store.config, replica_catchup_budget_ms=0)
    store.reopen()
    store.create("orders")
    leader = at(store).leader
    assert is_applied(store.append("orders", {0: 4}, batch=0, holders={leader}, acks=1))
    BrokerAdmin(store.cluster).fence(leader)
    assert at(store).leader != leader and at(store).log_end_offset == 4
    store.config = replace(store.config, replica_catchup_budget_ms=5_000)
    store.reopen()
    CoordinatorLoop(store.cluster).run_once()
    assert store.high_watermarks("orders") == [4]
