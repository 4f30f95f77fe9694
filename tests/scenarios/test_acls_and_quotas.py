"""ACLs and quotas where they bite: appends, on a store of real roots."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from spark_replog.admin.access_admin import AclAdmin, AclFilter, QuotaAdmin
from spark_replog.admin.controller import Controller
from spark_replog.cluster.authorizer import Authorizer, default_principal
from spark_replog.cluster.cluster import Cluster
from spark_replog.commit.append_request import AppendRequest
from spark_replog.commit.replica_manager import ReplicaManager
from spark_replog.commit.write_plan import make_write_plan
from spark_replog.errors import AuthorizationError, ErrorCode, InvalidConfigError
from spark_replog.groups.group_ledger import OFFSETS_TOPIC
from spark_replog.log.acl import CLUSTER_NAME, AclBinding, AclOperation, PatternType, Permission, ResourceType
from spark_replog.log.model import Append, IdentityKind, Outcome, ProducerIdentity
from spark_replog.log.quotas import DEFAULT_NAME, QuotaEntity
from tests.scenarios.conftest import ROW_SIZE_BYTES

ADMIN, WRITER = "User:admin", "User:test"
READ, WRITE = AclOperation.READ, AclOperation.WRITE


def acl(name, operation, permission=Permission.ALLOW, *, principal=WRITER, kind=ResourceType.TOPIC,
        pattern=PatternType.LITERAL):  # fmt: skip
    return AclBinding(kind, name, pattern, principal, operation, permission)


def secured(store, *bindings):
    """Make ADMIN the store's super user and add ACLs."""
    admin = AclAdmin(store.cluster, ADMIN)
    admin.configure({"super.users": f"{default_principal()}; admin"})
    admin.add(bindings)
    return admin


def append_as(store, principal, topics, *, sequence=0, client="c", kind=IdentityKind.STREAM, rows=1):
    """Return an append of one object that holds rows of several topics of one ledger."""
    objects = tuple(store.put(topic, {0: rows}, {0, 1, 2}) for topic in topics)
    identity = ProducerIdentity("query-1", "query-1", sequence, "run-1", kind)
    ledger_id = store.cluster.lookup(topics[0]).ledger_id
    return {ledger_id: Append(identity, principal, client, 0, objects)}


def answers_of(store, entries, *, is_atomic):
    requests = {ledger_id: AppendRequest(append, 30_000, is_atomic=is_atomic) for ledger_id, append in entries.items()}
    (answer,) = store.manager.append_records(requests).values()
    names = {store.cluster.lookup(name).topic_id: name for name in store.cluster.topic_names()}
    return answer, {names[key[0]]: response for key, response in answer.partitions.items()}


@pytest.mark.parametrize("is_atomic", [True, False])
def test_an_append_that_is_refused_reads_the_newest_acls_without_holding_up_its_ledger(store, monkeypatch, is_atomic):
    store.create("closed", ledger_name="l")
    secured(store, acl("closed", WRITE, principal="User:other"))
    entries = append_as(store, "test", ["closed"])
    (ledger_id,) = entries
    refresh, free = Cluster.refresh, []

    def look(self, **how):
        taker = threading.Thread(target=lambda: free.append(lock.acquire(timeout=1) and lock.release() is None))
        lock = self.topic_ledger(ledger_id).lock
        taker.start()
        taker.join()
        refresh(self, **how)

    monkeypatch.setattr(Cluster, "refresh", look)
    (answer,) = store.commit(entries, is_atomic=is_atomic).values()
    assert answer.error.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert free and all(free)


@pytest.mark.case("server-10-4-refused-topic-answered-per")
def test_an_unauthorised_topic_is_answered_by_partition_and_the_rest_is_written(store):
    store.create("open", ledger_name="l")
    store.create("closed", ledger_name="l")
    secured(store, acl("closed", WRITE, principal="User:other"))
    answer, partitions = answers_of(store, append_as(store, "test", ["closed", "open"]), is_atomic=False)
    assert answer.error is None
    assert partitions["closed"].error.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert isinstance(partitions["closed"].error, AuthorizationError)
    assert "acl add --allow-principal User:test --operation write --topic closed" in str(partitions["closed"].error)
    assert (partitions["open"].error, partitions["open"].base_offset) == (None, 0)
    assert (store.high_watermarks("open"), store.high_watermarks("closed")) == ([1], [0])


