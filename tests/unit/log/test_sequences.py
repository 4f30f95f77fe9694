"""Kafka's producer state through the fold: sequences, epochs, the window of five batches, claims."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_replog.commit.append_request import AppendRequest, respond
from spark_replog.errors import ErrorCode
from spark_replog.log.codec.commands import decode_command, encode_command
from spark_replog.log.fold.producer_state import BATCHES_KEPT
from spark_replog.log.fold.topic_state import PRODUCER_KEPT_MS
from spark_replog.log.model import (
    BatchSequence,
    GenerationAdvance,
    IdentityKind,
    IsrChange,
    Outcome,
    PartitionChange,
    ProducerIdentity,
    ProducerInit,
    SequencedAppend,
)

LAST = 2**31 - 1


def sequenced(kit, rows, *firsts, epoch=0, producer="p", kind=IdentityKind.ONE_SHOT, generation=0):
    """rows: {partition: count}, one batch each."""
    batches = [
        BatchSequence(kit.TOPIC, partition, epoch, first, count)
        for (partition, count), first in zip(rows.items(), firsts, strict=True)
    ]
    return append_of(kit, rows, *batches, producer=producer, kind=kind, generation=generation)


def append_of(kit, rows, *batches, producer="p", kind=IdentityKind.ONE_SHOT, generation=0):
    identity = ProducerIdentity(producer, producer, 0, "", kind)
    item = kit.data_object(rows, generation=generation)
    return SequencedAppend(identity, "User:a", "c", 1000, (item,), batches)


def outcome(log, command):
    return log.one(command).outcome


@pytest.mark.case("kafka-87", "kafka-73")
def test_basic_id_mapping(kit):
    """Reference case 87."""
    log = kit.Log()
    assert outcome(log, sequenced(kit, {0: 1}, 0)) is Outcome.APPLIED
    assert outcome(log, sequenced(kit, {0: 1}, 1)) is Outcome.APPLIED
    # Kafka's test has no window there; a repeated batch is a duplicate first, as its broker says, too.
    assert outcome(log, sequenced(kit, {0: 1}, 1)) is Outcome.DUPLICATE
    assert outcome(log, sequenced(kit, {0: 2}, 1)) is Outcome.OUT_OF_SEQUENCE
    assert outcome(log, sequenced(kit, {0: 1}, 5)) is Outcome.OUT_OF_SEQUENCE
    assert outcome(log, sequenced(kit, {0: 1}, 0, epoch=1)) is Outcome.APPLIED
    assert outcome(log, sequenced(kit, {0: 1}, 0, epoch=0)) is Outcome.OLD_EPOCH
    assert log.ends() == [3, 0]


@pytest.mark.case("kafka-88")
def test_sequences_wrap_around(kit):
    """Reference case 88."""
    log = kit.Log()
    assert outcome(log, sequenced(kit, {0: 1}, LAST)) is Outcome.APPLIED
    assert outcome(log, sequenced(kit, {0: 1}, 1)) is Outcome.OUT_OF_SEQUENCE
    assert outcome(log, sequenced(kit, {0: 1}, 0)) is Outcome.APPLIED
    wrapping = sequenced(kit, {1: 21}, LAST - 10)  # 2**31 - 11 ... 9
    assert [batch.last_sequence for batch in wrapping.batches] == [9]
    assert outcome(log, wrapping) is Outcome.APPLIED
    assert outcome(log, sequenced(kit, {1: 1}, 10)) is Outcome.APPLIED


@pytest.mark.case("kafka-89")
def test_a_claimed_id_begins_with_sequence_0(kit):
    """Reference case 89: the claim is what is left of Kafka's marker."""
    log = kit.Log()
    txn = IdentityKind.TRANSACTIONAL
    for epoch in range(3):
        assert outcome(log, ProducerInit("p", "till", epoch)) is Outcome.APPLIED
    assert outcome(log, sequenced(kit, {0: 1}, 17, epoch=2, kind=txn)) is Outcome.OUT_OF_SEQUENCE
    assert outcome(log, sequenced(kit, {0: 1}, 0, epoch=0, kind=txn)) is Outcome.FENCED
    assert outcome(log, sequenced(kit, {0: 1}, 0, epoch=2, kind=txn)) is Outcome.APPLIED


