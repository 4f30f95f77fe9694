"""docs/design/identity.md at the level of the replica manager, on three real local roots."""

from __future__ import annotations

import logging

import pytest

from spark_replog.log.model import IdentityKind, Outcome, ResetPolicy


def outcome_of(response):
    assert response.error is None, response.error
    return response.result.outcome


def code_of(response):
    assert response.error is not None, response
    return response.error.code.name


@pytest.fixture(autouse=True)
def orders(store):
    store.create("orders", 2)


@pytest.mark.guarantee("G3")
def test_a_replayed_batch_is_applied_once(store) -> None:
    first = store.append("orders", {0: 3, 1: 2}, batch=0)
    assert outcome_of(first) is Outcome.APPLIED
    assert {p: r for (_, p), r in first.result.base_offsets.items()} == {0: (0, 3), 1: (0, 2)}
    # The driver died after the commit: Spark runs the batch again, with new files.
    store.reopen()
    again = store.append("orders", {0: 3, 1: 2}, batch=0, run="run-2")
    assert outcome_of(again) is Outcome.DUPLICATE
    assert again.result.base_offsets == first.result.base_offsets
    assert store.high_watermarks("orders") == [3, 2]


def test_a_replay_with_other_row_counts_is_reported(store, caplog: pytest.LogCaptureFixture) -> None:
    """A query that is not deterministic: the checkpoint tells that it is the same batch."""
    store.append("orders", {0: 3}, batch=0, evidence=b"12345678")
    store.reopen()
    with caplog.at_level(logging.INFO):
        assert outcome_of(store.append("orders", {0: 4}, batch=0, evidence=b"12345678")) is Outcome.DUPLICATE
    assert [record.levelname for record in caplog.records if "applied before" in record.message] == ["WARNING"]
    assert store.high_watermarks("orders") == [3, 0]


@pytest.mark.guarantee("G1")
def test_offsets_are_dense_over_batches_and_restarts(store) -> None:
    for batch in range(6):
        assert outcome_of(store.append("orders", {0: batch + 1, 1: 1}, batch=batch)) is Outcome.APPLIED
        if batch % 2:
            store.reopen()
    ends = [(section.base_offset, section.base_offset + section.row_count) for section in store.sections("orders", 0)]
    assert ends == [(0, 1), (1, 3), (3, 6), (6, 10), (10, 15), (15, 21)]


@pytest.mark.guarantee("G3")
def test_a_zombie_run_is_fenced_by_the_next_one(store) -> None:
    store.append("orders", {0: 1}, batch=0, run="run-1")
    assert outcome_of(store.append("orders", {0: 1}, batch=1, run="run-2")) is Outcome.APPLIED
    zombie = store.append("orders", {0: 1}, batch=2, run="run-1")
    assert code_of(zombie) == "PRODUCER_FENCED"
    assert outcome_of(store.append("orders", {0: 1}, batch=2, run="run-2")) is Outcome.APPLIED
    assert store.high_watermarks("orders") == [3, 0]


@pytest.mark.parametrize(
    ("policy", "answer", "end"),
    [
        (ResetPolicy.FAIL, "REPLOG_CHECKPOINT_RESET", 2),
        (ResetPolicy.APPEND, Outcome.APPLIED, 3),
        (ResetPolicy.SKIP, Outcome.SKIPPED, 2),
    ],
)
def test_a_deleted_checkpoint_under_a_transactional_id(store, policy, answer, end) -> None:
    def batch(number: int, query: str, on_reset: ResetPolicy = ResetPolicy.FAIL):
        return store.append(
            "orders", {0: 1}, batch=number, query="tx", incarnation=query, kind=IdentityKind.TRANSACTIONAL,
            on_reset=on_reset, run=f"run of {query}",
        )  # fmt: skip

    batch(0, "query-a"), batch(1, "query-a")
    response = batch(0, "query-b", policy)
    if isinstance(answer, str):
        assert code_of(response) == answer
        assert "onCheckpointReset" in str(response.error)
    else:
        assert outcome_of(response) is answer
    assert store.high_watermarks("orders") == [end, 0]


def test_batch_writes_with_a_version(store) -> None:
    def write(version: int, rows: dict[int, int]):
        return store.append("orders", rows, batch=version, query="job", kind=IdentityKind.TXN_BATCH, run="")

    assert outcome_of(write(1, {0: 5})) is Outcome.APPLIED
    assert outcome_of(write(1, {0: 5})) is Outcome.DUPLICATE
    assert code_of(write(1, {0: 6})) == "REPLOG_DUPLICATE_TXN_MISMATCH"
    assert outcome_of(write(2, {0: 1})) is Outcome.APPLIED
    assert store.high_watermarks("orders") == [6, 0]


def test_two_queries_on_one_topic_do_not_meet(store) -> None:
    for batch in range(3):
        for query in ("query-1", "query-2"):
            assert outcome_of(store.append("orders", {0: 1}, batch=batch, query=query)) is Outcome.APPLIED
    assert store.high_watermarks("orders") == [6, 0]


@pytest.mark.guarantee("G3")
def test_an_unanswered_commit_is_found_by_its_replay(store, faults) -> None:
    with faults(store) as broken:
        store.append("orders", {0: 1}, batch=0)
        # The creates land on every root, and no answer comes back.
        broken.lose_answers = True
        response = store.append("orders", {0: 2}, batch=1)
        assert code_of(response) == "REPLOG_COMMIT_OUTCOME_UNKNOWN"
    store.reopen()
    assert outcome_of(store.append("orders", {0: 2}, batch=1)) is Outcome.DUPLICATE
    assert store.high_watermarks("orders") == [3, 0]


def test_a_commit_that_never_reached_storage_is_applied_by_its_replay(store, faults) -> None:
    with faults(store) as broken:
        store.append("orders", {0: 1}, batch=0)
        broken.drop_creates = True
        response = store.append("orders", {0: 2}, batch=1)
        assert code_of(response) == "REPLOG_COMMIT_OUTCOME_UNKNOWN"
    store.reopen()
    assert outcome_of(store.append("orders", {0: 2}, batch=1)) is Outcome.APPLIED
    assert store.high_watermarks("orders") == [3, 0]
