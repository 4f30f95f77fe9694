"""Notes of gateways: each says in the cluster ledger's mailbox that it runs, where, and what it does.

A gateway replaces its note by one with the next number, again and again. Whoever sees the number grow knows that the
gateway runs, whatever the clocks of the machines say. A note proves nothing: it only decides where clients connect.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import NamedTuple

from spark_replog.cluster.cluster import Cluster
from spark_replog.cluster.mailbox import Mailbox
from spark_replog.logs import Once

_LOG = logging.getLogger(__name__)
_PREFIX = "gateway."
_NAME = re.compile(r"gateway\.([0-9]{10})\.([0-9a-f]{32})\.([0-9]{12})")
_VERSION = 1
_told = Once()


class GatewayNoteName(NamedTuple):
    """Where a note is found.

    Attributes:
        run: of the process; another process with the same node id has another.
        number: grows while the process runs.
    """

    node_id: int
    run: str
    number: int

    @classmethod
    def parse(cls, text: str) -> GatewayNoteName | None:
        """Return the parts of a name; None: it is another kind of object."""
        match = _NAME.fullmatch(text)
        return None if match is None else cls(int(match[1]), match[2], int(match[3]))

    def __str__(self) -> str:
        """Return the object's name."""
        return f"{_PREFIX}{self.node_id:010d}.{self.run}.{self.number:012d}"


@dataclass(frozen=True, slots=True)
class GatewayNote:
    """What a gateway says of itself.

    Attributes:
        host, port: the address that its clients get.
        interval_ms: between two notes.
        started_ms, written_ms: wall times of its machine, for people.
        counts: what it has done since it started, by name.
    """

    host: str
    port: int
    rack: str | None
    interval_ms: int
    started_ms: int
    written_ms: int
    counts: Mapping[str, int] = field(default_factory=dict)

    def encode(self) -> bytes:
        """Return the note's bytes."""
        return json.dumps({"v": _VERSION, **asdict(self)}, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes) -> GatewayNote:
        """Return the note. Raises ValueError: it is none of this version."""
        try:
            fields = json.loads(data)
            if fields.pop("v") != _VERSION:
                raise ValueError("its version is unknown")
            note = cls(**fields)
            numbers = note.port, note.interval_ms, note.started_ms, note.written_ms, *note.counts.values()
            if not isinstance(note.host, str) or not all(isinstance(number, int) for number in numbers):
                raise ValueError("it has values of other types")
            return note
        except (KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(str(error)) from error


class GatewayNotes:
    """The notes of all gateways of a store. Thread-safe. `names`, `put` and `read_all` raise REPLOG_NO_QUORUM."""

    def __init__(self, cluster: Cluster) -> None:
        self._mailbox = Mailbox(cluster, cluster.cluster_ledger.ledger_id)

    def names(self) -> list[GatewayNoteName]:
        """Return the names of all notes, by node id, run and number."""
        parsed = map(GatewayNoteName.parse, self._mailbox.names(_PREFIX))
        return [name for name in parsed if name is not None]

    def read(self, names: Iterable[GatewayNoteName]) -> dict[GatewayNoteName, GatewayNote]:
        """Return notes, without those that are gone, and those that are none: these are logged."""
        bodies = self._mailbox.read(map(str, names))
        notes = {}
        for text, body in bodies.items():
            name = GatewayNoteName.parse(text)
            try:
                if name is not None:
                    notes[name] = GatewayNote.decode(body)
            except ValueError as error:
                if _told.is_first(text):
                    _LOG.warning("the note %s of a gateway cannot be read: %s. It is left out.", text, error)
        return notes

    def read_all(self) -> dict[GatewayNoteName, GatewayNote]:
        """Return the newest note of each process."""
        return self.read(newest(self.names()))

    def put(self, name: GatewayNoteName, note: GatewayNote) -> None:
        """Write a note."""
        self._mailbox.put(str(name), note.encode())

    def begin_remove(self, names: Iterable[GatewayNoteName]) -> None:
        """Begin to remove notes that nobody waits for."""
        self._mailbox.clear(map(str, names))

    def remove(self, names: Iterable[GatewayNoteName]) -> None:
        """Remove notes; the roots that answer have done it on return, also if this process ends then."""
        self._mailbox.clear_now(map(str, names))


def newest(names: Iterable[GatewayNoteName]) -> list[GatewayNoteName]:
    """Return the last name of each process."""
    last: dict[tuple[int, str], GatewayNoteName] = {}
    for name in sorted(names):
        last[name.node_id, name.run] = name
    return list(last.values())
