"""Base of the object stores reached through fsspec: one file system per process; what an error means for a call.

Only fsspec classes that a subclass names are used. A check-then-write ``mode="create"`` passes every
sequential test, so an unknown class is refused by name instead of probed.
"""

from __future__ import annotations

import hashlib
import json
import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import fsspec

from spark_replog.errors import (
    ErrorCode,
    InvalidConfigError,
    OutcomeUnknownError,
    ReplogError,
    RetriableError,
)
from spark_replog.process_state import in_each_child
from spark_replog.storage.client_errors import (
    Apart,
    causes_of,
    describe,
    error_code_of,
    is_told_absent,
    remedy,
    shown,
    status_of,
)
from spark_replog.storage.object_store import Buffer, CreateOutcome, ObjectInfo, check_key
from spark_replog.storage.parts import ONE_REQUEST_BYTES_MAX, PART_SIZE_BYTES, NoPartsError, Part, parts_of, run_on
from spark_replog.storage.paths import is_data_key

# Our own loop repeats calls, with a deadline; a client that also repeats only hides time.
CONNECT_SECONDS = 5
READ_SECONDS = 10
_REPEATED_STATUSES = frozenset({408, 409, 425, 429})
"""Client errors that mean "not decided" rather than "never"."""
_OPTION_TEXTS = ("'str' object has no attribute", "Invalid endpoint: ")
"""Errors of a text option that should be a mapping, and botocore's ValueError for an endpoint that is not a URL."""
_REFUSED_CLASSES = (PermissionError, FileNotFoundError, NotImplementedError)
_REFUSED_NAMES = frozenset(
    {"NoCredentialsError", "PartialCredentialsError", "ClientAuthenticationError", "ParamValidationError"}
)

CLIENTS_MAX = 16
"""The newest file systems that a process keeps open, used or not: each takes megabytes, and each new token needs one.
All roots with the same options share one."""
_newest: dict[str, Any] = {}
"""By a digest of class and options, which may hold secrets; the one used last comes last."""
_alive: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
"""All that anything uses: a forked child must not release them."""
_inherited: list[Any] = []
"""The parent's, kept for ever in a forked child. If it released one, its clean-up would close connections in the event
poll that the child SHARES with its parent, and the parent would wait for answers for ever."""


@in_each_child
def _keep_inherited() -> None:
    _inherited.extend(_alive.values())
    _alive.clear()
    _newest.clear()


def kept_file_system(name: str, make: Callable[[], Any]) -> Any:
    """Return the file system with this digest of class and options, made if none is open."""
    # No lock: a forked child could inherit it held. If two threads make one, both work.
    file_system = _newest.pop(name, None) or make()
    _newest[name] = file_system
    for oldest in list(_newest)[:-CLIENTS_MAX]:
        _newest.pop(oldest, None)
    return file_system


