"""Administrators at a gateway: the admin clients of confluent-kafka and kafka-python, and Kafka's codes."""

from __future__ import annotations

import gc
import warnings
from typing import Any

import confluent_kafka as ck
import pytest
from confluent_kafka import admin as ck_admin
from kafka import KafkaAdminClient, OffsetAndMetadata
from kafka import TopicPartition as KafkaPartition
from kafka import admin as kp_admin
from kafka import errors as kp_errors

from spark_replog.admin.access_admin import AclAdmin, AclFilter
from spark_replog.client.store import init_store
from spark_replog.groups.group_ledger import OFFSETS_TOPIC
from tests.gateways import RunningGateway
from tests.waiting import SECONDS_MAX, wait_until

_AclOperation, _Allow = ck_admin.AclOperation, ck_admin.AclPermissionType.ALLOW


@pytest.fixture
def unclosed():
    """Allow the sockets that kafka-python leaves to the garbage collector."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def outcomes(futures: Any) -> dict[Any, Any]:
    """Return each result, or the name of its error."""
    results = {}
    for key, future in futures.items():
        try:
            results[key] = future.result(SECONDS_MAX)
        except ck.KafkaException as error:
            results[key] = error.args[0].name()
    return results


def one(futures: Any) -> Any:
    (result,) = outcomes(futures).values()
    return result


@pytest.fixture
def gateway():
    with RunningGateway(num_partitions=2) as running:
        yield running


@pytest.fixture
def admin(gateway):
    return ck_admin.AdminClient({"bootstrap.servers": gateway.address})


def test_topics_by_confluent(gateway, admin):
    new = ck_admin.NewTopic
    made = [new("orders", 3, config={"cleanup.policy": "compact"}), new("lines", -1, -1), new("far", 1, 3),
            new("odd", 1, 1, config={"no.such.setting": "1"}), new("../up", 1)]  # fmt: skip
    assert outcomes(admin.create_topics(made)) == {
        "orders": None, "lines": None, "far": "INVALID_REPLICATION_FACTOR", "odd": "INVALID_CONFIG",
        "../up": "TOPIC_EXCEPTION",
    }  # fmt: skip
    assert one(admin.create_topics([new("orders", 3)])) == "TOPIC_ALREADY_EXISTS"
    assert one(admin.create_topics([new("tried", 3)], validate_only=True)) is None
    topics = {topic.name: topic for topic in gateway.store.admin().list_topics()}
    assert (topics.keys(), topics["lines"].partition_count) == ({"orders", "lines"}, 2)
    assert one(admin.create_partitions([ck_admin.NewPartitions("orders", 5)], validate_only=True)) is None
    assert one(admin.create_partitions([ck_admin.NewPartitions("orders", 4)])) is None
    assert one(admin.create_partitions([ck_admin.NewPartitions("orders", 4)])) == "INVALID_PARTITIONS"
    assert gateway.store.admin().describe_topic("orders").partition_count == 4
    with gateway.store.producer() as producer:
        for number in range(20):
            producer.send("lines", b"%d" % number, partition=0)
    wanted = [ck.TopicPartition("lines", 0, 5), ck.TopicPartition("lines", 1, 9), ck.TopicPartition("none", 0, 0)]
    deleted = {(key.topic, key.partition): value for key, value in outcomes(admin.delete_records(wanted)).items()}
    assert deleted["lines", 0].low_watermark == 5
    assert deleted["lines", 1] == "OFFSET_OUT_OF_RANGE"
    election = admin.elect_leaders(ck.ElectionType.PREFERRED, [ck.TopicPartition("lines", 0)]).result(SECONDS_MAX)
    assert [error.name() for error in election.values()] == ["ELECTION_NOT_NEEDED"]
    assert outcomes(admin.delete_topics(["lines", "none"])) == {"lines": None, "none": "UNKNOWN_TOPIC_OR_PART"}
    assert [topic.name for topic in gateway.store.admin().list_topics()] == ["orders"]


def test_settings_by_confluent(gateway, admin):
    gateway.store.admin().create_topic("orders", 1, config={"cleanup.policy": "compact"})
    topic = ck_admin.ConfigResource(ck_admin.ResourceType.TOPIC, "orders")
    entries = one(admin.describe_configs([topic]))
    assert (entries["cleanup.policy"].value, entries["cleanup.policy"].is_default) == ("compact", False), "for Connect"
    assert (entries["retention.ms"].value, entries["retention.ms"].is_default) == ("604800000", True)
    assert entries["min.insync.replicas"].value == "1"

    def change(*changes: tuple[str, str | None, Any], validate_only: bool = False) -> Any:
        entries = [ck_admin.ConfigEntry(name, value, incremental_operation=op) for name, value, op in changes]
        resource = ck_admin.ConfigResource(ck_admin.ResourceType.TOPIC, "orders", incremental_configs=entries)
        return one(admin.incremental_alter_configs([resource], validate_only=validate_only))

    op = ck_admin.AlterConfigOpType
    assert change(("retention.ms", "1", op.SET), validate_only=True) is None
    assert change(("retention.ms", "zero", op.SET)) == "INVALID_CONFIG"
    assert change(("retention.ms", "1", op.APPEND)) == "INVALID_CONFIG"
    assert change(("cleanup.policy", "delete", op.APPEND), ("retention.ms", "77", op.SET)) is None
    controller = gateway.store.admin()
    assert controller.describe_topic("orders").config == {"cleanup.policy": "compact,delete", "retention.ms": "77"}
    assert change(("cleanup.policy", "compact", op.SUBTRACT), ("retention.ms", None, op.DELETE)) is None
    assert controller.describe_topic("orders").config == {"cleanup.policy": "delete"}
    with pytest.warns(DeprecationWarning):
        whole = ck_admin.ConfigResource(ck_admin.ResourceType.TOPIC, "orders", set_config={"retention.ms": "88"})
        assert one(admin.alter_configs([whole])) is None
    assert controller.describe_topic("orders").config == {"retention.ms": "88"}
    broker = ck_admin.ConfigResource(ck_admin.ResourceType.BROKER, "0")
    entries = one(admin.describe_configs([broker]))
    assert entries["num.partitions"].value == "2" and entries["num.partitions"].is_read_only
    fixed = ck_admin.ConfigEntry("num.partitions", "3", incremental_operation=op.SET)
    broker = ck_admin.ConfigResource(ck_admin.ResourceType.BROKER, "0", incremental_configs=[fixed])
    assert one(admin.incremental_alter_configs([broker])) == "INVALID_REQUEST"
    nowhere = ck_admin.ConfigResource(ck_admin.ResourceType.TOPIC, "none")
    assert one(admin.describe_configs([nowhere])) == "UNKNOWN_TOPIC_OR_PART"


def test_acls_by_confluent(gateway, admin):
    kinds, patterns = ck_admin.ResourceType, ck_admin.ResourcePatternType
    read = ck_admin.AclBinding(
        kinds.TOPIC, "ord", patterns.PREFIXED, "User:ann", "*", _AclOperation.READ, _Allow
    )  # fmt: skip
    hosted = ck_admin.AclBinding(
        kinds.TOPIC, "orders", patterns.LITERAL, "User:ann", "10.0.0.1", _AclOperation.READ, _Allow
    )  # fmt: skip
    assert outcomes(admin.create_acls([read, hosted])) == {read: None, hosted: "INVALID_REQUEST"}
    assert len(AclAdmin(gateway.cluster).list(AclFilter())) == 1

    def matching(name: str | None, pattern: Any, principal: str | None = None) -> Any:
        return ck_admin.AclBindingFilter(
            kinds.ANY, name, pattern, principal, None, _AclOperation.ANY, ck_admin.AclPermissionType.ANY
        )

    for wanted, matched in (
        (matching(None, patterns.ANY), [read]),
        (matching("orders", patterns.MATCH), [read]),
        (matching("orders", patterns.LITERAL), []),
        (matching(None, patterns.ANY, "User:bob"), []),
    ):
        assert admin.describe_acls(wanted).result(SECONDS_MAX) == matched
    assert one(admin.delete_acls([matching("orders", patterns.MATCH)])) == [read]
    assert AclAdmin(gateway.cluster).list(AclFilter()) == []


def test_groups_by_confluent(gateway, admin):
    gateway.store.admin().create_topic("orders", 1)
    place = ck.TopicPartition("orders", 0, 7)
    group = ck.ConsumerGroupTopicPartitions("g", [place])
    assert one(admin.alter_consumer_group_offsets([group])).topic_partitions[0].error is None
    listed = one(admin.list_consumer_group_offsets([ck.ConsumerGroupTopicPartitions("g")]))
    assert [(at.partition, at.offset) for at in listed.topic_partitions] == [(0, 7)]
    consumer = ck.Consumer({"bootstrap.servers": gateway.address, "group.id": "g", "client.id": "app"})
    consumer.subscribe(["orders"])
    wait_until(lambda: consumer.poll(0.05) or consumer.assignment())
    described = one(admin.describe_consumer_groups(["g"]))
    assert (described.state.name, described.partition_assignor) == ("STABLE", "range")
    assert [(at.client_id, len(at.assignment.topic_partitions)) for at in described.members] == [("app", 1)]
    assert one(admin.delete_consumer_groups(["g"])) == "NON_EMPTY_GROUP"
    consumer.close()
    assert one(admin.describe_consumer_groups(["g"])).state.name == "EMPTY"
    assert one(admin.delete_consumer_groups(["g"])) is None
    assert [at.group_id for at in admin.list_consumer_groups().result(SECONDS_MAX).valid] == []


@pytest.mark.usefixtures("unclosed")
def test_replicas_sizes_and_producers_by_kafka_python(tmp_path):
    store = init_store(tmp_path, 3)
    store.admin().create_topic("orders", assignment=[[0, 1]])
    with RunningGateway(store.cluster) as gateway:
        producer = ck.Producer({"bootstrap.servers": gateway.address, "enable.idempotence": True})
        producer.produce("orders", b"x" * 1000)
        assert producer.flush(SECONDS_MAX) == 0
        admin = KafkaAdminClient(bootstrap_servers=gateway.address)
        place = KafkaPartition("orders", 0)
        ((state,),) = admin.describe_producers([place])[place]
        assert (state.last_sequence, state.producer_id >= 0) == (0, True)
        dirs = admin.describe_log_dirs()
        sizes = {item["log_dir"]: item["topics"] for broker in dirs for item in broker["log_dirs"]}
        assert len(sizes) == 3, sizes
        moved = admin.alter_partition_reassignments({place: [1, 2]})
        assert moved == {place: None}
        assert admin.list_partition_reassignments()[place]["removing_replicas"] == [0]
        assert admin.alter_partition_reassignments({place: None}) == {place: None}
        assert admin.list_partition_reassignments() == {}
        refused = admin.alter_partition_reassignments({place: [1, 9]})
        assert refused == {place: kp_errors.InvalidReplicationAssignmentError}
        admin.close()


@pytest.mark.usefixtures("unclosed")
def test_groups_topics_and_settings_by_kafka_python(gateway):
    admin = KafkaAdminClient(bootstrap_servers=gateway.address)
    admin.create_topics([kp_admin.NewTopic("orders", 2, 1)])
    with pytest.raises(kp_errors.TopicAlreadyExistsError):
        admin.create_topics([kp_admin.NewTopic("orders", 2, 1)])
    resource = kp_admin.ConfigResource(kp_admin.ConfigResourceType.TOPIC, "orders", {"retention.ms": "99"})
    admin.alter_configs([resource])
    assert gateway.store.admin().describe_topic("orders").config == {"retention.ms": "99"}
    admin.alter_group_offsets("g", {KafkaPartition("orders", 0): OffsetAndMetadata(3, "", -1)})
    assert [group["group_id"] for group in admin.list_groups()] == ["g"]
    assert admin.describe_groups(["g"])["g"]["group_state"] == "Empty"
    admin.delete_groups(["g"])
    admin.delete_topics(["orders"])
    assert [topic.name for topic in gateway.store.admin().list_topics()] == [OFFSETS_TOPIC]
    admin.close()
