"""A plain producer's topics: partitions, queues, destinations.

Source: Kafka ``ProducerMetadata`` and ``KafkaProducer.waitOnMetadata``. Folds ledgers as a write's driver does.
``send`` waits here for a topic, and the sender's thread refreshes it.
"""

from __future__ import annotations

import logging
import math
import random
import threading
from dataclasses import replace
from difflib import get_close_matches
from typing import NamedTuple

import pyarrow as pa

from spark_replog.client.settings import ProducerSettings
from spark_replog.clock import Clock
from spark_replog.cluster.authorizer import Authorizer
from spark_replog.cluster.cluster import Cluster
from spark_replog.commit.schema_changes import merge_schema
from spark_replog.commit.write_plan import make_write_plan
from spark_replog.errors import (
    ErrorCode,
    InvalidConfigError,
    NotFoundError,
    ReplogError,
    RetriableError,
    command_line,
    is_refusal,
)
from spark_replog.ids import INTERNAL_TOPICS, TopicId, TopicPartition, is_valid_topic_name
from spark_replog.log.acl import AclOperation
from spark_replog.log.write_plan import TopicPlan
from spark_replog.write.accumulator import RecordAccumulator
from spark_replog.write.arrow_appender import destination_of, row_limit
from spark_replog.write.data_request import ObjectBuilder
from spark_replog.write.partitioner import StickyPartitioner, partition_of
from spark_replog.write.producer_batch import PartitionQueue

logger = logging.getLogger(__name__)

SILENT_WAIT_MS = 1_000
"""A longer wait for a topic is logged: until ``max.block.ms`` a misspelt name would look like a hang."""
KEYS_REMEMBERED = 16_384
"""Limit per topic of the keys whose partition is cached."""
KEY_BYTES_REMEMBERED = 64


class TopicEntry:
    """One topic, ready for writes. Replaced when its plan changes."""

    __slots__ = ("is_used", "key_queues", "limit", "limit_bytes", "plan", "queues", "sticky")

    def __init__(
        self, plan: TopicPlan, queues: list[PartitionQueue], sticky: StickyPartitioner, limit: tuple[int, str]
    ) -> None:
        self.plan = plan
        self.queues = queues
        self.sticky = sticky
        self.limit = limit
        self.limit_bytes = limit[0]
        self.key_queues: dict[bytes, PartitionQueue] = {}
        self.is_used = True

    def queue_of_key(self, key: bytes) -> PartitionQueue:
        """Return the queue of a key's partition, by murmur2 over all partitions."""
        queue = self.queues[partition_of(key, len(self.queues))]
        if len(key) <= KEY_BYTES_REMEMBERED:
            if len(self.key_queues) >= KEYS_REMEMBERED:
                self.key_queues.clear()
            self.key_queues[key] = queue
        return queue


class _Missing(NamedTuple):
    """What a look for a topic did not find, and the remedy; `is_absent`: the store answers that there is none."""

    reason: str
    remedy: str
    is_absent: bool = False


