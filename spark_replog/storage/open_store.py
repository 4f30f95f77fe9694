"""From a root's URL to its store: one primitive per backend, everything else refused by name."""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import MappingProxyType

from spark_replog.errors import ErrorCode, InvalidConfigError
from spark_replog.storage.memory_store import MemoryStore
from spark_replog.storage.object_store import ObjectStore
from spark_replog.storage.posix_store import PosixStore

_NO_OPTIONS: Mapping[str, str] = MappingProxyType({})
SUPPORTED = (
    "a local or NFS path, file://, s3:// (s3a://), gs:// (gcs://), abfs:// (abfss://, az://), "
    "webhdfs://, memory://"
)


def normalise_url(url: str) -> str:
    """Return a root's URL in the one form that is compared and recorded: no trailing slash.

    A bare path becomes ``file://`` plus its absolute form.
    """
    text = url.strip()
    if "://" not in text:
        text = text.removeprefix("file:")
        return f"file://{os.path.abspath(os.path.expanduser(text))}"
    scheme, _, rest = text.partition("://")
    scheme = scheme.lower()
    if scheme == "file":
        return f"file://{os.path.abspath(rest)}"
    return f"{scheme}://{rest.rstrip('/')}"


def scheme_of(url: str) -> str:
    """Return the scheme of a normalised URL."""
    return url.partition("://")[0]


def open_store(
    url: str, storage_options: Mapping[str, str] = _NO_OPTIONS, *, fsync: bool = True
) -> ObjectStore:
    """Return the raw store of a root: no retries, one attempt per call.

    Opens nothing yet: connections are made on first use, per process id.

    Args:
        url: root URL or a bare path.
        storage_options: the fsspec file system's own options; local and memory roots take none.
        fsync: False gives up durability on local roots (throw-away stores).

    Raises:
        InvalidConfigError: REPLOG_UNSUPPORTED_STORE: no proven create-if-absent for this scheme.
    """
    url = normalise_url(url)
    scheme = scheme_of(url)
    if scheme == "file":
        return PosixStore(url, fsync=fsync)
    if scheme == "memory":
        return MemoryStore(url)
    raise InvalidConfigError(
        ErrorCode.REPLOG_UNSUPPORTED_STORE,
        f"no create-if-absent is proven for {scheme}://. Use one of: {SUPPORTED}.",
        url=url,
    )


__all__ = ["SUPPORTED", "normalise_url", "open_store", "scheme_of"]
