"""The current state of a read's topics in the ledgers, and the tasks that read their offsets. Never runs in a task."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from spark_replog.cluster.authorizer import Authorizer, default_principal
from spark_replog.cluster.cluster import Cluster, TopicHandle
from spark_replog.errors import ErrorCode, NotFoundError
from spark_replog.ids import INTERNAL_TOPICS, LedgerId, TopicId, TopicPartition
from spark_replog.log.acl import AclOperation, ResourceType
from spark_replog.log.log_offset import LogOffset
from spark_replog.log.model import LogStartReason
from spark_replog.logs import Once
from spark_replog.read.column_filter import ColumnFilter
from spark_replog.read.fetch_plan import FetchRange, FetchSlice, in_log_order, plan_fetches
from spark_replog.read.rows import RowView
from spark_replog.spark.messages import ReadPartition
from spark_replog.spark.options import SourceOptions, Subscription
from spark_replog.spark.row_form import Versions
from spark_replog.spark.source.positions import OffsetsForTimes
from spark_replog.spark.source.sizing import OffsetRange, coalesce, split_ranges

_LOG = logging.getLogger(__name__)
REPORTED_ABSENT = Once()


@dataclass(frozen=True)
class LogView:
    """The readable log at one moment.

    Attributes:
        bounds: log start offset and high watermark per partition.
        handles: the topics of ``bounds``.
        missing: topics that are subscribed by name and do not exist, with the error to raise.
        unsubscribed: known topics that exist and are no longer subscribed.
        trimmed: partitions whose log start was moved by request, not by retention.
        unclear: topics whose newest entries are unknown, because too few metadata roots answer.
        schemas: the columns of each topic of ``handles``, by version; () for topics of bytes.
    """

    bounds: Mapping[TopicPartition, tuple[int, int]]
    handles: Mapping[str, TopicHandle]
    missing: Mapping[str, NotFoundError] = field(default_factory=dict)
    unsubscribed: frozenset[str] = frozenset()
    unclear: frozenset[str] = frozenset()
    trimmed: frozenset[TopicPartition] = frozenset()
    schemas: Mapping[str, Versions] = field(default_factory=dict)

    @property
    def topic_ids(self) -> dict[str, TopicId]:
        """Return topic name to topic id."""
        return {name: handle.topic_id for name, handle in self.handles.items()}

    @property
    def high_watermarks(self) -> dict[TopicPartition, int]:
        """Return the exclusive end of the readable offsets, per partition."""
        return {key: high_watermark for key, (_, high_watermark) in self.bounds.items()}

    def reaches(self, position: LogOffset) -> bool:
        """Return whether this view has every partition of a position, up to its end."""
        return all(
            key in self.bounds
            and self.bounds[key][1] >= end
            and self.handles[key.topic].topic_id == position.topic_ids.get(key.topic)
            for key, end in position.ends.items()
        )

    def require_all(self) -> LogView:
        """Return self. Raises UNKNOWN_TOPIC_OR_PARTITION: a topic subscribed by name does not exist."""
        for error in self.missing.values():
            raise error
        return self


def view_topics(
    cluster: Cluster, subscription: Subscription, topics_read: Iterable[str] = (), *, principal: str | None = None
) -> LogView:
    """Fold the newest entries of the subscribed topics' ledgers and return the view of the log.

    Costs one fold per ledger, all in parallel, and for a pattern one fold of the cluster ledger.

    Args:
        topics_read: topics that were read before; if not in the view, each is either deleted or no longer subscribed.

    Raises:
        AuthorizationError: TOPIC_AUTHORIZATION_FAILED: the principal may not read a subscribed topic. A
            pattern matches only topics that the principal may describe.
        RetriableError: REPLOG_NO_QUORUM.
    """
    handles: dict[str, TopicHandle] = {}
    bounds: dict[TopicPartition, tuple[int, int]] = {}
    trimmed: set[TopicPartition] = set()
    schemas: dict[str, Versions] = {}
    unclear: set[str] = set()
    authorizer = Authorizer(cluster, principal)
    if subscription.pattern is None:
        names = sorted(subscription.assignment or subscription.topics)
    else:
        pattern = re.compile(subscription.pattern)
        every = cluster.topic_names()  # folds the ACLs as well
        matching = [name for name in every if name not in INTERNAL_TOPICS and pattern.search(name)]
        names = authorizer.allowed_topics(AclOperation.DESCRIBE, matching)
    folded, missing = cluster.fold_topics(
        names, partial(authorizer.require, AclOperation.READ, ResourceType.TOPIC, *names)
    )
    fresh = {handle.ledger_id for handle in folded.values()}
    for name, handle in folded.items():
        try:
            handle, topic_bounds, cut, is_unclear, schemas[name] = _bounds_of(cluster, handle, fresh)
        except NotFoundError as error:
            missing[name] = error
            continue
        handles[name] = handle
        if is_unclear:
            unclear.add(name)
        trimmed.update(TopicPartition(name, partition) for partition in cut)
        wanted = None if subscription.assignment is None else subscription.assignment[name]
        for partition, limits in enumerate(topic_bounds):
            if wanted is None or partition in wanted:
                bounds[TopicPartition(name, partition)] = limits
        absent = [partition for partition in wanted or () if partition >= len(topic_bounds)]
        if absent and REPORTED_ABSENT.is_first((name, *absent)):
            text = "assign names partitions %s of topic '%s', which has %d partitions: they are left out"
            _LOG.warning(text, absent, name, len(topic_bounds))
    if subscription.pattern is not None:  # deleted since, so they no longer match
        missing = {}
    dropped = [name for name in topics_read if name not in handles and name not in missing]
    unsubscribed = frozenset(dropped).intersection(cluster.topic_names()) if dropped else frozenset()
    if (missing or dropped) and cluster.cluster_ledger.is_tail_unclear:
        unclear |= missing.keys() | set(dropped) - unsubscribed
    return LogView(bounds, handles, missing, unsubscribed, frozenset(unclear), frozenset(trimmed), schemas)


def offsets_for_times_of(cluster: Cluster, view: LogView) -> OffsetsForTimes:
    """Return the function that finds the offsets of times in a view. It reads sections only if needed."""

    def find(times_ms: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int | None]:
        from spark_replog.read.offsets_for_times import offsets_for_times

        all_offsets: dict[TopicPartition, int | None] = {}
        for name in sorted({key.topic for key in times_ms}):
            handle = view.handles[name]
            wanted = {key.partition: time_ms for key, time_ms in times_ms.items() if key.topic == name}
            ledger = cluster.topic_ledger(handle.ledger_id)
            offsets = offsets_for_times(ledger, cluster.brokers, name, handle.topic_id, wanted)
            all_offsets.update({TopicPartition(name, partition): offset for partition, offset in offsets.items()})
        return all_offsets

    return find


def final_ends(cluster: Cluster, handles: Mapping[TopicId, TopicHandle], topic_id: TopicId) -> dict[int, int]:
    """Return the high watermarks of a known topic's partitions, even of a deleted topic."""
    handle = handles.get(topic_id)
    if handle is None:
        return {}
    ledger = cluster.topic_ledger(handle.ledger_id)
    ledger.refresh()
    with ledger.lock:
        topic = ledger.state.topics.get(handle.topic_id)
        return {} if topic is None else {number: log.high_watermark for number, log in enumerate(topic.partitions)}


