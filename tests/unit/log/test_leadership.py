"""Leaders, ISRs, reassignments and truncations in the fold."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_replog.errors import ErrorCode
from spark_replog.log.fold.partition_state import NO_LEADER
from spark_replog.log.model import (
    BrokerFence,
    ConfigSet,
    HoldersAdd,
    IsrChange,
    Outcome,
    PartitionChange,
    PartitionsAdd,
    TopicInit,
    Truncate,
)

UNCLEAN = (("unclean.leader.election.enable", "true"),)


def partition(log, kit, number=0):
    return log.state.topics[kit.TOPIC].partitions[number]


def change(log, kit, **given):
    """The change that leaves partition 0 as it is, but for what is given."""
    now = partition(log, kit)
    made = PartitionChange(kit.TOPIC, 0, now.leader_epoch, now.partition_epoch, now.leader, now.isr, now.replicas)
    return replace(made, **given)


# -- alterPartition, in Kafka's order -----------------------------------------------------------------


@pytest.mark.case("kafka-119")
@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"topic_id": "ef" * 16, "partition": 9, "leader_epoch": 9}, ErrorCode.UNKNOWN_TOPIC_ID),
        ({"partition": 2, "leader_epoch": 9}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"leader_epoch": 2, "isr": ()}, ErrorCode.NOT_CONTROLLER),
        ({"partition_epoch": 4, "isr": ()}, ErrorCode.NOT_CONTROLLER),
        ({"leader_epoch": 0, "partition_epoch": 0}, ErrorCode.FENCED_LEADER_EPOCH),
        ({"partition_epoch": 1, "isr": ()}, ErrorCode.INVALID_UPDATE_VERSION),
        ({"isr": ()}, ErrorCode.INVALID_REQUEST),
        ({"isr": (1, 1)}, ErrorCode.INVALID_REQUEST),
        ({"isr": (1, 3)}, ErrorCode.INVALID_REQUEST),
        ({"isr": (2,)}, ErrorCode.INVALID_REQUEST),
        ({"isr": (1, 2, 0)}, ErrorCode.INELIGIBLE_REPLICA),
        ({"leader": 0, "isr": (0,), "is_unclean": True}, ErrorCode.INELIGIBLE_REPLICA),
    ],
)
def test_a_change_of_another_state_is_refused_with_kafkas_code(kit, given, code):
    log = kit.Log()
    log.entry(BrokerFence(0, True))
    log.entry(PartitionChange(kit.TOPIC, 0, 1, 1, 1, (1, 2), (0, 1, 2)))
    assert (partition(log, kit).leader_epoch, partition(log, kit).partition_epoch) == (1, 2)
    log.entry(change(log, kit))  # one more partition epoch
    before = (partition(log, kit).leader, partition(log, kit).isr, partition(log, kit).partition_epoch)
    result = log.one(change(log, kit, **given))
    assert (result.outcome, result.error_code) == (Outcome.REFUSED, code)
    assert (partition(log, kit).leader, partition(log, kit).isr, partition(log, kit).partition_epoch) == before


@pytest.mark.case("server-7-6-epochs-leader-epoch-leader")
def test_a_change_raises_the_partition_epoch_and_only_a_new_leader_the_leader_epoch(kit):
    log = kit.Log()
    assert log.one(change(log, kit, isr=(0, 1))).outcome is Outcome.APPLIED
    assert (partition(log, kit).leader_epoch, partition(log, kit).partition_epoch) == (0, 1)
    assert log.one(change(log, kit, leader=1)).outcome is Outcome.APPLIED
    assert (partition(log, kit).leader, partition(log, kit).leader_epoch) == (1, 1)
    assert partition(log, kit).partition_epoch == 2


@pytest.mark.case("kafka-119")
def test_a_replica_that_lacks_an_object_cannot_be_put_into_the_isr(kit):
    log = kit.Log()
    log.entry(IsrChange(None, 2, False, 0))
    log.entry(kit.append({0: 3}, holders=(0, 1)))
    result = log.one(change(log, kit, isr=(0, 1, 2)))
    assert (result.outcome, result.error_code) == (Outcome.REFUSED, ErrorCode.INELIGIBLE_REPLICA)
    log.entry(HoldersAdd(2, 0, 0, (2,)))
    assert log.one(change(log, kit, isr=(0, 1, 2))).outcome is Outcome.APPLIED


# -- fencing ------------------------------------------------------------------------------------------


def test_a_fenced_leader_is_followed_by_the_next_in_sync_replica(kit):
    log = kit.Log()
    assert log.one(BrokerFence(0, True)).outcome is Outcome.APPLIED
    assert [partition_state.leader for partition_state in log.state.topics[kit.TOPIC].partitions] == [1, 1]
    assert (partition(log, kit).isr, partition(log, kit).leader_epoch) == ((1, 2), 1)
    assert log.one(BrokerFence(0, True)).outcome is Outcome.EXISTS
    refused = log.one(IsrChange(None, 0, True, 0))
    assert (refused.outcome, refused.error_code) == (Outcome.REFUSED, ErrorCode.INELIGIBLE_REPLICA)
    log.entry(BrokerFence(0, False))
    assert log.one(IsrChange(None, 0, True, 0)).outcome is Outcome.APPLIED
    assert partition(log, kit).leader == 1


@pytest.mark.case("kafka-117b")
def test_a_partition_without_any_unfenced_in_sync_replica_has_no_leader_until_one_is_back(kit):
    log = kit.Log(replicas=(0, 1))
    log.entry(BrokerFence(1, True))
    log.entry(BrokerFence(0, True))
    assert (partition(log, kit).leader, partition(log, kit).isr) == (NO_LEADER, (0,))
    log.entry(BrokerFence(1, False))  # out of sync: it may not lead
    assert partition(log, kit).leader == NO_LEADER
    log.entry(BrokerFence(0, False))
    assert (partition(log, kit).leader, partition(log, kit).isr, partition(log, kit).leader_epoch) == (0, (0,), 2)


def test_a_broker_that_joins_a_partition_without_a_leader_leads_it(kit):
    log = kit.Log(replicas=(0, 1))
    log.entry(IsrChange(None, 0, False, 0))
    log.entry(BrokerFence(1, True))
    assert (partition(log, kit).leader, partition(log, kit).isr) == (NO_LEADER, (1,))
    log.entry(IsrChange(None, 0, True, 0))
    assert (partition(log, kit).leader, partition(log, kit).isr) == (0, (0,)), "the fenced one leaves the ISR"
    assert partition(log, kit).leader_epoch == 3
    log.entry(BrokerFence(1, False))
    log.entry(IsrChange(None, 1, True, 0))
    assert (partition(log, kit).leader, partition(log, kit).leader_epoch) == (0, 3)


def test_new_partitions_begin_without_fenced_brokers(kit):
    log = kit.Log()
    log.entry(BrokerFence(1, True))
    log.entry(TopicInit(kit.OTHER, "clicks", ((1, 2, 0),), ()))
    log.entry(PartitionsAdd(kit.TOPIC, 3, ((1, 0, 2),)))
    made = log.state.topics[kit.OTHER].partitions[0]
    assert (made.leader, made.isr) == (2, (2, 0))
    assert (partition(log, kit, 2).leader, partition(log, kit, 2).isr) == (0, (0, 2))


# -- unclean ------------------------------------------------------------------------------------------


def unclean_log(kit, config=UNCLEAN):
    """Broker 0 alone is in sync and holds 5 rows; brokers 1 and 2 hold the first 2."""
    log = kit.Log(partitions=1, config=(*config, ("min.insync.replicas", "1")))
    log.entry(kit.append({0: 2}, 0))
    log.entry(IsrChange(None, 1, False, 0), IsrChange(None, 2, False, 0))
    log.entry(kit.append({0: 3}, 1, holders=(0,)))
    assert (log.ends(), log.marks()) == ([5], [5])
    return log


@pytest.mark.case("server-5-9-unclean-election", "kafka-118b")
def test_an_unclean_leader_is_alone_in_sync_and_its_log_end_is_the_truth(kit):
    log = unclean_log(kit)
    result = log.one(change(log, kit, leader=1, isr=(1,), is_unclean=True))
    assert (result.outcome, result.detail) == (Outcome.APPLIED, "3 rows are lost")
    now = partition(log, kit)
    assert (now.leader, now.isr, log.ends(), log.marks()) == (1, (1,), [2], [2])
    assert now.leader_epoch == 1
    log.entry(kit.append({0: 1}, 2, holders=(1,)))
    assert (log.ends(), log.marks()) == ([3], [3])
    # Offsets 2 is given again: only its epoch tells.
    assert now.leader_epochs.end_offset_for(0, now.log_end_offset).start_offset == 2
    # The old leader holds what counts: it only lacks what came since.
    assert [copy.missing for copy in log.state.under_replicated(include_out_of_sync=True)] == [(0, 2)]


def test_rows_that_an_unclean_election_cut_hold_nothing_back(kit):
    log = kit.Log(partitions=1, config=UNCLEAN)
    log.entry(kit.append({0: 2}, 0))
    log.entry(IsrChange(None, 1, False, 0), IsrChange(None, 2, False, 0))
    log.entry(kit.append({0: 3}, 1, holders=(0,)))
    assert log.state.stable_index < log.state.applied_index  # the ISR is below min.insync.replicas
    assert log.one(change(log, kit, leader=1, isr=(1,), is_unclean=True)).outcome is Outcome.APPLIED
    assert (log.ends(), log.marks()) == ([2], [2])
    # Else an append to another topic of this ledger would wait for ever for rows that are gone.
    assert log.state.stable_index == log.state.applied_index
    # This process remembers the object, one that begins with a snapshot does not: both answer the same.
    assert log.one(HoldersAdd(3, 0, 0, (2,))).outcome is Outcome.INVALID


@pytest.mark.case("kafka-118b")
def test_an_unclean_election_needs_the_topics_setting(kit):
    log = unclean_log(kit, config=())
    refused = log.one(change(log, kit, leader=1, isr=(1,), is_unclean=True))
    assert (refused.outcome, refused.error_code) == (Outcome.REFUSED, ErrorCode.INVALID_REQUEST)
    log.entry(ConfigSet(kit.TOPIC, UNCLEAN))
    refused = log.one(change(log, kit, leader=1, isr=(1, 2), is_unclean=True))
    assert (refused.outcome, refused.error_code) == (Outcome.REFUSED, ErrorCode.INVALID_REQUEST)
    assert log.one(change(log, kit, leader=1, isr=(1,), is_unclean=True)).outcome is Outcome.APPLIED


# -- reassignment -------------------------------------------------------------------------------------


def test_an_added_replica_lacks_every_object_until_it_has_them(kit):
    log = kit.Log(partitions=2)
    log.entry(kit.append({0: 2, 1: 4}, 0))
    log.entry(kit.append({1: 1}, 1))
    result = log.one(change(log, kit, replicas=(3, 0, 1, 2), adding=(3,), removing=(2,)))
    assert result.outcome is Outcome.APPLIED
    (missing,) = log.state.under_replicated(include_out_of_sync=True)
    assert (missing.entry_index, missing.missing) == (1, (3,))
    assert [(s.partition, s.row_count) for s in missing.sections] == [(0, 2), (1, 4)]
    refused = log.one(change(log, kit, isr=(0, 1, 2, 3)))
    assert refused.error_code is ErrorCode.INELIGIBLE_REPLICA
    log.entry(HoldersAdd(1, 0, 0, (3,)))
    assert log.one(change(log, kit, isr=(3, 0, 1), replicas=(3, 0, 1), leader=0)).outcome is Outcome.APPLIED
    log.entry(kit.append({0: 1}, 2, holders=(0, 1, 3)))
    assert log.marks() == [3, 5]


def test_min_insync_does_not_count_replicas_that_are_being_added(kit):
    log = kit.Log()
    log.entry(change(log, kit, replicas=(3, 4, 5, 0, 1, 2), adding=(3, 4, 5), removing=(0, 1, 2)))
    assert partition(log, kit).min_insync == 2


# -- truncation ---------------------------------------------------------------------------------------


def test_a_truncation_cuts_every_partition_and_gives_offsets_again_under_a_new_epoch(kit):
    log = kit.Log()
    log.entry(kit.append({0: 2, 1: 1}, 0))
    log.entry(kit.append({0: 3}, 1, holders=(0,)))
    log.entry(kit.append({0: 4, 1: 2}, 2, holders=(0, 1)))
    assert (log.ends(), log.marks(), log.state.stable_index) == ([9, 3], [2, 1], 1)
    assert log.state.objects.lost_after(frozenset({0})) == 1
    assert log.state.objects.lost_after(frozenset({1, 2})) is None
    cut, left = log.entry(Truncate(1), IsrChange(None, 0, False, 0))
    assert (cut.outcome, cut.detail, left.outcome) == (Outcome.APPLIED, "9 rows were cut", Outcome.APPLIED)
    assert (log.ends(), log.marks(), log.state.stable_index) == ([2, 1], [2, 1], 4)
    assert [p.leader for p in log.state.topics[kit.TOPIC].partitions] == [1, 1]
    assert log.state.under_replicated(include_out_of_sync=True) == []
    # The producer is back at sequence 0, so its batch 1 is a new one.
    assert log.one(kit.append({0: 5}, 1, holders=(1, 2))).outcome is Outcome.APPLIED
    assert (log.ends(), log.marks()) == ([7, 1], [7, 1])
    epochs = partition(log, kit).leader_epochs
    assert epochs.end_offset_for(0, 7).start_offset == 2 and epochs.entries[-1].start_offset == 2
    # An object that was cut is unknown: nobody can make it count again.
    assert log.one(HoldersAdd(2, 0, 0, (1, 2))).outcome is Outcome.INVALID


def test_a_truncation_cuts_the_entries_behind_it_only(kit):
    log = kit.Log(partitions=1)
    log.entry(kit.append({0: 2}, 0, holders=(0, 1)))
    log.entry(kit.append({0: 3}, 1, holders=(0,)))
    assert log.state.objects.lost_after(frozenset({0})) == 1
    log.entry(Truncate(1))
    assert (log.ends(), log.marks()) == ([2], [0])
    assert [copy.missing for copy in log.state.under_replicated()] == [(2,)]


@pytest.mark.case("server-5-8-hw-kept-nothing-stable-cut")
def test_nothing_stable_is_ever_cut(kit):
    log = kit.Log(partitions=1)
    log.entry(kit.append({0: 2}, 0))
    log.entry(kit.append({0: 2}, 1, holders=(0,)))
    assert log.one(Truncate(0)).outcome is Outcome.INVALID
    assert log.ends() == [4]
    assert log.one(Truncate(1)).outcome is Outcome.APPLIED
    assert log.one(Truncate(1)).outcome is Outcome.INVALID  # stable by now
    assert log.ends() == [2]


def test_a_truncation_never_cuts_an_append_of_its_own_entry(kit):
    log = kit.Log(partitions=1)
    log.entry(kit.append({0: 2}, 0, holders=(0,)))
    applied, cut = log.entry(kit.append({0: 1}, 1, holders=(0,)), Truncate(0))
    assert (applied.outcome, cut.outcome, log.ends()) == (Outcome.APPLIED, Outcome.INVALID, [3])


@pytest.mark.case("server-4-10-producer-state-goes-back")
def test_what_producers_are_known_by_goes_back_with_the_rows(kit):
    log = kit.Log(partitions=1)
    log.entry(kit.append({0: 1}, 4, run="a"))
    log.entry(kit.append({0: 1}, 5, run="b", holders=(0,)))
    assert log.state.judge(kit.append({0: 1}, 6, run="a")).outcome is Outcome.FENCED
    log.entry(kit.append({0: 1}, 9, producer="other", holders=(0,)))
    log.entry(Truncate(1))
    assert log.state.judge(kit.append({0: 1}, 5, run="a")).outcome is Outcome.APPLIED
    assert log.state.judge(kit.append({0: 1}, 4, run="a")).outcome is Outcome.DUPLICATE
    assert log.state.judge(kit.append({0: 1}, 9, producer="other")).outcome is Outcome.APPLIED


@pytest.mark.case("kafka-75", "kafka-75b")
@pytest.mark.parametrize(
    ("offset", "end", "cut"), [(10, 10, 0), (11, 10, 0), (5, 5, 5), (0, 0, 10)], ids=["end", "behind", "half", "all"]
)
def test_truncate_to(kit, offset, end, cut):
    """Kafka's testTruncateTo: ten records; re-appending restores the size."""
    log = kit.Log(partitions=1)
    for number in range(10):
        log.entry(kit.append({0: 1}, number))
    partition_state = partition(log, kit)
    assert partition_state.truncate(offset) == cut
    assert (partition_state.log_end_offset, partition_state.high_watermark) == (end, min(end, 10))
    assert [row.base_offset for row in partition_state.sections_between(0, 100)] == list(range(end))
    for number in range(end, 10):
        log.entry(kit.append({0: 1}, 10 + number))
    assert [row.base_offset for row in partition_state.sections_between(0, 100)] == list(range(10))


@pytest.mark.case("kafka-75b")
def test_truncate_inside_of_an_append_is_refused_where_kafka_would_set_a_wrong_log_end(kit):
    log = kit.Log(partitions=1)
    log.entry(kit.append({0: 4}, 0))
    with pytest.raises(ValueError, match="offset 2"):
        partition(log, kit).truncate(2)
    assert log.ends() == [4]
