"""What a store costs at its present pace: requests and bytes by price list. Pure.

Object size and objects per entry are those of each ledger's newest entries. Not counted: snapshots, retention, garbage
collection, compaction and group commits.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from math import inf
from typing import NamedTuple

from spark_replog.errors import ErrorCode, InvalidConfigError
from spark_replog.health.store import StoreView, TopicDescription, growth_of
from spark_replog.ids import LedgerId
from spark_replog.log.fold.object_table import RecentWrites

DAYS_A_MONTH = 30
DAY_SECONDS = 86_400
FORMULA = (
    "objects a day = bytes a day / bytes an object, and a task makes an object for each set of replicas, of each typed "
    "topic one of its own; creates = objects x copies + entries x metadata roots; "
    "gets = 2 x entries x metadata roots + readers x (objects + looks x metadata roots); a month = 30 such days, and "
    "what all copies hold now"
)


class Price(NamedTuple):
    """Of 1,000 requests of a kind, and of 10^9 bytes for a month."""

    create: float = 0.0
    get: float = 0.0
    list: float = 0.0
    month: float = 0.0


class Prices(NamedTuple):
    """Prices by scheme of roots; a scheme that is not there is free."""

    currency: str
    as_of: str
    by_scheme: Mapping[str, Price]


class TopicCost(NamedTuple):
    """One topic.

    Attributes:
        creates_per_day, gets_per_day: on all roots.
        bytes_per_day: written to all copies.
        month: price of these and of what the copies hold.
    """

    topic: str
    creates_per_day: float
    gets_per_day: float
    bytes_per_day: float
    copy_bytes: int
    month: float


def read_prices(text: str) -> Prices:
    """Return the prices of a TOML file; REPLOG_INVALID_OPTION if one is not a finite number of 0 or more."""
    try:
        document = tomllib.loads(text)
        tables = {scheme: dict(table) for scheme, table in document.items() if isinstance(table, dict)}
        for table in tables.values():
            table.pop("source", None)
            for name, value in table.items():
                if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < inf:
                    raise ValueError(f"{name} = {value!r}")
        return Prices(
            str(document.get("currency", "")),
            str(document.get("as_of", "")),
            {scheme: Price(**tables[scheme]) for scheme in tables},
        )
    except (ValueError, TypeError) as error:
        raise InvalidConfigError(
            ErrorCode.REPLOG_INVALID_OPTION,
            f"the prices cannot be read: {error}. Give a table per scheme (s3, gs, abfs, webhdfs, file) with create, "
            "get, list and month as numbers.",
        ) from error


def costs_of(
    view: StoreView,
    writes: Mapping[LedgerId, RecentWrites],
    prices: Prices,
    *,
    reader_count: int,
    look_interval_ms: int,
) -> list[TopicCost]:
    """Return what each topic costs, dearest first.

    Args:
        writes: the newest entries of each ledger.
        reader_count: queries and consumers of each topic; each reads every object with one request.
        look_interval_ms: how often a reader looks for new entries.
    """
    metadata = [broker.url.partition("://")[0] for broker in view.brokers if broker.is_metadata]
    looks = reader_count * DAY_SECONDS * 1000 / look_interval_ms
    costs = [
        _cost_of(view, topic, writes.get(topic.ledger_id, RecentWrites()), prices, metadata, reader_count, looks)
        for topic in view.topics
    ]
    return sorted(costs, key=lambda cost: (-cost.month, cost.topic))


def _cost_of(
    view: StoreView,
    topic: TopicDescription,
    recent: RecentWrites,
    prices: Prices,
    metadata: Iterable[str],
    reader_count: int,
    looks: float,
) -> TopicCost:
    per_day = growth_of(topic, view.now_ms).bytes_per_day
    # The entries of a ledger name these bytes; a topic that shares it takes its part of them by its bytes.
    objects = per_day * recent.object_count / recent.size_bytes if recent.size_bytes else 0.0
    entries = objects * recent.entry_count / recent.object_count if recent.object_count else 0.0
    copies = recent.copy_count / recent.object_count if recent.object_count else 0.0
    creates = gets = month = 0.0

    def add(scheme: str, create: float, get: float, kept_bytes: float = 0.0) -> None:
        nonlocal creates, gets, month
        price = prices.by_scheme.get(scheme, Price())
        creates, gets = creates + create, gets + get
        month += DAYS_A_MONTH * (create * price.create + get * price.get) / 1000 + kept_bytes / 1e9 * price.month

    for scheme in metadata:
        add(scheme, entries, 2 * entries + looks)  # to plan, and to look for a newer marker
    placed = sum(len(part.replicas) for part in topic.partitions)
    for broker in view.brokers:
        parts = [part for part in topic.partitions if broker.broker_id in part.replicas]
        share = len(parts) / placed if placed else 0.0
        kept = sum(part.size_bytes for part in parts)
        add(broker.url.partition("://")[0], objects * copies * share, reader_count * objects * share, kept)
    kept_bytes = sum(part.size_bytes * len(part.replicas) for part in topic.partitions)
    return TopicCost(topic.name, creates, gets, per_day * copies, kept_bytes, month)
