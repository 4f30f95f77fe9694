"""Markers and snapshot heads of every released format stay readable and mean the same.

A NEW format version gets files of its own: ``python tests/golden/test_golden_journal.py tests/golden/v<N>``.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from spark_replog.ledger.record import Epoch, genesis_hash
from spark_replog.ledger.snapshot_files import (
    Base,
    Floor,
    JournalPoint,
    Marker,
    SnapshotHead,
    decode_marker,
    decode_snapshot,
    encode_marker,
    encode_snapshot,
    snapshot_name,
)
from spark_replog.snapshot import DecidedSnapshot

HERE = Path(__file__).parent
FOLDERS = sorted(path.parent for path in HERE.glob("v*/marker.bin"))
GENESIS = genesis_hash("fedcba9876543210" * 2)
EPOCH = Epoch(300, bytes(range(16)))
RENEWAL = bytes(range(48, 64))
BASE = Base(2000, bytes(range(16, 32)), EPOCH)
HEAD = SnapshotHead(
    BASE,
    DecidedSnapshot(3, 1990, f"{1990:020d}-{'ab' * 16}", 1995),
    (
        JournalPoint(2010, EPOCH, 0x01020304, 1999, 2000, True, Floor(2, 1400, 1890, RENEWAL)),
        JournalPoint(2001, Epoch(299, b"i" * 16), 0xFFFFFFFF, 1998, 1999, False, Floor(1, 900, 1300)),
        JournalPoint(),
    ),
    b"what the fold knows",
)
MARKER = Marker(1498, BASE, snapshot_name(2000, encode_snapshot(GENESIS, HEAD)), RENEWAL)
FIRST_MARKER = Marker(0, Base(), "", RENEWAL)
"""Of a journal that was rebuilt before there was a snapshot."""
FILES = {
    "marker.bin": encode_marker(GENESIS, MARKER),
    "marker_rebuilt.bin": encode_marker(GENESIS, FIRST_MARKER),
    "snapshot_head.bin": encode_snapshot(GENESIS, HEAD),
}


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_markers_and_heads_mean_what_they_meant(folder):
    for name, marker in ("marker.bin", MARKER), ("marker_rebuilt.bin", FIRST_MARKER):
        assert decode_marker((folder / name).read_bytes(), genesis=GENESIS, where=name) == marker
    head = (folder / "snapshot_head.bin").read_bytes()
    assert decode_snapshot(head, genesis=GENESIS, root_count=3, where="head") == HEAD
    assert snapshot_name(2000, head) == MARKER.name == "00000000000000002000-0a381f96770a8eb30659dae17e5fda00"


@pytest.mark.parametrize("name", FILES)
def test_the_newest_format_is_written_byte_for_byte(name):
    assert (FOLDERS[-1] / name).read_bytes() == FILES[name]


if __name__ == "__main__":
    for name, data in FILES.items():
        (Path(sys.argv[1]) / name).write_bytes(data)
