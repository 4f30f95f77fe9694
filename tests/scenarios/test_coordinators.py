"""Several coordinators on one ledger, and what a commit costs in storage calls."""

from __future__ import annotations

import itertools
import json
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import pyarrow.compute as pc
import pytest

import spark_replog
from spark_replog.admin.controller import Controller
from spark_replog.cluster import cluster
from spark_replog.log.model import Outcome
from spark_replog.storage.brokers import BrokerSet
from tests.at_rest import wait_at_rest
from tests.waiting import wait_until

KIT = Path(__file__).with_name("conftest.py")
WRITER = """
import importlib.util, json, sys
from pathlib import Path
spec = importlib.util.spec_from_file_location("kit", sys.argv[1])
kit = importlib.util.module_from_spec(spec)
spec.loader.exec_module(kit)
store = kit.LocalStore(Path(sys.argv[2]), kit.FAST)
query, batches = sys.argv[3], int(sys.argv[4])
offsets = []
print("ready", flush=True)
sys.stdin.readline()
for batch in range(batches):
    rows = {0: 1 + batch % 3, batch % 2: 2}
    response = store.append("orders", rows, batch=batch, query=query)
    if response.error is not None:
        raise response.error
    offsets += [(p, *r) for (_, p), r in response.result.base_offsets.items()]
print(json.dumps(offsets))
"""


@pytest.mark.guarantee("G5")
def test_two_processes_append_to_one_topic(store) -> None:
    batches = 25
    store.create("orders", 2)
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(KIT), str(store.path), f"query-{number}", str(batches)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(2)
    ]
    for writer in writers:
        assert writer.stdout is not None and writer.stdout.readline() == "ready\n"
    told = []
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    for writer in writers:
        out, _ = writer.communicate(timeout=180)
        assert writer.returncode == 0
        told += [tuple(answer) for answer in json.loads(out)]
    # Every acknowledged range is where it was said to be; together they are dense and meet nowhere.
    for partition in (0, 1):
        ranges = sorted((base, end) for number, base, end in told if number == partition)
        assert ranges[0][0] == 0
        assert all(before[1] == after[0] for before, after in itertools.pairwise(ranges))
        assert store.high_watermarks("orders")[partition] == ranges[-1][1]
        spans = [(span.base_offset, span.base_offset + span.row_count) for span in store.sections("orders", partition)]
        assert spans == ranges


RESTARTED = """
import importlib.util, sys
from pathlib import Path
spec = importlib.util.spec_from_file_location("kit", sys.argv[1])
kit = importlib.util.module_from_spec(spec)
spec.loader.exec_module(kit)
store = kit.LocalStore(Path(sys.argv[2]), kit.FAST)
commits = Path(sys.argv[3])
commits.mkdir(exist_ok=True)
print("ready", flush=True)
for batch in range(len(list(commits.iterdir())), 10**6):
    response = store.append("orders", {0: batch % 7 + 1}, batch=batch, run=sys.argv[4])
    if response.error is not None:
        raise response.error
    (commits / str(batch)).touch()
"""


