"""HDFS over WebHDFS: a temp file, then RENAME, whose boolean answer names the winner.

fsspec only provides the connection and authentication: its own create is check-then-write, its
rename drops the boolean, its writer shows an empty file first.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, ClassVar

from spark_replog.clock import SYSTEM_CLOCK
from spark_replog.errors import ErrorCode, OutcomeUnknownError, ReplogError
from spark_replog.ids import new_id
from spark_replog.storage.client_errors import Apart, shown, status_of
from spark_replog.storage.fsspec_store import FsspecStore
from spark_replog.storage.object_store import Buffer, ObjectInfo

TEMP_PREFIX = ".tmp-"
_CONNECT_SECONDS, _READ_SECONDS = 5, 30
_CONNECTIONS_MAX = 64
_MADE: set[tuple[str, str]] = set()
"""Roots and folders that this process has made, so that a write need not ask. A failed write forgets its folder."""
_MADE_MAX = 1000


class WebHdfsStore(FsspecStore):
    """An ObjectStore over a folder: ``webhdfs://namenode:port/folder``.

    As durable as HDFS: on all DataNodes of the pipeline, but in their memory until the OS flushes it,
    unless the cluster sets ``dfs.datanode.synconclose``.
    """

    protocol: ClassVar[str] = "webhdfs"
    extra: ClassVar[str] = "webhdfs"
    classes: ClassVar[frozenset[str]] = frozenset({"fsspec.implementations.webhdfs.WebHDFS"})

    def get(self, key: str, *, start: int = 0, size_bytes: int | None = None) -> Buffer | None:
        """As ``ObjectStore.get``; HDFS refuses a range that starts after the end."""
        try:
            with Apart():
                path = self._path(key)
                length = self._status(path)
                if length is None or start >= length:
                    return None if length is None else b""
                size_bytes = length - start if size_bytes is None else min(size_bytes, length - start)
                answer = self.file_system()._call("OPEN", path=path, offset=start, length=size_bytes)
                body: bytes = answer.content
                if len(body) != size_bytes:  # a part would make an own write look like another's
                    raise OSError(f"got {len(body)} of {size_bytes} bytes")
                return body
        except ReplogError:
            raise
        except FileNotFoundError:
            return None
        except Exception as error:
            raise self._read_failed(error, key) from shown(error)

    def make_folder(self, key_prefix: str) -> None:
        """As ``ObjectStore.make_folder``: HDFS has folders; only an empty prefix makes the root.

        Each folder below the root takes the mode of the one above it, as in ``PosixStore``. Raises REPLOG_STORE_REFUSED
        if the root is missing.
        """
        try:
            with Apart():
                parts = [part for part in key_prefix.split("/") if part]
                if not parts:
                    self.file_system()._call("MKDIRS", method="put", path=self._folder_path(""))
                for count in range(1, len(parts) + 1):
                    self._make_level(self._folder_path("/".join(parts[:count])))
        except FileNotFoundError as error:
            raise ReplogError(
                ErrorCode.REPLOG_STORE_REFUSED,
                "the root folder is missing. Bring it back, or run 'replog init' for a new store.",
                url=self.url,
            ) from error
        except ReplogError:
            raise
        except Exception as error:
            raise self._read_failed(error, key_prefix) from shown(error)

    def list_keys(self, prefix: str, *, after: str = "") -> Iterator[ObjectInfo]:
        """As ``ObjectStore.list_keys``, without temp files. HDFS lists only whole folders."""
        listing = super().list_keys(prefix.rpartition("/")[0] + "/" if "/" in prefix else "", after=after)
        return (
            info
            for info in listing
            if info.key.startswith(prefix) and not info.key.rpartition("/")[2].startswith(TEMP_PREFIX)
        )

    def delete(self, key: str) -> None:
        """As ``ObjectStore.delete``: HDFS refuses to delete a folder that is not empty."""
        try:
            with Apart():
                # The answer for an absent file is {"boolean": false}.
                self.file_system()._call("DELETE", method="delete", path=self._folder_path(key), recursive="false")
        except ReplogError:
            raise
        except Exception as error:
            if not key.endswith("/") and not isinstance(error, FileNotFoundError):
                raise self._read_failed(error, key) from shown(error)

    def sweep_temp_files(self, min_age_ms: int, *, is_dry_run: bool = False) -> int:
        """Remove, or only count, temp files of interrupted writers under the root; return their number.

        A writer that still uses so old a file has its rename refused, and nothing of it is visible. Their age is by the
        NameNode's clock; to count only, by this machine's, which writes nothing. Some files may be removed if the root
        then refuses, or does not answer, which raises.
        """
        swept_count = 0
        try:
            with Apart():
                temp_files = [
                    (name, int(status["modificationTime"]))
                    for name, status in self._walk(self._folder_path(""))
                    if status["pathSuffix"].startswith(TEMP_PREFIX)
                ]
                now_ms = 0 if not temp_files else SYSTEM_CLOCK.now_ms() if is_dry_run else self._name_node_now_ms()
                for name, made_ms in temp_files:
                    if now_ms - made_ms >= min_age_ms:
                        swept_count += is_dry_run or self._is_deleted(name)
        except ReplogError:
            raise
        except Exception as error:
            raise self._read_failed(error, "") from shown(error)
        return swept_count

    def _name_node_now_ms(self) -> int:
        """Return the NameNode's time: that of a new temp file without bytes, which needs no space on a DataNode."""
        path = f"{self._folder_path('')}/{TEMP_PREFIX}{new_id()}"
        try:
            self._write_temp(path, b"")
            answer = self.file_system()._call("GETFILESTATUS", path=path)
        finally:
            self._drop(path)
        return int(answer.json()["FileStatus"]["modificationTime"])

    def _is_deleted(self, path: str) -> bool:
        """Delete a file; return False if it is gone: its writer has renamed or removed it."""
        answer = self.file_system()._call("DELETE", method="delete", path=path, recursive="false")
        return bool(answer.json()["boolean"])

    def _listed(self, prefix: str, after: str) -> Iterable[tuple[str, int]]:
        folder = self._folder_path(prefix.rpartition("/")[0])
        return ((name, int(status["length"])) for name, status in self._walk(folder))

    def _walk(self, folder: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the path and the status of each file below a folder.

        fsspec's own walk silently skips folders whose listing fails.
        """
        folders = [folder]
        while folders:
            folder = folders.pop()
            try:
                answer = self.file_system()._call("LISTSTATUS", path=folder)
            except FileNotFoundError:  # it does not exist, or was deleted after its parent was read
                continue
            for status in answer.json()["FileStatuses"]["FileStatus"]:
                name = f"{folder.rstrip('/')}/{status['pathSuffix']}"
                if status["type"] == "DIRECTORY":
                    folders.append(name)
                elif status["pathSuffix"]:  # otherwise the folder itself is a file
                    yield name, status

    def _prepared(self, file_system: Any) -> Any:
        # Without a timeout, ``requests`` waits for ever.
        session, given = file_system.session, self._file_system_options()
        waits = given.get("connect_timeout", _CONNECT_SECONDS), given.get("read_timeout", _READ_SECONDS)
        if not isinstance(session.request, functools.partial):
            session.request = functools.partial(session.request, timeout=waits)
            for scheme in ("http://", "https://"):  # above 10, the default, connections end that are needed again
                session.mount(scheme, type(session.get_adapter(scheme))(pool_maxsize=_CONNECTIONS_MAX))
        return file_system

    def _put(self, key: str, body: bytes, *, make_parent: bool) -> None:
        path = self._path(key)
        folder, _, _ = path.rpartition("/")
        if make_parent and (self.url, folder) not in _MADE:
            self._make_known(folder)
        temp_path = f"{folder}/{TEMP_PREFIX}{new_id()}"
        try:
            try:
                self._write_temp(temp_path, body)
            except Exception as error:
                if not (make_parent and self._is_absent(error, status_of(error))):
                    raise
                self._make_known(folder)  # another process removed it
                self._write_temp(temp_path, body)
            answer = self.file_system()._call("RENAME", method="put", path=temp_path, destination=path)
            if not answer.json()["boolean"]:
                self._judge_rename(key, path)
        except BaseException:
            _MADE.discard((self.url, folder))
            self._drop(temp_path)
            raise

    def _judge_rename(self, key: str, path: str) -> None:
        """Raise after RENAME answered false: the name is taken, or its folder is gone."""
        if self._status(path) is not None:
            raise FileExistsError(path)
        raise OutcomeUnknownError(
            ErrorCode.REPLOG_STORE_OUTCOME_UNKNOWN,
            "HDFS refused the rename though nothing has the name. Repeat the call.",
            url=self.url,
            key=key,
        )

    def _write_temp(self, temp_path: str, body: bytes) -> None:
        file_system = self.file_system()
        answer = file_system._call(
            "CREATE", method="put", path=temp_path, redirect=False, overwrite="false", createparent="false"
        )
        location = file_system._apply_proxy(answer.headers["Location"])
        stored = file_system.session.put(location, data=body, headers={"content-type": "application/octet-stream"})
        stored.raise_for_status()

    def _make_known(self, folder: str) -> None:
        self._make_level(folder)
        if len(_MADE) >= _MADE_MAX:
            _MADE.clear()
        _MADE.add((self.url, folder))

    def _make_level(self, folder: str) -> None:
        """Make a folder with the mode of the one above it. FileNotFoundError if there is none.

        Without a mode HDFS takes 755, and makes that the mask of inherited ACLs too: no other user could create files
        in the folder, whatever an administrator has set above it. MKDIRS would make every missing level, and keeps the
        sticky bit only on the last one.
        """
        above = self.file_system()._call("GETFILESTATUS", path=folder.rpartition("/")[0] or "/")
        mode = above.json()["FileStatus"]["permission"]
        self.file_system()._call("MKDIRS", method="put", path=folder, permission=mode)

    def _status(self, path: str) -> int | None:
        try:
            answer = self.file_system()._call("GETFILESTATUS", path=path)
        except FileNotFoundError:
            return None
        return int(answer.json()["FileStatus"]["length"])

    def _drop(self, temp_path: str) -> None:
        with suppress(Exception):  # best effort: leftovers are never listed
            self._is_deleted(temp_path)
