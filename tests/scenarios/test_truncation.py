"""acks=1 and the leader lost before its followers had the rows: real roots moved away and back."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from dataclasses import replace
from functools import partial

import pyarrow as pa
import pytest

from spark_replog.admin.admin import BrokerAdmin, settle_fences
from spark_replog.admin.coordinator_loop import CoordinatorLoop
from spark_replog.cluster import cluster
from spark_replog.cluster.cluster import Cluster
from spark_replog.cluster.init_store import init_cluster
from spark_replog.commit.catch_up import CatchUp
from spark_replog.commit.failover import fail_over
from spark_replog.commit.write_plan import make_write_plan
from spark_replog.config.coordinator import CoordinatorConfig
from spark_replog.config.producer import ProducerConfig
from spark_replog.errors import ErrorCode, RetriableError
from spark_replog.ledger.ledger import Ledger
from spark_replog.ledger.types import LedgerSettings
from spark_replog.log.codec.commands import encode_command
from spark_replog.log.model import Append, BrokerFence, IdentityKind, IsrChange, Outcome, ProducerIdentity
from spark_replog.maintenance.repair import StoreRepair
from spark_replog.read.fetch_plan import plan_fetch
from spark_replog.read.fetcher import Fetcher
from spark_replog.storage.brokers import BrokerSet
from spark_replog.storage.paths import data_key
from spark_replog.write.task_writer import TaskWriter
from tests.faulty_store import FaultyStore
from tests.scenarios.repairing import lose, repair, told_cuts

FAST = CoordinatorConfig(replica_rejoin_wait_ms=0, replica_lag_time_max_ms=3_000)


@pytest.fixture
def orders(store, monkeypatch):
    """Every coordinator dies right after its ENTRY: nothing is copied behind an acks=1 append."""
    monkeypatch.setattr(CatchUp, "copy_to_followers", lambda self, ledger: None)
    store.config = FAST
    store.reopen()
    store.create("orders", 2)
    return store


def described(store, partition=0):
    return store.controller.describe_topic("orders").partitions[partition]


def offsets(response) -> dict[int, tuple[int, int]]:
    assert response.error is None, response.error
    assert response.result.outcome is Outcome.APPLIED
    return {partition: bounds for (_, partition), bounds in response.result.base_offsets.items()}


@pytest.mark.case("server-5-7-truncation-others-hold")
def test_rows_that_only_the_lost_leader_has_are_cut_and_their_offsets_given_again(orders) -> None:
    assert offsets(orders.append("orders", {0: 5, 1: 2}, batch=0)) == {0: (0, 5), 1: (0, 2)}
    leader = described(orders).leader
    # One row set that only the leader holds, and behind it one that two replicas hold.
    assert offsets(orders.append("orders", {0: 3}, batch=1, holders={leader}, acks=1)) == {0: (5, 8)}
    others = {0, 1, 2} - {leader}
    assert offsets(orders.append("orders", {0: 1, 1: 4}, batch=2, holders=others, acks=1)) == {0: (8, 9), 1: (2, 6)}
    assert orders.high_watermarks("orders") == [5, 2]
    lost = {section.object.id.name for section in unread(orders)}
    orders.away(leader)
    # The next acknowledged batch may not stand behind a row that is lost: the log goes back to 5 and 2.
    assert offsets(orders.append("orders", {0: 2}, batch=3, holders=others)) == {0: (5, 7)}
    now = described(orders)
    assert (now.leader in others, set(now.isr), now.leader_epoch) == (True, others, 2)
    assert (now.high_watermark, now.log_end_offset) == (7, 7)
    assert described(orders, 1).high_watermark == described(orders, 1).log_end_offset == 2
    # Batches 1 and 2 may come again: what the producer was known by went with their rows.
    repeated = orders.append("orders", {0: 3}, batch=4, holders=others)
    assert offsets(repeated) == {0: (7, 10)}
    # The root comes back with its divergent object: it is neither read nor copied.
    orders.back(leader)
    assert offsets(orders.append("orders", {0: 1}, batch=5, holders=others)) == {0: (10, 11)}
    orders.reopen()
    assert set(orders.isr("orders")) == {0, 1, 2}
    named = {section.object.id.name for number in (0, 1) for section in orders.sections("orders", number)}
    assert named.isdisjoint(lost)
    on_disk = orders.held_by("orders", leader)
    assert lost & on_disk and named <= on_disk


class Refusing:
    """A root that takes no data objects."""

    def __init__(self, store) -> None:
        self._store = store

    def __getattr__(self, name):
        return getattr(self._store, name)

    def create(self, key, data, *, make_parent=False):
        if "/data/" in key:
            raise RetriableError(ErrorCode.REPLOG_STORE_UNAVAILABLE, "it takes nothing.")
        return self._store.create(key, data, make_parent=make_parent)


def write_by_task(store, values, *, batch, acks, refusing=()):
    """One micro-batch as the sink makes it: plan, task, message, commit."""
    plan = make_write_plan(store.cluster, ["orders"])
    brokers = BrokerSet.open(str(store.path))
    brokers.stores.update({broker_id: Refusing(brokers.store(broker_id)) for broker_id in refusing})
    config = ProducerConfig(
        acks=acks, replica_grace_ms=30, request_timeout_ms=500, delivery_timeout_ms=1000, retry_backoff_ms=1
    )
    task = TaskWriter(plan, config, brokers, query_id="query", batch_id=batch, task_id=0, default_topic="orders")
    rows = {"partition": pa.array([0] * len(values), pa.int32()), "value": pa.array(values, pa.binary())}
    task.append(pa.RecordBatch.from_pydict(rows))
    objects: dict[str, list] = {}
    for ledger_id, item in task.close().objects:
        objects.setdefault(ledger_id, []).append(item)
    identity = ProducerIdentity("query", "query", batch, "run", IdentityKind.STREAM)
    entries = {ledger: Append(identity, "User:t", "", 0, tuple(items)) for ledger, items in objects.items()}
    (answer,) = store.commit(entries, acks).values()
    return objects, answer


def read(store, partition=0):
    """What a reader gets: (offset, value)."""
    handle = store.cluster.lookup("orders")
    ledger, topic = store.cluster.topic_state(handle)
    with ledger.lock:
        end = topic.partitions[partition].high_watermark
        plan = plan_fetch(ledger.state, "orders", handle.topic_id, partition, 0, end)
    rows = pa.Table.from_batches(list(Fetcher(store.cluster.brokers).fetch(plan))).to_pylist() if plan else []
    return [(row["offset"], row["value"]) for row in rows]


@pytest.mark.case("server-5-7-5-8-acks-1-leader-lost")
@pytest.mark.guarantee("G2")
def test_rows_written_read_and_cut_through_the_classes_of_sink_and_source(orders) -> None:
    _, answer = write_by_task(orders, [b"a", b"b"], batch=0, acks=-1)
    assert offsets(answer) == {0: (0, 2)}
    leader = described(orders).leader
    others = {0, 1, 2} - {leader}
    made, answer = write_by_task(orders, [b"lost"], batch=1, acks=1, refusing=others)
    (lost,) = [item for items in made.values() for item in items]
    assert (offsets(answer), lost.holders) == ({0: (2, 3)}, {leader})
    assert read(orders) == [(0, b"a"), (1, b"b")]  # the row is in the log, and nobody can see it
    orders.away(leader)
    _, answer = write_by_task(orders, [b"new", b"er"], batch=2, acks=-1)
    assert offsets(answer) == {0: (2, 4)}
    expected = [(0, b"a"), (1, b"b"), (2, b"new"), (3, b"er")]
    assert read(orders) == expected
    orders.back(leader)
    orders.reopen()
    _, answer = write_by_task(orders, [b"end"], batch=3, acks=-1)
    assert offsets(answer) == {0: (4, 5)}
    orders.append("orders", {1: 1}, batch=0, query="other")
    orders.reopen()
    assert read(orders) == [*expected, (4, b"end")]
    assert described(orders).leader_epoch == 2 and set(described(orders).isr) == {0, 1, 2}
    assert lost.id.name in orders.held_by("orders", leader)  # garbage: named by nothing
    for broker in others:
        assert lost.id.name not in orders.held_by("orders", broker)


def unread(store) -> list:
    handle = store.cluster.lookup("orders")
    ledger, _ = store.cluster.topic_state(handle)
    with ledger.lock:
        return [s for number in (0, 1) for s in ledger.state.sections(handle.topic_id, number, (5, 2)[number], 100)]


def test_a_batch_that_was_cut_is_appended_again_by_its_replay(orders) -> None:
    leader = described(orders).leader
    others = {0, 1, 2} - {leader}
    offsets(orders.append("orders", {0: 3}, batch=0, holders={leader}, acks=1))
    orders.away(leader)
    offsets(orders.append("orders", {0: 1}, batch=0, query="other", holders=others))
    orders.reopen()
    assert offsets(orders.append("orders", {0: 3}, batch=0, holders=others)) == {0: (1, 4)}
    assert orders.high_watermarks("orders") == [4, 0]


def test_nothing_is_cut_while_the_leader_answers(orders) -> None:
    leader = described(orders).leader
    offsets(orders.append("orders", {0: 3}, batch=0, holders={leader}, acks=1))
    assert offsets(orders.append("orders", {0: 1}, batch=1)) == {0: (3, 4)}
    assert orders.high_watermarks("orders") == [4, 0]
    assert described(orders).leader_epoch == 0


def test_nothing_is_cut_where_too_few_replicas_would_stay(orders) -> None:
    orders.create("strict", config={"min.insync.replicas": "3"})
    leader = orders.controller.describe_topic("strict").partitions[0].leader
    offsets(orders.append("strict", {0: 3}, batch=0, holders={leader}, acks=1))
    orders.away(leader)
    refused = orders.append("strict", {0: 1}, batch=1, holders={0, 1, 2} - {leader})
    assert refused.error is not None and refused.error.code.name == "NOT_ENOUGH_REPLICAS"
    orders.back(leader)
    orders.reopen()
    assert offsets(orders.append("strict", {0: 1}, batch=1)) == {0: (3, 4)}
    assert orders.high_watermarks("strict") == [4]


def test_an_append_whose_own_rows_are_gone_is_refused_and_decides_nothing(orders) -> None:
    made = orders.put("orders", {0: 1}, {0})
    orders.away(0)
    refused = orders.append("orders", {}, batch=0, objects=(made,))
    assert refused.error is not None and refused.error.code.name == "NOT_ENOUGH_REPLICAS"
    now = described(orders)
    assert (now.log_end_offset, now.leader_epoch, now.isr) == (0, 0, (0, 1, 2))


def test_a_cut_whose_answer_is_lost_is_made_once(orders, faults) -> None:
    leader = described(orders).leader
    others = {0, 1, 2} - {leader}
    offsets(orders.append("orders", {0: 3}, batch=0, holders={leader}, acks=1))
    made = orders.put("orders", {0: 1}, others)
    orders.away(leader)
    with faults(orders) as broken:
        broken.lose_answers = True
        unknown = orders.append("orders", {}, batch=0, query="other", objects=(made,))
        assert unknown.error is not None
    orders.reopen()
    # Whatever of it was decided: the repetition finds it, and the rows that are lost are gone once.
    again = orders.append("orders", {}, batch=0, query="other", objects=(made,))
    assert again.error is None, again.error
    assert orders.high_watermarks("orders") == [1, 0]
    assert sum(section.row_count for section in orders.sections("orders")) == 1


def test_two_coordinators_that_lose_the_leader_at_once_cut_once_and_both_are_written(orders) -> None:
    leader = described(orders).leader
    others = {0, 1, 2} - {leader}
    offsets(orders.append("orders", {0: 3}, batch=0, holders={leader}, acks=1))
    second = type(orders)(orders.path, orders.config)
    batches = {"a": orders.put("orders", {0: 2}, others), "b": orders.put("orders", {0: 4}, others)}
    orders.away(leader)
    answers = {}

    def commit(store, query) -> None:
        answers[query] = store.append("orders", {}, batch=0, query=query, objects=(batches[query],))

    threads = [threading.Thread(target=commit, args=arguments) for arguments in ((orders, "a"), (second, "b"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    ranges = sorted(bounds for answer in answers.values() for bounds in offsets(answer).values())
    assert ranges in ([(0, 2), (2, 6)], [(0, 4), (4, 6)])
    orders.reopen()
    assert orders.high_watermarks("orders") == [6, 0]
    assert described(orders).leader_epoch == 2


def test_a_leader_whose_root_hangs_is_lost_too_and_its_followers_are_not_blamed(orders, faults) -> None:
    leader = described(orders).leader
    others = {0, 1, 2} - {leader}
    offsets(orders.append("orders", {0: 3}, batch=0, holders={leader}, acks=1))
    made = orders.put("orders", {0: 1}, others)
    with faults(orders, CoordinatorConfig(replica_lag_time_max_ms=300)) as broken:
        broken.stores[leader].hung.clear()  # every call to this root blocks, as on a dead NFS mount
        answer = orders.append("orders", {}, batch=0, query="other", objects=(made,))
        broken.stores[leader].hung.set()
        assert offsets(answer) == {0: (0, 1)}
    orders.reopen()
    assert (set(described(orders).isr), described(orders).high_watermark) == (others, 1)


def test_brokers_that_are_fenced_together_give_up_their_rows_one_after_the_other(orders, monkeypatch) -> None:
    orders.controller.create_topic("pairs", assignment=[[0, 2], [2, 1]])
    for partition, holder in enumerate((0, 2)):
        offsets(orders.append("pairs", {partition: 3}, batch=partition, holders={holder}, acks=1))
    fences = tuple(encode_command(BrokerFence(broker_id, True)) for broker_id in (0, 2))
    orders.cluster.cluster_ledger.append(lambda _: fences, timeout_ms=30_000)
    monkeypatch.setattr("spark_replog.admin.admin.roots_there", lambda *_: set())
    ledger = orders.cluster.topic_ledger(orders.cluster.lookup("pairs").ledger_id)
    assert settle_fences(orders.cluster, ledger, 30_000)
    assert not settle_fences(orders.cluster, ledger, 30_000)
    now = orders.controller.describe_topic("pairs").partitions
    assert [(state.isr, state.leader, state.log_end_offset) for state in now] == [((2,), -1, 0), ((1,), 1, 0)]


def elect_by_append(store, others) -> None:
    offsets(store.append("orders", {0: 1}, batch=0, query="other", holders=others))


def elect_by_loop(store, others) -> None:
    assert CoordinatorLoop(store.cluster).run_once().failover_count == 1


def elect_by_fence(store, others) -> None:
    (gone,) = {0, 1, 2} - others
    store.cluster.cluster_ledger.append(lambda _: encode_command(BrokerFence(gone, True)), timeout_ms=30_000)
    assert settle_fences(store.cluster, store.cluster.topic_ledger(store.cluster.lookup("orders").ledger_id), 30_000)


def elect_by_repair(store, others) -> None:
    (gone,) = {0, 1, 2} - others
    assert repair(store).roots[gone].is_repaired


ELECTIONS = [elect_by_append, elect_by_loop, elect_by_fence, elect_by_repair]


@pytest.mark.parametrize("elect", ELECTIONS)
@pytest.mark.parametrize("reach", ["one", "both"])
def test_rows_whose_copies_nobody_reported_are_found_and_kept(orders, elect, reach, caplog) -> None:
    leader = described(orders).leader
    others = {0, 1, 2} - {leader}
    copied = others if reach == "both" else {max(others)}
    made = orders.put("orders", {0: 3}, {leader, *copied})
    # The writer died after the answer to acks=1 and before it reported its other puts.
    offsets(orders.append("orders", {}, batch=0, objects=(replace(made, holders=frozenset({leader})),), acks=1))
    orders.away(leader)
    elect(orders, others)
    orders.reopen()
    count = 3 + (elect is elect_by_append)
    assert described(orders).log_end_offset == count and told_cuts(caplog) == []
    offsets(orders.append("orders", {0: 2}, batch=1, holders=others))
    assert orders.high_watermarks("orders") == [count + 2, 0]
    assert made.id.name in {section.object.id.name for section in orders.sections("orders")}


@pytest.mark.parametrize("elect", ELECTIONS)
def test_a_copy_that_is_not_whole_keeps_no_row(orders, elect, caplog) -> None:
    leader = described(orders).leader
    others = {0, 1, 2} - {leader}
    made = orders.put("orders", {0: 3}, {leader, *others})
    key = data_key(orders.cluster.lookup("orders").ledger_id, *made.id)
    for broker_id, body in zip(sorted(others), (b"x" * made.size_bytes, b"x"), strict=True):
        (orders.path / f"broker-{broker_id}" / key).write_bytes(body)
    offsets(orders.append("orders", {}, batch=0, objects=(replace(made, holders=frozenset({leader})),), acks=1))
    orders.away(leader)
    elect(orders, others)
    assert told_cuts(caplog) == ["3 rows were cut"]
    orders.reopen()
    offsets(orders.append("orders", {0: 2}, batch=1, holders=others))
    assert orders.high_watermarks("orders") == [2 + (elect is elect_by_append), 0]


def test_a_copy_that_this_process_put_and_that_is_damaged_since_keeps_no_row(orders, caplog) -> None:
    leader = described(orders).leader
    others = {0, 1, 2} - {leader}
    made = orders.put("orders", {0: 3}, {leader, *others})
    key = data_key(orders.cluster.lookup("orders").ledger_id, *made.id)
    for broker_id in others:
        put: Future[bool] = Future()
        put.set_result(True)
        orders.cluster.brokers.own_puts.begin(broker_id, key, put)
        (orders.path / f"broker-{broker_id}" / key).write_bytes(b"x" * made.size_bytes)
    offsets(orders.append("orders", {}, batch=0, objects=(replace(made, holders=frozenset({leader})),), acks=1))
    orders.away(leader)
    elect_by_loop(orders, others)
    assert told_cuts(caplog) == ["3 rows were cut"]


def test_a_root_that_hangs_is_not_waited_for_when_copies_are_looked_for(orders, faults) -> None:
    leader = described(orders).leader
    asked, hanging = sorted({0, 1, 2} - {leader})
    made = orders.put("orders", {0: 3}, {leader, asked, hanging})
    offsets(orders.append("orders", {}, batch=0, objects=(replace(made, holders=frozenset({leader})),), acks=1))
    ledger_id = orders.cluster.lookup("orders").ledger_id
    with faults(orders, CoordinatorConfig(replica_lag_time_max_ms=300)) as broken:
        ledger = orders.cluster.topic_ledger(ledger_id)
        ledger.refresh()
        broken.stores[hanging].hung.clear()
        CatchUp.of(orders.cluster).find_copies(ledger, {leader})
        (lacked,) = ledger.ask(lambda state: state.under_replicated())
        broken.stores[hanging].hung.set()
    assert (lacked.object.holders, set(lacked.missing)) == ({leader, asked}, {hanging})


class Reading:
    """A root that reads one data object after the other, each for some time.

    ``most`` counts the calls that wait or read at the same time.
    """

    def __init__(self, store, seconds: float = 0.0) -> None:
        self._store = store
        self._seconds = seconds
        self._turn, self._lock = threading.Lock(), threading.Lock()
        self.count = self.most = self._now = 0

    def __getattr__(self, name):
        return getattr(self._store, name)

    def get(self, key, **more):
        if "/data/" not in key:
            return self._store.get(key, **more)
        with self._lock:
            self.count, self._now = self.count + 1, self._now + 1
            self.most = max(self.most, self._now)
        with self._turn:
            time.sleep(self._seconds)
            content = self._store.get(key, **more)
        with self._lock:
            self._now -= 1
        return content


def append_unreported(store, count: int, holders, reported, topic: str = "orders") -> None:
    """Append objects that lie on some roots, and of which the log knows some of these."""
    for batch in range(count):
        made = store.put(topic, {0: 1}, holders)
        objects = (replace(made, holders=frozenset(reported)),)
        offsets(store.append(topic, {}, batch=batch, query="unreported", objects=objects, acks=1))


def watch(store, broker_ids, seconds: float = 0.0) -> dict[int, Reading]:
    stores = store.cluster.brokers.stores
    made = {broker_id: Reading(store.cluster.brokers.store(broker_id), seconds) for broker_id in broker_ids}
    stores.update(made)
    return made


def test_many_copies_are_looked_for_a_few_at_a_time_however_long_all_of_them_take(orders) -> None:
    # Whole objects are read. All at once they would need much memory, and together more than the time of one.
    leader = described(orders).leader
    others = {0, 1, 2} - {leader}
    append_unreported(orders, 6, {leader, *others}, {leader})
    orders.away(leader)
    orders.config = replace(FAST, replica_lag_time_max_ms=3000, num_replica_fetchers=2)
    orders.reopen()
    watched = watch(orders, others, 0.6)
    ledger = orders.cluster.topic_ledger(orders.cluster.lookup("orders").ledger_id)
    assert fail_over(orders.cluster, CatchUp.of(orders.cluster), ledger, {leader})
    assert described(orders).log_end_offset == 6 and orders.high_watermarks("orders") == [6, 0]
    assert [reading.most for reading in watched.values()] == [2, 2]


def test_copies_of_rows_that_are_cut_anyway_are_not_looked_for(orders) -> None:
    leader = described(orders).leader
    others = {0, 1, 2} - {leader}
    append_unreported(orders, 12, {leader}, {leader})
    orders.away(leader)
    watched = watch(orders, others)
    ledger = orders.cluster.topic_ledger(orders.cluster.lookup("orders").ledger_id)
    assert fail_over(orders.cluster, CatchUp.of(orders.cluster), ledger, {leader})
    assert described(orders).log_end_offset == 0
    assert [reading.count for reading in watched.values()] == [orders.config.num_replica_fetchers] * 2


def test_copies_are_not_looked_for_each_time_while_nothing_may_be_cut(orders) -> None:
    orders.create("strict", config={"min.insync.replicas": "3"})
    leader = orders.controller.describe_topic("strict").partitions[0].leader
    others = {0, 1, 2} - {leader}
    append_unreported(orders, 1, {leader}, {leader}, "strict")
    orders.away(leader)
    watched = watch(orders, others)
    ledger = orders.cluster.topic_ledger(orders.cluster.lookup("strict").ledger_id)
    assert not fail_over(orders.cluster, CatchUp.of(orders.cluster), ledger, {leader})
    assert [reading.count for reading in watched.values()] == [0, 0]


def test_a_process_that_fenced_a_broker_before_fences_it_again_and_looks_for_copies(orders, caplog) -> None:
    leader = described(orders).leader
    others = {0, 1, 2} - {leader}
    slept = BrokerAdmin(orders.cluster)
    slept.fence(leader)
    # Another process takes the broker back. It leads, and its rows are the newest.
    orders.reopen()
    BrokerAdmin(orders.cluster).unfence(leader)
    offsets(orders.append("orders", {0: 1}, batch=0, query="other"))
    CatchUp.of(orders.cluster).readmit(orders.cluster.topic_ledger(orders.cluster.lookup("orders").ledger_id))
    assert set(described(orders).isr) == {0, 1, 2}
    append_unreported(orders, 1, {leader, *others}, {leader})
    orders.away(leader)
    slept.fence(leader)
    orders.reopen()
    assert set(described(orders).isr) == others
    assert described(orders).log_end_offset == 2 and told_cuts(caplog) == []


@pytest.fixture
def five(tmp_path, orders):
    """Of five roots two may be lost; each partition has three replicas."""
    path = tmp_path / "five"
    init_cluster(str(path), 5, fsync=False)
    store = type(orders)(path, FAST)
    store.create("orders")
    return store


def by_look(store, gone: int, target: int) -> None:
    ledger = store.cluster.topic_ledger(store.cluster.lookup("orders").ledger_id)
    ledger.refresh()
    CatchUp.of(store.cluster).find_copies(ledger, {gone})


def by_readmission(store, gone: int, target: int) -> None:
    ledger = store.cluster.topic_ledger(store.cluster.lookup("orders").ledger_id)
    ledger.refresh()
    assert not CatchUp.of(store.cluster).readmit(ledger)


@pytest.mark.parametrize("record", [by_look, by_readmission])
def test_a_copy_counts_not_if_its_root_is_rebuilt_before_it_is_reported(five, record, monkeypatch) -> None:
    gone, target, other = described(five).isr
    append_unreported(five, 1, {gone, target}, {gone})
    ledger = five.cluster.topic_ledger(five.cluster.lookup("orders").ledger_id)
    if record is by_readmission:
        ledger.append(lambda _: encode_command(IsrChange(None, target, False, 0)), timeout_ms=30_000)
    decide = Ledger.append

    def slow(self, *given, **more):
        """Sleep before the copy is reported, while its root is lost and rebuilt without the only known copy."""
        monkeypatch.setattr(Ledger, "append", decide)
        lose(five, target)
        opened = Cluster.open(str(five.path), config=FAST)
        opened.brokers.stores[gone] = away = FaultyStore(opened.brokers.store(gone))
        away.is_down = True
        report = StoreRepair(opened).run()
        assert report.roots[target].journal_records and not report.roots[target].is_repaired
        return decide(self, *given, **more)

    monkeypatch.setattr(Ledger, "append", slow)
    record(five, gone, target)
    five.reopen()
    ledger = five.cluster.topic_ledger(ledger.ledger_id)
    ledger.refresh()
    (lacked,) = ledger.ask(lambda state: state.under_replicated(include_out_of_sync=True))
    assert (lacked.object.holders, set(lacked.missing)) == ({gone}, {target, other})
    assert lacked.object.id.name not in five.held_by("orders", target)


def test_an_election_waits_for_metadata_roots_as_every_decision_does(orders, faults, monkeypatch) -> None:
    leader = described(orders).leader
    others = {0, 1, 2} - {leader}
    append_unreported(orders, 1, {leader, *others}, {leader})
    orders.away(leader)
    monkeypatch.setattr(cluster, "LedgerSettings", partial(LedgerSettings, quorum_timeout_ms=100))
    with faults(orders, FAST) as broken:
        ledger = orders.cluster.topic_ledger(orders.cluster.lookup("orders").ledger_id)
        ledger.refresh()
        refresh = ledger.refresh

        def hang():
            """The first read finds too few roots. Then they are back."""
            monkeypatch.setattr(ledger, "refresh", refresh)
            for broker_id in others:
                broken.stores[broker_id].hung.clear()
            try:
                return refresh()
            finally:
                for broker_id in others:
                    broken.stores[broker_id].hung.set()

        monkeypatch.setattr(ledger, "refresh", hang)
        assert fail_over(orders.cluster, CatchUp.of(orders.cluster), ledger, {leader})
    assert described(orders).log_end_offset == 1