class ProducerMetadata:
    """The topics of one producer.

    Args:
        builder: gets every new plan before a record of its topics is appended.
    """

    def __init__(
        self,
        cluster: Cluster,
        accumulator: RecordAccumulator,
        builder: ObjectBuilder,
        settings: ProducerSettings,
        clock: Clock,
        random_source: random.Random,
    ) -> None:
        self._cluster = cluster
        self._accumulator = accumulator
        self._settings = settings
        self._clock = clock
        self._random = random_source
        self._builder = builder
        self._lock = threading.Lock()
        self._is_closed = False
        self.topics: dict[str, TopicEntry] = {}
        """By name; read without a lock. A typed topic keeps the version of its schema with which it came."""
        self._told: set[TopicId] = set()
        self._newest_asked_ms: float = -math.inf
        self._refreshed_ms = self._swept_ms = clock.monotonic_ms()

    def wait_for(
        self, topic: str, partition: int | None, max_block_ms: int, *, waits_for_new: bool = True
    ) -> TopicEntry:
        """Return a topic, waiting until it and the partition exist. A wait of more than a second is logged once.

        Args:
            partition: must exist; None: any.
            waits_for_new: wait for a topic that does not exist yet, as Kafka's producer does.

        Raises:
            InvalidConfigError: INVALID_TOPIC_EXCEPTION.
            NotFoundError: UNKNOWN_TOPIC_OR_PARTITION: it does not exist, and nothing waits for it.
            RetriableError: REQUEST_TIMED_OUT: it does not exist, or no majority of the metadata roots answered;
                REPLOG_STORE_REFUSED, without a wait: so few of them do not refuse that there is no majority.
            ReplogError: REPLOG_PRODUCER_CLOSED: the producer was closed during the wait.
        """
        if not isinstance(topic, str) or not is_valid_topic_name(topic) or topic in INTERNAL_TOPICS:
            raise invalid_topic(topic)
        deadline_ms = self._clock.monotonic_ms() + max_block_ms
        warn_ms: float = deadline_ms - max_block_ms + SILENT_WAIT_MS
        while True:
            missing = self._look_up(topic, partition)
            if isinstance(missing, TopicEntry):
                return missing
            reason, remedy, is_absent = missing
            if is_absent and not waits_for_new:
                raise NotFoundError(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{reason}. {self._meant(topic)}{remedy}", topic=topic
                )
            if self._is_closed:
                raise ReplogError(
                    ErrorCode.REPLOG_PRODUCER_CLOSED, f"the producer was closed while {reason}. Open a new one."
                )
            left_ms = deadline_ms - self._clock.monotonic_ms()
            if left_ms <= 0:
                raise RetriableError(
                    ErrorCode.REQUEST_TIMED_OUT,
                    f"{reason} after max.block.ms ({max_block_ms}). {remedy}",
                    topic=topic,
                )
            if deadline_ms - left_ms >= warn_ms:
                warn_ms = math.inf
                logger.warning("%s; waiting for it for up to max.block.ms (%d)", reason, max_block_ms)
            self._clock.sleep_ms(min(left_ms, self._settings.producer.retry_backoff_ms))

    def close(self) -> None:
        """End the waits for missing topics."""
        self._is_closed = True

    def is_due(self, now_ms: int, *, is_suspect: bool = False) -> bool:
        """Return whether the metadata is older than ``metadata.max.age.ms``, or if suspect, ``retry.backoff.ms``.

        It is suspect if an append failed in a way that a new leader, ISR or generation would explain.
        """
        producer, coordinator = self._settings.producer, self._settings.coordinator
        age_ms = producer.retry_backoff_ms if is_suspect else coordinator.metadata_max_age_ms
        return bool(self.topics) and now_ms - self._refreshed_ms >= age_ms

    def refresh(self) -> None:
        """Fold the topics again and assign their partitions to their current destinations. Never raises.

        A deleted topic is dropped, so that its next record waits for it; so is a topic that was not used for
        ``metadata.max.idle.ms``.
        """
        now_ms = self._clock.monotonic_ms()
        self._refreshed_ms = now_ms
        if now_ms - self._swept_ms >= self._settings.client.metadata_max_idle_ms:
            self._swept_ms = now_ms
            self._forget_idle()
        for name in list(self.topics):
            try:
                plan = make_write_plan(self._cluster, [name], self._settings.client.principal)
            except NotFoundError:
                with self._lock:
                    self.topics.pop(name, None)
            except RetriableError:
                return  # keep the known plans: no root may answer; the next call tries again
            except ReplogError as error:  # of this topic, as when it may no longer be written
                logger.info("the metadata of topic '%s' stay as they are: %s", name, error)
            else:
                with self._lock:
                    self._apply(plan.topics[0])

    def take_newest(self, topic: str, *, is_certain: bool = False) -> TopicEntry | None:
        """Go over to the newest version of a known topic's schema; None: this is it already.

        For rows that do not fit the version in use. Unless a newer one is certain, the store is asked at most once in
        ``retry.backoff.ms``, and not answering means None: the rows are refused then.
        """
        entry, now_ms = self.topics.get(topic), self._clock.monotonic_ms()
        is_early = now_ms - self._newest_asked_ms < self._settings.producer.retry_backoff_ms
        if entry is None or (is_early and not is_certain):
            return None
        self._newest_asked_ms = now_ms
        try:
            plan = make_write_plan(self._cluster, [topic], self._settings.client.principal).topics[0]
        except ReplogError:
            if is_certain:
                raise
            return None
        with self._lock:
            made = self._apply(plan, takes_newest=True)
        return made if made.plan.schema != entry.plan.schema else None

    def merge(self, topic: str, given: pa.Schema) -> TopicEntry | None:
        """Have the topic's schema hold an input's columns, and go over to it; None: the version in use does.

        Raises:
            ReplogError: as ``commit.schema_changes.merge_schema``.
        """
        merge_schema(
            self._cluster,
            topic,
            given,
            principal=self._settings.client.principal,
            timeout_ms=self._settings.producer.delivery_timeout_ms,
        )
        return self.take_newest(topic, is_certain=True)

    def _forget_idle(self) -> None:
        with self._lock:
            for name, entry in list(self.topics.items()):
                if not entry.is_used and not any(queue.batches for queue in entry.queues):
                    del self.topics[name]
                entry.is_used = False

    def _meant(self, topic: str) -> str:
        """Return a question that names the most similar topics, of those that the principal may write to."""
        authorizer = Authorizer(self._cluster, self._settings.client.principal)
        names = authorizer.allowed_topics(AclOperation.WRITE, self._cluster.topic_names())
        near = get_close_matches(topic, [name for name in names if name not in INTERNAL_TOPICS])
        shown = " or ".join(f"'{name}'" for name in near)
        return f"Did you mean {shown}? " if near else ""

    def _look_up(self, topic: str, partition: int | None) -> TopicEntry | _Missing:
        """Return a topic, or what is missing."""
        entry = self.topics.get(topic)
        if entry is None or (partition is not None and partition >= len(entry.queues)):
            try:
                plan = make_write_plan(self._cluster, [topic], self._settings.client.principal)
            except NotFoundError:
                count = 1 if partition is None else partition + 1
                line = command_line(self._cluster.path, "topic", "create", topic, "-p", str(count))
                return _Missing(f"topic '{topic}' does not exist", f"Create it: {line}, or correct the name.", True)
            except RetriableError as error:
                if is_refusal(error):
                    raise
                remedy = f"See which roots answer: {command_line(self._cluster.path, 'store', 'info')}."
                return _Missing(f"topic '{topic}' could not be looked up ({error})", remedy)
            with self._lock:
                entry = self._apply(plan.topics[0])
        if partition is not None and partition >= len(entry.queues):
            line = command_line(self._cluster.path, "topic", "add-partitions", topic, str(partition + 1))
            return _Missing(
                f"partition {partition} of topic '{topic}' with {len(entry.queues)} partitions does not exist",
                f"Add it: {line}, or correct the number.",
            )
        return entry  # not looked up again: the sender's thread may drop the topic meanwhile

    def _apply(self, plan: TopicPlan, *, takes_newest: bool = False) -> TopicEntry:
        """Adopt a topic's newest plan; of a typed topic with the version of its schema that is in use."""
        current = self.topics.get(plan.name)
        if current is not None and current.plan.topic_id == plan.topic_id:
            if current.plan.fold_index > plan.fold_index:
                return current  # another thread's plan, of a newer fold
            if not takes_newest:
                plan = self._with_kept_version(plan, current.plan)
        if current is not None and current.plan == plan:
            return current
        whole = self._builder.plan
        others = tuple(topic for topic in whole.topics if topic.name != plan.name)
        self._builder.plan = replace(whole, topics=(*others, plan))
        queues = [self._accumulator.queue(TopicPartition(plan.name, index)) for index in range(len(plan.replica_sets))]
        for number, queue in enumerate(queues):
            self._accumulator.assign(queue, destination_of(plan, number, self._settings.producer))
        sticky = StickyPartitioner(
            queues,
            [number for number in range(len(plan.replica_sets)) if number not in plan.offline],
            self._settings.producer.batch_size_bytes,
            self._random,
            is_adaptive=self._settings.client.adaptive_partitioning,
        )
        limit = row_limit(plan, self._settings.producer, self._accumulator.pool.total_bytes)
        entry = self.topics[plan.name] = TopicEntry(plan, queues, sticky, limit)
        return entry

    def _with_kept_version(self, plan: TopicPlan, current: TopicPlan) -> TopicPlan:
        """Return a plan with the version of the schema that is in use; log once that there is a newer one."""
        if plan.schema is None or current.schema is None or plan.schema.version <= current.schema.version:
            return plan
        if plan.topic_id not in self._told:
            self._told.add(plan.topic_id)
            logger.info(
                "topic '%s' has version %d of its schema; this producer goes on with version %d until a row needs it",
                plan.name,
                plan.schema.version,
                current.schema.version,
            )
        return replace(plan, schema=current.schema)


def invalid_topic(topic: object) -> InvalidConfigError:
    """Return INVALID_TOPIC_EXCEPTION."""
    return InvalidConfigError(
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        f"Invalid topic name '{topic}': use 1 to 249 of a-z A-Z 0-9 . _ -, and not the name of an internal topic.",
    )
