"""Opens the store of a root's URL: one create-if-absent primitive per backend; other schemes are refused by name."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING

from spark_replog.errors import ErrorCode, InvalidConfigError
from spark_replog.storage.memory_store import MemoryStore
from spark_replog.storage.object_store import ObjectStore
from spark_replog.storage.posix_store import PosixStore

if TYPE_CHECKING:
    from spark_replog.storage.fsspec_store import FsspecStore

NEAR_SCHEMES = frozenset({"file", "memory"})
"""Of roots that need no network. A mounted network disk counts as near: its URL does not show it."""


def options_of_root(
    url: str, storage_options: Mapping[str, str], schemes: Collection[str], aliases: Mapping[str, str]
) -> dict[str, str]:
    """Return the options of one root without their scope.

    ``NAME`` is for every root, ``SCHEME.NAME`` for roots of that scheme, ``URL.NAME`` for the root at that URL
    and those below it. The narrower scope wins; of two URLs, the longer. Scopes ignore case, since Spark passes option
    names in lower case. Any other scope is REPLOG_INVALID_OPTION.

    Args:
        storage_options: as the user gave them, without the ``storage.`` prefix.
        schemes: those that take options, which may have other names, the aliases.
    """
    ranked: list[tuple[int, str, str]] = []
    for key, value in storage_options.items():
        scope, _, name = key.rpartition(".")
        scheme, mark, rest = scope.lower().rstrip("/").partition("://")
        scheme = aliases.get(scheme, scheme)
        if scope and (not name or scheme not in schemes or (mark and not rest)):
            raise InvalidConfigError(
                ErrorCode.REPLOG_INVALID_OPTION,
                f"storage.{key}: Unknown kind of storage '{scope}'. Write storage.NAME for all roots, "
                f"storage.SCHEME.NAME for those of one scheme ({', '.join(schemes)}), or "
                "storage.SCHEME://PLACE.NAME for one root.",
            )
        if _is_meant(url.lower(), scheme, f"{scheme}{mark}{rest}" if mark else ""):
            ranked.append((len(scope) and 1 + len(rest), name, value))
    return {name: value for _, name, value in sorted(ranked, key=lambda option: option[0])}


def _is_meant(url: str, scheme: str, place: str) -> bool:
    if place:
        return url == place or url.startswith(f"{place}/")
    return not scheme or url.startswith(f"{scheme}://")


_SINGLE_SLASH_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
_PLACE = re.compile(r"arn:.*|(?:[^:]*@)?(?:\[[^]]*\]|[^:]*)(?::[0-9]+)?")
"""A bucket, a container or a host, maybe with a user before it: no login that a slash in its password has cut off."""
_NO_OPTIONS: Mapping[str, str] = MappingProxyType({})
_REMOTE_STORES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "s3": ("s3_store", "S3Store"),
        "gs": ("gcs_store", "GcsStore"),
        "abfs": ("azure_store", "AzureStore"),
        "webhdfs": ("webhdfs_store", "WebHdfsStore"),
    }
)
"""Module and class by scheme. Imported only when needed: importing fsspec takes longer than reading a root file."""
_ALIASES = MappingProxyType({"s3a": "s3", "gcs": "gs", "abfss": "abfs", "az": "abfs"})
SUPPORTED = (
    "a local or NFS path, file://, s3:// (s3a://), gs:// (gcs://), abfs:// (abfss://, az://), webhdfs://, memory://"
)


_SERVER = re.compile(
    r"(?:(?:PLAINTEXT|SSL|SASL_PLAINTEXT|SASL_SSL)://)?(?:\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}", re.IGNORECASE
)


def is_server_address(text: str) -> bool:
    """Return whether a text is ``host:port``, with or without a listener's name, as Kafka's clients take it."""
    return _SERVER.fullmatch(text.strip()) is not None


def normalise_url(url: str) -> str:
    """Return a root's URL in the form that is compared and recorded: one scheme per backend, no trailing slash.

    A bare path becomes ``file://`` plus its absolute form. REPLOG_UNSUPPORTED_STORE: a scheme with one slash
    (``dbfs:/x``), a file:// URL with another machine's name, a remote URL without a bucket, container or host.
    REPLOG_INVALID_OPTION: a path that is not UTF-8, or a remote URL with a query, a fragment, a part like '..', or a
    password, which the error does not show.
    """
    text = url.strip()
    try:
        text.encode()
    except UnicodeEncodeError:  # Python keeps bytes of a command line that are not UTF-8 as surrogates
        raise InvalidConfigError(
            ErrorCode.REPLOG_INVALID_OPTION, f"the path {os.fsencode(text)!r} is not UTF-8 text. Rename the folder."
        ) from None
    if "://" not in text:
        text = text.removeprefix("file:")
        if _SINGLE_SLASH_SCHEME.match(text):  # dbfs:/x, s3:/x: never meant as a local folder
            raise _unsupported(text.partition(":")[0], text)
        return f"file://{os.path.abspath(os.path.expanduser(text))}"
    scheme, _, rest = text.partition("://")
    scheme = _ALIASES.get(scheme.lower(), scheme.lower())
    if scheme == "file":
        host, slash, folder = rest.partition("/")
        if host.lower() not in ("", "localhost") or not slash:
            raise InvalidConfigError(
                ErrorCode.REPLOG_UNSUPPORTED_STORE,
                f"'{text}' names no folder of this machine: a host stands between file:// and the next slash. Write "
                "file:///FOLDER with three slashes, or a path without file://.",
            )
        return f"file://{os.path.abspath(f'/{folder}')}"
    place = rest.partition("/")[0]
    is_cut = scheme in _REMOTE_STORES and "@" in rest and _PLACE.fullmatch(place) is None
    if ":" in place.rpartition("@")[0] or is_cut:  # a password that has a slash itself
        raise InvalidConfigError(
            ErrorCode.REPLOG_INVALID_OPTION,
            f"the URL of a {scheme}:// root holds a password, which every root would record and errors would show. "
            "Give it as a storage option.",
        )
    if not place and scheme in _REMOTE_STORES:
        raise InvalidConfigError(
            ErrorCode.REPLOG_UNSUPPORTED_STORE,
            f"'{text}' names no bucket, container or host. Write {scheme}://PLACE/FOLDER with it as PLACE.",
        )
    rest = rest.rstrip("/")
    if scheme in _REMOTE_STORES and (set("?#") & set(rest) or not {"", ".", ".."}.isdisjoint(rest.split("/"))):
        raise InvalidConfigError(
            ErrorCode.REPLOG_INVALID_OPTION,
            f"'{text}' has a query, a fragment or an empty, '.' or '..' part, which services read in different ways. "
            "Write the root's URL without; options of a client are storage options.",
        )
    return f"{scheme}://{rest}"


def scheme_of(url: str) -> str:
    """Return the scheme of a normalised URL."""
    return url.partition("://")[0]


def is_far(url: str) -> bool:
    """Return whether each call to the root of a normalised URL goes over a network, as far as the URL tells."""
    return scheme_of(url) not in NEAR_SCHEMES


def open_store(url: str, storage_options: Mapping[str, str] = _NO_OPTIONS, *, fsync: bool = True) -> ObjectStore:
    """Return the raw store of a root: no retries, one attempt per call. Connections are made on first use, per process.

    Args:
        url: root URL or a bare path.
        storage_options: the fsspec file system's own options, some scoped to a scheme or a root
            (``options_of_root``); local and memory roots ignore them.
        fsync: False gives up durability on local roots (throw-away stores).

    Raises:
        InvalidConfigError: REPLOG_UNSUPPORTED_STORE: no proven create-if-absent for this scheme;
            REPLOG_INVALID_OPTION: a scope for a scheme that takes no options, or ``client``.
    """
    url = normalise_url(url)
    scheme = scheme_of(url)
    options = options_of_root(url, storage_options, _REMOTE_STORES, _ALIASES)
    if scheme == "file":
        return PosixStore(url, fsync=fsync)
    if scheme == "memory":
        return MemoryStore(url)
    remote = _REMOTE_STORES.get(scheme)
    if remote is not None:
        made: type[FsspecStore] = getattr(import_module(f"spark_replog.storage.{remote[0]}"), remote[1])
        store = made(url, options)
        store.check_client()  # fail here, not in a task, on a missing package or an unknown class
        return store
    raise _unsupported(scheme, url)


def _unsupported(scheme: str, url: str) -> InvalidConfigError:
    return InvalidConfigError(
        ErrorCode.REPLOG_UNSUPPORTED_STORE,
        f"no create-if-absent is proven for {scheme}://. Use one of: {SUPPORTED}.",
        url=url,
    )
