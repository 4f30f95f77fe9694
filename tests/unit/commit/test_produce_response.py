"""Each answer of the fold, as a caller sees it."""

from __future__ import annotations

import logging

import pytest

from spark_replog.commit.append_request import AppendRequest, ProduceResponse, respond
from spark_replog.errors import ErrorCode, FencedError, NotFoundError, ReplogError
from spark_replog.log.fold.topic_state import TopicLedgerState
from spark_replog.log.model import Append, CommandResult, IdentityKind, Outcome, ProducerIdentity

APPEND = Append(ProducerIdentity("query-1", "query-1", 7, "run-1", IdentityKind.STREAM), "User:a", "", 0, ())


def answer(result: CommandResult) -> ProduceResponse:
    return respond(TopicLedgerState("ledger-1"), AppendRequest(APPEND, 0), result, {})


@pytest.mark.parametrize(
    ("outcome", "code", "kind"),
    [
        (Outcome.TOPIC_CLOSED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, NotFoundError),
        (Outcome.UNKNOWN_TOPIC, ErrorCode.UNKNOWN_TOPIC_ID, NotFoundError),
        (Outcome.FENCED, ErrorCode.PRODUCER_FENCED, FencedError),
        (Outcome.BELOW_FLOOR, ErrorCode.REPLOG_JOB_TOO_LONG, ReplogError),
        (Outcome.CHECKPOINT_RESET, ErrorCode.REPLOG_CHECKPOINT_RESET, ReplogError),
        (Outcome.TXN_MISMATCH, ErrorCode.REPLOG_DUPLICATE_TXN_MISMATCH, ReplogError),
        (Outcome.OUT_OF_SEQUENCE, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ReplogError),
        (Outcome.INVALID, ErrorCode.INVALID_REQUEST, ReplogError),
    ],
)
def test_refusals(outcome: Outcome, code: ErrorCode, kind: type[ReplogError]) -> None:
    response = answer(CommandResult(outcome, "because of this"))
    assert isinstance(response.error, kind)
    assert response.error.code is code
    for part in ("because of this", "query-1", "`7`", "ledger-1"):
        assert part in str(response.error)


@pytest.mark.parametrize(
    ("outcome", "detail", "level"),
    [
        (Outcome.APPLIED, "", None),
        (Outcome.DUPLICATE, "", "INFO"),
        (Outcome.DUPLICATE, "3 rows where 2 were", "WARNING"),
        (Outcome.SKIPPED, "the other query is ahead", "WARNING"),
    ],
)
def test_successes(caplog: pytest.LogCaptureFixture, outcome: Outcome, detail: str, level: str | None) -> None:
    with caplog.at_level(logging.INFO):
        response = answer(CommandResult(outcome, detail))
    assert response.error is None
    assert [record.levelname for record in caplog.records] == ([level] if level else [])


def test_every_outcome_is_either() -> None:
    for outcome in Outcome:
        response = answer(CommandResult(outcome))
        assert (response.error is None) == (outcome in {Outcome.APPLIED, Outcome.DUPLICATE, Outcome.SKIPPED})
