"""``replog.json``, the write-once identity of a root: its format, reading it from many roots, and their agreement."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

import crc32c

from spark_replog.clock import SYSTEM_CLOCK, Clock
from spark_replog.errors import (
    CorruptDataError,
    ErrorCode,
    InvalidConfigError,
    ReplogError,
    RetriableError,
    UnsupportedFormatError,
)
from spark_replog.ids import BROKER_ID_MAX, HEX_ID, KEY, BrokerId
from spark_replog.quorum import majority_of
from spark_replog.storage.call_counter import CallCounter
from spark_replog.storage.fan_out import answers_of
from spark_replog.storage.io_pool import IO_POOL
from spark_replog.storage.object_store import Buffer, ObjectStore
from spark_replog.storage.open_store import normalise_url, open_store
from spark_replog.storage.paths import REBUILD_KEY, ROOT_FILE_KEY
from spark_replog.storage.retrying_store import RetryingStore

FORMAT_VERSION = 1
ROOT_FILE_BYTES_MAX = 1 << 20
"""Larger files are not read: a store of 1,000 brokers needs 100 KB."""
_FORMAT = "replog-root"
_REBUILD_FORMAT = "replog-rebuild"
_PUT_BACK = "Name roots of one cluster only, or put the right replog.json back."
_CHECKSUM = b',\n  "crc32c": "%08x"\n}\n'
_CHECKSUM_BYTES = len(_CHECKSUM % 0)


@dataclass(frozen=True, slots=True)
class Broker:
    """One root of a cluster."""

    broker_id: BrokerId
    url: str
    """Absolute; in a root file also relative to the parent folder that all roots share (``broker-1``)."""
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class RootFile:
    """Identity of one root and its cluster. Root files of a cluster differ only in broker_id and root_id.

    Attributes:
        root_id: 32 hex digits, registered in the cluster ledger, if `store repair` made the root; None for the first
            root of a broker.
    """

    cluster_id: str
    broker_id: BrokerId
    format_version: int
    brokers: tuple[Broker, ...]
    metadata_broker_ids: tuple[BrokerId, ...]
    fsync: bool
    root_id: str | None = None


def metadata_broker_ids(broker_count: int) -> tuple[BrokerId, ...]:
    """Return which brokers hold journals: the first 1, 2, 3, 3 and 5 of 1, 2, 3, 4 and five or more brokers."""
    count = broker_count if broker_count <= 3 else 3 if broker_count == 4 else 5
    return tuple(range(count))


def encode_root_file(root: RootFile) -> bytes:
    """Return the JSON text in UTF-8, equal for equal values. The last member is the CRC32C of all bytes before it."""
    fields = {
        "format": _FORMAT,
        "version": root.format_version,
        "clusterId": root.cluster_id,
        "brokerId": root.broker_id,
        "rootId": root.root_id,
        "brokers": [{"id": ref.broker_id, "url": ref.url, "rack": ref.rack} for ref in root.brokers],
        "metadataBrokers": list(root.metadata_broker_ids),
        "fsync": root.fsync,
    }
    return _sealed(json.dumps(fields, indent=2).encode().removesuffix(b"\n}"))


def encode_rebuild(root_id: str) -> bytes:
    """Return ``rebuild.json`` of the root with this id."""
    return json.dumps({"format": _REBUILD_FORMAT, "version": 1, "rootId": root_id}).encode()


def read_rebuild(store: ObjectStore) -> str | None:
    """Return the id of the root that repairs make here; None if no repair is at work, or what says so is damaged."""
    try:
        data = store.get(REBUILD_KEY, size_bytes=ROOT_FILE_BYTES_MAX)
        fields = _typed(json.loads(bytes(data or b"")), dict)
        root_id = _typed(fields["rootId"], str) if fields["format"] == _REBUILD_FORMAT else ""
    except (CorruptDataError, KeyError, ValueError):
        return None
    return root_id if HEX_ID.fullmatch(root_id) else None


def _sealed(body: bytes) -> bytes:
    return body + _CHECKSUM % crc32c.crc32c(body)


def can_list(url: str) -> bool:
    """Return whether a root file may list a URL: one that can be shown, absolute or a name below the parent folder."""
    return url.isprintable() and ("://" in url or ("/" not in url and KEY.fullmatch(url) is not None))


def decode_root_file(data: Buffer, *, url: str) -> RootFile:
    """Read a root file.

    Args:
        data: the file's bytes; at most ``ROOT_FILE_BYTES_MAX`` are accepted.

    Raises:
        CorruptDataError: CORRUPT_MESSAGE: not a root file, or a damaged one.
        UnsupportedFormatError: UNSUPPORTED_VERSION: written by a newer release.
    """
    try:
        if len(data) > ROOT_FILE_BYTES_MAX:
            raise ValueError(f"it is larger than {ROOT_FILE_BYTES_MAX} bytes")
        body = bytes(data)
        fields = _typed(json.loads(body), dict)
        if fields["format"] != _FORMAT:
            raise ValueError("it has another format")
        if "crc32c" in fields and _sealed(body[:-_CHECKSUM_BYTES]) != body:
            raise ValueError("its checksum is wrong")
        version = _typed(fields["version"], int)
        if version > FORMAT_VERSION:
            raise UnsupportedFormatError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"the root has format version {version}, this release reads up to {FORMAT_VERSION}. "
                "Upgrade spark-replog.",
                url=url,
            )
        if "crc32c" not in fields:
            raise ValueError("it has no checksum")
        root = _root_file(fields, version)
        _check_root_file(root)
        return root
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError, MemoryError) as error:
        what = f"the field {error} is missing" if isinstance(error, KeyError) else " ".join(str(error).split())[:200]
        raise CorruptDataError(
            ErrorCode.CORRUPT_MESSAGE,
            f"replog.json is damaged: {what}. Put this root's own replog.json back from a backup, or, where the other "
            "roots are good, run `replog store repair --rebuild BROKER`.",
            url=url,
        ) from error


def _root_file(fields: dict[str, Any], version: int) -> RootFile:
    return RootFile(
        cluster_id=_typed(fields["clusterId"], str),
        broker_id=_broker_id(fields["brokerId"]),
        format_version=version,
        brokers=tuple(_broker_ref(ref) for ref in _typed(fields["brokers"], list)),
        metadata_broker_ids=tuple(_broker_id(broker_id) for broker_id in _typed(fields["metadataBrokers"], list)),
        fsync=_typed(fields["fsync"], bool),
        root_id=None if fields["rootId"] is None else _typed(fields["rootId"], str),
    )


def _check_root_file(root: RootFile) -> None:
    """Raise ValueError for values that no release wrote."""
    listed = [ref.broker_id for ref in root.brokers]
    metadata = root.metadata_broker_ids
    if root.format_version < 1:
        raise ValueError(f"it has version {root.format_version}")
    if HEX_ID.fullmatch(root.cluster_id) is None:
        raise ValueError("its cluster id is not 32 hex digits")
    if len(set(listed)) != len(listed) or len(set(metadata)) != len(metadata):
        raise ValueError("it lists a broker twice")
    if len({ref.url for ref in root.brokers}) != len(listed):
        raise ValueError("it lists a URL twice")
    if root.broker_id not in listed or not metadata or not set(listed).issuperset(metadata):
        raise ValueError("it names brokers that it does not list")


def _broker_ref(fields: object) -> Broker:
    ref = _typed(fields, dict)
    url, rack = _typed(ref["url"], str), ref["rack"]
    if not can_list(url):
        raise ValueError(f"it lists the URL {url!r}")
    return Broker(_broker_id(ref["id"]), url, None if rack is None else _typed(rack, str))


def _broker_id(value: object) -> BrokerId:
    number: int = _typed(value, int)
    if not 0 <= number <= BROKER_ID_MAX:
        raise ValueError("it has a broker id out of range")
    return number


def _typed(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise ValueError(f"it has a {type(value).__name__} where a {kind.__name__} belongs")
    return value


OPEN_TIMEOUT_SECONDS = 15.0
OPEN_GRACE_SECONDS = 2.0
"""Once one root file is read, a root that does not answer delays the open by at most this."""

_NO_VOTE = (CorruptDataError, UnsupportedFormatError)

ReadRoot = RootFile | None | ReplogError
"""Result of reading one root: its file, None if it has none, or the error."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """The root files that agree, by root URL; and for each one that is not used, the reason, by root URL."""

    roots: dict[str, RootFile]
    deviating: dict[str, str]


def agree(read: Mapping[str, ReadRoot]) -> Agreement:
    """Compare all root files that were read: more than half of the readable ones must agree.

    Source: ADR 17. A damaged file has no vote.

    Raises:
        InvalidConfigError: REPLOG_CLUSTER_MISMATCH: they disagree, and no side has a majority.
    """
    votes: dict[RootFile, dict[str, RootFile]] = {}
    deviating = {url: str(error.args[0]) for url, error in read.items() if isinstance(error, _NO_VOTE)}
    for url, root in read.items():
        if isinstance(root, RootFile):
            votes.setdefault(replace(root, broker_id=0, root_id=None), {})[url] = root
    if not votes:
        return Agreement({}, deviating)
    shared, roots = max(votes.items(), key=lambda vote: len(vote[1]))
    for other, others in votes.items():
        if other == shared:
            continue
        url, difference = next(iter(others)), _difference(other, shared)
        if len(roots) < majority_of(sum(map(len, votes.values()))):
            raise InvalidConfigError(
                ErrorCode.REPLOG_CLUSTER_MISMATCH,
                f"the root files disagree, and no side has a majority: that of {url} has {difference} as "
                f"{next(iter(roots))}. {_PUT_BACK}",
            )
        deviating.update(dict.fromkeys(others, f"replog.json has {difference} as the other roots"))
    at_home = {root.broker_id for url, root in roots.items() if place_of(url, root) == root.broker_id}
    for url, root in list(roots.items()):
        recorded = place_of(url, root)
        recorded = root.broker_id if recorded is None else recorded
        if recorded != root.broker_id and root.broker_id in at_home:  # a copy of another root's file in its place
            deviating[url] = f"replog.json has broker id {root.broker_id}, and the cluster has broker {recorded} there"
            del roots[url]
            if not roots:
                raise InvalidConfigError(ErrorCode.REPLOG_CLUSTER_MISMATCH, f"{deviating[url]}. {_PUT_BACK}", url=url)
    return Agreement(roots, deviating)


def place_of(url: str, root: RootFile) -> BrokerId | None:
    """Return the broker whose place a URL is, as its root file records; None for a place that it does not record."""
    return {resolve_url(ref.url, url): ref.broker_id for ref in root.brokers}.get(url)


def _difference(root: RootFile, other: RootFile) -> str:
    """Return the first field that differs, as text that follows "it has"."""
    if root.cluster_id != other.cluster_id:
        return f"another cluster id ({root.cluster_id}, not {other.cluster_id})"
    if root.metadata_broker_ids != other.metadata_broker_ids:
        return f"other metadata brokers ({root.metadata_broker_ids}, not {other.metadata_broker_ids})"
    if root.fsync != other.fsync:
        return f"another storage.fsync ({root.fsync}, not {other.fsync})"
    return "another list of brokers"


def split_path(path: str) -> list[str]:
    """Return the normalised URLs of a comma separated path, each once, in order; without one, REPLOG_MISSING_OPTION."""
    urls = list(dict.fromkeys(normalise_url(part) for part in path.split(",") if part.strip()))
    if not urls:
        raise InvalidConfigError(
            ErrorCode.REPLOG_MISSING_OPTION, "no store path. Give a directory, or root URLs with commas."
        )
    return urls


def read_root(store: ObjectStore) -> RootFile | None:
    """Return a root's root file; None without one. Raises as ``decode_root_file``, and what the root fails with."""
    try:
        data = store.get(ROOT_FILE_KEY, size_bytes=ROOT_FILE_BYTES_MAX + 1)
    except RetriableError as error:
        if error.code is ErrorCode.REPLOG_ROOT_STALE:  # the directory itself is missing
            return None
        raise
    return None if data is None else decode_root_file(data, url=store.url)


