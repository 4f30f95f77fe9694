"""The roots of a cluster: opens them by path, checks one, writes their root files."""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Container, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial

from spark_replog.clock import SYSTEM_CLOCK, Clock
from spark_replog.errors import (
    CorruptDataError,
    ErrorCode,
    InvalidConfigError,
    NotFoundError,
    ReplogError,
    RetriableError,
    UnsupportedFormatError,
    command_line,
)
from spark_replog.ids import BrokerId, new_id
from spark_replog.process_state import per_process
from spark_replog.storage.call_counter import CallCounter, CallTable, NamedCalls, summed
from spark_replog.storage.io_pool import IO_POOL
from spark_replog.storage.object_store import CreateOutcome, ObjectStore
from spark_replog.storage.open_store import is_far, is_server_address, normalise_url, open_store, scheme_of
from spark_replog.storage.paths import LEDGERS_PREFIX, ROOT_FILE_KEY
from spark_replog.storage.posix_store import TEMP_FILE_AGE_MS, root_file_identity, sweep_temp_files
from spark_replog.storage.probe import PROBE_PREFIX
from spark_replog.storage.retrying_store import RetryingStore
from spark_replog.storage.root_file import (
    FORMAT_VERSION,
    Broker,
    ReadRoot,
    RootFile,
    agree,
    can_list,
    encode_root_file,
    metadata_broker_ids,
    parent_url,
    place_of,
    read_root,
    read_roots,
    resolve_url,
    split_path,
)

_log = logging.getLogger(__name__)

STORE_DEADLINE_MS = 2000
"""Short: other roots answer first, and callers with a longer deadline repeat the call."""
INIT_DEADLINE_MS = 30_000
CHECKED_AGE_MS = 1_000
"""Maximum age of a root file that ``open`` or a check read, for the first check of a ledger, so that many ledgers that
begin at once share it. Even a fresh read only tells what was true at that moment: a short age costs no safety."""
OWN_PUTS_MAX = 1024
OWN_PUT_WAIT_SECONDS = 60.0
SHARED_SETS_MAX = 8
"""Per store: with tokens that change, each query that begins again has other storage options."""
_SCAN_BROKERS_MAX = 16
FIRST_LOOK_SECONDS = 0.1
"""How long an opened store's users wait to learn whether it was made again."""
NO_BROKER = "none"
"""Stands for the id of a broker where there is none."""


class OwnPuts:
    """This process's newest puts of data objects. Thread-safe without a lock, since a fork could inherit it held."""

    def __init__(self) -> None:
        self._puts: dict[tuple[BrokerId, str], Future[bool]] = {}
        self._order: deque[tuple[BrokerId, str]] = deque()

    def begin(self, broker_id: BrokerId, key: str, put: Future[bool]) -> None:
        """Remember a put and whether it succeeded, without its error, which would keep the object's bytes alive.

        A repeated put replaces the earlier attempt.
        """
        name = broker_id, key
        self._puts[name] = put
        self._order.append(name)
        if len(self._order) > OWN_PUTS_MAX:
            self._puts.pop(self._order.popleft(), None)

    def wait(self, broker_id: BrokerId, key: str) -> bool:
        """Wait for this process's put of an object, if any; return whether it succeeded.

        A put that takes ``OWN_PUT_WAIT_SECONDS`` longer counts as failed: one on a hung disk may never end, nor one
        that a forked process has from its parent. To put the same bytes again is safe.
        """
        put = self._puts.get((broker_id, key))
        try:
            return put is not None and put.exception(OWN_PUT_WAIT_SECONDS) is None and put.result()
        except TimeoutError:
            return False


