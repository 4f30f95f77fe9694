"""Settings, ACLs and quotas by single requests: what no admin client of Python can ask, and which codes come."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from kafka.protocol.admin import (
    AlterClientQuotasRequest,
    CreateAclsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DescribeAclsRequest,
    DescribeClientQuotasRequest,
    DescribeConfigsRequest,
    DescribeTopicPartitionsRequest,
    ListConfigResourcesRequest,
)

from spark_replog.admin.access_admin import AclAdmin, QuotaAdmin
from spark_replog.cluster.init_store import init_cluster
from spark_replog.errors import ErrorCode, InvalidConfigError
from spark_replog.gateway.configs import incremental_changes
from spark_replog.gateway.metadata import topic_uuid
from spark_replog.log.acl import AclBinding, AclOperation, PatternType, Permission, ResourceType
from spark_replog.log.quotas import DEFAULT_NAME, QuotaEntity
from tests.gateways import RunningGateway

UNKNOWN_TOPIC, TOPIC_REFUSED, CLUSTER_REFUSED, UNSUPPORTED = 3, 29, 31, 35
INVALID_CONFIG, INVALID_REQUEST, NO_TOPIC_ID = 40, 42, 100
_Entry = AlterClientQuotasRequest.EntryData
_Part = DescribeClientQuotasRequest.ComponentData


@pytest.fixture
def gateway():
    with RunningGateway() as running:
        yield running


@pytest.fixture
def client(gateway):
    with gateway.client() as client:
        yield client


def quota(client: Any, *entity: tuple[str, str | None], validate_only: bool = False, **limits: float | None) -> int:
    parts = [_Entry.EntityData(entity_type=kind, entity_name=name) for kind, name in entity]
    ops = [_Entry.OpData(key=key, value=value or 0.0, remove=value is None) for key, value in limits.items()]
    request = AlterClientQuotasRequest(entries=[_Entry(entity=parts, ops=ops)], validate_only=validate_only)
    code: int = client.ask(request, 1).entries[0].error_code
    return code


def quotas(client: Any, *parts: tuple[str, int, str | None], strict: bool = False) -> Any:
    asked = [_Part(entity_type=kind, match_type=how, match=name) for kind, how, name in parts]
    answer = client.ask(DescribeClientQuotasRequest(components=asked, strict=strict), 1)
    return [
        (
            {part.entity_type: part.entity_name for part in entry.entity},
            {item.key: item.value for item in entry.values},
        )
        for entry in answer.entries
    ]


def test_quotas_are_those_of_the_store(gateway, client):
    ann, every_client = ("user", "ann"), ("client-id", None)
    assert quota(client, ann, producer_byte_rate=1000.0, validate_only=True) == 0
    stored = QuotaAdmin(gateway.cluster)
    assert stored.describe() == []
    assert quota(client, ann, producer_byte_rate=1000.0) == quota(client, every_client, consumer_byte_rate=7.0) == 0
    assert dict(stored.describe()) == {
        QuotaEntity("User:ann", None): {"producer_byte_rate": 1000},
        QuotaEntity(None, DEFAULT_NAME): {"consumer_byte_rate": 7},
    }
    of_ann = ({"user": "ann"}, {"producer_byte_rate": 1000.0})
    of_all = ({"client-id": None}, {"consumer_byte_rate": 7.0})
    assert quotas(client) == [of_all, of_ann]
    assert quotas(client, ("user", 0, "ann")) == quotas(client, ("user", 2, None), strict=True) == [of_ann]
    assert quotas(client, ("client-id", 1, None)) == [of_all]
    assert quotas(client, ("user", 0, "bob")) == quotas(client, ("user", 1, None)) == []
    assert quota(client, ann, producer_byte_rate=None) == 0
    assert quotas(client, ("user", 0, "ann")) == []
    assert quota(client, ("ip", "10.0.0.1"), producer_byte_rate=1.0) == INVALID_REQUEST
    assert quota(client, ann, request_percentage=1.0) == INVALID_CONFIG
    assert quota(client, ann, producer_byte_rate=0.5) == INVALID_CONFIG


def test_who_may_not_is_refused(gateway, client):
    gateway.store.admin().create_topic("orders", 1)
    me = gateway.gateway.principal
    bindings = [
        AclBinding(kind, name, PatternType.LITERAL, me, operation, permission)
        for kind, name, operation, permission in (
            (ResourceType.CLUSTER, "kafka-cluster", AclOperation.ALTER, Permission.ALLOW),
            (ResourceType.CLUSTER, "kafka-cluster", AclOperation.ALTER_CONFIGS, Permission.ALLOW),
            (ResourceType.TOPIC, "orders", AclOperation.DESCRIBE, Permission.ALLOW),
        )
    ]
    AclAdmin(gateway.cluster).add(bindings)
    named = DeleteTopicsRequest.DeleteTopicState(name="orders")
    assert (
        client.ask(DeleteTopicsRequest(topics=[named], timeout_ms=30_000), 6).responses[0].error_code == TOPIC_REFUSED
    )
    asked = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=2, resource_name="orders", configuration_keys=None
    )
    answer = client.ask(DescribeConfigsRequest(resources=[asked], include_synonyms=False), 4)
    assert answer.results[0].error_code == TOPIC_REFUSED


Page = list[tuple[str, int, list[int]]]
"""Of each topic its name, error code, and the numbers of its partitions."""


def page(client: Any, *names: str, at: Any = None, limit: int = 2000) -> tuple[Page, Any]:
    """Return the topics of a page of DescribeTopicPartitions, and where the next one begins."""
    topics = [DescribeTopicPartitionsRequest.TopicRequest(name=name) for name in names]
    cursor = at and DescribeTopicPartitionsRequest.Cursor(topic_name=at.topic_name, partition_index=at.partition_index)
    request = DescribeTopicPartitionsRequest(topics=topics, response_partition_limit=limit, cursor=cursor)
    answer = client.ask(request, 0)
    shown = [(at.name, at.error_code, [part.partition_index for part in at.partitions]) for at in answer.topics]
    return shown, answer.next_cursor


def test_topics_are_described_page_by_page(gateway, client):
    admin = gateway.store.admin()
    for name, count in (("a", 2), ("b", 5), ("c", 1)):
        admin.create_topic(name, count)
    whole = [("a", 0, [0, 1]), ("b", 0, [0, 1, 2, 3, 4]), ("c", 0, [0])]
    assert page(client) == (whole, None)
    assert page(client, "c", "none", "a") == ([whole[0], whole[2], ("none", UNKNOWN_TOPIC, [])], None)
    pages, cursor = [], None
    while cursor is not None or not pages:
        shown, cursor = page(client, at=cursor, limit=3)
        pages.append([(name, numbers) for name, _, numbers in shown])
        assert len(pages) < 5
    assert pages == [[("a", [0, 1]), ("b", [0])], [("b", [1, 2, 3])], [("b", [4]), ("c", [0])]]
    assert page(client, limit=2)[1].topic_name == "b", "a page that ends with a topic names the next"
    answer = client.ask(DescribeTopicPartitionsRequest(topics=[], response_partition_limit=1, cursor=None), 0)
    (topic,) = answer.topics
    assert topic.topic_id == topic_uuid(admin.describe_topic("a").topic_id)
    assert topic.topic_authorized_operations == sum(1 << number for number in (3, 4, 5, 6, 7, 8, 10, 11))
    assert topic.partitions[0].leader_id == gateway.gateway.node.node_id
    AclAdmin(gateway.cluster).add([
        AclBinding(ResourceType.TOPIC, "b", PatternType.LITERAL, gateway.gateway.principal, AclOperation.ALL,
                   Permission.DENY)])  # fmt: skip
    gateway.cluster.refresh()
    assert [name for name, _, _ in page(client)[0]] == ["a", "c"], "not that there is another"
    assert page(client, "b") == ([("b", TOPIC_REFUSED, [])], None)


def test_what_has_settings_is_listed(gateway, client):
    gateway.store.admin().create_topic("orders", 1)
    node = str(gateway.gateway.node.node_id)

    def listed(*types: int, version: int = 1) -> tuple[int, list[tuple[int, str]]]:
        answer = client.ask(ListConfigResourcesRequest(resource_types=list(types)), version)
        return answer.error_code, [(item.resource_type, item.resource_name) for item in answer.config_resources]

    assert listed() == (0, [(2, "orders"), (4, node)])
    assert listed(2) == (0, [(2, "orders")])
    assert listed(4, 16, 32) == (0, [(4, node)])
    assert listed(99) == (UNSUPPORTED, [])
    assert listed(version=0) == (0, []), "version 0 is of client metrics, which are not offered"
    me, on_cluster = gateway.gateway.principal, (ResourceType.CLUSTER, "kafka-cluster", PatternType.LITERAL)
    rights = [(operation, Permission.ALLOW) for operation in (AclOperation.ALTER, AclOperation.ALTER_CONFIGS)]
    rights.append((AclOperation.DESCRIBE_CONFIGS, Permission.DENY))
    AclAdmin(gateway.cluster).add([AclBinding(*on_cluster, me, *right) for right in rights])
    gateway.cluster.refresh()
    assert listed() == (CLUSTER_REFUSED, [])


def test_topics_are_made_and_deleted_by_id(gateway, client):
    new = CreateTopicsRequest.CreatableTopic(
        name="n", num_partitions=3, replication_factor=1, assignments=[], configs=[]
    )
    made = client.ask(CreateTopicsRequest(topics=[new], timeout_ms=30_000, validate_only=False), 7).topics[0]
    topic = gateway.store.admin().describe_topic("n")
    assert (made.topic_id, made.num_partitions, made.replication_factor) == (topic_uuid(topic.topic_id), 3, 1)
    assert {item.name for item in made.configs} >= {"cleanup.policy", "retention.ms"}
    twice = client.ask(CreateTopicsRequest(topics=[new, new], timeout_ms=30_000, validate_only=False), 7).topics
    assert [item.error_code for item in twice] == [INVALID_REQUEST] * 2
    by_id = DeleteTopicsRequest.DeleteTopicState(name=None, topic_id=made.topic_id)
    codes = [
        client.ask(DeleteTopicsRequest(topics=[by_id], timeout_ms=30_000), 6).responses[0].error_code for _ in range(2)
    ]
    assert codes == [0, NO_TOPIC_ID]


def test_acls_that_no_log_can_check_are_refused(client):
    acl = CreateAclsRequest.AclCreation(
        resource_type=7, resource_name="ann", resource_pattern_type=3, principal="User:ann", host="*", operation=3,
        permission_type=3,
    )  # fmt: skip
    assert client.ask(CreateAclsRequest(creations=[acl]), 3).results[0].error_code == INVALID_REQUEST
    ask = DescribeAclsRequest(
        resource_type_filter=7, resource_name_filter=None, pattern_type_filter=1, principal_filter=None,
        host_filter=None, operation=1, permission_type=1,
    )  # fmt: skip
    answer = client.ask(ask, 3)
    assert (answer.error_code, answer.resources) == (0, [])
    ask.operation = 0
    assert client.ask(ask, 3).error_code == INVALID_REQUEST


@pytest.mark.parametrize("timeout_ms", [-1, 0, 1])
def test_a_client_that_gives_no_time_has_its_topic(tmp_path, timeout_ms):
    topic = CreateTopicsRequest.CreatableTopic(
        name="orders", num_partitions=1, replication_factor=1, assignments=[], configs=[]
    )
    with RunningGateway(init_cluster(str(tmp_path / "store"), 3)) as gateway, gateway.client() as client:
        request = CreateTopicsRequest(topics=[topic], timeout_ms=timeout_ms, validate_only=False)
        assert client.ask(request, 7).topics[0].error_code == 0


def operation(name: str, how: int, value: str | None = None) -> Any:
    return SimpleNamespace(name=name, config_operation=how, value=value)


def test_operations_become_changes():
    now = {"cleanup.policy": "compact"}
    policy = "cleanup.policy"
    assert incremental_changes([operation(policy, 2, "delete")], now) == {policy: "compact,delete"}
    assert incremental_changes([operation(policy, 2, "compact")], {}) == {policy: "delete,compact"}
    assert incremental_changes([operation(policy, 3, "compact")], now) == {policy: ""}
    assert incremental_changes([operation("retention.ms", 1)], now) == {"retention.ms": None}
    for bad, code in (
        ([operation("retention.ms", 2, "1")], ErrorCode.INVALID_CONFIG),
        ([operation("retention.ms", 4, "1")], ErrorCode.INVALID_REQUEST),
        ([operation("retention.ms", 0, "1"), operation("retention.ms", 1)], ErrorCode.INVALID_REQUEST),
    ):
        with pytest.raises(InvalidConfigError) as refused:
            incremental_changes(bad, now)
        assert refused.value.code is code
