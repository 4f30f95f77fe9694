"""The fold of consumer groups: inline records in, the newest offset per key out.

Only the newest value of a key is kept, so memory grows with keys. Commits are judged here, in the order of the log,
so that a member of an older generation never moves an offset, whatever its clock shows. Source of the rules:
``ClassicGroup.validateOffsetCommit`` and ``OffsetMetadataManager``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from spark_replog.errors import ErrorCode
from spark_replog.log.codec.group_records import (
    GROUP_METADATA,
    GroupMetadata,
    GroupPhase,
    OffsetAndMetadata,
    OffsetRecord,
)
from spark_replog.log.model import OK, CommandResult, GroupRecords, Outcome
from spark_replog.wire import SINT, TEXT, UINT, fields, map_of, optional
from spark_replog.wire import record as record_of

WRITERS_KEPT = 1024
"""Writers of a group whose last sequence is kept: those that wrote last."""


class Move(NamedTuple):
    """The last change of a committed offset to another one.

    Attributes:
        from_offset: the offset before, and `from_ms`, when it was committed last; -1 for the first commit.
        since_ms: when the present offset was committed first.
    """

    from_offset: int
    from_ms: int
    since_ms: int


@dataclass(slots=True)
class GroupState:
    """One group. Mutable by the fold only; read it under the ledger's lock.

    Attributes:
        offsets: newest commit by (topic, partition).
        revision: of its content, unique over all groups, never 0; a change of membership or a deletion applies to
            one revision only. Heartbeats do not change it.
        beats: per member the number of its folded commands: a heartbeat without a clock.
        last_commit_ms: proposer's time of the newest command.
        moves: of `offsets`, by the same keys.
    """

    group: str
    metadata: GroupMetadata = field(default_factory=GroupMetadata)
    offsets: dict[tuple[str, int], OffsetAndMetadata] = field(default_factory=dict)
    revision: int = 0
    beats: dict[str, int] = field(default_factory=dict)
    last_commit_ms: int = 0
    writers: dict[str, int] = field(default_factory=dict)
    moves: dict[tuple[str, int], Move] = field(default_factory=dict)

    @property
    def phase(self) -> GroupPhase:
        """Return the phase of the group."""
        return self.metadata.phase


@dataclass(slots=True)
class GroupTable:
    """All groups of one ledger, by name; `revision`: the newest one of any group."""

    groups: dict[str, GroupState] = field(default_factory=dict)
    revision: int = 0

    def get(self, group: str) -> GroupState | None:
        """Return a group, None if it is unknown."""
        return self.groups.get(group)

    def is_applied(self, command: GroupRecords) -> bool:
        """Return whether this very command was folded before."""
        group = self.groups.get(command.group)
        return group is not None and group.writers.get(command.writer_id, -1) >= command.sequence

    def judge(self, command: GroupRecords) -> ErrorCode | None:
        """Return why the command would be refused next, or None."""
        group = self.groups.get(command.group)
        if command.revision >= 0:
            # A change of membership was computed from one revision and is valid for that one only.
            revision = 0 if group is None else group.revision
            return None if revision == command.revision else ErrorCode.REBALANCE_IN_PROGRESS
        return judge_member(
            None if group is None else group.metadata,
            command.member_id,
            command.instance_id,
            command.generation,
            is_beat=not command.records,
        )

    def apply(self, command: GroupRecords) -> CommandResult:
        """Fold one command."""
        if self.is_applied(command):
            return CommandResult(Outcome.DUPLICATE)
        refused = self.judge(command)
        if refused is not None:
            return CommandResult(Outcome.FENCED, refused.name)
        if any(isinstance(row, OffsetRecord) and row.value and row.value.offset < 0 for row in command.records):
            return CommandResult(Outcome.INVALID, "a committed offset is negative")
        state = self.groups.setdefault(command.group, GroupState(command.group))
        state.last_commit_ms = max(state.last_commit_ms, command.time_ms)
        state.writers.pop(command.writer_id, None)  # the newest is last
        state.writers[command.writer_id] = command.sequence
        if len(state.writers) > WRITERS_KEPT:
            del state.writers[next(iter(state.writers))]
        if command.member_id:
            state.beats[command.member_id] = state.beats.get(command.member_id, 0) + 1
        if command.records:
            self.revision += 1
            state.revision = self.revision
        for record in command.records:
            if record.group != command.group:
                continue
            if isinstance(record, OffsetRecord):
                _commit(state, (record.topic, record.partition), record.value)
            else:
                self._apply_metadata(state, record.value)
        return OK

    def _apply_metadata(self, state: GroupState, metadata: GroupMetadata | None) -> None:
        if metadata is None:
            if not state.offsets:
                self.groups.pop(state.group, None)  # a command may hold two tombstones
            state.metadata = GroupMetadata()
            state.beats.clear()
            return
        state.metadata = metadata
        members = {member.member_id for member in metadata.members}
        state.beats = {member_id: beats for member_id, beats in state.beats.items() if member_id in members}


_OFFSET = record_of(
    OffsetAndMetadata,
    offset=SINT,
    leader_epoch=SINT,
    metadata=TEXT,
    commit_time_ms=SINT,
    expire_time_ms=optional(SINT),
    topic_id=TEXT,
)
_GROUP = record_of(
    GroupState,
    group=TEXT,
    metadata=GROUP_METADATA,
    offsets=map_of(fields(TEXT, SINT), _OFFSET),
    revision=UINT,
    beats=map_of(TEXT, UINT),
    last_commit_ms=SINT,
    writers=map_of(TEXT, SINT),
    moves=map_of(fields(TEXT, SINT), record_of(Move, from_offset=SINT, from_ms=SINT, since_ms=SINT)),
)
GROUPS = record_of(GroupTable, groups=map_of(TEXT, _GROUP), revision=UINT)


def _commit(state: GroupState, key: tuple[str, int], value: OffsetAndMetadata | None) -> None:
    if value is None:
        state.offsets.pop(key, None)
        state.moves.pop(key, None)
        return
    before = state.offsets.get(key)
    if before is None:
        state.moves[key] = Move(-1, -1, value.commit_time_ms)
    elif (before.offset, before.topic_id) != (value.offset, value.topic_id):
        state.moves[key] = Move(before.offset, before.commit_time_ms, value.commit_time_ms)
    state.offsets[key] = value


def judge_member(
    metadata: GroupMetadata | None, member_id: str, instance_id: str, generation: int, *, is_beat: bool = False
) -> ErrorCode | None:
    """Return why a commit (or a heartbeat) is refused, or None.

    Args:
        metadata: None for an unknown group.
        member_id: '' for none.
        instance_id: '' for none.
        generation: -1: not from a member.
        is_beat: a heartbeat is accepted in every phase.
    """
    if metadata is None:
        return None if generation < 0 else ErrorCode.ILLEGAL_GENERATION
    if generation < 0 and metadata.phase is GroupPhase.EMPTY:
        return None
    static = metadata.instance(instance_id)
    if static is not None and static.member_id != member_id:
        return ErrorCode.FENCED_INSTANCE_ID
    if (instance_id and static is None) or metadata.member(member_id) is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if generation != metadata.generation:
        return ErrorCode.ILLEGAL_GENERATION
    if metadata.phase is GroupPhase.COMPLETING_REBALANCE and not is_beat:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return None
