"""A plain producer under ACLs and quotas."""

from __future__ import annotations

import pytest

from spark_replog.admin.access_admin import AclAdmin, QuotaAdmin
from spark_replog.errors import AuthorizationError, ErrorCode, ReplogError
from spark_replog.log.acl import AclBinding, AclOperation, PatternType, Permission, ResourceType
from spark_replog.log.quotas import QuotaEntity
from tests.unit.client.producer_setup import metadata_of, thread_of

pytestmark = pytest.mark.case("server-10-4-refused-topic-answered-per")


def deny_all_but(shop, kind, name, principal):
    binding = AclBinding(kind, name, PatternType.LITERAL, principal, AclOperation.WRITE, Permission.ALLOW)
    AclAdmin(shop.cluster, "User:admin").add([binding])


def test_an_unauthorised_topic_fails_its_own_records_and_the_others_are_written(shop):
    shop.topic("open", ledger_name="l")
    shop.topic("closed", ledger_name="l")
    producer = shop.producer(principal="till", linger__ms=50)
    allowed_at_first = producer.send("closed", b"before")
    assert allowed_at_first.exception(10) is None
    deny_all_but(shop, ResourceType.TOPIC, "closed", "User:other")
    handles = [producer.send("closed", b"x"), producer.send("open", b"y")]
    producer.flush()
    refused = handles[0].exception(10)
    assert isinstance(refused, AuthorizationError)
    assert refused.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert handles[1].result(10).offset == 0
    assert (shop.values("open"), shop.values("closed")) == ([b"y"], [b"before"])


def test_the_metadata_of_other_topics_are_refreshed_beside_one_that_may_no_longer_be_written(shop):
    shop.topic("closed")
    shop.topic("open")
    producer = shop.producer(principal="till")
    for name in ("closed", "open"):
        assert producer.partitions_for(name) == 1
    deny_all_but(shop, ResourceType.TOPIC, "closed", "User:other")
    shop.cluster.refresh()
    shop.controller.add_partitions("open", 2)
    thread_of(producer).call(metadata_of(producer).refresh)
    assert producer.partitions_for("open") == 2


def test_a_transactional_id_that_is_anothers_is_refused_and_its_owner_not_fenced(shop):
    shop.topic("orders")
    deny_all_but(shop, ResourceType.TRANSACTIONAL_ID, "till", "User:other")
    owner = shop.producer(**{"transactional.id": "till", "principal": "User:other"})
    owner.begin_transaction()
    owner.send("orders", b"the owner's")
    producer = shop.producer(**{"transactional.id": "till", "principal": "me"})
    producer.begin_transaction()
    producer.send("orders", b"a")
    with pytest.raises(ReplogError, match="TRANSACTIONAL_ID_AUTHORIZATION_FAILED"):
        producer.commit_transaction()
    owner.commit_transaction()
    assert shop.values("orders") == [b"the owner's"]


def test_the_wait_for_a_quota_shows_in_the_metrics(shop):
    shop.topic("orders")
    QuotaAdmin(shop.cluster, "User:admin").alter(QuotaEntity(None, "fast"), {"producer_byte_rate": 1})
    producer = shop.producer(**{"client.id": "fast", "request.timeout.ms": 300, "replica.lag.time.max.ms": 100})
    assert producer.send("orders", bytes(1000)).result(10).offset == 0
    metrics = producer.metrics()
    assert metrics["produce-throttle-time-max"] == 150  # half the request timeout
    other = shop.producer()
    assert other.send("orders", bytes(1000)).result(10).offset == 1
    assert other.metrics()["produce-throttle-time-max"] == 0
