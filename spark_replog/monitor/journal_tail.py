"""The last decided entries of a ledger as a journal still has them, those of a snapshot too. Writes nothing."""

from __future__ import annotations

from typing import Any

from spark_replog.cluster.cluster import Cluster
from spark_replog.errors import ReplogError
from spark_replog.ledger.ledger import Ledger
from spark_replog.ledger.record import NO_INDEX, RECORD_GET_BYTES, TAG_SIZE_BYTES, RecordKind, decode_record
from spark_replog.storage.io_pool import io_pool
from spark_replog.storage.object_store import Buffer
from spark_replog.storage.paths import journal_key


def decided_entries(cluster: Cluster, ledger: Ledger[Any], count: int) -> list[tuple[int, bytes]]:
    """Return entries of the last `count` records of one journal, newest first: (index, value).

    One get per record, of the first metadata root that answers. Fewer where the journal was truncated. An entry counts
    only if a later record of the same journal vouches for it, so one that was proposed and lost is never shown.

    Raises:
        ReplogError: what the last root raises where none can be read.
    """
    problem: ReplogError | None = None
    for broker_id in cluster.brokers.metadata_broker_ids:
        end = ledger.journal_end(broker_id)
        store, url = cluster.brokers.store(broker_id), cluster.brokers.url(broker_id)

        def get(position: int) -> Buffer | None:
            return store.get(journal_key(ledger.ledger_id, position), size_bytes=RECORD_GET_BYTES)  # noqa: B023

        positions = range(end - 1, max(-1, end - 1 - count), -1)
        pending = [(each, io_pool().submit_to(url, get, each)) for each in positions]
        try:
            found = _vouched([(position, future.result()) for position, future in pending], url)
        except ReplogError as error:
            problem = error
            continue
        if found:
            return found
    if problem is not None:
        raise problem
    return []


def _vouched(records: list[tuple[int, Buffer | None]], root: str) -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []
    commit_index = lowest = NO_INDEX
    for position, data in records:
        if data is None:  # truncated behind a snapshot
            break
        record = decode_record(data, root=root, position=position)
        is_last = not found or record.index < lowest
        if record.kind is RecordKind.ENTRY and record.index <= commit_index and is_last:
            lowest = record.index
            found.append((record.index, record.payload[TAG_SIZE_BYTES:]))
        commit_index = max(commit_index, record.commit_index)
    return found
