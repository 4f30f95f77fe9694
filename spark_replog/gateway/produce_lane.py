"""Lanes of record batches: each writes what waits in it as data objects of one append, with the product's own parts.

What a lane holds: the batches of one topic, from clients with the same rights, quota and acks; those of an idempotent
producer alone. A lane writes one append at a time, so a producer's batches stay in their order. Appends of several
lanes to one ledger share its entries.

If the process dies before the append is decided, nothing of it is in the log; afterwards the client sends its batches
again, to any gateway, and those of an idempotent producer are known by their sequences.
"""

from __future__ import annotations

import asyncio
import random
import struct
import threading
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from spark_replog.client.committer import Answer, Appender
from spark_replog.client.producer_parts import inline_room
from spark_replog.commit.replica_manager import ReplicaManager
from spark_replog.commit.write_plan import make_write_plan
from spark_replog.config.producer import INLINE_BYTES_REMOTE, ProducerConfig
from spark_replog.errors import (
    ErrorCode,
    InvalidConfigError,
    NotFoundError,
    ReplogError,
    RetriableError,
    unknown_partition,
)
from spark_replog.gateway.gateway import Call, Gateway
from spark_replog.gateway.record_batch import Buffer, ProducedBatch, decode
from spark_replog.gateway.sequences import REJUDGED, judge_batches, producer_name
from spark_replog.ids import TopicId, new_id
from spark_replog.log.codec.data_object import TYPED_HEADERS, TYPED_TIMESTAMP, array_of
from spark_replog.log.json_columns import JsonColumns
from spark_replog.log.model import BatchSequence, DataObject, IdentityKind
from spark_replog.log.write_plan import TopicPlan, WritePlan
from spark_replog.maintenance.upkeep import Upkeep
from spark_replog.storage.io_pool import IoPool
from spark_replog.write.buffer_pool import BufferPool
from spark_replog.write.task_writer import TaskWriter
from spark_replog.write.typed_columns import TYPED_PARTITION

THREADS_MAX = 256
"""Lanes that write at once; each waits for storage most of its time."""
GROUP_BYTES_MAX = 16 << 20
"""Of the batches that one append takes, as they were sent."""
DECODED_BYTES_MAX = 64 << 20
"""Of the decompressed records of one batch."""
DECODED_TOTAL_BYTES = 256 << 20
"""Of all decompressed records that are not in the log yet."""
DECODERS_MAX = 2
"""Batches that are decompressed at once: each may take twice `DECODED_BYTES_MAX` meanwhile."""
MEMORY_WAIT_MS = 10_000
"""How long a batch waits for that memory; then its client is to send it again."""
PLAN_AGE_MS = 1_000
"""How old the known replicas and settings of a topic may be; an append is judged by the newest ones."""
ROUNDS_MAX = 3
"""How often a producer's batches are judged one by one, because another gateway appended some of them meanwhile."""
FAR_LINGER_MS = 250
CROWD_LANES = 4
"""From so many lanes on, small batches ride in the entry that their lanes share, also where an object would cost no
network: each lane would put its own."""
MEETING_LANES_MAX = THREADS_MAX // 2
"""Each holds a thread while it waits for the others."""
MEETING_SECONDS = 1.0
"""How long an append waits for the others that begin with it; they only have to decode their batches."""
TIMEOUT_MS_MAX = 120_000
"""Of an append, whatever its clients ask for."""
PUT_TIMEOUT_MS, STORE_TIMEOUT_MS = 10_000, 20_000
"""Of one put, and of all puts of an append: less than clients wait for an answer."""
REQUEST_BYTES_MAX = 128 << 20
"""A batch is one object at least, and no client sends a larger one."""
_PRODUCER_ID = struct.Struct(">q")
_PRODUCER_ID_AT = 43
"""In a record batch."""


class PartAnswer(NamedTuple):
    """What became of the batch of one partition."""

    error: ReplogError | None = None
    base_offset: int = -1
    append_time_ms: int = -1
    log_start_offset: int = -1
    throttle_ms: int = 0
    refused_records: tuple[int, ...] = ()
    """Numbers of the records in the batch that the error is about, if it is about single ones."""


