"""Metrics of a real store: what a scrape says, what it costs, and that rules and dashboard use names that exist."""

from __future__ import annotations

import errno
import gzip
import json
import re
import shutil
import threading
import urllib.error
import urllib.request
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as open_metrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as text_string_to_open_families
from prometheus_client.parser import text_string_to_metric_families

from spark_replog import Consumer, Producer
from spark_replog.admin.admin import BrokerAdmin
from spark_replog.cli import metrics as command
from spark_replog.health.metrics import METRICS, Sample
from spark_replog.ids import TopicPartition
from spark_replog.ledger.types import LedgerSettings
from spark_replog.monitor import store_monitor
from spark_replog.monitor.exporter import SCRAPE_AGE_MS, ClientCollector, StoreCollector, server_of
from spark_replog.monitor.store_monitor import ROOT_LOOK_INTERVAL_MS, StoreWatch
from tests.unit.client.consumer_setup import Store, rows, with_a_group

MARKER_CHECK_MS = LedgerSettings().marker_check_ms
CONF = Path(__file__).parents[3] / "conf"


@pytest.fixture
def store(tmp_path):
    return with_a_group(tmp_path / "store")


def scrape(source):
    """Values by name and labels, of a store's collector or of a registry."""
    data = source.text() if isinstance(source, StoreCollector) else generate_latest(source)
    families = text_string_to_metric_families(data.decode())
    return {(line.name, *sorted(line.labels.items())): line.value for family in families for line in family.samples}


def test_a_scrape_says_what_the_store_holds_and_how_its_readers_do(store):
    samples = scrape(StoreCollector(StoreWatch(store.cluster)))
    assert samples["replog_up",] == 1
    where = (("partition", "0"), ("topic", "orders"))
    assert samples["replog_partition_high_watermark", *where] == 10
    assert samples["replog_partition_in_sync_replicas", *where] == 3
    who = (("kind", "group"), *where[:1], ("reader", "billing"), where[1])
    assert (samples["replog_reader_lag_rows", *who], samples["replog_reader_position", *who]) == (6, 4)
    verdicts = {key[-1]: value for key, value in samples.items() if key[0] == "replog_reader_verdict"}
    assert verdicts[("verdict", "OK")] == 1 and sum(verdicts.values()) == 1
    assert [samples["replog_broker_up", ("broker", str(broker))] for broker in range(3)] == [1, 1, 1]


@pytest.fixture
def still_clock_of(monkeypatch):
    """For a store, time stands still but for what a test adds: else a marker is due at once on a slow machine."""

    def stop(store):
        began_ms, added_ms = store.clock.monotonic_ms(), store.clock.added_ms
        monkeypatch.setattr(store.clock, "monotonic_ms", lambda: began_ms + store.clock.added_ms - added_ms)
        return store

    return stop


@pytest.fixture
def still_clock(store, still_clock_of):
    return still_clock_of(store)


def test_both_texts_are_what_prometheus_client_makes_of_the_same_samples(store, still_clock):
    collector, registry = StoreCollector(StoreWatch(store.cluster)), CollectorRegistry()
    registry.register(collector)
    collector.samples()
    collector._answer[1]["replog_topic_rows"].append(Sample(('a "b" \\ c\n',), 12345678.5))
    assert collector.text() == generate_latest(registry)
    text = collector.text(is_open=True)
    assert text == open_metrics(registry)
    assert text.endswith(b"# EOF\n") and b"replog_ledger_entries_total{" in text and b"e+07" in text


def test_a_store_in_trouble_says_so(store):
    for broker in (0, 1):
        BrokerAdmin(store.cluster).fence(broker)
    samples = scrape(StoreCollector(StoreWatch(store.another_process().cluster)))
    assert samples["replog_findings", ("fault", "under-min-isr"), ("level", "critical")] >= 2
    assert samples["replog_broker_fenced", ("broker", "0")] == 1


def test_a_replica_whose_root_is_away_is_in_sync_and_does_not_serve(store, tmp_path, short_retries):
    (tmp_path / "store" / "broker-2").rename(tmp_path / "gone")
    samples = scrape(StoreCollector(StoreWatch(store.another_process().cluster)))
    where = (("partition", "0"), ("topic", "orders"))
    assert samples["replog_partition_in_sync_replicas", *where] == 3
    assert samples["replog_partition_serving_replicas", *where] == 2


def test_folders_in_which_a_store_is_looked_for_are_one_label(store):
    samples = scrape(StoreCollector(StoreWatch(store.another_process().cluster)))
    calls = {key[1:]: value for key, value in samples.items() if key[0] == "replog_storage_calls_total"}
    assert {dict(labels)["broker"] for labels in calls} == {"0", "1", "2", "none"}
    probes = [value for labels, value in calls.items() if dict(labels)["broker"] == "none"]
    assert probes == [1 + 13]  # the folder, and the names in it that are not roots


