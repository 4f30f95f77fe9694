"""Positions and lags of streaming queries, read from their checkpoints while they run or not. Writes nothing.

Reads checkpoint folders of Spark's versions 1 and 2: `offsets/N`, with the end of batch N, is written before the batch
runs; `commits/N` after it. The query's position is the end of the newest batch that has both. Source: Spark's
``HDFSMetadataLog``, ``OffsetSeqLog``, ``CommitLog``; version 2 is known from files that Spark 4.3 wrote.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from spark_replog.admin.admin import Admin
from spark_replog.cluster.cluster import TopicHandle
from spark_replog.errors import (
    ErrorCode,
    InvalidConfigError,
    NotFoundError,
    RetriableError,
)
from spark_replog.health.readers import Lag, PartitionProgress, Reader, first_append_times, lag_of
from spark_replog.ids import TopicPartition
from spark_replog.log.acl import AclOperation
from spark_replog.log.log_offset import META_KEY, LogOffset
from spark_replog.monitor.offset_file import OffsetFile, damaged
from spark_replog.storage.object_store import ObjectStore
from spark_replog.storage.open_store import open_store

FILE_BYTES_MAX = 64 << 20
_BATCHES_BACK = (0, 1, 3, 7, 15)
"""Which batches, counted back from the newest, are read for the pace: at most five, however long the log is."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One planned batch: its number, when it was planned, and its end per source."""

    batch_id: int
    time_ms: int
    sources: tuple[LogOffset, ...]

    @property
    def ends(self) -> dict[TopicPartition, int]:
        """Return the ends of all sources; the smaller one if two read the same partition."""
        ends: dict[TopicPartition, int] = {}
        for source in self.sources:
            for key, end in source.ends.items():
                ends[key] = min(end, ends.get(key, end))
        return ends

    @property
    def topic_ids(self) -> dict[str, str]:
        """Return the ids of the topics, by name."""
        return {name: topic_id for source in self.sources for name, topic_id in source.topic_ids.items()}

    @property
    def starts(self) -> dict[TopicPartition, int] | None:
        """Return where the query started, for its first batch."""
        origins = [source.origin for source in self.sources if source.origin is not None]
        return {key: at for origin in origins for key, at in origin.items()} if origins else None


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint at one moment.

    Attributes:
        query_id: '' before the query ran.
        done: some of the finished batches, newest last.
        running: the newest batch if it is planned and not done.
    """

    url: str
    query_id: str
    done: tuple[Batch, ...]
    running: Batch | None


def read_checkpoint(url: str, storage_options: Mapping[str, str]) -> Checkpoint:
    """Read a checkpoint, on any storage that a root may use; writes nothing. At most 6 small files and two listings.

    Raises:
        InvalidConfigError: REPLOG_INPUT: not a checkpoint; REPLOG_UNSUPPORTED_STORE, REPLOG_INVALID_OPTION.
        CorruptDataError: CORRUPT_MESSAGE.
        UnsupportedFormatError: UNSUPPORTED_VERSION.
        ReplogError: an error of the storage.
    """
    store = open_store(url, storage_options)
    query = _get(store, "metadata")
    planned, done = _numbers(store, "offsets/"), _numbers(store, "commits/")
    if query is None and not planned:
        raise InvalidConfigError(
            ErrorCode.REPLOG_INPUT,
            f"'{url}' is not a checkpoint: it has neither 'metadata' nor 'offsets'. Give a query's checkpointLocation.",
        )
    query_id = "" if query is None else str(_json(query, _name("metadata", url)).get("id", ""))
    finished = sorted(planned.intersection(done))
    picked = [finished[-1 - back] for back in reversed(_BATCHES_BACK) if back < len(finished)]
    batches = [batch for number in picked if (batch := _read_batch(store, number)) is not None]
    newest = max(planned, default=-1)
    running = _read_batch(store, newest) if planned and newest not in done else None
    return Checkpoint(url, query_id, tuple(batches), running)


def list_checkpoints(url: str, storage_options: Mapping[str, str]) -> list[str]:
    """Return the folder itself if it is a checkpoint, else its subfolders that are, sorted."""
    store = open_store(url, storage_options)
    if _get(store, "metadata") is not None or _numbers(store, "offsets/"):
        return [url]
    names = {info.key.split("/")[0] for info in store.list_keys("") if info.key.count("/") == 1}
    checkpoints = [name for name in sorted(names) if _get(store, f"{name}/metadata") is not None]
    return [f"{url.rstrip('/')}/{name}" for name in checkpoints]


def parse_batch(batch_id: int, data: bytes, url: str = "") -> Batch:
    """Read one file of `offsets/` of the checkpoint at `url`. Skips sources of other kinds.

    Raises CORRUPT_MESSAGE, UNSUPPORTED_VERSION.
    """
    name = _name(f"offsets/{batch_id}", url)
    file = OffsetFile.parse(data, name)
    time_ms = _json(file.metadata.encode(), name).get("batchTimestampMs", 0) if file.metadata.strip() else 0
    sources = []
    for source in file.sources:
        value = source.value if META_KEY in source.text else None  # else an offset of another source
        if isinstance(value, dict) and isinstance(value.get(META_KEY), dict):
            try:
                sources.append(LogOffset.from_json(value))
            except (ValueError, TypeError, AttributeError):
                raise damaged(name) from None
    if type(time_ms) is not int or not 0 <= time_ms < 1 << 63:
        raise damaged(name)
    return Batch(batch_id, time_ms, tuple(sources))


def _read_batch(store: ObjectStore, number: int) -> Batch | None:
    data = _get(store, f"offsets/{number}")
    return None if data is None else parse_batch(number, data, store.url)  # Spark may have deleted an old one


def _numbers(store: ObjectStore, prefix: str) -> set[int]:
    names = (info.key.removeprefix(prefix) for info in store.list_keys(prefix))
    return {int(name) for name in names if name.isascii() and name.isdecimal() and len(name) < 19}


def _get(store: ObjectStore, key: str) -> bytes | None:
    try:
        data = store.get(key, size_bytes=FILE_BYTES_MAX)
    except RetriableError as error:
        if error.code is not ErrorCode.REPLOG_ROOT_STALE:
            raise
        what = f"the folder '{store.url}' does not exist. Mount it, or give a query's checkpointLocation."
        raise InvalidConfigError(ErrorCode.REPLOG_INPUT, what) from error
    return None if data is None else bytes(data)


def _json(data: bytes, name: str) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise damaged(name)
    return value


def _name(key: str, url: str) -> str:
    return f"{key} of the checkpoint '{url}'"


class QueryMonitor(Admin):
    """Thread-safe. Arguments: see ``Admin``."""

    def describe(self, checkpoint: Checkpoint, *, is_folded: bool = False) -> Reader:
        """Return a query with its lags on the newest folds (`is_folded`: as they are); no row is read.

        A query that reads no replog topic has no partitions and the state `WRITES_ONLY`. A topic that was deleted or
        recreated has no lag. A partition that was added after the newest batch is read from its first offset.

        Raises:
            AuthorizationError: TOPIC_AUTHORIZATION_FAILED: without DESCRIBE on a topic.
            RetriableError: REPLOG_NO_QUORUM.
        """
        running, done = checkpoint.running, checkpoint.done
        newest = done[-1] if done else None
        batch = newest or running
        positions = {} if batch is None else batch.ends if newest else batch.starts or dict.fromkeys(batch.ends, 0)
        ids = {} if batch is None else batch.topic_ids
        handles = {}
        for name in sorted({key.topic for key in positions} | ids.keys()):
            self._require_topic(AclOperation.DESCRIBE, name)
            try:
                handle = self._cluster.lookup(name)
            except NotFoundError:
                continue
            if handle.topic_id == ids.get(name):
                handles[name] = handle
        if not is_folded:
            self._cluster.refresh_topics(handles.values())
        planned_ms = 0 if newest is None else newest.time_ms
        keys = {*positions, *(key for handle in handles.values() for key in self._added(handle, positions, planned_ms))}
        parts = tuple(self._progress(key, handles.get(key.topic), positions.get(key, 0), done) for key in sorted(keys))
        state = "IN_BATCH" if running else "IDLE" if newest else "NEW"
        return Reader(
            checkpoint.url,
            "query",
            state if batch is None or batch.sources else "WRITES_ONLY",
            parts,
            running.time_ms if running else planned_ms,
            running.time_ms if running else planned_ms,
            batch_id=running.batch_id if running else newest.batch_id if newest else -1,
        )

    def _added(self, handle: TopicHandle, positions: Iterable[TopicPartition], planned_ms: int) -> list[TopicPartition]:
        """Return the partitions that are new to the query.

        A partition that already had rows when the newest batch was planned is not: the query did not subscribe to it.
        """
        ledger = self._cluster.topic_ledger(handle.ledger_id)
        partitions_read, added = set(positions), []
        for number, time_ms in enumerate(ledger.ask(lambda state: first_append_times(state, handle.topic_id))):
            key = TopicPartition(handle.name, number)
            if key not in partitions_read and time_ms is not None and time_ms > planned_ms:
                added.append(key)
        return added

    def _progress(
        self, key: TopicPartition, handle: TopicHandle | None, position: int, done: tuple[Batch, ...]
    ) -> PartitionProgress:
        history = [(batch.time_ms, at) for batch in done if (at := batch.ends.get(key)) is not None]
        since_ms = next((time_ms for time_ms, at in history if at == position), None)
        lag: Lag | None = None
        if handle is not None:
            ledger = self._cluster.topic_ledger(handle.ledger_id)
            now_ms = self._cluster.clock.now_ms()
            lag = ledger.ask(lambda state: lag_of(state, handle.topic_id, key.partition, position, now_ms, history))
        position_ms = history[-1][0] if history else None
        return PartitionProgress(key.topic, key.partition, position, position_ms, since_ms, lag)
