"""Objects as files: create-if-absent by temp file, fsync, link, fsync of the folder."""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from spark_replog.errors import ErrorCode, OutcomeUnknownError, ReplogError, RetriableError
from spark_replog.ids import new_id
from spark_replog.storage.direct_write import may_write_directly, open_direct, write_direct
from spark_replog.storage.object_store import Buffer, CreateOutcome, ObjectInfo
from spark_replog.storage.retrying_store import pieces_of

_MOUNT_TABLE = "/proc/self/mountinfo"
_REMOTE_TYPES = ("nfs", "cifs", "smb", "fuse", "9p", "ceph", "glusterfs", "lustre", "afs", "vboxsf", "beegfs")


def file_system_type(path: str) -> str:
    """Return the type of the mount that holds the path (``ext4``, ``nfs4``, ...), "" where unknown.

    Source: proc(5), /proc/pid/mountinfo: field 5 is the mount point, the type follows the lone dash.
    """
    real = os.path.realpath(path)
    best, best_type = "", ""
    try:
        with open(_MOUNT_TABLE, encoding="utf-8", errors="surrogateescape") as table:
            lines = table.read().splitlines()
    except OSError:
        return ""
    for line in lines:
        fields = line.split(" ")
        if "-" not in fields:
            continue
        point = fields[4].encode("utf-8", "surrogateescape").decode("unicode_escape")
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, best_type = point, fields[fields.index("-") + 1]
    return best_type


def is_remote_file_system(path: str) -> bool:
    """Return whether a network or user-space file system holds the path."""
    return file_system_type(path).startswith(_REMOTE_TYPES)


MAP_SIZE_BYTES_MIN = 65536
"""From this size on a range is mapped; below, the map's page faults cost more than the copy."""
TEMP_PREFIX = ".tmp-"
_HIDDEN_PREFIXES = (TEMP_PREFIX, ".nfs")
_WRITEV_PIECES_MAX = 1024
_READ_SIZE_BYTES_MAX = 1 << 30
_REFUSED_ERRNOS = frozenset(
    {
        errno.EACCES,
        errno.EPERM,
        errno.EROFS,
        errno.ENOENT,
        errno.ENOTDIR,
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EIO,
        errno.EFBIG,
        errno.ENAMETOOLONG,
        errno.EOPNOTSUPP,
        errno.ENOSYS,
        errno.EMLINK,
        errno.EXDEV,
    }
)
"""Definite before the link: nothing is visible, and the same call would fail again."""
_NO_LINKS_ERRNOS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS})
"""From link(2) in a folder that has just taken the file: hard links are refused there."""


