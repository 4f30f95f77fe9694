"""Checks whether a root answers and is unchanged. Runs on the root's I/O lane, so a hung mount blocks no other root."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass

from spark_replog.cluster.cluster import Cluster
from spark_replog.errors import CorruptDataError, ErrorCode, ReplogError, RetriableError
from spark_replog.ids import BrokerId, LedgerId
from spark_replog.ledger.journal_reader import newest_marker
from spark_replog.ledger.ledger import Ledger
from spark_replog.log.fold.partition_state import ObjectRef
from spark_replog.log.fold.topic_state import TopicLedgerState
from spark_replog.storage.brokers import BrokerSet
from spark_replog.storage.fan_out import answers_of
from spark_replog.storage.io_pool import IO_POOL
from spark_replog.storage.paths import data_key, journal_key, ledger_folders, out_key

ROOT_TIMEOUT_MS = 5000
"""A root that does not answer an admin command within this time counts as away."""
NEWEST_COPIES = 4


def is_root_there(brokers: BrokerSet, broker_id: BrokerId, timeout_ms: int = ROOT_TIMEOUT_MS) -> bool:
    """Return whether the root answers in time with the expected ``replog.json``."""
    return bool(roots_there(brokers, [broker_id], timeout_ms))


def roots_there(brokers: BrokerSet, broker_ids: Iterable[BrokerId], timeout_ms: int = ROOT_TIMEOUT_MS) -> set[BrokerId]:
    """Return the roots that answer in time with the expected ``replog.json``; all are asked at once."""
    calls = {root: IO_POOL.submit_to(brokers.url(root), brokers.check_root, root) for root in broker_ids}
    answers = answers_of(calls, timeout_ms)
    for call in answers.silent.values():
        call.cancel()
    return set(answers.by_root)


@dataclass(frozen=True, slots=True)
class RootLook:
    """Result of checking one root.

    Attributes:
        error: why the root cannot be used; None if it answers and is unchanged.
        free_bytes: free space of its file system; None if unknown (object stores, roots that are away).
        device: number of that file system on this machine: roots with the same number share their free space.
    """

    broker_id: BrokerId
    error: ReplogError | None
    free_bytes: int | None
    device: int | None = None


def look_at_roots(
    cluster: Cluster, ledgers: Sequence[Ledger[TopicLedgerState]] = (), timeout_ms: int = ROOT_TIMEOUT_MS
) -> list[RootLook]:
    """Check all roots, and refreshed topic ledgers on them, in parallel; writes nothing. See ``_look``.

    A root that has not answered within `timeout_ms` is unavailable.
    """
    brokers = cluster.brokers
    newest = [(ledger, IO_POOL.submit(_newest_copies, ledger, brokers.broker_ids)) for ledger in ledgers]
    looks = {
        broker_id: IO_POOL.submit_to(brokers.url(broker_id), _look, cluster, broker_id, ledgers, newest)
        for broker_id in brokers.broker_ids
    }
    answers, states = answers_of(looks, timeout_ms, clock=cluster.clock), list[RootLook]()
    for broker_id in looks:
        error = answers.errors.get(broker_id)
        if broker_id in answers.silent:
            answers.silent[broker_id].cancel()
            error = RetriableError(
                ErrorCode.REPLOG_STORE_UNAVAILABLE,
                f"the root did not answer within {timeout_ms} ms. Check its mount or network.",
                broker=broker_id,
                url=brokers.url(broker_id),
            )
        is_there = error is None or isinstance(error, CorruptDataError)
        free_bytes, device = _space(brokers, broker_id) if is_there else (None, None)
        states.append(RootLook(broker_id, error, free_bytes, device))
    return states


_Newest = tuple[Ledger[TopicLedgerState], "Future[Mapping[BrokerId, list[ObjectRef]]]"]


def _newest_copies(
    ledger: Ledger[TopicLedgerState], broker_ids: Collection[BrokerId]
) -> Mapping[BrokerId, list[ObjectRef]]:
    return ledger.ask(lambda state: state.newest_objects(broker_ids, NEWEST_COPIES))


def _look(
    cluster: Cluster, broker_id: BrokerId, ledgers: Sequence[Ledger[TopicLedgerState]], newest: Sequence[_Newest]
) -> None:
    """Read a root's ``replog.json``, and check that the root still holds what other roots record that it held.

    This detects a root that was restored from an older backup. Costs, in parallel, two small gets per ledger on a
    metadata root, and one for each of the newest ``NEWEST_COPIES`` copies per ledger.

    Raises:
        RetriableError: REPLOG_ROOT_STALE, also if a journal is shorter than it was; and the store's errors.
        CorruptDataError: CORRUPT_MESSAGE: a copy that the log names is missing.
    """
    brokers, calls = cluster.brokers, list[Future[None]]()
    brokers.check_root(broker_id)
    submit, lane = IO_POOL.submit_to, f"{brokers.url(broker_id)}#look"  # this job occupies a thread of the root's lane
    if broker_id in brokers.metadata_broker_ids:
        named = [(topic_ledger.ledger_id, topic_ledger.named_position(broker_id)) for topic_ledger in ledgers]
        cluster_ledger = cluster.cluster_ledger
        for ledger_id, position in ((cluster_ledger.ledger_id, cluster_ledger.named_position(broker_id)), *named):
            calls.append(submit(lane, _check_journal, brokers, broker_id, ledger_id, position))
            calls.append(submit(lane, _check_not_out, brokers, broker_id, ledger_id))
    for ledger, copies in newest:
        calls += [submit(lane, _check_copy, brokers, broker_id, ledger, item) for item in copies.result()[broker_id]]
    for call in calls:
        call.result()


def _check_journal(brokers: BrokerSet, broker_id: BrokerId, ledger_id: LedgerId, position: int) -> None:
    """Look for a record that other roots name. Below the root's marker none is needed: it was cut there, or rebuilt."""
    store = brokers.store(broker_id)
    if position < 0 or store.get(journal_key(ledger_id, position)) is not None:
        return
    marker = newest_marker(ledger_id, store)
    begins_at = -1 if marker is None else marker[0].position  # the record there is never deleted
    if begins_at <= position or store.get(journal_key(ledger_id, begins_at)) is None:
        raise _went_back(broker_id, ledger_id)


