"""What a month costs: the formula by hand, and that the sample comes from real entries."""

from __future__ import annotations

import re
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import pytest

from spark_replog.errors import InvalidConfigError
from spark_replog.health.cost import costs_of, read_prices
from spark_replog.health.store import BrokerHealth, StoreView
from spark_replog.log.fold.object_table import RecentWrites
from spark_replog.monitor.store_monitor import StoreMonitor
from tests.unit.client.consumer_setup import Store, rows
from tests.unit.health.test_growth import HOUR_MS, topic

MB = 1_000_000
PRICES = read_prices('currency = "EUR"\n[s3]\ncreate = 5\nget = 1\nmonth = 1000\n')


def health(*topics, schemes=("s3", "s3", "file")):
    brokers = tuple(
        BrokerHealth(at, f"{scheme}://r{at}", None, True, False, None, None) for at, scheme in enumerate(schemes)
    )
    return StoreView("c", "p", True, 24 * HOUR_MS, brokers, topics, ())


def cost(*topics, writes, readers=0, **more):
    view = health(*topics, **more)
    return costs_of(view, {"ledger": writes}, PRICES, reader_count=readers, look_interval_ms=1_000)


def test_the_formula_by_hand():
    # 240 MB a day in objects of 2 MB on two roots, two of an entry.
    writes = RecentWrites(entry_count=5, object_count=10, size_bytes=20 * MB, copy_count=20)
    (topic_cost,) = cost(topic(24), writes=writes, readers=2)
    assert topic_cost.creates_per_day == pytest.approx(120 * 2 + 60 * 3)
    assert topic_cost.gets_per_day == pytest.approx(2 * 60 * 3 + 2 * (120 + 86_400 * 3))
    assert topic_cost.bytes_per_day == pytest.approx(480 * MB) and topic_cost.copy_bytes == 480 * MB
    paid_creates, paid_gets = 240 + 60 * 2, 2 * 60 * 2 + 2 * (120 + 86_400 * 2)  # the root on a disk is free
    assert topic_cost.month == pytest.approx(30 * (paid_creates * 5 + paid_gets * 1) / 1000 + 0.48 * 1000)


def test_the_page_has_the_price_of_its_example_on_each_back_end():
    """Docs: 1 MB/s in a batch of two tasks every ten seconds, one reader with the same trigger, kept seven days."""
    page = (Path(__file__).parents[3] / "docs/storage.md").read_text(encoding="utf-8")
    prices = read_prices(files("spark_replog").joinpath("prices.toml").read_text())
    gb = 86.4 * 1000 * MB
    held = topic(24, mb_per_hour=3600, replicas=(0, 1, 2))
    held = replace(held, partitions=tuple(replace(partition, size_bytes=int(7 * gb)) for partition in held.partitions))
    for scheme in prices.by_scheme:
        writes = RecentWrites(entry_count=1, object_count=2, size_bytes=10 * MB, copy_count=6)
        requests, whole = (
            costs_of(health(example, schemes=(scheme,) * 3), {"ledger": writes}, prices, reader_count=1,
                     look_interval_ms=10_000)[0]
            for example in (replace(held, partitions=tuple(replace(p, size_bytes=0) for p in held.partitions)), held)
        )  # fmt: skip
        assert (round(requests.creates_per_day), round(requests.gets_per_day)) == (77_760, 95_040)
        row = f"| `{scheme}://` | {requests.month:.2f} | {whole.month - requests.month:.2f} | {whole.month:.2f} |"
        assert row in page


def test_a_topic_that_nobody_writes_or_reads_costs_what_it_holds():
    (topic_cost,) = cost(topic(1, earlier_rows=9), writes=RecentWrites())
    assert (topic_cost.creates_per_day, topic_cost.gets_per_day) == (0, 0)
    assert topic_cost.month == pytest.approx(0.02 * 1000)


def test_disks_cost_nothing():
    assert cost(topic(24), writes=RecentWrites(1, 1, MB, 2), readers=9, schemes=("file",) * 3)[0].month == 0


def test_the_sample_is_what_the_newest_entries_named(tmp_path):
    store = Store.init(str(tmp_path / "store"), 3)
    store.create("orders", 2)
    for _ in range(4):
        store.write("orders", rows(10))
    store.cluster.refresh()
    monitor = StoreMonitor(store.cluster)
    monitor.look()
    ledger_id = store.cluster.lookup("orders").ledger_id
    sample = monitor.recent_writes()[ledger_id]
    assert (sample.entry_count, sample.object_count, sample.copy_count) == (4, 4, 12) and sample.size_bytes > 0
    assert monitor.recent_writes(2)[ledger_id][:2] == (2, 2)
    ledger = store.cluster.topic_ledger(ledger_id)
    assert ledger.snapshot(timeout_ms=30_000)
    fresh = Store(store.path, store.clock)
    again = StoreMonitor(fresh.cluster)
    again.look()
    assert again.recent_writes()[ledger_id] == sample  # from pages


@pytest.mark.parametrize(
    "text",
    ["[s3", "[s3]\ncreate = -1", "[s3]\nput = 1", '[s3]\nget = "free"', "[s3]\nget = nan", "[s3]\nget = inf"],
)
def test_bad_prices_are_refused(text):
    with pytest.raises(InvalidConfigError, match="prices cannot be read"):
        read_prices(text)


def test_the_price_file_of_the_page_can_be_read():
    page = (Path(__file__).parents[3] / "docs/storage.md").read_text(encoding="utf-8")
    prices = read_prices(re.search(r"```toml\n(currency.*?)```", page, re.S)[1])
    assert (prices.currency, prices.by_scheme["s3"].get, set(prices.by_scheme)) == ("EUR", 0.00043, {"s3"})