class BrokerSet:
    """The roots of one cluster, by their root files. Pickles as settings; each process opens its own stores.

    Args:
        brokers: all brokers, ascending ids, absolute URLs.
        metadata_broker_ids: those that hold journals.
        fsync: whether writes survive power loss.
        storage_options: the user's options; a scope in a name restricts it to some roots.
        calls: counter that already has the calls of opening.
    """

    def __init__(
        self,
        cluster_id: str,
        brokers: tuple[Broker, ...],
        metadata_broker_ids: tuple[BrokerId, ...],
        *,
        fsync: bool,
        storage_options: Mapping[str, str],
        calls: CallCounter | None = None,
    ) -> None:
        self.calls = calls or CallCounter()
        """Counts this process's calls to the roots."""
        self.cluster_id = cluster_id
        self.brokers = brokers
        self.broker_ids = tuple(broker.broker_id for broker in brokers)
        self.metadata_broker_ids = metadata_broker_ids
        self.fsync = fsync
        self.storage_options = dict(storage_options)
        self.root_ids: dict[BrokerId, str] = {}
        """Ids of roots that `store repair` made, as far as this process has folded the cluster ledger."""
        self._by_id = {broker.broker_id: broker for broker in brokers}
        self.stores: dict[BrokerId, ObjectStore] = {}
        """Stores opened so far; tests put faulty ones here."""
        self._checked: dict[BrokerId, tuple[RootFile, int]] = {}
        """The root files as last read, and when that began."""
        self._made_again: InvalidConfigError | None = None
        self._first_root_file: tuple[int, int] | None = None
        self._clock: Clock = SYSTEM_CLOCK
        self.own_puts = OwnPuts()
        """Objects that this process has put or is putting, so that catching up does not write them again."""

    def __reduce__(self) -> tuple[object, ...]:
        make = partial(BrokerSet, fsync=self.fsync, storage_options=self.storage_options)
        return make, (self.cluster_id, self.brokers, self.metadata_broker_ids), {"root_ids": self.root_ids}

    @cached_property
    def local_ids(self) -> frozenset[BrokerId]:
        """Brokers whose roots are directories: reads are memory maps, writes need no network client."""
        return frozenset(broker.broker_id for broker in self.brokers if scheme_of(broker.url) == "file")

    @cached_property
    def near_ids(self) -> frozenset[BrokerId]:
        """Brokers whose roots are called without a network, as far as their URLs tell."""
        return frozenset(broker.broker_id for broker in self.brokers if not is_far(broker.url))

    @classmethod
    def open(
        cls, path: str, storage_options: Mapping[str, str] | None = None, *, clock: Clock = SYSTEM_CLOCK
    ) -> BrokerSet:
        """Open the cluster that a path names. Compares all readable root files: a root whose file is damaged
        or differs from the majority is not used, and logged as REPLOG_ROOT_STALE.

        Args:
            path: one or more roots, comma separated, or a parent directory that holds ``broker-*``.
                One answering root is enough: it names the others. A URL given here overrides the
                recorded one of the broker whose root file is there. A root that is none of the store's
                is not used, and logged as REPLOG_CLUSTER_MISMATCH.

        Raises:
            NotFoundError: REPLOG_STORE_NOT_INITIALISED: no root file under the path.
            InvalidConfigError: REPLOG_CLUSTER_MISMATCH: root files disagree without a majority, or two belong to the
                same broker; REPLOG_MISSING_OPTION: an empty path.
            RetriableError: REPLOG_STORE_UNAVAILABLE: no root answers; REPLOG_STORE_REFUSED: none may be read.
            CorruptDataError, UnsupportedFormatError: the only root files found cannot be read.
        """
        options = dict(storage_options or {})
        started_ms = clock.monotonic_ms()
        calls = CallCounter()
        read = _look(path, options, calls)
        if _may_yet_be_read(read) and clock.monotonic_ms() - started_ms < STORE_DEADLINE_MS:
            read = _look(path, options, calls, deadline_ms=STORE_DEADLINE_MS)
        agreement = agree(read)
        if not agreement.roots:
            raise _not_found(path, read)
        given = split_path(path)
        others = _roots_to_compare(given, agreement.roots)
        if others:
            read = {**read, **read_roots(others, options, is_any_known=True, calls=calls)}
            agreement = agree(read)
        _report_deviating(agreement.deviating)
        roots = agreement.roots
        _check_given(given, read, roots)
        is_list = not roots.keys().isdisjoint(given)
        made = _assemble(given if is_list else list(roots), roots, options, calls)
        if is_list:
            _report_surplus(given, agreement.deviating, made)
        made._checked = {root.broker_id: (root, started_ms) for root in roots.values()}
        made._clock = clock
        return made

    def store(self, broker_id: BrokerId) -> ObjectStore:
        """Return the broker's store, which retries for two seconds and recognises its own writes.

        Raises:
            InvalidConfigError: REPLOG_UNSUPPORTED_STORE.
            RetriableError: REPLOG_STORE_UNAVAILABLE: an entry names a broker that no root file lists. It counts as a
                root that is away.
        """
        store = self.stores.get(broker_id)
        if store is None and broker_id not in self._by_id:
            raise RetriableError(
                ErrorCode.REPLOG_STORE_UNAVAILABLE,
                f"broker {broker_id} is none of the store's brokers {list(self.broker_ids)}, and a ledger names it. "
                "Move its replicas to others: `replog topic reassign`.",
                broker=broker_id,
            )
        if store is None:
            raw = open_store(self.url(broker_id), self.storage_options, fsync=self.fsync)
            # No lock: a forked child could inherit it held. If two threads open the store, one of the two is kept.
            store = self.stores.setdefault(
                broker_id, RetryingStore(raw, deadline_ms=STORE_DEADLINE_MS, calls=self.calls)
            )
        return store

    def url(self, broker_id: BrokerId) -> str:
        """Return the broker's root URL, absolute and normalised; for a broker that is not listed, words without one."""
        broker = self._by_id.get(broker_id)
        return f"unknown broker {broker_id}" if broker is None else broker.url

    def name_calls(self, table: CallTable) -> NamedCalls:
        """Return counted calls by broker id; those to folders without a broker have `NO_BROKER`."""
        names = {broker.url: str(broker.broker_id) for broker in self.brokers}
        return summed({(names.get(key.root, NO_BROKER), key.kind, key.purpose): calls} for key, calls in table.items())

    def rack(self, broker_id: BrokerId) -> str | None:
        """Return the broker's rack; None if it has none."""
        broker = self._by_id.get(broker_id)
        return None if broker is None else broker.rack

    def check_root(self, broker_id: BrokerId, *, is_first: bool = False) -> None:
        """Read the root's ``replog.json`` again, and compare it with this set's broker.

        An alarm; no safety property depends on it. Costs one small get.

        Args:
            is_first: first check of a ledger: accepts the file as it was less than `CHECKED_AGE_MS` ago, if the last
                check or ``open`` read it then.

        Raises:
            RetriableError: REPLOG_ROOT_STALE: the file is missing, damaged or another root's;
                REPLOG_STORE_UNAVAILABLE or KAFKA_STORAGE_ERROR: the root does not answer.
            InvalidConfigError: REPLOG_CLUSTER_MISMATCH: the whole store was removed and made again at the same place.
        """
        url, now_ms = self.url(broker_id), self._clock.monotonic_ms()
        root, checked_ms = self._checked.get(broker_id, (None, 0))
        try:
            if root is None or not is_first or now_ms - checked_ms >= CHECKED_AGE_MS:
                self._checked.pop(broker_id, None)
                root = read_root(self.store(broker_id))
                if root is not None:
                    self._checked[broker_id] = root, now_ms
        except (CorruptDataError, UnsupportedFormatError) as error:
            raise _stale(f"cannot be read: {error.args[0]}", broker_id, url) from error
        why = "is missing" if root is None else self.mismatch(broker_id, root)
        if root is not None and root.cluster_id != self.cluster_id:
            self._look_for_another_store(root)
        self.require_own_place()
        if why is not None:
            raise _stale(why, broker_id, url)

    def require_own_place(self) -> None:
        """Raise REPLOG_CLUSTER_MISMATCH once a check has found another store in this one's place; costs no call."""
        if self._made_again is not None:
            raise self._made_again

    def _look_for_another_store(self, root_file: RootFile) -> None:
        """Find out whether the cluster of this root file has taken the store's place, with all its roots, for good."""
        if self._made_again is not None:
            return
        urls = [broker.url for broker in self.brokers]
        read = read_roots(urls, self.storage_options, lane=f"{urls[0]}#made-again", calls=self.calls)
        others = [root.cluster_id for root in read.values() if isinstance(root, RootFile)]
        if set(others) != {root_file.cluster_id} or len(others) < min(len(urls), len(root_file.brokers)):
            return
        self._made_again = InvalidConfigError(
            ErrorCode.REPLOG_CLUSTER_MISMATCH,
            f"the store was removed and made again: its cluster id is {root_file.cluster_id}, and was "
            f"{self.cluster_id} when this process opened it. Open it again: make a new Producer, Consumer or "
            "Store; start a streaming query with a new checkpoint.",
            url=urls[0],
        )

    def is_made_again(self) -> bool:
        """Return whether another store has taken this one's place, as a check or the file of a local root shows."""
        first = self.brokers[0]
        if self._made_again is None and first.broker_id in self.local_ids:
            look = IO_POOL.submit_to(first.url, root_file_identity, first.url)
            with suppress(TimeoutError, ReplogError):
                old_identity, self._first_root_file = self._first_root_file, look.result(FIRST_LOOK_SECONDS)
                if old_identity not in (None, self._first_root_file):
                    self.check_root(first.broker_id)
        return self._made_again is not None

    def sweep_temp_files(self, broker_id: BrokerId, *, is_dry_run: bool = False) -> int:
        """Remove, or only count, a root's temp files that are a day old; 0 where a create makes none.

        Some may be removed if the root then refuses, or does not answer, which raises.
        """
        url = self.url(broker_id)
        if scheme_of(url) == "file":
            return sweep_temp_files(url, TEMP_FILE_AGE_MS, is_dry_run=is_dry_run)
        if scheme_of(url) != "webhdfs":
            return 0
        from spark_replog.storage.webhdfs_store import WebHdfsStore

        store = open_store(url, self.storage_options)
        assert isinstance(store, WebHdfsStore)
        return store.sweep_temp_files(TEMP_FILE_AGE_MS, is_dry_run=is_dry_run)

    def mismatch(self, broker_id: BrokerId, root: RootFile) -> str | None:
        """Return why a root file is not the broker's ("belongs to ..."), None if it is."""
        if root.cluster_id != self.cluster_id:
            return f"belongs to cluster {root.cluster_id}, not {self.cluster_id}"
        if root.broker_id != broker_id:
            return f"belongs to broker {root.broker_id}"
        listed = tuple(sorted(ref.broker_id for ref in root.brokers))
        if (listed, root.metadata_broker_ids, root.fsync) != (self.broker_ids, self.metadata_broker_ids, self.fsync):
            return "differs from those of the other roots"
        # An id that is greater than the known one was registered later (`new_root_id`). The entry that says so may be
        # out of reach: without another root, this one is needed to read it.
        if (root.root_id or "") < self.root_ids.get(broker_id, ""):
            return "is that of a root which `replog store repair` has replaced"
        return None