@dataclass(slots=True, eq=False)
class ProducePart:
    """The batch of one partition, as it was sent."""

    partition: int
    records: Buffer
    timeout_ms: int
    topic_id: TopicId | None = None
    """That the client means; None: the topic that has the name."""
    batch: ProducedBatch | None = None
    rows: pa.RecordBatch | None = None
    """In the columns of a writer's input."""
    answer: PartAnswer | None = None
    memory_bytes: int = 0
    """Of the decoded rows."""

    def fail(self, error: ReplogError, refused_records: tuple[int, ...] = ()) -> None:
        """Answer it with an error, of these of its records; without the frames that it came through.

        They hold decompressed records.
        """
        error.__traceback__ = error.__cause__ = error.__context__ = None
        record = error.context.get("record", error.context.get("row"))
        refused = (record,) if isinstance(record, int) else refused_records
        self.answer = PartAnswer(error, refused_records=refused)
        self.batch = self.rows = None


class LaneKey(NamedTuple):
    """What the batches of a lane have in common."""

    topic: str
    principal: str
    client_id: str
    acks: int
    producer_id: int
    """-1: of no idempotent producer."""


def lane_key(gateway: Gateway, call: Call, topic: str, acks: int, records: Buffer) -> LaneKey:
    """Return the lane of a batch. Clients share one unless there are quotas, which may be by client id."""
    quotas = gateway.cluster.cluster_ledger.ask(lambda state: len(state.quotas))
    is_whole = len(records) >= _PRODUCER_ID_AT + _PRODUCER_ID.size
    (producer_id,) = _PRODUCER_ID.unpack_from(records, _PRODUCER_ID_AT) if is_whole else (-1,)
    client_id = call.client_id if quotas else "gateway"
    return LaneKey(topic, call.principal, client_id, -1 if acks == -1 else 1, max(-1, producer_id))


class Meeting:
    """Lanes that begin at one moment with small batches, and that wait for one another, so that they share one entry.

    Without it, the first of them would have an entry of its own, and those that come while it is written another one.
    """

    def __init__(self, lanes: Iterable[ProduceLane]) -> None:
        self._missing = set(lanes)
        self._lock = threading.Lock()
        self._is_over = threading.Event()

    def leave(self, lane: ProduceLane) -> None:
        """Let the others go on without this lane, if they wait for it."""
        with self._lock:
            self._missing.discard(lane)
            if not self._missing:
                self._is_over.set()

    def attend(self, lane: ProduceLane) -> None:
        """Wait, with an append that the next entry may carry, until all others have one or left; but not for long."""
        self.leave(lane)
        if not self._is_over.wait(MEETING_SECONDS):
            self._is_over.set()


