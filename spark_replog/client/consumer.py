"""The plain Python consumer: the same log, plan and reader as Spark's source, without Spark.

Source: Kafka ``KafkaConsumer``. For one thread.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Concatenate, NoReturn, ParamSpec, TypeVar

import pyarrow as pa

from spark_replog.client.consumer_record import ConsumerRecord, ConsumerRecords
from spark_replog.client.group_membership import GroupMembership
from spark_replog.client.positions import OffsetCommitter, PositionKeeper
from spark_replog.client.record_fetcher import ConsumerMetrics, FetchedRows, RecordFetcher
from spark_replog.client.settings import ConsumerSettings
from spark_replog.client.subscription_state import SubscriptionState, whole_number
from spark_replog.cluster.authorizer import Authorizer
from spark_replog.cluster.cluster import Cluster, StorePath, TopicHandle
from spark_replog.errors import ErrorCode, InvalidConfigError, NotFoundError, ReplogError, stays_in_process
from spark_replog.groups.group_coordinator import GroupCoordinator
from spark_replog.ids import TopicPartition
from spark_replog.ledger.ledger import mark
from spark_replog.log.acl import AclOperation, ResourceType
from spark_replog.log.codec.group_records import OffsetAndMetadata
from spark_replog.read.batch_joiner import join_small
from spark_replog.read.rows import log_column, read_schema
from spark_replog.storage.call_counter import totals
from spark_replog.write.interceptors import ask

RebalanceListener = Callable[[list[TopicPartition]], None]


class AccessGuard:
    """Lets one thread at a time use a consumer, in the process that made it, until it is closed.

    ``with guard:`` around each call; ``wakeup`` alone is for other threads. Listeners and interceptors run in the same
    thread, so their calls are allowed. Source: Kafka's ``KafkaConsumer.acquireAndEnsureOpen`` and ``WakeupException``.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._process_id = os.getpid()
        self._has_wakeup = threading.Event()
        self.is_closed = False

    @property
    def is_elsewhere(self) -> bool:
        """Return whether this is a forked child of the process that made the consumer."""
        return os.getpid() != self._process_id

    def __enter__(self) -> None:
        """Take the consumer.

        Raises:
            ReplogError: REPLOG_NOT_FORK_SAFE, REPLOG_CONCURRENT_ACCESS; INVALID_REQUEST: it is closed.
        """
        if self.is_elsewhere:
            raise ReplogError(
                ErrorCode.REPLOG_NOT_FORK_SAFE,
                f"this consumer was made in process {self._process_id}, before a fork. Make one in this process.",
            )
        if not self._lock.acquire(blocking=False):
            raise ReplogError(
                ErrorCode.REPLOG_CONCURRENT_ACCESS,
                "another thread uses this consumer now. Make one consumer per thread; only wakeup() may be called from"
                " other threads.",
            )
        if self.is_closed:
            self._lock.release()
            raise ReplogError(ErrorCode.INVALID_REQUEST, "this consumer is closed. Make a new one.")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release the consumer."""
        self._lock.release()

    def wakeup(self) -> None:
        """End the waiting poll, or the next one."""
        self._has_wakeup.set()

    def forget_wakeup(self) -> None:
        """Cancel a ``wakeup`` that no poll has raised yet."""
        self._has_wakeup.clear()

    def check_wakeup(self) -> None:
        """Raise once after ``wakeup``.

        Raises:
            ReplogError: REPLOG_WAKEUP.
        """
        if self._has_wakeup.is_set():
            self._has_wakeup.clear()
            raise ReplogError(
                ErrorCode.REPLOG_WAKEUP, "wakeup() ended the poll; no record was lost. Poll again, or close."
            )


_Call = ParamSpec("_Call")
_Answer = TypeVar("_Answer")


def guarded(method: Callable[Concatenate[Consumer, _Call], _Answer]) -> Callable[Concatenate[Consumer, _Call], _Answer]:
    """Make a method take its consumer's guard."""

    @functools.wraps(method)
    def call(self: Consumer, /, *args: _Call.args, **named: _Call.kwargs) -> _Answer:
        with self._guard:
            return method(self, *args, **named)

    return call


