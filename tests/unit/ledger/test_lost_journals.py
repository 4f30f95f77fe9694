"""Journals that lost records beside a snapshot: an error before a write, where anything on storage proves the loss."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from spark_replog.errors import CorruptDataError, ErrorCode
from tests.unit.ledger.conftest import Process, Store
from tests.unit.ledger.snapshot_setup import BY_HAND, KEPT, command, fill, paged, shoot

HASTY = {"quorum_timeout_ms": 1_000}


def names(store: Store) -> list[list[str]]:
    return [[path.name for path in store.journal(root)] for root in range(3)]


def filled(store: Store, settings, count_after: int) -> None:
    """Write 30 entries and a snapshot, then some more; each write waits for all roots."""
    writer = paged(store, replace(settings, grace_ms=20_000))
    fill(writer, 0, 30)
    shoot(writer)
    fill(writer, 30, 30 + count_after)
    assert len({folder[-1] for folder in names(store)}) == 1


@pytest.mark.parametrize("gone", [(0, 1, 2), (0, 1), (1, 2)])
@pytest.mark.parametrize("settings", [KEPT, BY_HAND], ids=["whole journals", "cut journals"])
@pytest.mark.parametrize("count_after", [0, 5])
def test_journals_lost_beside_a_snapshot_end_reads_and_writes(make_store, gone, settings, count_after):
    store = make_store(3)
    filled(store, settings, count_after)
    for root in gone:
        for path in store.journal(root):
            path.unlink()
    before = names(store)
    for call in (Process.commands, lambda process: process.append(command(99))):
        with pytest.raises(CorruptDataError, match="ends at position") as caught:
            call(paged(store, replace(settings, **HASTY)))
        assert caught.value.code is ErrorCode.REPLOG_JOURNAL_HOLE
        named = [root for root in range(3) if f"broker-{root}" in str(caught.value)]
        assert set(named) <= set(gone) and len(named) >= 2, "a third root may answer late"
    assert names(store) == before, "nothing was written"


def test_the_last_records_lost_beside_a_newer_snapshot_end_reads(make_store):
    """They follow a record that is there; only the snapshot knows of them."""
    store = make_store(3)
    filled(store, KEPT, 0)
    for root in range(3):
        for path in store.journal(root)[-10:]:
            path.unlink()
    with pytest.raises(CorruptDataError, match="ends at position"):
        paged(store, replace(KEPT, **HASTY)).commands()


def test_one_journal_lost_beside_a_snapshot_stops_nobody(make_store):
    store = make_store(3)
    filled(store, KEPT, 5)
    for path in store.journal(1):
        path.unlink()
    process = paged(store, KEPT)
    assert process.commands() == [command(number) for number in range(35)]
    assert process.append(command(35)).result == "applied"


def put_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("is_newest", [True, False])
def test_a_folder_in_place_of_a_record_is_not_the_end_of_a_journal(make_store, is_newest):
    store = make_store(3)
    filled(store, KEPT, 5)
    for root in range(3):
        put_folder(store.journal(root)[-1 if is_newest else -3])
    before = names(store)
    for call in (Process.commands, lambda process: process.append(command(99))):
        with pytest.raises(CorruptDataError) as caught:
            call(paged(store, replace(KEPT, **HASTY)))
        assert caught.value.code is ErrorCode.CORRUPT_MESSAGE
    assert names(store) == before, "nothing was written"
