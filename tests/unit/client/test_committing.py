"""What is committed, when, and where the next consumer begins."""

from __future__ import annotations

from collections import Counter

import pytest

from spark_replog import OffsetAndMetadata
from spark_replog.client.consumer_record import RecordMaker
from spark_replog.errors import ErrorCode, InvalidConfigError, OutcomeUnknownError, ReplogError, RetriableError
from spark_replog.groups.group_coordinator import GroupCoordinator
from tests.unit.client.consumer_setup import P0, P1, assigned, rows, values


def test_commits_are_where_the_next_consumer_begins(filled):
    with assigned(filled, P0, group="g", enable_auto_commit=False) as reader:
        reader.poll(max_records=4)
        reader.commit()
        reader.poll(max_records=4)
    again = assigned(filled.another_process(), P0, group="g")
    assert again.committed([P0, P1]) == {P0: again.committed([P0])[P0], P1: None}
    assert values(again.poll(max_records=1)) == rows(1, 4)


def test_offsets_can_be_committed_with_a_text(filled):
    reader = assigned(filled, P0, group="g")
    reader.commit({P0: OffsetAndMetadata(3, -1, "run 7"), P1: 5})
    offsets = reader.committed([P0, P1])
    assert (offsets[P0].offset, offsets[P0].metadata, offsets[P1].offset) == (3, "run 7", 5)
    with pytest.raises(InvalidConfigError) as refused:
        reader.commit({P0: OffsetAndMetadata(3, -1, "x" * 4097)})
    assert refused.value.code is ErrorCode.OFFSET_METADATA_TOO_LARGE


@pytest.mark.parametrize("act", [lambda c: c.commit(), lambda c: c.committed([P0])])
def test_without_a_group_there_are_no_commits(filled, act):
    with pytest.raises(InvalidConfigError) as refused:
        act(assigned(filled, P0))
    assert refused.value.code is ErrorCode.INVALID_GROUP_ID


def test_auto_commit_is_paced_and_done_at_the_end(filled):
    reader = assigned(filled, P0, group="g")
    reader.poll(max_records=2)
    reader.poll(max_records=2)
    assert reader.committed([P0]) == {P0: None}
    filled.clock.advance(5_000)
    reader.poll(max_records=2)
    assert reader.committed([P0])[P0].offset == 4
    reader.close()
    reader.close()
    assert assigned(filled, P0, group="g").committed([P0])[P0].offset == 6


def test_the_last_commit_does_not_count_the_records_of_an_interrupted_poll(filled, monkeypatch):
    """Ctrl-C while the second partition's records are made."""
    make, calls = RecordMaker.make, []

    def interrupted(self, key, batch):
        calls.append(key)
        if len(calls) > 1:
            raise KeyboardInterrupt
        return make(self, key, batch)

    reader = assigned(filled, P0, P1, group="g")
    read = values(reader.poll(max_records=2))
    with monkeypatch.context() as patch:
        patch.setattr(RecordMaker, "make", interrupted)
        with pytest.raises(KeyboardInterrupt):
            reader.poll(max_records=15)
    assert calls == [P0, P1]
    reader.close()
    again = assigned(filled, P0, P1, group="g")
    assert again.committed([P0])[P0].offset == 2
    assert Counter(read + values(again.poll(max_records=100))) == Counter(rows(10) + rows(10, 100))


def test_an_idle_consumer_commits_nothing_again(filled):
    again = filled.another_process()
    again.count_calls()
    reader = assigned(again, P0, group="g")
    reader.poll()
    again.clock.advance(5_000)
    reader.poll()
    assert again.calls()["create"] > 0
    again.forget_calls()
    for _ in range(3):
        again.clock.advance(5_000)
        reader.poll()
    assert "create" not in again.calls()


