"""What changed under a query, as pure rules: positions and a view in, starts and ends out."""

from __future__ import annotations

import pytest

from spark_replog.coordinator.cluster import TopicHandle
from spark_replog.errors import ReplogError
from spark_replog.ids import TopicPartition
from spark_replog.spark.data_loss import LossPolicy
from spark_replog.spark.discovery import Span, reconcile, up_to_target
from spark_replog.spark.offsets import LogOffset
from spark_replog.spark.topics import LogView

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


def test_a_run_never_goes_past_its_target_nor_short_of_it():
    span = Span({A0: 2, A1: 0}, {A0: 9, A1: 4}, {"a": "1"})
    assert up_to_target(span, {A0: 5}) == {A0: 5}
    with pytest.raises(ReplogError, match=r"b-0 have been lost during running query with Trigger.AvailableNow"):
        up_to_target(span, {A0: 5, B0: 1})
    with pytest.raises(ReplogError, match=r"a-0 report available offset which is less than end offset .*\(9 of 10"):
        up_to_target(span, {A0: 10})