def plan_partitions(
    cluster: Cluster,
    view: LogView,
    ranges: Sequence[OffsetRange],
    options: SourceOptions,
    views: Mapping[str, RowView] | None = None,
    *,
    range_count: int = 0,
    filters: tuple[ColumnFilter, ...] = (),
) -> list[ReadPartition]:
    """Return one input partition per range of the current log, more or fewer if the options say so.

    Args:
        views: of typed topics, by name.
        range_count: see ``split_ranges``.
        filters: by which tasks leave sections out.

    Raises REPLOG_DATA_LOSS: a part of a range does not exist.
    """
    pieces = split_ranges(
        ranges,
        partitions_min=options.partitions_min,
        rows_per_partition_max=options.rows_per_partition_max,
        range_count=range_count,
    )
    quota = cluster.fetch_quota(options.principal or default_principal(), options.client_id)
    wanted: dict[OffsetRange, FetchRange] = {}
    by_ledger: dict[LedgerId, list[FetchRange]] = {}
    for piece in pieces:
        (name, partition), start, end = piece.topic_partition, piece.start, piece.end
        handle = view.handles[name]
        wanted[piece] = where = FetchRange(name, handle.topic_id, partition, start, end, handle.ledger_id)
        by_ledger.setdefault(handle.ledger_id, []).append(where)
    plans: dict[FetchRange, tuple[FetchSlice, ...]] = {}
    for ledger_id, asked in by_ledger.items():  # each ledger once
        ledger_plans = cluster.topic_ledger(ledger_id).ask(partial(plan_fetches, asked))
        plans.update(zip(asked, ledger_plans, strict=True))
    partitions = []
    for group in coalesce(pieces, options.partitions_max):
        planned = tuple(wanted[piece] for piece in group)
        slices = in_log_order([plans[fetch_range] for fetch_range in planned])
        shown = {where.topic_id: views[where.topic] for where in planned if views and where.topic in views}
        partitions.append(ReadPartition(planned, slices, cluster.brokers, quota, shown, filters))
    return partitions


def _bounds_of(
    cluster: Cluster, handle: TopicHandle, fresh: set[str]
) -> tuple[TopicHandle, list[tuple[int, int]], list[int], bool, Versions]:
    """Return a topic's handle, its partitions' bounds, the numbers of partitions trimmed by request, whether its
    newest entries are unknown, and the versions of its columns.

    A recreated topic is looked up again.
    """
    for is_last in (False, True):
        ledger = cluster.topic_ledger(handle.ledger_id)
        if handle.ledger_id not in fresh:
            ledger.refresh()
            fresh.add(handle.ledger_id)
        with ledger.lock:
            topic = ledger.state.topics.get(handle.topic_id)
            if topic is not None and not topic.closed:
                bounds = [(item.log_start_offset, item.high_watermark) for item in topic.partitions]
                cut = [
                    number
                    for number, item in enumerate(topic.partitions)
                    if item.log_start_offset > 0 and item.log_start_reason is LogStartReason.DELETE_RECORDS
                ]
                return handle, bounds, cut, ledger.is_tail_unclear, topic.schemas
        if not is_last:
            cluster.refresh()
            handle = cluster.lookup(handle.name)
    raise NotFoundError(
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        f"topic '{handle.name}' was deleted. Create it again, or stop reading it.",
        topic=handle.name,
    )
