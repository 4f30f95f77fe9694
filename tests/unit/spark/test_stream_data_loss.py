"""What a streaming query says when unread rows or topics are gone, on a real store without a JVM."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from spark_replog.cluster.cluster import Cluster
from spark_replog.errors import ErrorCode, InvalidConfigError, NotFoundError
from spark_replog.ledger.ledger import Ledger
from spark_replog.spark.source import stream_reader
from spark_replog.spark.source.topics import final_ends
from tests.unit.spark.support import loses

pytestmark = pytest.mark.case("connector-planned-tasks-deleted-topic")


def test_a_topic_that_never_existed_is_named(start_query, source):
    source.topic("t")
    with pytest.raises(NotFoundError, match="does not host this topic-partition: it has no topic 'nowhere'"):
        start_query(subscribe="t,nowhere").next()


def test_a_name_that_no_topic_can_have_is_told_from_one_that_is_missing(start_query):
    with pytest.raises(InvalidConfigError, match="topic 'b!d' is invalid") as caught:
        start_query(subscribe="b!d").next()
    assert caught.value.code is ErrorCode.INVALID_TOPIC_EXCEPTION


@pytest.mark.parametrize("how", [{"subscribe": "a,b"}, {"subscribePattern": "[ab]"}])
def test_a_deleted_topic_fails_the_query_and_names_what_was_not_read(source, start_query, how):
    for name in ("a", "b"):
        source.topic(name, 2)
        source.write(name, {0: 3, 1: 3})
    query = start_query(startingOffsets="earliest", **how)
    query.next()
    source.write("a", {1: 4})
    source.controller.delete_topic("a")
    loses(query.next, "Partitions a-0, a-1 have been deleted", "topic 'a'", "was deleted",
          "Not read: offsets 3 to 7 (exclusive) of a-1.", "PARTITIONS_DELETED")  # fmt: skip
    query.restart()
    loses(query.next, "Partitions a-0, a-1 have been deleted", "offsets from 3 on of a-1")
    query.restart(failOnDataLoss="false")
    source.write("b", {0: 1})
    assert query.next() == {"b-0": [3]}
    assert query.next() is None


def test_a_pattern_that_matches_nothing_any_more_fails_too(source, start_query):
    source.topic("a")
    source.write("a", {0: 3})
    query = start_query(subscribePattern="a", startingOffsets="earliest")
    query.next()
    source.controller.delete_topic("a")
    loses(query.next, "Partitions a-0 have been deleted")
    query.restart(failOnDataLoss="false")
    assert query.next() is None
    source.topic("a")
    source.write("a", {0: 2})
    assert query.next() == {"a-0": [0, 1]}


@pytest.mark.parametrize("rows", [2, 3, 9])
def test_a_topic_created_again_is_another_topic_however_much_it_holds(source, start_query, rows):
    source.topic("a", 2)
    source.write("a", {0: 3, 1: 1})
    query = start_query(subscribe="a", startingOffsets="earliest")
    query.next()
    source.controller.delete_topic("a")
    source.topic("a", 1)
    source.write("a", {0: rows})
    loses(query.next, "Partitions a-0, a-1 have been deleted", "deleted and created again", "another store")
    query.restart(failOnDataLoss="false")
    assert query.next() == {"a-0": list(range(rows))}
    assert query.position("a") == {"0": rows}
    source.write("a", {0: 1})
    assert query.next() == {"a-0": [rows]}


def test_a_sink_that_creates_the_topic_again_in_each_batch_does_not_keep_the_query_busy(source, start_query):
    source.topic("t")
    source.write("t", {0: 3})
    query = start_query(subscribe="t", startingOffsets="earliest", failOnDataLoss="false")
    batches = []
    while len(batches) < 5 and (rows := query.next()) is not None:
        batches.append(rows)
        source.controller.delete_topic("t")
        source.topic("t")
    assert batches == [{"t-0": [0, 1, 2]}, {}]
    source.write("t", {0: 2})
    assert query.next() == {"t-0": [0, 1]}


def test_a_named_topic_may_be_away_for_long_and_come_back(source, start_query):
    for name in ("a", "b"):
        source.topic(name)
        source.write(name, {0: 2})
    query = start_query(subscribe="a,b", startingOffsets="earliest", failOnDataLoss="false")
    query.next()
    source.controller.delete_topic("a")
    query.next()
    assert query.next() is None
    source.write("b", {0: 1})
    assert query.next() == {"b-0": [2]}
    source.topic("a")
    source.write("a", {0: 4})
    assert query.next() == {"a-0": [0, 1, 2, 3]}


@pytest.mark.guarantee("G10b")
def test_a_loss_that_is_passed_over_is_said_once(source, start_query, caplog):
    for name in ("a", "b"):
        source.topic(name)
    source.write("a", {0: 3})
    query = start_query(subscribePattern="[ab]", startingOffsets="earliest", failOnDataLoss="false")
    query.next()
    source.controller.delete_topic("a")
    source.controller.delete_topic("b")
    for _ in range(3):
        query.next()
    assert caplog.text.count("KAFKA_DATA_LOSS.PARTITIONS_DELETED") == 2


def test_a_topic_that_is_not_subscribed_any_more_is_no_silent_loss(source, start_query):
    for name in ("a", "b"):
        source.topic(name)
        source.write(name, {0: 2})
    query = start_query(subscribe="a,b", startingOffsets="earliest")
    query.next()
    query.restart(subscribe="b")
    loses(query.next, "topic 'a' exists and is not among those that are read any more")
    query.restart(failOnDataLoss="false")
    source.write("b", {0: 1})
    assert query.next() == {"b-0": [2]}


def test_a_topic_may_be_added_to_the_subscription(source, start_query):
    for name in ("a", "b"):
        source.topic(name)
        source.write(name, {0: 2})
    query = start_query(subscribe="a", startingOffsets="latest")
    query.next()
    query.restart(subscribe="a,b")
    assert query.next() == {"b-0": [0, 1]}


def test_a_partition_that_is_not_assigned_any_more_is_no_silent_loss(source, start_query):
    source.topic("a", 2)
    query = start_query(assign='{"a":[0,1]}')
    query.next()
    query.restart(assign='{"a":[0]}')
    loses(query.next, "Partitions a-1 have been deleted", "not among those that are read")


def test_a_start_past_the_end_is_reported(source, start_query):
    source.topic("t")
    source.write("t", {0: 40})
    given = {"subscribe": "t", "startingOffsets": '{"t":{"0":100}}'}
    loses(start_query(**given).next, "changed from 100 to 40", "set too high", "PARTITION_OFFSET_CHANGED")
    query = start_query(**given, failOnDataLoss="false")
    assert query.next() == {}
    assert query.position("t") == {"0": 40}
    source.write("t", {0: 2})
    assert query.next() == {"t-0": [40, 41]}


def test_a_position_past_the_end_waits_while_too_few_roots_answer(source, start_query, monkeypatch):
    """A majority that is back may know more: neither loss, nor rows again, until it is known."""
    source.topic("t")
    source.write("t", {0: 4})
    query = start_query(subscribe="t", startingOffsets='{"t":{"0":6}}')
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "is_tail_unclear", property(lambda self: True))
        assert query.next() == {}
        assert query.position("t") == {"0": 6}
    source.write("t", {0: 4})
    assert query.next() == {"t-0": [6, 7]}


def test_a_topic_deleted_between_plan_and_replay(source, start_query):
    source.topic("a")
    source.topic("b")
    source.write("a", {0: 5})
    source.write("b", {0: 5})
    query = start_query(subscribe="a,b", startingOffsets="earliest")
    start = query.reader.initialOffset()
    end = query.reader.latestOffset(start, query.limit)
    source.controller.delete_topic("a")
    query.restart()
    loses(lambda: query.reader.partitions(start, end), "a-0 was deleted", "offsets 0 to 5 (exclusive)",
          "KAFKA_DATA_LOSS.PARTITIONS_DELETED")  # fmt: skip
    query.restart(failOnDataLoss="false")
    assert source.rows(query.reader, query.reader.partitions(start, end)) == {"b-0": list(range(5))}


@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_topic_whose_deletion_this_process_folds_between_offsets_and_plan(source, start_query, fail):
    source.topic("t")
    source.write("t", {0: 5})
    query = start_query(subscribe="t", startingOffsets="earliest", failOnDataLoss=fail)
    start = query.reader.initialOffset()
    end = query.reader.latestOffset(start, query.limit)
    cluster = Cluster.shared(str(source.path))
    handle = cluster.lookup("t")
    source.controller.delete_topic("t")
    final_ends(cluster, {handle.topic_id: handle}, handle.topic_id)
    if fail == "true":
        loses(lambda: query.reader.partitions(start, end), "t-0 was deleted", "0 to 5")
    else:
        assert query.reader.partitions(start, end) == []


def test_a_topic_that_goes_with_nothing_unread_is_no_loss_to_a_planned_batch(source, start_query):
    for name in ("a", "b"):
        source.topic(name)
    source.write("b", {0: 5})
    query = start_query(subscribe="a,b", startingOffsets="earliest")
    start = query.reader.initialOffset()
    end = query.reader.latestOffset(start, query.limit)
    source.controller.delete_topic("a")
    assert source.rows(query.reader, query.reader.partitions(start, end)) == {"b-0": list(range(5))}


def test_a_fold_that_is_behind_the_checkpoint_is_waited_for(source, start_query, monkeypatch):
    source.topic("t")
    source.write("t", {0: 4})
    query = start_query(subscribe="t", startingOffsets="earliest")
    query.next()
    source.write("t", {0: 1})
    query.restart()
    looks = []

    def view_topics(*arguments, **more):
        looks.append(view(*arguments, **more))
        return replace(looks[0], bounds=dict.fromkeys(looks[0].bounds, (0, 2))) if len(looks) == 1 else looks[-1]

    view = stream_reader.view_topics
    monkeypatch.setattr(stream_reader, "view_topics", view_topics)
    assert query.next() == {"t-0": [4]}


def test_all_folds_that_are_behind_the_checkpoint_are_waited_for(source, start_query, monkeypatch):
    for name in ("a", "b"):
        source.topic(name, 2)
        source.write(name, {0: 4, 1: 3})
    query = start_query(subscribe="a,b", startingOffsets="earliest")
    query.next()
    query.restart()
    view, refresh, states = stream_reader.view_topics, Ledger.refresh_until, {}

    def view_topics(*arguments, **more):
        log_view = view(*arguments, **more)
        return log_view if states else replace(log_view, bounds=dict.fromkeys(log_view.bounds, (0, 0)))

    def noting(self, reached):
        state = refresh(self, reached)
        (topic,) = state.topics.values()
        first = SimpleNamespace(partitions=[topic.partitions[0], SimpleNamespace(high_watermark=2)])
        states[topic.name] = reached(state), reached(SimpleNamespace(topics={topic.topic_id: first}))
        return state

    monkeypatch.setattr(stream_reader, "view_topics", view_topics)
    monkeypatch.setattr(Ledger, "refresh_until", noting)
    assert query.next() is None
    assert states == dict.fromkeys("ab", (True, False))


def test_planned_tasks_outlive_their_topic(source, start_query):
    source.topic("a")
    source.write("a", {0: 5})
    query = start_query(subscribe="a", startingOffsets="earliest")
    start = query.reader.initialOffset()
    tasks = query.reader.partitions(start, query.reader.latestOffset(start, query.limit))
    source.controller.delete_topic("a")
    assert source.rows(query.reader, tasks) == {"a-0": list(range(5))}


@pytest.mark.parametrize(
    ("read", "trimmed", "lost"), [(0, 4, "offsets 0 to 4"), (2, 4, "offsets 2 to 4"), (2, 10, "offsets 2 to 10")]
)
def test_rows_trimmed_before_they_were_read_are_lost(source, start_query, read, trimmed, lost):
    source.topic("t")
    source.write("t", {0: 10})
    query = start_query(subscribe="t", startingOffsets=f'{{"t":{{"0":{read}}}}}')
    source.controller.delete_records("t", {0: trimmed})
    loses(query.next, f"Could not read records: {lost} (exclusive) of t-0", "not available in Kafka any more",
          f"begins at {trimmed} now", "were trimmed",
          "COULD_NOT_READ_OFFSET_RANGE")  # fmt: skip
    query.restart(failOnDataLoss="false")
    assert query.next() == ({"t-0": list(range(trimmed, 10))} if trimmed < 10 else {})
    source.write("t", {0: 1})
    assert query.next() == {"t-0": [10]}


def test_rows_trimmed_after_they_were_read_are_no_loss(source, start_query):
    source.topic("t")
    source.write("t", {0: 10})
    query = start_query(subscribe="t", startingOffsets="earliest")
    query.next()
    source.controller.delete_records("t", {0: -1})
    assert query.next() is None
    source.write("t", {0: 2})
    assert query.next() == {"t-0": [10, 11]}


def test_a_trim_during_a_task_does_not_touch_it(source, start_query):
    source.topic("t")
    source.write("t", {0: 10})
    query = start_query(subscribe="t", startingOffsets="earliest")
    start = query.reader.initialOffset()
    tasks = query.reader.partitions(start, query.reader.latestOffset(start, query.limit))
    source.controller.delete_records("t", {0: 5})
    assert source.rows(query.reader, tasks) == {"t-0": list(range(10))}


def test_a_new_partition_that_was_trimmed_is_reported(source, start_query):
    source.topic("t")
    query = start_query(subscribe="t", startingOffsets="earliest")
    query.next()
    source.controller.add_partitions("t", 2)
    source.write("t", {1: 5})
    source.controller.delete_records("t", {1: 3})
    loses(query.next, "Added partition t-1 starts from 3 instead of 0", "offsets 0 to 3",
          "ADDED_PARTITION_DOES_NOT_START_FROM_OFFSET_ZERO")  # fmt: skip
    query.restart(failOnDataLoss="false")
    assert query.next() == {"t-1": [3, 4]}
    assert query.next() is None


def test_aged_out_is_told_from_trimmed(source, start_query):
    from spark_replog.log.codec.commands import encode_command
    from spark_replog.log.model import LogStartAdvance, LogStartReason

    source.topic("t")
    source.write("t", {0: 10})
    query = start_query(subscribe="t", startingOffsets='{"t":{"0":0}}')
    handle = source.cluster.lookup("t")
    command = encode_command(LogStartAdvance(handle.topic_id, LogStartReason.RETENTION, ((0, 4),)))
    source.cluster.topic_ledger(handle.ledger_id).append(lambda _: command, timeout_ms=5000)
    loses(query.next, "offsets 0 to 4 (exclusive) of t-0", "aged out (retention)")


@pytest.mark.case("connector-initial-offset-not-found")
def test_a_new_topic_that_is_gone_before_its_first_batch_is_planned_is_named_by_its_own_condition(source, start_query):
    source.topic("a")
    source.write("a", {0: 1})
    query = start_query(subscribePattern="[ab]", startingOffsets="earliest")
    query.next()
    source.topic("b")
    source.write("b", {0: 3})
    logged = query.reader.latestOffset(query.committed, query.limit)
    source.controller.delete_topic("b")
    query.restart()
    loses(lambda: query.reader.partitions(query.committed, logged),
          "b-0 was deleted or re-created", "offsets 0 to 3", "INITIAL_OFFSET_NOT_FOUND_FOR_PARTITIONS")  # fmt: skip
