"""Repairs of journals that need no owner of the ledger: of one of two metadata roots, and of tails that a crash tore.

With two metadata roots nothing is decided or claimed without both, so the lost one cannot be rebuilt by an owner
(``maintenance.repair``). It need not be: every majority holds the other root, whose journal has every promise and every
accepted value that ever counted. Its records are copied as they are, then padded.

Without fsync a crash leaves empty or truncated files at the end of journals, on all roots of a machine at once. They
are removed: records that no majority has whole are lost, as documented for ``storage.fsync=false``.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace

from spark_replog.errors import CorruptDataError, ErrorCode, RetriableError
from spark_replog.ids import BrokerId, LedgerId, new_root_id
from spark_replog.ledger.journal_rebuild import MARKER_MARGIN, POSITION_MARGIN, copy_snapshots
from spark_replog.ledger.record import (
    NO_HASH,
    NO_INDEX,
    NONCE_SIZE_BYTES,
    RECORD_GET_BYTES,
    ZERO_EPOCH,
    JournalRecord,
    RecordKind,
    decode_record,
    encode_record,
    genesis_hash,
)
from spark_replog.ledger.snapshot_files import Base, Marker, decode_marker, decode_snapshot, encode_marker
from spark_replog.storage.brokers import BrokerSet
from spark_replog.storage.object_store import CreateOutcome, ObjectStore
from spark_replog.storage.paths import (
    LEDGERS_PREFIX,
    ROOT_FILE_KEY,
    journal_folder,
    journal_key,
    ledger_folders,
    marker_folder,
    marker_key,
    marker_number,
    record_position,
    snapshot_folder,
)
from spark_replog.storage.root_file import encode_root_file, read_root

_log = logging.getLogger(__name__)


def torn_tails(brokers: BrokerSet, broker_id: BrokerId) -> list[str]:
    """Return the keys of damaged records at the ends of a root's journals, the last position first; changes nothing.

    Empty where the store has fsync, and for a journal without one whole record.
    """
    if brokers.fsync or broker_id not in brokers.metadata_broker_ids:
        return []
    store, tails = brokers.store(broker_id), []
    for ledger_id in sorted(_ledgers_on(store)):
        places = (record_position(info.key) for info in store.list_keys(journal_folder(ledger_id)))
        torn = []
        for position in sorted((place for place in places if place is not None), reverse=True):
            key = journal_key(ledger_id, position)
            if _is_damaged(store, key):
                torn.append(key)
            else:
                tails += torn
                break
    return tails


def _is_damaged(store: ObjectStore, key: str) -> bool:
    body = store.get(key, size_bytes=RECORD_GET_BYTES)
    try:
        if body is not None:
            decode_record(body, root=store.url, position=int(key.rpartition("/")[2]))
    except CorruptDataError:
        return True
    return False


def drop_torn_tails(brokers: BrokerSet) -> set[BrokerId]:
    """Remove what ``torn_tails`` finds on the roots that answer; return the brokers that had some.

    Each record is read again right before its deletion: another repair may have removed it since, and a writer may have
    decided an entry under its name. No store deletes under a condition, so two repairs that are stopped in the moment
    between the read and the deletion can still lose that entry (docs/storage.md).
    """
    torn = set()
    for broker_id in brokers.metadata_broker_ids:
        with suppress(RetriableError):
            brokers.check_root(broker_id)
            store = brokers.store(broker_id)
            for key in torn_tails(brokers, broker_id):
                if not _is_damaged(store, key):
                    continue
                _log.warning("broker %d: %s is damaged at the end of its journal and is removed", broker_id, key)
                store.delete(key)
                torn.add(broker_id)
    return torn


def find_lost_of_pair(brokers: BrokerSet) -> tuple[BrokerId, BrokerId] | None:
    """Return (the lost, the other) where exactly one of two metadata roots has no root file, and both answer."""
    if len(brokers.metadata_broker_ids) != 2:
        return None
    first, second = brokers.metadata_broker_ids
    has_first, has_second = (read_root(brokers.store(broker_id)) is not None for broker_id in (first, second))
    if has_first == has_second:
        return None
    return (second, first) if has_first else (first, second)


def rebuild_one_of_pair(
    brokers: BrokerSet,
    lost: BrokerId,
    other: BrokerId,
    on_record: Callable[[int, int], None],
    leave: Callable[[LedgerId], None] = lambda _: None,
) -> int:
    """Copy the other root's journals and write the root file last; return the number of records written.

    ``leave`` takes the lost broker out of a ledger's in-sync replicas, before anybody else can decide there.
    Raises CORRUPT_MESSAGE if the lost root holds records of its own: empty it first.
    """
    source, target = brokers.store(other), brokers.store(lost)
    root_file = read_root(source)
    assert root_file is not None
    target.make_folder("")
    number = brokers.metadata_broker_ids.index(lost)
    written = 0
    ledger_ids = sorted(_ledgers_on(source))
    for done, ledger_id in enumerate(ledger_ids):
        for folder in ledger_folders(ledger_id):
            target.make_folder(folder)
        written += _copy_journal(ledger_id, source, target, number)
        on_record(done + 1, len(ledger_ids))
    for ledger_id in ledger_ids:
        leave(ledger_id)
    places = (record_position(info.key) for info in target.list_keys(journal_folder(brokers.cluster_id)))
    root_id = new_root_id(max(place for place in places if place is not None))
    target.create(ROOT_FILE_KEY, encode_root_file(replace(root_file, broker_id=lost, root_id=root_id)))
    return written


def _ledgers_on(store: ObjectStore) -> Iterator[LedgerId]:
    """Yield every ledger that has a journal record there, found by a listing of names."""
    seen: set[str] = set()
    for info in store.list_keys(LEDGERS_PREFIX):
        _, ledger_id, folder, _ = (*info.key.split("/", 3), "", "")[:4]
        if folder == "journal" and record_position(info.key) is not None and ledger_id not in seen:
            seen.add(ledger_id)
            yield ledger_id


def _copy_markers(ledger_id: LedgerId, source: ObjectStore, target: ObjectStore, number: int, root_count: int) -> int:
    """Put the source's newest marker, as one of a rebuild, under every number that a process may look for.

    Return the first position that counts.
    """
    genesis = genesis_hash(ledger_id)
    marker, next_no = Marker(0, Base(), ""), 0
    while (data := source.get(marker_key(ledger_id, next_no))) is not None:
        marker = decode_marker(data, genesis=genesis, where=f"marker {next_no} of ledger {ledger_id} on {source.url}")
        next_no += 1
    for info in source.list_keys(snapshot_folder(ledger_id)):
        if (head_data := source.get(info.key)) is not None:  # else a newer one replaced it meanwhile
            head = decode_snapshot(head_data, genesis=genesis, root_count=root_count, where=info.key)
            next_no = max(next_no, head.points[number].floor.marker_no)
    there = (marker_number(info.key) for info in target.list_keys(marker_folder(ledger_id)))
    next_no = max([next_no, *(taken_no + 1 for taken_no in there if taken_no is not None)])
    data = encode_marker(genesis, marker._replace(renewal=os.urandom(NONCE_SIZE_BYTES)))
    for marker_no in range(next_no + MARKER_MARGIN):
        target.create(marker_key(ledger_id, marker_no), data, make_parent=True)
    return marker.position


def _copy_journal(ledger_id: LedgerId, source: ObjectStore, target: ObjectStore, number: int) -> int:
    written = copy_snapshots(ledger_id, [source], target)
    named, position = NO_INDEX, _copy_markers(ledger_id, source, target, number, 2)
    promised = ZERO_EPOCH
    while (data := source.get(journal_key(ledger_id, position), size_bytes=RECORD_GET_BYTES)) is not None:
        record = decode_record(data, root=source.url, position=position)
        promised = max(promised, record.epoch)
        if number < len(record.last_known):
            named = max(named, record.last_known[number].position)
        key = journal_key(ledger_id, position)
        if target.create(key, data) is not CreateOutcome.CREATED:
            raise CorruptDataError(
                ErrorCode.CORRUPT_MESSAGE,
                "the root holds a journal of its own. Empty it, or put the right one back, and repeat the repair.",
                url=target.url,
                key=key,
            )
        position += 1
        written += 1
    while position <= named + POSITION_MARGIN:
        nonce = os.urandom(NONCE_SIZE_BYTES)
        pad = JournalRecord(RecordKind.CLAIM, promised, nonce, NO_INDEX, NO_INDEX, NO_HASH, (), b"")
        # EXISTS: the padding of an earlier attempt.
        written += target.create(journal_key(ledger_id, position), encode_record(pad)) is CreateOutcome.CREATED
        position += 1
    return written