_shared: dict[tuple[str, tuple[str, ...]], dict[str, BrokerSet]] = per_process({})
"""Store -> storage options -> set; the least recently used options come first."""


def shared_brokers(brokers: BrokerSet) -> BrokerSet:
    """Return this process's set of the same brokers, so that stores stay open between tasks.

    Sets with other storage options stay apart: a worker runs tasks of queries that have different credentials. The
    sets used last are kept; a task that still has another one goes on with it.
    """
    urls = tuple(broker.url for broker in brokers.brokers)
    options = json.dumps(brokers.storage_options, sort_keys=True, default=repr)
    # No lock: a forked child could inherit it held. If two threads bring a set, one of the two is kept.
    sets = _shared.setdefault((brokers.cluster_id, urls), {})
    broker_set = sets[options] = sets.pop(options, brokers)
    for oldest in list(sets)[:-SHARED_SETS_MAX]:
        sets.pop(oldest, None)
    broker_set.root_ids = {**broker_set.root_ids, **brokers.root_ids}
    return broker_set


def _look(path: str, options: Mapping[str, str], calls: CallCounter, *, deadline_ms: int = 0) -> dict[str, ReadRoot]:
    """Read the roots of a path, or those below it if it is a parent folder."""
    given = split_path(path)
    read = read_roots(given, options, deadline_ms=deadline_ms, calls=calls)
    if len(given) == 1 and read[given[0]] is None:
        children = [f"{given[0]}/broker-{number}" for number in range(_SCAN_BROKERS_MAX)]
        read = read_roots(children, options, lane=given[0], deadline_ms=deadline_ms, calls=calls)
    return read