class FsspecStore:
    """An ObjectStore over one of the proven fsspec classes that the subclass names.

    Keeps settings only; the file system is made on first use in each process, because the
    async ones refuse to work in a forked child.

    Args:
        storage_options: the file system's own options; JSON text for nested ones.
    """

    protocol: ClassVar[str]
    extra: ClassVar[str]
    classes: ClassVar[frozenset[str]]
    size_bytes_max: ClassVar[int] = 1 << 30
    """Largest object. Each service takes this in one request."""
    has_parts: ClassVar[bool] = False
    """Whether a body can be sent in parts, of which the last request has the condition of a put."""
    one_request_bytes_max: ClassVar[int] = ONE_REQUEST_BYTES_MAX
    part_size_bytes: ClassVar[int] = PART_SIZE_BYTES
    is_taken_forbidden: ClassVar[bool] = False
    """Whether the service answers "forbidden" if the name is taken and the caller may create but not overwrite."""

    def __init__(self, url: str, storage_options: Mapping[str, str]) -> None:
        self.url = url
        self._storage_options = dict(storage_options)
        self._root = ""
        self._file_system: tuple[int, Any] | None = None
        self._is_always_in_parts = False
        self._is_refused_parts = False

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.url, self._storage_options)

    def get(self, key: str, *, start: int = 0, size_bytes: int | None = None) -> Buffer | None:
        """As ``ObjectStore.get``: one ranged request."""
        if size_bytes == 0:
            return None if self.get(key, start=start, size_bytes=1) is None else b""
        try:
            end = None if size_bytes is None else start + size_bytes
            with Apart():
                body: Buffer = self.file_system().cat_file(self._path(key), start=start, end=end)
            if size_bytes is not None and len(body) > size_bytes:
                raise OSError(f"got {len(body)} of {size_bytes} bytes")
            return body
        except ReplogError:
            raise
        except Exception as error:
            status = status_of(error)
            if status == 416:  # the range starts at or after the end
                return b""
            if self._is_absent(error, status):
                return None
            raise self._read_failed(error, key) from shown(error)

    def create(self, key: str, data: Buffer | Sequence[Buffer], *, make_parent: bool = False) -> CreateOutcome:
        """As ``ObjectStore.create``: one conditional request, or parts of which the last request is conditional.

        EXISTS may mean this call's own bytes: clients repeat a request whose answer was lost.
        """
        pieces = (data,) if isinstance(data, Buffer) else data
        size_bytes = sum([memoryview(piece).nbytes for piece in pieces])
        if size_bytes > self.size_bytes_max:
            raise ReplogError(
                ErrorCode.REPLOG_STORE_REFUSED,
                f"an object of {size_bytes} bytes is too large. Lower max.request.size below {self.size_bytes_max}.",
                url=self.url,
                key=key,
            )
        try:
            with Apart():
                if not self._put_in_parts(key, pieces, size_bytes):
                    self._put(key, b"".join(pieces), make_parent=make_parent)
        except ReplogError:
            raise
        except Exception as error:
            return self._judge_create_error(error, key)
        return CreateOutcome.CREATED

    def in_parts(self) -> FsspecStore | None:
        """Return the same root as a store that sends every body in parts, however small; None: it has none.

        For the probe: what it finds out holds for a large ``create``, which takes the same path.
        """
        if not self.has_parts:
            return None
        made = type(self)(self.url, self._storage_options)
        made._is_always_in_parts = True
        return made

    def make_folder(self, key_prefix: str) -> None:
        """Do nothing: an object store has no folders."""

    def list_keys(self, prefix: str, *, after: str = "") -> Iterator[ObjectInfo]:
        """As ``ObjectStore.list_keys``."""
        try:
            with Apart():
                objects = self._find(prefix, after)
        except ReplogError:
            raise
        except Exception as error:
            if self._is_absent(error, status_of(error)):
                return iter(())
            raise self._read_failed(error, prefix) from shown(error)
        wanted = (info for info in objects if info.key.startswith(prefix) and info.key > after)
        return iter(sorted(wanted, key=lambda info: info.key))

    def delete(self, key: str) -> None:
        """As ``ObjectStore.delete``."""
        if key.endswith("/"):
            return
        try:
            with Apart():
                self.file_system().rm_file(self._path(key))
        except ReplogError:
            raise
        except Exception as error:
            if not self._is_absent(error, status_of(error)):
                raise self._read_failed(error, key) from shown(error)

    def file_system(self) -> Any:
        """Return this process's file system. Raises REPLOG_INVALID_OPTION if it does not accept these options."""
        made = self._file_system
        if made is not None and made[0] == os.getpid():
            return made[1]
        file_system = self._make_file_system()
        _alive[id(file_system)] = file_system
        self._file_system = (os.getpid(), file_system)
        return file_system

    def check_client(self) -> None:
        """Check that the root's client is available: see ``file_system_class``. There is none to choose."""
        if "client" in self._storage_options:
            raise InvalidConfigError(
                ErrorCode.REPLOG_INVALID_OPTION,
                f"storage.client: there is one client for {self.protocol}://. Remove the option.",
                url=self.url,
            )
        self.file_system_class()

    def file_system_class(self) -> Any:
        """Return the proven fsspec class that serves the scheme here.

        Raises REPLOG_UNSUPPORTED_STORE if its package is missing, or another class serves the scheme.
        """
        try:
            cls = fsspec.get_filesystem_class(self.protocol)
        except ImportError as error:
            text = f"needs a package that is not installed: {error}. Run: pip install 'spark-replog[{self.extra}]'."
            raise self._unsupported(f"{self.protocol}:// {text}") from error
        name = f"{cls.__module__}.{cls.__qualname__}"
        if name not in self.classes:
            proven = " or ".join(sorted(self.classes))
            text = f"is served by {name} here, whose create-if-absent is not proven. Use {proven}."
            raise self._unsupported(f"{self.protocol}:// {text}")
        return cls

    def _make_file_system(self) -> Any:
        cls = self.file_system_class()
        try:
            options = {**cls._get_kwargs_from_urls(self.url), **self._file_system_options()}
            self._root = cls._strip_protocol(self.url).rstrip("/")
            name = hashlib.sha256(json.dumps([str(cls), options], sort_keys=True, default=repr).encode()).hexdigest()
            return kept_file_system(name, lambda: self._prepared(cls(**{**options, "skip_instance_cache": True})))
        except ImportError as error:
            text = f"need a package that is not installed: {error}. Install it."
            raise self._unsupported(f"the storage options of {self.protocol}:// {text}") from error
        except (TypeError, ValueError) as error:
            raise self._wrong_options(error) from shown(error)

    def _file_system_options(self) -> dict[str, Any]:
        """Return the options, typed, with the listing cache off, since it misses other writers' objects."""
        return {name: _typed(name, value) for name, value in self._storage_options.items()} | {
            "use_listings_cache": False
        }

    def _prepared(self, file_system: Any) -> Any:
        return file_system

    def _path(self, key: str) -> str:
        check_key(key, self.url)
        self.file_system()
        return f"{self._root}/{key}"

    def _folder_path(self, folder: str) -> str:
        self.file_system()
        return self._path(folder.strip("/")) if folder.strip("/") else self._root or "/"

    def _put(self, key: str, body: bytes, *, make_parent: bool) -> None:
        self.file_system().pipe_file(self._path(key), body, mode="create", **self._one_request(len(body)))

    def _put_in_parts(self, key: str, pieces: Sequence[Buffer], size_bytes: int) -> bool:
        """Create the object from parts; return False if it must be one request.

        Only data objects, whose names no two writers share (``paths.object_name``). So no log depends on whether a
        service that keeps a put's condition keeps that of the last part too.
        """
        is_large = size_bytes > self.one_request_bytes_max and is_data_key(key)
        if not self.has_parts or self._is_refused_parts or not (self._is_always_in_parts or is_large):
            return False
        path, client = self._path(key), self.file_system()
        parts = parts_of(pieces, self.part_size_bytes)
        try:
            run_on(client.loop, lambda: self.create_in_parts(client, path, parts))
        except NoPartsError:
            self._is_refused_parts = True  # for as long as this store: each try may send megabytes for nothing
            return False
        return True

    async def create_in_parts(self, client: Any, path: str, parts: Sequence[Part]) -> None:
        """Create an object from parts if its name is free, on the client's event loop; only where ``has_parts``.

        Nothing of it is visible before the last request.

        Raises:
            NoPartsError: the service takes no parts here, or no condition with them. Nothing is visible.
            Exception: the client's. Before the last request it means that nothing was created; one of the last request
                is judged as that of a put is.
        """
        raise NoPartsError

    def _one_request(self, size_bytes: int) -> dict[str, int]:
        """Return the argument that makes the client send the body in one request: from 50 MiB on it would use parts."""
        return {"chunksize": size_bytes + 1}

    def _find(self, prefix: str, after: str) -> list[ObjectInfo]:
        self.file_system()  # knows the root
        cut = len(self._root) + 1
        return [
            ObjectInfo(name[cut:], size_bytes)
            for name, size_bytes in self._listed(prefix, after)
            if not name.endswith("/")  # a console's folder marker
        ]

    def _listed(self, prefix: str, after: str) -> Iterable[tuple[str, int]]:
        """Yield full names and sizes; the caller must filter them.

        Object stores override this: the clients' ``find`` sends up to three more requests, to learn whether a folder
        without objects is an object or a folder.
        """
        folder, _, start_of_name = prefix.rpartition("/")
        narrowed = {"prefix": start_of_name} if start_of_name else {}
        listing = self.file_system().find(self._folder_path(folder), detail=True, **narrowed)
        return [(name, int(info["size"])) for name, info in listing.items()]

    def _bucket_and_start(self, prefix: str) -> tuple[str, str]:
        bucket, _, start = f"{self._root}/{prefix}".partition("/")
        return bucket, start

    def _is_absent(self, error: Exception, status: int | None) -> bool:
        if error_code_of(error) in ("NoSuchBucket", "ContainerNotFound"):
            raise RetriableError(
                ErrorCode.REPLOG_ROOT_STALE, "the bucket does not exist. Check its name.", url=self.url
            ) from shown(error)
        return status == 404 or (status is None and is_told_absent(error))

    def _is_existing(self, error: Exception, status: int | None) -> bool:
        return status == 412 or (status is None and isinstance(error, FileExistsError))

    def _is_refused(self, error: Exception, status: int | None) -> bool:
        if status is None:
            names = {type(cause).__name__ for cause in causes_of(error)}
            return isinstance(error, _REFUSED_CLASSES) or not _REFUSED_NAMES.isdisjoint(names)
        return status == 501 or (400 <= status < 500 and status not in _REPEATED_STATUSES)

    def _check_options(self, error: Exception) -> None:
        # Clients check their options on the first request; no server's answer causes these errors.
        if isinstance(error, TypeError) or str(error).startswith(_OPTION_TEXTS):
            raise self._wrong_options(error) from shown(error)

    def _unsupported(self, text: str) -> InvalidConfigError:
        return InvalidConfigError(ErrorCode.REPLOG_UNSUPPORTED_STORE, text, url=self.url)

    def _wrong_options(self, error: Exception) -> InvalidConfigError:
        return InvalidConfigError(
            ErrorCode.REPLOG_INVALID_OPTION,
            f"the client of {self.protocol}:// does not take these storage options: {error}. Correct them.",
            url=self.url,
            options=sorted(self._storage_options),
        )

    def _judge_create_error(self, error: Exception, key: str) -> CreateOutcome:
        self._check_options(error)
        status = status_of(error)
        if self._is_existing(error, status):
            return CreateOutcome.EXISTS
        if self._is_refused(error, status):
            if self.is_taken_forbidden and self._is_forbidden(error, status) and self._holds(key):
                return CreateOutcome.EXISTS
            raise ReplogError(
                ErrorCode.REPLOG_STORE_REFUSED,
                f"the store refused the write ({describe(error, status)}). {remedy(error, status)}",
                url=self.url,
                key=key,
            ) from shown(error)
        raise OutcomeUnknownError(
            ErrorCode.REPLOG_STORE_OUTCOME_UNKNOWN,
            f"the store did not confirm the write ({describe(error, status)}). Repeat the call.",
            url=self.url,
            key=key,
        ) from shown(error)

    def _is_forbidden(self, error: Exception, status: int | None) -> bool:
        return status == 403

    def _holds(self, key: str) -> bool:
        try:
            return self.get(key, size_bytes=1) is not None
        except ReplogError:
            return False

    def _read_failed(self, error: Exception, key: str) -> RetriableError:
        self._check_options(error)
        status = status_of(error)
        if self._is_refused(error, status):
            return RetriableError(
                ErrorCode.REPLOG_STORE_REFUSED,
                f"the store refused access ({describe(error, status)}). {remedy(error, status)}",
                url=self.url,
                key=key,
            )
        return RetriableError(
            ErrorCode.REPLOG_STORE_UNAVAILABLE,
            f"the store does not answer ({describe(error, status)}). Check network and endpoint.",
            url=self.url,
            key=key,
        )


_NUMBER_NAMES = ("timeout", "size", "concurrency", "blocksize", "_time", "retries", "max_paths")
"""Endings of the names of numeric options. Other numerals stay text: a key or an account may be one."""

_TEXT_NAMES = frozenset(
    {"key", "secret", "username", "user", "password", "account_name", "account_key", "connection_string", "sas_token"}
    | {"client_id", "client_secret", "tenant_id", "profile", "project"}
)
"""Names of options that every client takes as text: a password may begin with '[' and a user's name be True."""


def _typed(name: str, value: Any) -> Any:
    """Convert an option from text, the only type that Spark passes: JSON if nested, true and false, numbers by name."""
    if not isinstance(value, str) or name in _TEXT_NAMES:
        return value
    if name == "token":  # gcsfs takes the fields of a service account too
        return json.loads(value) if value.startswith("{") else value
    if name.endswith(_NUMBER_NAMES):
        return _number(value)
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    if value[:1] in ("{", "["):
        return json.loads(value)
    return value


def _number(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
