"""The common part of the folds of both kinds of ledger: one entry in, one result per command out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Self

from spark_replog.errors import ErrorCode, ReplogError, UnsupportedFormatError
from spark_replog.log.codec.commands import MIRROR_TYPES, Undecodable, decode_commands, encode_command, encode_entry
from spark_replog.log.codec.snapshot import SnapshotPart, damaged, seal, unseal
from spark_replog.log.model import OK, Command, CommandResult, FeatureSet, Outcome, SnapshotCommit
from spark_replog.snapshot import DecidedSnapshot, FrozenHead, FrozenState, PageMissingError
from spark_replog.wire import TEXT, UINT, Reader, Writer, fields

LOGGER = logging.getLogger(__name__)
FEATURE_LEVEL_FIRST = 1
"""Of every ledger when it is made."""
FEATURE_LEVEL_MIRROR = 2
"""Of a ledger since its first command about a mirrored topic."""
_HEADER = fields(TEXT, UINT)
Apply = Callable[[Any, Any, int, int], CommandResult]
"""Folds one command into a state; also given the index of its entry and its number there."""


def change(config: dict[str, str], changes: Iterable[tuple[str, str | None]]) -> None:
    """Set settings; None removes one."""
    for key, value in changes:
        if value is None:
            config.pop(key, None)
        else:
            config[key] = value


def _level_of(command: Command | Undecodable) -> int:
    return FEATURE_LEVEL_MIRROR if isinstance(command, MIRROR_TYPES) else FEATURE_LEVEL_FIRST


class EntryFold:
    """A deterministic, total fold; `ledger.types.LedgerState`.

    A command that contradicts the state, that belongs in the other kind of ledger, or that cannot be decoded
    changes nothing and gets INVALID or another refusal with the reason. Only a format of a newer release raises.

    Attributes:
        applied_index: last folded entry, -1 before the first.
        snapshot: the last decided snapshot.
        load_page: returns the bytes of a page; set by the ledger.
        feature_level: by whose rules the next command is judged.
        newest_level: the highest that this release understands.
        own_level: a release with other rules of judging raises a ledger to it before it writes anything else there, and
            older ones refuse the ledger from then on. A command that is new raises only the ledger that it is in, as
            `_level_of` says: older releases do not know its number, nor a snapshot of that level.
    """

    _part: SnapshotPart
    _applies: ClassVar[Mapping[type, Apply]] = {}
    newest_level = FEATURE_LEVEL_MIRROR
    own_level = FEATURE_LEVEL_FIRST
    encode = staticmethod(encode_entry)

    def __init__(self, name: str) -> None:
        self.applied_index = -1
        self.snapshot = DecidedSnapshot()
        self.load_page: Callable[[str], bytes] = self._load_no_page
        self.feature_level = FEATURE_LEVEL_FIRST
        self._name = name

    @staticmethod
    def _load_no_page(name: str) -> bytes:
        raise PageMissingError(ErrorCode.REPLOG_SNAPSHOT_MISSING, f"nothing says where page {name} is.")

    @property
    def has_gone_rows(self) -> bool:
        """Return whether the next snapshot finds what may be deleted; see `ledger.types.SnapshotState`."""
        return False

    def encode_snapshot_commit(self, base_no: int, index: int, name: str) -> bytes:
        """Return the command that makes a snapshot the decided one."""
        return encode_command(SnapshotCommit(base_no, index, name))

    def encode_feature_set(self) -> bytes | None:
        """Return the command that makes older releases refuse the ledger; None once it is applied."""
        is_raised = self.feature_level >= self.own_level
        return None if is_raised else encode_command(FeatureSet(self.own_level))

    def apply(self, index: int, payload: bytes) -> tuple[CommandResult, ...]:
        """Fold one decided entry; return one result per command, in order.

        Raises:
            UnsupportedFormatError: UNSUPPORTED_VERSION: written by a newer release; nothing was changed.
            ReplogError: UNKNOWN_SERVER_ERROR: the entry is not the next one; a defect of the caller.
        """
        if index != self.applied_index + 1:
            raise ReplogError(
                ErrorCode.UNKNOWN_SERVER_ERROR,
                f"entry {index} was folded after {self.applied_index}. This is a defect: report it.",
            )
        commands = decode_commands(payload)
        for command in commands:
            if isinstance(command, FeatureSet):
                self._check_level(command.level)
        self.applied_index = index
        self.feature_level = max(self.feature_level, *map(_level_of, commands), FEATURE_LEVEL_FIRST)
        applies, others = self._applies, EntryFold._apply_other
        return tuple([applies.get(type(step), others)(self, step, index, at) for at, step in enumerate(commands)])

    def freeze(self) -> FrozenState:
        """Return the present state; see `ledger.types.SnapshotState`."""
        writer = Writer()
        self._write_head(writer)
        return FrozenHead(self.applied_index, self.snapshot.no, seal(self._part, bytes(writer.data)), {})

    def _write_head(self, writer: Writer) -> None:
        writer.uint(self.feature_level)  # first: nothing else in a head of a higher level is read
        _HEADER.write(writer, (self._name, self.applied_index + 1))
        self._write(writer)

    def restore(self, head: bytes, load_page: Callable[[str], bytes]) -> None:
        """Replace the state by that of a head, in place: completely, or not at all.

        Raises:
            CorruptDataError: CORRUPT_MESSAGE: damaged, or of another ledger.
            UnsupportedFormatError: UNSUPPORTED_VERSION: written by a newer release.
        """
        reader = unseal(self._part, head)
        fresh = type(self)(self._name)
        try:
            fresh.feature_level = reader.uint()
            self._check_level(fresh.feature_level)
            name, entry_count = _HEADER.read(reader)
            if name != self._name:
                raise damaged(f"it is of ledger {name}")
            fresh.applied_index = entry_count - 1
            fresh._read(reader)
            reader.finish()
        except (ValueError, LookupError, TypeError, OverflowError) as error:
            raise damaged(repr(error)) from error
        fresh.snapshot = self.snapshot
        self._become(fresh, load_page)

    def clear(self) -> None:
        """Become the state before entry 0, in place."""
        self._become(type(self)(self._name), self.load_page)

    def _become(self, fresh: Self, load_page: Callable[[str], bytes]) -> None:
        """Take over another state's content; it is not used after that."""
        fresh.load_page = load_page
        self.__dict__.update(fresh.__dict__)

    def page_names(self) -> Iterable[str]:
        """Yield the names of all pages that the state refers to."""
        return ()

    def adopted(self, frozen: FrozenState) -> None:
        """Note that a frozen state is now the decided snapshot."""

    def _write(self, writer: Writer) -> None:
        """Write the state to a snapshot's head."""

    def _read(self, reader: Reader) -> None:
        """Read what `_write` wrote; called on a new state."""

    def _apply_other(self, command: Command | Undecodable, index: int, number: int) -> CommandResult:
        """Fold a command that is not in `_applies`: one of every ledger, or one that does not belong here."""
        if isinstance(command, SnapshotCommit):
            return self._apply_snapshot_commit(command, index)
        if isinstance(command, FeatureSet):
            if command.level <= self.feature_level:
                return CommandResult(Outcome.EXISTS, f"the ledger is at feature level {self.feature_level}")
            self.feature_level = command.level
            return OK
        if isinstance(command, Undecodable):
            reason = command.reason
        else:
            reason = f"{type(command).__name__} does not belong in ledger {self._name}"
        LOGGER.warning("command %d of entry %d of ledger %s has no effect: %s", number, index, self._name, reason)
        return CommandResult(Outcome.INVALID, reason)

    def _check_level(self, level: int) -> None:
        if level > self.newest_level:
            raise UnsupportedFormatError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"ledger {self._name} is at feature level {level}, this release knows {self.newest_level}."
                " Upgrade spark-replog on every driver and worker.",
            )

    def _apply_snapshot_commit(self, command: SnapshotCommit, index: int) -> CommandResult:
        if command.base_no != self.snapshot.no:
            detail = f"it derives from snapshot {command.base_no}; the newest is {self.snapshot.no}"
            return CommandResult(Outcome.REFUSED, detail)
        if not self.snapshot.index <= command.index < index:
            return CommandResult(Outcome.INVALID, f"a snapshot of entry {command.index} in entry {index}")
        self.snapshot = DecidedSnapshot(command.base_no + 1, command.index, command.name, index)
        return OK