def _check_not_out(brokers: BrokerSet, broker_id: BrokerId, ledger_id: LedgerId) -> None:
    if brokers.store(broker_id).get(out_key(ledger_id)) is not None:
        raise _went_back(broker_id, ledger_id)


def _went_back(broker_id: BrokerId, ledger_id: LedgerId) -> ReplogError:
    return RetriableError(
        ErrorCode.REPLOG_ROOT_STALE,
        f"the root went back in time: its journal of ledger {ledger_id} lacks records that it had. Put them "
        f"back, or run 'replog store repair --rebuild {broker_id}'. 'replog store verify' lists what is missing.",
        broker=broker_id,
        ledger=ledger_id,
    )


def _check_copy(brokers: BrokerSet, broker_id: BrokerId, ledger: Ledger[TopicLedgerState], item: ObjectRef) -> None:
    key = data_key(item.ledger_id, *item.id)
    if not item.size_bytes:
        return
    if brokers.store(broker_id).get(key, start=item.size_bytes - 1, size_bytes=1) is not None:
        return
    with suppress(RetriableError):
        ledger.refresh()  # its rows may have been deleted since, and the copy with them
    if item.id in [copy.id for copy in _newest_copies(ledger, [broker_id])[broker_id]]:
        raise CorruptDataError(
            ErrorCode.CORRUPT_MESSAGE,
            f"a copy that the log names is missing on this root: {key}. Run 'replog store verify', then 'replog "
            "store repair'.",
            broker=broker_id,
            ledger=ledger.ledger_id,
        )


def _space(brokers: BrokerSet, broker_id: BrokerId) -> tuple[int | None, int | None]:
    if broker_id not in brokers.local_ids:
        return None, None
    path = brokers.url(broker_id).removeprefix("file://")
    try:
        return shutil.disk_usage(path).free, os.stat(path).st_dev
    except OSError:  # it went away since it answered: the next check reports it
        return None, None


def make_ledger_folders(brokers: BrokerSet, ledger_id: LedgerId, broker_ids: Iterable[BrokerId]) -> set[BrokerId]:
    """Make a ledger's folders on brokers; return the brokers whose root is away, which get none.

    A wrong root must not get folders: it would later look like the right root, but empty.
    """
    wanted = sorted(broker_ids)
    there = roots_there(brokers, wanted)
    for broker_id in there:
        for folder in ledger_folders(ledger_id, metadata=broker_id in brokers.metadata_broker_ids):
            brokers.store(broker_id).make_folder(folder)
    return set(wanted) - there
