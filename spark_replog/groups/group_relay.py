"""Leaves notes of members, and writes what waiting notes ask for: one member's entry for all of them."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable

from spark_replog.cluster.cluster import Cluster
from spark_replog.cluster.mailbox import Mailbox
from spark_replog.errors import CorruptDataError, RetriableError
from spark_replog.groups.group_ledger import GroupLedger
from spark_replog.groups.group_notes import (
    Note,
    NoteName,
    commands_of,
    decode_note,
    encode_note,
    merge_notes,
    notes_prefix,
)
from spark_replog.once import Once

_LOG = logging.getLogger(__name__)
_WRITTEN_KEPT = 10_000


class GroupRelay:
    """One per coordinator. Thread safe. All methods that ask storage raise RetriableError (REPLOG_NO_QUORUM).

    Args:
        cluster: the opened store.
        ledger: of ``__consumer_offsets``.
    """

    def __init__(self, cluster: Cluster, ledger: GroupLedger) -> None:
        self._cluster = cluster
        self._ledger = ledger
        self._numbers = itertools.count()
        self._refused = Once()
        self._written: set[NoteName] = set()

    def send(self, group: str, note: Note) -> NoteName | None:
        """Leave a note and return its name; None: the roots take no notes, so the caller writes for itself."""
        name = NoteName.of(group, note.command.member_id, next(self._numbers), note.kind)
        try:
            self._mailbox().put(str(name), encode_note(note))
        except RetriableError as error:
            if self._refused.is_first(group):
                _LOG.warning("group %s: members write for themselves, as the roots take no notes: %s", group, error)
            return None
        return name

    def waiting(self, group: str) -> list[NoteName]:
        """Return the names of the group's notes, lowest first, without those that this relay has written.

        None where the roots do not list them: then each member writes for itself after a while.
        """
        try:
            found = map(NoteName.parse, self._mailbox().names(notes_prefix(group)))
        except RetriableError as error:
            if self._refused.is_first(group):
                _LOG.warning("group %s: members write for themselves, as the roots list no notes: %s", group, error)
            return []
        return [name for name in found if name is not None and name not in self._written]

    def withdraw(self, names: Iterable[NoteName]) -> None:
        """Delete notes that need no answer any more."""
        self._mailbox().clear(map(str, names))

    def write(self, group: str, own: Iterable[Note] = (), names: Iterable[NoteName] | None = None) -> None:
        """Write what the waiting notes ask for, and ``own`` ones that were not left: at most two entries.

        Commits and signs of life come first, as a change of members may begin a new generation.

        Args:
            group: its name.
            own: notes of the caller.
            names: of the notes that wait, where the caller has just listed them.

        Raises:
            RetriableError: REPLOG_NO_QUORUM, COORDINATOR_NOT_AVAILABLE: the notes still wait.
            OutcomeUnknownError: REPLOG_COMMIT_OUTCOME_UNKNOWN: the notes still wait.
        """
        waiting = self.waiting(group) if names is None else list(names)
        notes = list(own)
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
        self._written.update(waiting)  # where it may not delete, it must not write them again

    def _mailbox(self) -> Mailbox:
        _, ledger = self._ledger.find_or_create()
        return Mailbox(self._cluster, ledger.ledger_id)


__all__ = ["GroupRelay"]
