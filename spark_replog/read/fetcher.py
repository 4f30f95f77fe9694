"""Reads planned slices from the roots: in ranges, checked, from any holder. Runs in executors and consumers.

Memory, whatever the size of the partition: reads of at most 16 MiB and one more (prefetch), the rows of one section,
one output batch, and up to 8 MiB of rows that wait for more of their partition. If rows are compressed, also the
decoded rows of two reads: of the current one, if it was decoded ahead, and of the next.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, as_completed, wait
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from spark_replog.clock import SYSTEM_CLOCK, Clock
from spark_replog.errors import (
    CorruptDataError,
    DataLossError,
    ErrorCode,
    NotFoundError,
    ReplogError,
    RetriableError,
)
from spark_replog.ids import BrokerId, TopicId
from spark_replog.log.codec.data_object import decode_section
from spark_replog.log.codec.section_statistics import ObjectStatistics
from spark_replog.log.quotas import FetchQuota, RateKey, SampledRate, throttle_time_ms
from spark_replog.process_state import in_each_child
from spark_replog.read.batch_joiner import BATCH_SIZE_BYTES_MIN, BatchJoiner
from spark_replog.read.column_filter import ColumnFilter, may_match
from spark_replog.read.fetch_plan import FetchSlice
from spark_replog.read.rows import RowView
from spark_replog.storage.brokers import BrokerSet
from spark_replog.storage.io_pool import IO_POOL
from spark_replog.storage.object_store import Buffer
from spark_replog.storage.paths import data_key

HEDGE_RATIO = 0.05
HEDGE_BURST_MAX = 4
"""Second gets allowed above the ratio: the reads that one task has in flight when a root gets slow, and one more."""
KEPT_COUNT = 128
KNOWN_COUNT = 16
"""With fewer reads of a root than this, its p95 is unknown."""
HEDGE_UNKNOWN_MS = 1_000
HEDGE_MIN_MS = 20
"""Lower limit: an earlier second get would only double the load of fast roots."""
AVOIDED_READS = 64
"""How many reads go to other roots after one root was slower than another."""


class HedgeBudget:
    """The durations of each root's latest reads, and how many second gets are left. Thread-safe."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Reset: a forked child measures its own reads, and may have inherited a held lock."""
        self._lock = threading.Lock()
        self._took_ms: dict[str, deque[float]] = {}
        self._left = float(HEDGE_BURST_MAX)
        self.avoided_url, self._avoided_left = "", 0

    def note(self, url: str, took_ms: float, ratio: float) -> None:
        """Record an answered read, which earns a fraction of a second get."""
        with self._lock:
            self._took_ms.setdefault(url, deque(maxlen=KEPT_COUNT)).append(took_ms)
            self._left = min(self._left + ratio, float(HEDGE_BURST_MAX))
            self._avoided_left -= 1
            if self._avoided_left <= 0:
                self.avoided_url = ""

    def after_ms(self, url: str) -> float:
        """Return after how many ms a read of the root is slow: the p95 of its latest reads."""
        with self._lock:
            took_ms = sorted(self._took_ms.get(url, ()))
        return max(took_ms[len(took_ms) * 95 // 100], HEDGE_MIN_MS) if len(took_ms) >= KNOWN_COUNT else HEDGE_UNKNOWN_MS

    def take(self) -> bool:
        """Take one second get; return False if none is left."""
        with self._lock:
            if self._left < 1:
                return False
            self._left -= 1
            return True

    def lost(self, url: str) -> None:
        """Note that a root was slower than another: for a while it is read last."""
        with self._lock:
            self.avoided_url, self._avoided_left = url, AVOIDED_READS


HEDGES = HedgeBudget()
"""The budget of this process."""
in_each_child(HEDGES.forget)


THROTTLE_MS_MAX = 15_000
"""Longest wait after one read: half of the default ``request.timeout.ms``, so that a reader keeps polling."""
LOGGER = logging.getLogger(__name__)
READ_SIZE_BYTES_MAX = 8 * 1024 * 1024
"""Adjacent sections are read together up to this size."""
READ_GAP_BYTES_MAX = 64 * 1024
"""Skipping less than this costs more than reading it."""
PREFETCH_SIZE_BYTES = 2 * READ_SIZE_BYTES_MAX
STATISTICS_READ_BYTES = 64 * 1024
"""Read of an object's end, to find which sections its filters exclude: only where more bytes than this are planned."""
PREFETCH_READS_MAX = 8
"""Reads in flight at once: small ones overlap their waits for a remote root; bytes limit large ones."""

_SIZE_BYTES = pa.RecordBatch.get_total_buffer_size
"""Of a whole decoded batch; `nbytes` adds up the same, and takes 20 times as long. A part of a batch needs `nbytes`."""
_DECODING = "decoding"
"""The lane of `IO_POOL` that decodes reads; a root's lane is its URL."""

_rates: dict[RateKey, SampledRate] = {}
_lock = threading.Lock()


def count_read(quota: FetchQuota, size_bytes: int, clock: Clock) -> int:
    """Count bytes read; return for how many ms nothing is to be read, until the rate is within the quota."""
    now_ms = clock.monotonic_ms()
    with _lock:
        rate = _rates.setdefault(quota.key, SampledRate())
        rate.record(size_bytes, now_ms)
        return throttle_time_ms(
            rate.per_second(now_ms), quota.limit_per_second, rate.elapsed_ms(now_ms), THROTTLE_MS_MAX
        )


def throttle(quota: FetchQuota, size_bytes: int, clock: Clock) -> int:
    """Count bytes read, and wait until the rate is within the quota; return the wait in ms."""
    wait_ms = count_read(quota, size_bytes, clock)
    if wait_ms:
        clock.sleep_ms(wait_ms)
    return wait_ms


@in_each_child
def forget_rates() -> None:
    """Forget the measured rates: a forked child measures its own reads."""
    global _lock
    _lock = threading.Lock()
    _rates.clear()


@dataclass(slots=True)
class FetchStats:
    """Counters of one fetcher: answered reads, waits for the reader's quota, reads also sent to a second root."""

    reads: int = 0
    read_bytes: int = 0
    throttle_time_ms: int = 0
    hedges: int = 0
    skipped_sections: int = 0
    """Of which the filters can match no row."""


_Section: TypeAlias = tuple[FetchSlice, Sequence[pa.RecordBatch]]
"""A slice, and the decoded batches of its whole section."""


@dataclass(slots=True)
class _Read:
    """Slices of one object that one ranged read returns."""

    slices: list[FetchSlice]
    start_byte: int
    end_byte: int
    broker_id: BrokerId = -1
    future: Future[Buffer | None] | None = None
    started_ms: float = 0.0
    decoded: Future[tuple[list[_Section], ReplogError | None]] | None = None


class Fetcher:
    """Reads slices as Arrow batches. One per task; not thread-safe.

    Args:
        quota: how fast this process may read for its client; may be replaced between two fetches.
        hedge_ratio: second gets for slow reads from remote roots, as a fraction of the reads; 0: none.
    """

    def __init__(
        self,
        brokers: BrokerSet,
        *,
        quota: FetchQuota | None = None,
        hedge_ratio: float = HEDGE_RATIO,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._brokers = brokers
        self._clock = clock
        self.quota = quota
        self._hedge_ratio = hedge_ratio
        self._suspects: set[BrokerId] = set()
        self._lock = threading.Lock()  # guards the counts: an abandoned fetch may still be decoding
        self.stats = FetchStats()

    def fetch(
        self,
        slices: Iterable[FetchSlice],
        *,
        include_headers: bool = False,
        batch_bytes_min: int = BATCH_SIZE_BYTES_MIN,
        views: Mapping[TopicId, RowView] | None = None,
        filters: Sequence[ColumnFilter] = (),
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the slices in batches of exactly `rows.read_schema(include_headers)`; those of a typed
        topic: of its view's.

        A batch never spans two partitions, whose rows come in the order of the slices; adjacent rows are joined up to
        `batch_bytes_min`, also if rows of other partitions are between them in the objects. If a copy is absent, short
        or fails its checksum, this is logged and the section is read from another holder.

        Args:
            views: of typed topics; rows of others are read with all columns of the version of their first slice.
            filters: on columns of typed rows. Sections in which no row can satisfy all of them may be left out; the
                others come whole.

        Raises:
            DataLossError: every holder answered, and none has a good copy. REPLOG_DATA_LOSS: no holder has the
                object; CORRUPT_MESSAGE: at least one has it, and every copy found is bad.
            RetriableError: KAFKA_STORAGE_ERROR: no good copy was found, and a holder did not answer (timeout, refused
                credentials, missing mount) or is not among the brokers known here.
        """
        used = dict(views or {})
        if filters:
            slices = self._matching(slices, filters)
        joiner = BatchJoiner(include_headers=include_headers, batch_bytes_min=batch_bytes_min, views=used)
        for piece, stored in self._sections(_viewed(slices, used, include_headers)):
            for first_offset, wanted, size_bytes in _wanted_rows(piece, stored):
                yield from joiner.add(piece, first_offset, wanted, size_bytes)
        yield from joiner.rest()

    def _sections(self, slices: Iterable[FetchSlice]) -> Iterator[_Section]:
        """Yield each slice with the decoded batches of its whole section."""
        ahead: deque[_Read] = deque()
        ahead_bytes = 0
        try:
            for read in _plan_reads(slices):
                self._start(read)
                ahead.append(read)
                ahead_bytes += read.end_byte - read.start_byte
                while len(ahead) >= PREFETCH_READS_MAX or (len(ahead) > 1 and ahead_bytes > PREFETCH_SIZE_BYTES):
                    ahead_bytes -= ahead[0].end_byte - ahead[0].start_byte
                    yield from self._give_out(ahead)
            while ahead:
                yield from self._give_out(ahead)
        finally:
            for read in ahead:
                for future in (read.future, read.decoded):
                    if future is not None:
                        future.cancel()

    def _matching(self, slices: Iterable[FetchSlice], filters: Sequence[ColumnFilter]) -> Iterator[FetchSlice]:
        """Yield the slices of sections that may have a matching row. The ends of some objects are read ahead."""
        ahead: deque[tuple[list[FetchSlice], Future[Buffer | None] | None]] = deque()
        for _, group in groupby(slices, key=lambda piece: piece.object.id):
            pieces = list(group)
            kept = [piece for piece in pieces if piece.schema is None or may_match(filters, piece.schema, None)]
            self.stats.skipped_sections += len(pieces) - len(kept)
            ahead.append((kept, self._ask_statistics(kept)))
            if len(ahead) >= PREFETCH_READS_MAX:
                yield from self._not_excluded(*ahead.popleft(), filters)
        while ahead:
            yield from self._not_excluded(*ahead.popleft(), filters)

    def _ask_statistics(self, pieces: Sequence[FetchSlice]) -> Future[Buffer | None] | None:
        """Begin to read the end of an object; None where that does not pay, or cannot be tried."""
        if sum([piece.size_bytes for piece in pieces]) <= STATISTICS_READ_BYTES or pieces[0].schema is None:
            return None
        item, holders = pieces[0].object, self._holders(pieces[0])
        if item.inline or not holders:
            return None
        start = max(0, item.size_bytes - STATISTICS_READ_BYTES)
        get, key = self._brokers.store(holders[0]).get, data_key(item.ledger_id, *item.id)
        with suppress(RuntimeError):  # no thread can be started: the sections are read
            url = self._brokers.url(holders[0])
            return IO_POOL.submit_to(url, get, key, start=start, size_bytes=item.size_bytes - start)
        return None

    def _not_excluded(
        self, pieces: Sequence[FetchSlice], end: Future[Buffer | None] | None, filters: Sequence[ColumnFilter]
    ) -> Iterator[FetchSlice]:
        """Yield the slices of an object that its statistics do not exclude; without any, and after an error, all."""
        buffer: Buffer | None = None
        if end is not None:
            with suppress(ReplogError, OSError):
                buffer = end.result()
        if buffer is None:
            yield from pieces
            return
        view = memoryview(buffer)
        self._count(view.nbytes)
        assert pieces[0].schema is not None  # all of an object have one version
        of_object = ObjectStatistics(view, pieces[0].schema.arrow)
        for piece in pieces:
            statistics = of_object.of(piece.start_byte, piece.size_bytes, piece.crc32c, piece.row_count)
            if statistics is None or may_match(filters, pieces[0].schema, statistics):
                yield piece
            else:
                self.stats.skipped_sections += 1

    def _give_out(self, ahead: deque[_Read]) -> Iterator[_Section]:
        """Yield the sections of the first read; if its first is compressed, decode the next read in parallel.

        Only one read ahead, to limit memory. Decoding uncompressed rows costs less than a thread switch.
        """
        read = ahead.popleft()
        sections: Iterable[_Section]
        sections, error = (self._finish(read), None) if read.decoded is None else read.decoded.result()
        for count, (piece, batches) in enumerate(sections):
            if not count and ahead and sum(map(_SIZE_BYTES, batches)) > piece.size_bytes:
                with suppress(RuntimeError):
                    ahead[0].decoded = IO_POOL.submit_to(_DECODING, self._finish_ahead, ahead[0])
            yield piece, batches
        if error is not None:
            raise error

    def _finish_ahead(self, read: _Read) -> tuple[list[_Section], ReplogError | None]:
        """Return the sections of a read before the first one without a good copy, and that section's error."""
        sections = []
        try:
            for section in self._finish(read):
                sections.append(section)
        except ReplogError as error:
            return sections, error
        return sections, None

    def _start(self, read: _Read) -> None:
        if read.slices[0].object.inline:
            return  # the plan brought its bytes
        holders = self._holders(read.slices[0])
        if not holders:
            return
        read.broker_id = holders[0]
        if read.broker_id in self._brokers.local_ids:
            return  # a memory map: the kernel reads ahead
        with suppress(RuntimeError):  # no thread can be started: it is read when its rows are asked for
            read.future = self._submit(read, read.broker_id)

    def _submit(self, read: _Read, broker_id: BrokerId) -> Future[Buffer | None]:
        item = read.slices[0].object
        key = data_key(item.ledger_id, *item.id)
        read.started_ms = self._clock.monotonic_ms()
        span = read.start_byte, read.end_byte - read.start_byte
        return IO_POOL.submit_to(self._brokers.url(broker_id), self._timed_get, broker_id, key, *span)

    def _timed_get(self, broker_id: BrokerId, key: str, start: int, size_bytes: int) -> Buffer | None:
        started_ms = self._clock.monotonic_ms()
        buffer = self._brokers.store(broker_id).get(key, start=start, size_bytes=size_bytes)
        HEDGES.note(self._brokers.url(broker_id), self._clock.monotonic_ms() - started_ms, self._hedge_ratio)
        return buffer

    def _result(self, read: _Read, future: Future[Buffer | None]) -> Buffer | None:
        """Return a root's answer; if it takes longer than usual, also send the read to a second root."""
        slow_ms = HEDGES.after_ms(self._brokers.url(read.broker_id))
        others = self._holders(read.slices[0]) if self._hedge_ratio else []
        others = [other for other in others if other != read.broker_id and other not in self._suspects]
        if others:
            wait([future], max(0.0, slow_ms - (self._clock.monotonic_ms() - read.started_ms)) / 1000)
        if future.done() or not others or not HEDGES.take():
            return future.result()
        try:
            second = self._submit(read, others[0])
        except RuntimeError:
            return future.result()
        with self._lock:
            self.stats.hedges += 1
        size_bytes = read.end_byte - read.start_byte
        for answer in as_completed((future, second)):
            if answer.exception() is None and _length(answer.result()) == size_bytes:
                if answer is second:
                    if not future.done():
                        HEDGES.lost(self._brokers.url(read.broker_id))
                    read.broker_id = others[0]
                (future if answer is second else second).cancel()
                return answer.result()
        return future.result()

    def _finish(self, read: _Read) -> Iterator[_Section]:
        """Yield the sections of a read, each decoded on demand."""
        size_bytes = read.end_byte - read.start_byte
        problem: Exception | None = None
        buffer: Buffer | None = None
        item = read.slices[0].object
        if item.inline:
            buffer = memoryview(item.inline)[read.start_byte : read.end_byte]
        elif read.broker_id < 0:
            problem = _absent(read.slices[0], "no broker of this store is known to hold it")
        try:
            if read.future is not None:
                buffer = self._result(read, read.future)
            elif problem is None and buffer is None:
                key = data_key(item.ledger_id, *item.id)
                buffer = self._brokers.store(read.broker_id).get(key, start=read.start_byte, size_bytes=size_bytes)
        except (ReplogError, OSError) as error:
            problem = error
        view = memoryview(buffer) if buffer is not None else None
        if view is not None:
            self._count(view.nbytes)
        for piece in read.slices:
            if problem is not None:
                yield piece, self._read_elsewhere(piece, read.broker_id, problem)
                continue
            try:
                batches = _decode(piece, view, read.start_byte)
            except ReplogError as error:
                if item.inline:
                    raise  # there is no other copy to try
                batches = self._read_elsewhere(piece, read.broker_id, error)
            yield piece, batches

    def _count(self, size_bytes: int) -> None:
        """Count an answered read, and wait for the quota."""
        throttle_time_ms = throttle(self.quota, size_bytes, self._clock) if self.quota is not None else 0
        with self._lock:
            self.stats.reads += 1
            self.stats.read_bytes += size_bytes
            self.stats.throttle_time_ms += throttle_time_ms

    def _read_elsewhere(
        self, piece: FetchSlice, failed_broker: BrokerId, problem: Exception
    ) -> Sequence[pa.RecordBatch]:
        """Return the section's batches from another holder than the failed one."""
        problems = [(failed_broker, problem)]
        self._report(piece, failed_broker, problem)
        item = piece.object
        key = data_key(item.ledger_id, *item.id)
        for broker_id in self._holders(piece):
            if broker_id == failed_broker:
                continue
            try:
                store = self._brokers.store(broker_id)
                buffer = store.get(key, start=piece.start_byte, size_bytes=piece.size_bytes)
                view = memoryview(buffer) if buffer is not None else None
                batches = _decode(piece, view, piece.start_byte)
            except (ReplogError, OSError) as error:
                problems.append((broker_id, error))
                self._report(piece, broker_id, error)
                continue
            self._count(piece.size_bytes)
            return batches
        raise self._give_up(piece, problems)

    def _holders(self, piece: FetchSlice) -> list[BrokerId]:
        """Return the holders, best first: without failures, local, not slow; then in an order per object."""
        holders = sorted(piece.object.holders.intersection(self._brokers.broker_ids))
        if len(holders) < 2:
            return holders
        turn, avoided = sum(piece.object.id.name.encode()) % len(holders), HEDGES.avoided_url
        return sorted(
            holders[turn:] + holders[:turn],
            key=lambda broker_id: (
                broker_id in self._suspects,
                broker_id not in self._brokers.local_ids,
                avoided and self._brokers.url(broker_id) == avoided,
            ),
        )

    def _report(self, piece: FetchSlice, broker_id: BrokerId, problem: Exception) -> None:
        self._suspects.add(broker_id)
        LOGGER.warning(
            "copy of a section is unusable, another holder is tried: object=%s broker=%s topic=%s"
            " partition=%s offsets=%s..%s: %s",
            piece.object.id.name,
            broker_id,
            piece.topic,
            piece.partition,
            piece.start_offset,
            piece.end_offset,
            problem,
        )

    def _give_up(self, piece: FetchSlice, problems: list[tuple[BrokerId, Exception]]) -> ReplogError:
        """Return the error of a section without a good copy; only a proved loss is a `DataLossError`."""
        problems = [(broker_id, self._confirm(broker_id, problem)) for broker_id, problem in problems if broker_id >= 0]
        unknown = sorted(piece.object.holders.difference(self._brokers.broker_ids))
        roots = ", ".join(f"broker {number} ({self._brokers.url(number)}): {problem}" for number, problem in problems)
        roots = ", ".join([*([roots] if roots else []), *(f"broker {number}: unknown root" for number in unknown)])
        what = (
            f"offsets {piece.start_offset} to {piece.end_offset} (exclusive) of partition {piece.partition} of topic"
            f" '{piece.topic}' (object '{piece.object.id.name}')"
        )
        skip = (
            "skip these rows: set failOnDataLoss=false in Spark; elsewhere begin after them, as"
            f" `replog consume {piece.topic} -p {piece.partition} -o {piece.end_offset}` does"
        )
        errors = [problem for _, problem in problems]
        if unknown or not all(isinstance(error, (NotFoundError, CorruptDataError)) for error in errors):
            return RetriableError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"no good copy of {what} can be reached: {roots}. Try again when these roots answer.",
            )
        if any(isinstance(error, CorruptDataError) for error in errors):
            return DataLossError(
                ErrorCode.CORRUPT_MESSAGE,
                f"every copy of {what} is corrupt or absent: {roots}. Put a good copy back on one of these roots, or"
                f" {skip}.",
            )
        return DataLossError(
            ErrorCode.REPLOG_DATA_LOSS,
            f"no root has {what}: {roots or 'no broker held it'}. Put the object back on one of its roots, or {skip}.",
        )

    def _confirm(self, broker_id: BrokerId, problem: Exception) -> Exception:
        """Return why a copy is unusable. An object counts as absent only if its root itself is there."""
        if not isinstance(problem, NotFoundError):
            return problem
        try:
            self._brokers.check_root(broker_id)
        except (ReplogError, OSError) as error:
            return error
        return problem


def _length(buffer: Buffer | None) -> int:
    return -1 if buffer is None else memoryview(buffer).nbytes


def _plan_reads(slices: Iterable[FetchSlice]) -> Iterator[_Read]:
    """Group consecutive slices that are close to each other in one object."""
    current: _Read | None = None
    for piece in slices:
        end = piece.start_byte + piece.size_bytes
        if (
            current is not None
            and current.slices[-1].object.id.name == piece.object.id.name
            and 0 <= piece.start_byte - current.end_byte <= READ_GAP_BYTES_MAX
            and end - current.start_byte <= READ_SIZE_BYTES_MAX
        ):
            current.slices.append(piece)
            current.end_byte = end
            continue
        if current is not None:
            yield current
        current = _Read([piece], piece.start_byte, end)
    if current is not None:
        yield current


def _decode(piece: FetchSlice, view: memoryview | None, view_start: int) -> Sequence[pa.RecordBatch]:
    """Return the batches of a section; `view` begins at byte `view_start` of its object."""
    if view is None:
        raise _absent(piece, "it is not there")
    start = piece.start_byte - view_start
    section = view[start : start + piece.size_bytes]
    if section.nbytes != piece.size_bytes:
        raise CorruptDataError(
            ErrorCode.CORRUPT_MESSAGE,
            f"object '{piece.object.id.name}' ends before byte {piece.start_byte + piece.size_bytes}."
            " Run `replog store verify` to see which copies are whole.",
        )
    # All at once: a section is bounded, and an error in its last batch must be raised before any row is returned.
    item = piece.object
    shape = item.has_headers, item.has_offsets, piece.schema, piece.columns
    batches = list(decode_section(section, piece.crc32c, piece.row_count, *shape))
    if item.has_offsets:
        offsets = np.concatenate([batch.column(-1).to_numpy() for batch in batches])  # the last column
        if offsets[0] < piece.base_offset or (np.diff(offsets) <= 0).any():
            raise CorruptDataError(
                ErrorCode.CORRUPT_MESSAGE,
                f"offsets stored in object '{item.id.name}' do not ascend from {piece.base_offset}."
                " Run `replog store verify --deep` to see which copies are whole.",
            )
    return batches


def _viewed(slices: Iterable[FetchSlice], views: dict[TopicId, RowView], include_headers: bool) -> Iterator[FetchSlice]:
    """Yield the slices, those of typed rows with the columns to decode; adds a view where there is none."""
    for piece in slices:
        if piece.schema is None:
            yield piece
            continue
        view = views.setdefault(piece.topic_id, RowView(piece.schema))
        yield piece._replace(columns=view.stored_names(piece.schema, include_headers))


def _wanted_rows(piece: FetchSlice, stored: Sequence[pa.RecordBatch]) -> list[tuple[int, pa.RecordBatch, int]]:
    """Return the parts of the section's batches that a slice covers, each with the offset of its first row and its
    size in bytes.
    """
    ranges, offset = [], piece.base_offset
    for batch in stored:
        row_count = batch.num_rows
        if piece.object.has_offsets:
            offsets = batch.column(-1).to_numpy()
            start, end = np.searchsorted(offsets, (piece.start_offset, piece.end_offset)).tolist()
            first = int(offsets[start]) if start < end else 0
        else:
            start = max(piece.start_offset - offset, 0)
            end = min(piece.end_offset - offset, row_count)
            first = offset + start
        offset += row_count
        if 0 < row_count == end - start:
            ranges.append((first, batch, _SIZE_BYTES(batch)))
        elif start < end:
            part = batch.slice(start, end - start)
            ranges.append((first, part, part.nbytes))
    return ranges


def _absent(piece: FetchSlice, why: str) -> NotFoundError:
    return NotFoundError(
        ErrorCode.REPLOG_DATA_LOSS,
        f"object '{piece.object.id.name}': {why}. Run `replog store verify` to see which copies are whole.",
    )
