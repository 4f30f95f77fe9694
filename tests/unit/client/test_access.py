"""A consumer reads what the ACLs let it, as fast as its quota lets it."""

from __future__ import annotations

import pytest

from spark_replog import Consumer, TopicPartition
from spark_replog.admin.access_admin import AclAdmin, QuotaAdmin
from spark_replog.errors import AuthorizationError
from spark_replog.log.acl import AclBinding, AclOperation, PatternType, Permission, ResourceType
from spark_replog.log.quotas import QuotaEntity
from spark_replog.read.fetcher import forget_rates
from tests.unit.client.consumer_setup import rows

pytestmark = pytest.mark.case("server-8-2-fetch-group-commit-fetch")

P0 = TopicPartition("orders", 0)


def reader(store, **settings):
    made = Consumer(store.cluster, config={"principal": "reader", "auto.offset.reset": "earliest"}, **settings)
    made.assign([P0])
    return made


def test_rows_come_only_to_whom_the_topic_is_open(store):
    store.create("orders")
    store.write("orders", rows(5))
    admin = AclAdmin(store.cluster, "User:admin")

    def grant(principal):
        topic, literal = ResourceType.TOPIC, PatternType.LITERAL
        admin.add([AclBinding(topic, "orders", literal, principal, AclOperation.READ, Permission.ALLOW)])

    grant("User:other")
    with reader(store) as consumer:
        with pytest.raises(AuthorizationError, match=r"User:reader.* read .*'orders'"):
            consumer.poll()
        with pytest.raises(AuthorizationError):
            consumer.to_arrow()
        with pytest.raises(AuthorizationError):
            consumer.partitions_for("orders")
        assert consumer.list_topics() == []
        grant("User:reader")
        assert consumer.list_topics() == ["orders"]
        assert [record.value for record in consumer.poll()] == rows(5)


def test_bounds_times_and_positions_are_told_to_whom_the_topic_may_be_described(store):
    store.create("orders")
    store.write("orders", rows(5))
    admin, literal = AclAdmin(store.cluster, "User:admin"), PatternType.LITERAL

    def grant(principal, operation):
        admin.add([AclBinding(ResourceType.TOPIC, "orders", literal, principal, operation, Permission.ALLOW)])

    grant("User:other", AclOperation.READ)
    with reader(store) as consumer:
        asked = (
            lambda: consumer.end_offsets([P0])[P0],
            lambda: consumer.beginning_offsets([P0])[P0],
            lambda: consumer.offsets_for_times({P0: 0})[P0],
            lambda: consumer.position(P0),
        )
        for ask in asked:
            with pytest.raises(AuthorizationError, match=r"User:reader.* describe .*'orders'"):
                ask()
        grant("User:reader", AclOperation.DESCRIBE)
        assert [ask() for ask in asked] == [5, 0, 0, 0]
        with pytest.raises(AuthorizationError, match=r"User:reader.* read .*'orders'"):
            consumer.poll()


def test_a_poll_above_the_quota_waits_and_gives_every_row(store):
    forget_rates()
    store.create("orders")
    store.write("orders", [bytes(1000)] * 40)
    QuotaAdmin(store.cluster, "User:admin").alter(QuotaEntity(None, "slow"), {"consumer_byte_rate": 100})
    with reader(store) as consumer:
        assert len(list(consumer.poll())) == 40
    assert store.clock.slept == []
    with reader(store, client_id="slow") as consumer:
        assert len(list(consumer.poll())) == 40
    assert store.clock.slept == [15_000]
    forget_rates()
