"""``replog.json``: what a root is. JSON, write-once, first thing on every root."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Any

from spark_replog.errors import (
    CorruptDataError,
    ErrorCode,
    InvalidConfigError,
    ReplogError,
    RetriableError,
    UnsupportedFormatError,
)
from spark_replog.ids import BrokerId
from spark_replog.storage.io_pool import io_pool
from spark_replog.storage.object_store import Buffer, ObjectStore
from spark_replog.storage.open_store import normalise_url, open_store
from spark_replog.storage.paths import ROOT_FILE_KEY
from spark_replog.storage.retrying_store import RetryingStore

FORMAT_VERSION = 1
_FORMAT = "replog-root"


@dataclass(frozen=True, slots=True)
class BrokerRef:
    """One initial broker as a root file names it."""

    broker_id: BrokerId
    url: str
    """Absolute, or relative to the folder that holds this root where they share it (``broker-1``)."""
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class RootFile:
    """What one root says about itself and its cluster."""

    cluster_id: str
    broker_id: BrokerId
    format_version: int
    brokers: tuple[BrokerRef, ...]
    metadata_broker_ids: tuple[BrokerId, ...]
    fsync: bool


def metadata_broker_ids(broker_count: int) -> tuple[BrokerId, ...]:
    """Return which brokers hold journals: the first 1, 2, 3, 3, then 5 of 1, 2, 3, 4, 5 and more."""
    count = broker_count if broker_count <= 3 else 3 if broker_count == 4 else 5
    return tuple(range(count))


def encode_root_file(root: RootFile) -> bytes:
    """Return the JSON text, UTF-8, equal for equal values."""
    fields = {
        "format": _FORMAT,
        "version": root.format_version,
        "clusterId": root.cluster_id,
        "brokerId": root.broker_id,
        "brokers": [{"id": ref.broker_id, "url": ref.url, "rack": ref.rack} for ref in root.brokers],
        "metadataBrokers": list(root.metadata_broker_ids),
        "fsync": root.fsync,
    }
    return (json.dumps(fields, indent=2) + "\n").encode()


def decode_root_file(data: Buffer, *, url: str) -> RootFile:
    """Read a root file.

    Args:
        data: the file's bytes.
        url: the root, for error texts.

    Raises:
        CorruptDataError: CORRUPT_MESSAGE: not a root file, or a broken one.
        UnsupportedFormatError: UNSUPPORTED_VERSION: written by a newer release.
    """
    try:
        fields = json.loads(bytes(data))
        if fields["format"] != _FORMAT:
            raise ValueError(f"format is {fields['format']!r}")
        version = int(fields["version"])
        if version > FORMAT_VERSION:
            raise UnsupportedFormatError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"the root has format version {version}, this release reads up to {FORMAT_VERSION}. "
                "Upgrade spark-replog.",
                url=url,
            )
        return _root_file(fields, version)
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptDataError(
            ErrorCode.CORRUPT_MESSAGE,
            f"replog.json is damaged: {error}. Put this root's own replog.json back from a backup.",
            url=url,
        ) from error


def _root_file(fields: dict[str, Any], version: int) -> RootFile:
    root = RootFile(
        cluster_id=str(fields["clusterId"]),
        broker_id=int(fields["brokerId"]),
        format_version=version,
        brokers=tuple(BrokerRef(int(ref["id"]), str(ref["url"]), ref["rack"]) for ref in fields["brokers"]),
        metadata_broker_ids=tuple(int(broker_id) for broker_id in fields["metadataBrokers"]),
        fsync=bool(fields["fsync"]),
    )
    known = {ref.broker_id for ref in root.brokers}
    if root.broker_id not in known or not root.metadata_broker_ids or not known.issuperset(root.metadata_broker_ids):
        raise ValueError("it names brokers that it does not list")
    return root


OPEN_TIMEOUT_SECONDS = 15.0
OPEN_GRACE_SECONDS = 2.0
"""Once one root has said who the others are, a hung one is waited for no longer than this."""

ReadRoot = RootFile | None | ReplogError
"""What a look at one root gave: its file, its absence, or why nobody knows."""


def split_path(path: str) -> list[str]:
    """Return the normalised URLs of a comma separated path, each once, in order.

    Raises:
        InvalidConfigError: REPLOG_MISSING_OPTION: nothing in it.
    """
    urls = list(dict.fromkeys(normalise_url(part) for part in path.split(",") if part.strip()))
    if not urls:
        raise InvalidConfigError(
            ErrorCode.REPLOG_MISSING_OPTION, "no store path. Give a directory, or root URLs with commas."
        )
    return urls


def read_root(store: ObjectStore) -> RootFile | None:
    """Return what a root says it is; None where it says nothing.

    Raises:
        RetriableError, CorruptDataError, UnsupportedFormatError: see ``decode_root_file``.
    """
    try:
        data = store.get(ROOT_FILE_KEY)
    except RetriableError as error:
        if error.code is ErrorCode.REPLOG_ROOT_STALE:  # the directory itself is not there
            return None
        raise
    return None if data is None else decode_root_file(data, url=store.url)


def read_roots(
    urls: Sequence[str], storage_options: Mapping[str, str], *, lane: str | None = None, deadline_ms: int = 0
) -> dict[str, ReadRoot]:
    """Look at roots in parallel; hung ones count as unavailable.

    Args:
        urls: normalised root URLs.
        storage_options: fsspec options of the roots.
        lane: where all run, for roots that share a fate; by default each has its own.
        deadline_ms: how long a failed look is repeated; 0: one attempt each.

    Raises:
        InvalidConfigError: REPLOG_UNSUPPORTED_STORE.
    """
    pending: dict[str, Future[RootFile | None]] = {}
    for url in urls:
        store = RetryingStore(open_store(url, storage_options), deadline_ms=deadline_ms)
        pending[url] = io_pool().submit_to(lane or url, read_root, store)
    left = set(pending.values())
    timeout = OPEN_TIMEOUT_SECONDS
    while left:
        done, left = wait(left, timeout=timeout, return_when="FIRST_COMPLETED")
        if not done:
            break
        if any(future.exception() is None and future.result() is not None for future in done):
            timeout = min(timeout, OPEN_GRACE_SECONDS)
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
    """Return the folder that holds a root, "" where the URL has no room for one."""
    scheme, _, rest = url.partition("://")
    parent = rest.rpartition("/")[0]
    return f"{scheme}://{parent}" if parent or scheme == "file" else ""


def resolve_url(recorded: str, root_url: str) -> str:
    """Return the absolute URL of a recorded one, seen from the root whose file names it."""
    return recorded if "://" in recorded else f"{parent_url(root_url)}/{recorded}"


__all__ = [
    "BrokerRef",
    "FORMAT_VERSION",
    "ReadRoot",
    "RootFile",
    "decode_root_file",
    "encode_root_file",
    "metadata_broker_ids",
    "parent_url",
    "read_root",
    "read_roots",
    "resolve_url",
    "split_path",
]