def test_every_partition_of_an_unauthorised_topic_is_refused(store):
    store.create("closed", 2)
    secured(store, acl("closed", WRITE, principal="User:other"))
    identity = ProducerIdentity("query-1", "query-1", 0, "run-1", IdentityKind.STREAM)
    append = Append(identity, WRITER, "", 0, (store.put("closed", {0: 1, 1: 1}, {0, 1, 2}),))
    ledger_id = store.cluster.lookup("closed").ledger_id
    answer = store.commit({ledger_id: append}, is_atomic=False)[ledger_id]
    codes = [response.error.code for response in answer.partitions.values()]
    assert codes == [ErrorCode.TOPIC_AUTHORIZATION_FAILED] * 2


def test_a_micro_batch_with_an_unauthorised_topic_is_refused_whole(store):
    store.create("open", ledger_name="l")
    store.create("closed", ledger_name="l")
    secured(store, acl("closed", WRITE, principal="User:other"))
    entries = append_as(store, WRITER, ["open", "closed"])
    answer, _ = answers_of(store, entries, is_atomic=True)
    assert answer.error.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert (store.high_watermarks("open"), store.high_watermarks("closed")) == ([0], [0])
    AclAdmin(store.cluster, ADMIN).add([acl("closed", WRITE)])
    answer, _ = answers_of(store, entries, is_atomic=True)  # Spark repeats the batch
    assert answer.result.outcome is Outcome.APPLIED


@pytest.mark.case("server-10-4-refused-transactional-id")
def test_a_refused_transactional_id_refuses_the_whole_request(store):
    store.create("t")
    secured(store, acl("query-1", READ, kind=ResourceType.TRANSACTIONAL_ID))
    entries = append_as(store, WRITER, ["t"], kind=IdentityKind.TRANSACTIONAL)
    answer, partitions = answers_of(store, entries, is_atomic=False)
    assert answer.error.code is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert partitions["t"].error.code is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert store.high_watermarks("t") == [0]


@pytest.mark.case("server-8-2-1-super-user-may-do")
def test_another_coordinator_obeys_what_it_folds_and_super_users_pass(store):
    store.create("t")
    secured(store, acl("t", WRITE, Permission.DENY, principal="User:*"))
    store.reopen()
    answer, _ = answers_of(store, append_as(store, WRITER, ["t"]), is_atomic=True)
    assert answer.error.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED
    answer, _ = answers_of(store, append_as(store, default_principal(), ["t"]), is_atomic=True)
    assert answer.error is None


@pytest.mark.case("server-8-2-4-5-resource-without-acls-one")
def test_a_store_without_acls_is_open_until_everyone_is_shut_out(store):
    store.create("t")
    authorizer = Authorizer(store.cluster, "test")
    store.cluster.refresh()
    assert authorizer.is_allowed(WRITE, ResourceType.TOPIC, "t")
    secured(store).configure({"allow.everyone.if.no.acl.found": "false"})
    for require in (
        lambda: authorizer.require(READ, ResourceType.TOPIC, "t"),
        lambda: authorizer.require_create("new"),
        lambda: authorizer.require(READ, ResourceType.GROUP, "g"),
        lambda: authorizer.require(AclOperation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME),
        lambda: authorizer.require(WRITE, ResourceType.TRANSACTIONAL_ID, "x"),
    ):
        with pytest.raises(AuthorizationError):
            require()
    AclAdmin(store.cluster, ADMIN).add([acl("new", AclOperation.CREATE)])
    authorizer.require_create("new")
    AclAdmin(store.cluster, ADMIN).add([acl("kafka-cluster", AclOperation.CREATE, kind=ResourceType.CLUSTER)])
    authorizer.require_create("any other")
    AclAdmin(store.cluster, ADMIN).add([acl("t", READ, principal="User:*")])
    assert authorizer.allowed_topics(AclOperation.DESCRIBE, ["t", "u"]) == ["t"]