@pytest.mark.case("kafka-94", "kafka-74")
def test_an_expired_producer_may_continue_anywhere(kit):
    """Reference case 94: what expires a random id here is the floor, which refuses its late retries."""
    log = kit.Log()
    log.one(sequenced(kit, {0: 1}, 0))
    assert outcome(log, sequenced(kit, {0: 1}, 2)) is Outcome.OUT_OF_SEQUENCE
    log.one(GenerationAdvance(1, 1))
    assert outcome(log, sequenced(kit, {0: 1}, 0)) is Outcome.DUPLICATE, "known for an hour at least"
    assert outcome(log, sequenced(kit, {0: 1}, 1)) is Outcome.BELOW_FLOOR
    later = sequenced(kit, {1: 1}, 0, producer="other", generation=1)
    log.one(replace(later, append_time_ms=log.state.append_time_ms + PRODUCER_KEPT_MS))
    log.one(GenerationAdvance(2, 1))
    assert outcome(log, sequenced(kit, {0: 1}, 0)) is Outcome.BELOW_FLOOR
    assert outcome(log, sequenced(kit, {0: 1}, 2, generation=1)) is Outcome.APPLIED


def test_a_users_id_never_expires(kit):
    log = kit.Log()
    log.one(ProducerInit("till", "a", 0))
    log.one(sequenced(kit, {0: 1}, 0, producer="till", kind=IdentityKind.TRANSACTIONAL))
    log.one(GenerationAdvance(5, 5))
    late = sequenced(kit, {0: 1}, 2, producer="till", kind=IdentityKind.TRANSACTIONAL, generation=5)
    assert outcome(log, late) is Outcome.OUT_OF_SEQUENCE


@pytest.mark.case("kafka-71")
@pytest.mark.case("kafka-52")
def test_the_last_five_batches_are_duplicates_with_their_offsets_and_older_ones_out_of_order(kit):
    log = kit.Log()
    for number in range(BATCHES_KEPT + 1):
        log.one(sequenced(kit, {0: 2}, 2 * number))
    for number in range(1, BATCHES_KEPT + 1):
        again = log.one(sequenced(kit, {0: 2}, 2 * number))
        assert again.outcome is Outcome.DUPLICATE
        assert again.base_offsets == {(kit.TOPIC, 0): (2 * number, 2 * number + 2)}
    assert outcome(log, sequenced(kit, {0: 2}, 0)) is Outcome.OUT_OF_SEQUENCE
    assert log.ends() == [12, 0]


def test_an_append_of_more_batches_than_the_window_is_found_again_as_a_whole(kit):
    log = kit.Log()
    count = BATCHES_KEPT + 3
    batches = [BatchSequence(kit.TOPIC, 0, 0, 2 * number, 2) for number in range(count)]
    append = append_of(kit, {0: 2 * count}, *batches)
    assert outcome(log, append) is Outcome.APPLIED
    again = log.one(append)
    assert again.outcome is Outcome.DUPLICATE
    assert again.base_offsets == {(kit.TOPIC, 0): (0, 2 * count)}
    assert outcome(log, sequenced(kit, {0: 2}, 2 * count)) is Outcome.APPLIED
    assert log.ends() == [2 * count + 2, 0]


@pytest.mark.case("kafka-71")
def test_a_partial_overlap_is_out_of_order(kit):
    log = kit.Log()
    log.one(sequenced(kit, {0: 4}, 0))
    assert outcome(log, sequenced(kit, {0: 4}, 2)) is Outcome.OUT_OF_SEQUENCE
    assert outcome(log, sequenced(kit, {0: 2}, 2)) is Outcome.OUT_OF_SEQUENCE


def test_an_append_that_is_a_duplicate_in_one_partition_only_changes_nothing(kit):
    log = kit.Log()
    log.one(sequenced(kit, {0: 1}, 0))
    mixed = log.one(sequenced(kit, {0: 1, 1: 1}, 0, 0))
    assert mixed.outcome is Outcome.INVALID
    assert "1 of its batches are in the log and 1 are not" in mixed.detail
    assert log.ends() == [1, 0]


def test_every_partition_counts_for_itself(kit):
    log = kit.Log()
    log.one(sequenced(kit, {0: 3, 1: 1}, 0, 0))
    assert outcome(log, sequenced(kit, {1: 1}, 1)) is Outcome.APPLIED
    assert outcome(log, sequenced(kit, {0: 1, 1: 1}, 3, 2)) is Outcome.APPLIED
    assert outcome(log, sequenced(kit, {0: 1, 1: 1}, 4, 4)) is Outcome.OUT_OF_SEQUENCE
    assert log.ends() == [4, 3]


@pytest.mark.case("kafka-58")
def test_an_unknown_id_may_begin_anywhere(kit):
    log = kit.Log()
    assert outcome(log, sequenced(kit, {0: 1}, 41)) is Outcome.APPLIED
    assert outcome(log, sequenced(kit, {0: 1}, 42)) is Outcome.APPLIED