def test_a_root_that_goes_away_while_its_free_space_is_read_has_none(store, monkeypatch):
    def gone(path):
        raise OSError(errno.ESTALE, "Stale file handle", path)

    monkeypatch.setattr(shutil, "disk_usage", gone)
    samples = scrape(StoreCollector(StoreWatch(store.cluster)))
    assert samples["replog_up",] == samples["replog_broker_up", ("broker", "0")] == 1
    assert ("replog_broker_free_bytes", ("broker", "0")) not in samples


def test_a_failed_check_of_the_roots_is_made_again(store, monkeypatch):
    class AtOnce:
        def submit_to(self, _lane, function):
            done = Future()
            try:
                done.set_result(function())
            except MemoryError as error:
                done.set_exception(error)
            return done

    monkeypatch.setattr(store_monitor, "ROOT_LOOK_INTERVAL_MS", 0)
    watch = StoreWatch(store.cluster)
    watch.look()
    monkeypatch.setattr(store_monitor, "IO_POOL", AtOnce())
    with monkeypatch.context() as short_of_memory:
        short_of_memory.setattr(store_monitor, "look_at_roots", lambda *_: (_ for _ in ()).throw(MemoryError()))
        watch.look()
        with pytest.raises(MemoryError):
            watch.look()
    assert [broker.error for broker in watch.look().brokers] == [None, None, None]


def test_a_store_that_does_not_answer_is_down_and_nothing_else(store, tmp_path):
    registry = StoreCollector(StoreWatch(store.cluster))
    scrape(registry)
    store.clock.advance(SCRAPE_AGE_MS)
    for broker in (0, 1):
        shutil.move(tmp_path / "store" / f"broker-{broker}", tmp_path / f"away-{broker}")
    assert scrape(registry) == {("replog_up",): 0}


