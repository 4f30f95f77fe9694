"""Where each leader epoch of a partition began. Pure; part of the topic ledger's fold.

Source: Kafka's ``LeaderEpochFileCache`` (KIP-101, KIP-279). Offsets that were given again after a
truncation differ in their epoch only, so whoever keeps an offset with its epoch can tell.
"""

from __future__ import annotations

from typing import NamedTuple

UNDEFINED_EPOCH = -1
UNDEFINED_OFFSET = -1


class EpochEntry(NamedTuple):
    """An epoch and the offset of the first row that could be appended under it."""

    epoch: int
    start_offset: int


class LeaderEpochCache:
    """(epoch, start offset), both strictly increasing. Mutable by the fold only."""

    __slots__ = ("entries",)

    def __init__(self) -> None:
        self.entries: tuple[EpochEntry, ...] = ()

    def assign(self, epoch: int, start_offset: int) -> None:
        """Begin an epoch; entries that contradict it go. Negative values are ignored."""
        if epoch < 0 or start_offset < 0:
            return
        last = self.entries[-1] if self.entries else None
        if last is not None and last.epoch == epoch and start_offset >= last.start_offset:
            return
        kept = tuple(each for each in self.entries if each.epoch < epoch and each.start_offset < start_offset)
        self.entries = (*kept, EpochEntry(epoch, start_offset))

    def end_offset_for(self, epoch: int, log_end_offset: int) -> EpochEntry:
        """Return the largest known epoch at or below the one asked for, and where it ended.

        (-1, -1) for no epoch, and for one newer than all; the log end for the latest.
        """
        undefined = EpochEntry(UNDEFINED_EPOCH, UNDEFINED_OFFSET)
        if epoch == UNDEFINED_EPOCH or not self.entries:
            return undefined
        if epoch == self.entries[-1].epoch:
            return EpochEntry(epoch, log_end_offset)
        above = [each for each in self.entries if each.epoch > epoch]
        below = [each for each in self.entries if each.epoch <= epoch]
        if not above:
            return undefined
        if not below:
            return EpochEntry(epoch, above[0].start_offset)
        return EpochEntry(below[-1].epoch, above[0].start_offset)

    def truncate_from_end(self, end_offset: int) -> None:
        """Forget the epochs that began at or behind a new log end."""
        if end_offset >= 0:
            self.entries = tuple(each for each in self.entries if each.start_offset < end_offset)

    def truncate_from_start(self, start_offset: int) -> None:
        """Forget the epochs below a new log start; the one that holds it begins there now."""
        if start_offset < 0:
            return
        below = [each for each in self.entries if each.start_offset <= start_offset]
        if below:
            rest = tuple(each for each in self.entries if each.start_offset > start_offset)
            self.entries = (EpochEntry(below[-1].epoch, start_offset), *rest)


__all__ = ["UNDEFINED_EPOCH", "UNDEFINED_OFFSET", "EpochEntry", "LeaderEpochCache"]
