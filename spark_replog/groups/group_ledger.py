"""The ledger of ``__consumer_offsets``: found, made on first use, and written one command at a time."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from spark_replog.admin.controller import Controller
from spark_replog.cluster.cluster import Cluster, TopicHandle
from spark_replog.errors import ErrorCode, NotFoundError, RetriableError
from spark_replog.groups import group_rebalance
from spark_replog.groups.group_rebalance import commit_time_ms
from spark_replog.ids import TopicId, new_id
from spark_replog.ledger.ledger import Ledger
from spark_replog.log.codec.commands import encode_command
from spark_replog.log.codec.group_records import GroupMetadata, GroupRecord, Record
from spark_replog.log.fold.group_state import GroupState
from spark_replog.log.fold.topic_state import TopicLedgerState
from spark_replog.log.model import GroupRecords, Outcome

OFFSETS_TOPIC = "__consumer_offsets"
_TRIES_MAX = 10


@dataclass(frozen=True, slots=True)
class MemberIdentity:
    """Who commits: a member of a generation; without values, no member."""

    member_id: str = ""
    instance_id: str = ""
    generation: int = -1


NO_MEMBER = MemberIdentity()


_own_groups: WeakKeyDictionary[Cluster, set[str]] = WeakKeyDictionary()


class GroupLedger:
    """Thread safe. One writer: its commands are decided in the order in which they were made."""

    def __init__(self, cluster: Cluster, *, timeout_ms: int) -> None:
        self._cluster = cluster
        self._timeout_ms = timeout_ms
        self._writer_id = new_id()
        self._sequences = itertools.count()
        self._append_lock = threading.Lock()

    @property
    def own_groups(self) -> set[str]:
        """Return the groups that this process's coordinators of the store have written to."""
        return _own_groups.setdefault(self._cluster, set())

    def commit_time_ms(self) -> int:
        """Return the wall time to write into records: see ``commit_time_ms``."""
        now_ms = self._cluster.clock.now_ms()
        location = self.folded() or self.find()
        if location is None:
            return now_ms
        _, ledger = location
        with ledger.lock:
            return commit_time_ms(ledger.state.groups.groups, self.own_groups, now_ms)

    def find(self) -> tuple[TopicHandle, Ledger[TopicLedgerState]] | None:
        """Return the offsets topic on its newest fold; None: no group ever committed."""
        for _ in range(2):
            try:
                handle = self._cluster.lookup(OFFSETS_TOPIC)
            except NotFoundError:
                return None
            try:
                ledger, _topic = self._cluster.topic_state(handle)
            except NotFoundError:  # deleted: the next lookup reads the cluster ledger again
                continue
            return handle, ledger
        return None

    def find_or_create(self) -> tuple[TopicHandle, Ledger[TopicLedgerState]]:
        """Return the offsets topic, folded at least once by this process; make it on first use."""
        location = self.folded() or self.find()
        if location is None:
            controller = Controller(self._cluster, timeout_ms=self._timeout_ms, is_internal=True)
            controller.create_topic(OFFSETS_TOPIC, if_not_exists=True)
            location = self.find()
        if location is None:
            raise _not_available("it was deleted")
        return location

    def folded(self, *, is_newest: bool = False) -> tuple[TopicHandle, Ledger[TopicLedgerState]] | None:
        """Return the offsets topic as this process has folded it so far; None: it has not.

        Args:
            is_newest: the cluster ledger was just read: do not read it again to find that the topic does not exist.
        """
        try:
            handle = self._cluster.lookup(OFFSETS_TOPIC, is_folded=is_newest)
            ledger, _ = self._cluster.folded_topic(handle)
        except NotFoundError:
            return None
        return handle, ledger

    def change(self, group: str, records: Callable[[GroupState], tuple[Record, ...]]) -> None:
        """Decide records made from the group's newest revision; none: nothing to do.

        Raises:
            NotFoundError: GROUP_ID_NOT_FOUND.
        """

        def of_known(state: GroupState | None) -> tuple[Record, ...] | None:
            if state is None:
                raise group_not_found(group)
            return records(state) or None

        self.append(group, of_known, revision_checked=True)

    def update_if_due(self, group: str, change: Callable[[GroupMetadata], GroupMetadata]) -> None:
        """Decide a change of the group's membership unless it changes nothing on the present fold."""
        location = self.folded()
        if location is not None:
            _, ledger = location
            with ledger.lock:
                group_state = ledger.state.groups.get(group)
                metadata = GroupMetadata() if group_state is None else group_state.metadata
            if change(metadata) == metadata:
                return
        self.update(group, lambda metadata, _: change(metadata))

    def update(
        self,
        group: str,
        change: Callable[[GroupMetadata, GroupState | None], GroupMetadata],
        member_id: str = "",
    ) -> None:
        """Decide a change of the group's membership, made from its newest revision.

        Args:
            change: from the newest membership and state (None: no such group) to the next; what it raises is
                raised here. The same value: nothing to do.
            member_id: the member whose heartbeat it counts as; '' none.
        """

        def records(state: GroupState | None) -> tuple[Record, ...] | None:
            metadata = GroupMetadata() if state is None else state.metadata
            changed = change(metadata, state)
            return None if changed == metadata else (GroupRecord(group, changed),)

        self.append(group, records, MemberIdentity(member_id), revision_checked=True)

    def command(
        self,
        topic_id: TopicId,
        group: str,
        member: MemberIdentity,
        records: tuple[Record, ...] = (),
    ) -> GroupRecords:
        """Return this writer's next command: a commit, or without records a heartbeat."""
        return self._command(topic_id, group, next(self._sequences), member, -1, self._cluster.clock.now_ms(), records)

    def _command(
        self,
        topic_id: TopicId,
        group: str,
        sequence: int,
        member: MemberIdentity,
        revision: int,
        time_ms: int,
        records: tuple[Record, ...],
    ) -> GroupRecords:
        who = member.member_id, member.instance_id, member.generation
        return GroupRecords(topic_id, group, self._writer_id, sequence, *who, revision, time_ms, records)

    def append_commands(self, commands: Sequence[GroupRecords]) -> None:
        """Decide commands of any members in one ENTRY; those that are decided already or refused are left out.

        Raises:
            RetriableError: COORDINATOR_NOT_AVAILABLE.
            OutcomeUnknownError: REPLOG_COMMIT_OUTCOME_UNKNOWN.
        """
        location = self.folded()
        if location is None or not commands:
            return
        _, ledger = location

        def propose(state: TopicLedgerState) -> tuple[bytes, ...] | None:
            table = state.groups
            due = (records for records in commands if not table.is_applied(records) and table.judge(records) is None)
            return tuple(map(encode_command, due)) or None

        with ledger.lock:
            is_due = propose(ledger.state) is not None
        if is_due:
            with _translated():
                ledger.append(propose, timeout_ms=self._timeout_ms)

    def append(
        self,
        group: str,
        records: Callable[[GroupState | None], tuple[Record, ...] | None],
        member: MemberIdentity = NO_MEMBER,
        *,
        revision_checked: bool = False,
    ) -> None:
        """Decide one command; it is made again on each newer fold until it is decided on the fold it was made from."""
        self.own_groups.add(group)
        with self._append_lock:  # sequences of one writer must be decided in their order
            sequence = next(self._sequences)
            for _ in range(_TRIES_MAX):
                with _translated():
                    handle, ledger = self.find_or_create()

                def propose(state: TopicLedgerState, topic_id: TopicId = handle.topic_id) -> bytes | None:
                    group_state = state.groups.get(group)
                    made = records(group_state)
                    if made is None:
                        return None
                    revision = (0 if group_state is None else group_state.revision) if revision_checked else -1
                    time_ms = self._cluster.clock.now_ms()
                    if revision_checked and not member.member_id:
                        # A change by a process outside of the group does not prove that time has passed for the group.
                        time_ms = 0 if group_state is None else group_state.last_commit_ms
                    command = self._command(topic_id, group, sequence, member, revision, time_ms, made)
                    if state.groups.is_applied(command):
                        return None
                    refused = state.groups.judge(command)
                    if refused is not None:
                        raise group_rebalance.group_error(refused, f"group '{group}'")
                    return encode_command(command)

                with _translated():
                    outcome = ledger.append(propose, timeout_ms=self._timeout_ms)
                if outcome.result is None or outcome.result.outcome in (Outcome.APPLIED, Outcome.DUPLICATE):
                    return
                # FENCED: another command of the same ENTRY came first. TOPIC_CLOSED: look it up again.
        raise _not_available("it changes faster than this process can follow")


def group_not_found(group: str) -> NotFoundError:
    """Return the error of a group that does not exist."""
    return NotFoundError(
        ErrorCode.GROUP_ID_NOT_FOUND, f"there is no consumer group '{group}'. `replog group list` shows them."
    )


def _not_available(why: str) -> RetriableError:
    return RetriableError(
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        f"the records of the group could not be decided: {why}. Nothing was committed; repeat the call.",
    )


@contextmanager
def _translated() -> Iterator[None]:
    """Translate errors as Kafka's coordinator does (source: ``CoordinatorOperationExceptionHelper``)."""
    try:
        yield
    except RetriableError as error:
        if error.code in (ErrorCode.REPLOG_NO_QUORUM, ErrorCode.REPLOG_LEDGER_BUSY):
            raise _not_available(str(error)) from error
        raise