class PosixStore:
    """An ObjectStore over a directory. Safe over threads, forks and processes; holds no handle.

    Args:
        url: ``file:///dir`` or a plain absolute path.
        fsync: whether a create survives power loss; False only for throw-away stores.
    """

    def __init__(self, url: str, *, fsync: bool = True) -> None:
        self.url = url
        self._root = os.path.abspath(url.removeprefix("file://"))
        self._fsync = fsync
        self._is_local: bool | None = None
        self._durable_folders: dict[str, int] = {}

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (self.url, self._fsync)

    def get(self, key: str, *, start: int = 0, size_bytes: int | None = None) -> Buffer | None:
        """Return the range: a memoryview over a map from 64 KiB on, else bytes; None where absent.

        Raises:
            RetriableError: KAFKA_STORAGE_ERROR on a failing disk; REPLOG_ROOT_STALE where the root
                directory itself is gone (so a vanished root never looks like an empty one).
        """
        path = f"{self._root}/{key}"
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                if size_bytes is None:
                    size_bytes = max(0, os.fstat(fd).st_size - start)
                if size_bytes >= MAP_SIZE_BYTES_MIN and self._is_local_disk():
                    return _map_range(fd, start, size_bytes)
                return _read_range(fd, start, size_bytes)
            finally:
                os.close(fd)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            self._check_root()
            return None
        except OSError as error:
            raise self._read_failed(error, key) from error

    def create(self, key: str, data: Buffer | Sequence[Buffer], *, make_parent: bool = False) -> CreateOutcome:
        """Create the file if the name is free; with fsync, durable on return (EXISTS is durable too).

        Raises:
            ReplogError: REPLOG_STORE_REFUSED: nothing is visible (no folder, no space, no permission).
            OutcomeUnknownError: the link may have happened, or may not survive power loss.
        """
        path = f"{self._root}/{key}"
        folder, _, _name = path.rpartition("/")
        temp_path = f"{folder}/{TEMP_PREFIX}{new_id()}"
        try:
            if make_parent:
                self._make_last_level(folder)
            self._write_temp(temp_path, pieces_of(data))
            outcome = self._publish(temp_path, path, folder)
        except OSError as error:
            with suppress(OSError):
                os.unlink(temp_path)
            if error.errno in _REFUSED_ERRNOS:
                raise self._refused(error, key, folder) from error
            raise self._unknown(error, key) from error
        with suppress(OSError):
            os.unlink(temp_path)
        return outcome

    def make_folder(self, key_prefix: str) -> None:
        """Make a folder and those above it below the root; an empty prefix makes the root itself.

        Raises:
            ReplogError: REPLOG_STORE_REFUSED where the root is missing and not asked for by name.
            RetriableError: KAFKA_STORAGE_ERROR.
        """
        inner = key_prefix.strip("/")
        try:
            if not inner:
                self._make_root()
                return
            path = self._root
            for part in inner.split("/"):
                path = f"{path}/{part}"
                self._make_level(path)
        except OSError as error:
            if error.errno in _REFUSED_ERRNOS and error.errno != errno.EIO:
                raise self._refused(error, key_prefix, self._root) from error
            raise self._read_failed(error, key_prefix) from error

    def list_keys(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield the files whose key starts with the prefix, in key order; temp files never show."""
        folder, _, start_of_name = prefix.rpartition("/")
        try:
            yield from self._walk(f"{folder}/" if folder else "", start_of_name)
        except OSError as error:
            raise self._read_failed(error, prefix) from error

    def delete(self, key: str) -> None:
        """Remove the file, or the empty folder; absent is success."""
        try:
            if key.endswith("/"):
                with suppress(OSError):  # not empty: a writer made something in it
                    os.rmdir(f"{self._root}/{key}")
                return
            os.unlink(f"{self._root}/{key}")
        except (FileNotFoundError, NotADirectoryError):
            self._check_root()
        except OSError as error:
            raise self._read_failed(error, key) from error

    def _write_temp(self, temp_path: str, pieces: Sequence[Buffer]) -> None:
        if may_write_directly(sum(memoryview(piece).nbytes for piece in pieces)) and self._is_local_disk():
            fd = open_direct(temp_path)
            if fd is not None and self._fill_temp(fd, pieces, write_direct):
                return
            if fd is not None:
                os.unlink(temp_path)
        fd = os.open(temp_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        self._fill_temp(fd, pieces, _write_all)

    def _fill_temp(self, fd: int, pieces: Sequence[Buffer], write: Callable[[int, Sequence[Buffer]], bool]) -> bool:
        """Write and flush the file and close it; False where this way of writing is refused."""
        try:
            if not write(fd, pieces):
                return False
            if self._fsync:
                # Direct writes too: the disk's own cache and the file's length have to be made durable.
                os.fsync(fd)
            return True
        finally:
            os.close(fd)

    def _publish(self, temp_path: str, path: str, folder: str) -> CreateOutcome:
        try:
            os.link(temp_path, path)
            outcome = CreateOutcome.CREATED
        except FileExistsError:
            # NFS: the answer to our own LINK can be lost and its repetition answers EEXIST.
            outcome = CreateOutcome.CREATED if _is_linked(temp_path) else CreateOutcome.EXISTS
        except OSError as error:
            if error.errno == errno.EIO:  # a soft NFS mount gave up waiting: the link may be there
                raise _UnconfirmedError(error) from error
            if error.errno in _NO_LINKS_ERRNOS:
                raise _NoHardLinksError(error.errno, error.strerror) from error
            raise
        if self._fsync:
            # A loser flushes as well: the winner may not have yet, and EXISTS is acted upon.
            try:
                _fsync_folder(folder)
            except OSError as error:
                raise _UnconfirmedError(error) from error
        return outcome

    def _make_last_level(self, folder: str) -> None:
        """Make the folder if missing, its parent never; once per process also flush its entry.

        A folder that another process has just made may not be in its parent durably yet.
        """
        known = self._durable_folders.get(folder)
        if known is not None:
            with suppress(FileNotFoundError):
                if os.stat(folder).st_ino == known:
                    return
        self._make_level(folder)
        self._durable_folders[folder] = os.stat(folder).st_ino

    def _make_level(self, path: str) -> None:
        with suppress(FileExistsError):
            os.mkdir(path)
        if self._fsync:
            _fsync_folder(os.path.dirname(path))

    def _make_root(self) -> None:
        missing = []
        path = self._root
        while not os.path.isdir(path):
            missing.append(path)
            path = os.path.dirname(path)
        for path in reversed(missing):
            self._make_level(path)

    def _walk(self, folder_key: str, start_of_name: str) -> Iterator[ObjectInfo]:
        try:
            with os.scandir(f"{self._root}/{folder_key}") as entries:
                # 'a.b' sorts before 'a/x': a folder takes part under its name with the slash.
                names = sorted(
                    f"{entry.name}/" if entry.is_dir() else entry.name
                    for entry in entries
                    if not entry.name.startswith(_HIDDEN_PREFIXES)
                )
        except (FileNotFoundError, NotADirectoryError):
            self._check_root()
            return
        for name in names:
            if not name.startswith(start_of_name):
                continue
            if name.endswith("/"):
                yield from self._walk(f"{folder_key}{name}", "")
                continue
            with suppress(FileNotFoundError):  # deleted since the scan
                size_bytes = os.stat(f"{self._root}/{folder_key}{name}").st_size
                yield ObjectInfo(f"{folder_key}{name}", size_bytes)

    def _is_local_disk(self) -> bool:
        if self._is_local is None:
            # A read error under a map is SIGBUS, which ends the process: never map what a network can lose. And
            # direct writes mean other things there.
            self._is_local = not is_remote_file_system(self._root)
        return self._is_local

    def _check_root(self) -> None:
        if not os.path.isdir(self._root):
            raise RetriableError(
                ErrorCode.REPLOG_ROOT_STALE,
                "the root directory is gone. Bring it back (mount the disk, undo the rename).",
                url=self.url,
            )

    def _read_failed(self, error: OSError, key: str) -> RetriableError:
        if isinstance(error, PermissionError):
            return RetriableError(
                ErrorCode.REPLOG_STORE_REFUSED,
                f"the file system refuses access: {error.strerror}. Check owner and mode of the root.",
                url=self.url,
                key=key,
            )
        return RetriableError(
            ErrorCode.KAFKA_STORAGE_ERROR,
            f"the file system failed: {error}. Check the disk of this root.",
            url=self.url,
            key=key,
        )

    def _refused(self, error: OSError, key: str, folder: str) -> ReplogError:
        if isinstance(error, _NoHardLinksError):
            kind = file_system_type(self._root) or "this file system"
            remedy = (
                f"{kind} refuses hard links, and only they take a name once and whole. Use a file system that has them "
                "(ext4, xfs; not vfat or exFAT), or an NFS export without all_squash."
            )
        elif error.errno == errno.ENOTDIR:
            remedy = "A file stands where a folder must be: choose another path."
        elif not os.path.isdir(self._root) and error.errno == errno.ENOENT:
            remedy = "The root directory is missing: bring it back, or run 'replog init' for a new store."
        elif error.errno == errno.ENOENT:
            remedy = "Its folder is missing: the root was emptied or is another store's."
        elif error.errno in (errno.ENOSPC, errno.EDQUOT):
            remedy = "Free space on this root."
        else:
            remedy = "Check owner, mode and mount options of this root."
        return ReplogError(
            ErrorCode.REPLOG_STORE_REFUSED,
            f"the file system refused the write: {error.strerror}. {remedy}",
            url=self.url,
            key=key,
            folder=folder,
        )

    def _unknown(self, error: OSError, key: str) -> OutcomeUnknownError:
        return OutcomeUnknownError(
            ErrorCode.REPLOG_STORE_OUTCOME_UNKNOWN,
            f"the file system did not confirm the write: {error}. Repeat the call.",
            url=self.url,
            key=key,
        )


def sweep_temp_files(url: str, min_age_ms: int) -> int:
    """Remove what writers that died left under a root; return how many files.

    A writer that is still at work on so old a file gets a definite error and nothing of it is visible.

    Args:
        url: of the root, as ``PosixStore``'s.
        min_age_ms: since the file's last change, by the file system's own clock.

    Raises:
        ReplogError: REPLOG_STORE_REFUSED: the root is full, read-only or another user's; some may be removed.
    """
    try:
        return _sweep(os.path.abspath(url.removeprefix("file://")), min_age_ms)
    except OSError as error:
        raise ReplogError(
            ErrorCode.REPLOG_STORE_REFUSED,
            f"old temp files could not be swept: {error.strerror}. Check space, owner, mode and mount options of "
            "this root.",
            url=url,
        ) from error


def _sweep(root: str, min_age_ms: int) -> int:
    now_path = f"{root}/{TEMP_PREFIX}{new_id()}"
    fd = os.open(now_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        now = os.fstat(fd).st_mtime
    finally:
        os.close(fd)
        os.unlink(now_path)
    swept_count = 0
    for folder, _, names in os.walk(root):
        for name in names:
            if not name.startswith(TEMP_PREFIX):
                continue
            with suppress(FileNotFoundError):
                path = f"{folder}/{name}"
                if (now - os.stat(path).st_mtime) * 1000 >= min_age_ms:
                    os.unlink(path)
                    swept_count += 1
    return swept_count


class _UnconfirmedError(OSError):
    """The name may be there, or may be gone after power loss; has no errno, so it is never REFUSED."""


class _NoHardLinksError(OSError):
    """link(2) is refused here for every name."""


def _is_linked(temp_path: str) -> bool:
    """Return whether a link(2) that was answered EEXIST is nevertheless ours."""
    try:
        return os.stat(temp_path).st_nlink == 2
    except OSError as error:  # swept, or out of reach: nobody knows
        raise _UnconfirmedError(error) from error


def _rebuild(url: str, fsync: bool) -> PosixStore:
    return PosixStore(url, fsync=fsync)


def _fsync_folder(path: str) -> None:
    # Opened each time: a kept descriptor would flush a folder that was renamed away.
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _write_all(fd: int, pieces: Sequence[Buffer]) -> bool:
    rest = [view for view in (memoryview(piece).cast("B") for piece in pieces) if view.nbytes]
    first = 0
    while first < len(rest):
        written = os.writev(fd, rest[first : first + _WRITEV_PIECES_MAX])
        while first < len(rest) and written >= rest[first].nbytes:
            written -= rest[first].nbytes
            first += 1
        if written:
            rest[first] = rest[first][written:]
    return True


def _read_range(fd: int, start: int, size_bytes: int) -> bytes:
    found = os.pread(fd, min(size_bytes, _READ_SIZE_BYTES_MAX), start)
    if len(found) == size_bytes or not found:
        return found
    parts = [found]
    read_size_bytes = len(found)
    while read_size_bytes < size_bytes:
        found = os.pread(fd, min(size_bytes - read_size_bytes, _READ_SIZE_BYTES_MAX), start + read_size_bytes)
        if not found:
            break
        parts.append(found)
        read_size_bytes += len(found)
    return b"".join(parts)


def _map_range(fd: int, start: int, size_bytes: int) -> Buffer:
    size_bytes = min(size_bytes, os.fstat(fd).st_size - start)
    if size_bytes < MAP_SIZE_BYTES_MIN:
        return _read_range(fd, start, max(0, size_bytes))
    slack = start % mmap.ALLOCATIONGRANULARITY
    mapped = mmap.mmap(fd, size_bytes + slack, access=mmap.ACCESS_READ, offset=start - slack)
    return memoryview(mapped)[slack:]


__all__ = ["PosixStore", "file_system_type", "is_remote_file_system", "sweep_temp_files"]
