"""A member of a group that speaks Kafka's classic protocol by hand, one step at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kafka.protocol.consumer import (
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
)

from spark_replog.groups.group_rebalance import kafka_subscription
from tests.gateways import WireClient

ID_REQUIRED = 79
SESSION_MS = 6_000


def subscription(topic: str) -> bytes:
    """Return Kafka's bytes of a consumer that wants one topic."""
    return kafka_subscription(b'{"generation":-1,"owned":{},"topics":["%s"]}' % topic.encode())


@dataclass
class Member:
    """A client that speaks the protocol by hand, one connection, as of the newest version."""

    client: WireClient
    member_id: str = ""
    instance_id: str | None = None
    generation: int = -1
    group: str = "g"
    version: int = 9
    topic: str = "orders"
    kind: str | None = "consumer"
    assignor: str | None = "range"
    """Of its group, as the answer to its last join has it."""

    def ask_to_join(
        self,
        data: bytes | None = None,
        kind: str = "consumer",
        session_ms: int = SESSION_MS,
        assignors: Sequence[str] = ("range",),
    ) -> None:
        data = subscription(self.topic) if data is None else data
        protocols = [JoinGroupRequest.JoinGroupRequestProtocol(name=name, metadata=data) for name in assignors]
        request = JoinGroupRequest(
            group_id=self.group, session_timeout_ms=session_ms, rebalance_timeout_ms=20_000, member_id=self.member_id,
            group_instance_id=self.instance_id, protocol_type=kind, protocols=protocols,
        )  # fmt: skip
        self.client.send(request, self.version)

    def joined(self) -> Any:
        answer = self.client.receive()
        if answer.error_code in (0, ID_REQUIRED):
            self.member_id, self.generation = answer.member_id, answer.generation_id
        if answer.error_code == 0:
            self.kind, self.assignor = answer.protocol_type, answer.protocol_name
        return answer

    def join(self, **more: Any) -> Any:
        self.ask_to_join(**more)
        answer = self.joined()
        if answer.error_code == ID_REQUIRED:
            self.ask_to_join(**more)
            answer = self.joined()
        return answer

    def ask_to_sync(self, *of: tuple[Member, bytes]) -> None:
        given = [
            SyncGroupRequest.SyncGroupRequestAssignment(member_id=member.member_id, assignment=data)
            for member, data in of
        ]
        request = SyncGroupRequest(
            group_id=self.group, generation_id=self.generation, member_id=self.member_id,
            group_instance_id=self.instance_id, protocol_type=self.kind, protocol_name=self.assignor,
            assignments=given,
        )  # fmt: skip
        self.client.send(request, 5)

    def sync(self, *of: tuple[Member, bytes]) -> Any:
        self.ask_to_sync(*of)
        return self.client.receive()

    def beat(self) -> int:
        request = HeartbeatRequest(
            group_id=self.group, generation_id=self.generation, member_id=self.member_id,
            group_instance_id=self.instance_id,
        )  # fmt: skip
        code: int = self.client.ask(request, 4).error_code
        return code

    def leave(self) -> Any:
        who = LeaveGroupRequest.MemberIdentity(member_id=self.member_id, group_instance_id=self.instance_id)
        return self.client.ask(LeaveGroupRequest(group_id=self.group, members=[who]), 5)

    def commit(self, offset: int, metadata: str | None = "", topic: str = "", partition: int = 0) -> int:
        part = OffsetCommitRequest.OffsetCommitRequestTopic.OffsetCommitRequestPartition(
            partition_index=partition, committed_offset=offset, committed_leader_epoch=-1, committed_metadata=metadata
        )
        request = OffsetCommitRequest(
            group_id=self.group, generation_id_or_member_epoch=self.generation, member_id=self.member_id,
            group_instance_id=self.instance_id,
            topics=[OffsetCommitRequest.OffsetCommitRequestTopic(name=topic or self.topic, partitions=[part])],
        )  # fmt: skip
        code: int = self.client.ask(request, 9).topics[0].partitions[0].error_code
        return code

    def offsets(self, version: int = 9) -> tuple[int, dict[tuple[str, int], tuple[int, str]]]:
        topic = OffsetFetchRequest.OffsetFetchRequestTopic(name=self.topic, partition_indexes=[0, 1])
        request = OffsetFetchRequest(group_id=self.group, topics=[topic])
        if version >= 8:
            group = OffsetFetchRequest.OffsetFetchRequestGroup(group_id=self.group, topics=None, member_epoch=-1)
            request = OffsetFetchRequest(groups=[group], require_stable=False)
        answer = self.client.ask(request, version)
        if version >= 8:
            answer = answer.groups[0]
        return answer.error_code, {
            (topic.name, part.partition_index): (part.committed_offset, part.metadata)
            for topic in answer.topics
            for part in topic.partitions
        }