def _may_yet_be_read(read: Mapping[str, ReadRoot]) -> bool:
    is_any = any(isinstance(root, RootFile) for root in read.values())
    return not is_any and any(
        isinstance(root, RetriableError) and root.code is not ErrorCode.REPLOG_STORE_REFUSED for root in read.values()
    )


def _roots_to_compare(given: Sequence[str], roots: Mapping[str, RootFile]) -> list[str]:
    """Return the recorded URLs of brokers that the path leaves out, so that their files are compared too.

    If the path names every broker, its URLs override the recorded ones, which are not read.
    """
    url, root = next(iter(roots.items()))
    # A file in another broker's place may be a copy: then its own broker's place is read too.
    placed_ids = {file.broker_id for at, file in roots.items() if place_of(at, file) in (None, file.broker_id)}
    if len(given) >= len(root.brokers):
        return []
    named = [resolve_url(ref.url, url) for ref in root.brokers if ref.broker_id not in placed_ids]
    return [other_url for other_url in named if other_url not in given]


def _check_given(given: Sequence[str], read: Mapping[str, ReadRoot], roots: Mapping[str, RootFile]) -> None:
    """Refuse a path whose roots all belong to different clusters."""
    cluster_ids = {root.cluster_id for url in given if isinstance(root := read.get(url), RootFile)}
    winner_url, winner = next(iter(roots.items()))
    if cluster_ids and winner.cluster_id not in cluster_ids:
        raise InvalidConfigError(
            ErrorCode.REPLOG_CLUSTER_MISMATCH,
            f"the roots belong to different clusters: {given[0]} to {cluster_ids.pop()}, {winner_url} to "
            f"{winner.cluster_id}. Name roots of one cluster only.",
        )


