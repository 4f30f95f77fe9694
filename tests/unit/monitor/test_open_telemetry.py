"""Metrics through OpenTelemetry's own SDK: the same values as Prometheus gets."""

from __future__ import annotations

from pathlib import Path

import pytest
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, Sum
from prometheus_client import CollectorRegistry

from integration.support.doc_blocks import read_page
from spark_replog import Producer
from spark_replog.monitor.exporter import SCRAPE_AGE_MS, ClientCollector, StoreCollector
from spark_replog.monitor.open_telemetry import observe
from spark_replog.monitor.store_monitor import StoreWatch
from tests.unit.client.consumer_setup import rows, with_a_group

PAGE = Path(__file__).parents[3] / "docs" / "cli.md"


@pytest.fixture
def store(tmp_path):
    return with_a_group(tmp_path / "store")


@pytest.fixture
def reader():
    return InMemoryMetricReader()


@pytest.fixture
def meter(reader):
    provider = MeterProvider([reader])
    yield provider.get_meter("test")
    provider.shutdown()


def collected(reader):
    """Metrics by name."""
    report = reader.get_metrics_data()
    return {
        entry.name: entry for part in report.resource_metrics for scope in part.scope_metrics for entry in scope.metrics
    }


def points(metric):
    return {tuple(sorted(point.attributes.items())): point.value for point in metric.data.data_points}


def test_each_value_that_prometheus_gets_is_there_with_its_labels_unit_and_kind(store, reader, meter):
    registry = CollectorRegistry()
    registry.register(StoreCollector(StoreWatch(store.cluster)))
    with Producer(store.cluster, linger_ms=0) as producer:
        producer.send("orders", b"value").result()
        registry.register(ClientCollector(producer.metrics, "producer", "p1"))
        observe(registry, meter, store.clock)
        exports = collected(reader)
        served = [metric_family for metric_family in registry.collect() if metric_family.samples]
    assert {metric_family.name for metric_family in served} == exports.keys()
    for family in served:
        if family.name.startswith("replog_producer"):
            continue  # rates go on
        want = {tuple(sorted(sample.labels.items())): sample.value for sample in family.samples}
        assert points(exports[family.name]) == want, family.name
        assert exports[family.name].description == family.documentation
    entries, size = exports["replog_ledger_entries"], exports["replog_topic_bytes"]
    assert isinstance(entries.data, Sum) and entries.data.is_monotonic and not isinstance(size.data, Sum)
    assert (size.unit, exports["replog_producer_request_latency_avg_seconds"].unit, entries.unit) == ("By", "s", "")
    assert points(exports["replog_producer_record_send"]) == {(("client_id", "p1"),): 1}


def test_clients_of_one_process_have_their_own_values(store, reader, meter):
    registry = CollectorRegistry()
    with Producer(store.cluster, linger_ms=0) as first, Producer(store.cluster, linger_ms=0) as second:
        first.send("orders", b"value").result()
        for client_id, producer in (("p1", first), ("p2", second)):
            registry.register(ClientCollector(producer.metrics, "producer", client_id))
        observe(registry, meter, store.clock)
        assert points(collected(reader)["replog_producer_record_send"]) == {
            (("client_id", "p1"),): 1,
            (("client_id", "p2"),): 0,
        }


def test_a_collection_reads_the_store_once_and_the_next_one_sees_what_came(store, reader, meter):
    registry = CollectorRegistry()
    registry.register(StoreCollector(StoreWatch(store.cluster)))
    reads = []
    collect = registry.collect
    registry.collect = lambda: (reads.append(1), collect())[1]
    observe(registry, meter, store.clock)
    assert points(collected(reader)["replog_topic_rows"])[("topic", "orders"),] == 10
    assert len(reads) == 2  # the first for the names
    store.write("orders", rows(5))
    store.clock.advance(SCRAPE_AGE_MS)
    assert points(collected(reader)["replog_topic_rows"])[("topic", "orders"),] == 15
    assert len(reads) == 3


def test_the_page_runs(store, reader, monkeypatch):
    ((_, block),) = [example for example in read_page(PAGE).elsewhere if example[0].endswith("::test_the_page_runs")]
    provider = MeterProvider([reader])
    monkeypatch.setattr(metrics, "get_meter", provider.get_meter)
    exec(compile(block.replace("/data/store", store.cluster.path), "docs/cli.md", "exec"), {})
    exports = collected(reader)
    assert points(exports["replog_up"]) == {(): 1}
    provider.shutdown()
