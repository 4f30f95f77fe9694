"""Notes of members, and the relay that stores them and writes the changes that they request, for all members at once.

If each member wrote an entry for each join and each heartbeat, all would compete for the ledger, and each change of
the writing process costs a claim. A note proves nothing: the fold judges the commands.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from spark_replog.cluster.cluster import Cluster
from spark_replog.cluster.mailbox import Mailbox
from spark_replog.errors import CorruptDataError, ErrorCode, ReplogError, RetriableError
from spark_replog.groups import group_rebalance
from spark_replog.groups.group_ledger import GroupLedger
from spark_replog.groups.group_rebalance import CONSUMER
from spark_replog.log.codec.commands import decode_command, encode_command
from spark_replog.log.codec.group_records import GroupMember, GroupMetadata, GroupPhase, GroupRecord
from spark_replog.log.model import GroupRecords
from spark_replog.logs import Once

_VERSION = 1


class NoteKind(Enum):
    """The request of a note; the value is part of the note's name."""

    BEAT = "beat"
    """A heartbeat, written with the next entry of the group."""
    COMMIT = "commit"
    """A commit of offsets without a waiting sender, written by the leader at its next look."""
    JOIN = "join"
    LEAVE = "leave"

    @property
    def is_urgent(self) -> bool:
        """Return whether the sender waits for it."""
        return self in (NoteKind.JOIN, NoteKind.LEAVE)


@dataclass(frozen=True, slots=True)
class Note:
    """One request of one member.

    Attributes:
        command: as the member itself would write it. JOIN: its only record holds the member alone, and its generation
            is the group's when the member asked; LEAVE: only the leaving member.
        commit: with JOIN or LEAVE: offsets to commit before; None without any.
    """

    kind: NoteKind
    command: GroupRecords
    commit: GroupRecords | None = None

    @property
    def joining(self) -> GroupMetadata | None:
        """Return the joining member, alone in a group of its type; None in a note of another kind."""
        for record in self.command.records:
            if isinstance(record, GroupRecord) and record.value is not None and record.value.members:
                return record.value
        return None

    @property
    def member(self) -> GroupMember | None:
        """Return the joining member; None in a note of another kind."""
        return None if self.joining is None else self.joining.members[0]


_NAME = re.compile(rf"([0-9a-f]{{16}})\.([0-9a-f]{{16}})\.([0-9]{{12}})\.({'|'.join(kind.value for kind in NoteKind)})")


@dataclass(frozen=True, slots=True, order=True)
class NoteName:
    """Where a note is found. Names of one group share a prefix; a lower name is written first.

    Attributes:
        group: hash of the group's name, because the name may hold any text.
        member: hash of the member id.
        number: counts the notes of the member.
    """

    group: str
    member: str
    number: int
    kind: NoteKind

    @classmethod
    def of(cls, group: str, member_id: str, number: int, kind: NoteKind) -> NoteName:
        """Return the name of a member's note."""
        return cls(digest_of(group), digest_of(member_id), number, kind)

    @classmethod
    def parse(cls, text: str) -> NoteName | None:
        """Return the parts of a name; None: it is another kind of object."""
        match = _NAME.fullmatch(text)
        return None if match is None else cls(match[1], match[2], int(match[3]), NoteKind(match[4]))

    def __str__(self) -> str:
        """Return the object's name."""
        return f"{self.group}.{self.member}.{self.number:012d}.{self.kind.value}"


def digest_of(text: str) -> str:
    """Return what names of notes have in place of a group's name or a member id."""
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]


def encode_note(note: Note) -> bytes:
    """Return the note's bytes: JSON, with the commands as the ledger holds them."""
    fields: dict[str, object] = {"v": _VERSION, "kind": note.kind.value, "command": _text(note.command)}
    if note.commit is not None:
        fields["commit"] = _text(note.commit)
    return json.dumps(fields, separators=(",", ":")).encode()