@pytest.mark.case("kafka-58")
def test_a_new_epoch_begins_with_0_in_every_partition_that_is_known(kit):
    log = kit.Log()
    log.one(sequenced(kit, {0: 1, 1: 1}, 0, 0))
    assert outcome(log, sequenced(kit, {0: 1}, 1, epoch=1)) is Outcome.OUT_OF_SEQUENCE
    assert outcome(log, sequenced(kit, {0: 1}, 0, epoch=1)) is Outcome.APPLIED
    assert outcome(log, sequenced(kit, {1: 1}, 1, epoch=1)) is Outcome.OUT_OF_SEQUENCE
    assert outcome(log, sequenced(kit, {1: 1}, 0, epoch=1)) is Outcome.APPLIED


@pytest.mark.case("kafka-58")
def test_a_claim_fences_the_instance_before_and_a_repeated_one_does_nothing(kit):
    log = kit.Log()
    txn = IdentityKind.TRANSACTIONAL
    assert outcome(log, ProducerInit("till", "a", 0)) is Outcome.APPLIED
    assert outcome(log, ProducerInit("till", "a", 0)) is Outcome.EXISTS
    assert outcome(log, ProducerInit("till", "b", 0)) is Outcome.FENCED
    assert outcome(log, ProducerInit("till", "b", 1)) is Outcome.APPLIED
    assert outcome(log, ProducerInit("till", "a", 0)) is Outcome.FENCED  # its late repetition takes nothing back
    fenced = log.one(sequenced(kit, {0: 1}, 0, epoch=0, producer="till", kind=txn))
    assert fenced.outcome is Outcome.FENCED
    assert "replaced by epoch 1 of instance b" in fenced.detail
    assert outcome(log, sequenced(kit, {0: 1}, 0, epoch=1, producer="till", kind=txn)) is Outcome.APPLIED
    assert log.ends() == [1, 0]


def test_a_replaced_instance_that_repeats_a_transaction_is_fenced_where_the_newer_one_has_written(kit):
    log = kit.Log()
    txn = IdentityKind.TRANSACTIONAL
    log.one(ProducerInit("p", "a", 0))
    decided = sequenced(kit, {0: 1, 1: 2}, 0, 0, kind=txn)
    log.one(decided)
    log.one(ProducerInit("p", "b", 1))
    reply = log.one(decided)  # all of it is known still
    assert (reply.outcome, reply.base_offsets) == (Outcome.DUPLICATE, {(kit.TOPIC, 0): (0, 1), (kit.TOPIC, 1): (0, 2)})
    log.one(sequenced(kit, {0: 1}, 0, epoch=1, kind=txn))
    fenced = log.one(decided)  # partition 0 has forgotten it, partition 1 has not
    assert fenced.outcome is Outcome.FENCED
    assert "replaced by epoch 1 of instance b" in fenced.detail
    log.one(sequenced(kit, {1: 1}, 0, epoch=1, kind=txn))
    assert outcome(log, decided) is Outcome.FENCED
    assert log.ends() == [2, 3]


def test_what_an_unclean_election_cut_stays_known_so_its_repetition_is_a_duplicate(kit):
    """Not as in Kafka, which builds a producer's state again from what is left: docs/replication.md says so."""
    log = kit.Log(partitions=1, config=(("unclean.leader.election.enable", "true"), ("min.insync.replicas", "1")))
    log.one(sequenced(kit, {0: 2}, 0))
    log.entry(IsrChange(None, 1, False, 0), IsrChange(None, 2, False, 0))
    lost = sequenced(kit, {0: 3}, 2)
    lost = replace(lost, objects=(kit.data_object({0: 3}, holders=(0,)),))
    log.one(lost)
    now = log.state.topics[kit.TOPIC].partitions[0]
    epochs = now.leader_epoch, now.partition_epoch
    cut = log.one(PartitionChange(kit.TOPIC, 0, *epochs, 1, (1,), (0, 1, 2), is_unclean=True))
    assert (cut.detail, log.ends()) == ("3 rows are lost", [2])
    again = log.one(lost)
    assert (again.outcome, again.base_offsets, log.ends()) == (Outcome.DUPLICATE, {(kit.TOPIC, 0): (2, 5)}, [2])
    assert outcome(log, sequenced(kit, {0: 1}, 5)) is Outcome.APPLIED  # it goes on, with a gap that only it could see
    assert log.ends() == [3]


