"""ACLs and quotas that another process changes: when they hold here, and what looking for them costs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_replog.admin.access_admin import AclAdmin, AclFilter, QuotaAdmin
from spark_replog.admin.controller import Controller
from spark_replog.cluster.authorizer import Authorizer
from spark_replog.cluster.cluster import ACCESS_AGE_MS, Cluster
from spark_replog.commit.write_plan import make_write_plan
from spark_replog.errors import AuthorizationError, ErrorCode, RetriableError
from spark_replog.log.acl import AclBinding, AclOperation, PatternType, Permission, ResourceType
from spark_replog.log.model import Append, IdentityKind, ProducerIdentity
from spark_replog.log.quotas import QuotaEntity
from tests.at_rest import wait_at_rest
from tests.manual_clock import ManualClock

ADMIN, WRITER = "User:admin", "User:test"
DENY_WRITER = AclBinding(ResourceType.TOPIC, "t", PatternType.LITERAL, WRITER, AclOperation.WRITE, Permission.DENY)


@pytest.fixture
def running(store):
    """The process of a running query, which has folded all there is; ``store.other`` is another process."""
    store.create("t")
    store.other = Cluster.open(str(store.path), config=store.config)
    store.cluster.clock = ManualClock(1_000_000)
    store.cluster.refresh()
    return store


def write(store, sequence, rows=100):
    """Commit one micro-batch of WRITER's."""
    identity = ProducerIdentity("q", "q", sequence, "r", IdentityKind.STREAM)
    append = Append(identity, WRITER, "", 0, (store.put("t", {0: rows}, {0, 1, 2}),))
    ledger_id = store.cluster.lookup("t").ledger_id
    return store.commit({ledger_id: append})[ledger_id]


def pass_second(store):
    store.cluster.clock.time_ms += ACCESS_AGE_MS + 1


def test_a_quota_set_elsewhere_throttles_the_next_commit_a_second_later(running):
    assert write(running, 0).throttle_time_ms == 0
    QuotaAdmin(running.other, ADMIN).alter(QuotaEntity(WRITER, None), {"producer_byte_rate": 10})
    assert write(running, 1).throttle_time_ms == 0  # not looked for yet
    pass_second(running)
    assert write(running, 2).throttle_time_ms == 15_000
    assert running.cluster.clock.slept_ms == [15_000]
    assert running.high_watermarks("t") == [300]


def test_a_consumer_quota_set_elsewhere_is_in_the_next_plan_of_a_read(running):
    topics = pytest.importorskip("spark_replog.spark.source.topics")
    options = pytest.importorskip("spark_replog.spark.options")
    subscription = options.Subscription(topics=("t",))
    QuotaAdmin(running.other, ADMIN).alter(QuotaEntity("reader", None), {"consumer_byte_rate": 10})
    topics.view_topics(running.cluster, subscription, principal="reader")
    assert running.cluster.fetch_quota("reader", "c") is None
    pass_second(running)
    topics.view_topics(running.cluster, subscription, principal="reader")
    assert running.cluster.fetch_quota("reader", "c").limit_per_second == 10


def test_a_denial_said_elsewhere_stops_plan_and_commit_a_second_later(running):
    AclAdmin(running.other, ADMIN).add([DENY_WRITER])
    make_write_plan(running.cluster, ["t"], WRITER)
    assert write(running, 0).error is None
    pass_second(running)
    assert write(running, 1).error.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED
    with pytest.raises(AuthorizationError):
        make_write_plan(running.cluster, ["t"], WRITER)
    AclAdmin(running.cluster, ADMIN).remove(AclFilter())  # who may describe t is nobody's right until then
    assert running.high_watermarks("t") == [100]