_reported: set[tuple[str, str]] = per_process(set())


def _report_deviating(deviating: Mapping[str, str]) -> None:
    """Log each root that is outvoted, once per process."""
    for url, why in deviating.items():
        if _is_first_report(url, why):
            _log.warning("[REPLOG_ROOT_STALE] the root is not used: %s root=`%s`", why, url)


def _report_surplus(given: Sequence[str], deviating: Container[str], made: BrokerSet) -> None:
    """Log each given root that is none of the store's, once per process.

    Not an error: while a root is moved, a path may name its old and its new place.
    """
    urls = [broker.url for broker in made.brokers]
    path = ",".join(url for url in given if url in urls)
    for url in given:
        if url not in urls and url not in deviating and _is_first_report(url, path):
            _log.warning(
                "[REPLOG_CLUSTER_MISMATCH] the root is not used: it is none of the store's %d roots, which `init` "
                "has set for good. Give the path `%s`. root=`%s`",
                len(urls), path, url,
            )  # fmt: skip


def _is_first_report(url: str, what: str) -> bool:
    report = url, what
    is_first = report not in _reported
    _reported.add(report)
    return is_first


def _assemble(
    given: Sequence[str], roots: Mapping[str, RootFile], storage_options: Mapping[str, str], calls: CallCounter
) -> BrokerSet:
    """Build the set from root files that agree; each names every broker."""
    first_url, first = next(iter(roots.items()))
    urls_read: dict[BrokerId, str] = {}
    for url, root in roots.items():
        other = urls_read.setdefault(root.broker_id, url)
        if other != url:
            raise InvalidConfigError(
                ErrorCode.REPLOG_CLUSTER_MISMATCH,
                f"{other} and {url} both have the replog.json of broker {root.broker_id}: one is a copy. "
                "Remove the copy from the path.",
            )
    urls = {ref.broker_id: resolve_url(ref.url, first_url) for ref in first.brokers}
    urls.update(urls_read)
    # A root in the path that is away: its URL still overrides the recorded one, by order.
    unplaced = [url for url in given if url not in urls.values()]
    away = [broker_id for broker_id in urls if broker_id not in urls_read and urls[broker_id] not in given]
    if len(given) == len(urls):
        urls.update(zip(away, unplaced, strict=False))
    return BrokerSet(
        first.cluster_id,
        tuple(replace(ref, url=urls[ref.broker_id]) for ref in sorted(first.brokers, key=lambda ref: ref.broker_id)),
        first.metadata_broker_ids,
        fsync=first.fsync,
        storage_options=storage_options,
        calls=calls,
    )


