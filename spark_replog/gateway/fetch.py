"""Fetch: rows of the store as record batches, once for all consumers at one place; waits without looking for each.

There are no uncommitted rows that a reader could see: the last stable offset is the high watermark, and both levels of
isolation read the same. Sessions are declined: each request names all its partitions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from kafka.protocol.api_key import ApiKey
from kafka.protocol.consumer import FetchResponse

from spark_replog.client.record_fetcher import ConsumerMetrics, FetchPartition, FetchState, RecordFetcher, look
from spark_replog.cluster.authorizer import Authorizer
from spark_replog.cluster.cluster import TopicHandle
from spark_replog.config.consumer import ConsumerConfig
from spark_replog.errors import ErrorCode, NotFoundError, ReplogError
from spark_replog.gateway.batch_cache import BatchCache, CachePlace
from spark_replog.gateway.errors import error_code
from spark_replog.gateway.fetch_wait import RowWaiters
from spark_replog.gateway.gateway import Api, Call, Gateway, epoch_error
from spark_replog.gateway.record_batch import EncodedBatch, encode
from spark_replog.ids import TopicPartition
from spark_replog.log.acl import AclOperation, ResourceType
from spark_replog.log.codec.data_object import LOG_PREFIX
from spark_replog.log.json_rows import json_rows
from spark_replog.log.row_key import key_array
from spark_replog.log.row_schema import RowSchema
from spark_replog.read.fetcher import count_read
from spark_replog.read.rows import LOG_COLUMNS, log_column

WAIT_MS_MAX = 30_000
"""However long a client would wait: then it gets an answer without rows, and asks again."""
ANSWER_BYTES_MAX = 8 << 20
"""However much a client would take at once: the gateway holds it in memory until it is sent."""
READ_BYTES_MIN = 1 << 20
"""What a read of a partition takes of the store at least, if it is there: the rest is kept for the next request."""
HAS_RACKS_SINCE = 11
FETCH_SESSION_ID_NOT_FOUND = 70
_SESSIONS_SINCE = 7
_Topic = FetchResponse.FetchableTopicResponse
_Partition = _Topic.PartitionData


@dataclass(frozen=True, slots=True)
class Asked:
    """One partition of a request, and what it may read now."""

    wanted: Any
    handle: TopicHandle | None = None
    error: int = 0
    state: FetchState | None = None
    high_watermark: int = -1
    log_start_offset: int = -1
    schema: RowSchema | None = None
    preferred: int = -1
    """The gateway that its client should ask instead, since it is nearer; -1: none."""

    @property
    def has_rows(self) -> bool:
        """Return whether there are rows to read."""
        is_here = not self.error and self.preferred < 0
        return is_here and self.state is not None and self.state.end_offset > self.wanted.fetch_offset


async def answer_fetch(gateway: Gateway, call: Call) -> Any:
    """Answer Fetch: at once if there is an error or enough to read, else when there is, or the time is over.

    A client whose rack has gateways, and who asks one of another, is sent to one of its rack without rows (KIP-392).
    A client whose rows are above its quota gets them, and is told how long to wait; its connection is muted as long.
    """
    request, loop = call.request, asyncio.get_running_loop()
    if call.version >= _SESSIONS_SINCE and request.session_epoch > 0:  # of a session that no gateway gave
        return FetchResponse(error_code=FETCH_SESSION_ID_NOT_FOUND, session_id=0, responses=[])
    until = loop.time() + min(max(0, request.max_wait_ms), WAIT_MS_MAX) / 1000
    topics = await gateway.run(_named, gateway, call)
    waiters = gateway.part(RowWaiters)
    handles = {asked.handle for _, asked_list in topics for asked in asked_list if asked.handle is not None}
    fresh = [handle for handle in handles if not waiters.is_kept(handle.ledger_id)]
    while True:
        woken = waiters.wait_for(handles)
        try:
            topics = await gateway.run(_look, gateway, call, topics, fresh)
            fresh = []
            if _is_answered(topics, request.min_bytes) or loop.time() >= until:
                break
            await asyncio.wait([woken], timeout=max(0, until - loop.time()))
        finally:
            waiters.leave(woken, handles)
    quota, throttle_ms = gateway.cluster.fetch_quota(call.principal, call.client_id), 0
    bytes_max = min(request.max_bytes, ANSWER_BYTES_MAX, ANSWER_BYTES_MAX if quota is None else quota.window_bytes)
    answers = await _read(gateway, call, topics, bytes_max)
    if quota is not None:
        sent_bytes = sum(len(part.records) for topic in answers for part in topic.partitions)
        throttle_ms = count_read(quota, sent_bytes, gateway.clock)
        call.mute(throttle_ms)
    return FetchResponse(session_id=0, responses=answers, throttle_time_ms=throttle_ms)


_Topics = list[tuple[Any, list[Asked]]]


def _named(gateway: Gateway, call: Call) -> _Topics:
    """Return the partitions asked for by topic, with the topics that exist and that the principal may read."""
    cluster = gateway.cluster
    authorizer = Authorizer(cluster, call.principal)
    topics: _Topics = []
    for topic in call.request.topics or []:
        code, handle = 0, None
        try:
            cluster.refresh_if_stale()
            name = topic.topic if call.version < 13 else gateway.topic_name(topic.topic_id)
            if name is None:
                raise NotFoundError(ErrorCode.UNKNOWN_TOPIC_ID, "No topic has this id. Ask for the metadata again.")
            authorizer.require(AclOperation.READ, ResourceType.TOPIC, name)
            handle = cluster.lookup(name)
        except ReplogError as error:
            code = error_code(error)
        topics.append((topic, [Asked(wanted, handle, code) for wanted in topic.partitions]))
    return topics


def _look(gateway: Gateway, call: Call, topics: _Topics, fresh: Sequence[TopicHandle]) -> _Topics:
    """Return the partitions with what they may read now; first read the newest entries of some ledgers."""
    problem = 0
    try:
        gateway.cluster.refresh_topics(fresh)
    except ReplogError as error:
        problem = error_code(error)
    if problem:
        return [(topic, [replace(asked, error=asked.error or problem) for asked in items]) for topic, items in topics]
    return [(topic, [_looked(gateway, call, asked) for asked in asked_list]) for topic, asked_list in topics]


def _looked(gateway: Gateway, call: Call, asked: Asked) -> Asked:
    handle, wanted = asked.handle, asked.wanted
    if handle is None:
        return asked
    try:
        ledger, topic = gateway.cluster.folded_topic(handle)
        if not 0 <= wanted.partition < len(topic.partitions):
            raise NotFoundError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "no such partition")
        bytes_max = max(READ_BYTES_MIN, wanted.partition_max_bytes)
        item = FetchPartition(
            ledger, handle.topic_id, wanted.partition, wanted.fetch_offset, bytes_max, wanted.last_fetched_epoch
        )
        state = look(item)
        with ledger.lock:
            partition = topic.partitions[wanted.partition]
            high_watermark, log_start = partition.high_watermark, partition.log_start_offset
            code = epoch_error(wanted.current_leader_epoch, partition.leader_epoch)
            if wanted.last_fetched_epoch > partition.leader_epoch:
                code = code or int(ErrorCode.OFFSET_OUT_OF_RANGE)  # it is not known where that epoch will begin
        if state.error is not None and state.diverging_offset is None:
            code = code or int(state.error)
        ends = {"high_watermark": high_watermark, "log_start_offset": log_start}
        if call.version >= HAS_RACKS_SINCE and not code and state.error is None:
            ends["preferred"] = gateway.preferred_replica(handle.name, wanted.partition, call.request.rack_id)
        return replace(asked, error=code, state=state, schema=topic.schema, **ends)
    except ReplogError as error:
        return replace(asked, error=error_code(error))


def _is_answered(topics: _Topics, min_bytes: int) -> bool:
    size_bytes = 0
    for _, asked_list in topics:
        for asked in asked_list:
            is_sent_away = asked.preferred >= 0
            if asked.error or is_sent_away or asked.state is None or asked.state.diverging_offset is not None:
                return True
            size_bytes += min(asked.state.available_bytes, asked.wanted.partition_max_bytes)
    return size_bytes >= min_bytes or not any(asked_list for _, asked_list in topics)


async def _read(gateway: Gateway, call: Call, topics: _Topics, left_bytes: int) -> list[Any]:
    """Return the answer of each topic, with the batches of its partitions within so many bytes."""
    batches = gateway.part(FetchedBatches)
    with_rows = _within_answer([asked for _, asked_list in topics for asked in asked_list if asked.has_rows])
    made = await asyncio.gather(*(batches.of(call, asked) for asked in with_rows))
    by_asked = {id(asked): result for asked, result in zip(with_rows, made, strict=True)}
    answers, is_first = [], True
    for topic, asked_list in topics:
        partitions = []
        for asked in asked_list:
            result = by_asked.get(id(asked), [])
            data = b""
            if isinstance(result, ReplogError):
                asked = replace(asked, error=error_code(result))
            else:
                data = _within(result, min(left_bytes, asked.wanted.partition_max_bytes), is_first)
                left_bytes -= len(data)
                is_first = is_first and not data
            partitions.append(_partition(asked, data))
        answers.append(_Topic(topic=topic.topic, topic_id=topic.topic_id, partitions=partitions))
    return answers


def _within_answer(with_rows: Sequence[Asked]) -> list[Asked]:
    """Return the first partitions that make up one answer: the client puts the others first in its next request."""
    chosen: list[Asked] = []
    size_bytes = 0
    for asked in with_rows:
        if size_bytes < ANSWER_BYTES_MAX and asked.state is not None:
            chosen.append(asked)
            size_bytes += asked.state.available_bytes
    return chosen


def _within(batches: Sequence[EncodedBatch], bytes_max: int, is_first: bool) -> bytes:
    """Return the batches within so many bytes; of a request the first one whatever its size."""
    parts: list[bytes] = []
    size_bytes = 0
    for batch in batches:
        if size_bytes + len(batch.data) > bytes_max and (parts or not is_first):
            break
        parts.append(batch.data)
        size_bytes += len(batch.data)
    return b"".join(parts)


def _partition(asked: Asked, data: bytes) -> Any:
    fields = {}
    state = asked.state
    if not asked.error and state is not None and state.diverging_offset is not None:
        epoch = asked.wanted.last_fetched_epoch
        fields["diverging_epoch"] = _Partition.EpochEndOffset(epoch=epoch, end_offset=state.diverging_offset)
    return _Partition(
        partition_index=asked.wanted.partition,
        error_code=asked.error,
        high_watermark=asked.high_watermark,
        last_stable_offset=asked.high_watermark,
        log_start_offset=asked.log_start_offset,
        aborted_transactions=None,
        preferred_read_replica=asked.preferred,
        records=data,
        **fields,
    )


class FetchedBatches:
    """Reads rows as record batches, each place once for all who ask at the same time. Belongs to one event loop."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self.cache = BatchCache(gateway.config.gateway_cache_bytes)
        self._turns: dict[CachePlace, asyncio.Lock] = {}

    async def of(self, call: Call, asked: Asked) -> list[EncodedBatch] | ReplogError:
        """Return batches from the offset asked for on, or why it cannot be read."""
        handle, state, wanted = asked.handle, asked.state, asked.wanted
        assert handle is not None and state is not None
        try:
            place = CachePlace(handle.topic_id, wanted.partition, state.leader_epoch)
            get = place, wanted.fetch_offset, asked.high_watermark, wanted.partition_max_bytes
            if batches := self.cache.get(*get):
                return batches
            turn = self._turns.setdefault(place, asyncio.Lock())
            try:
                async with turn:
                    if batches := self.cache.get(*get):
                        return batches
                    batches = await self._gateway.run(_batches, self._gateway, call, asked)
                    self.cache.put(place, batches)
                    return batches
            finally:
                if not turn.locked():
                    self._turns.pop(place, None)
        except ReplogError as error:
            return error


