"""``Producer.send_arrow``: appends tables and batches to the accumulator, one topic at a time."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import pyarrow as pa

from spark_replog.client.producer_metadata import TopicEntry
from spark_replog.client.record_form import RecordForm
from spark_replog.client.settings import ProducerSettings
from spark_replog.clock import SYSTEM_CLOCK, Clock
from spark_replog.errors import ErrorCode, InvalidConfigError, ReplogError
from spark_replog.write.accumulator import RecordAccumulator
from spark_replog.write.arrow_appender import ArrowAppender, RowRouter
from spark_replog.write.columns import InputColumns
from spark_replog.write.data_request import ObjectBuilder
from spark_replog.write.interceptors import Interceptors
from spark_replog.write.record_handle import RecordHandle, RecordMetadata
from spark_replog.write.serializers import serialize_columns
from spark_replog.write.typed_columns import TypedColumns


class TableHandle:
    """The future of a table's rows. Thread-safe once the table is sent."""

    __slots__ = ("_slices",)

    def __init__(self) -> None:
        self._slices: list[tuple[RecordHandle, int]] = []

    def add(self, part: RecordHandle, row_count: int) -> None:
        """Add a slice. Called by the thread that sends."""
        self._slices.append((part, row_count))

    @property
    def parts(self) -> tuple[RecordHandle, ...]:
        """Return the handle of the first row of every slice."""
        return tuple(part for part, _ in self._slices)

    @property
    def row_counts(self) -> tuple[int, ...]:
        """Return the number of rows of every slice."""
        return tuple(row_count for _, row_count in self._slices)

    def done(self) -> bool:
        """Return whether every row has its outcome."""
        return all(part.done() for part in self.parts)

    def result(self, timeout: float | None = None) -> list[RecordMetadata]:
        """Wait until all rows are acknowledged; return the metadata of each slice's first row.

        Args:
            timeout: seconds to wait at most; None: until ``delivery.timeout.ms`` decides.

        Raises:
            TimeoutError: some rows have no outcome yet.
            ReplogError: the error of the first slice that failed.
        """
        error = self.exception(timeout)
        if error is not None:
            raise error
        return [part.result(0) for part in self.parts]

    def exception(self, timeout: float | None = None) -> ReplogError | None:
        """Wait as ``result`` does; return the error of the first slice that failed, None if all are acknowledged."""
        deadline_ms = None if timeout is None else SYSTEM_CLOCK.monotonic_ms() + timeout * 1000
        errors = []
        for part in self.parts:
            left = None if deadline_ms is None else max(0.0, (deadline_ms - SYSTEM_CLOCK.monotonic_ms()) / 1000)
            errors.append(part.exception(left))
        return next((error for error in errors if error is not None), None)

    def add_done_callback(self, callback: Callable[[TableHandle], object]) -> None:
        """Call ``callback(handle)`` when every row has its outcome: once, on the sender's thread or immediately."""
        parts = self.parts
        left_count = len(parts)
        lock = threading.Lock()

        def count_down(_: RecordHandle) -> None:
            nonlocal left_count
            with lock:
                left_count -= 1
                is_last = left_count == 0
            if is_last:
                callback(self)

        for part in parts:
            part.add_done_callback(count_down)
        if not parts:
            callback(self)


class ArrowSender:
    """Thread-safe: one table at a time."""

    def __init__(
        self,
        accumulator: RecordAccumulator,
        settings: ProducerSettings,
        interceptors: Interceptors,
        clock: Clock,
        random_source: random.Random,
        builder: ObjectBuilder,
        form: RecordForm,
    ) -> None:
        self._accumulator = accumulator
        self._settings = settings
        self._interceptors = interceptors
        self._clock = clock
        self._random = random_source
        self._builder = builder
        self._form = form
        self._lock = threading.Lock()
        self._appenders: dict[str, tuple[TopicEntry, ArrowAppender]] = {}

    def send(self, entry: TopicEntry, data: pa.Table | pa.RecordBatch, handle: TableHandle) -> None:
        """Append all rows; see ``Producer.send_arrow``. ``handle`` gets every slice, even if this raises."""
        self._interceptors.check_arrow_forms()
        try:
            with self._lock:
                self._append(entry, data, handle)
        finally:  # also the rows before a batch that is refused are written
            if self._interceptors:
                for part in handle.parts:
                    part.add_done_callback(self._interceptors.acknowledge)

    def _append(self, entry: TopicEntry, data: pa.Table | pa.RecordBatch, handle: TableHandle) -> None:
        appender = self._appender(entry)
        for batch in _batches(data):
            changed = self._interceptors.on_send_batch(entry.plan.name, batch)
            columns: InputColumns | TypedColumns
            if entry.plan.schema is None:
                changed = serialize_columns(
                    changed, entry.plan.name, self._form.key_serializer, self._form.value_serializer
                )
                columns = InputColumns(changed.schema, entry.plan.name)
            else:
                columns = TypedColumns(changed.schema, entry.plan.schema, entry.plan.name)
            if not changed.num_rows:
                continue
            rows = columns.normalise(changed, self._clock.now_ms())
            for result, index, row_count in appender.append(rows):
                handle.add(RecordHandle(result, index), row_count)

    def _appender(self, entry: TopicEntry) -> ArrowAppender:
        name = entry.plan.name
        pair = self._appenders.get(name)
        if pair is not None and pair[0] is entry:
            return pair[1]
        config, partitioner = self._settings.producer, self._form.partitioner
        if partitioner is not None:
            partitioner.check_arrow_form()
        row_bytes_max = self._accumulator.pool.total_bytes
        plan = replace(self._builder.plan, topics=(entry.plan,))  # the topic whose columns the rows have
        router = RowRouter(plan, config, name, self._random, partitioner, row_bytes_max=row_bytes_max)
        appender = ArrowAppender(router, self._accumulator, config=config, clock=self._clock, measures_records=True)
        self._appenders[name] = (entry, appender)
        return appender


def _batches(data: pa.Table | pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    if isinstance(data, pa.RecordBatch):
        yield data
    elif isinstance(data, pa.Table):
        yield from data.to_batches()
    else:
        raise InvalidConfigError(
            ErrorCode.INVALID_RECORD,
            f"send_arrow takes a pyarrow.Table or RecordBatch, not {type(data).__name__}. Convert it first.",
        )
