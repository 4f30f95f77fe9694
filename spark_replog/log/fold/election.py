"""Who leads a partition next. Pure: one vector in, one leader out.

Source: Kafka's ``PartitionLeaderElectionAlgorithms``. "Live" is whoever asks to say: the fold takes the
brokers that are not fenced, an admin command those whose root answers as well.
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
