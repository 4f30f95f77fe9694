"""A stress form of the test command, ``REPLOG_TEST_SNAPSHOTS=1``: ledgers live on pages and truncated journals.

Every ledger writes a snapshot after every few entries on the thread of its writer, truncates behind it, and keeps one
page in memory. Tests that pin what this changes are skipped (`SKIPPED`); no other may fail.
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
    from spark_replog.ledger.requests import Request

    serve = Ledger._serve

    def serve_and_write(ledger: Ledger[Any], *asked: Any) -> Request:
        request = serve(ledger, *asked)
        writer = ledger.snapshots
        if writer is not None and writer.keeper.is_due() and not ledger._settings.read_only:
            writer.write_behind()
        return request

    Ledger._serve = serve_and_write  # type: ignore[method-assign]


def _set_defaults(function: Callable[..., None], values: dict[str, Any]) -> None:
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    defaults = list(function.__defaults__ or ())
    for name, value in values.items():
        defaults[names.index(name) - len(names)] = value
    function.__defaults__ = tuple(defaults)


COUNTS = "it counts storage calls"
FILES = "it counts or names files, where snapshots and truncated journals have others"
STEPS = "it counts what each run of upkeep deletes; a merge of runs decides in which run an object in pages goes"
HEADS = "it compares heads, and sets sizes of pages itself"
SKIPPED = {
    "test_idle_refresh_is_one_get_per_root": COUNTS,
    "test_an_idle_poll_costs_one_get_a_root_and_a_waiting_one_a_get_per_look": COUNTS,
    "test_a_long_idle_poll_looks_once_per_interval_and_no_more": COUNTS,
    "test_signs_of_life_are_written_a_third_of_a_session_after_the_last_commit": COUNTS,
    "test_a_settled_member_looks_once_per_heartbeat_interval_and_writes_a_third_of_its_session": COUNTS,
    "test_a_commit_costs_one_create_a_root_and_a_fetch_one_get_a_root": COUNTS,
    "test_a_commit_costs_one_create_round": COUNTS,
    "test_looking_at_an_idle_topic_costs_one_get_a_root": COUNTS,
    "test_describe_reads_both_ledgers": COUNTS,
    "test_nothing_is_dropped_with_fsync_or_before_a_whole_record": FILES,
    "test_sections_in_pages_are_replaced_too": FILES,
    "test_a_writer_that_knows_the_old_journal_leaves_the_new_one_alone": FILES,
    "test_a_new_root_is_made_only_after_a_yes_as_its_mount_may_only_be_missing": FILES,
    "test_a_process_that_knew_the_old_journal_reads_on_behind_it": FILES,
    "test_a_repair_that_died_between_creates_leaves_no_gap_and_no_falling_epoch": FILES,
    "test_a_restored_fold_answers_and_goes_on_as_the_one_it_was_made_of": HEADS,
    "test_no_damage_is_taken_for_a_state": HEADS,
    "test_commits_do_a_part_of_it": STEPS,
}
"""Tests that pin what this form changes, and why."""
