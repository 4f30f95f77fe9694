"""One opened store: its brokers, the cluster ledger, and the topic ledgers folded so far.

Runs wherever a coordinator, a planner or a command runs (never in a task). A process keeps
one ``Cluster`` per (path, storage options) so that folds are incremental; a forked child
starts with none of its parent's.
"""

from __future__ import annotations

import logging
import math
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import NoReturn, TypeVar

from spark_replog.clock import SYSTEM_CLOCK, Clock
from spark_replog.config.coordinator import CoordinatorConfig
from spark_replog.config.registry import storage_texts
from spark_replog.errors import (
    CorruptDataError,
    ErrorCode,
    InvalidConfigError,
    NotFoundError,
    ReplogError,
    conflicting_options,
    stays_in_process,
)
from spark_replog.ids import BrokerId, LedgerId, TopicId
from spark_replog.ledger.ledger import Ledger
from spark_replog.ledger.types import JournalRoot, LedgerSettings
from spark_replog.log.acl import normal_principal
from spark_replog.log.codec.commands import decode_commands
from spark_replog.log.entry_words import state_changes
from spark_replog.log.fold.append_time import agreed_of
from spark_replog.log.fold.cluster_state import ClusterLedgerState
from spark_replog.log.fold.topic_state import TopicLedgerState
from spark_replog.log.fold.topic_table import TopicState
from spark_replog.log.model import Append, CommandResult, TopicPublish
from spark_replog.log.quotas import (
    CONSUMER_BYTE_RATE,
    PRODUCER_BYTE_RATE,
    FetchQuota,
    rate_key,
    throttle_time_ms,
)
from spark_replog.log.write_plan import unknown_topic
from spark_replog.logs import Once, event
from spark_replog.process_state import in_each_child
from spark_replog.storage.brokers import SHARED_SETS_MAX, BrokerSet
from spark_replog.storage.io_pool import IO_POOL
from spark_replog.storage.paths import LEDGERS_PREFIX, journal_folder

_LOG = logging.getLogger(__name__)
ACCESS_AGE_MS = 1_000
"""How old a process's view of ACLs and quotas may be when it plans, appends or reads. Not a setting, since users expect
a change to apply at once; it costs a running process one get per metadata root and second."""

ROOT_CHECK_MS = 60_000
"""How often a process that reads reads a root's ``replog.json`` again too, one root in turn."""

EARLY_RECORDS = 12
"""Records of the cluster ledger that a cold process gets at once over a network: those of a store with up to three
topics. Topics' ledgers usually have more, and begin with a snapshot."""

StorePath = str | os.PathLike[str]
"""A parent directory of roots, or the roots, comma separated."""
_State = TypeVar("_State", ClusterLedgerState, TopicLedgerState)


@dataclass(frozen=True, slots=True)
class TopicHandle:
    """The ids of a topic and of its ledger."""

    name: str
    topic_id: TopicId
    ledger_id: LedgerId