def test_acls_are_listed_and_removed_by_filter(store):
    admin = secured(
        store, acl("a", READ), acl("a", WRITE), acl("a", READ, pattern=PatternType.PREFIXED), acl("*", READ)
    )
    topic = ResourceType.TOPIC
    assert len(admin.list(AclFilter(topic, "a"))) == 3
    assert len(admin.list(AclFilter(topic, "a", PatternType.LITERAL))) == 2
    assert len(admin.list(AclFilter(topic, "abc", covers=True))) == 2
    assert admin.list(AclFilter(principal="User:nobody")) == []
    assert admin.add([acl("a", READ)]) == []
    assert [binding.operation for binding in admin.remove(AclFilter(topic, "a", operation=WRITE))] == [WRITE]
    assert admin.remove(AclFilter(topic, "a", operation=WRITE)) == []
    assert len(admin.list(AclFilter())) == 3


def test_only_who_may_alter_the_cluster_changes_acls(store):
    secured(store).configure({"allow.everyone.if.no.acl.found": "false"})
    other = AclAdmin(store.cluster, WRITER)
    for call in (
        lambda: other.add([acl("t", READ)]),
        lambda: other.remove(AclFilter()),
        lambda: other.list(AclFilter()),
        lambda: other.config(),
        lambda: other.configure({"super.users": WRITER}),
        lambda: QuotaAdmin(store.cluster, WRITER).alter(QuotaEntity(WRITER, None), {"producer_byte_rate": 1}),
        lambda: QuotaAdmin(store.cluster, WRITER).describe(),
    ):
        with pytest.raises(AuthorizationError) as refused:
            call()
        assert refused.value.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert AclAdmin(store.cluster, ADMIN).list(AclFilter()) == []


def test_nobody_can_take_the_right_to_change_acls_from_himself(store):
    admin = AclAdmin(store.cluster, ADMIN)
    only_bob = acl("kafka-cluster", AclOperation.ALTER, principal="User:bob", kind=ResourceType.CLUSTER)
    for change in (
        lambda: admin.configure({"allow.everyone.if.no.acl.found": "false"}),
        lambda: admin.add([only_bob]),
    ):
        with pytest.raises(InvalidConfigError, match=r"super\.users=User:admin"):
            change()
    assert (admin.config(), admin.list(AclFilter())) == ({}, [])
    admin.configure({"super.users": ADMIN})
    assert admin.add([only_bob]) == [only_bob]
    with pytest.raises(InvalidConfigError):
        admin.configure({"super.users": None})


@pytest.mark.parametrize(
    "binding",
    [
        acl("", READ),
        acl("t", READ, principal=""),
        acl("other", AclOperation.ALTER, kind=ResourceType.CLUSTER),
        acl("kafka-cluster", AclOperation.ALTER, kind=ResourceType.CLUSTER, pattern=PatternType.PREFIXED),
    ],
)
def test_meaningless_acls_are_refused(store, binding):
    with pytest.raises(InvalidConfigError) as refused:
        AclAdmin(store.cluster, ADMIN).add([binding])
    assert refused.value.code is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"super.user": "User:a"}, ErrorCode.REPLOG_UNKNOWN_OPTION),
        ({"allow.everyone.if.no.acl.found": "maybe"}, ErrorCode.INVALID_CONFIG),
    ],
)
def test_wrong_settings_of_the_store_are_refused(store, changes, code):
    with pytest.raises(InvalidConfigError) as refused:
        AclAdmin(store.cluster, ADMIN).configure(changes)
    assert refused.value.code is code


def test_the_principal_comes_from_the_environment_else_from_the_operating_system(monkeypatch):
    monkeypatch.setenv("REPLOG_PRINCIPAL", "etl")
    assert default_principal() == "User:etl"
    monkeypatch.setenv("REPLOG_PRINCIPAL", "Group:etl")
    assert default_principal() == "Group:etl"
    monkeypatch.delenv("REPLOG_PRINCIPAL")
    assert default_principal().startswith("User:")


