"""What the folds of both kinds of ledger share: one entry in, one answer per command out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from spark_replog.errors import ErrorCode, ReplogError
from spark_replog.log.codec.commands import Undecodable, decode_commands, encode_entry
from spark_replog.log.model import Command, CommandResult, Outcome

LOGGER = logging.getLogger(__name__)
Apply = Callable[[Any, int, int], CommandResult]
"""Folds one command; also given the index of its entry and its number there."""


class EntryFold:
    """A deterministic, total fold; `ledger.types.LedgerState`.

    A command that contradicts the state, that belongs in the other kind of ledger, or that cannot be decoded
    changes nothing and is answered with the reason. Only a format of a newer release raises.

    Attributes:
        applied_index: last folded entry, -1 before the first.
    """

    def __init__(self, name: str) -> None:
        self.applied_index = -1
        self._name = name
        self._applies: Mapping[type, Apply] = {}

    def encode(self, commands: Sequence[bytes]) -> bytes:
        """Return the payload of an entry that holds these commands, in this order."""
        return encode_entry(commands)

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

    def _check_supported(self, commands: Sequence[Command | Undecodable]) -> None:
        """Raise UnsupportedFormatError where a command needs a newer release."""

    def _apply_command(self, command: Command | Undecodable, index: int, number: int) -> CommandResult:
        apply = self._applies.get(type(command))
        if apply is not None:
            return apply(command, index, number)
        if isinstance(command, Undecodable):
            reason = command.reason
        else:
            reason = f"{type(command).__name__} does not belong in ledger {self._name}"
        LOGGER.warning("command %d of entry %d of ledger %s has no effect: %s", number, index, self._name, reason)
        return CommandResult(Outcome.INVALID, {}, reason)
