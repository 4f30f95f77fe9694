"""Who leads a partition next, and where each leader epoch began. Pure.

Source: Kafka's ``PartitionLeaderElectionAlgorithms`` and ``LeaderEpochFileCache`` (KIP-101, KIP-279). The caller
decides which brokers are live: the fold takes those that are not fenced, an admin command those whose root answers
as well. Offsets that are given again after a truncation differ in their epoch only.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from spark_replog.ids import BrokerId

NO_LEADER: BrokerId = -1
"""The leader of a partition that has none."""


class Election(NamedTuple):
    """An outcome. ``is_unclean``: the leader was out of sync, so rows that were readable may be lost."""

    leader: BrokerId
    isr: tuple[BrokerId, ...]
    is_unclean: bool = False


def elect_offline(
    assignment: Sequence[BrokerId],
    isr: Sequence[BrokerId],
    live: Collection[BrokerId],
    *,
    is_unclean_allowed: bool = False,
) -> Election | None:
    """Elect where the leader is gone: the first live in-sync replica; unclean, the first live one."""
    for broker_id in assignment:
        if broker_id in live and broker_id in isr:
            return Election(broker_id, tuple(each for each in isr if each in live))
    if is_unclean_allowed:
        for broker_id in assignment:
            if broker_id in live:
                return Election(broker_id, (broker_id,), True)
    return None


def elect_reassigned(
    target: Sequence[BrokerId], isr: Sequence[BrokerId], live: Collection[BrokerId]
) -> Election | None:
    """Elect among the target of a reassignment: its first live in-sync replica."""
    for broker_id in target:
        if broker_id in live and broker_id in isr:
            return Election(broker_id, tuple(isr))
    return None


def elect_preferred(
    assignment: Sequence[BrokerId], isr: Sequence[BrokerId], live: Collection[BrokerId]
) -> Election | None:
    """Elect the first assigned replica, if it is live and in sync."""
    first = assignment[0]
    return Election(first, tuple(isr)) if first in live and first in isr else None


def elect_controlled_shutdown(
    assignment: Sequence[BrokerId],
    isr: Sequence[BrokerId],
    live: Collection[BrokerId],
    shutting_down: Collection[BrokerId],
) -> Election | None:
    """Elect while brokers are taken out of service: the first live in-sync replica that stays."""
    for broker_id in assignment:
        if broker_id in live and broker_id in isr and broker_id not in shutting_down:
            return Election(broker_id, tuple(each for each in isr if each not in shutting_down))
    return None


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
