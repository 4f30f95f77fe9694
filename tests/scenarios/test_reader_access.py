"""Readers under ACLs and quotas: Spark's source, the plain consumer, its group; and what a look costs."""

from __future__ import annotations

import threading

import pytest

from spark_replog.admin.access_admin import AclAdmin, QuotaAdmin
from spark_replog.errors import AuthorizationError, ErrorCode
from spark_replog.groups.group_admin import describe_group
from spark_replog.groups.group_coordinator import GroupCoordinator
from spark_replog.ids import TopicPartition
from spark_replog.log.acl import AclBinding, AclOperation, PatternType, Permission, ResourceType
from spark_replog.log.codec.group_records import OffsetAndMetadata
from spark_replog.log.quotas import FetchQuota, QuotaEntity, QuotaScope
from spark_replog.read.fetcher import forget_rates, throttle
from tests.at_rest import wait_at_rest
from tests.manual_clock import ManualClock

pytestmark = pytest.mark.case("server-8-2-fetch-group-commit-fetch")

READER = "User:reader"


@pytest.fixture
def secured(store):
    """A store whose topics a, b and hidden are open to READER as far as `allow` says."""
    for name in ("a", "b", "hidden"):
        store.create(name)
    admin = AclAdmin(store.cluster, "User:admin")
    admin.configure({"super.users": "User:admin;User:test", "allow.everyone.if.no.acl.found": "false"})

    def allow(operation, name, kind=ResourceType.TOPIC):
        admin.add([AclBinding(kind, name, PatternType.LITERAL, READER, operation, Permission.ALLOW)])

    store.allow = allow
    return store


def test_the_source_reads_what_it_may_and_a_pattern_matches_what_may_be_described(secured):
    topics = pytest.importorskip("spark_replog.spark.source.topics")
    options = pytest.importorskip("spark_replog.spark.options")

    def view(**subscription):
        return topics.view_topics(secured.cluster, options.Subscription(**subscription), principal="reader")

    for name in ("a", "no-such-topic"):
        with pytest.raises(AuthorizationError, match="may not read topic"):
            view(topics=(name,))
    with pytest.raises(AuthorizationError):
        view(assignment={"a": (0,)})
    assert view(pattern=".*").handles == {}
    secured.allow(AclOperation.READ, "a")
    secured.allow(AclOperation.READ, "b")
    assert sorted(view(pattern=".*").handles) == ["a", "b"]
    assert sorted(view(topics=("a",)).handles) == ["a"]
    secured.allow(AclOperation.DESCRIBE, "hidden")
    with pytest.raises(AuthorizationError, match="hidden"):
        view(pattern=".*")


def test_a_look_refreshes_every_ledger_once_and_all_at_the_same_time(store):
    topics = pytest.importorskip("spark_replog.spark.source.topics")
    options = pytest.importorskip("spark_replog.spark.options")
    names = ("a", "b", "c")
    for name in names:
        store.create(name)
    ledgers = [store.cluster.topic_ledger(store.cluster.lookup(name).ledger_id) for name in names]
    topics.view_topics(store.cluster, options.Subscription(topics=names))
    wait_at_rest(store.cluster.brokers)
    before = [ledger.stats.gets for ledger in ledgers]
    meeting = threading.Barrier(len(names), timeout=60)
    for ledger in ledgers:
        refresh = ledger.refresh

        def refresh_together(refresh=refresh, **how):
            meeting.wait()  # breaks, and fails the test, unless all are refreshed at once
            return refresh(**how)

        ledger.refresh = refresh_together
    view = topics.view_topics(store.cluster, options.Subscription(topics=names))
    assert sorted(view.handles) == list(names)
    roots = len(store.cluster.brokers.metadata_broker_ids)
    wait_at_rest(store.cluster.brokers)
    assert [ledger.stats.gets - count for ledger, count in zip(ledgers, before, strict=True)] == [roots] * 3