@pytest.mark.case("server-8-2-operations-topic")
def test_topic_administration_asks_for_its_operations_before_it_looks_for_the_topic(store):
    store.create("t")
    secured(store).configure({"allow.everyone.if.no.acl.found": "false"})
    user = Controller(store.cluster, principal="test")
    calls = {
        AclOperation.DESCRIBE: lambda name: user.describe_topic(name),
        AclOperation.ALTER: lambda name: user.add_partitions(name, 2),
        AclOperation.DELETE: lambda name: (user.delete_records(name, {0: 0}), user.delete_topic(name)),
        AclOperation.CREATE: lambda name: user.create_topic(name),
    }
    for operation, call in calls.items():
        for name in ("t", "no-such-topic"):
            with pytest.raises(AuthorizationError) as refused:
                call(name)
            assert refused.value.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED
            assert f"may not {operation.name.lower()} topic '{name}'" in str(refused.value)
    assert user.list_topics() == []
    for operation, call in calls.items():
        grant = acl("t", operation)
        AclAdmin(store.cluster, ADMIN).add([grant])
        call("t")  # in the order of the mapping: delete, then create again
        AclAdmin(store.cluster, ADMIN).remove(AclFilter(principal=WRITER))
    AclAdmin(store.cluster, ADMIN).add([acl("t", AclOperation.DESCRIBE)])
    assert [topic.name for topic in user.list_topics()] == ["t"]


def test_internal_topics_are_made_without_asking(store):
    secured(store).configure({"allow.everyone.if.no.acl.found": "false"})
    Controller(store.cluster, principal="test", is_internal=True).create_topic(OFFSETS_TOPIC, if_not_exists=True)
    assert OFFSETS_TOPIC in store.cluster.topic_names()


def test_a_plan_for_tasks_refuses_a_topic_that_is_named_and_marks_those_that_rows_may_name(store):
    store.create("open")
    store.create("closed")
    secured(store, acl("closed", WRITE, principal="User:other"), acl("closed", AclOperation.DESCRIBE))
    for name in ("closed", "no-such-topic"):
        AclAdmin(store.cluster, ADMIN).add([acl("no-such-topic", WRITE, Permission.DENY)])
        with pytest.raises(AuthorizationError):
            make_write_plan(store.cluster, [name], "test")
    plan = make_write_plan(store.cluster, None, "test")
    assert plan.principal == WRITER
    assert plan.topic("open").name == "open"
    with pytest.raises(AuthorizationError, match="--operation write --topic closed"):
        plan.topic("closed")
    assert make_write_plan(store.cluster, ["closed"], default_principal()).topic("closed").name == "closed"


@pytest.mark.parametrize("operation", [AclOperation.ALTER, AclOperation.ALTER_CONFIGS])
def test_an_administrator_does_not_lock_himself_out_of_acls_or_of_the_super_users(store, operation):
    admin = AclAdmin(store.cluster, ADMIN)
    deny = acl(CLUSTER_NAME, operation, Permission.DENY, principal=ADMIN, kind=ResourceType.CLUSTER)
    allow = acl(CLUSTER_NAME, AclOperation.ALL, principal=ADMIN, kind=ResourceType.CLUSTER)
    admin.add([allow])
    with pytest.raises(InvalidConfigError, match=r"INVALID_REQUEST.*could no longer change ACLs"):
        admin.add([deny])
    assert admin.list(AclFilter()) == [allow]


class FrozenClock:
    """Wall time that only sleeping moves."""

    def __init__(self, clock):
        self._clock = clock
        self.now = 1_000_000
        self.slept = []

    def now_ms(self):
        return self.now

    def monotonic_ms(self):
        return self._clock.monotonic_ms()

    def sleep_ms(self, duration_ms):
        self.slept.append(duration_ms)
        self.now += int(duration_ms)


def throttled(store):
    """Give the store's process a clock that counts throttles."""
    clock = FrozenClock(store.cluster.clock)
    store.cluster.clock = clock
    store.manager = ReplicaManager(store.cluster, replace(store.config))
    return clock