def read_roots(
    urls: Sequence[str],
    storage_options: Mapping[str, str],
    *,
    lane: str | None = None,
    deadline_ms: int = 0,
    is_any_known: bool = False,
    calls: CallCounter | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> dict[str, ReadRoot]:
    """Read root files in parallel; roots that do not answer in time count as unavailable.

    Args:
        lane: I/O lane of all reads, for roots that fail together; by default each root has its own.
        deadline_ms: how long a failed read is repeated; 0: one attempt each.
        is_any_known: whether a root file was read before: then the wait is ``OPEN_GRACE_SECONDS``.
        calls: counts the reads.

    Raises:
        InvalidConfigError: REPLOG_UNSUPPORTED_STORE.
    """
    pending: dict[str, Future[RootFile | None]] = {}
    for url in urls:
        store = RetryingStore(open_store(url, storage_options), deadline_ms=deadline_ms, calls=calls)
        pending[url] = IO_POOL.submit_to(lane or url, read_root, store)
    timeout = OPEN_GRACE_SECONDS if is_any_known else OPEN_TIMEOUT_SECONDS
    # The grace begins with the first root that has the file: many slow ones must not add up.
    answers_of(
        pending,
        timeout * 1000,
        needed_count=1,
        counts=lambda root: root is not None,
        grace_ms=OPEN_GRACE_SECONDS * 1000,
        clock=clock,
    )
    return {url: _outcome_of(url, future) for url, future in pending.items()}


def _outcome_of(url: str, future: Future[RootFile | None]) -> ReadRoot:
    if not future.done():
        return RetriableError(
            ErrorCode.REPLOG_STORE_UNAVAILABLE,
            "the root does not answer. Check its mount or network.",
            url=url,
        )
    error = future.exception()
    if error is None:
        return future.result()
    if isinstance(error, InvalidConfigError) or not isinstance(error, ReplogError):
        raise error
    return error


def parent_url(url: str) -> str:
    """Return the parent folder of a root, "" if the URL has none."""
    scheme, _, rest = url.partition("://")
    parent = rest.rpartition("/")[0]
    return f"{scheme}://{parent}" if parent or scheme == "file" else ""


def resolve_url(recorded: str, root_url: str) -> str:
    """Return the absolute form of a recorded URL, relative to the root whose file names it."""
    return recorded if "://" in recorded else f"{parent_url(root_url)}/{recorded}"