class ProduceLanes:
    """The lanes of a gateway, which exist while batches wait or are written. Belongs to its event loop."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        cluster = gateway.cluster
        self._lanes: dict[LaneKey, ProduceLane] = {}
        self._starting: list[ProduceLane] = []
        self.threads = IoPool(lane_threads_max=THREADS_MAX)
        self.manager = ReplicaManager(cluster, None, Upkeep(cluster, cluster.config).start, waits_for_quotas=False)
        self.plans: dict[tuple[str, str], tuple[float, WritePlan]] = {}
        self.decoded = BufferPool(DECODED_TOTAL_BYTES, clock=cluster.clock)
        self.decoders = threading.BoundedSemaphore(DECODERS_MAX)
        gateway.on_close(partial(self.manager.await_copies, None))
        linger_ms = gateway.config.gateway_linger_ms
        self.linger_ms = linger_ms if linger_ms is not None else 0 if gateway.is_near else FAR_LINGER_MS

    def put(self, key: LaneKey, part: ProducePart) -> asyncio.Future[PartAnswer]:
        """Let a batch wait for the next append of its lane; return its answer to come."""
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = ProduceLane(self, key)
        return lane.put(part)

    @property
    def is_crowded(self) -> bool:
        """Return whether many lanes are in use."""
        return len(self._lanes) >= CROWD_LANES

    def start_later(self, lane: ProduceLane, loop: asyncio.AbstractEventLoop) -> None:
        """Let a lane begin an append after the linger: at the same moments as others, so that they share entries."""
        linger_seconds = self.linger_ms / 1000
        if not linger_seconds:
            loop.call_soon(lane.start, loop)
            return
        self._starting.append(lane)
        if len(self._starting) == 1:
            loop.call_later(linger_seconds - loop.time() % linger_seconds, self._start_all, loop)

    def _start_all(self, loop: asyncio.AbstractEventLoop) -> None:
        lanes, self._starting = self._starting, []
        small: list[ProduceLane] = []
        for lane in lanes:
            if lane.waiting_bytes <= INLINE_BYTES_REMOTE:
                small.append(lane)
            else:
                lane.start(loop)
        for first in range(0, len(small), MEETING_LANES_MAX):
            members = small[first : first + MEETING_LANES_MAX]
            meeting = Meeting(members) if len(members) >= CROWD_LANES else None
            for lane in members:
                lane.start(loop, meeting)

    def forget(self, key: LaneKey) -> None:
        """Drop a lane in which nothing waits."""
        self._lanes.pop(key, None)


@dataclass(slots=True)
class _Round:
    """One append: the batches of its partitions, in their order."""

    plan: TopicPlan
    parts: list[ProducePart]
    deadline_ms: float
    meeting: Meeting | None = None
    throttles_ms: list[int] = field(default_factory=list)


class ProduceLane:
    """Writes the batches of one kind, one append after another.

    ``put`` and what it starts run on the event loop; ``write`` and what it calls on one thread at a time.
    """

    def __init__(self, lanes: ProduceLanes, key: LaneKey) -> None:
        self._lanes, self._key = lanes, key
        self._cluster = lanes.gateway.cluster
        self._waiting: deque[tuple[ProducePart, asyncio.Future[PartAnswer]]] = deque()
        self._is_busy = False
        self._config = ProducerConfig(
            acks=key.acks,
            max_request_size_bytes=REQUEST_BYTES_MAX,
            request_timeout_ms=PUT_TIMEOUT_MS,
            delivery_timeout_ms=STORE_TIMEOUT_MS,
        )

    def put(self, part: ProducePart) -> asyncio.Future[PartAnswer]:
        """Let a batch wait; return its answer to come."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[PartAnswer] = loop.create_future()
        self._waiting.append((part, answer))
        if not self._is_busy:
            self._is_busy = True
            self._lanes.start_later(self, loop)
        return answer

    @property
    def waiting_bytes(self) -> int:
        """Return the bytes of the batches that wait, as they were sent."""
        return sum(len(part.records) for part, _ in self._waiting)

    def start(self, loop: asyncio.AbstractEventLoop, meeting: Meeting | None = None) -> None:
        """Begin an append of what waits.

        Args:
            meeting: of the lanes that begin with this one.
        """
        group: list[tuple[ProducePart, asyncio.Future[PartAnswer]]] = []
        size_bytes = 0
        while self._waiting and (not group or size_bytes + len(self._waiting[0][0].records) <= GROUP_BYTES_MAX):
            size_bytes += len(self._waiting[0][0].records)
            group.append(self._waiting.popleft())
        written = self._lanes.threads.submit(self.write, [part for part, _ in group], meeting)

        def tell(_: object) -> None:
            with suppress(RuntimeError):  # the loop has ended: the gateway waited no longer, and nobody is to be told
                loop.call_soon_threadsafe(self._tell, loop, group)

        written.add_done_callback(tell)

    def _tell(
        self, loop: asyncio.AbstractEventLoop, group: list[tuple[ProducePart, asyncio.Future[PartAnswer]]]
    ) -> None:
        for part, answer in group:
            if not answer.done():
                answer.set_result(part.answer or PartAnswer(_failed()))
        if self._waiting:
            self._lanes.start_later(self, loop)
        else:
            self._is_busy = False
            self._lanes.forget(self._key)

    # ------------------------------------------------------------------------------------ on a thread

    def write(self, parts: list[ProducePart], meeting: Meeting | None = None) -> None:
        """Append batches that come together, and answer each; blocks. One call at a time."""
        try:
            clock = self._cluster.clock
            timeout_ms = min(TIMEOUT_MS_MAX, max(1_000, *(part.timeout_ms for part in parts)))
            plan = self._plan()
            made = _Round(plan.topic(self._key.topic), parts, clock.monotonic_ms() + timeout_ms, meeting)
            for part in parts:
                self._read(part, made.plan)
            for number in range(ROUNDS_MAX):
                left = self._new_parts(made)
                if not left:
                    return
                self._append_round(plan, made, left, is_last=number == ROUNDS_MAX - 1)
        except ReplogError as error:
            for part in parts:
                if part.answer is None:
                    part.fail(error)
        finally:
            if meeting is not None:
                meeting.leave(self)
            self._lanes.decoded.deallocate(sum(part.memory_bytes for part in parts))
            if any(part.answer is None or part.answer.error is not None for part in parts):
                self._lanes.plans.pop((self._key.principal, self._key.topic), None)

    def _plan(self) -> WritePlan:
        """Return the topic's replicas and settings, which may be a second old, if the principal may write."""
        place, now_ms = (self._key.principal, self._key.topic), self._cluster.clock.monotonic_ms()
        made_ms, plan = self._lanes.plans.get(place, (float("-inf"), None))
        if plan is None or now_ms - made_ms > PLAN_AGE_MS:
            plan = make_write_plan(self._cluster, [self._key.topic], self._key.principal)
            self._lanes.plans[place] = now_ms, plan
        return plan

    def _read(self, part: ProducePart, plan: TopicPlan) -> None:
        """Decode a batch into the columns of the topic, or refuse it."""
        try:
            if part.topic_id not in (None, plan.topic_id):
                raise NotFoundError(
                    ErrorCode.UNKNOWN_TOPIC_ID,
                    f"Topic '{plan.name}' was deleted and created again since. Nothing was "
                    "appended. Ask for the metadata again.",
                )
            if not 0 <= part.partition < len(plan.replica_sets):
                raise unknown_partition(plan.name, part.partition, len(plan.replica_sets))
            with self._lanes.decoders:
                batches = decode(part.records, bytes_max=DECODED_BYTES_MAX, now_ms=self._cluster.clock.now_ms())
            if len(batches) != 1:
                raise InvalidConfigError(
                    ErrorCode.INVALID_RECORD, f"{len(batches)} record batches came for a partition. Send one."
                )
            (batch,) = batches
            if batch.size_bytes > plan.max_message_bytes:
                raise InvalidConfigError(
                    ErrorCode.MESSAGE_TOO_LARGE,
                    f"A record batch for topic '{plan.name}' is {batch.size_bytes} bytes, larger than the topic's "
                    f"max.message.bytes ({plan.max_message_bytes}). Send smaller ones, or raise that setting.",
                )
            self._lanes.decoded.allocate(batch.data.nbytes, MEMORY_WAIT_MS)
            part.memory_bytes = batch.data.nbytes
            part.rows = _input_rows(batch.data, part.partition, plan)
            part.batch = batch
        except ReplogError as error:
            part.fail(error)
        part.records = b""

    def _new_parts(self, made: _Round) -> list[ProducePart]:
        """Return the batches to append; answer those that the log has, and those that do not follow."""
        left = [part for part in made.parts if part.answer is None]
        if self._key.producer_id < 0 or not left:
            return left
        ledger = self._cluster.topic_ledger(made.plan.ledger_id)
        batches = [_sequence(made.plan, part) for part in left]
        ask = partial(judge_batches, topic_id=made.plan.topic_id, producer_id=self._key.producer_id, batches=batches)
        judged = ledger.ask(ask)
        if any(verdict.error is not None for verdict in judged):
            ledger.refresh()  # the batches before it may have gone through another gateway
            judged = ledger.ask(ask)
        for part, verdict in zip(left, judged, strict=True):
            if verdict.error is not None:
                part.fail(verdict.error)
            elif verdict.base_offset is not None:
                part.answer = PartAnswer(None, verdict.base_offset, -1, verdict.log_start_offset)
        return [part for part in left if part.answer is None]

    def _append_round(self, plan: WritePlan, made: _Round, parts: list[ProducePart], *, is_last: bool) -> None:
        """Store the batches and append them; answer all, unless each is to be judged again."""
        objects, stored = self._store(plan, made, parts)
        if not stored:
            return
        appender = Appender(
            self._lanes.manager,
            self._config,
            self._cluster.clock,
            principal=self._key.principal,
            client_id=self._key.client_id,
            random_source=random.SystemRandom(),
            on_throttle=made.throttles_ms.append,
            when_queued=None if made.meeting is None else partial(made.meeting.attend, self),
        )
        is_sequenced = self._key.producer_id >= 0
        batches = [_sequence(made.plan, part) for part in stored] if is_sequenced else []
        append = appender.make_append(objects, batches, producer_name(self._key.producer_id), IdentityKind.ONE_SHOT)
        answer = appender.append(made.plan.ledger_id, append, int(made.deadline_ms), is_atomic=False)
        # Else one of the batches was in the log already, or another one came first.
        if is_last or not is_sequenced or answer.error is None or answer.error.code not in REJUDGED:
            self._answer(made, stored, answer)

    def _store(
        self, plan: WritePlan, made: _Round, parts: list[ProducePart]
    ) -> tuple[list[DataObject], list[ProducePart]]:
        """Put the batches on the replicas; return the objects, and the batches in them."""
        is_crowded = made.meeting is not None or self._lanes.is_crowded
        writer = TaskWriter(
            plan,
            self._config,
            self._cluster.brokers,
            query_id=new_id(),
            batch_id=0,
            task_id=0,
            default_topic=made.plan.name,
            inline_room=partial(inline_room, self._cluster, INLINE_BYTES_REMOTE if is_crowded else None),
            clock=self._cluster.clock,
        )
        stored, broken = [], set()
        try:
            for part in parts:
                assert part.rows is not None
                try:
                    if part.partition in broken:
                        raise _after_refused(part.partition)
                    writer.append(part.rows)
                    stored.append(part)
                except InvalidConfigError as error:  # of its rows: none of them was taken
                    part.fail(error, _refused_records(error, part.rows, made.plan, self._cluster.clock.now_ms()))
                    if self._key.producer_id >= 0:
                        broken.add(part.partition)
            return [item for _, item in writer.close().objects], stored
        except BaseException:
            writer.abort()
            raise

    def _answer(self, made: _Round, parts: list[ProducePart], answer: Answer) -> None:
        topic_id, throttle_ms = made.plan.topic_id, max(made.throttles_ms, default=0)
        counted: dict[int, int] = {}
        for part in parts:
            assert part.batch is not None
            response = answer.responses[(topic_id, part.partition)]
            if response.error is not None:
                part.fail(response.error)
                continue
            base = response.base_offset + counted.get(part.partition, 0)
            counted[part.partition] = counted.get(part.partition, 0) + part.batch.data.num_rows
            time_ms = -1 if response.log_append_time_ms is None else response.log_append_time_ms
            part.answer = PartAnswer(None, base, time_ms, response.log_start_offset, throttle_ms)
        self._lanes.gateway.appended(made.plan.ledger_id)


