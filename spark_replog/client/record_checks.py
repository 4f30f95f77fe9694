"""What one record's partition, time and headers may be."""

from __future__ import annotations

from typing import Any

from spark_replog.errors import ErrorCode, InvalidConfigError
from spark_replog.write.record_columns import Headers


def checked_partition(partition: object) -> int:
    """Return a partition's number.

    Raises:
        InvalidConfigError: INVALID_PARTITIONS.
    """
    if isinstance(partition, int) and not isinstance(partition, bool) and partition >= 0:
        return partition
    raise InvalidConfigError(
        ErrorCode.INVALID_PARTITIONS,
        f"partition {partition!r} is none. Give one from 0, or None to have it chosen.",
    )


def checked_time(timestamp_ms: object) -> int:
    """Return milliseconds since 1970.

    Raises:
        InvalidConfigError: INVALID_TIMESTAMP.
    """
    if isinstance(timestamp_ms, int) and not isinstance(timestamp_ms, bool) and 0 <= timestamp_ms < 2**53:
        return timestamp_ms
    raise InvalidConfigError(
        ErrorCode.INVALID_TIMESTAMP,
        f"timestamp_ms {timestamp_ms!r} is none. Give milliseconds since 1970, 0 or later, or None for now.",
    )


def checked_headers(headers: Any) -> Headers | None:
    """Return headers as pairs of str and bytes or None.

    Raises:
        InvalidConfigError: INVALID_RECORD.
    """
    if headers is None:
        return None
    try:
        pairs = tuple((name, None if content is None else bytes(memoryview(content))) for name, content in headers)
        if all(isinstance(name, str) and (name.isascii() or name.encode()) for name, _ in pairs):
            return pairs
    except (TypeError, ValueError):
        pass
    raise InvalidConfigError(
        ErrorCode.INVALID_RECORD, "headers are pairs of text and bytes or None. Give [('name', b'content')]."
    )


__all__ = ["checked_headers", "checked_partition", "checked_time"]