@pytest.mark.parametrize(
    ("first", "epoch", "kind", "code"),
    [
        (9, 1, IdentityKind.ONE_SHOT, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
        (0, 0, IdentityKind.ONE_SHOT, ErrorCode.INVALID_PRODUCER_EPOCH),
        (0, 0, IdentityKind.TRANSACTIONAL, ErrorCode.PRODUCER_FENCED),
    ],
)
def test_refusals_have_kafkas_codes(kit, first, epoch, kind, code):
    log = kit.Log()
    if kind is IdentityKind.TRANSACTIONAL:
        log.entry(ProducerInit("p", "a", 0), ProducerInit("p", "b", 1))
    log.one(sequenced(kit, {0: 1}, 0, epoch=1))
    refused = sequenced(kit, {0: 1}, first, epoch=epoch, kind=kind)
    error = respond(log.state, AppendRequest(refused, 0), log.one(refused), {}).error
    assert error is not None and error.code is code
    assert log.ends() == [1, 0]


def test_batches_must_make_up_the_rows(kit):
    log = kit.Log()
    short = append_of(kit, {0: 3}, BatchSequence(kit.TOPIC, 0, 0, 0, 2))
    refused = log.one(short)
    assert (refused.outcome, log.ends()) == (Outcome.INVALID, [0, 0])
    assert "do not make up the 3 rows" in refused.detail


def test_several_batches_of_a_partition_follow_each_other_and_are_found_one_by_one(kit):
    log = kit.Log()
    one, two = BatchSequence(kit.TOPIC, 0, 0, 0, 2), BatchSequence(kit.TOPIC, 0, 0, 2, 1)
    assert log.state.judge(append_of(kit, {0: 3}, two, one)).outcome is Outcome.OUT_OF_SEQUENCE
    assert outcome(log, append_of(kit, {0: 3}, one, two)) is Outcome.APPLIED
    gap = append_of(kit, {0: 2}, BatchSequence(kit.TOPIC, 0, 0, 3, 1), BatchSequence(kit.TOPIC, 0, 0, 5, 1))
    assert outcome(log, gap) is Outcome.OUT_OF_SEQUENCE
    again = log.one(append_of(kit, {0: 1}, two))
    assert (again.outcome, again.base_offsets) == (Outcome.DUPLICATE, {(kit.TOPIC, 0): (2, 3)})
    both = log.one(append_of(kit, {0: 3}, one, two))
    assert (both.outcome, both.base_offsets) == (Outcome.DUPLICATE, {(kit.TOPIC, 0): (0, 3)})
    assert log.ends() == [3, 0]


def test_partitions_may_be_at_different_epochs(kit):
    log = kit.Log()
    log.one(sequenced(kit, {0: 1, 1: 1}, 0, 0))
    moved, still = BatchSequence(kit.TOPIC, 0, 1, 0, 1), BatchSequence(kit.TOPIC, 1, 0, 1, 1)
    assert outcome(log, append_of(kit, {0: 1, 1: 1}, moved, still)) is Outcome.APPLIED
    assert outcome(log, sequenced(kit, {0: 1}, 2, epoch=0)) is Outcome.OLD_EPOCH


def test_batches_of_a_partition_that_was_taken_out_are_ignored(kit):
    log = kit.Log()
    both = (BatchSequence(kit.TOPIC, 0, 0, 0, 1), BatchSequence(kit.TOPIC, 1, 0, 0, 4))
    assert outcome(log, append_of(kit, {0: 1}, *both)) is Outcome.APPLIED
    assert outcome(log, sequenced(kit, {1: 4}, 0)) is Outcome.APPLIED
    assert log.ends() == [1, 4]


def test_encoding_keeps_every_field(kit):
    command = sequenced(kit, {0: 1, 1: 7}, LAST, 0, epoch=9)
    assert decode_command(encode_command(command)) == command
    init = ProducerInit("till", "a" * 32, 32767)
    assert decode_command(encode_command(init)) == init


@pytest.mark.case("kafka-71")
def test_duplicate_appends(kit):
    """Reference case 71, testDuplicateAppends."""
    log = kit.Log()
    for first in range(6):
        log.one(sequenced(kit, {0: 1}, first))
    assert outcome(log, sequenced(kit, {0: 3}, 6)) is Outcome.APPLIED
    again = log.one(sequenced(kit, {0: 3}, 6))
    assert (again.outcome, again.base_offsets) == (Outcome.DUPLICATE, {(kit.TOPIC, 0): (6, 9)})
    assert log.ends() == [9, 0]
    assert outcome(log, sequenced(kit, {0: 2}, 7)) is Outcome.OUT_OF_SEQUENCE
    # The last five are 2, 3, 4, 5 and the three from 6.
    assert outcome(log, sequenced(kit, {0: 1}, 2)) is Outcome.DUPLICATE
    assert outcome(log, sequenced(kit, {0: 1}, 1)) is Outcome.OUT_OF_SEQUENCE
    assert log.ends() == [9, 0]
