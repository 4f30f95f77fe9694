"""Topics made, grown, deleted, made again, and what a crash left half done."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from spark_replog.admin.admin import BrokerAdmin
from spark_replog.admin.controller import Controller
from spark_replog.cluster.cluster import Cluster, TopicHandle
from spark_replog.cluster.init_store import init_cluster, root_urls
from spark_replog.commit.write_plan import make_write_plan
from spark_replog.errors import ErrorCode, InvalidConfigError, NotFoundError, ReplogError
from spark_replog.log.codec.commands import encode_command
from spark_replog.log.model import BrokerRegister, Outcome, TopicInit
from tests.scenarios.conftest import LocalStore


class Crash(Exception):
    """The process ends here."""


def code_of(raised: pytest.ExceptionInfo[ReplogError]) -> ErrorCode:
    return raised.value.code


def test_create_describe_list_and_offsets(store) -> None:
    store.create("orders", 4, 3, config={"retention.ms": "60000"})
    store.create("clicks", 1, 1)
    topic = store.controller.describe_topic("orders")
    assert [partition.replicas for partition in topic.partitions] == [(0, 1, 2), (1, 2, 0), (2, 0, 1), (0, 2, 1)]
    assert [partition.leader for partition in topic.partitions] == [0, 1, 2, 0]
    assert topic.config == {"retention.ms": "60000"}
    listed = [
        (info.name, len(info.partitions), len(info.partitions[0].replicas)) for info in store.controller.list_topics()
    ]
    assert listed == [("clicks", 1, 1), ("orders", 4, 3)]
    store.append("orders", {0: 3, 2: 1}, batch=0)
    assert store.controller.offsets("orders") == {0: 3, 1: 0, 2: 1, 3: 0}
    assert store.controller.offsets("orders", "start") == dict.fromkeys(range(4), 0)
    with pytest.raises(InvalidConfigError, match="REPLOG_INVALID_OPTION"):
        store.controller.offsets("orders", "middle")


def test_create_twice(store) -> None:
    store.create("orders", 2)
    topic_id = store.controller.describe_topic("orders").topic_id
    with pytest.raises(ReplogError, match="TOPIC_ALREADY_EXISTS"):
        store.create("orders", 5)
    assert store.controller.create_topic("orders", 5, if_not_exists=True).topic_id == topic_id
    # From another process, too.
    store.reopen()
    with pytest.raises(ReplogError, match="TOPIC_ALREADY_EXISTS"):
        store.create("orders", 5)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        # Name first, then config, then replicas, then partitions.
        ({"name": "a b", "partitions": 0, "config": {"x": "1"}}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ({"name": "..", "partitions": 1}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ({"name": "a" * 250}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ({"name": "or.ders"}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ({"name": "x", "config": {"retentoin.ms": "1"}, "replicas": 9}, ErrorCode.INVALID_CONFIG),
        ({"name": "x", "config": {"retention.ms": "soon"}}, ErrorCode.INVALID_CONFIG),
        ({"name": "x", "config": {"retention.ms": None}}, ErrorCode.INVALID_CONFIG),
        ({"name": "x", "replicas": 4, "partitions": 0}, ErrorCode.INVALID_REPLICATION_FACTOR),
        ({"name": "x", "replicas": 0}, ErrorCode.INVALID_REPLICATION_FACTOR),
        ({"name": "x", "partitions": 0}, ErrorCode.INVALID_PARTITIONS),
        ({"name": "x", "partitions": -3}, ErrorCode.INVALID_PARTITIONS),
        ({"name": "x", "ledger_name": "no/slash"}, ErrorCode.REPLOG_INVALID_OPTION),
    ],
)
def test_refusals(store, arguments, code) -> None:
    store.create("or_ders")
    with pytest.raises(InvalidConfigError) as raised:
        store.controller.create_topic(**arguments)
    assert code_of(raised) is code
    assert store.cluster.topic_names() == ["or_ders"]


def test_unknown_topics(store) -> None:
    for call in (
        lambda: store.controller.describe_topic("nope"),
        lambda: store.controller.delete_topic("nope"),
        lambda: store.controller.add_partitions("nope", 3),
        lambda: store.controller.offsets("nope"),
        lambda: make_write_plan(store.cluster, ["nope"]),
    ):
        with pytest.raises(NotFoundError, match=r"UNKNOWN_TOPIC_OR_PARTITION.*topic create nope"):
            call()


def test_the_topic_of_all_groups_is_not_deleted(store) -> None:
    store.create("__consumer_offsets", 1)
    with pytest.raises(InvalidConfigError, match="To forget one group: replog -s ") as raised:
        store.controller.delete_topic("__consumer_offsets")
    assert raised.value.code is ErrorCode.INVALID_TOPIC_EXCEPTION
    assert store.cluster.lookup("__consumer_offsets")


def test_delete_and_make_again_gives_a_new_id(store) -> None:
    store.create("orders")
    store.append("orders", {0: 3}, batch=0)
    first = store.cluster.lookup("orders")
    other = Cluster.open(str(store.path))
    assert make_write_plan(other, ["orders"]).topic("orders").topic_id == first.topic_id
    store.controller.delete_topic("orders")
    assert store.cluster.topic_names() == []
    with pytest.raises(NotFoundError):
        store.controller.delete_topic("orders")
    store.create("orders")
    second = store.cluster.lookup("orders")
    assert second.topic_id != first.topic_id
    assert store.high_watermarks("orders") == [0]
    # A process that knew the old topic finds the new one, without waiting for metadata.max.age.ms.
    assert make_write_plan(other, ["orders"]).topic("orders").topic_id == second.topic_id


@pytest.mark.parametrize("ledger_name", [None, "shop"])
def test_rows_planned_for_a_topic_that_was_made_again_since_are_refused(store, ledger_name) -> None:
    store.create("orders", ledger_name=ledger_name)
    old = store.cluster.lookup("orders")
    other = LocalStore(store.path, store.config)
    assert make_write_plan(other.cluster, ["orders"]).topic("orders").topic_id == old.topic_id
    made = other.put("orders", {0: 3}, {0, 1, 2})
    store.controller.delete_topic("orders")
    store.create("orders", ledger_name=ledger_name)
    assert other.cluster.lookup("orders") == old  # all that the other process knows
    response = other.append("orders", {}, batch=0, objects=(made,))
    assert response.error is not None
    assert response.error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert store.high_watermarks("orders") == [0]


@pytest.mark.case("server-7-8-increase")
def test_partitions_grow_and_never_move(store) -> None:
    store.create("orders", 2)
    before = [partition.replicas for partition in store.controller.describe_topic("orders").partitions]
    store.append("orders", {0: 1}, batch=0)
    after = store.controller.add_partitions("orders", 5).partitions
    assert [partition.replicas for partition in after[:2]] == before
    assert len(after) == 5
    # As if all five had been placed at once.
    assert [partition.replicas for partition in after] == [(0, 1, 2), (1, 2, 0), (2, 0, 1), (0, 2, 1), (1, 0, 2)]
    assert store.append("orders", {4: 2}, batch=1).error is None
    assert store.high_watermarks("orders") == [1, 0, 0, 0, 2]
    for total in (5, 4, 0):
        with pytest.raises(InvalidConfigError, match=r"INVALID_PARTITIONS.*already has 5"):
            store.controller.add_partitions("orders", total)


def test_topics_of_one_ledger_share_its_id(store) -> None:
    store.create("orders", ledger_name="shop")
    store.create("payments", ledger_name="shop")
    store.create("alone")
    ids = {name: store.cluster.lookup(name).ledger_id for name in ("orders", "payments", "alone")}
    assert ids["orders"] == ids["payments"] != ids["alone"]


@pytest.mark.parametrize("step", ["_make_folders", "_init_topic", "_publish"])
def test_a_create_that_crashed_is_repeated(store, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    done = getattr(Controller, step)

    def crash(*args: object) -> None:
        done(*args)
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(Controller, step, crash)
        with pytest.raises(Crash):
            store.create("orders", 2, ledger_name="shop")
    store.reopen()
    if step == "_publish":
        assert store.cluster.topic_names() == ["orders"]
        store.controller.create_topic("orders", 2, if_not_exists=True)
    else:
        assert store.cluster.topic_names() == []
        store.create("orders", 2, ledger_name="shop")
    assert store.append("orders", {0: 1, 1: 1}, batch=0).error is None
    assert store.high_watermarks("orders") == [1, 1]


def test_a_delete_that_crashed_is_finished_by_delete_and_by_create(store, monkeypatch: pytest.MonkeyPatch) -> None:
    done = Controller._close

    def crash(*args: object) -> None:
        done(*args)  # type: ignore[arg-type]
        raise Crash

    for finish in ("delete", "create"):
        store.create("orders")
        first = store.cluster.lookup("orders").topic_id
        with monkeypatch.context() as patch:
            patch.setattr(Controller, "_close", crash)
            with pytest.raises(Crash):
                store.controller.delete_topic("orders")
        store.reopen()
        # Closed but still published: nobody can read or write it.
        assert store.controller.list_topics() == []
        with pytest.raises(NotFoundError):
            store.controller.describe_topic("orders")
        if finish == "create":
            store.create("orders")
            assert store.cluster.lookup("orders").topic_id != first
        store.controller.delete_topic("orders")
        assert store.cluster.topic_names() == []


def test_two_creators_of_one_name(store, monkeypatch: pytest.MonkeyPatch) -> None:
    # The other one publishes while this one is between TOPIC_INIT and TOPIC_PUBLISH.
    other = Controller(Cluster.open(str(store.path)))
    done = Controller._init_topic
    raced: list[str] = []

    def slow(self: Controller, ledger_id: str, command: TopicInit, *more: Any) -> str:
        topic_id = done(self, ledger_id, command, *more)
        if self is store.controller and not raced:
            raced.append(topic_id)
            other.create_topic(command.name, 3)
        return topic_id

    monkeypatch.setattr(Controller, "_init_topic", slow)
    with pytest.raises(ReplogError, match="TOPIC_ALREADY_EXISTS"):
        store.create("orders", 7, ledger_name="shop")
    assert len(store.controller.describe_topic("orders").partitions) == 3
    # The loser's topic is garbage: closed, so that nobody writes to it.
    with store.cluster.cluster_ledger.lock:
        shop = store.cluster.cluster_ledger.state.ledgers["shop"]
    assert store.cluster.topic_ledger(shop).state.topics[raced[0]].closed
    raced.clear()
    store.controller.delete_topic("orders")
    assert len(store.controller.create_topic("orders", 7, if_not_exists=True).partitions) == 3


def test_create_with_a_root_away_starts_it_out_of_sync(store) -> None:
    store.away(2)
    store.create("orders")
    assert set(store.isr("orders")) == {0, 1}
    assert store.append("orders", {0: 1}, batch=0, holders={0, 1}).error is None
    store.back(2)
    store.controller.create_topic("orders", if_not_exists=True)
    assert store.append("orders", {0: 1}, batch=1, holders={0, 1}).error is None
    assert set(store.isr("orders")) == {0, 1, 2}
    assert store.held_by("orders", 2) == store.held_by("orders", 0)


def test_a_vanished_root_gets_no_folders(store) -> None:
    store.away(2)
    store.create("orders")
    assert not (store.path / "broker-2").exists()
    (store.path / "broker-2").mkdir()
    store.create("clicks")
    assert list((store.path / "broker-2").iterdir()) == []


def test_init_twice_and_half_done(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    from spark_replog.cluster import init_store as cluster_init

    path = str(tmp_path / "s")

    def crash(*args: object) -> None:
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(cluster_init, "_register", crash)
        with pytest.raises(Crash):
            init_cluster(path, 3, fsync=False)
    half = Cluster.open(path)
    one = encode_command(BrokerRegister(1, half.brokers.url(1), None, "{}"))
    half.cluster_ledger.append(lambda _: one, timeout_ms=10_000)
    with pytest.raises(ReplogError, match=r"REPLOG_STORE_NOT_INITIALISED.*brokers \[0, 2\].*init") as raised:
        Controller(half).create_topic("orders", 1)
    assert raised.value.context["path"] == path
    with pytest.raises(ReplogError, match=r"REPLOG_STORE_NOT_INITIALISED.*brokers \[0, 2\].*init"):
        Controller(Cluster.open(path)).list_topics()  # an empty list would look like a finished store
    assert half.cluster_ledger.state.topics == {}
    cluster = init_cluster(path, 3, fsync=False)
    assert Controller(cluster).create_topic("orders", 1, 3).name == "orders"
    cluster.refresh()
    assert sorted(cluster.cluster_ledger.state.brokers) == [0, 1, 2]
    for count in (3, 1, 5):
        with pytest.raises(ReplogError, match="REPLOG_STORE_EXISTS"):
            init_cluster(path, count, fsync=False)


def test_root_urls() -> None:
    assert root_urls("/data/s/", 3) == ["/data/s/broker-0", "/data/s/broker-1", "/data/s/broker-2"]
    assert root_urls("s3://a/x, s3://b/x", None) == ["s3://a/x", "s3://b/x"]
    for path, count in (("/a,/b", 3), ("", 1), ("/a", 0), ("/a", 1001)):
        with pytest.raises(InvalidConfigError, match="REPLOG_INVALID_OPTION"):
            root_urls(path, count)


def test_write_plan(store) -> None:
    store.create("orders", 3, config={"compression.type": "zstd"})
    store.create("clicks", 1, 1)
    store.away(0)
    store.append("orders", {0: 1}, batch=0, holders={1, 2})
    plan = make_write_plan(store.cluster, None, "User:me")
    assert [topic.name for topic in plan.topics] == ["clicks", "orders"]
    orders = plan.topic("orders")
    assert orders.replica_sets == ((1, 0, 2), (1, 2, 0), (2, 0, 1))
    assert orders.in_sync == ((1, 2), (1, 2), (2, 1))
    assert (orders.min_insync, orders.compression) == (2, "zstd")
    assert plan.topic("clicks").min_insync == 1
    assert (plan.principal, plan.path) == ("User:me", str(store.path))


def test_a_write_plan_names_fenced_brokers_and_partitions_without_a_leader(store) -> None:
    store.create("orders", 3, 1)
    leader = store.controller.describe_topic("orders").partitions[1].leader
    BrokerAdmin(store.cluster).fence(leader)
    topic = make_write_plan(store.cluster).topic("orders")
    assert topic.offline == {1} and topic.fenced == {leader}


def test_the_principal_comes_from_the_environment(store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPLOG_PRINCIPAL", "User:etl")
    assert make_write_plan(store.cluster).principal == "User:etl"
    monkeypatch.delenv("REPLOG_PRINCIPAL")
    assert make_write_plan(store.cluster).principal.startswith("User:")


def test_shared_clusters(store) -> None:
    assert Cluster.shared(str(store.path)) is Cluster.shared(str(store.path), {})
    store.create("orders")
    handle = Cluster.shared(str(store.path)).lookup("orders")
    assert isinstance(handle, TopicHandle)
    assert store.append("orders", {0: 1}, batch=0).result.outcome is Outcome.APPLIED


def test_a_trim_can_be_repeated_and_the_furthest_of_several_holds(store):
    """Whoever asks twice, loses the answer, or races with another trim: the log start only ever moves on."""
    store.create("orders", 2)
    store.append("orders", {0: 10, 1: 10}, batch=0)
    store.controller.delete_records("orders", {0: 4, 1: -1})
    before = store.controller.describe_topic("orders")
    assert [part.log_start_offset for part in before.partitions] == [4, 10]
    store.reopen()
    entries = store.cluster.topic_state(store.cluster.lookup("orders"))[0].state.applied_index
    store.controller.delete_records("orders", {0: 4, 1: 2})
    ledger, _ = store.cluster.topic_state(store.cluster.lookup("orders"))
    assert ledger.state.applied_index == entries, "a repeated trim writes nothing"
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda offset: store.controller.delete_records("orders", {0: offset}), (5, 9, 7, 6)))
    after = store.controller.describe_topic("orders")
    assert [part.log_start_offset for part in after.partitions] == [9, 10]
    assert [part.high_watermark for part in after.partitions] == [10, 10]
    with pytest.raises(ReplogError, match="OFFSET_OUT_OF_RANGE"):
        store.controller.delete_records("orders", {0: 10, 1: 11})
    assert store.controller.offsets("orders", "start") == {0: 9, 1: 10}