class Cluster:
    """An opened store. Thread-safe. ``path`` and ``storage_options`` are as the user gave them."""

    def __init__(
        self,
        brokers: BrokerSet,
        *,
        path: str,
        storage_options: Mapping[str, str],
        config: CoordinatorConfig,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.brokers = brokers
        self.path = path
        self.storage_options = dict(storage_options)
        self.config = config
        self.clock = clock
        self.cluster_ledger: Ledger[ClusterLedgerState] = self._make_ledger(
            brokers.cluster_id, ClusterLedgerState(), on_found=self._look_ahead
        )
        self._topic_ledgers: dict[LedgerId, Ledger[TopicLedgerState]] = {}
        self._refreshed_ms = -math.inf
        """When the cluster ledger was last folded."""
        self._wanted: tuple[str, ...] = ()  # topics that a caller of the first fold will ask for
        self._ahead: tuple[int, Future[None]] | None = None  # process id, last refresh that `refresh_ahead` started
        self._deposed = Once()
        self._root_check: tuple[int, BrokerId, Future[None]] | None = None  # process id, whose root
        self._root_turn, self._root_checked_ms = 0, float(clock.monotonic_ms())  # they were read to open the store

    @classmethod
    def open(
        cls,
        path: StorePath,
        storage_options: Mapping[str, str] | None = None,
        *,
        config: CoordinatorConfig | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> Cluster:
        """Open a store. Raises REPLOG_STORE_NOT_INITIALISED, REPLOG_CLUSTER_MISMATCH."""
        path, options = os.fspath(path), storage_texts(storage_options or {})
        return cls(
            BrokerSet.open(path, options),
            path=path,
            storage_options=options,
            config=config or CoordinatorConfig(),
            clock=clock,
        )

    @classmethod
    def shared(cls, path: StorePath, storage_options: Mapping[str, str] | None = None) -> Cluster:
        """Return this process's cluster for the path and options, opened on first use and when it was made again.

        Of a path with other options again and again, as with tokens that change, those used last are kept.
        """
        options = storage_texts(storage_options) if storage_options else {}
        key = (os.fspath(path), tuple(sorted(options.items())))
        with _SHARED_LOCK:
            cluster = _SHARED.get(key)
        opened = cls.open(path, options) if cluster is None else cluster
        if opened.brokers.is_made_again():
            opened = cls.open(path, options)
            opened.brokers.is_made_again()  # remembers what the new root file looks like
        with _SHARED_LOCK:
            kept = _SHARED.pop(key, opened)
            cluster = _SHARED[key] = opened if kept.brokers.cluster_id != opened.brokers.cluster_id else kept
            for oldest in [other_key for other_key in _SHARED if other_key[0] == key[0]][:-SHARED_SETS_MAX]:
                del _SHARED[oldest]
        return cluster

    @classmethod
    def of(
        cls, store: StorePath | Cluster, storage_options: Mapping[str, str], config: CoordinatorConfig | None = None
    ) -> Cluster:
        """Return the cluster of a client: the given one, or this process's cluster of the path.

        Args:
            storage_options: of the client's settings; not allowed with an open store, where they have no effect.
            config: of the client's settings; None: share this process's cluster of the path, else open a separate one.

        Raises:
            InvalidConfigError: REPLOG_CONFLICTING_OPTIONS: storage options for a store that is open;
                INVALID_REQUEST: neither a path nor a store.
            ReplogError: as ``open``.
        """
        if isinstance(store, (str, os.PathLike)):
            return (
                cls.shared(store, storage_options)
                if config is None
                else cls.open(store, storage_options, config=config)
            )
        if storage_options:
            raise conflicting_options(
                f"storage options ({', '.join(sorted(storage_options))}) come too late for a store that is open: "
                "give them to spark_replog.open(path, options)."
            )
        cluster = getattr(store, "cluster", store)  # of a `Store`
        if not isinstance(cluster, cls):
            raise InvalidConfigError(
                ErrorCode.INVALID_REQUEST, f"{store!r} is no store. Give a path, or what spark_replog.open() returned."
            )
        return cluster

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled. Raises REPLOG_NOT_FORK_SAFE."""
        raise stays_in_process("store")

    def topic_ledger(self, ledger_id: LedgerId) -> Ledger[TopicLedgerState]:
        """Return the ledger, folded as far as this process has read it."""
        ledger = self._topic_ledgers.get(ledger_id)
        if ledger is None:
            # No lock: a forked child could inherit it held. If two threads make one, one of the two is kept.
            state = TopicLedgerState(ledger_id, self.config.metadata_page_cache_bytes)
            made = self._make_ledger(ledger_id, state)
            ledger = self._topic_ledgers.setdefault(ledger_id, made)
        return ledger

    def close_ledger(self, ledger_id: LedgerId) -> None:
        """Free the memory of a ledger; ``topic_ledger`` reads it again when needed."""
        self._topic_ledgers.pop(ledger_id, None)

    def retention_now_ms(self, ledger: Ledger[TopicLedgerState]) -> int:
        """Return the time for retention in a ledger: this process's clock, but no later than what writers agree on.

        They are the ledger's own, or two of any known ledger. So a single clock that is ahead deletes nothing too early
        (ADR 24), and without appends no row ages.
        """
        agreed_ms = ledger.ask(lambda state: state.agreed_time.now_ms)
        clocks: dict[str, int] = {}
        for topic_ledger in list(self._topic_ledgers.values()):
            with topic_ledger.lock:
                writer_clocks = topic_ledger.state.agreed_time.clocks
            for writer, clock_ms in writer_clocks.items():
                clocks[writer] = max(clock_ms, clocks.get(writer, 0))
        return min(self.clock.now_ms(), max(agreed_ms, agreed_of(clocks.values())))

    def lookup(self, name: str, *, is_folded: bool = False) -> TopicHandle:
        """Return the ids of a topic; read the cluster ledger only if the name is unknown
        or the last fold is older than ``metadata.max.age.ms``.

        Args:
            is_folded: the newest entries have just been folded: nothing is read.

        Raises:
            NotFoundError: UNKNOWN_TOPIC_OR_PARTITION.
            InvalidConfigError: INVALID_TOPIC_EXCEPTION: no topic can have the name.
            RetriableError: REPLOG_NO_QUORUM.
        """
        handle, age_ms = self._find(name), self.clock.monotonic_ms() - self._refreshed_ms
        if not is_folded and (handle is None or age_ms > self.config.metadata_max_age_ms):
            self._wanted = self._wanted or (name,)
            self.refresh()
            handle = self._find(name)
        if handle is None:
            raise unknown_topic(name, self.path)
        return handle

    def produce_throttle_ms(self, appends: Mapping[LedgerId, Append], limit_ms: int) -> int:
        """Return for how many ms the answer to newly decided appends must be delayed. Nothing is dropped.

        Each ledger has its own rate, as each broker in Kafka; the longest wait counts, not the sum. Rates come from
        folded entries, so every coordinator computes the same ones. Source: Kafka's ``ClientQuotaManager``.

        Args:
            appends: applied and folded already. Quotas are those of the cluster ledger as folded so far.
        """
        waits = [0]
        for ledger_id, append in appends.items():
            user = normal_principal(append.principal)
            with self.cluster_ledger.lock:
                quota = self.cluster_ledger.state.quotas.find(PRODUCER_BYTE_RATE, user, append.client_id)
            if quota is None:
                continue
            ledger = self.topic_ledger(ledger_id)
            with ledger.lock:
                key = rate_key(quota.scope, user, append.client_id)
                observed, window_ms = ledger.state.produce_rates.measure(key, ledger.state.append_time_ms)
            waits.append(throttle_time_ms(observed, quota.limit_per_second, window_ms, limit_ms))
        return max(waits)

    def fetch_quota(self, principal: str, client_id: str) -> FetchQuota | None:
        """Return the limit for each process of a reader, None for no limit. Plain data, since tasks carry it."""
        user = normal_principal(principal)
        with self.cluster_ledger.lock:
            quota = self.cluster_ledger.state.quotas.find(CONSUMER_BYTE_RATE, user, client_id)
        return None if quota is None else FetchQuota(quota.limit_per_second, rate_key(quota.scope, user, client_id))

    def topic_names(self) -> list[str]:
        """Return all topic names, sorted, from the newest fold."""
        self.refresh()
        with self.cluster_ledger.lock:
            return sorted(self.cluster_ledger.state.topics)

    def refresh(self, *, may_be_stale: bool = False) -> None:
        """Fold the cluster ledger's newest entries; check roots again that were replaced according to it.

        Raises:
            CorruptDataError: REPLOG_JOURNAL_HOLE: the ledger's files are gone. RetriableError: REPLOG_NO_QUORUM.
        """
        self._check_roots_in_turn()
        state = self.cluster_ledger.refresh(may_be_stale=may_be_stale)
        if not state.brokers:
            self._check_not_lost()
        self._refreshed_ms = self.clock.monotonic_ms()
        with self.cluster_ledger.lock:
            root_ids = {
                node.broker_id: root_id for node in state.brokers.values() if (root_id := node.root_id) is not None
            }
        recorded = self.brokers.root_ids
        if root_ids != recorded:
            self.brokers.root_ids = root_ids
            for broker_id in root_ids.keys() - {root for root in recorded if recorded[root] == root_ids.get(root)}:
                self._check_again(broker_id)

    def _check_again(self, broker_id: BrokerId) -> None:
        self.cluster_ledger.check_again(broker_id)
        for ledger in list(self._topic_ledgers.values()):  # `_look_ahead` may add one
            ledger.check_again(broker_id)

    def _check_roots_in_turn(self) -> None:
        """Read a root's ``replog.json`` now and then, beside the reads of ledgers: the next call learns the answer.

        The journals of a bucket that was emptied, or in which another store was made, look like those of a store where
        nothing is new. A folder's journal tells the difference by itself.

        Raises:
            InvalidConfigError: REPLOG_CLUSTER_MISMATCH: another store has taken this one's place.
        """
        brokers, check, now_ms = self.brokers, self._root_check, self.clock.monotonic_ms()
        is_own = check is not None and check[0] == os.getpid()
        if check is not None and is_own and check[2].done():
            self._root_check, error = None, check[2].exception()
            if isinstance(error, ReplogError) and error.code is ErrorCode.REPLOG_ROOT_STALE:
                self._check_again(check[1])  # without it, reads check the other roots too
        brokers.require_own_place()
        far = [root for root in brokers.metadata_broker_ids if root not in brokers.local_ids]
        if far and now_ms - self._root_checked_ms >= ROOT_CHECK_MS and not (is_own and self._root_check is not None):
            broker_id = far[self._root_turn % len(far)]
            self._root_turn, self._root_checked_ms = self._root_turn + 1, float(now_ms)
            lane = f"{brokers.url(broker_id)}#check"
            self._root_check = os.getpid(), broker_id, IO_POOL.submit_to(lane, brokers.check_root, broker_id)

    def _check_not_lost(self) -> None:
        """Refuse a store whose roots hold topics that no entry names: an init would make them unreachable for ever."""
        cluster_id, is_lost = self.brokers.cluster_id, False
        for broker_id in self.brokers.metadata_broker_ids:
            with suppress(ReplogError):  # only an alarm: skip a root that cannot be listed
                keys = (info.key for info in self.brokers.store(broker_id).list_keys(LEDGERS_PREFIX))
                is_lost |= any(key.split("/")[1] != cluster_id for key in keys)
        if is_lost:
            raise CorruptDataError(
                ErrorCode.REPLOG_JOURNAL_HOLE,
                f"the roots hold topics, and the files of {journal_folder(cluster_id)} that name them are missing on "
                "the metadata roots. Put them back; do not run init again.",
            )

    def refresh_if_stale(self) -> None:
        """Fold the cluster ledger's newest entries if the known ACLs and quotas are older than ``ACCESS_AGE_MS``."""
        if not self.is_access_stale():
            return
        if self._ahead is not None and self._ahead[0] == os.getpid():
            with suppress(ReplogError):  # tried again below
                self._ahead[1].result()
            if not self.is_access_stale():
                return
        self.refresh()

    def refresh_ahead(self) -> None:
        """Start the work of ``refresh_if_stale`` in the background; that call then waits for it."""
        ahead = self._ahead
        is_under_way = ahead is not None and ahead[0] == os.getpid() and not ahead[1].done()
        if self.is_access_stale() and not is_under_way:
            self._ahead = os.getpid(), IO_POOL.submit(self.refresh)

    def is_access_stale(self) -> bool:
        """Return whether the known ACLs and quotas are older than ``ACCESS_AGE_MS``."""
        age_ms = self.clock.monotonic_ms() - self._refreshed_ms
        return age_ms > min(ACCESS_AGE_MS, self.config.metadata_max_age_ms)

    def topic_state(self, handle: TopicHandle) -> tuple[Ledger[TopicLedgerState], TopicState]:
        """Fold the topic's ledger and return it with the topic's state. Raises the errors of ``folded_topic``.

        Read the state under ``ledger.lock``. A restore replaces the topic's state: take it from ``ledger.state`` there.
        """
        self.refresh_topics([handle])
        return self.folded_topic(handle)

    def unread_since(self, handles: Iterable[TopicHandle], since: int | None) -> list[TopicHandle]:
        """Return the topics whose ledgers this process has not read since a mark (`ledger.mark`); all for None."""
        return [handle for handle in handles if not self.topic_ledger(handle.ledger_id).is_read_since(since)]

    def refresh_topics(self, handles: Iterable[TopicHandle], *, may_be_stale: bool = False) -> None:
        """Fold the newest entries of the topics' ledgers, each once, in parallel. Raises REPLOG_NO_QUORUM."""
        self._check_roots_in_turn()
        ledgers = [self.topic_ledger(ledger_id) for ledger_id in {handle.ledger_id: None for handle in handles}]
        pending = [IO_POOL.submit(ledger.refresh, may_be_stale=may_be_stale) for ledger in ledgers[1:]]
        for first in ledgers[:1]:  # so the usual single ledger costs no thread
            first.refresh(may_be_stale=may_be_stale)
        for future in pending:
            future.result()

    def newest_topics(self, names: Iterable[str], *, since: int | None = None) -> dict[str, TopicHandle]:
        """Fold the topics that have these names now, and return their ids.

        A known topic may turn out to be deleted. Then its name is looked up again: another topic may have it.

        Args:
            since: a mark: ledgers that were read since then are not read again.

        Raises:
            ReplogError: as ``lookup``.
        """
        handles = {name: self.lookup(name) for name in sorted(set(names))}
        self.refresh_topics(self.unread_since(handles.values(), since))
        for name, handle in handles.items():
            try:
                self.folded_topic(handle)
            except NotFoundError:
                handles[name] = newer = self.lookup(name)
                self.topic_state(newer)
        return handles

    def fold_topics(
        self, names: Iterable[str], check_access: Callable[[], object]
    ) -> tuple[dict[str, TopicHandle], dict[str, NotFoundError]]:
        """Fold these topics and, in parallel, ACLs and quotas that are too old.

        Topics that this process knows are folded before the check of the ACLs, the others after it.

        Args:
            check_access: checks the newest ACLs; its error counts before those of the topics.

        Returns:
            The topics that exist, and for each other name the error to raise.
        """
        self._wanted = names = tuple(names)
        self.refresh_ahead()
        folded = {handle for name in names if (handle := self._find(name)) is not None}
        problem: ReplogError | None = None
        try:
            self.refresh_topics(folded)
        except ReplogError as error:
            problem = error
        self.refresh_if_stale()
        check_access()
        handles: dict[str, TopicHandle] = {}
        missing: dict[str, NotFoundError] = {}
        for name in names:
            try:
                handles[name] = self._find(name) or self.lookup(name)
            except NotFoundError as error:
                missing[name] = error
        if problem is not None and folded.issubset(handles.values()):
            raise problem  # otherwise the old ledger of a topic that was created again may have failed
        self.refresh_topics([topic for topic in handles.values() if problem is not None or topic not in folded])
        return handles, missing

    def folded_topic(self, handle: TopicHandle) -> tuple[Ledger[TopicLedgerState], TopicState]:
        """Return the topic as this process has folded it so far; reads nothing. See ``topic_state``.

        Raises:
            NotFoundError: UNKNOWN_TOPIC_OR_PARTITION: the topic was closed.
            CorruptDataError: REPLOG_JOURNAL_HOLE: its ledger has lost it.
        """
        ledger = self.topic_ledger(handle.ledger_id)
        with ledger.lock:
            topic = ledger.state.topics.get(handle.topic_id)
        if topic is None:
            # A topic is published after its ledger has it, so a missing one is a lost journal, not a deleted topic.
            topic = ledger.refresh().topics.get(handle.topic_id)
            if topic is None:
                raise CorruptDataError(
                    ErrorCode.REPLOG_JOURNAL_HOLE,
                    f"topic '{handle.name}' is published, but its ledger {handle.ledger_id} does not contain it: the "
                    f"files of ledgers/{handle.ledger_id}/journal are missing on the metadata roots. Put them back; "
                    "do not create the topic again.",
                    topic=handle.name,
                )
        if topic.closed:
            self._refreshed_ms = -math.inf
            raise unknown_topic(handle.name, self.path)
        return ledger, topic

    def _look_ahead(self, payloads: Sequence[bytes]) -> None:
        """Start the first looks at wanted topics' ledgers while the markers of the cluster ledger are looked for.

        The ledger of a topic that turns out not to be published is not read; then these looks are for nothing.
        """
        topics = {name: self.cluster_ledger.state.topics.get(name) for name in self._wanted}  # of a snapshot
        ledger_ids = {name: ids[1] for name, ids in topics.items() if ids is not None}
        for command in (entry_command for payload in payloads for entry_command in decode_commands(payload)):
            if isinstance(command, TopicPublish) and command.name in self._wanted:
                ledger_ids[command.name] = command.ledger_id
        for ledger_id in set(ledger_ids.values()):
            self.topic_ledger(ledger_id).look_ahead()

    def _find(self, name: str) -> TopicHandle | None:
        with self.cluster_ledger.lock:
            ids = self.cluster_ledger.state.topics.get(name)
        return None if ids is None else TopicHandle(name, ids[0], ids[1])

    def _make_ledger(
        self, ledger_id: LedgerId, state: _State, on_found: Callable[[Sequence[bytes]], None] | None = None
    ) -> Ledger[_State]:
        brokers = self.brokers
        checks = {broker_id: partial(brokers.check_root, broker_id) for broker_id in brokers.metadata_broker_ids}
        roots = [
            JournalRoot(broker_id, brokers.store(broker_id), check, partial(check, is_first=True))
            for broker_id, check in checks.items()
        ]
        early_count = EARLY_RECORDS if ledger_id == brokers.cluster_id else 0
        settings = LedgerSettings(grace_ms=self.config.commit_wait_ms, early_record_count=early_count)
        decided = partial(self._log_changes, ledger_id)
        return Ledger(
            ledger_id, roots, state, settings=settings, clock=self.clock, on_decided=decided, on_found=on_found
        )

    def _log_changes(
        self,
        ledger_id: LedgerId,
        index: int,
        payload: bytes,
        results: Sequence[CommandResult],
        owners: tuple[bytes, bytes],
    ) -> None:
        """Log the changes that this process has decided; no other process logs them.

        A change of the ledger's owner is logged once per former owner, since two writers take turns all the time.
        """
        if not _LOG.isEnabledFor(logging.INFO):
            return
        try:
            before, owner = (owner_id.hex()[:8] for owner_id in owners)
            if any(owners[0]) and self._deposed.is_first((ledger_id, before)):
                words = f"this process, {owner}, writes ledger {ledger_id} now; before it did {before}"
                fields = {"ledger": ledger_id, "index": index, "owner": owner, "before": before}
                event(_LOG, "owner_change", words, fields)
            names = {topic_id: name for name, (topic_id, _) in list(self.cluster_ledger.state.topics.items())}
            for kind, words in state_changes(payload, results, names):
                event(_LOG, kind, words, {"ledger": ledger_id, "index": index})
        except Exception:  # a missing log line must not fail a decided entry
            _LOG.debug("entry %d of ledger %s is not logged", index, ledger_id, exc_info=True)


_SharedKey = tuple[str, tuple[tuple[str, str], ...]]
_SHARED: dict[_SharedKey, Cluster] = {}
_SHARED_LOCK = threading.Lock()


def forget_shared(brokers: BrokerSet) -> None:
    """Drop this process's clusters with any of these roots: from a new init on, the roots are another store."""
    urls = {broker.url for broker in brokers.brokers}
    with _SHARED_LOCK:
        for key, cluster in list(_SHARED.items()):
            if not urls.isdisjoint(broker.url for broker in cluster.brokers.brokers):
                del _SHARED[key]


@in_each_child
def _forget_shared() -> None:
    # A forked child must not use its parent's ledgers, and may have inherited a held lock.
    global _SHARED_LOCK
    _SHARED_LOCK = threading.Lock()
    _SHARED.clear()
