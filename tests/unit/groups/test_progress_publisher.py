"""A query's position as a group: best effort, never in the query's way."""

from __future__ import annotations

import pytest

from spark_replog import TopicPartition
from spark_replog.admin.controller import Controller
from spark_replog.errors import ErrorCode, RetriableError
from spark_replog.groups.group_coordinator import GroupCoordinator
from spark_replog.groups.progress_publisher import NOTE, ProgressPublisher
from tests.waiting import wait_until

P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)


@pytest.fixture
def filled(store):
    store.create("orders", 2)
    return store


def committed(store, group="g"):
    offsets = GroupCoordinator(store.another_process().cluster).fetch_offsets(group)
    return {key: (value.offset, value.metadata) for key, value in offsets.items()}


def test_a_position_is_shown_as_the_groups_offsets(filled):
    publisher = ProgressPublisher(filled.cluster, "g", interval_ms=1)
    publisher.publish({P0: 5, P1: 7}, {})
    wait_until(lambda: committed(filled) == {P0: (5, NOTE), P1: (7, NOTE)})
    publisher.publish({P0: 6, P1: 7}, {})
    wait_until(lambda: committed(filled)[P0] == (6, NOTE))


def test_a_position_in_a_deleted_topic_is_not_shown_for_the_topic_made_again(filled, caplog):
    old = filled.cluster.lookup("orders").topic_id
    Controller(filled.cluster).delete_topic("orders")
    filled.create("orders", 2)
    new = filled.cluster.lookup("orders").topic_id
    publisher = ProgressPublisher(filled.cluster, "g", interval_ms=1)
    publisher.publish({P0: 5}, {"orders": old})
    wait_until(lambda: "UNKNOWN_TOPIC_ID" in caplog.text)
    assert committed(filled) == {}
    publisher.publish({P0: 1}, {"orders": new})
    wait_until(lambda: committed(filled) == {P0: (1, NOTE)})


def test_what_did_not_move_is_not_written_again(filled):
    filled.count_calls()
    publisher = ProgressPublisher(filled.cluster, "g")
    publisher.wanted = {P0: 5}
    assert publisher.flush()
    filled.forget_calls()
    assert publisher.flush()
    assert filled.calls() == {}


def test_a_failure_is_logged_and_tried_again_and_nothing_is_raised(filled, monkeypatch, caplog):
    publisher = ProgressPublisher(filled.cluster, "g")
    real, broken = GroupCoordinator.commit_offsets, [OSError("the store is on fire")]

    def commit(*arguments):
        if broken:
            raise broken.pop()
        return real(*arguments)

    monkeypatch.setattr(GroupCoordinator, "commit_offsets", commit)
    publisher.wanted = {P0: 5, TopicPartition("nothing", 0): 1}
    assert not publisher.flush()
    assert "the reader goes on" in caplog.text
    assert publisher.flush()
    assert committed(filled) == {P0: (5, NOTE)}
    assert "nothing-0" in caplog.text


def test_a_failure_that_lasts_is_logged_once_and_again_after_a_success(filled, monkeypatch, caplog):
    publisher = ProgressPublisher(filled.cluster, "g")
    away, real = [True, True, True, False, True], GroupCoordinator.commit_offsets

    def commit(*arguments):
        if away.pop(0):
            raise RetriableError(ErrorCode.REPLOG_NO_QUORUM, "away")
        return real(*arguments)

    monkeypatch.setattr(GroupCoordinator, "commit_offsets", commit)
    publisher.wanted = {P0: 5}
    assert [publisher.flush() for _ in range(4)] == [False, False, False, True]
    publisher.wanted = {P0: 6}
    assert not publisher.flush()
    assert [record.levelname for record in caplog.records if "reader goes on" in record.message] == ["WARNING"] * 2


def test_the_position_of_an_idle_query_does_not_expire(filled):
    publisher = ProgressPublisher(filled.cluster, "g")
    publisher.wanted = {P0: 5}
    for _ in range(9):
        assert publisher.flush()
        filled.clock.advance(86_400_000)
    assert GroupCoordinator(filled.cluster).expire_offsets() == 0
    assert committed(filled) == {P0: (5, NOTE)}
