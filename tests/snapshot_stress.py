"""A stress form of the test command, ``REPLOG_TEST_SNAPSHOTS=1``: ledgers live on pages and truncated journals.

Every ledger writes a snapshot after every few entries on the thread of its writer, truncates behind it, and keeps one
page in memory. Tests that count storage calls fail in it; no other may.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from spark_replog.ledger import types
from spark_replog.log.fold import frozen_topics, paged_table, topic_state

_SMALL = {
    "marker_check_ms": 0,
    "snapshot_entry_count_min": 2,
    "snapshot_first_entry_count_min": 2,
    "snapshot_rest_factor": 0,
    "truncate_record_count_min": 3,
    "kept_record_count": 0,
}


def install() -> None:
    """Change the defaults of this process; before any ledger is made."""
    _set_defaults(types.LedgerSettings.__init__, _SMALL)
    _set_defaults(topic_state.TopicLedgerState.__init__, {"cache_bytes": 1})
    paged_table.PAGE_ROWS, paged_table.FLUSH_ROWS, frozen_topics.FLUSH_ROWS = 4, 2, 2

    from spark_replog.ledger.ledger import Ledger

    drive = Ledger._drive_turn

    def drive_and_write(ledger: Ledger[Any], request: types.Request) -> None:
        drive(ledger, request)
        keeper = ledger._snapshots
        if keeper is not None and keeper.is_due() and not ledger._settings.read_only:
            ledger._write_snapshot()

    Ledger._drive_turn = drive_and_write  # type: ignore[method-assign]


def _set_defaults(function: Callable[..., None], values: dict[str, Any]) -> None:
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    defaults = list(function.__defaults__ or ())
    for name, value in values.items():
        defaults[names.index(name) - len(names)] = value
    function.__defaults__ = tuple(defaults)