def _stale(what: str, broker_id: BrokerId, url: str) -> RetriableError:
    return RetriableError(
        ErrorCode.REPLOG_ROOT_STALE,
        f"replog.json of broker {broker_id} {what}: the root is out. Restore the right directory.",
        url=url,
    )


def _not_found(path: str, read: Mapping[str, ReadRoot]) -> ReplogError:
    errors = [error for error in read.values() if isinstance(error, ReplogError)]
    for error in errors:
        if not isinstance(error, RetriableError):
            return error
    if errors:
        refused = all(error.code is ErrorCode.REPLOG_STORE_REFUSED for error in errors)
        return RetriableError(
            ErrorCode.REPLOG_STORE_REFUSED if refused else ErrorCode.REPLOG_STORE_UNAVAILABLE,
            f"no root of the store can be read. The first: {errors[0].args[0]}",
            **{**errors[0].context, "path": path},
        )
    servers = [part for part in path.split(",") if is_server_address(part)]
    if servers:
        return NotFoundError(
            ErrorCode.REPLOG_STORE_NOT_INITIALISED,
            f"'{servers[0].strip()}' is the address of a server, and a store has none. Give the store's path, or the "
            "URLs of its roots.",
            path=path,
        )
    remote = "" if all(scheme_of(url) in ("file", "memory") for url in read) else ", and that its bucket exists"
    return NotFoundError(
        ErrorCode.REPLOG_STORE_NOT_INITIALISED,
        f"there is no store under this path. Check it{remote}, or make one: {command_line(path, 'init')}.",
        path=path,
    )


def write_root_files(
    urls: Sequence[str],
    storage_options: Mapping[str, str] | None = None,
    *,
    racks: Sequence[str | None] | None = None,
    fsync: bool = True,
) -> BrokerSet:
    """Create a cluster's roots, with broker ids in the order of the URLs; resume an unfinished init.

    Root files are written before anything else. So if no root holds a ledger yet and all existing root files name
    exactly these brokers, an earlier init stopped half-way: it is finished under its cluster id. Once any root holds
    a ledger, a root without its file has LOST it, and only a repair may give it an identity.

    Args:
        racks: one per root.
        fsync: recorded; False makes a throw-away store.

    Raises:
        ReplogError: REPLOG_STORE_EXISTS: a root belongs to another cluster or holds a ledger, or this one is complete.
            The context has ``complete`` = True if every root file is in place and names these
            brokers: then only the next step (the cluster ledger) can be unfinished.
        RetriableError: REPLOG_STORE_UNAVAILABLE: init needs every root.
        InvalidConfigError: REPLOG_CONFLICTING_OPTIONS: no roots, or one root named twice; REPLOG_INVALID_OPTION: a URL
            that a root file may not list.
    """
    options = dict(storage_options or {})
    roots = [normalise_url(url) for url in urls]
    if not roots or len(set(roots)) != len(roots):
        raise InvalidConfigError(
            ErrorCode.REPLOG_CONFLICTING_OPTIONS,
            "init needs at least one root, each named once. Change the path.",
            path=",".join(roots),
        )
    rack_of = list(racks) if racks is not None else [None] * len(roots)
    brokers = tuple(Broker(number, url, rack_of[number]) for number, url in enumerate(roots))
    refs = _recorded(brokers)
    cluster_id = _cluster_id_to_use(roots, options, brokers, fsync=fsync)
    for broker in brokers:  # before any root file: if one root cannot be made, no half-made store remains
        _make_root(broker.url, options, fsync=fsync)
    for broker in brokers:
        _write_root_file(
            RootFile(
                cluster_id=cluster_id,
                broker_id=broker.broker_id,
                format_version=FORMAT_VERSION,
                brokers=refs,
                metadata_broker_ids=metadata_broker_ids(len(roots)),
                fsync=fsync,
            ),
            broker.url,
            options,
        )
    return BrokerSet(cluster_id, brokers, metadata_broker_ids(len(roots)), fsync=fsync, storage_options=options)


