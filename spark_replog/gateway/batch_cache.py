"""Record batches that were made for a consumer lately, within a bound of memory, for others at the same place."""

from __future__ import annotations

import bisect
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from spark_replog.gateway.record_batch import EncodedBatch
from spark_replog.ids import TopicId


class CachePlace(NamedTuple):
    """A partition under one leader: after a change of it, rows may have been cut off."""

    topic_id: TopicId
    partition: int
    leader_epoch: int


@dataclass(slots=True)
class _Shelf:
    """The batches of one place, by their first offsets, which ascend."""

    bases: list[int] = field(default_factory=list)
    batches: dict[int, EncodedBatch] = field(default_factory=dict)


class BatchCache:
    """Belongs to one event loop.

    Args:
        bytes_max: what all batches may take; those kept longest go first.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self.size_bytes = 0
        self._shelves: dict[CachePlace, _Shelf] = {}
        self._by_age: OrderedDict[tuple[CachePlace, int], None] = OrderedDict()

    def get(self, place: CachePlace, offset: int, end_offset: int, bytes_max: int) -> list[EncodedBatch]:
        """Return batches from the one that holds an offset on, without a gap, up to an end or to so many bytes.

        The first one is returned whatever its size; none if no batch holds the offset.
        """
        shelf = self._shelves.get(place)
        batches: list[EncodedBatch] = []
        left_bytes = bytes_max
        while shelf is not None and offset < end_offset:
            at = bisect.bisect_right(shelf.bases, offset) - 1
            batch = shelf.batches[shelf.bases[at]] if at >= 0 else None
            if batch is None or batch.last_offset < offset or (batches and len(batch.data) > left_bytes):
                break
            batches.append(batch)
            left_bytes -= len(batch.data)
            offset = batch.last_offset + 1
        return batches

    def put(self, place: CachePlace, batches: Iterable[EncodedBatch]) -> None:
        """Keep batches; larger ones than all memory are not kept."""
        shelf = self._shelves.setdefault(place, _Shelf())
        for batch in batches:
            if len(batch.data) > self._bytes_max:
                continue
            self._drop(place, batch.base_offset)
            shelf = self._shelves.setdefault(place, _Shelf())
            bisect.insort(shelf.bases, batch.base_offset)
            shelf.batches[batch.base_offset] = batch
            self._by_age[(place, batch.base_offset)] = None
            self.size_bytes += len(batch.data)
            while self.size_bytes > self._bytes_max:
                self._drop(*next(iter(self._by_age)))
        if not shelf.bases:
            self._shelves.pop(place, None)

    def _drop(self, place: CachePlace, base_offset: int) -> None:
        shelf = self._shelves.get(place)
        if shelf is None or base_offset not in shelf.batches:
            return
        self.size_bytes -= len(shelf.batches.pop(base_offset).data)
        shelf.bases.remove(base_offset)
        del self._by_age[(place, base_offset)]
        if not shelf.bases:
            del self._shelves[place]