def decode_note(data: bytes) -> Note:
    """Return the note.

    Raises:
        CorruptDataError: CORRUPT_MESSAGE: the bytes are not a note of this version. The reader drops them.
    """
    try:
        fields = json.loads(data)
        if fields["v"] != _VERSION:
            raise ValueError(f"version {fields['v']} is unknown")
        commit = fields.get("commit")
        return Note(NoteKind(fields["kind"]), _command(fields["command"]), None if commit is None else _command(commit))
    except (ReplogError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptDataError(
            ErrorCode.CORRUPT_MESSAGE, f"a member's note cannot be read: {error}. It is dropped; the member asks again."
        ) from error


def merge_notes(metadata: GroupMetadata, notes: Iterable[Note], now_ms: int) -> GroupMetadata:
    """Return the group after the joins and leaves of the notes that are still due.

    A note that was already written, or whose join is refused, changes nothing; its sender sees that in the fold.
    """
    for note in notes:
        if note.kind is NoteKind.LEAVE:
            metadata = group_rebalance.depart(metadata, {note.command.member_id}, now_ms)
        elif note.kind is NoteKind.JOIN and note.joining is not None:
            member, protocol_type = note.joining.members[0], note.joining.protocol_type or CONSUMER
            if not _is_due(metadata, member, note.command):
                continue
            try:
                metadata = group_rebalance.enter(metadata, member, now_ms, protocol_type)
            except ReplogError:
                continue
    return group_rebalance.complete_if_ready(metadata, now_ms)


def commands_of(notes: Iterable[Note]) -> list[GroupRecords]:
    """Return the notes' heartbeats and commits; those of one member in the order in which it made them."""
    commands = []
    for note in notes:
        if note.commit is not None:
            commands.append(note.commit)
        if note.kind in (NoteKind.BEAT, NoteKind.COMMIT):
            commands.append(note.command)
    return sorted(commands, key=lambda command: command.sequence)


def awaited_members(metadata: GroupMetadata) -> set[str]:
    """Return the digests of the members that have not joined the running rebalance."""
    if metadata.phase is not GroupPhase.PREPARING_REBALANCE:
        return set()
    return {digest_of(member.member_id) for member in metadata.members if not member.is_joined}


def gatherer(metadata: GroupMetadata) -> str:
    """Return the member that writes for the others: the leader, or the first member if the leader left."""
    if metadata.member(metadata.leader) is not None or not metadata.members:
        return metadata.leader
    return metadata.members[0].member_id


def _is_due(metadata: GroupMetadata, member: GroupMember, command: GroupRecords) -> bool:
    group_member = metadata.member(member.member_id)
    if group_member is None:
        # A static member that replaces another process writes for itself: a late note must not fence the newer one.
        return metadata.instance(member.instance_id) is None
    has_joined = metadata.phase is GroupPhase.PREPARING_REBALANCE and group_member.is_joined
    return command.generation == metadata.generation and not has_joined


def _command(text: str) -> GroupRecords:
    command = decode_command(base64.b64decode(text, validate=True))
    if not isinstance(command, GroupRecords):
        raise ValueError("it holds a command of another kind")
    return command


def _text(command: GroupRecords) -> str:
    return base64.b64encode(encode_command(command)).decode()


_LOG = logging.getLogger(__name__)
_WRITTEN_KEPT = 10_000


class GroupRelay:
    """One per coordinator. Thread safe. `withdraw` and `write` raise RetriableError (REPLOG_NO_QUORUM)."""

    def __init__(self, cluster: Cluster, ledger: GroupLedger) -> None:
        self._cluster = cluster
        self._ledger = ledger
        self._numbers = itertools.count()
        self._refused = Once()
        self._written: set[NoteName] = set()

    def send(self, group: str, note: Note) -> NoteName | None:
        """Store a note and return its name; None: the roots refuse notes, so the caller writes for itself."""
        name = NoteName.of(group, note.command.member_id, next(self._numbers), note.kind)
        try:
            self._mailbox().put(str(name), encode_note(note))
        except RetriableError as error:
            if self._refused.is_first(group):
                _LOG.warning("group %s: members write for themselves, because the roots refuse notes: %s", group, error)
            return None
        return name

    def waiting(self, group: str) -> list[NoteName]:
        """Return the names of the group's notes, lowest first, without those that this relay has written.

        Empty if the roots do not list them: then each member writes for itself after a while.
        """
        try:
            names = map(NoteName.parse, self._mailbox().names(f"{digest_of(group)}."))
        except RetriableError as error:
            if self._refused.is_first(group):
                _LOG.warning(
                    "group %s: members write for themselves, because the roots do not list notes: %s", group, error
                )
            return []
        return [name for name in names if name is not None and name not in self._written]

    def withdraw(self, names: Iterable[NoteName]) -> None:
        """Delete notes that no longer need an answer."""
        self._mailbox().clear(map(str, names))

    def write(self, group: str, own_notes: Iterable[Note] = (), names: Iterable[NoteName] | None = None) -> None:
        """Write the changes that the waiting notes and ``own_notes`` request: at most two entries.

        Commits and heartbeats come first, because a change of members may begin a new generation.

        Args:
            own_notes: notes of the caller.
            names: of the waiting notes, if the caller has just listed them.

        Raises:
            RetriableError: REPLOG_NO_QUORUM, COORDINATOR_NOT_AVAILABLE: the notes still wait.
            OutcomeUnknownError: REPLOG_COMMIT_OUTCOME_UNKNOWN: the notes still wait.
        """
        waiting = self.waiting(group) if names is None else list(names)
        notes = list(own_notes)
        for data in self._mailbox().read(map(str, waiting)).values():
            try:
                notes.append(decode_note(data))
            except CorruptDataError:
                continue
        self._ledger.append_commands(commands_of(notes))
        self._ledger.update_if_due(group, lambda at: merge_notes(at, notes, self._ledger.commit_time_ms()))
        self._mailbox().clear(map(str, waiting))
        if len(self._written) > _WRITTEN_KEPT:
            self._written.clear()
        self._written.update(waiting)  # if it may not delete them, it must not write them again

    def _mailbox(self) -> Mailbox:
        _, ledger = self._ledger.find_or_create()
        return Mailbox(self._cluster, ledger.ledger_id)