@pytest.mark.case("server-8-1-processed-first-answered")
def test_an_answer_above_the_quota_is_held_back_and_no_row_is_lost(store):
    store.create("t")
    QuotaAdmin(store.cluster, ADMIN).alter(QuotaEntity("test", None), {"producer_byte_rate": 50})
    clock = throttled(store)
    answer, _ = answers_of(store, append_as(store, WRITER, ["t"], rows=50), is_atomic=True)
    assert (answer.throttle_time_ms, clock.slept) == (0, [])  # 500 bytes over ten seconds are just the quota
    answer, _ = answers_of(store, append_as(store, WRITER, ["t"], rows=10, sequence=1), is_atomic=True)
    # 600 bytes over 10 s: (60 - 50) / 50 * 10 s
    assert (answer.throttle_time_ms, clock.slept) == (2000, [2000])
    assert store.high_watermarks("t") == [60]
    answer, _ = answers_of(store, append_as(store, "User:other", ["t"], rows=100, sequence=2), is_atomic=True)
    assert answer.throttle_time_ms == 0


def test_a_wait_is_at_most_half_the_request_time_out_and_a_repeated_batch_does_not_wait(store):
    store.create("t")
    QuotaAdmin(store.cluster, ADMIN).alter(QuotaEntity(None, DEFAULT_NAME), {"producer_byte_rate": 1})
    clock = throttled(store)
    entries = append_as(store, WRITER, ["t"], rows=100)
    answer, _ = answers_of(store, entries, is_atomic=True)
    assert (answer.throttle_time_ms, clock.slept) == (15_000, [15_000])
    answer, _ = answers_of(store, entries, is_atomic=True)
    assert answer.result.outcome is Outcome.DUPLICATE
    assert (answer.throttle_time_ms, clock.slept) == (0, [15_000])


def test_of_two_ledgers_the_longer_wait_counts_and_not_the_sum(store):
    store.create("a")
    store.create("b")
    QuotaAdmin(store.cluster, ADMIN).alter(QuotaEntity("test", None), {"producer_byte_rate": 50})
    clock = throttled(store)
    entries = append_as(store, WRITER, ["a"], rows=60) | append_as(store, WRITER, ["b"], rows=75)
    answers = store.commit(entries)
    assert [answer.throttle_time_ms for answer in answers.values()] == [5000, 5000]
    assert clock.slept == [5000]


def test_every_coordinator_finds_the_same_wait(store):
    store.create("t")
    QuotaAdmin(store.cluster, ADMIN).alter(QuotaEntity(DEFAULT_NAME, "etl"), {"producer_byte_rate": 10})
    throttled(store)
    entries = append_as(store, WRITER, ["t"], rows=12, client="etl")
    answer, _ = answers_of(store, entries, is_atomic=True)
    store.reopen()
    store.cluster.refresh()
    (ledger_id,) = entries
    store.cluster.topic_ledger(ledger_id).refresh()
    assert answer.throttle_time_ms == 2000
    assert store.cluster.produce_throttle_ms(entries, 15_000) == 2000
    assert 12 * ROW_SIZE_BYTES == 120


def test_quotas_are_described_and_wrong_ones_refused(store):
    admin = QuotaAdmin(store.cluster, ADMIN)
    admin.alter(QuotaEntity("a", None), {"producer_byte_rate": 5, "consumer_byte_rate": 6})
    admin.alter(QuotaEntity("a", None), {"producer_byte_rate": None})
    folded = store.cluster.cluster_ledger.state.applied_index
    admin.alter(QuotaEntity("a", None), {"consumer_byte_rate": 6})  # as it is: nothing is decided
    assert store.cluster.cluster_ledger.state.applied_index == folded
    assert admin.describe() == [(QuotaEntity("User:a", None), {"consumer_byte_rate": 6})]
    assert store.cluster.fetch_quota("a", "any").limit_per_second == 6
    assert store.cluster.fetch_quota("b", "any") is None
    for entity, changes in (
        (QuotaEntity(None, None), {"producer_byte_rate": 5}),
        (QuotaEntity("", None), {"producer_byte_rate": 5}),
        (QuotaEntity("a", None), {"request_percentage": 5}),
        (QuotaEntity("a", None), {"producer_byte_rate": 0}),
    ):
        with pytest.raises(InvalidConfigError):
            admin.alter(entity, changes)
    assert len(admin.describe()) == 1
