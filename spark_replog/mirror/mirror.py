"""A mirror of topics of a Kafka cluster: rounds of fetches, each of which becomes one append per topic.

It keeps nothing: where a topic goes on is where its log ends in the store. So it may be killed, and run twice at once.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from uuid import UUID

from spark_replog.admin.controller import Controller, MirrorOf
from spark_replog.client.chunk_append import ChunkAppender
from spark_replog.client.mirrored_log import MirroredLog
from spark_replog.cluster.cluster import Cluster
from spark_replog.config.producer import ProducerConfig
from spark_replog.config.registry import read_topic_config
from spark_replog.errors import ErrorCode, InvalidConfigError, NotFoundError, ReplogError
from spark_replog.mirror.kafka_source import (
    EARLIEST,
    LATEST,
    NO_ERROR,
    OUT_OF_RANGE,
    Fetched,
    KafkaSource,
    SourceTopic,
    Wanted,
)
from spark_replog.mirror.mirrored_topic import MirroredTopic

FETCH_BYTES = 8 * 1024 * 1024
BUFFER_BYTES = 128 * 1024 * 1024
REQUEST_BYTES_MAX = 64 * 1024 * 1024
WAIT_MS = 250
REFRESH_MS = 5_000
RETRY_MS = 1_000
PAUSE_MS = 10
CONFIG_NAMES = (
    "cleanup.policy",
    "delete.retention.ms",
    "max.message.bytes",
    "message.timestamp.type",
    "min.cleanable.dirty.ratio",
    "min.compaction.lag.ms",
    "retention.bytes",
    "retention.ms",
)
"""Settings of a topic that mean the same here."""
_log = logging.getLogger(__name__)


class Mirror:
    """Not thread-safe.

    Args:
        names: of topics; an error if one is missing when the mirror begins.
        pattern: a regular expression that whole names of further topics match; None: none.
        accepts_loss: go on behind rows that the source deleted before they were read.
    """

    def __init__(
        self,
        cluster: Cluster,
        source: KafkaSource,
        names: Sequence[str],
        pattern: str | None = None,
        *,
        accepts_loss: bool = False,
    ) -> None:
        self._cluster, self._source, self._names = cluster, source, tuple(names)
        self._pattern = None if pattern is None else re.compile(pattern)
        self._accepts_loss = accepts_loss
        self._controller = Controller(cluster)
        config = ProducerConfig(buffer_memory_bytes=BUFFER_BYTES, max_request_size_bytes=REQUEST_BYTES_MAX)
        self._appender = ChunkAppender(cluster, "mirror", config)
        self._turn = 0
        self.topics: dict[str, MirroredTopic] = {}
        self.refused: dict[str, ReplogError] = {}
        """Topics of the source that cannot be mirrored, such as those whose name another topic of the store has."""

    def refresh(self) -> None:
        """Look which topics and partitions the source has now, and where they end; make those that are new.

        Raises:
            NotFoundError: UNKNOWN_TOPIC_OR_PARTITION: a topic that was named is not there.
            ReplogError: REPLOG_MIRROR_SOURCE.
        """
        described = self._source.topics(None if self._pattern is not None else self._names)
        lacking = [name for name in self.topics if name not in described]
        described |= self._source.topics(lacking) if lacking else {}
        for name in lacking:
            if name not in described and self.topics[name].error is None:
                self._leave_alone(self.topics[name], _deleted(name))
        missing = [name for name in self._names if name not in described and name not in self.topics]
        if missing:
            raise _missing(missing)
        for topic in _chosen(described, self._names, self._pattern):
            self._refresh_topic(topic)

    def _refresh_topic(self, topic: SourceTopic) -> None:
        mirrored = self.topics.get(topic.name)
        if topic.name in self.refused or (mirrored is not None and mirrored.error is not None):
            return
        try:
            if mirrored is None:
                mirrored = self.topics[topic.name] = self._open(topic)
            elif mirrored.source.topic_id != topic.topic_id:
                raise _made_again(topic.name)
            mirrored.source = topic
            if len(topic.leaders) > len(mirrored.ends):
                self._grow(topic)
                mirrored.look_again()
            if min(topic.leaders) >= 0:
                mirrored.source_ends = self._source.offsets(topic, LATEST)
        except ReplogError as error:
            if error.code not in _OF_ONE_TOPIC:
                raise
            if mirrored is None:
                self.refused[topic.name] = error
            else:
                self._leave_alone(mirrored, error)

    def _open(self, topic: SourceTopic) -> MirroredTopic:
        """Return a topic of the store; make it if it is not there."""
        origin = f"kafka:{self._source.cluster_id}/{topic.name}/{topic.topic_id}"
        is_new = False
        self._cluster.refresh()
        if topic.name not in self._cluster.topic_names():
            starts = self._source.offsets(topic, EARLIEST)
            mirror = MirrorOf(origin, tuple(starts[number] for number in range(len(topic.leaders))))
            try:
                self._controller.create_topic(
                    topic.name, len(topic.leaders), config=self._config_of(topic), mirror=mirror
                )
                is_new = True
            except ReplogError as error:
                if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:  # another mirror made it
                    raise
        log = MirroredLog(self._cluster, self._appender, topic.name, origin)
        return MirroredTopic(log, topic, is_new=is_new)

    def _config_of(self, topic: SourceTopic) -> dict[str, str]:
        config = {}
        for name, value in self._source.config(topic.name).items():
            if name in CONFIG_NAMES:
                try:
                    read_topic_config({name: value})
                except InvalidConfigError as error:
                    _log.warning("topic '%s': its %s=%s is left out: %s", topic.name, name, value, error)
                    continue
                config[name] = value
        return config

    def _grow(self, topic: SourceTopic) -> None:
        try:
            self._controller.add_partitions(topic.name, len(topic.leaders))
        except InvalidConfigError as error:
            if error.code is not ErrorCode.INVALID_PARTITIONS:  # another mirror did
                raise

    def _leave_alone(self, topic: MirroredTopic, error: ReplogError) -> None:
        topic.error = error
        _log.error("topic '%s' is mirrored no further: %s", topic.name, error)

    def round(self, wait_ms: int = WAIT_MS) -> int:
        """Fetch once from each leader and append what came; return how many rows.

        An error of one topic leaves that topic alone; the others go on.

        Raises:
            ReplogError: REPLOG_MIRROR_SOURCE, or as writes: what was not appended is read again.
        """
        self._turn += 1
        by_leader: dict[int, list[Wanted]] = {}
        by_id: dict[UUID, MirroredTopic] = {}
        for topic in self.topics.values():
            if topic.error is None:
                by_id[topic.source.topic_id] = topic
                for number, leader in enumerate(topic.source.leaders):
                    place = Wanted(topic.source.topic_id, number, topic.positions[number])
                    by_leader.setdefault(leader, []).append(place)
        row_count, has_moved = 0, False
        for leader, wanted in by_leader.items():
            if leader < 0:
                continue
            first = self._turn % len(wanted)  # the broker fills its answer in this order
            turned = wanted[first:] + wanted[:first]
            answers = self._source.fetch(leader, turned, bytes_max=FETCH_BYTES, wait_ms=wait_ms)
            by_topic: dict[UUID, dict[int, Fetched]] = {}
            for (topic_id, number), answer in answers.items():
                by_topic.setdefault(topic_id, {})[number] = answer
            for topic_id, parts in by_topic.items():
                row_count += self._take(by_id[topic_id], parts)
            has_moved |= any(answer.error not in (NO_ERROR, OUT_OF_RANGE) for answer in answers.values())
        if has_moved:
            self.refresh()  # another leader, or the topic is gone
        return row_count

    def _take(self, topic: MirroredTopic, answers: dict[int, Fetched]) -> int:
        """Append the rows of a topic; leave it alone if it cannot go on."""
        try:
            for number, answer in answers.items():
                if answer.error == OUT_OF_RANGE:
                    start = self._source.offsets(topic.source, EARLIEST)[number]
                    end = self._source.offsets(topic.source, LATEST)[number]
                    topic.begin_later(number, start, end, accepts_loss=self._accepts_loss)
            good = {number: answer for number, answer in answers.items() if answer.error == NO_ERROR}
            return topic.take_safely(good)
        except ReplogError as error:
            if error.code not in _OF_ONE_TOPIC:
                raise
            self._leave_alone(topic, error)
            return 0

    def close_gaps(self) -> None:
        """Move the ends of topics that were read to their end over offsets without rows."""
        for topic in self.topics.values():
            if topic.error is None:
                topic.close_gaps()

    def run_once(self, is_stopped: Callable[[], bool], on_round: Callable[[], object] = lambda: None) -> None:
        """Mirror what the source has now. Topics that cannot go on keep their error; the others are whole then."""
        self.refresh()
        goals = {name: dict(topic.source_ends) for name, topic in self.topics.items()}
        clock = self._cluster.clock
        refreshed_ms = clock.monotonic_ms()
        while not is_stopped() and not all(self.topics[name].has_reached(goal) for name, goal in goals.items()):
            if not self.round():
                self.close_gaps()
                if clock.monotonic_ms() - refreshed_ms >= REFRESH_MS:  # a leader was away
                    self.refresh()
                    refreshed_ms = clock.monotonic_ms()
                clock.sleep_ms(PAUSE_MS)
            on_round()

    def run(self, is_stopped: Callable[[], bool], on_round: Callable[[], object] = lambda: None) -> None:
        """Mirror until it is stopped; what passes by itself is tried again."""
        clock = self._cluster.clock
        refreshed_ms: int | None = None
        while not is_stopped():
            try:
                if refreshed_ms is None or clock.monotonic_ms() - refreshed_ms >= REFRESH_MS:
                    self.refresh()
                    self.close_gaps()
                    refreshed_ms = clock.monotonic_ms()
                if not self.round():
                    clock.sleep_ms(PAUSE_MS)
                on_round()
            except ReplogError as error:
                if not self.topics:
                    raise  # it never worked
                _log.warning("tried again: %s", error)
                clock.sleep_ms(RETRY_MS)
                refreshed_ms = None


_OF_ONE_TOPIC = frozenset(
    {
        ErrorCode.REPLOG_MIRROR_LOST,
        ErrorCode.REPLOG_MIRROR_MISMATCH,
        ErrorCode.REPLOG_MIRRORED_TOPIC,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.INVALID_RECORD,
        ErrorCode.INVALID_TIMESTAMP,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    }
)


def topics_of(source: KafkaSource, names: Sequence[str], pattern: str | None) -> list[SourceTopic]:
    """Return the topics that a mirror with these arguments has, by name.

    Raises UNKNOWN_TOPIC_OR_PARTITION: one that was named is not there. REPLOG_MIRROR_SOURCE.
    """
    described = source.topics(None if pattern is not None else names)
    if missing := [name for name in names if name not in described]:
        raise _missing(missing)
    return _chosen(described, names, None if pattern is None else re.compile(pattern))


def _chosen(
    described: Mapping[str, SourceTopic], names: Sequence[str], pattern: re.Pattern[str] | None
) -> list[SourceTopic]:
    items = sorted(described.items())
    return [topic for name, topic in items if name in names or (pattern is not None and pattern.fullmatch(name))]


def _missing(names: Sequence[str]) -> NotFoundError:
    return NotFoundError(
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        f"Kafka has no topic {', '.join(names)}, or this user may not describe it. Correct --topics.",
        topic=names[0],
    )


def _deleted(name: str) -> ReplogError:
    return NotFoundError(
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        f"topic '{name}' was deleted in Kafka. Its mirror keeps what it has. Delete it in the store, or promote it.",
        topic=name,
    )


def _made_again(name: str) -> ReplogError:
    return ReplogError(
        ErrorCode.REPLOG_MIRROR_MISMATCH,
        f"topic '{name}' was deleted in Kafka and made again while it was mirrored. Nothing of the new one was read."
        " Delete or rename the topic in the store, and mirror it again.",
        topic=name,
    )