def test_an_auto_commit_that_fails_is_logged_and_tried_again(filled, caplog, monkeypatch):
    reader = assigned(filled, P0, group="g")
    reader.poll(max_records=2)
    real = GroupCoordinator.commit_offsets
    answers = [ReplogError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "not now.")]
    monkeypatch.setattr(
        GroupCoordinator,
        "commit_offsets",
        lambda *args: (_ for _ in ()).throw(answers.pop()) if answers else real(*args),
    )
    filled.clock.advance(5_000)
    assert len(reader.poll(max_records=2)) == 2
    assert "COORDINATOR_NOT_AVAILABLE" in caplog.text
    filled.clock.advance(200)
    reader.poll(max_records=2)
    assert reader.committed([P0])[P0].offset == 4


@pytest.mark.parametrize(
    "error",
    [
        RetriableError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "not now."),
        OutcomeUnknownError(ErrorCode.REPLOG_COMMIT_OUTCOME_UNKNOWN, "perhaps."),
    ],
    ids=["not decided", "not known"],
)
def test_a_commit_is_repeated_until_the_time_of_a_call_is_over(filled, monkeypatch, error):
    reader = assigned(filled, P0, group="g", default_api_timeout_ms=1_000, retry_backoff_ms=200)
    real, tried = GroupCoordinator.commit_offsets, []

    def refuse(*args):
        tried.append(args)
        if len(tried) == 3:
            return real(*args)
        raise error

    monkeypatch.setattr(GroupCoordinator, "commit_offsets", refuse)
    reader.commit({P0: 3})
    assert len(tried) == 3
    assert reader.committed([P0])[P0].offset == 3
    with pytest.raises(type(error)):
        reader.commit({P0: 4})
    assert len(tried) in (8, 9)  # the clock of the tests goes on by itself a little
    assert filled.clock.slept[-3:] == [200, 200, 200]


def test_a_commit_during_a_rebalance_is_not_repeated_since_only_a_poll_ends_it(filled, monkeypatch):
    reader, tried = assigned(filled, P0, group="g"), []

    def refuse(*args):
        tried.append(args)
        raise RetriableError(ErrorCode.REBALANCE_IN_PROGRESS, "poll.")

    monkeypatch.setattr(GroupCoordinator, "commit_offsets", refuse)
    with pytest.raises(RetriableError):
        reader.commit({P0: 3})
    assert len(tried) == 1


@pytest.mark.case("consumer-process-dies-answer-lost-runs")
def test_a_process_that_dies_between_poll_and_commit_gives_the_records_again(filled):
    first = assigned(filled, P0, group="g", enable_auto_commit=False)
    first.poll(max_records=3)
    first.commit()
    first.poll(max_records=3)
    del first  # no close, no commit
    again = assigned(filled.another_process(), P0, group="g")
    assert values(again.poll(max_records=3)) == rows(3, 3)


def test_a_refused_partition_is_not_taken_for_committed(filled):
    reader = assigned(filled, group="g")
    reader.poll(max_records=100)
    with pytest.raises(InvalidConfigError):
        reader.commit({P0: 10, P1: OffsetAndMetadata(10, -1, "x" * 4097)})
    assert reader.committed([P0, P1])[P1] is None
    reader.close()
    assert assigned(filled, group="g").committed([P0, P1])[P1].offset == 10


def test_an_idle_consumer_that_lives_keeps_its_offsets_from_expiring(filled):
    day_ms = 86_400_000
    reader = assigned(filled, P0, group="g")
    reader.poll()
    for _ in range(9):
        filled.clock.advance(day_ms)
        reader.poll()
    assert GroupCoordinator(filled.cluster).expire_offsets() == 0
    assert reader.committed([P0])[P0].offset == 10
    del reader
    filled.clock.advance(7 * day_ms)
    other = filled.another_process().cluster
    GroupCoordinator(other).commit_offsets("another", {P0: OffsetAndMetadata(1)})
    assert GroupCoordinator(filled.another_process().cluster).expire_offsets() == 1


@pytest.mark.parametrize("offset", ["4", 4.0, None])
def test_an_offset_that_is_no_whole_number_is_not_committed(filled, offset):
    reader = assigned(filled, P0, group="g")
    with pytest.raises(ReplogError) as refused:
        reader.commit({P0: offset})
    assert refused.value.code is ErrorCode.INVALID_REQUEST
    assert reader.committed([P0]) == {P0: None}
