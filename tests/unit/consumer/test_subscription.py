"""What a consumer reads: by hand, by name, by pattern; and what it refuses."""

from __future__ import annotations

import pytest

from spark_replog import TopicPartition
from spark_replog.coordinator.controller import Controller
from spark_replog.errors import ErrorCode, InvalidConfigError, NotFoundError, ReplogError
from tests.unit.consumer.support import P0, P1, assigned, consumer


@pytest.mark.parametrize(
    ("act", "code"),
    [
        (lambda c: c.seek(P0, -1), ErrorCode.INVALID_REQUEST),
        (lambda c: c.seek(TopicPartition("orders", 9), 1), ErrorCode.INVALID_REQUEST),
        (lambda c: c.subscribe(["orders"]), ErrorCode.REPLOG_CONFLICTING_OPTIONS),
        (lambda c: c.end_offsets([TopicPartition("orders", 9)]), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (lambda c: c.end_offsets([TopicPartition("nothing", 0)]), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_misuse_is_refused_by_code(filled, act, code):
    with pytest.raises(ReplogError) as refused:
        act(assigned(filled, P0))
    assert refused.value.code is code


def test_a_subscription_and_an_assignment_exclude_each_other_until_unsubscribed(filled):
    reader = consumer(filled, "orders")
    with pytest.raises(InvalidConfigError):
        reader.assign([P0])
    reader.unsubscribe()
    reader.assign([P0])
    assert reader.assignment() == {P0}
    with pytest.raises(InvalidConfigError):
        consumer(filled).subscribe(["orders"], pattern="o.*")
    with pytest.raises(InvalidConfigError):
        consumer(filled).subscribe(pattern="(")


def test_a_pattern_finds_topics_made_later_and_never_the_internal_one(filled):
    reader = consumer(filled, group=None)
    reader.subscribe(pattern=".*")
    reader.poll()
    with assigned(filled, P0, group="g") as other:
        other.commit({P0: 1})
    filled.create("clicks")
    filled.clock.advance(300_000)
    reader.poll()
    assert {key.topic for key in reader.assignment()} == {"orders", "clicks"}


def test_a_topic_that_does_not_exist_or_is_deleted_is_an_error(filled):
    with pytest.raises(NotFoundError):
        consumer(filled, "nothing").poll()
    reader = assigned(filled, P0)
    reader.poll()
    Controller(filled.cluster).delete_topic("orders")
    with pytest.raises(NotFoundError) as refused:
        reader.poll()
    assert refused.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_pattern_means_whole_names(filled):
    reader = consumer(filled)
    reader.subscribe(pattern="order")
    reader.poll()
    assert reader.assignment() == set()
    reader.subscribe(pattern="order.")
    reader.poll()
    assert reader.assignment() == {P0, P1}


def test_partitions_that_a_topic_gains_are_found_though_nothing_is_fetched(filled):
    reader = consumer(filled, "orders")
    reader.poll()
    reader.pause([P0, P1])
    Controller(filled.another_process().cluster).add_partitions("orders", 3)
    filled.clock.advance(300_000)
    reader.poll()
    assert reader.assignment() == {P0, P1, TopicPartition("orders", 2)}


def test_topics_and_their_partitions_can_be_listed(filled):
    reader = consumer(filled)
    filled.another_process().create("clicks", 3)
    assert reader.list_topics() == ["clicks", "orders"]
    assert reader.partitions_for("clicks") == [TopicPartition("clicks", number) for number in range(3)]
    with pytest.raises(NotFoundError):
        reader.partitions_for("nothing")
