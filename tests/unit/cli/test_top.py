"""``replog top``: its page at several sizes, and the live form on a terminal of its own."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console, Group

from spark_replog.cli.settings import Settings
from spark_replog.cli.tables import cut
from spark_replog.cli.top import page
from spark_replog.monitor.store_monitor import StoreWatch
from tests.unit.client.consumer_setup import with_a_group


@pytest.fixture
def store(tmp_path):
    return with_a_group(tmp_path / "store", "bill\x1b[2Jing")


def drawn(store, width, height):
    """The page as a terminal of this size shows it."""
    console = Console(file=io.StringIO(), width=width, height=height, highlight=False)
    parts = page(StoreWatch(store.cluster).look(), Settings(store=store.path), width, height)
    console.print(Group(*map(cut, parts)))
    return console.file.getvalue()


@pytest.mark.parametrize("height", [3, 5, 10, 24, 60])
@pytest.mark.parametrize("width", [40, 80, 160])
def test_the_page_fits_and_hostile_names_do_nothing(store, width, height):
    text = drawn(store, width, height)
    lines = text.splitlines()
    assert len(lines) <= height and all(len(line) <= width for line in lines)
    assert text.replace("\n", "").isprintable()
    if width >= 80 and height >= 24:
        for word in ("OK  ", "3 of 3 roots serve", "orders", "BROKER", "VERDICT", "bill", "15 MINUTES"):
            assert word in text


def test_many_topics_are_counted_where_they_do_not_fit(store):
    for number in range(30):
        store.create(f"topic-{number}")
    lines = drawn(store, 80, 24).splitlines()
    assert len(lines) <= 24 and re.match(r"and \d+ more", lines[-1])
    assert any(line.startswith("orders ") for line in lines)  # the busiest first


def test_faults_come_first_with_their_remedy(store, replog, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    replog("-s", store.path, "broker", "fence", 1, 2, "-y")
    text = replog("-s", store.path, "top").out
    assert text.startswith("CRITICAL  ") and "-> replog " in text and " broker unfence 1 2" in text
    assert text.index("CRITICAL under-min-isr: 3: ") < text.index("orders-0, orders-1") < text.index("BROKER")


def test_without_a_terminal_it_prints_once_or_as_often_as_asked(store, replog):
    answer = replog("-s", store.path, "top")
    assert answer.exit_code == 0 and answer.out.count("roots serve") == 1 and "\x1b" not in answer.out
    assert replog("-s", store.path, "top", "-n", 2, "-d", 0.1).out.count("roots serve") == 2
    (item,) = replog("-s", store.path, "top", "-f", "json").items
    (orders,) = [topic for topic in item["rates"] if topic["topic"] == "orders"]
    assert len(orders["bytesByMinute"]) == 15 and sum(orders["bytesByMinute"]) == orders["bytes"] > 0
    assert item["readers"][0]["lag"] > 0
    assert len(replog("-s", store.path, "top", "-n", 2, "-d", 0.1, "-f", "jsonl").out.splitlines()) == 2
    assert replog("-s", store.path, "top", "-n", 2, "-f", "json").exit_code == 2
    assert (
        replog("-s", store.path, "top", "--checkpoint", store.path + "/nowhere").out.count("WARN ") == 2
    )  # the title, and the folder
