"""Rows that left the memory of a process for pages: it reads them again, and so does one that begins with a snapshot."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_replog.log.fold import frozen_topics, paged_table
from tests.scenarios.conftest import FAST, LocalStore


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, value in (
        (paged_table, "PAGE_ROWS", 8),
        (paged_table, "FLUSH_ROWS", 8),
        (frozen_topics, "FLUSH_ROWS", 8),
    ):
        monkeypatch.setattr(module, name, value)


def test_a_writer_and_a_cold_reader_find_rows_in_pages(store: LocalStore, small_pages: None) -> None:
    store.controller.create_topic("orders", 2, 3)
    for batch in range(60):
        store.append("orders", {0: 2, 1: 1}, batch=batch)
    handle = store.cluster.lookup("orders")
    ledger = store.cluster.topic_ledger(handle.ledger_id)
    ledger.write_snapshot() if hasattr(ledger, "write_snapshot") else None
    ledger.refresh()
    state = ledger.state
    assert state._pages.runs, "a commit wrote a snapshot with pages"
    mine = store.sections("orders", 0)
    assert sum(row.row_count for row in mine) == 120
    assert [row.base_offset for row in mine] == list(range(0, 120, 2))
    cold = LocalStore(store.path, FAST)
    assert cold.sections("orders", 0) == mine
    assert cold.sections("orders", 1) == store.sections("orders", 1)
    found = cold.cluster.topic_ledger(handle.ledger_id).state
    assert found._pages.runs == state._pages.runs
    pages = [path.name for path in Path(store.path).rglob("pages/**/*") if path.is_file()]
    assert set(found.page_names()) <= set(pages)
