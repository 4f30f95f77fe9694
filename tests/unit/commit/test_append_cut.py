"""When a decided append is known to be cut off, and when nobody can tell."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from spark_replog.commit.append_judge import AppendJudge, Settling, leader_epochs
from spark_replog.commit.append_request import AppendRequest
from spark_replog.errors import OutcomeUnknownError, RetriableError
from spark_replog.ids import ObjectId
from spark_replog.log.codec.commands import encode_command, encode_entry
from spark_replog.log.fold.topic_state import TopicLedgerState
from spark_replog.log.model import (
    Append,
    BatchSequence,
    DataObject,
    GenerationAdvance,
    IdentityKind,
    IsrChange,
    Outcome,
    ProducerIdentity,
    ResetPolicy,
    Section,
    SequencedAppend,
    TopicClose,
    TopicInit,
    Truncate,
)

TOPIC = "a" * 32
ANYTHING: Any = None
AGAIN = "the same append"
OTHER = Append(
    ProducerIdentity("o", "o", 0, "", IdentityKind.STREAM), "User:s", "", 0,
    (DataObject(ObjectId(0, "two.arrow"), 16, False, frozenset({0}), (Section(TOPIC, 0, 2, 0, 16, 0, 0, 0),)),),
)  # fmt: skip
RESET = replace(OTHER, identity=ProducerIdentity("p", "another", 7, "", IdentityKind.STREAM))


def look_again(kind: IdentityKind, *later: Any, on_reset: ResetPolicy = ResetPolicy.FAIL) -> Settling:
    """Decide an append and what comes after it; return what it waits for then."""
    section = Section(TOPIC, 0, 1, 0, 8, 0, 0, 0)
    item = DataObject(ObjectId(0, "one.arrow"), 8, False, frozenset({0}), (section,))
    append = Append(ProducerIdentity("p", "p", 0, "", kind, on_reset), "User:s", "", 0, (item,))
    state = TopicLedgerState("L")
    for index, command in enumerate((TopicInit(TOPIC, "t", ((0, 1),), ()), append, *later)):
        again = (append,) if command == AGAIN else (command,)
        results = state.apply(index, encode_entry([encode_command(decided_command) for decided_command in again]))
        if index == 1:
            settling = Settling(append, 1, leader_epochs(state, append), results[0])
    judge = AppendJudge("L", AppendRequest(append, 0, -1), ANYTHING, ANYTHING)
    return judge.look_again(state, settling)


@pytest.mark.guarantee("G2")
@pytest.mark.parametrize(
    "later",
    [(), (GenerationAdvance(1, 1),), (TopicClose(TOPIC),), (RESET,)],
    ids=["alone", "then the floor passes it", "then its topic is deleted", "then another checkpoint is further"],
)
def test_what_was_cut_off_is_not_done(later: tuple[Any, ...]) -> None:
    with pytest.raises(RetriableError, match="cut it off"):
        look_again(IdentityKind.STREAM, Truncate(0), *later)


@pytest.mark.parametrize("kind", [IdentityKind.STREAM, IdentityKind.ONE_SHOT])
def test_what_is_there_is_done_whatever_the_floor_says(kind: IdentityKind) -> None:
    assert look_again(kind, GenerationAdvance(1, 1)).stable_index == 1


def test_what_is_there_is_done_though_its_topic_was_deleted_since() -> None:
    settling = look_again(IdentityKind.STREAM, IsrChange(None, 0, False, 0), TopicClose(TOPIC))
    assert settling.result is not None and settling.result.outcome is Outcome.APPLIED


@pytest.mark.guarantee("G2")
def test_a_repeated_append_must_be_stable_itself() -> None:
    settling = look_again(IdentityKind.STREAM, Truncate(0), AGAIN)
    assert settling.stable_index == 3
    again = look_again(IdentityKind.STREAM, Truncate(0), OTHER, AGAIN).result
    assert again is not None and (again.outcome, again.base_offsets) == (Outcome.DUPLICATE, {(TOPIC, 0): (2, 3)})


def test_what_stands_where_it_was_decided_is_no_repetition_though_another_leads() -> None:
    """As where the leader's root is rebuilt: it leaves, and nothing is cut."""
    settling = look_again(IdentityKind.STREAM, IsrChange(None, 0, False, 0))
    assert settling.stable_index == 2
    assert settling.result is not None and settling.result.outcome is Outcome.APPLIED


def test_what_is_skipped_now_is_told_as_skipped() -> None:
    result = look_again(IdentityKind.STREAM, Truncate(0), RESET, on_reset=ResetPolicy.SKIP).result
    assert result is not None and (result.outcome, result.base_offsets) == (Outcome.SKIPPED, {})


@pytest.mark.parametrize("later", [(), (TopicClose(TOPIC),)], ids=["alone", "and its topic deleted"])
def test_nobody_can_tell_once_the_producer_is_forgotten(later: tuple[Any, ...]) -> None:
    with pytest.raises(OutcomeUnknownError, match="Look whether its rows are in the log"):
        look_again(IdentityKind.ONE_SHOT, Truncate(0), GenerationAdvance(1, 1), *later)


def test_batches_that_do_not_follow_what_is_left_of_the_log_are_not_done() -> None:
    """Two of three appends of a producer were cut off: the last one no longer follows what is there."""
    state = TopicLedgerState("L")
    identity = ProducerIdentity("p", "p", 0, "", IdentityKind.ONE_SHOT)
    appends = [
        SequencedAppend(
            identity, "User:s", "", 0,
            (DataObject(ObjectId(0, f"{at}.arrow"), 8, False, frozenset({0}), (Section(TOPIC, 0, 1, 0, 8, 0, 0, 0),)),),
            (BatchSequence(TOPIC, 0, 0, at, 1),),
        )
        for at in range(3)
    ]  # fmt: skip
    for index, command in enumerate((TopicInit(TOPIC, "t", ((0, 1),), ()), *appends)):
        results = state.apply(index, encode_entry([encode_command(command)]))
    last = appends[-1]
    settling = Settling(last, 3, leader_epochs(state, last), results[0])
    state.apply(4, encode_entry([encode_command(Truncate(1))]))
    judge = AppendJudge("L", AppendRequest(last, 0, -1), ANYTHING, ANYTHING)
    with pytest.raises(OutcomeUnknownError):
        judge.look_again(state, settling)
