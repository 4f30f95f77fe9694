"""What is checked before a topic is made, in Kafka's order, and explicit assignments."""

from __future__ import annotations

from functools import partial

import pytest

from spark_replog.admin.admin import BrokerAdmin
from spark_replog.errors import ReplogError


def code(call) -> str:
    with pytest.raises(ReplogError) as caught:
        call()
    return caught.value.code.name


@pytest.mark.case("kafka-120b")
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        # Each line has every later mistake as well: the first check in the order answers.
        ({"name": "a b", "config": {"nope": "1"}, "replicas": 9}, "INVALID_TOPIC_EXCEPTION"),
        ({"name": "or_ders", "config": {"nope": "1"}, "replicas": 9}, "INVALID_TOPIC_EXCEPTION"),
        ({"name": "or.ders", "config": {"nope": "1"}, "replicas": 9}, "TOPIC_ALREADY_EXISTS"),
        ({"config": {"retention.ms": None}, "replicas": 9, "assignment": [[0]]}, "INVALID_CONFIG"),
        ({"config": {"retention.ms": "soon"}, "replicas": 9, "assignment": [[0]]}, "INVALID_CONFIG"),
        ({"replicas": 9, "assignment": [[7]]}, "INVALID_REQUEST"),
        ({"partitions": 1, "assignment": [[7]]}, "INVALID_REQUEST"),
        ({"assignment": [[0], []]}, "INVALID_REPLICA_ASSIGNMENT"),
        ({"assignment": [[0, 0]]}, "INVALID_REPLICA_ASSIGNMENT"),
        ({"assignment": [[0, 1], [0]]}, "INVALID_REPLICA_ASSIGNMENT"),
        ({"assignment": [[0, 7]]}, "INVALID_REPLICA_ASSIGNMENT"),
        ({"replicas": 0, "partitions": 0}, "INVALID_REPLICATION_FACTOR"),
        ({"replicas": -2, "partitions": 0}, "INVALID_REPLICATION_FACTOR"),
        ({"replicas": 4, "partitions": 0}, "INVALID_REPLICATION_FACTOR"),
        ({"partitions": 0}, "INVALID_PARTITIONS"),
        ({"partitions": -2}, "INVALID_PARTITIONS"),
    ],
)
def test_what_is_wrong_is_found_in_kafkas_order_and_nothing_is_made(store, given, expected) -> None:
    store.create("or.ders")
    assert code(lambda: store.controller.create_topic(given.pop("name", "new"), **given)) == expected
    assert [topic.name for topic in store.controller.list_topics()] == ["or.ders"]


@pytest.mark.case("kafka-120b")
def test_an_explicit_assignment_is_kept_and_its_first_replicas_lead(store) -> None:
    made = store.controller.create_topic("orders", assignment=[[2, 0], [1, 2]])
    assert [(partition.leader, partition.replicas, partition.leader_epoch) for partition in made.partitions] == [
        (2, (2, 0), 0), (1, (1, 2), 0),
    ]  # fmt: skip
    grown = store.controller.add_partitions("orders", 3, [[0, 1]])
    assert grown.partitions[2].replicas == (0, 1)
    for wrong in ([[0]], [[0, 1], [1, 2]], [[0, 9]], [[0, 1, 2]]):
        assert code(partial(store.controller.add_partitions, "orders", 4, wrong)) == "INVALID_REPLICA_ASSIGNMENT"
    assert len(store.controller.describe_topic("orders").partitions) == 3


def test_one_request_makes_at_most_ten_thousand_partitions(store) -> None:
    controller = store.controller
    assert code(lambda: controller.create_topic("wide", 10_001, validate_only=True)) == "POLICY_VIOLATION"
    assert code(lambda: controller.create_topic("wide", assignment=[[0]] * 10_001)) == "POLICY_VIOLATION"
    assert len(controller.create_topic("wide", 10_000, validate_only=True).partitions) == 10_000
    controller.create_topic("wide", 2)
    assert code(lambda: controller.add_partitions("wide", 10_003)) == "POLICY_VIOLATION"


@pytest.mark.case("kafka-120c")
def test_validate_only_answers_and_changes_nothing(store) -> None:
    store.cluster.refresh()
    before = store.cluster.cluster_ledger.state.applied_index
    topic = store.controller.create_topic("orders", 4, 3, {"retention.ms": "1"}, validate_only=True)
    assert (len(topic.partitions), len(topic.partitions[0].replicas), topic.topic_id) == (4, 3, "")
    assert store.controller.list_topics() == []
    assert store.cluster.cluster_ledger.state.applied_index == before
    assert code(lambda: store.controller.create_topic("orders", 0, validate_only=True)) == "INVALID_PARTITIONS"


@pytest.mark.case("kafka-117b")
def test_a_topic_needs_a_broker_that_is_not_fenced(store) -> None:
    admin = BrokerAdmin(store.cluster)
    admin.fence(0)
    admin.fence(1)
    assert code(lambda: store.controller.create_topic("a", assignment=[[0, 1]])) == "INVALID_REPLICA_ASSIGNMENT"
    made = store.controller.create_topic("b", assignment=[[0, 2]])
    assert (made.partitions[0].leader, made.partitions[0].isr) == (2, (2,))
    admin.fence(2)
    assert code(lambda: store.controller.create_topic("c")) == "INVALID_REPLICATION_FACTOR"


@pytest.mark.case("kafka-121")
def test_a_topic_is_deleted_while_a_root_is_away_and_made_again_under_a_new_id(store) -> None:
    """Kafka halts the deletion until the broker is back; a passive root has nothing to answer, so it is done."""
    store.create("orders")
    first = store.controller.describe_topic("orders").topic_id
    store.append("orders", {0: 2}, batch=0)
    store.away(2)
    store.controller.delete_topic("orders")
    assert store.controller.list_topics() == []
    store.create("orders")
    store.back(2)
    again = store.controller.describe_topic("orders")
    assert again.topic_id != first
    assert again.partitions[0].log_end_offset == 0
