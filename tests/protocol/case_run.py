"""One run of a case of Kafka's protocol at a server, real Kafka or a gateway, over the wire."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any
from uuid import UUID

from kafka.errors import for_code
from kafka.protocol.admin import CreateTopicsRequest
from kafka.protocol.metadata import FindCoordinatorRequest

from spark_replog.errors import ErrorCode
from tests.gateways import WireClient, records_of
from tests.group_member import Member
from tests.waiting import wait_until
from tests.wire_requests import fetch_request, list_request, produce_request

PRODUCE_VERSION, FETCH_VERSION, LIST_VERSION = 9, 12, 8
"""Unless a case says another one: the newest that names topics by name."""
LATEST = -1


class CaseRun:
    """What a case does at a server, and the answers that it notes; use it in a ``with`` statement.

    Args:
        name: of the case.
        port: of the server.
    """

    def __init__(self, name: str, port: int) -> None:
        self.answers: dict[str, str] = {}
        self._port = port
        self.topic = self.group = f"{name.replace('_', '-')}-{secrets.token_hex(3)}"
        self.topic_id = UUID(int=0)
        self._open = ExitStack()
        self.client = self.connect()

    def __enter__(self) -> CaseRun:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def connect(self) -> WireClient:
        """Return a new connection."""
        return self._open.enter_context(WireClient(self._port))

    def note(self, step: str, code: int, **fields: object) -> None:
        """Note the answer of a step: its error code, and what else is essential."""
        assert step not in self.answers, step
        self.answers[step] = " ".join([code_name(code), *(f"{field}={value}" for field, value in fields.items())])

    # ------------------------------------------------------------------------------------------- topics

    def create_topic(self, partitions: int = 1, **config: object) -> None:
        """Create this run's topic, and wait until all its partitions answer."""
        topic = CreateTopicsRequest.CreatableTopic
        configs = [
            topic.CreatableTopicConfig(name=key.replace("_", "."), value=str(value)) for key, value in config.items()
        ]
        made = topic(name=self.topic, num_partitions=partitions, replication_factor=1, assignments=[], configs=configs)
        answer = self.client.ask(CreateTopicsRequest(topics=[made], timeout_ms=30_000, validate_only=False), 7)
        assert answer.topics[0].error_code == 0, answer
        self.topic_id = answer.topics[0].topic_id
        for number in range(partitions):
            wait_until(lambda number=number: self.listed(LATEST, partition=number).error_code == 0)  # type: ignore[misc]

    def produced(self, step: str, batches: Mapping[int, bytes | None] | bytes | None, **options: Any) -> Any:
        """Send batches, of partition 0 or of several; note the answer of each, and return the last one."""
        by_partition = batches if isinstance(batches, Mapping) else {0: batches}
        version = options.pop("version", PRODUCE_VERSION)
        request = produce_request(by_partition, options.pop("topic", self.topic), **options)
        parts = self.client.ask(request, version).responses[0].partition_responses
        for part in parts:
            fields: dict[str, object] = {"base_offset": part.base_offset}
            if part.error_code == 0:
                fields["log_start"] = part.log_start_offset
            if part.log_append_time_ms != -1:
                fields["append_time"] = "set"
            if part.record_errors:
                fields["records"] = [record.batch_index for record in part.record_errors]
            where = step if len(parts) == 1 else f"{step}, partition {part.index}"
            self.note(where, part.error_code, **fields)
        return parts[-1]

    # -------------------------------------------------------------------------------------------- reads

    def listed(self, time_ms: int, *, version: int = LIST_VERSION, **options: Any) -> Any:
        """Return the answer of ListOffsets."""
        request = list_request(time_ms, topic=options.pop("topic", self.topic), **options)
        return self.client.ask(request, version).topics[0].partitions[0]

    def fetched(self, step: str, offset: int = 0, *, version: int = FETCH_VERSION, **options: Any) -> Any:
        """Fetch one partition; note its answer with the values from the offset on, and return it."""
        request = fetch_request(offset, topic=options.pop("topic", self.topic), **options)
        answer = self.client.ask(request, version)
        part = answer.responses[0].partitions[0]
        self.note_fetched(step, part, offset)
        return part

    def note_fetched(self, step: str, part: Any, offset: int) -> None:
        """Note the answer of a partition: its ends, and the values from an offset on."""
        if part.error_code:
            self.note(step, part.error_code)
            return
        values = [value for at, _, value in records_of(part.records) if at >= offset]
        texts = [text if len(text := str(value)) < 20 else f"{len(value or b'')} bytes" for value in values]
        self.note(step, 0, high_watermark=part.high_watermark, log_start=part.log_start_offset, values=texts)

    # ------------------------------------------------------------------------------------------- groups

    def member(self, **more: Any) -> Member:
        """Return a member that is to be, of this run's group, with a connection of its own."""
        return Member(self.connect(), **{"group": self.group, "topic": self.topic, **more})

    def find_coordinator(self) -> None:
        """Wait until the server coordinates this run's group."""

        def is_ready() -> bool:
            asked = FindCoordinatorRequest(key_type=0, coordinator_keys=[self.group])
            if self.client.ask(asked, 4).coordinators[0].error_code:
                return False
            return self.member().offsets(7)[0] == 0

        wait_until(is_ready, pause_seconds=0.1)


def code_name(code: int) -> str:
    """Return Kafka's name of an error code."""
    return "NONE" if code == 0 else ErrorCode(code).name if code in set(ErrorCode) else str(for_code(code).message)


Case = Callable[[CaseRun], None]
CASES: dict[str, Case] = {}
"""All cases by name. A module of cases adds its own."""


def case(function: Case) -> Case:
    """Add a case."""
    name = function.__name__
    assert name not in CASES, name
    CASES[name] = function
    return function


def answers_of(name: str, port: int) -> dict[str, str]:
    """Run a case at a server; return the answer of each of its steps."""
    with CaseRun(name, port) as run:
        CASES[name](run)
        return run.answers
