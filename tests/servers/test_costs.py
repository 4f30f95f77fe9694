"""What docs/storage.md says that each step costs, counted before real servers, where the requests arrive."""

from __future__ import annotations

import re
import time
from collections import Counter
from contextlib import ExitStack
from types import SimpleNamespace
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from spark_replog.admin.controller import Controller
from spark_replog.client.consumer import Consumer
from spark_replog.client.producer import Producer
from spark_replog.cluster.cluster import Cluster
from spark_replog.cluster.journal_peek import PEEKS_PER_READ
from spark_replog.spark.data_source import ReplogDataSource
from spark_replog.storage.open_store import open_store
from tests.at_rest import wait_at_rest
from tests.http_fault_proxy import HttpFaultProxy
from tests.servers.conftest import on_few
from tests.servers.stores import RealRoots
from tests.unit.spark.sink_writes import Writes

ROOTS = COPIES = 3
TASKS = 2
ATTEMPTS = 60
"""More than two seconds of them: for that time a writer that has seen another's entry reads before it appends."""
FIRST_RECORDS = 12
"""A cold open gets so many records of the cluster's ledger from each root, before it knows how many there are."""
LOOK_MS, IDLE_MS = 100, 1_000
"""A waiting consumer's pauses are longer than this after so long without rows (8 x); each look is then one get."""
STEPS = {"CREATE": "create", "GETFILESTATUS": "get", "LISTSTATUS": "list", "RENAME": None, "OPEN": None}
"""Operations of WebHDFS. A create is also a RENAME, and a get of bytes an OPEN; others stand for themselves."""


def verb_of(method, query):
    if "op" in query:
        return STEPS.get(query["op"][0], query["op"][0])
    if method == "GET" and query.keys() & {"list-type", "prefix", "comp"}:
        return "list"
    return {"GET": "get", "PUT": "create", "POST": "create"}.get(method, method)


class Counted:
    """Roots on one server, each behind a proxy that counts."""

    def __init__(self, real, stack):
        self._proxies = [stack.enter_context(HttpFaultProxy(real.port, one_at_a_time=False)) for _ in range(ROOTS)]
        self.roots = RealRoots.of(real, ROOTS, ports=[proxy.port for proxy in self._proxies])
        self.options = {f"storage.{name}": value for name, value in self.roots.options.items()}
        cluster = self.roots.make("orders").cluster
        self._brokers = cluster.brokers
        self._names = {cluster.cluster_ledger.ledger_id: "cluster", cluster.lookup("orders").ledger_id: "topic"}
        topics = 1
        while len(set(self.record_counts("cluster"))) > 1:
            topics += 1
            assert topics < ATTEMPTS, "a root never gets all records"
            # Not by a command, which ends before a slow root has taken its last record.
            Controller(cluster).create_topic(f"more-{topics}", 1)

    def open(self):
        return Cluster.open(self.roots.path, self.roots.options)

    def of(self, call):
        """Return what a call returns, and how many requests of each verb arrived for what."""
        self._settle()
        for proxy in self._proxies:
            proxy.requests.clear()
        returned = call()
        self._settle()
        return returned, Counter(filter(None, map(self._step_of, self._requests())))

    def costs(self, call, expected):
        """Fail unless two of some calls cost just this: where a root answers late, requests more come or come later.

        A look at the cluster's ledger, of which there is one a second at most, is left out.
        """
        costs_seen = []
        while costs_seen.count(expected) < 2:
            cost = self.of(call)[1]
            if cost["get cluster journal"] <= ROOTS and not cost["get cluster out"]:
                del cost["get cluster journal"], cost["get cluster markers"]
            costs_seen.append(cost)
            assert len(costs_seen) < ATTEMPTS, costs_seen

    def record_counts(self, ledger="topic"):
        """Return how many records of a ledger each root has; one that answered late lacks the last until the next."""
        self._settle()
        folder = next(f"ledgers/{name}/journal/" for name, short in self._names.items() if short == ledger)
        stores = [open_store(path, self.roots.options) for path in self.roots.path.split(",")]
        return [sum(1 for _ in store.list_keys(folder)) for store in stores]

    def _requests(self):
        return [request for proxy in self._proxies for request in list(proxy.requests)]

    def _settle(self):
        """Wait until the slowest root has answered all requests too: the next call finds all roots equal."""
        wait_at_rest(self._brokers)

    def _step_of(self, request):
        """Return the verb and what for; None for a further request of a step.

        A create of Google's has the name in its body, so all creates count as one kind.
        """
        method, target = request
        path, query = unquote(urlsplit(target).path), parse_qs(urlsplit(target).query)
        verb = verb_of(method, query)
        if verb in ("create", None):
            return verb
        kind = re.search(r"ledgers/(\w+)/(\w+)", query.get("prefix", [path])[0])
        return f"{verb} {self._names[kind[1]]} {kind[2]}" if kind else f"{verb} {path.rpartition('/')[2]}"