def test_a_group_commits_for_what_its_member_may_read(secured):
    key = TopicPartition("a", 0)
    coordinator = GroupCoordinator(secured.cluster, principal="reader")
    offsets = {key: OffsetAndMetadata(1), TopicPartition("b", 0): OffsetAndMetadata(0)}
    for call in (
        lambda: coordinator.commit_offsets("g", offsets),
        lambda: coordinator.fetch_offsets("g"),
        lambda: coordinator.group("g"),
        lambda: coordinator.delete_group("g"),
        lambda: coordinator.delete_offsets("g", [key]),
    ):
        with pytest.raises(AuthorizationError) as refused:
            call()
        assert refused.value.code is ErrorCode.GROUP_AUTHORIZATION_FAILED
    secured.allow(AclOperation.READ, "g", ResourceType.GROUP)
    secured.allow(AclOperation.READ, "a")
    answers = coordinator.commit_offsets("g", offsets)
    assert answers[key] is None
    assert answers[TopicPartition("b", 0)].code is ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert coordinator.fetch_offsets("g")[key].offset == 1
    assert [group.group for group in coordinator.groups()] == ["g"]
    assert GroupCoordinator(secured.cluster, principal="other").groups() == []
    with pytest.raises(AuthorizationError):
        coordinator.delete_group("g")


def test_a_groups_offsets_are_told_and_deleted_for_the_topics_that_its_reader_may_see(secured):
    a, b = TopicPartition("a", 0), TopicPartition("b", 0)
    offsets = {a: OffsetAndMetadata(1), b: OffsetAndMetadata(0)}
    GroupCoordinator(secured.cluster, principal="admin").commit_offsets("g", offsets)
    secured.allow(AclOperation.READ, "a")
    for operation in (AclOperation.READ, AclOperation.DELETE):
        secured.allow(operation, "g", ResourceType.GROUP)
    coordinator = GroupCoordinator(secured.cluster, principal="reader")
    assert list(coordinator.fetch_offsets("g")) == [a]
    with pytest.raises(AuthorizationError, match="may not describe topic 'b'"):
        coordinator.fetch_offsets("g", [a, b])
    described = describe_group(secured.cluster, coordinator, "g")
    assert [partition.topic for partition in described.partitions] == ["a"]
    answers = coordinator.delete_offsets("g", [a, b])
    assert (answers[a], answers[b].code) == (None, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    assert list(coordinator.group("g").offsets) == [("b", 0)]


def test_reads_of_one_client_wait_together_and_no_row_is_dropped():
    forget_rates()
    clock = ManualClock()
    quota = FetchQuota(100, (QuotaScope.USER, READER, ""))
    assert throttle(quota, 1000, clock) == 0  # exactly ten seconds' worth
    assert throttle(quota, 200, clock) == 2000  # 1,200 bytes over 10 s: (120 - 100) / 100 * 10 s
    assert throttle(FetchQuota(100, (QuotaScope.USER, "User:b", "")), 1000, clock) == 0
    assert clock.slept_ms == [2000]
    assert throttle(quota, 1_000_000, clock) == 15_000
    assert clock.slept_ms == [2000, 15_000]
    forget_rates()


def test_the_quota_of_the_reader_is_carried_to_its_tasks(store):
    topics = pytest.importorskip("spark_replog.spark.source.topics")
    options = pytest.importorskip("spark_replog.spark.options")
    topics = pytest.importorskip("spark_replog.spark.source.topics")
    splitting = pytest.importorskip("spark_replog.spark.source.sizing")
    store.create("a")
    store.append("a", {0: 3}, batch=0)
    QuotaAdmin(store.cluster, "User:admin").alter(QuotaEntity("reader", None), {"consumer_byte_rate": 7})
    view = topics.view_topics(store.cluster, options.Subscription(topics=("a",)))
    ranges = [splitting.OffsetRange(TopicPartition("a", 0), 0, 3)]

    def quota_of(**more):
        given = options.parse_source_options({"path": "x", "subscribe": "a", **more}, streaming=True)
        (partition,) = topics.plan_partitions(store.cluster, view, ranges, given)
        return partition.quota

    assert quota_of(principal="reader") == FetchQuota(7, (QuotaScope.USER, READER, ""))
    assert quota_of(principal="User:else") is None