@pytest.mark.guarantee("G3")
def test_a_driver_killed_at_any_moment_repeats_its_batch(store) -> None:
    """Kill -9 between writing objects, ENTRY, and the commit file; the next run replays what has no file."""
    store.create("orders")
    commits = store.path / "commits"
    random_seconds, run = random.Random(7), 0
    while run < 6 or (run < 60 and not any(commits.iterdir())):  # a busy machine commits nothing so soon
        with subprocess.Popen(
            [sys.executable, "-c", RESTARTED, str(KIT), str(store.path), str(commits), f"run-{run}"],
            stdout=subprocess.PIPE,
            text=True,
        ) as driver:
            assert driver.stdout is not None and driver.stdout.readline() == "ready\n"
            time.sleep(random_seconds.uniform(0.02, 0.2) * (1 + run // 6))
            driver.kill()
        run += 1
    committed = len(list(commits.iterdir()))
    assert committed > 0
    store.reopen()
    rows = [section.row_count for section in store.sections("orders")]
    assert len(rows) in (committed, committed + 1)  # the last batch may be in without its commit file
    assert rows == [batch % 7 + 1 for batch in range(len(rows))]


RESTARTED_SINK = """
import pickle, sys
from pathlib import Path
import pyarrow as pa, pytest
from tests.scenarios.sink_query import Query
class Store:
    path = sys.argv[1]
commits = Path(sys.argv[2])
query = Query(Store, pytest.MonkeyPatch())
print("ready", flush=True)
for batch in range(len(list(commits.iterdir())), 10**6):
    query.batch_id = batch
    ids = range(batch * 10, batch * 10 + batch % 7 + 1)
    rows = pa.record_batch({"id": pa.array(ids, pa.int64()), "note": [f"note {number}" for number in ids]})
    message = pickle.loads(pickle.dumps(query.plan().write(iter([rows]))))
    query.commit(message)
    (commits / str(batch)).touch()
"""


@pytest.mark.guarantee("G3")
@pytest.mark.parametrize("runs", [3, pytest.param(40, marks=pytest.mark.wide)])
def test_a_sink_of_a_typed_topic_killed_at_any_moment_writes_each_row_once(store, runs) -> None:
    """Kill -9 at any moment of a query's tasks and commits, while the topic also gets another version of its columns.

    The program is the sink's own, from the columns of a task to the entry.
    """
    store.create("orders", 2, schema="id BIGINT NOT NULL, note STRING", key=["id"])
    commits = store.path / "commits"
    commits.mkdir()

    def counts():
        return len(list(commits.iterdir())), sum(1 for _ in (store.path / "broker-0").rglob("*.arrow"))

    for run in range(runs):
        commit_count, object_count = counts()
        with subprocess.Popen(
            [sys.executable, "-c", RESTARTED_SINK, str(store.path), str(commits)], stdout=subprocess.PIPE, text=True
        ) as driver:
            assert driver.stdout is not None and driver.stdout.readline() == "ready\n"
            if run % 2 == 0:  # some batches on; every other kill comes right after a file of rows, before its entry
                wait_until(lambda least=commit_count + 1 + run % 3: counts()[0] >= least)
            else:
                wait_until(lambda least=object_count: counts()[1] > least)
            driver.kill()
        if run == runs // 2:
            store.controller.evolve_schema("orders", "id BIGINT NOT NULL, note STRING, more INT")
    committed = len(list(commits.iterdir()))
    assert committed > 0
    columns = ["id", "note", "_replog_partition", "_replog_offset"]
    rows = spark_replog.open(str(store.path)).topic("orders").scan(columns=columns).to_arrow()
    written = [batch * 10 + number for batch in range(committed + 1) for number in range(batch % 7 + 1)]
    last = committed % 7 + 1  # the last batch may be in without its commit file
    assert sorted(rows["id"].to_pylist()) in (written, written[:-last])
    assert set(rows["note"].to_pylist()) == {f"note {number}" for number in rows["id"].to_pylist()}
    for partition, end in enumerate(store.high_watermarks("orders")):
        here = rows.filter(pc.equal(rows["_replog_partition"], partition))
        assert sorted(here["_replog_offset"].to_pylist()) == list(range(end))


def test_threads_of_one_process_share_entries(store) -> None:
    store.create("orders", 1)
    store.append("orders", {0: 1}, batch=0, query="first")
    objects = {number: (store.put("orders", {0: 1}, {0, 1, 2}),) for number in range(16)}
    start = threading.Barrier(16)
    responses = {}

    def write(number: int) -> None:
        start.wait()
        responses[number] = store.append("orders", {}, batch=0, query=f"query-{number}", objects=objects[number])

    threads = [threading.Thread(target=write, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(response.result.outcome is Outcome.APPLIED for response in responses.values())
    assert store.high_watermarks("orders") == [17]
    bases = sorted(base for response in responses.values() for base, _ in response.result.base_offsets.values())
    assert bases == list(range(1, 17))


class CountingStore:
    """Counts the verbs that a root is asked for."""

    def __init__(self, store: object) -> None:
        self.store = store
        self.url = store.url  # type: ignore[attr-defined]
        self.calls: list[tuple[str, str]] = []

    def __getattr__(self, name: str) -> object:
        verb = getattr(self.store, name)

        def call(key: str, *args: object, **more: object) -> object:
            self.calls.append((name, key.split("/")[2] if key.startswith("ledgers/") else key))
            return verb(key, *args, **more)

        return call


@pytest.fixture
def counted(store, monkeypatch: pytest.MonkeyPatch):
    """Reopen the store so that every root counts its calls; returns take(): calls per root since.

    A view is as good as new for an hour: the cluster's ledger is not read by the clock.
    """
    opened, cluster_id = BrokerSet.store, store.cluster.brokers.cluster_id
    counters: dict[int, CountingStore] = {}

    def counting(self: BrokerSet, broker_id: int) -> CountingStore:
        if self.cluster_id != cluster_id:  # threads of other tests' stores may still run
            return opened(self, broker_id)  # type: ignore[return-value]
        if broker_id not in counters:
            counters[broker_id] = CountingStore(opened(self, broker_id))
        return counters[broker_id]

    store.create("orders", 4)
    monkeypatch.setattr(BrokerSet, "store", counting)
    monkeypatch.setattr(cluster, "ACCESS_AGE_MS", 3_600_000)
    store.reopen()

    def take() -> list[list[tuple[str, str]]]:
        wait_at_rest(store.cluster.brokers)
        calls = [counter.calls[:] for _, counter in sorted(counters.items())]
        for counting_store in counters.values():
            counting_store.calls.clear()
        return calls

    return take


@pytest.mark.guarantee("G9")
def test_a_commit_costs_one_create_round(store, counted) -> None:
    objects = [(store.put("orders", {0: 1, 1: 1, 2: 1, 3: 1}, {0, 1, 2}),) for _ in range(7)]
    for batch in range(4):
        store.append("orders", {}, batch=batch, objects=objects[batch])
    counted()
    for batch in (4, 5, 6):
        assert store.append("orders", {}, batch=batch, objects=objects[batch]).error is None
        # The owner of the newest epoch reads no record: a create at the next position proves it still is, and the
        # look for a marker behind it that the position was not deleted before.
        assert counted() == [[("create", "journal"), ("get", "markers")]] * 3


@pytest.mark.guarantee("G9")
def test_an_owner_change_costs_two_create_rounds(store, counted) -> None:
    objects = [(store.put("orders", {0: 1}, {0, 1, 2}),) for _ in range(3)]
    store.append("orders", {}, batch=0, objects=objects[0])
    store.reopen()
    store.cluster.lookup("orders")
    ledger = store.cluster.topic_ledger(store.cluster.lookup("orders").ledger_id)
    assert store.append("orders", {}, batch=1, objects=objects[1]).error is None
    assert (ledger.stats.entries, ledger.stats.claims) == (1, 1)
    assert store.append("orders", {}, batch=2, objects=objects[2]).error is None
    assert (ledger.stats.entries, ledger.stats.claims) == (2, 1)


@pytest.mark.guarantee("G9")
def test_looking_at_an_idle_topic_costs_one_get_a_root(store, counted) -> None:
    handle = store.cluster.lookup("orders")
    for _ in range(3):
        store.cluster.topic_state(handle)
        counted()
    for _ in range(3):
        assert store.cluster.lookup("orders") == handle
        store.cluster.topic_state(handle)
        assert counted() == [[("get", "journal")]] * 3


def test_a_duplicate_writes_nothing(store, counted) -> None:
    objects = (store.put("orders", {0: 1}, {0, 1, 2}),)
    store.append("orders", {}, batch=0, objects=objects)
    counted()
    assert store.append("orders", {}, batch=0, objects=objects).result.outcome is Outcome.DUPLICATE
    assert [verb for calls in counted() for verb, _ in calls if verb == "create"] == []


def test_describe_reads_both_ledgers(store, counted) -> None:
    for _ in range(3):
        Controller(store.cluster).describe_topic("orders")
        counted()
    Controller(store.cluster).describe_topic("orders")
    assert counted() == [[("get", "journal")] * 2] * 3