def test_a_warm_scrape_costs_one_get_per_metadata_root_and_ledger_whoever_asks(store, still_clock, monkeypatch):
    monkeypatch.setattr(store_monitor, "ROOT_LOOK_INTERVAL_MS", 10**9)
    store.count_calls()
    collector = StoreCollector(StoreWatch(store.cluster))
    scrape(collector)
    ledger_count = len(store.cluster._topic_ledgers) + 1
    store.clock.advance(SCRAPE_AGE_MS)
    store.forget_calls()
    threads = [threading.Thread(target=scrape, args=(collector,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.calls() == {"get": 3 * ledger_count}
    asked = {broker: set() for broker in range(3)}
    for _ in range(3):
        store.clock.advance(MARKER_CHECK_MS)
        store.forget_calls()
        scrape(collector)
        assert store.calls() == {"get": 3 * ledger_count}, "a marker is looked for in place of a tail"
        for broker, counted in store.counted.items():
            asked[broker] |= {key for _, key in counted.calls if "/markers/" in key}
    assert [len(keys) for keys in asked.values()] == [ledger_count] * 3, "of each root in turn"


def test_a_scrape_of_a_store_of_one_root_is_one_get_per_ledger_each_time(tmp_path, still_clock_of, monkeypatch):
    monkeypatch.setattr(store_monitor, "ROOT_LOOK_INTERVAL_MS", 10**9)
    store = still_clock_of(Store.init(str(tmp_path / "one")))
    store.create("orders")
    store.write("orders", rows(10))
    store.count_calls()
    collector = StoreCollector(StoreWatch(store.cluster))
    scrape(collector)
    for _ in range(6):
        store.clock.advance(MARKER_CHECK_MS)
        store.forget_calls()
        scrape(collector)
        assert store.calls() == {"get": 2}, f"the cluster's ledger and the topic's: {store.counted[0].calls}"


def test_a_scrape_waits_for_no_check_of_a_root(store, monkeypatch):
    checked, may_answer = threading.Event(), threading.Event()
    watch = StoreWatch(store.cluster)
    assert [broker.error for broker in watch.look().brokers] == [None] * 3
    check_root = store.cluster.brokers.check_root

    def hang(broker):
        checked.set()
        assert may_answer.wait(30)
        check_root(broker)

    monkeypatch.setattr(store.cluster.brokers, "check_root", hang)
    shutil.move(Path(store.path) / "broker-2", Path(store.path) / "away")
    store.clock.advance(ROOT_LOOK_INTERVAL_MS)
    assert [broker.error for broker in watch.look().brokers] == [None] * 3, "as it was known"
    assert checked.wait(30)
    may_answer.set()
    errors = []
    while not any(errors):  # the check ends in the background
        errors = [broker.error for broker in watch.look().brokers]
    assert [error is not None for error in errors] == [False, False, True]


@contextmanager
def serving(store):
    server = server_of(StoreCollector(StoreWatch(store.cluster)), "127.0.0.1", 0)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_it_is_served_over_http(store):
    def ask(path, **headers):
        request = urllib.request.Request(f"http://127.0.0.1:{server.server_port}{path}", headers=headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.headers, answer.read()

    with serving(store) as server:
        headers, body = ask("/metrics")
        assert b"replog_up 1.0" in body and headers["Content-Type"].startswith("text/plain; version=0.0.4")
        headers, packed = ask("/metrics", Accept="application/openmetrics-text", **{"Accept-Encoding": "gzip"})
        assert headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
        assert gzip.decompress(packed).endswith(b"# EOF\n")
        with pytest.raises(urllib.error.HTTPError, match="404"):
            ask("/")


def test_producers_and_consumers_serve_their_own(store):
    registry = CollectorRegistry()
    with (
        Producer(store.cluster, client_id="p") as producer,
        Consumer(store.cluster, "orders", auto_offset_reset="earliest") as reader,
    ):
        producer.send("orders", b"v").result(30)
        read = len(reader.poll(timeout_ms=5_000))
        registry.register(ClientCollector(producer.metrics, "producer", "p"))
        registry.register(ClientCollector(reader.metrics, "consumer", "c"))
        samples = scrape(registry)
        kafka = producer.metrics()
    assert samples["replog_producer_record_send_total", ("client_id", "p")] == 1
    latency = samples["replog_producer_request_latency_max_seconds", ("client_id", "p")]
    assert latency == pytest.approx(kafka["request-latency-max"] / 1000) and latency > 0
    assert samples["replog_consumer_records_consumed_total", ("client_id", "c")] == read > 0


def test_clients_of_one_kind_are_one_page_that_parsers_take():
    collector = ClientCollector(lambda: {"record-send-total": 1, "request-latency-avg": 500.0}, "producer", "p")
    collector.add(lambda: {"record-send-total": 2}, "q")
    collector.add(lambda: {"record-send-total": 3}, "r")
    collector.remove("q")
    registry = CollectorRegistry()
    registry.register(collector)
    families = {family.name: family for family in text_string_to_open_families(open_metrics(registry).decode())}
    sent = families["replog_producer_record_send"]
    assert {sample.labels["client_id"]: sample.value for sample in sent.samples} == {"p": 1, "r": 3}
    assert [sample.value for sample in families["replog_producer_request_latency_avg_seconds"].samples] == [0.5]


def test_once_prints_or_replaces_a_file(store, replog, tmp_path):
    words = ("-s", store.path, "metrics", "serve", "--once")
    printed = replog(*words)
    assert printed.exit_code == 0 and "replog_up 1.0\n" in printed.out
    file = tmp_path / "replog.prom"
    file.write_text("old")
    assert replog(*words, "--output", file).exit_code == 0
    assert "replog_up 1.0\n" in file.read_text()
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".tmp"] == []
    assert replog(*words, "--output", tmp_path / "none" / "x").exit_code == 1
    assert replog("-s", store.path, "metrics", "serve", "--listen", "9410").exit_code == 2


def test_a_group_with_an_odd_name_cannot_change_a_terminal(store, replog, monkeypatch):
    with Consumer(store.cluster, group="\x1b[31mred", enable_auto_commit=False) as reader:
        reader.assign([TopicPartition("orders", 0)])
        reader.commit({TopicPartition("orders", 0): 1})
    words = ("-s", store.path, "metrics", "serve", "--once")
    assert '"\x1b[31mred"' in replog(*words).out, "Prometheus gets the name itself"
    monkeypatch.setattr(command, "is_terminal", lambda _: True)
    answer = replog(*words)
    assert "\x1b" not in answer.out and '"\\x1b[31mred"' in answer.out


def test_serving_says_where_and_an_address_in_use_is_an_error(store, replog, monkeypatch):
    class Ended(nullcontext):
        server_port = 9911

        def serve_forever(self):
            """As a server that ended."""

    from spark_replog.monitor import exporter

    monkeypatch.setattr(exporter, "server_of", lambda *_: Ended())
    answer = replog("-s", store.path, "metrics", "serve", "--listen", "127.0.0.1:0")
    assert answer.exit_code == 0 and "http://127.0.0.1:9911/metrics" in answer.err

    def refuse(*_):
        raise OSError(98, "Address already in use")

    monkeypatch.setattr(exporter, "server_of", refuse)
    answer = replog("-s", store.path, "metrics", "serve")
    assert answer.exit_code == 1 and "Address already in use" in answer.err
    assert command.EXIT_OK == 0


def names_in(text):
    return {re.sub("_total$", "", name) for name in re.findall(r"\breplog_[a-z_]+", text)}


@pytest.mark.parametrize("file", ["replog-alerts.yml", "replog-dashboard.json"])
def test_rules_and_dashboard_use_metrics_that_exist(file):
    text = (CONF / file).read_text(encoding="utf-8")
    used = names_in(text)
    assert used and used <= set(METRICS)
    if file.endswith(".json"):
        assert len({panel["id"] for panel in json.loads(text)["panels"]}) == 10