@pytest.mark.parametrize("side", ["source", "sink"])
def test_a_look_for_new_topics_finds_new_acls_too_and_costs_one_get_a_root(running, side):
    topics = pytest.importorskip("spark_replog.spark.source.topics")
    options = pytest.importorskip("spark_replog.spark.options")

    def readable():
        if side == "sink":
            return [topic.name for topic in make_write_plan(running.cluster, None, WRITER).topics]
        return sorted(topics.view_topics(running.cluster, options.Subscription(pattern="."), principal=WRITER).handles)

    assert readable() == ["t"]
    pass_second(running)
    ledger = running.cluster.cluster_ledger
    wait_at_rest(running.cluster.brokers)
    before = ledger.stats.gets
    assert readable() == ["t"]
    wait_at_rest(running.cluster.brokers)
    assert ledger.stats.gets == before + len(running.cluster.brokers.metadata_broker_ids)
    denied = AclOperation.WRITE if side == "sink" else AclOperation.DESCRIBE
    AclAdmin(running.other, ADMIN).add([replace(DENY_WRITER, operation=denied)])
    assert readable() == []


def test_a_plan_names_a_denial_before_a_ledger_that_does_not_answer(running, monkeypatch):
    asked = []

    def refresh(**_):
        asked.append("orders")
        raise RetriableError(ErrorCode.REPLOG_NO_QUORUM, "no root answers")

    monkeypatch.setattr(running.cluster.topic_ledger(running.cluster.lookup("t").ledger_id), "refresh", refresh)
    pass_second(running)
    with pytest.raises(RetriableError):
        make_write_plan(running.cluster, ["t"], WRITER)
    assert len(asked) == 1  # a second timeout would double the wait
    AclAdmin(running.other, ADMIN).add([DENY_WRITER])
    pass_second(running)
    with pytest.raises(AuthorizationError):
        make_write_plan(running.cluster, ["t"], WRITER)


def test_a_plan_of_a_topic_made_again_does_not_need_its_old_ledger(running, monkeypatch):
    def refresh(**_):
        raise RetriableError(ErrorCode.REPLOG_NO_QUORUM, "no root answers")

    old = running.cluster.lookup("t")
    monkeypatch.setattr(running.cluster.topic_ledger(old.ledger_id), "refresh", refresh)
    Controller(running.other).delete_topic("t")
    Controller(running.other).create_topic("t", 1, 3)
    pass_second(running)
    made = make_write_plan(running.cluster, ["t"], WRITER).topic("t")
    assert made.topic_id == running.other.lookup("t").topic_id != old.topic_id


def test_a_right_given_elsewhere_holds_at_once_where_it_was_refused(running):
    AclAdmin(running.other, ADMIN).add([DENY_WRITER])
    with_denial = Authorizer(running.cluster, WRITER)
    running.cluster.refresh()
    with pytest.raises(AuthorizationError):
        make_write_plan(running.cluster, ["t"], WRITER)
    AclAdmin(running.other, ADMIN).remove(AclFilter())
    assert not with_denial.is_allowed(AclOperation.WRITE, ResourceType.TOPIC, "t")  # folded a moment ago
    assert make_write_plan(running.cluster, ["t"], WRITER).topic("t").name == "t"
    assert write(running, 0).error is None


def test_a_shorter_metadata_max_age_is_kept(running):
    running.cluster.config = replace(running.config, metadata_max_age_ms=10)
    QuotaAdmin(running.other, ADMIN).alter(QuotaEntity(WRITER, None), {"producer_byte_rate": 10})
    running.cluster.clock.time_ms += 11
    assert write(running, 0).throttle_time_ms == 15_000


def test_looking_for_changes_costs_one_get_a_root_and_second(running):
    ledger = running.cluster.cluster_ledger
    wait_at_rest(running.cluster.brokers)
    before = ledger.stats.gets
    for number in range(20):
        write(running, number, rows=1)
        make_write_plan(running.cluster, ["t"], WRITER)
    assert ledger.stats.gets == before
    pass_second(running)
    for number in range(20, 30):
        write(running, number, rows=1)
        make_write_plan(running.cluster, ["t"], WRITER)
    wait_at_rest(running.cluster.brokers)
    assert ledger.stats.gets == before + len(running.cluster.brokers.metadata_broker_ids)
