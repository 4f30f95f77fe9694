"""Describes files of a store, for support: journal records, markers, heads and pages of snapshots, data objects.

Also damaged files, as far as they can be read, and the newest entries of a journal. Writes nothing. Texts come from
storage, so the caller must escape them before showing them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from crc32c import crc32c

from spark_replog.cluster.cluster import Cluster
from spark_replog.errors import CorruptDataError, ReplogError
from spark_replog.ids import BrokerId, LedgerId, TopicId
from spark_replog.ledger.ledger import Ledger
from spark_replog.ledger.record import (
    HASH_SIZE_BYTES,
    MAGIC,
    NO_INDEX,
    RECORD_GET_BYTES,
    TAG_SIZE_BYTES,
    JournalRecord,
    RecordKind,
    decode_record,
)
from spark_replog.ledger.snapshot_files import MARKER_MAGIC, SNAPSHOT_MAGIC, decode_marker, decode_snapshot
from spark_replog.log.codec.snapshot import MAGIC as PAGE_MAGIC
from spark_replog.log.codec.snapshot import Directory, decode_page, ledger_of_page
from spark_replog.log.entry_words import entry_words
from spark_replog.snapshot import PAGE_NAME, SNAPSHOT_NAME, hash_of, is_named
from spark_replog.storage.io_pool import IO_POOL
from spark_replog.storage.object_store import Buffer
from spark_replog.storage.paths import journal_folder, journal_key
from spark_replog.storage.root_file import decode_root_file

_ROOTS_MAX = 9
_SHOWN_BYTES = 64
_POSITION = re.compile(r"(?:^|/)journal/([0-9]{20})$")
_NAMED = re.compile(rf"(?:^|/)(?:{SNAPSHOT_NAME.pattern}|{PAGE_NAME.pattern})$")


@dataclass(slots=True)
class FileWords:
    """Description of a file.

    Attributes:
        kind: of file, by its first bytes; ``unknown`` if they match none.
        lines: its content as sentences; of a damaged file, the part that could be read.
        damage: why it cannot be used; '' for a whole file.
    """

    name: str
    size_bytes: int
    kind: str
    lines: list[str] = field(default_factory=list)
    damage: str = ""


def file_words(name: str, data: bytes, topic_names: Mapping[TopicId, str] | None = None) -> FileWords:
    """Return the description of a file of a store. The name (a key or path) gives the position of a journal record."""
    kinds: dict[bytes, tuple[str, Callable[[], list[str]]]] = {
        MAGIC: ("journal record", lambda: _record_lines(decode(data), topic_names or {})),
        MARKER_MAGIC: ("truncation marker", lambda: _marker_lines(data, name)),
        SNAPSHOT_MAGIC: ("snapshot head", lambda: _snapshot_lines(data, name)),
        PAGE_MAGIC: ("snapshot page", lambda: _page_lines(data)),
        b"ARRO": ("data object", lambda: _object_lines(data)),
        b"{": ("root file", lambda: _root_lines(data, name)),
    }
    match = _POSITION.search(name)
    position = int(match[1]) if match else -1

    def decode(body: bytes) -> JournalRecord:
        return decode_record(body, root=name, position=position)

    kind, read = kinds.get(data[:4]) or kinds.get(data[:1]) or ("unknown", list)
    words = FileWords(name, len(data), kind)
    try:
        words.lines = read()
        if kind == "unknown":
            words.damage = "its first bytes are those of no file of a store"
        elif kind.startswith("snapshot ") and _NAMED.search(name) and not is_named(name, data):
            words.damage = "its name is that of other bytes: it was changed, or swapped with another file"
    except ReplogError as error:
        words.damage = str(error.args[0])
    except (pa.ArrowException, ValueError, OSError, MemoryError) as error:
        words.damage = f"{type(error).__name__}: {error}"
    if words.damage:
        if kind == "journal record":
            words.lines = _in_spite(data, decode, topic_names or {})
        words.lines.append(f"begins with {data[:_SHOWN_BYTES].hex(' ')}")
    return words


def _in_spite(data: bytes, decode: Callable[[bytes], JournalRecord], names: Mapping[TopicId, str]) -> list[str]:
    """Return the content of a record in which only the checksum is wrong."""
    try:
        record = decode(data[:-4] + crc32c(data[:-4]).to_bytes(4, "little"))
    except ReplogError:
        return []
    return ["with another checksum it would say:", *_record_lines(record, names)]


def _record_lines(record: JournalRecord, names: Mapping[TopicId, str]) -> list[str]:
    epoch = f"round {record.epoch.round} of {record.epoch.incarnation.hex()[:8]}"
    positions = ", ".join("none" if tail.position < 0 else str(tail.position) for tail in record.last_known)
    vouches = "nothing" if record.commit_index == NO_INDEX else f"entries up to {record.commit_index}"
    head = f"{record.kind.name} of {epoch}, vouches for {vouches}"
    lines = [head, f"knows the last positions of the roots: {positions}"] if record.last_known else [head]
    if record.kind is not RecordKind.ENTRY:
        return lines
    lines[0] = f"{record.kind.name} {record.index} of {epoch}, vouches for {vouches}, hash {record.entry_hash.hex()}"
    return lines + [f"- {line}" for line in entry_words(record.payload[TAG_SIZE_BYTES:], names)]


def _genesis(data: bytes) -> bytes:
    return data[5 : 5 + HASH_SIZE_BYTES]  # the file names its owner; a dump reads no ledger


def _marker_lines(data: bytes, name: str) -> list[str]:
    marker = decode_marker(data, genesis=_genesis(data), where=name)
    return [
        f"the journal begins at position {marker.position}",
        f"entries up to {marker.base.index} are in snapshot {marker.name or '(none)'}",
    ]


def _snapshot_lines(data: bytes, name: str) -> list[str]:
    for root_count in range(1, _ROOTS_MAX + 1):
        try:
            head = decode_snapshot(data, genesis=_genesis(data), root_count=root_count, where=name)
        except CorruptDataError:
            if root_count == _ROOTS_MAX:
                raise
        else:
            break
    lines = [
        f"holds entries up to {head.base.index}: {len(head.body):,} bytes of state",
        f"snapshot {head.decided.no} before it was of entry {head.decided.index}",
    ]
    return lines + [
        f"root {number}: position {point.position}, last entry {point.last_index}, agreed up to {point.matched}"
        for number, point in enumerate(head.points)
    ]


def _page_lines(data: bytes) -> list[str]:
    ledger_id, name = ledger_of_page(data), hash_of(data)
    page = decode_page(ledger_id, name, data)
    what = (
        f"directory of {page.pieces.shape[1]:,} pieces in {len(page.pages):,} pages"
        if isinstance(page, Directory)
        else f"{len(page):,} rows of {page.kind.name.lower()}"
    )
    return [f"page with the hash {name}, of ledger {ledger_id}", what]


def _object_lines(data: bytes) -> list[str]:
    """Return the columns and sizes of a data object. Decodes no row: only the ledger has checksums and offsets."""
    reader = pa.ipc.open_file(pa.BufferReader(data))
    columns = ", ".join(f"{column.name} {column.type}" for column in reader.schema)
    return [
        f"Arrow file of {reader.num_record_batches} record batches: {columns}",
        "'replog store verify --deep' holds it against the ledger",
    ]


def _root_lines(data: bytes, name: str) -> list[str]:
    root = decode_root_file(data, url=name)
    brokers = [f"broker {broker.broker_id} at {broker.url}" for broker in root.brokers]
    return [f"root of broker {root.broker_id} of store {root.cluster_id}", *brokers]


def journal_files(
    cluster: Cluster, ledger_id: LedgerId, broker_id: BrokerId, count: int, before: int | None = None
) -> list[tuple[str, bytes]]:
    """Return (key, stored bytes) of the newest journal records of a root below a position, oldest first."""
    store = cluster.brokers.store(broker_id)
    keys = sorted(info.key for info in store.list_keys(journal_folder(ledger_id)))
    positions = [key for key in keys if _POSITION.search(key)]
    chosen = [key for key in positions if before is None or int(key.rpartition("/")[2]) < before][-count:]
    records = [(key, store.get(key, size_bytes=RECORD_GET_BYTES)) for key in chosen]
    return [(key, bytes(data)) for key, data in records if data is not None]  # None: a truncation deleted it since


def ledger_named(cluster: Cluster, name: str) -> tuple[LedgerId, dict[TopicId, str]]:
    """Return the ledger of a topic, ``cluster`` or an id, and its topics' names. Raises UNKNOWN_TOPIC_OR_PARTITION."""
    cluster.refresh()
    if name == "cluster" or name == cluster.brokers.cluster_id:
        return cluster.brokers.cluster_id, {}
    ledger_ids, topics = cluster.cluster_ledger.ask(lambda state: (set(state.ledger_ids()), dict(state.topics)))
    ledger_id = name if name in ledger_ids else cluster.lookup(name).ledger_id
    return ledger_id, {topic_id: topic_name for topic_name, (topic_id, where) in topics.items() if where == ledger_id}


