"""When enough replicas hold a row: the rules that senders, commits and the fold share. Pure.

With acks=all a row is acknowledged when every in-sync replica holds it, and at least ``min.insync.replicas`` are in
sync. Two questions follow, and the sender and the commit must answer them alike:

* Whose copy counts? That of an in-sync replica, and that of a spare: an assigned replica in service that is out of
  sync, since the commit can let it join. A fenced broker can lead nothing and join nothing, so its copy never counts.
* Who may leave the ISR for being late? Replicas beyond ``replica.lag.time.max.ms``, as long as
  ``min.insync.replicas`` others stay. Without the last ones nothing could be acknowledged, so an append waits for
  them until its own time-out (``request.timeout.ms``). A slow root makes writes slow, never impossible.

Source: Kafka's ``Partition.maybeShrinkIsr`` and ``Partition.checkEnoughReplicasReachOffset``; Kafka shrinks below
``min.insync.replicas`` too, because a broker that lags there is likely to be dead.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from spark_replog.ids import BrokerId


def passes_high_watermark(holders: Collection[BrokerId], isr: Collection[BrokerId], min_insync: int) -> bool:
    """Return whether the high watermark may pass an object's rows: the only place of this rule.

    Every in-sync replica holds the object, and at least ``min_insync`` replicas are in sync.
    """
    return len(isr) >= min_insync and all(map(holders.__contains__, isr))


def spare_replicas(
    replicas: Iterable[BrokerId], in_sync: Collection[BrokerId], fenced: Collection[BrokerId]
) -> tuple[BrokerId, ...]:
    """Return the assigned replicas that are out of sync and may join, ascending."""
    return tuple(sorted(each for each in replicas if each not in in_sync and each not in fenced))


def leaving_replicas(
    late: Collection[BrokerId], partitions: Iterable[tuple[Collection[BrokerId], int]]
) -> frozenset[BrokerId]:
    """Return which of the late replicas may leave the ISR now.

    A broker leaves every ISR of a ledger at once. The late replicas of a partition leave together or not at all: it
    is not known yet which of them is faster.

    Args:
        late: brokers that are later than ``replica.lag.time.max.ms``.
        partitions: per partition that waits: its in-sync replicas and its ``min.insync.replicas``.
    """
    leaving = frozenset(late)
    gates = sorted(
        ((frozenset(in_sync), min_insync) for in_sync, min_insync in partitions), key=lambda each: len(each[0])
    )
    while True:
        needed = next(
            (in_sync & leaving for in_sync, least in gates if len(in_sync - leaving) < least <= len(in_sync)), None
        )
        if needed is None:
            break
        leaving -= needed  # those of the smallest ISR first: it has the least choice
    assert leaving <= frozenset(late)
    return leaving