def _recorded(brokers: Sequence[Broker]) -> tuple[Broker, ...]:
    """Return the brokers with relative URLs if all roots share a parent folder, so that the folder can be moved.

    Raises REPLOG_INVALID_OPTION for a URL that a root file may not list.
    """
    parents = {parent_url(broker.url) for broker in brokers}
    shared = parents.pop() if len(parents) == 1 else ""
    refs = tuple(replace(broker, url=broker.url.rpartition("/")[2]) if shared else broker for broker in brokers)
    for ref in refs:
        if not can_list(ref.url):
            raise InvalidConfigError(
                ErrorCode.REPLOG_INVALID_OPTION,
                f"the root {ref.url!r} has a backslash or a character that cannot be shown, so no process could read "
                "its replog.json. Rename the folder.",
            )
    return refs


def _cluster_id_to_use(
    roots: Sequence[str], options: Mapping[str, str], brokers: tuple[Broker, ...], *, fsync: bool
) -> str:
    """Return a new id, or that of the unfinished cluster found on these roots."""
    root_files: dict[str, RootFile] = {}
    for url, root in read_roots(roots, options, deadline_ms=STORE_DEADLINE_MS).items():
        if isinstance(root, RootFile):
            root_files[url] = root
        elif root is not None:
            if root.code not in (ErrorCode.REPLOG_STORE_UNAVAILABLE, ErrorCode.KAFKA_STORAGE_ERROR):
                raise root
            text = f"init needs every root, and one does not answer: {root.args[0]}"
            raise RetriableError(root.code, text, **root.context)
    wanted = {broker.url: broker for broker in brokers}
    cluster_ids = {root.cluster_id for root in root_files.values()}
    for url, root in root_files.items():
        named = tuple(replace(ref, url=resolve_url(ref.url, url)) for ref in root.brokers)
        same = named == brokers and root.broker_id == wanted[url].broker_id and root.fsync == fsync
        if not same or len(cluster_ids) > 1:
            raise _exists(f"the root already belongs to cluster {root.cluster_id}", url, complete=False)
    if len(root_files) == len(roots):
        raise _exists(f"all roots already belong to cluster {cluster_ids.pop()}", roots[0], complete=True)
    for url in roots:
        if _holds_ledgers(url, options):
            raise _exists("the root already holds a ledger", url, complete=False)
    return cluster_ids.pop() if cluster_ids else new_id()


def _holds_ledgers(url: str, options: Mapping[str, str]) -> bool:
    try:
        return next(iter(open_store(url, options).list_keys(LEDGERS_PREFIX)), None) is not None
    except RetriableError as error:
        if error.code is ErrorCode.REPLOG_ROOT_STALE:
            return False
        raise


def _make_root(url: str, options: Mapping[str, str], *, fsync: bool) -> None:
    """Make the folder, and check that the bucket exists and allows listing, writing and deleting."""
    store = RetryingStore(open_store(url, options, fsync=fsync), deadline_ms=INIT_DEADLINE_MS)
    store.make_folder("")
    store.list_keys(LEDGERS_PREFIX)
    if scheme_of(url) not in ("file", "memory"):
        mark = new_id()
        store.create(f"{PROBE_PREFIX}{mark}", mark.encode())
        store.delete(f"{PROBE_PREFIX}{mark}")


def _write_root_file(root: RootFile, url: str, options: Mapping[str, str]) -> None:
    store = RetryingStore(open_store(url, options, fsync=root.fsync), deadline_ms=INIT_DEADLINE_MS)
    if store.create(ROOT_FILE_KEY, encode_root_file(root)) is not CreateOutcome.CREATED:
        raise _exists("another init has just taken the root, or two of the roots are one place", url, complete=False)


def _exists(what: str, url: str, *, complete: bool) -> ReplogError:
    return ReplogError(
        ErrorCode.REPLOG_STORE_EXISTS,
        f"{what}: nothing was written there. Use the store as it is, choose other roots, or remove these.",
        url=url,
        complete=complete,
    )
