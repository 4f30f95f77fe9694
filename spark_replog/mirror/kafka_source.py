"""What a mirror asks of a Kafka cluster: its topics, where their logs begin, and committed record batches.

Requests and connections are kafka-python's; batches stay bytes. Reads go by topic id, so a topic that was made again
under the name is never taken for the one before.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, NamedTuple
from uuid import UUID

from kafka import errors as kafka_errors
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector
from kafka.protocol.admin import DescribeConfigsRequest
from kafka.protocol.consumer import FetchRequest, ListOffsetsRequest
from kafka.protocol.metadata import MetadataRequest

from spark_replog.errors import ErrorCode, ReplogError

TIMEOUT_MS = 30_000
READ_COMMITTED = 1
EARLIEST, LATEST = -2, -1
TOPIC_RESOURCE = 2
TOPIC_SOURCE = 1
"""A setting that the topic itself has."""
NO_ERROR, OUT_OF_RANGE, UNKNOWN_TOPIC, NOT_ALLOWED = 0, 1, 3, 29
ANSWER_BYTES_MAX = 100 * 1024 * 1024
FETCH_VERSION_MIN = 13
"""The first that names topics by their ids: Kafka 3.1."""


@dataclass(frozen=True, slots=True)
class SourceTopic:
    """A topic of the cluster.

    Attributes:
        leaders: of each partition; -1: none now.
    """

    name: str
    topic_id: UUID
    leaders: tuple[int, ...]


class Wanted(NamedTuple):
    """From where to read a partition."""

    topic_id: UUID
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class Fetched:
    """The answer for one partition.

    Attributes:
        error: Kafka's code; 0: none.
        end: offsets below are decided (last stable offset).
        log_start: of the source.
        aborted: (producer id, first offset) of transactions in `records`.
    """

    error: int
    end: int
    log_start: int
    records: bytes | memoryview
    aborted: tuple[tuple[int, int], ...]


class KafkaSource:
    """A connection to a cluster. Not thread-safe; a context manager.

    Args:
        address: HOST:PORT, one or more after commas; the attribute is for messages.
        settings: arguments of the connection; see `client_config.py`.

    Raises:
        ReplogError: REPLOG_MIRROR_SOURCE, as all methods do.
    """

    def __init__(self, address: str, settings: Mapping[str, Any] = {}) -> None:
        self.address = address
        given = {"bootstrap_servers": address.split(","), "client_id": "replog-mirror", **settings}
        given["receive_message_max_bytes"] = ANSWER_BYTES_MAX
        self.cluster_id = ""
        self._require_a_listener()
        self._net = NetworkSelector(**given)
        with ExitStack() as stack:
            stack.callback(self._net.close)
            try:
                self._manager = KafkaConnectionManager(self._net, **given)
                stack.callback(self._manager.close)
                self._manager.bootstrap(timeout_ms=TIMEOUT_MS)
            except Exception as error:  # kafka-python checks settings by assertions, too
                raise self._failed(error) from error
            self.topics([])
            self._closing = stack.pop_all()

    def _require_a_listener(self) -> None:
        """Refuse addresses of which none takes a connection: kafka-python would leave sockets open."""
        problems = []
        for place in self.address.split(","):
            host, _, port = place.strip().rpartition(":")
            try:
                socket.create_connection((host.strip("[]"), int(port)), TIMEOUT_MS / 1000).close()
                return
            except (OSError, ValueError, OverflowError) as error:
                problems.append(f"{place}: {error}")
        raise self._failed("; ".join(problems))

    def _failed(self, error: BaseException | str) -> ReplogError:
        what = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
        return ReplogError(
            ErrorCode.REPLOG_MIRROR_SOURCE,
            f"Kafka at {self.address} cannot be read: {what}. What was mirrored stays. Look at the address and the"
            " file of --config, and run the mirror again.",
        )

    def _ask(self, request: Any, node_id: int | None = None, timeout_ms: int = TIMEOUT_MS) -> Any:
        async def ask() -> Any:
            return await self._manager.wait_for(self._manager.send(request, node_id=node_id), timeout_ms)

        try:
            return self._manager.run(ask)
        except (kafka_errors.KafkaError, OSError) as error:
            raise self._failed(error) from error

    def topics(self, names: Iterable[str] | None) -> dict[str, SourceTopic]:
        """Return the topics of these names that exist, or all but internal ones, by name."""
        kind = MetadataRequest.MetadataRequestTopic
        wanted = None if names is None else [kind(name=name, topic_id=UUID(int=0)) for name in names]
        request = MetadataRequest(topics=wanted, allow_auto_topic_creation=False, min_version=10)
        answer = self._ask(request)
        self.cluster_id = answer.cluster_id or ""
        self._manager.cluster.update_metadata(answer)
        described = {}
        for topic in answer.topics:
            if topic.error_code not in (NO_ERROR, UNKNOWN_TOPIC, NOT_ALLOWED):
                raise self._failed(f"topic '{topic.name}': {kafka_errors.for_code(topic.error_code).__name__}")
            if topic.error_code == NO_ERROR and not topic.is_internal:
                leaders = {part.partition_index: part.leader_id for part in topic.partitions}
                row = tuple(leaders[number] for number in range(len(leaders)))
                described[topic.name] = SourceTopic(topic.name, topic.topic_id, row)
        return described

    def offsets(self, topic: SourceTopic, at: int) -> dict[int, int]:
        """Return where each partition begins (`EARLIEST`) or ends for readers of committed records (`LATEST`)."""
        made: dict[int, int] = {}
        kind = ListOffsetsRequest.ListOffsetsTopic
        for node_id in set(topic.leaders):
            parts = [
                kind.ListOffsetsPartition(partition_index=number, current_leader_epoch=-1, timestamp=at)
                for number, leader in enumerate(topic.leaders)
                if leader == node_id
            ]
            topics = [kind(name=topic.name, partitions=parts)]
            request = ListOffsetsRequest(
                replica_id=-1, isolation_level=READ_COMMITTED, topics=topics, timeout_ms=TIMEOUT_MS, min_version=2,
                max_version=7,
            )  # fmt: skip
            for part in self._ask(request, node_id).topics[0].partitions:
                if part.error_code != NO_ERROR:
                    raise self._failed(f"{topic.name}-{part.partition_index}: {kafka_errors.for_code(part.error_code)}")
                made[part.partition_index] = part.offset
        return made

    def config(self, name: str) -> dict[str, str]:
        """Return the settings that a topic itself has."""
        kind = DescribeConfigsRequest.DescribeConfigsResource
        resource = kind(resource_type=TOPIC_RESOURCE, resource_name=name, configuration_keys=None)
        request = DescribeConfigsRequest(
            resources=[resource], include_synonyms=False, include_documentation=False, min_version=1
        )
        (result,) = self._ask(request).results
        entries = result.configs if result.error_code == NO_ERROR else ()
        return {entry.name: entry.value for entry in entries if entry.config_source == TOPIC_SOURCE and entry.value}

    def fetch(
        self, node_id: int, wanted: Iterable[Wanted], *, bytes_max: int, wait_ms: int
    ) -> dict[tuple[UUID, int], Fetched]:
        """Return committed record batches of partitions that a broker leads, by topic id and partition.

        Args:
            bytes_max: of the whole answer, about, and of each partition.
            wait_ms: how long the broker waits for the first record.
        """
        kind = FetchRequest.FetchTopic
        topics: dict[UUID, list[Any]] = {}
        for topic_id, number, offset in wanted:
            part = kind.FetchPartition(
                partition=number, current_leader_epoch=-1, fetch_offset=offset, last_fetched_epoch=-1,
                log_start_offset=-1, partition_max_bytes=bytes_max,
            )  # fmt: skip
            topics.setdefault(topic_id, []).append(part)
        request = FetchRequest(
            max_wait_ms=wait_ms, min_bytes=1, max_bytes=bytes_max, isolation_level=READ_COMMITTED, session_id=0,
            session_epoch=-1, forgotten_topics_data=[], rack_id="", min_version=FETCH_VERSION_MIN, max_version=16,
            topics=[kind(topic_id=topic_id, partitions=parts) for topic_id, parts in topics.items()],
        )  # fmt: skip
        answer = self._ask(request, node_id, wait_ms + TIMEOUT_MS)
        if answer.error_code != NO_ERROR:
            raise self._failed(str(kafka_errors.for_code(answer.error_code)))
        made = {}
        for topic in answer.responses:
            for part in topic.partitions:
                gone = tuple((item.producer_id, item.first_offset) for item in part.aborted_transactions or ())
                made[topic.topic_id, part.partition_index] = Fetched(
                    part.error_code, part.last_stable_offset, part.log_start_offset, part.records or b"", gone
                )
        return made

    def close(self) -> None:
        """Close the connections."""
        self._closing.close()

    def __enter__(self) -> KafkaSource:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()
