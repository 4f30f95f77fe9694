"""Interceptors: the user's classes that see every record before it is serialized, and its outcome.

Source: Kafka ``ProducerInterceptors``. An interceptor that raises is logged and skipped; it never fails a send.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from spark_replog.errors import ErrorCode, InvalidConfigError
from spark_replog.write.record_handle import RecordHandle, RecordMetadata
from spark_replog.write.serializers import check_arrow_form, load_class, make_object

logger = logging.getLogger(__name__)

_METHODS = ("on_send", "on_send_batch", "on_acknowledgement", "close")


class ProducerRecord(NamedTuple):
    """One record as passed to ``send``."""

    topic: str
    value: Any = None
    key: Any = None
    partition: int | None = None
    headers: Sequence[tuple[str, bytes | None]] | None = None
    timestamp_ms: int | None = None


class Interceptors:
    """The interceptors of one producer, in the order of ``interceptor.classes``. Any thread may call them.

    Args:
        given: objects with any of ``on_send(record)``, ``on_send_batch(topic, batch)``,
            ``on_acknowledgement(metadata, error)`` and ``close()``.
    """

    def __init__(self, given: Sequence[Any] = ()) -> None:
        self._all = list(given)

    @classmethod
    def of(cls, names: str, objects: Any = None) -> Interceptors:
        """Return the interceptors that ``interceptor.classes`` names, or the objects given instead.

        Raises:
            InvalidConfigError: REPLOG_INVALID_OPTION: a class cannot be instantiated, or has none of the methods.
        """
        if objects is not None:
            given = objects if isinstance(objects, Iterable) else [objects]
            return cls([_checked(make_object("interceptor.classes", item)) for item in given])
        paths = [name.strip() for name in names.split(",") if name.strip()]
        return cls([_checked(load_class("interceptor.classes", path)) for path in paths])

    def __bool__(self) -> bool:
        return bool(self._all)

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        """Return the record as changed by the interceptors; a failed one's result is ignored."""
        for item in self._all:
            changed = ask(item, "on_send", record)
            if _is_usable(item, "on_send", changed, ProducerRecord):
                record = changed
        return record

    def check_arrow_forms(self, *, is_task: bool = False) -> None:
        """Refuse interceptors that see only single records: they would miss the rows of Arrow batches.

        Args:
            is_task: also refuse those that a write task would never call: acknowledgements come after it ends.

        Raises:
            InvalidConfigError: REPLOG_INVALID_OPTION, naming the missing method.
        """
        for item in self._all:
            if is_task or hasattr(item, "on_send"):
                check_arrow_form(item, "interceptor.classes", "on_send_batch(topic, batch)")

    def on_send_batch(self, topic: str | None, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch as changed by the interceptors; a failed one's result is ignored.

        Args:
            topic: of all rows; None: rows name their topic.
            batch: columns as passed to ``send_arrow`` or the sink.
        """
        for item in self._all:
            changed = ask(item, "on_send_batch", topic, batch)
            if _is_usable(item, "on_send_batch", changed, pa.RecordBatch):
                batch = changed
        return batch

    def on_acknowledgement(self, metadata: RecordMetadata, error: Exception | None) -> None:
        """Report the outcome of a record; of an Arrow slice, the outcome of its first record."""
        for item in self._all:
            ask(item, "on_acknowledgement", metadata, error)

    def acknowledge(self, handle: RecordHandle) -> None:
        """Report the outcome of a completed handle to ``on_acknowledgement``."""
        error = handle.exception(0)
        if error is None:
            self.on_acknowledgement(handle.result(0), None)
            return
        where = handle.batch_result.topic_partition
        self.on_acknowledgement(RecordMetadata(where.topic, where.partition, -1, -1), error)

    def close(self) -> None:
        """Close all interceptors."""
        for item in self._all:
            ask(item, "close")


def _checked(item: Any) -> Any:
    if any(callable(getattr(item, method, None)) for method in _METHODS):
        return item
    raise InvalidConfigError(
        ErrorCode.REPLOG_INVALID_OPTION,
        f"interceptor.classes {type(item).__name__} has none of the methods {', '.join(_METHODS)}. Add one.",
    )


def _is_usable(item: Any, method: str, answer: Any, wanted: type) -> bool:
    if answer is not None and not isinstance(answer, wanted):
        logger.error(
            "interceptor %s gave %s in %s and is skipped: let it return a %s, or None for no change",
            type(item).__name__,
            type(answer).__name__,
            method,
            wanted.__name__,
        )
        return False
    return answer is not None


def ask(item: Any, method: str, *arguments: Any) -> Any:
    """Return the answer of an interceptor's method; None if it has none, or if it raised, which is logged."""
    function: Callable[..., Any] | None = getattr(item, method, None)
    if function is None:
        return None
    try:
        return function(*arguments)
    except KeyboardInterrupt:
        raise
    except BaseException:  # on the sender's thread, SystemExit or asyncio's CancelledError would end only that thread
        logger.exception("interceptor %s raised in %s and is skipped", type(item).__name__, method)
        return None
