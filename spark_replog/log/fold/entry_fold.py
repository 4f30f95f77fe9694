"""What the folds of both kinds of ledger share: one entry in, one answer per command out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from spark_replog.errors import ErrorCode, ReplogError
from spark_replog.log.codec.commands import Undecodable, decode_commands, encode_command, encode_entry
from spark_replog.log.codec.snapshot import SnapshotPart, damaged, seal, unseal
from spark_replog.log.codec.wire import TEXT, UINT, Reader, Writer, fields
from spark_replog.log.model import OK, Command, CommandResult, Outcome, SnapshotCommit
from spark_replog.snapshot import DecidedSnapshot, FrozenHead, FrozenState, PageMissingError

LOGGER = logging.getLogger(__name__)
_HEADER = fields(TEXT, UINT)
Apply = Callable[[Any, int, int], CommandResult]
"""Folds one command; also given the index of its entry and its number there."""


def no_loader(name: str) -> bytes:
    """Stand for the loader of a state that no ledger has given one: restoring it does."""
    raise PageMissingError(ErrorCode.REPLOG_SNAPSHOT_MISSING, f"nothing says where page {name} is.")


class EntryFold:
    """A deterministic, total fold; `ledger.types.LedgerState`.

    A command that contradicts the state, that belongs in the other kind of ledger, or that cannot be decoded
    changes nothing and is answered with the reason. Only a format of a newer release raises.

    Attributes:
        applied_index: last folded entry, -1 before the first.
        snapshot: the last decided snapshot.
        load_page: returns the bytes of a page; set by the ledger.
    """

    _part: SnapshotPart

    def __init__(self, name: str) -> None:
        self.applied_index = -1
        self.snapshot = DecidedSnapshot()
        self.load_page: Callable[[str], bytes] = no_loader
        self._name = name
        self._applies: Mapping[type, Apply] = {}

    def encode(self, commands: Sequence[bytes]) -> bytes:
        """Return the payload of an entry that holds these commands, in this order."""
        return encode_entry(commands)

    def encode_snapshot_commit(self, base_no: int, index: int, name: str) -> bytes:
        """Return the command that makes a snapshot the one that counts."""
        return encode_command(SnapshotCommit(base_no, index, name))

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
        self._check_supported(commands)
        self.applied_index = index
        return tuple(self._apply_command(command, index, number) for number, command in enumerate(commands))

    def freeze(self) -> FrozenState:
        """Return the state as it is now; see `ledger.types.SnapshotState`."""
        writer = Writer()
        self._write_head(writer)
        return FrozenHead(self.applied_index, self.snapshot.no, seal(self._part, bytes(writer.data)), {})

    def _write_head(self, writer: Writer) -> None:
        _HEADER.write(writer, (self._name, self.applied_index + 1))
        self._write(writer)

    def restore(self, head: bytes, load_page: Callable[[str], bytes]) -> None:
        """Become the state of a head, in place; wholly, or not at all.

        Raises:
            CorruptDataError: CORRUPT_MESSAGE: damaged, or of another ledger.
            UnsupportedFormatError: UNSUPPORTED_VERSION: written by a newer release.
        """
        reader = unseal(self._part, head)
        fresh = type(self)(self._name)
        try:
            name, entry_count = _HEADER.read(reader)
            if name != self._name:
                raise damaged(f"it is of ledger {name}")
            fresh.applied_index = entry_count - 1
            fresh._read(reader)
            reader.finish()
        except (ValueError, LookupError, TypeError, OverflowError) as error:
            raise damaged(repr(error)) from error
        fresh.snapshot, fresh.load_page = self.snapshot, load_page
        self.__dict__.update(fresh.__dict__)
        self._bind()

    def page_names(self) -> Iterable[str]:
        """Yield the names of all pages that the state refers to."""
        return ()

    def adopted(self, frozen: FrozenState) -> None:
        """Note that a frozen state is the decided snapshot now."""

    def _bind(self) -> None:
        """Set how commands are applied to this state."""

    def _write(self, writer: Writer) -> None:
        """Write all that a snapshot's head holds."""

    def _read(self, reader: Reader) -> None:
        """Take what `_write` wrote; called on a new state."""

    def _check_supported(self, commands: Sequence[Command | Undecodable]) -> None:
        """Raise UnsupportedFormatError where a command needs a newer release."""

    def _apply_command(self, command: Command | Undecodable, index: int, number: int) -> CommandResult:
        if isinstance(command, SnapshotCommit):
            return self._apply_snapshot_commit(command, index)
        apply = self._applies.get(type(command))
        if apply is not None:
            return apply(command, index, number)
        if isinstance(command, Undecodable):
            reason = command.reason
        else:
            reason = f"{type(command).__name__} does not belong in ledger {self._name}"
        LOGGER.warning("command %d of entry %d of ledger %s has no effect: %s", number, index, self._name, reason)
        return CommandResult(Outcome.INVALID, {}, reason)

    def _apply_snapshot_commit(self, command: SnapshotCommit, index: int) -> CommandResult:
        if command.base_no != self.snapshot.no:
            return CommandResult(
                Outcome.REFUSED, {}, f"it derives from snapshot {command.base_no}; the newest is {self.snapshot.no}"
            )
        if not self.snapshot.index <= command.index < index:
            return CommandResult(Outcome.INVALID, {}, f"a snapshot of entry {command.index} in entry {index}")
        self.snapshot = DecidedSnapshot(command.base_no + 1, command.index, command.name, index)
        return OK
