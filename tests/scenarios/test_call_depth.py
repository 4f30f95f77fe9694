"""How many storage calls follow each other: over a network each costs a round trip, however many go side by side.

The stores hold every call until no other comes any more, then answer all that they hold: one round. Calls of one round
do not wait for each other's answers. A thread that comes late makes a round more, never one less, so the least of some
attempts is a bound.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections import Counter
from functools import partial

import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

import spark_replog
from spark_replog.client.producer import Producer
from spark_replog.cluster import cluster as cluster_module
from spark_replog.cluster.cluster import Cluster
from spark_replog.cluster.init_store import init_cluster
from spark_replog.commit.write_plan import make_write_plan
from spark_replog.config.coordinator import CoordinatorConfig
from spark_replog.ids import new_id
from spark_replog.maintenance.journal_scrub import scrub_journals
from spark_replog.maintenance.repair import RootCondition, StoreRepair
from spark_replog.maintenance.scrub import scrub
from spark_replog.monitor.store_monitor import StoreMonitor
from spark_replog.spark.data_source import ReplogDataSource, read_schema
from spark_replog.spark.options import Subscription
from spark_replog.spark.sink import sink
from spark_replog.spark.source import stream_reader
from spark_replog.spark.source.topics import view_topics
from spark_replog.storage.brokers import BrokerSet
from spark_replog.storage.open_store import open_store
from spark_replog.storage.paths import snapshot_folder
from spark_replog.storage.retrying_store import RetryingStore
from tests.at_rest import wait_at_rest
from tests.unit.spark.sink_writes import Task

QUIET_SECONDS_MIN, QUIET_SECONDS_MAX = 0.02, 0.5
ATTEMPTS = 15
"""On a busy machine a thread may come a round late: each attempt waits longer for it than the one before."""
ATTEMPTS_OF_A_STORE = 8
"""There a root may lack what was written last, and each read of that store costs more: then another one is made."""


class Rounds:
    """Counts the rounds in which calls are answered."""

    def __init__(self):
        self.count = self._held = 0
        self._quiet_seconds = QUIET_SECONDS_MIN
        self._changed = threading.Condition()
        self._is_over = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def attempts(self, first_count=0):
        """Yield numbers: of some attempts that only prepare, then of the others."""
        for number in range(first_count + ATTEMPTS):
            patience = 1.5 ** max(0, number - first_count)
            self._quiet_seconds = min(QUIET_SECONDS_MAX, QUIET_SECONDS_MIN * patience)
            yield number

    def hold(self):
        with self._changed:
            mine = self.count
            self._held += 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: self.count > mine or self._is_over)

    def _has_other(self, held):
        return self._held != held or self._is_over

    def end(self):
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self):
        with self._changed:
            while not self._is_over:
                self._changed.wait_for(lambda: self._held or self._is_over)
                held = -1
                while held != self._held:
                    held = self._held
                    self._changed.wait_for(partial(self._has_other, held), self._quiet_seconds)
                self._held = 0
                self.count += 1
                self._changed.notify_all()


class FarStore:
    """A root beyond a network."""

    def __init__(self, store, rounds):
        self._store, self._rounds, self.url = store, rounds, store.url.replace("memory://", "far://")

    def __getattr__(self, name):
        call = getattr(self._store, name)

        def held(*args, **how):
            self._rounds.hold()
            return call(*args, **how)

        return held

    def list_keys(self, prefix, *, after=""):
        self._rounds.hold()
        return self._store.list_keys(prefix, after=after)


@pytest.fixture
def rounds():
    made = Rounds()
    yield made
    made.end()


def store_with(send_count, writer_count=1, *topics, fsync=False):
    """Make a store whose topic's journals hold an entry for each send, and a claim for each change of the writer.

    Args:
        topics: others, without rows.
        fsync: as its root files have it.
    """
    url = f"memory://{new_id()}"
    init_cluster(url, 3, fsync=fsync)
    for topic in ("orders", *topics):
        spark_replog.open(url).admin().create_topic(topic, partitions=1, replicas=3)
    with contextlib.ExitStack() as stack:
        producers = [stack.enter_context(Producer(Cluster.open(url))) for _ in range(writer_count)]
        for number in range(send_count):
            producers[number % writer_count].send("orders", b"%d" % number).result(60)
    return url


def store_with_snapshots():
    """Make a store with a topic of two snapshots; the second names the first as decided."""
    path = store_with(20)
    writer, root = Cluster.open(path), open_store(BrokerSet.open(path).url(0))
    topic = writer.lookup("orders")
    with Producer(writer) as producer:
        for _ in range(2):
            producer.send("orders", b"x").result(60)
            writer.topic_ledger(topic.ledger_id).snapshot(timeout_ms=60_000)
    assert list(root.list_keys(snapshot_folder(topic.ledger_id)))
    return path


def records_of(path):
    """Return how many journal records the store's longest journal has."""
    keys = [info.key.rpartition("/")[0] for info in open_store(BrokerSet.open(path).url(0)).list_keys("ledgers/")]
    return max(Counter(key for key in keys if key.endswith("/journal")).values())


