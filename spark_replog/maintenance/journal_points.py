"""What the heads of snapshots prove of journals, for their scrub.

A head says per root where its writer had read the journal to. Such records were there, whichever snapshot is decided:
a journal that ends before them lost them, and one whose records do not follow from there was changed. A process that
begins with the head refuses such a journal, so a scrub has to find it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from spark_replog.errors import ReplogError
from spark_replog.ids import LedgerId
from spark_replog.ledger.reader import JournalOrder
from spark_replog.ledger.record import JournalRecord, genesis_hash
from spark_replog.ledger.snapshot_files import SNAPSHOT_SIZE_BYTES_MAX, JournalPoint, decode_snapshot
from spark_replog.ledger.snapshot_io import heads_on
from spark_replog.quorum import majority_of
from spark_replog.snapshot import is_named
from spark_replog.storage.fan_out import answers_of
from spark_replog.storage.io_pool import IO_POOL
from spark_replog.storage.object_store import ObjectStore
from spark_replog.storage.paths import snapshot_key

HEADS_MAX = 4
"""The newest ones: usually there are two, and one that a marker names."""


def points_in_heads(ledger_id: LedgerId, stores: Sequence[ObjectStore]) -> list[tuple[JournalPoint, ...]]:
    """Return the points of each head that a majority of the metadata roots has, one per root.

    Call it before the journals are read: a head that is stored later names records that are written later. A root that
    does not answer is left out.
    """
    lanes = enumerate(f"{store.url}#start" for store in stores)
    listings = {number: IO_POOL.submit_to(lane, heads_on, stores[number], ledger_id) for number, lane in lanes}
    held: dict[str, list[ObjectStore]] = {}
    for number, names in answers_of(listings, math.inf).found.items():
        for name in names:
            held.setdefault(name, []).append(stores[number])
    majority = majority_of(len(stores))
    newest = sorted((name for name, holders in held.items() if len(holders) >= majority), reverse=True)[:HEADS_MAX]
    heads = (_points(ledger_id, name, held[name], len(stores)) for name in newest)
    return [points for points in heads if points is not None]


def _points(
    ledger_id: LedgerId, name: str, holders: Sequence[ObjectStore], root_count: int
) -> tuple[JournalPoint, ...] | None:
    """Return the points of a head from the first root where it is whole; None: its files are for the scrub of these."""
    for store in holders:
        try:
            data = store.get(snapshot_key(ledger_id, name), size_bytes=SNAPSHOT_SIZE_BYTES_MAX + 1)
            if data is not None and is_named(name, data):
                genesis = genesis_hash(ledger_id)
                return decode_snapshot(data, genesis=genesis, root_count=root_count, where=name).points
        except ReplogError:
            continue
    return None


class ProvenPoints:
    """The points of one root, held against its journal as that is read.

    Args:
        points: of heads.
        start: where the journal's newest marker says that it is read from: points in an earlier journal of the root,
            before a rebuild, mean nothing. The snapshot of this marker stands for entries that no record here holds.
    """

    def __init__(self, points: Sequence[JournalPoint], start: JournalPoint) -> None:
        index = start.last_index
        self._points = [
            each._replace(last_index=max(each.last_index, index))
            for each in points
            if each.floor.renewal == start.floor.renewal
        ]
        self._read = {at: JournalOrder(each) for at, each in enumerate(self._points) if each.position >= start.position}
        self._fault: tuple[int, str] | None = None

    @property
    def marker_count(self) -> int:
        """Return how many markers the root had at least."""
        return max((each.floor.marker_no for each in self._points), default=0)

    def take(self, record: JournalRecord, position: int, crc: int) -> None:
        """Check the next record."""
        for at, order in self._read.items():
            point = self._points[at]
            if position == point.position - 1 and point.last_crc not in (0, crc):
                self._note(position, "it is not the record that a snapshot names")
            elif position >= point.position:
                order.take(record, position)

    def fault(self) -> tuple[int, str] | None:
        """Return the position and the words of a fault of a journal that was read to its end, None for none."""
        for order in self._read.values():
            if order.fault is not None:
                self._note(order.fault_position, f"after a point that a snapshot names {order.fault}")
        return self._fault

    def end_min(self) -> int:
        """Return the position that the journal ends at or after."""
        return max((self._points[at].position for at in self._read), default=0)

    def _note(self, position: int, why: str) -> None:
        if self._fault is None:
            self._fault = position, why
