"""What changed under a query, as pure rules: positions and a view in, starts and ends out."""

from __future__ import annotations

import pytest

from spark_replog.cluster.cluster import TopicHandle
from spark_replog.errors import ReplogError
from spark_replog.ids import TopicPartition
from spark_replog.log.log_offset import LogOffset
from spark_replog.spark.source.discovery import LossPolicy, Span, check_target, reconcile
from spark_replog.spark.source.topics import LogView

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


def view(bounds, ids, **more):
    handles = {name: TopicHandle(name, topic_id, "ledger") for name, topic_id in ids.items()}
    return LogView(bounds, handles, **more)


def span_of(at, seen, *, fail=True):
    return reconcile(at, seen, LossPolicy(fail=fail), lambda topic_id: {})


def test_a_position_is_a_floor_while_too_few_roots_answer():
    at = LogOffset({A0: 9}, {"a": "1"})
    behind = view({A0: (0, 7)}, {"a": "1"}, unclear=frozenset({"a"}))
    assert span_of(at, behind) == Span({A0: 9}, {A0: 9}, {"a": "1"})
    with pytest.raises(ReplogError, match="changed from 9 to 7"):
        span_of(at, view({A0: (0, 7)}, {"a": "1"}))
    assert span_of(at, view({A0: (0, 7)}, {"a": "1"}), fail=False).ends == {A0: 7}


def test_a_topic_created_again_starts_at_its_beginning_whatever_was_read_of_the_old_one():
    at = LogOffset({A0: 5, B0: 2}, {"a": "1", "b": "2"})
    seen = view({A0: (0, 9), A1: (0, 3), B0: (0, 4)}, {"a": "3", "b": "2"})
    span = span_of(at, seen, fail=False)
    assert span.starts == {A0: 0, A1: 0, B0: 2}
    assert span.ends == {A0: 9, A1: 3, B0: 4}
    with pytest.raises(ReplogError, match=r"Partitions a-0 have been deleted: topic 'a' was deleted and created again"):
        span_of(at, seen)


def test_a_run_that_cannot_reach_its_end_is_told_before_any_loss():
    target = LogOffset({A0: 5, B0: 1}, {"a": "1", "b": "2"})
    check_target(target, view({A0: (0, 9), A1: (0, 1), B0: (1, 1)}, {"a": "1", "b": "2"}))
    lost = "Some of partitions in Kafka topic.s. have been lost during running query with Trigger.AvailableNow: b-0 "
    for now in (view({A0: (0, 5)}, {"a": "1"}), view({A0: (0, 5), B0: (0, 9)}, {"a": "1", "b": "3"})):
        with pytest.raises(ReplogError, match=lost + ".*latest offset: a-0.*end offset: a-0, b-0.*LOST_TOPIC_PART"):
            check_target(target, now)
    less = "report available offset which is less than end offset during running query with Trigger.AvailableNow: a-0 "
    with pytest.raises(ReplogError, match=less + "latest offset: 4, end offset: 5.*END_OFFSET_HAS_GREATER"):
        check_target(target, view({A0: (0, 4), B0: (0, 1)}, {"a": "1", "b": "2"}))
    with pytest.raises(
        ReplogError, match=less + "latest offset: 4, end offset: 5; b-0 latest offset: 0, end offset: 1"
    ):
        check_target(target, view({A0: (0, 4), B0: (0, 0)}, {"a": "3", "b": "2"}))


@pytest.mark.parametrize(
    ("at", "reaches"),
    [
        (LogOffset({A0: 5}, {"a": "1"}), True),
        (LogOffset({A0: 6}, {"a": "1"}), False),
        (LogOffset({A0: 5}, {"a": "2"}), False),
        (LogOffset({A0: 5, A1: 0}, {"a": "1"}), False),
        (LogOffset({A0: 5, B0: 0}, {"a": "1", "b": "2"}), False),
    ],
)
def test_a_view_reaches_only_positions_whose_partitions_it_has_up_to_their_ends(at, reaches):
    assert view({A0: (0, 5)}, {"a": "1"}).reaches(at) is reaches