class Consumer:
    """Reads topics of a store as records or as Arrow. For one thread, which is checked; a context manager.

    Args:
        store: path of the store, or an opened ``Cluster``.
        topics: to subscribe to; none: call ``subscribe`` or ``assign``.
        config: Kafka's dotted names, and ``storage.`` options.
        group: short for ``group.id``.
        settings: the same settings as keywords: dots are underscores.

    Raises:
        InvalidConfigError: REPLOG_UNKNOWN_OPTION, REPLOG_INVALID_OPTION, REPLOG_CONFLICTING_OPTIONS.
        NotFoundError: REPLOG_STORE_NOT_INITIALISED.
    """

    def __init__(
        self,
        store: StorePath | Cluster,
        *topics: str,
        config: Mapping[str, object] | None = None,
        group: str | None = None,
        **settings: object,
    ) -> None:
        options = ConsumerSettings.read(config or {}, group, settings)
        self._config, self._maker, self._interceptors = options.consumer, options.maker, options.interceptors
        self._cluster = Cluster.of(store, options.storage, options.coordinator)
        self._authorizer = Authorizer(self._cluster, self._config.principal)
        self._counters = ConsumerMetrics()
        self._guard = AccessGuard()
        self._subscription = SubscriptionState()
        self._fetcher = RecordFetcher(self._cluster, self._config, self._counters, on_look=self._guard.check_wakeup)
        self._coordinator = GroupCoordinator(
            self._cluster,
            principal=self._config.principal,
            retention_minutes=self._config.offsets_retention_minutes,
        )
        self._membership = GroupMembership(
            self._cluster,
            self._coordinator,
            self._config,
            self._subscription,
            last_commit=lambda: self._committer.prepare(),  # made below
            on_look=self._guard.check_wakeup,
            on_gets=self._fetcher.spend,
        )
        self._committer = OffsetCommitter(
            self._cluster.clock,
            self._coordinator,
            self._config,
            self._subscription,
            self._membership,
            topic_id_of=self._fetcher.topic_id,
        )
        self._keeper = PositionKeeper(self._cluster, self._config, self._subscription, self._committer)
        self._is_closing = False
        calls = totals(self._cluster.brokers.calls.read())
        self._gets_before = self._cluster.clock.monotonic_ms(), calls["storage_get"]
        if topics:
            self.subscribe(topics)

    # ------------------------------------------------------------------------------------ what to read

    @guarded
    def subscribe(
        self,
        topics: Collection[str] = (),
        *,
        pattern: str | None = None,
        on_assigned: RebalanceListener | None = None,
        on_revoked: RebalanceListener | None = None,
        on_lost: RebalanceListener | None = None,
    ) -> None:
        """Read topics, by name or by a regular expression. With ``group.id`` the members share the partitions.

        Without a group this consumer reads all partitions (Kafka requires a group here).

        Args:
            topics: names; replaces an earlier subscription.
            pattern: a Python ``re`` that matches whole names, as in Kafka; also matches topics created later.
            on_assigned: called from ``poll`` with the new partitions.
            on_revoked: called before partitions are revoked: commit there.
            on_lost: called after partitions were lost because this member was fenced; default ``on_revoked``.

        Raises:
            InvalidConfigError: REPLOG_CONFLICTING_OPTIONS, REPLOG_INVALID_OPTION, INVALID_TOPIC_EXCEPTION.
        """
        if isinstance(topics, str):
            topics = [topics]
        if not topics and pattern is None:
            self.unsubscribe()
            return
        if topics and pattern is not None:
            raise InvalidConfigError(
                ErrorCode.REPLOG_CONFLICTING_OPTIONS, "topics and a pattern exclude each other. Give one of them."
            )
        self._subscription.subscribe(topics, pattern)
        self._membership.listen(on_assigned, on_revoked, on_lost)

    @guarded
    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions, without group membership. None of them is the same as ``unsubscribe``.

        Raises:
            InvalidConfigError: REPLOG_CONFLICTING_OPTIONS: a subscription exists.
        """
        wanted, before = list(partitions), set(self._subscription.positions)
        if not wanted:
            self.unsubscribe()
            return
        self._subscription.assign(wanted)
        self._forget(before - set(self._subscription.positions))

    @guarded
    def unsubscribe(self) -> None:
        """Read nothing, and leave the group."""
        self._membership.leave()
        self._forget(self._subscription.positions)
        self._subscription.unsubscribe()

    def subscription(self) -> set[str]:
        """Return the topics subscribed to by name."""
        return set(self._subscription.topics)

    def assignment(self) -> set[TopicPartition]:
        """Return the assigned partitions; a subscription has none before the first poll."""
        return set(self._subscription.positions)

    # ------------------------------------------------------------------------------------------ reading

    @guarded
    def poll(self, timeout_ms: int = 0, max_records: int | None = None) -> ConsumerRecords:
        """Return the next records, at most ``max.poll.records``; none on timeout. Positions move past them.

        Args:
            timeout_ms: the longest wait for the first record. 0: return the records that are there now; this reads the
                newest entries, one get per metadata root and ledger. Otherwise a topic without new rows is looked at
                after a pause, which also goes on from poll to poll: see ``fetch.refresh.interval.ms``.
            max_records: overrides ``max.poll.records``; 0: only take part in the group and find the positions.

        Raises:
            InvalidConfigError: INVALID_REQUEST: the timeout or the number is negative.
            ReplogError: INVALID_REQUEST: nothing is subscribed or assigned; REPLOG_NO_OFFSET_FOR_PARTITION,
                OFFSET_OUT_OF_RANGE: with ``auto.offset.reset`` none;
                REPLOG_DESERIALIZATION; UNKNOWN_TOPIC_OR_PARTITION; FENCED_INSTANCE_ID; REPLOG_WAKEUP; and the
                errors of reading.
        """
        limit = self._config.max_poll_records if max_records is None else max_records
        for name, value in (("timeout_ms", timeout_ms), ("max_records", limit)):
            if value < 0:
                raise InvalidConfigError(ErrorCode.INVALID_REQUEST, f"Invalid {name} {value}: give 0 or more.")
        deadline_ms = self._cluster.clock.monotonic_ms() + timeout_ms
        records: list[ConsumerRecord] = []
        try:
            for key, batch, position in self._batches(deadline_ms, limit):
                made, refusal = self._maker.make(key, batch)
                records += made
                if refusal is None or made:
                    self._subscription.position(key).offset = position if refusal is None else made[-1].offset + 1
                if refusal is not None:
                    if not records:
                        raise refusal
                    break
            result = ConsumerRecords(records)
            for interceptor in self._interceptors:
                answer = ask(interceptor, "on_consume", result)
                result = result if answer is None else answer
        except BaseException:  # as Ctrl-C: these records are not returned, so the last auto commit must not count them
            for record in reversed(records):
                at = self._subscription.positions.get(TopicPartition(record.topic, record.partition))
                if at is not None and at.offset is not None and record.offset < at.offset:
                    at.offset = record.offset
            raise
        return result

    def __iter__(self) -> Iterator[ConsumerRecord]:
        """Yield records for ever, waiting for new ones; see ``one_by_one``."""
        while True:
            yield from self.one_by_one(self.poll(timeout_ms=self._config.fetch_max_wait_ms))

    def one_by_one(self, records: ConsumerRecords) -> Iterator[ConsumerRecord]:
        """Return an iterator of the records of the last poll: a position moves past a record when it is yielded.

        So a loop that ends early, and a commit in it, count no record that the loop did not get. The others are polled
        again. As in kafka-python.
        """
        positions = self._subscription.positions
        next_offsets: dict[TopicPartition, int] = {}
        last_offsets: dict[TopicPartition, int] = {}
        for record in records:
            key = TopicPartition(record.topic, record.partition)
            next_offsets.setdefault(key, record.offset)
            last_offsets[key] = record.offset
        ends = {key: positions[key].offset for key in next_offsets if key in positions}
        for key in ends:
            positions[key].offset = next_offsets[key]

        def walk() -> Iterator[ConsumerRecord]:
            for record in records:
                key = TopicPartition(record.topic, record.partition)
                at = self._subscription.positions.get(key)
                if at is None or at.is_paused or at.offset != next_offsets[key]:
                    continue  # set by a seek, a poll or a rebalance since, or paused: polled again from the position
                after = ends[key] if record.offset == last_offsets[key] else None
                next_offsets[key] = at.offset = record.offset + 1 if after is None else after
                yield record

        return walk()

    def to_batches(self, timeout_ms: int = 0) -> Iterator[pa.RecordBatch]:
        """Yield the rows from the positions to the current high watermarks, as Arrow, without deserializers.

        Columns of ``rows.read_schema(True)``: key, value, topic, partition, offset, timestamp, timestampType,
        headers; of a typed topic its columns, then the log's as in a scan. A position moves past a batch when the next
        batch is requested, unless it was set meanwhile.

        Args:
            timeout_ms: how long a group may take to assign partitions.

        Raises:
            ReplogError: as ``poll``.
        """
        with self._guard:
            deadline_ms = self._cluster.clock.monotonic_ms() + timeout_ms
            try:
                handles, ends = self._checked_ends(deadline_ms)
            except NotFoundError:
                if not self._membership.look_again():
                    raise
                handles, ends = self._checked_ends(deadline_ms)
            spans = {}
            for key, end in ends.items():
                offset = self._subscription.position(key).offset
                if offset is not None and offset < end:
                    spans[key] = (offset, end)
            self._fetcher.drop_rows(spans)
        reached = {key: start for key, (start, _) in spans.items()}
        for key, batch, position in self._fetcher.scan(spans, handles):
            if batch.num_rows:
                yield batch
            at = self._subscription.positions.get(key)
            if at is not None and at.offset == reached[key]:  # else a seek, a poll or a rebalance has set it
                at.offset = position
            reached[key] = position

    def to_arrow(self, timeout_ms: int = 0) -> pa.Table:
        """Return the rows of ``to_batches`` as one table, all in memory.

        Raises:
            InvalidConfigError: REPLOG_INVALID_SCHEMA: the topics have different columns.
        """
        joined = list(join_small(_of_one_schema(self.to_batches(timeout_ms))))
        return pa.Table.from_batches(joined, schema=joined[0].schema if joined else read_schema(True))

    # ---------------------------------------------------------------------------------------- positions

    @guarded
    def position(self, key: TopicPartition) -> int:
        """Return the offset of the next record; look it up if it is unknown.

        Raises:
            ReplogError: INVALID_REQUEST: not assigned; REPLOG_NO_OFFSET_FOR_PARTITION.
        """
        at = self._subscription.position(key)
        if at.offset is None:  # else other partitions without a position do not matter, as in Kafka
            self._keeper.update(AclOperation.DESCRIBE)
        assert at.offset is not None
        return at.offset

    @guarded
    def seek(self, key: TopicPartition, offset: int | OffsetAndMetadata) -> None:
        """Continue from an offset, or from a result of ``committed``. As in Kafka, the offset is not checked here.

        Raises:
            InvalidConfigError: INVALID_REQUEST: not a whole number, or negative.
            ReplogError: INVALID_REQUEST: not assigned.
        """
        wanted = offset.offset if isinstance(offset, OffsetAndMetadata) else offset
        number = whole_number(wanted)
        if number is None or number < 0:
            raise InvalidConfigError(
                ErrorCode.INVALID_REQUEST, f"cannot seek to {wanted!r}. Give a whole number, 0 or more."
            )
        at = self._subscription.position(key)
        at.offset, at.reset = number, None
        self._fetcher.sought([key])

    @guarded
    def seek_to_beginning(self, partitions: Collection[TopicPartition] = ()) -> None:
        """Continue from the log start offsets, looked up at the next poll; without partitions: all assigned ones."""
        self._reset(partitions, "earliest")

    @guarded
    def seek_to_end(self, partitions: Collection[TopicPartition] = ()) -> None:
        """Continue from the high watermarks, looked up at the next poll."""
        self._reset(partitions, "latest")

    @guarded
    def seek_to_time(self, timestamp_ms: int, partitions: Collection[TopicPartition] = ()) -> None:
        """Continue from the first record at or after a time; from the end if there is none."""
        keys = list(partitions) or list(self._subscription.positions)
        offsets = self.offsets_for_times(dict.fromkeys(keys, timestamp_ms))
        for key, offset in offsets.items():
            if offset is None:
                self._reset([key], "latest")
            else:
                self.seek(key, offset)

    @guarded
    def offsets_for_times(self, times_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """Return per partition the first offset whose timestamp is at or after a time; None: no such record."""
        return self._keeper.offsets_for_times(times_ms)

    @guarded
    def beginning_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the log start offsets on the newest fold."""
        return {key: start for key, (start, _) in self._keeper.bounds(partitions).items()}

    @guarded
    def end_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the high watermarks on the newest fold."""
        return {key: end for key, (_, end) in self._keeper.bounds(partitions).items()}

    @guarded
    def current_lag(self, key: TopicPartition) -> int | None:
        """Return how many offsets the position is behind the high watermark as last folded; reads no storage.

        None: the position is unknown.

        Raises:
            ReplogError: INVALID_REQUEST: not assigned.
        """
        return self._keeper.lag(key)

    @guarded
    def partitions_for(self, topic: str) -> list[TopicPartition]:
        """Return a topic's partitions on the newest fold.

        Raises:
            AuthorizationError: TOPIC_AUTHORIZATION_FAILED.
            NotFoundError: UNKNOWN_TOPIC_OR_PARTITION.
        """
        self._cluster.refresh_if_stale()
        self._authorizer.require(AclOperation.DESCRIBE, ResourceType.TOPIC, topic)
        _, state = self._cluster.folded_topic(self._cluster.newest_topics([topic])[topic])
        return [TopicPartition(topic, number) for number in range(len(state.partitions))]

    @guarded
    def list_topics(self) -> list[str]:
        """Return the names of the topics that this reader may see, sorted, including the internal one."""
        return self._authorizer.allowed_topics(AclOperation.DESCRIBE, self._cluster.topic_names())

    @guarded
    def pause(self, partitions: Collection[TopicPartition]) -> None:
        """Return no records of these partitions until ``resume``; keep the buffered rows."""
        for key in partitions:
            self._subscription.position(key).is_paused = True

    @guarded
    def resume(self, partitions: Collection[TopicPartition]) -> None:
        """Return records of these partitions again."""
        for key in partitions:
            self._subscription.position(key).is_paused = False

    def paused(self) -> set[TopicPartition]:
        """Return the paused partitions."""
        return {key for key, at in self._subscription.positions.items() if at.is_paused}

    # -------------------------------------------------------------------------------------- commits

    @guarded
    def commit(self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None) -> None:
        """Commit offsets, each the NEXT to read; None: the positions of all assigned partitions.

        Raises:
            InvalidConfigError: INVALID_GROUP_ID: no ``group.id``; OFFSET_METADATA_TOO_LARGE.
            FencedError: UNKNOWN_MEMBER_ID, ILLEGAL_GENERATION, FENCED_INSTANCE_ID: others own the partitions now.
            RetriableError: REBALANCE_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE.
            OutcomeUnknownError: REPLOG_COMMIT_OUTCOME_UNKNOWN: commit again.
        """
        committed = self._committer.commit(offsets)
        for interceptor in self._interceptors:
            ask(interceptor, "on_commit", committed)

    @guarded
    def committed(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return the group's committed offsets; None for partitions without one.

        Raises:
            InvalidConfigError: INVALID_GROUP_ID.
        """
        return self._committer.committed(partitions)

    def group_metadata(self) -> tuple[str, int]:
        """Return member id and generation; ('', -1) without membership."""
        identity = self._membership.identity
        return identity.member_id, identity.generation

    @guarded
    def enforce_rebalance(self) -> None:
        """Request a rebalance, which the next polls perform; does nothing without membership."""
        self._membership.enforce_rebalance()

    def metrics(self) -> ConsumerMetrics:
        """Return the counters of this consumer."""
        for name, number in totals(self._cluster.brokers.calls.read()).items():
            setattr(self._counters, name, number)
        (at_ms, count), now_ms = self._gets_before, self._cluster.clock.monotonic_ms()
        if now_ms - at_ms >= 1_000:
            self._counters.storage_get_rate = (self._counters.storage_get - count) * 1000 / (now_ms - at_ms)
            self._gets_before = now_ms, self._counters.storage_get
        return self._counters

    def wakeup(self) -> None:
        """End the waiting ``poll``, or the next one, with REPLOG_WAKEUP. The only call for other threads."""
        self._guard.wakeup()

    def forget_wakeup(self) -> None:
        """Cancel a ``wakeup`` that no poll has raised yet."""
        self._guard.forget_wakeup()

    def close(self) -> None:
        """Commit (with auto commit) and leave the group; a static member stays in it. Repeatable.

        Does nothing in a forked child: the member belongs to the parent.

        Raises:
            ReplogError: REPLOG_CONCURRENT_ACCESS: another thread is in a call; ``wakeup`` ends its poll.
        """
        if self._guard.is_closed or self._is_closing or self._guard.is_elsewhere:
            return
        with self._guard:
            self._is_closing = True
            try:
                if not self._membership.is_member:
                    self._committer.maybe_auto_commit(is_last=True)
            finally:
                try:
                    self._membership.close()  # also commits, and calls on_revoked, which may commit
                finally:
                    self._guard.is_closed = True
                    self._fetcher.close()

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled. Raises REPLOG_NOT_FORK_SAFE."""
        raise stays_in_process("consumer")

    def __enter__(self) -> Consumer:
        """Return self."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    # ------------------------------------------------------------------------------------- internal

    def _ready(self, deadline_ms: int) -> int:
        """Take part in the group, commit if due, and look up unknown positions; return the mark when that began."""
        since = mark()
        self._subscription.check_reads()
        self._membership.poll(deadline_ms)
        self._forget(self._membership.take_revoked())
        self._committer.maybe_auto_commit()
        self._keeper.update(since=since)
        return since

    def _batches(self, deadline_ms: int, limit: int) -> Iterator[FetchedRows]:
        """Yield at most ``limit`` rows: buffered ones, else those of the first fetch that returns any."""
        clock = self._cluster.clock
        may_look_again, may_repeat = True, True
        while True:
            self._guard.check_wakeup()
            try:
                since = self._ready(deadline_ms)
                positions = self._positions()
                taken = list(self._fetcher.take(positions, limit))
                yield from taken
                if any(batch.num_rows for _, batch, _ in taken):
                    return
                positions = self._positions()  # they may have moved past offsets without rows
                rest_ms = deadline_ms - clock.monotonic_ms()
                errors = self._look(positions, max(0, rest_ms), limit, since) if positions else {}
                if errors:
                    self._keeper.recover(errors, self._fetcher.diverged)
                    self._fetcher.forget(errors)
            except NotFoundError:
                if not may_look_again or not self._membership.look_again():
                    raise
                may_look_again = False
                continue
            if positions:
                taken = list(self._fetcher.take(self._positions(), limit))
                yield from taken
                if not limit or any(batch.num_rows for _, batch, _ in taken):
                    return
                if (errors or taken) and (rest_ms >= 0 or may_repeat):
                    may_repeat = rest_ms >= 0  # once even without time left: the new position has rows now
                    continue
            elif rest_ms > 0:
                clock.sleep_ms(min(rest_ms, self._config.retry_backoff_ms))
            if deadline_ms - clock.monotonic_ms() <= 0:
                return

    def _look(
        self, positions: Mapping[TopicPartition, int], rest_ms: int, limit: int, since: int
    ) -> dict[TopicPartition, ErrorCode]:
        """Fetch rows, or only check the positions: rows that are not returned would be read again by each such poll."""
        if limit:
            return self._fetcher.fetch(positions, rest_ms, since)
        return self._fetcher.check_newest(positions, since)

    def _checked_ends(self, deadline_ms: int) -> tuple[dict[str, TopicHandle], dict[TopicPartition, int]]:
        """Return what ``_ends`` returns, with positions that can be read."""
        ends = self._ends(self._ready(deadline_ms))
        errors = self._fetcher.check(self._positions())
        if not errors:
            return ends
        self._keeper.recover(errors, self._fetcher.diverged)
        self._fetcher.forget(errors)
        return self._ends()

    def _ends(self, since: int | None = None) -> tuple[dict[str, TopicHandle], dict[TopicPartition, int]]:
        """Return the topics to read, and the high watermarks of their partitions."""
        keys = self._subscription.fetchable()
        handles = {name: self._cluster.lookup(name) for name in {key.topic for key in keys}}
        return handles, {key: end for key, (_, end) in self._keeper.bounds(keys, since=since).items()}

    def _positions(self) -> dict[TopicPartition, int]:
        return {key: self._subscription.positions[key].offset or 0 for key in self._subscription.fetchable()}

    def _reset(self, partitions: Collection[TopicPartition], to: str) -> None:
        for key in list(partitions) or list(self._subscription.positions):
            at = self._subscription.position(key)
            at.offset, at.reset = None, to
            self._fetcher.sought([key])

    def _forget(self, keys: Iterable[TopicPartition]) -> None:
        """Drop the state of partitions that are no longer read."""
        gone = list(keys)
        self._fetcher.forget(gone)
        self._committer.forget(gone)


def _of_one_schema(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield batches as they come: thousands of small ones take 20 times the memory of their rows.

    Raises:
        InvalidConfigError: REPLOG_INVALID_SCHEMA: one has other columns than the first.
    """
    first: tuple[pa.Schema, str] | None = None
    for batch in batches:
        topic: str = log_column(batch, "topic")[0].as_py()
        first = (batch.schema, topic) if first is None else first
        if batch.schema != first[0]:
            topics = sorted([first[1], topic])
            raise InvalidConfigError(
                ErrorCode.REPLOG_INVALID_SCHEMA,
                f"the topics {' and '.join(topics)} have different columns, which one table cannot hold. Read one at a"
                " time, or use poll() or to_batches().",
            )
        yield batch