@pytest.fixture
def path():
    return store_with(3)


def far(path, rounds, metadata_max_age_ms=600_000):
    """Open the store with roots that are far away; reading their root files is one round that is not counted."""
    brokers = BrokerSet.open(path)
    for broker_id in brokers.broker_ids:
        raw = FarStore(open_store(brokers.url(broker_id), fsync=False), rounds)
        brokers.stores[broker_id] = RetryingStore(raw, deadline_ms=60_000)
    config = CoordinatorConfig(metadata_max_age_ms=metadata_max_age_ms)
    return Cluster(brokers, path=path, storage_options={}, config=config)


@pytest.mark.parametrize(
    ("send_count", "writer_count", "record_count", "depth_max"), [(3, 1, 4, 5), (33, 1, 33, 6), (99, 2, 200, 9)]
)
def test_a_cold_opens_depth_grows_little_with_the_journal(rounds, send_count, writer_count, record_count, depth_max):
    """Root files; then for the cluster's ledger and the topic's: snapshots and checks, records, marker.

    The first records of the cluster's ledger go beside its checks; the topic's snapshots and checks beside the marker
    of the cluster's ledger. From 16 entries on, heads of snapshots come before the records, beside the last of them.
    How many snapshots there are depends on the machine.
    """
    depths = []
    for number in rounds.attempts():
        if number % ATTEMPTS_OF_A_STORE == 0:
            path = store_with(send_count, writer_count)
            assert records_of(path) >= record_count
        before, cluster = rounds.count, far(path, rounds)
        cluster.topic_state(cluster.lookup("orders"))
        depths.append(1 + rounds.count - before)
        if min(depths) <= depth_max:
            break
    assert min(depths) <= depth_max, depths


def test_a_cold_open_gets_heads_of_snapshots_and_the_last_records_at_once(rounds):
    depths = []
    for number in rounds.attempts():
        if number % ATTEMPTS_OF_A_STORE == 0:
            path = store_with_snapshots()
        before, cluster = rounds.count, far(path, rounds)
        cluster.topic_state(cluster.lookup("orders"))
        depths.append(1 + rounds.count - before)
        if min(depths) <= 5:
            break
    assert min(depths) <= 5, depths


def test_a_first_read_finds_what_was_appended_after_its_preparation(path, rounds):
    """While the topic is looked up, its journal is listed already; that this shows its end is not an answer."""
    cluster = far(path, rounds)
    handle = cluster.lookup("orders")
    with Producer(Cluster.open(path)) as producer:
        producer.send("orders", b"new").result(60)
    _, topic = cluster.topic_state(handle)
    assert topic.partitions[0].high_watermark == 4


def look(cluster):
    StoreMonitor(cluster).look()


def verify(cluster):
    assert not scrub_journals(cluster).findings
    assert not scrub(cluster).findings


@pytest.mark.parametrize(
    ("command", "topics", "depth_max"),
    [(look, "", 8), (look, "abc", 11), (verify, "", 13), (verify, "abc", 20)],
)
def test_a_commands_depth_grows_little_with_topics(rounds, command, topics, depth_max):
    """`store info` and `doctor` look: a cold open, each root's replog.json, then all else. `store verify` reads all.

    What more topics add is that a root answers eight calls of a kind at once.
    """
    depths = []
    for number in rounds.attempts():
        if number % ATTEMPTS_OF_A_STORE == 0:
            path = store_with(3, 1, *topics)
        before, cluster = rounds.count, far(path, rounds)
        command(cluster)
        depths.append(1 + rounds.count - before)
        if min(depths) <= depth_max:
            break
    assert min(depths) <= depth_max, depths


def test_a_plan_of_a_repair_asks_all_roots_at_once(rounds):
    """Root files; of each root its replog.json and what says that it is out; each root again; then all journals."""
    depths, depth_max = [], 20
    for number in rounds.attempts():
        if number % ATTEMPTS_OF_A_STORE == 0:
            path = store_with(3, 1, *"abc", fsync=True)
        before, cluster = rounds.count, far(path, rounds)
        assert [root.condition for root in StoreRepair(cluster).plan()] == [RootCondition.OK] * 3
        depths.append(1 + rounds.count - before)
        if min(depths) <= depth_max:
            break
    assert min(depths) <= depth_max, depths


