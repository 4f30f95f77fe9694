"""A process that commits micro-batches, snapshots and truncates all the time, and says what it was answered.

``python -m tests.scenarios.committing STORE QUERY FIRST_BATCH COUNT``; test_snapshot_kills.py judges what it leaves.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import spark_replog.cluster.cluster as cluster_module
from spark_replog.cluster.cluster import Cluster, TopicHandle
from spark_replog.fault_point import fault_point
from spark_replog.ledger.types import LedgerSettings
from spark_replog.log.fold import frozen_topics, paged_table
from spark_replog.log.fold.topic_state import TopicLedgerState
from spark_replog.storage.object_store import CreateOutcome
from spark_replog.storage.retrying_store import RetryingStore
from tests.scenarios.conftest import FAST, LocalStore
from tests.scenarios.repairing import put_arrow

ALWAYS = partial(
    LedgerSettings,
    snapshot_entry_count_min=1,
    snapshot_first_entry_count_min=1,
    snapshot_rest_factor=0,
    truncate_record_count_min=2,
    kept_record_count=1,
    marker_check_ms=0,
)
ROWS = 3


SMALL = [
    (cluster_module, "LedgerSettings", ALWAYS),
    (paged_table, "PAGE_ROWS", 8),
    (paged_table, "FLUSH_ROWS", 3),
    (frozen_topics, "FLUSH_ROWS", 3),
]
"""What a process changes so that each commit snapshots and truncates, and rows are in pages."""


def pass_fault_points_at_journals() -> None:
    """Pass the steps ``journal.create`` and ``journal.created`` around each create in a journal."""
    create = RetryingStore.create

    def create_between(store: RetryingStore, key: str, *args: Any, **kwargs: Any) -> CreateOutcome:
        if "/journal/" not in key:
            return create(store, key, *args, **kwargs)
        fault_point("journal.create")
        outcome = create(store, key, *args, **kwargs)
        fault_point("journal.created")
        return outcome

    RetryingStore.create = create_between  # type: ignore[method-assign]


def commit_until_merged(path: str, topic: str, commit_one: Callable[[], object], count_max: int = 24) -> int:
    """Commit until only objects with readable rows count as used; return how many commits that took, 0 without pages.

    Rows that left pages keep their object until a merge of runs drops them. A snapshot after a later commit does it; a
    process sees that if it wrote the snapshot or begins with it, so each look opens the store again.
    """

    def unused(handle: TopicHandle, state: TopicLedgerState) -> tuple[set[str], bool]:
        partitions = state.topics[handle.topic_id].partitions
        log_sections = (state.sections(handle.topic_id, at, 0, log.high_watermark) for at, log in enumerate(partitions))
        read = {section.object.id.name for sections in log_sections for section in sections}
        used = set[str]().union(*map(state.referenced_objects, range(state.generations.newest + 1)))
        return used - read, any(state.page_names())

    for count in range(count_max):
        cluster = Cluster.open(path)
        ledger, _ = cluster.topic_state(handle := cluster.lookup(topic))
        names, has_pages = ledger.ask(partial(unused, handle))
        if not names:
            return count
        assert has_pages, f"rows in memory are gone at once, and {names} count as used"
        commit_one()
    raise AssertionError(f"{count_max} commits have not dropped {names}")


def commit(store: LocalStore, query: str, batch: int, away: int = -1, timeout_ms: int = 60_000) -> dict[str, Any]:
    """Write and commit one batch; an attempt that died before leaves garbage, and this one is a replay."""
    made = put_arrow(store, "orders", [ROWS], frozenset(store.cluster.brokers.broker_ids) - {away})
    said: dict[str, Any] = {"query": query, "batch": batch, "object": made.id.name}
    print(json.dumps(said), flush=True)
    response = store.append("orders", {}, batch=batch, query=query, objects=(made,), timeout_ms=timeout_ms)
    if response.error is not None:
        return {**said, "error": response.error.code.name}
    ((_, bounds),) = response.result.base_offsets.items()
    return {**said, "bounds": list(bounds), "outcome": response.result.outcome.name}


if __name__ == "__main__":
    path, query, first, count = sys.argv[1:]
    for module, name, value in SMALL:
        setattr(module, name, value)
    pass_fault_points_at_journals()
    opened = LocalStore(Path(path), FAST)
    for number in range(int(first), int(first) + int(count)):
        print(json.dumps(commit(opened, query, number)), flush=True)
