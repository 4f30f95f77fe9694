"""A snapshot that no process could read is not written: it would replace one that can be read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from spark_replog.errors import ErrorCode, ReplogError
from spark_replog.ledger import snapshot_files, snapshot_io
from spark_replog.log.codec import snapshot as codec
from spark_replog.log.codec.snapshot import SnapshotPart, seal, write_table
from spark_replog.wire import Writer
from tests.unit.ledger.conftest import LEDGER_ID, Store
from tests.unit.ledger.snapshot_setup import BY_HAND, command, fill, keeper_of, paged, shoot
from tests.waiting import wait_until

EAGER = replace(
    BY_HAND,
    snapshot_entry_count_min=1,
    snapshot_first_entry_count_min=1,
    snapshot_rest_factor=0,
    truncate_record_count_min=4,
)


def heads_of(store: Store) -> list[Path]:
    return list(store.root_path(0).glob(f"ledgers/{LEDGER_ID}/snapshots/[0-9]*"))


@pytest.mark.parametrize("what", ["head", "page"])
def test_a_snapshot_above_the_limit_of_its_readers_is_not_written(make_store, monkeypatch, what):
    store = make_store(3)
    writer = paged(store)
    fill(writer, 0, 20)
    shoot(writer)
    decided = writer.ledger.state.snapshot
    assert decided.no > 0
    if what == "head":
        limit = 8 + max(path.stat().st_size for path in heads_of(store))  # the next head names one page more
        for module in (snapshot_io, snapshot_files):
            monkeypatch.setattr(module, "SNAPSHOT_SIZE_BYTES_MAX", limit)
    else:
        monkeypatch.setattr(snapshot_io, "PAGE_SIZE_BYTES_MAX", 600)
    wanted = fill(writer, 20, 60)
    with pytest.raises(ReplogError, match=f"its {what} has") as caught:
        shoot(writer)
    assert caught.value.code is ErrorCode.RECORD_LIST_TOO_LARGE
    writer.append(b"last")
    assert writer.ledger.state.snapshot == decided
    assert paged(store).commands() == [*wanted, b"last"]


def test_commits_go_on_above_the_limit_and_a_new_process_reads_all(make_store, monkeypatch, caplog):
    for module in (snapshot_io, snapshot_files):
        monkeypatch.setattr(module, "SNAPSHOT_SIZE_BYTES_MAX", 1_000)
    store = make_store(3)
    writer = paged(store, EAGER)
    wanted: list[bytes] = []

    def is_refused() -> bool:
        wanted.append(command(len(wanted)))
        writer.append(wanted[-1])
        return "no snapshot now" in caplog.text and "too large" in caplog.text

    wait_until(is_refused)
    keeper_of(writer).cuts.finish()
    assert paged(store).commands() == wanted


def test_a_part_and_a_table_above_the_limits_of_their_readers_are_not_made(monkeypatch):
    monkeypatch.setattr(codec, "BODY_BYTES_MAX", 10)
    monkeypatch.setattr(codec, "ROWS_MAX", 10)
    seal(SnapshotPart.TOPIC_HEAD, bytes(10))
    write_table(Writer(), np.zeros((2, 10), np.int64))
    with pytest.raises(ReplogError, match="a part has 11 bytes, and 10 is the most"):
        seal(SnapshotPart.TOPIC_HEAD, bytes(11))
    with pytest.raises(ReplogError, match="a table has 11 rows, and 10 is the most"):
        write_table(Writer(), np.zeros((2, 11), np.int64))