@pytest.mark.parametrize(
    ("inline_bytes", "metadata_max_age_ms", "depth"), [(0, 600_000, 3), (0, 80, 3), (4096, 600_000, 2)]
)
def test_a_send_is_an_object_an_entry_and_a_look_at_the_marker(path, rounds, inline_bytes, metadata_max_age_ms, depth):
    """The look behind the create is what makes a record count beside truncation (ADR 26); it cannot go before it.

    ACLs that are too old to be used are read beside the object's put. Rows in the entry need no object.
    """
    depths = []
    with Producer(far(path, rounds, metadata_max_age_ms), inline_max_bytes=inline_bytes) as producer:
        for _ in range(3):  # claims the ledger
            producer.send("orders", b"x").result(60)
        for _ in rounds.attempts():
            before = rounds.count
            producer.send("orders", b"x").result(60)
            depths.append(rounds.count - before)
            if min(depths) <= depth:
                break
    assert min(depths) == depth, depths


def plan(cluster, side):
    if side == "sink":
        make_write_plan(cluster, ["orders"])
    else:
        view_topics(cluster, Subscription(topics=("orders",)))


@pytest.mark.parametrize("side", ["source", "sink"])
def test_a_micro_batch_is_planned_by_one_look_at_acls_and_topics(path, rounds, side):
    depths, cluster = [], far(path, rounds, metadata_max_age_ms=80)
    plan(cluster, side)
    for _ in rounds.attempts():
        before = rounds.count
        plan(cluster, side)
        depths.append(rounds.count - before)
        if min(depths) == 1:
            break
    assert min(depths) == 1, depths


@pytest.mark.parametrize("side", ["source", "sink"])
def test_a_plan_after_each_append_of_another_process_is_two_rounds(path, rounds, side):
    """The process that plans is not the one that commits. It gets the new record and the next position, then the
    marker; while nothing is appended, one position of each root.
    """
    counts, cluster = [], far(path, rounds)
    gets = cluster.topic_ledger(cluster.lookup("orders").ledger_id).stats
    with Producer(Cluster.open(path)) as producer:
        plan(cluster, side)
        for _ in rounds.attempts(1):
            producer.send("orders", b"x").result(60)
            before, gets_before = rounds.count, gets.gets
            plan(cluster, side)
            counts.append((rounds.count - before, gets.gets - gets_before))
            if counts[-1] == (2, 2 * 3):
                break
    assert counts[-1] == (2, 2 * 3), counts
    plan(cluster, side)
    wait_at_rest(cluster.brokers)
    before = gets.gets
    plan(cluster, side)
    wait_at_rest(cluster.brokers)
    assert gets.gets - before == 3


@pytest.mark.parametrize(("limit", "depth"), [({}, 8), ({"maxoffsetspertrigger": "2"}, 6)])
def test_a_micro_batch_is_eight_rounds_and_six_when_the_query_lags(rounds, monkeypatch, limit, depth):
    """Newest offsets and plan: each a new entry and a marker; rows; object; entry; marker. A lagging query has no look
    for newest offsets.

    As Spark calls it, with a process each for the source, the plan and the commit. ACLs are not read again.
    """
    for module in (cluster_module, stream_reader):
        monkeypatch.setattr(module, "ACCESS_AGE_MS", 3_600_000)
    path, depths = store_with(30, 1, "out"), []
    processes, now = {name: far(path, rounds) for name in ("source", "plan", "commit")}, ["source"]
    monkeypatch.setattr(Cluster, "shared", classmethod(lambda *given: processes[now[0]]))
    task = Task(0, {"sql.streaming.queryId": "copy", "streaming.sql.batchId": "0", "spark.jobGroup.id": "run"})
    monkeypatch.setattr(sink.TaskContext, "get", lambda: task)
    source = ReplogDataSource({"path": path, "subscribe": "orders", "startingoffsets": "earliest", **limit})
    reader = source.streamReader(read_schema(include_headers=False))
    schema = StructType([StructField("value", BinaryType())])
    at = reader.initialOffset()
    with Producer(Cluster.open(path)) as producer:
        for batch in rounds.attempts(3):
            if not limit:
                producer.send("orders", b"x").result(60)
            now[0], before = "source", rounds.count
            end = reader.latestOffset(at, reader.getDefaultReadLimit())
            (part,) = reader.partitions(at, end)
            now[0] = "plan"
            writer = ReplogDataSource({"path": path, "topic": "out"}).streamWriter(schema, False)
            message = writer.write(rows.select(["value"]) for rows in reader.read(part))
            now[0], at = "commit", end
            writer.commit([message], batch)
            depths.append(rounds.count - before)
            if min(depths[3:], default=math.inf) <= depth:
                break
    assert min(depths[3:]) == depth, depths