def _batches(gateway: Gateway, call: Call, asked: Asked) -> list[EncodedBatch]:
    """Read rows from the offset asked for up to the end of the look, and encode them."""
    handle, state, wanted = asked.handle, asked.state, asked.wanted
    assert handle is not None and state is not None
    key = TopicPartition(handle.name, wanted.partition)
    config = ConsumerConfig(principal=call.principal)
    fetcher = RecordFetcher(gateway.cluster, config, ConsumerMetrics(), waits_for_quota=False)
    start, batches = wanted.fetch_offset, []
    for _, rows, end in fetcher.scan({key: (start, state.end_offset)}, {handle.name: handle}):
        if asked.schema is not None and rows.num_rows:
            rows = _json_records(rows, asked.schema)
        batches += encode(rows, start, end, leader_epoch=state.leader_epoch)
        start = end
    return batches


def _json_records(rows: pa.RecordBatch, schema: RowSchema) -> pa.RecordBatch:
    """Return typed rows as records: the key's bytes, and the columns as a JSON object."""
    names = [name for name in rows.schema.names if name not in LOG_COLUMNS]
    keys = key_array([rows.column(name) for name in schema.key]) if schema.key else pa.nulls(len(rows), pa.binary())
    columns = {"key": keys, "value": json_rows(rows.select(names))}
    for name in ("offset", "timestamp", "headers"):
        columns[name] = log_column(rows, name)
    columns["timestampType"] = rows.column(f"{LOG_PREFIX}timestamp_type")
    return pa.RecordBatch.from_pydict(columns)


APIS = {ApiKey.Fetch: Api(4, 17, answer_fetch)}
