"""Looking at roots: splitting a path, reading root files in parallel, absolute and relative URLs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, wait

from spark_replog.errors import ErrorCode, InvalidConfigError, ReplogError, RetriableError
from spark_replog.storage.io_pool import io_pool
from spark_replog.storage.object_store import ObjectStore
from spark_replog.storage.open_store import normalise_url, open_store
from spark_replog.storage.paths import ROOT_FILE_KEY
from spark_replog.storage.retrying_store import RetryingStore
from spark_replog.storage.root_file import RootFile, decode_root_file

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


__all__ = ["ReadRoot", "parent_url", "read_root", "read_roots", "resolve_url", "split_path"]