def decided_entries(cluster: Cluster, ledger: Ledger[Any], count: int) -> list[tuple[int, bytes]]:
    """Return entries of the last `count` records of one journal, newest first: (index, value).

    Costs one get per record, on the first metadata root that answers; raises the last root's error. Fewer entries if
    the journal was truncated. An entry is only returned if a later record of the same journal shows that it is decided.
    """
    problem: ReplogError | None = None
    for broker_id in cluster.brokers.metadata_broker_ids:
        end = ledger.journal_end(broker_id)
        store, url = cluster.brokers.store(broker_id), cluster.brokers.url(broker_id)

        def get(position: int) -> Buffer | None:
            return store.get(journal_key(ledger.ledger_id, position), size_bytes=RECORD_GET_BYTES)  # noqa: B023

        positions = range(end - 1, max(-1, end - 1 - count), -1)
        pending = [(position, IO_POOL.submit_to(url, get, position)) for position in positions]
        try:
            entries = _vouched([(position, future.result()) for position, future in pending], url)
        except ReplogError as error:
            problem = error
            continue
        if entries:
            return entries
    if problem is not None:
        raise problem
    return []


def _vouched(records: list[tuple[int, Buffer | None]], root: str) -> list[tuple[int, bytes]]:
    entries: list[tuple[int, bytes]] = []
    commit_index = lowest = NO_INDEX
    for position, data in records:
        if data is None:  # truncated after a snapshot
            break
        record = decode_record(data, root=root, position=position)
        is_last = not entries or record.index < lowest
        if record.kind is RecordKind.ENTRY and record.index <= commit_index and is_last:
            lowest = record.index
            entries.append((record.index, record.payload[TAG_SIZE_BYTES:]))
        commit_index = max(commit_index, record.commit_index)
    return entries