def _sequence(plan: TopicPlan, part: ProducePart) -> BatchSequence:
    batch = part.batch
    assert batch is not None
    return BatchSequence(plan.topic_id, part.partition, batch.producer_epoch, batch.base_sequence, batch.data.num_rows)


def _input_rows(data: pa.RecordBatch, partition: int, plan: TopicPlan) -> pa.RecordBatch:
    """Return a batch's rows with their partition; of a typed topic their JSON values as its columns.

    Raises:
        InvalidConfigError: INVALID_RECORD: a value does not fit the columns; ``record`` says which.
    """
    partitions = array_of(np.full(data.num_rows, partition, dtype=np.int32))
    if plan.schema is None:
        return data.append_column("partition", partitions)
    columns, reasons = JsonColumns(plan.schema.arrow, takes_extra=False).read(data.column("value"))
    if reasons.null_count < len(reasons):
        row = int(np.argmax(reasons.is_valid().to_numpy(zero_copy_only=False)))
        raise InvalidConfigError(
            ErrorCode.INVALID_RECORD,
            f"Record {row} does not fit the columns of topic '{plan.name}' ({plan.schema.ddl}): {reasons[row]}. Send "
            "JSON objects of these columns.",
            record=row,
        )
    rows = columns.append_column(TYPED_PARTITION, partitions)
    rows = rows.append_column(TYPED_TIMESTAMP, data.column("timestamp"))
    return rows.append_column(TYPED_HEADERS, data.column("headers")) if "headers" in data.schema.names else rows


def _refused_records(error: ReplogError, rows: pa.RecordBatch, plan: TopicPlan, now_ms: int) -> tuple[int, ...]:
    """Return which rows of a batch a writer has refused; none if the error is not about single ones."""
    if error.code is ErrorCode.INVALID_RECORD and "key" in rows.schema.names:
        is_refused = rows.column("key").is_null().to_numpy(zero_copy_only=False)
    elif error.code is ErrorCode.INVALID_TIMESTAMP:
        name = "timestamp" if plan.schema is None else TYPED_TIMESTAMP
        ages_ms = now_ms - rows.column(name).cast(pa.int64()).to_numpy() // 1000
        is_refused = (ages_ms > plan.timestamp_before_max_ms) | (ages_ms < -plan.timestamp_after_max_ms)
    else:
        return ()
    return tuple(map(int, np.flatnonzero(is_refused)))


def _after_refused(partition: int) -> ReplogError:
    return InvalidConfigError(
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        f"the batch before this one of partition {partition} was refused. Nothing was appended.",
    )


def _failed() -> ReplogError:
    return RetriableError(ErrorCode.KAFKA_STORAGE_ERROR, "The gateway could not write the batch. Its log says why.")