@pytest.fixture
def counted(real):
    with ExitStack() as stack:
        yield Counted(real, stack)


@on_few
@pytest.mark.guarantee("G9")
def test_a_micro_batch_and_an_idle_trigger(counted, monkeypatch):
    writes, numbers = Writes(SimpleNamespace(path=counted.roots.path), monkeypatch), iter(range(100))
    source = {"path": counted.roots.path, "subscribe": "orders", "startingoffsets": "earliest", **counted.options}
    reader = ReplogDataSource(source).streamReader(ReplogDataSource(source).schema())
    at = reader.initialOffset()

    def write():
        writes.run(next(numbers), *[[b"v"]] * TASKS, topic="orders", **counted.options)

    for _ in range(3):
        write()
    planned_and_committed = {"get topic journal": ROOTS, "get topic markers": ROOTS}
    counted.costs(write, {"create": TASKS * COPIES + ROOTS, **planned_and_committed})
    end = reader.latestOffset(at, reader.getDefaultReadLimit())
    counted.costs(lambda: reader.latestOffset(end, reader.getDefaultReadLimit()), {"get topic journal": ROOTS})
    write()
    newest, looked = counted.of(lambda: reader.latestOffset(end, reader.getDefaultReadLimit()))
    assert looked["get topic journal"] <= 2 * ROOTS and not looked["create"]
    counted.costs(lambda: reader.partitions(end, newest), {})
    tasks = reader.partitions(end, newest)
    counted.costs(lambda: [list(reader.read(task)) for task in tasks], {"get topic data": TASKS})
    assert sum(batch.num_rows for task in tasks for batch in reader.read(task)) == TASKS


@on_few
@pytest.mark.guarantee("G9")
def test_a_send_of_rows_in_an_object_and_in_the_entry(counted):
    for inline_bytes, copies in ((0, COPIES), (4096, 0)):
        with Producer(counted.open(), inline_max_bytes=inline_bytes) as producer:

            def send(producer=producer):
                producer.send("orders", b"v").result(60)

            for _ in range(3):
                send()
            counted.costs(send, {"create": copies + ROOTS, "get topic markers": ROOTS})


@on_few
@pytest.mark.guarantee("G9")
def test_a_cold_open_and_a_consumers_wait(counted):
    sent, records = 0, []
    with Producer(counted.open()) as producer:
        while sent < 8 or len(set(records)) > 1:
            assert sent < ATTEMPTS, records
            producer.send("orders", b"%d" % sent).result(60)
            sent, records = sent + 1, counted.record_counts()

    def open_cold():
        cluster = counted.open()
        cluster.topic_state(cluster.lookup("orders"))

    asked = {"cluster": FIRST_RECORDS, "topic": records[0] + 1}
    once = ("get {} out", "get {} markers", "list {} journal", "list {} snapshots")
    of_both = {step.format(ledger): ROOTS for step in once for ledger in asked}
    of_both |= {f"get {ledger} journal": ROOTS * count for ledger, count in asked.items()}
    counted.costs(open_cold, {"get replog.json": ROOTS, **of_both})
    with Consumer(counted.open(), "orders", auto_offset_reset="earliest") as consumer:
        assert len(consumer.poll(20_000)) == sent
        counted.costs(lambda: consumer.poll(0), {"get topic journal": ROOTS})
        assert len(consumer.poll(IDLE_MS)) == 0  # after this time each pause is above 100 ms
        began = time.monotonic()
        records, waited = counted.of(lambda: consumer.poll(2_000))
        waited_ms = (time.monotonic() - began) * 1000  # a busy machine returns late, and looks until then
    assert len(records) == 0 and all(step.startswith("get ") for step in waited)
    looks = waited_ms // LOOK_MS + 1
    assert waited["get topic journal"] <= looks + ROOTS * (looks // PEEKS_PER_READ + 1)
