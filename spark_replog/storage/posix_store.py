"""Objects as files: create-if-absent by temp file, fsync, link, fsync of the folder."""

from __future__ import annotations

import errno
import itertools
import mmap
import os
import shlex
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial

from spark_replog.clock import SYSTEM_CLOCK
from spark_replog.errors import ErrorCode, OutcomeUnknownError, ReplogError, RetriableError
from spark_replog.process_state import in_each_child
from spark_replog.storage.direct_write import DIRECT_SIZE_BYTES_MIN, open_direct, write_direct
from spark_replog.storage.mount_table import file_system_of
from spark_replog.storage.object_store import Buffer, CreateOutcome, ObjectInfo, check_key, folder_at_key
from spark_replog.storage.paths import ROOT_FILE_KEY, is_data_key

MAP_SIZE_BYTES_MIN = 65536
"""Ranges from this size on are mapped; for smaller ones, page faults cost more than the copy."""
TEMP_PREFIX = ".tmp-"
TEMP_FILE_AGE_MS = 86_400_000
"""A temp file of this age was left by an interrupted writer."""
SETTLED_KEYS_MAX = 4096
"""How many names with a second link a process remembers as durable. With more, some are flushed again."""
_HIDDEN_PREFIXES = (TEMP_PREFIX, ".nfs")
_FOLDER_FLAGS = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC
_FLUSH_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
"""Without O_PATH, since such a descriptor cannot be flushed."""
_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""O_NONBLOCK: opening a named pipe must not wait for its other end."""
_NEW_FILE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_FOLDER_BITS, _FILE_BITS = 0o3777, 0o644
"""Mode bits that a new folder or file takes from the folder above. Files are never written again: read bits only."""
_WRITEV_PIECES_MAX = 1024
_READ_SIZE_BYTES_MAX = 1 << 30
RESERVE_BYTES_MAX, RESERVE_SHARE = 64 << 20, 64
"""Data objects leave this much of a local disk free, or this share of a small one, for journals and snapshots."""
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
        errno.ELOOP,
    }
)
"""Definite if raised before the link: nothing is visible, and the same call would fail again."""
_CANNOT_FLUSH_ERRNOS = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP})
"""The mount is read-only or lacks the call, or this user may not write. Then nothing more can be done for a name; its
file system keeps it within seconds."""
_SYMLINK_TEXT = (
    "a symbolic link is below the root. Links are not followed, because they can lead out of it. Replace it by the "
    "folder or file itself; to use another disk, mount it there."
)
_NO_LINKS_ERRNOS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS})
"""From link(2), in a folder where the temp file could be created: hard links are refused there."""


class PosixStore:
    """An ObjectStore over a directory. Safe across threads, forks and processes; keeps no handle open.

    A name is visible from the link on, before its folder is flushed, and a power failure could take it back. Its
    writer removes the temp file after the flush. So a file with one link is durable, and whoever finds a second link
    flushes the folder before it returns the file, from `get` and `list_keys` alike.

    The root may be a symbolic link; below it none is followed. New folders and files take group and mode from the
    folder above, whatever the umask, so that all writers of a root can work in each other's folders.

    Args:
        url: ``file:///dir`` or a plain absolute path.
        fsync: whether a create survives power loss; False only for throw-away stores.
    """

    def __init__(self, url: str, *, fsync: bool = True) -> None:
        self.url = url
        self._root = os.path.abspath(url.removeprefix("file://"))
        self._fsync = fsync
        self._is_local: bool | None = None
        self._root_file: tuple[int, int] | None = None
        """Identity of the root file when this store was first used; None: not used yet."""
        self._must_have_root_file = False
        """Whether the root file was ever seen here."""
        self._reached_folders: dict[str, tuple[int, int]] = {}
        self._durable_folders: dict[str, tuple[int, int]] = {}
        """Device and inode of folders: those reached without a link, and those durable in their parents."""
        self._settled_keys: dict[str, tuple[int, int]] = {}
        """Inode and change time of files with a second link whose names this process has made durable."""

    def __reduce__(self) -> tuple[object, ...]:
        return partial(PosixStore, fsync=self._fsync), (self.url,)

    def get(self, key: str, *, start: int = 0, size_bytes: int | None = None) -> Buffer | None:
        """Return the range: on a local disk a memoryview over a map from 64 KiB on, else bytes; None if absent.

        With fsync, the file survives power loss once this returns.

        Raises:
            RetriableError: KAFKA_STORAGE_ERROR on a failing disk; REPLOG_STORE_REFUSED: no permission, or a symbolic
                link below the root; REPLOG_ROOT_STALE if a folder is missing and with it the root directory, or
                the root file has changed (so a root that vanished or was made again never looks like an empty one).
            CorruptDataError: CORRUPT_MESSAGE: the key could leave the root, or a folder has its name: it is not absent.
        """
        check_key(key, self.url)
        if self._root_file is None:
            self._root_file = root_file_identity(self.url)
            self._must_have_root_file = self._root_file != NO_ROOT_FILE
        try:
            fd = self._open_file(key)
            if fd is None:
                return None
            if key == ROOT_FILE_KEY:  # perhaps for the first time: the root was away
                self._must_have_root_file = True
            try:  # not `_closing`: three calls more for each read of a section
                status = os.fstat(fd)
                if stat.S_ISDIR(status.st_mode):
                    raise folder_at_key(key, self.url)
                if status.st_nlink > 1 and self._fsync:
                    self._settle(key, fd, (status.st_ino, status.st_ctime_ns))
                rest_bytes = max(0, status.st_size - start)
                size_bytes = rest_bytes if size_bytes is None else min(size_bytes, rest_bytes)
                if size_bytes >= MAP_SIZE_BYTES_MIN and self._is_local_disk():
                    return _map_range(fd, start, size_bytes)
                return _read_range(fd, start, size_bytes)
            finally:
                os.close(fd)
        except (FileNotFoundError, NotADirectoryError):
            self._check_root(is_of_journal="/journal/" in key)
            return None
        except OSError as error:
            raise self._read_failed(error, key) from error

    def create(self, key: str, data: Buffer | Sequence[Buffer], *, make_parent: bool = False) -> CreateOutcome:
        """Create the file if the name is free; with fsync, durable on return (EXISTS is durable too).

        Raises:
            ReplogError: REPLOG_STORE_REFUSED: nothing is visible (no folder, no space, no permission, a symbolic link).
            RetriableError: REPLOG_ROOT_STALE: nothing is visible: the root file that was here before is missing.
            OutcomeUnknownError: the link may have happened, or may not survive power loss.
        """
        check_key(key, self.url)
        folder, _, name = key.rpartition("/")
        temp_name = f"{TEMP_PREFIX}{_temp_token}-{next(_temp_numbers)}"
        folder_fd, is_in_doubt = -1, False
        try:
            folder_fd, above = self._open_folder(
                folder, make_last=make_parent, is_to_flush=self._fsync, is_to_write=True
            )
            if is_data_key(key) and self._is_local_disk():
                _leave_reserve(folder_fd, data)
            self._write_temp(folder_fd, above, temp_name, data)
            is_in_doubt = True
            outcome = self._publish(folder_fd, temp_name, name)
            is_in_doubt = False
            return outcome
        except OSError as error:
            if error.errno in _REFUSED_ERRNOS:
                is_in_doubt = False
                raise self._refused(error, key) from error
            raise OutcomeUnknownError(
                ErrorCode.REPLOG_STORE_OUTCOME_UNKNOWN,
                f"the file system did not confirm the write: {error}. Repeat the call.",
                url=self.url,
                key=key,
            ) from error
        finally:
            if folder_fd >= 0:
                try:
                    if not is_in_doubt:  # else the second link shows readers that the name may not be durable
                        os.unlink(temp_name, dir_fd=folder_fd)
                except OSError:
                    pass  # never made, or swept
                finally:
                    os.close(folder_fd)

    def make_folder(self, key_prefix: str) -> None:
        """Make a folder and those above it below the root; an empty prefix makes the root itself.

        Raises REPLOG_STORE_REFUSED: no permission, no space, or the root is missing and the prefix not empty; or
        REPLOG_ROOT_STALE: the root file that was here before is missing.
        """
        inner = key_prefix.strip("/")
        try:
            if not inner:
                self._root_file, self._must_have_root_file = None, False  # a root that is made gets its file last
                self._make_root()
                return
            check_key(inner, self.url)
            os.close(self._open_folder(inner, make_all=True, is_to_write=True)[0])
        except OSError as error:
            if error.errno in _REFUSED_ERRNOS and error.errno != errno.EIO:
                raise self._refused(error, key_prefix) from error
            raise self._read_failed(error, key_prefix) from error

    def list_keys(self, prefix: str, *, after: str = "") -> Iterator[ObjectInfo]:
        """Yield files whose key starts with the prefix and is above `after`, in key order, without temp files.

        With fsync, the names survive power loss.
        """
        folder, _, start_of_name = prefix.rpartition("/")
        if folder:
            check_key(folder, self.url)
        try:
            yield from self._walk(folder, start_of_name, after)
        except OSError as error:
            raise self._read_failed(error, prefix) from error

    def delete(self, key: str) -> None:
        """Remove the file, or the empty folder; success if absent. Needs no free space.

        An empty folder where a file belongs is removed too.
        """
        check_key(key.removesuffix("/"), self.url)
        folder, _, name = key.removesuffix("/").rpartition("/")
        try:
            with _closing(self._open_folder(folder)[0]) as folder_fd:
                if key.endswith("/"):
                    with suppress(OSError):  # not empty: a writer has created something in it
                        os.rmdir(name, dir_fd=folder_fd)
                    return
                try:
                    os.unlink(name, dir_fd=folder_fd)
                except IsADirectoryError:
                    os.rmdir(name, dir_fd=folder_fd)
        except (FileNotFoundError, NotADirectoryError):
            self._check_root()
        except OSError as error:
            raise self._read_failed(error, key) from error

    def _open_file(self, key: str) -> int | None:
        """Return a descriptor of the file; None if it is absent from a known folder, or its folder from a known one.

        Usually costs one open of the file and one stat of the folder, which must be the same as when it was reached.
        """
        folder, _, name = key.rpartition("/")
        identity = self._reached_folders.get(folder)
        if identity is not None:
            try:
                fd, is_plain = os.open(f"{self._root}/{key}", _FILE_FLAGS), True
            except OSError as error:
                fd, is_plain = None, error.errno == errno.ENOENT
            if is_plain and _identity(f"{self._root}/{folder}") == identity:
                return fd
            if fd is not None:
                os.close(fd)
        elif self._is_absent(folder):
            return None
        with _closing(self._open_folder(folder)[0]) as folder_fd:
            return os.open(name, _FILE_FLAGS, dir_fd=folder_fd)

    def _is_absent(self, folder: str) -> bool:
        """Return whether a folder is known to be absent: by one look for it, and one at the known folder above it."""
        above = folder.rpartition("/")[0]
        identity = self._reached_folders.get(above)
        if identity is None:
            return False
        try:
            os.lstat(f"{self._root}/{folder}")
        except FileNotFoundError:
            return _identity(f"{self._root}/{above}") == identity
        except OSError:  # opening it part by part gives the reason
            return False
        return False

    def _open_folder(
        self,
        folder: str,
        *,
        make_last: bool = False,
        make_all: bool = False,
        is_to_flush: bool = False,
        is_to_write: bool = False,
    ) -> tuple[int, os.stat_result]:
        """Return a descriptor and the status of the folder, reached from the root without a symbolic link (else ELOOP).

        A folder that was once reached part by part is opened by its path and must be the same one: a link on the way
        could only lead to that same folder. With ``make_last`` or ``make_all``, the folders are durable in their
        parents, even if another process has just made them: each is flushed at least once per process. What is written
        goes into the folder that has the root's file, whatever takes the root's name meanwhile.
        """
        identity = (self._durable_folders if make_last else self._reached_folders).get(folder)
        if identity is not None and not make_all:
            fd = -1
            try:
                flags = _FLUSH_FLAGS if is_to_flush else _FOLDER_FLAGS
                fd = os.open(f"{self._root}/{folder}", flags | os.O_NOFOLLOW)
                status = os.fstat(fd)
                if (status.st_dev, status.st_ino) == identity:
                    return fd, status
            except OSError:  # opening it part by part gives the reason
                pass
            if fd >= 0:
                os.close(fd)
        fd = os.open(self._root, _FOLDER_FLAGS)
        try:
            if is_to_write:
                self._require_root_file(fd)
            status = os.fstat(fd)
            parts = folder.split("/") if folder else []
            for count, part in enumerate(parts, 1):
                if make_all or (make_last and count == len(parts)):
                    self._make_level(fd, part)
                try:
                    inner_fd = os.open(part, _FOLDER_FLAGS | os.O_NOFOLLOW, dir_fd=fd)
                except NotADirectoryError:
                    if stat.S_ISLNK(os.stat(part, dir_fd=fd, follow_symlinks=False).st_mode):
                        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), part) from None
                    raise
                os.close(fd)
                fd = inner_fd
                status = os.fstat(fd)
                self._reached_folders["/".join(parts[:count])] = status.st_dev, status.st_ino
        except BaseException:
            os.close(fd)
            raise
        if make_last:
            self._durable_folders[folder] = status.st_dev, status.st_ino
        return fd, status

    def _write_temp(
        self, folder_fd: int, above: os.stat_result, temp_name: str, data: Buffer | Sequence[Buffer]
    ) -> None:
        pieces = [memoryview(piece).cast("B") for piece in ((data,) if isinstance(data, Buffer) else data)]
        if sum([piece.nbytes for piece in pieces]) >= DIRECT_SIZE_BYTES_MIN and self._is_local_disk():
            fd = open_direct(temp_name, folder_fd)
            if fd is not None and self._fill_temp(fd, above, pieces, write_direct):
                return
            if fd is not None:
                os.unlink(temp_name, dir_fd=folder_fd)
        fd = os.open(temp_name, _NEW_FILE_FLAGS, 0o644, dir_fd=folder_fd)
        self._fill_temp(fd, above, pieces, _write_all)

    def _fill_temp(
        self,
        fd: int,
        above: os.stat_result,
        pieces: list[memoryview],
        write: Callable[[int, list[memoryview]], bool],
    ) -> bool:
        """Write, flush and close the file; return False if this way of writing is refused."""
        with _closing(fd):
            if not write(fd, pieces):
                return False
            _take_mode(fd, above, _FILE_BITS)
            if self._fsync:
                # Also after direct writes: the disk's own cache and the file's length must be made durable.
                os.fsync(fd)
            return True

    def _publish(self, folder_fd: int, temp_name: str, name: str) -> CreateOutcome:
        try:
            os.link(temp_name, name, src_dir_fd=folder_fd, dst_dir_fd=folder_fd)
            outcome = CreateOutcome.CREATED
        except FileExistsError:
            # NFS: the answer to our own LINK can be lost, and its repetition gets EEXIST.
            is_ours = _is_same_file(folder_fd, temp_name, name)
            outcome = CreateOutcome.CREATED if is_ours else CreateOutcome.EXISTS
        except OSError as error:
            if error.errno == errno.EIO:  # a soft NFS mount gave up waiting: the link may be there
                raise _UnconfirmedError(error) from error
            if error.errno in _NO_LINKS_ERRNOS:
                raise _NoHardLinksError(error.errno, error.strerror) from error
            raise
        if self._fsync:
            # A loser flushes too: the winner may not have flushed yet, and callers act on EXISTS.
            try:
                _fsync_folder(folder_fd)
            except OSError as error:
                raise _UnconfirmedError(error) from error
        return outcome

    def _settle(self, key: str, fd: int, file: tuple[int, int]) -> None:
        """Make a name durable that has been read: its writer may not have flushed the folder yet, or has died."""
        if self._settled_keys.get(key) == file:
            return
        try:
            folder_fd = self._open_to_list(key.rpartition("/")[0])
        except PermissionError:  # this user may not list the folder; ext4, xfs and btrfs flush names with their file
            os.fsync(fd)
        else:
            with _closing(folder_fd):
                self._flush_names(folder_fd)
        if len(self._settled_keys) >= SETTLED_KEYS_MAX:
            self._settled_keys.clear()
        self._settled_keys[key] = file

    def _flush_names(self, folder_fd: int) -> None:
        """Make all names in a folder durable that other processes have linked."""
        try:
            os.fsync(folder_fd)
            if not self._is_local_disk():
                # An NFS client does not send the fsync of a folder. Before the server answers this, it commits the
                # folder, and with it all earlier changes.
                os.utime(folder_fd)
        except OSError as error:
            if error.errno not in _CANNOT_FLUSH_ERRNOS:
                raise

    def _require_root_file(self, root_fd: int) -> None:
        """Refuse the folder at the root's path if it lacks the file that was there before.

        A disk that was unmounted leaves an empty folder. A record in it would count, and be gone with the next mount.
        """
        if not self._must_have_root_file:
            return
        try:
            os.stat(ROOT_FILE_KEY, dir_fd=root_fd, follow_symlinks=False)
        except FileNotFoundError:
            raise RetriableError(
                ErrorCode.REPLOG_ROOT_STALE,
                f"{ROOT_FILE_KEY} is missing, and was there before: another folder has the root's name. "
                "Bring the root back (mount the disk, undo the rename).",
                url=self.url,
            ) from None

    def _make_level(self, parent_fd: int, name: str) -> None:
        with suppress(FileExistsError):
            os.mkdir(name, dir_fd=parent_fd)
            with _closing(os.open(name, _FLUSH_FLAGS | os.O_NOFOLLOW, dir_fd=parent_fd)) as fd:
                _take_mode(fd, os.fstat(parent_fd), _FOLDER_BITS)
        if self._fsync:
            _fsync_folder(parent_fd)

    def _make_root(self) -> None:
        missing = []
        path = self._root
        while not os.path.isdir(path):
            missing.append(path)
            path = os.path.dirname(path)
        for path in reversed(missing):
            with suppress(FileExistsError):
                os.mkdir(path)
            if self._fsync:
                with _closing(os.open(os.path.dirname(path), _FOLDER_FLAGS)) as fd:
                    _fsync_folder(fd)

    def _walk(self, folder: str, start_of_name: str, after: str) -> Iterator[ObjectInfo]:
        try:
            listing = self._scan(folder, start_of_name, after)
        except (FileNotFoundError, NotADirectoryError):
            self._check_root()
            return
        for key, size_bytes in listing:
            if size_bytes is None:
                yield from self._walk(key.removesuffix("/"), "", after)
            else:
                yield ObjectInfo(key, size_bytes)

    def _scan(self, folder: str, start_of_name: str, after: str) -> list[tuple[str, int | None]]:
        """Return keys and sizes in one folder, in key order; a folder has a trailing slash and no size.

        A folder sorts by its name with the slash, since 'a.b' is before 'a/x'.
        """
        listing: list[tuple[str, int | None]] = []
        links_count = 1
        with _closing(self._open_to_list(folder)) as fd:
            with os.scandir(fd) as entries:
                for entry in entries:
                    name = f"{entry.name}/" if entry.is_dir(follow_symlinks=False) else entry.name
                    if name.startswith(_HIDDEN_PREFIXES) or not name.startswith(start_of_name):
                        continue
                    if entry.is_symlink():
                        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), name)
                    key = f"{folder}/{name}" if folder else name
                    if name.endswith("/"):
                        listing.append((key, None))
                    elif key > after:
                        with suppress(FileNotFoundError):  # deleted since the scan
                            status = entry.stat(follow_symlinks=False)
                            listing.append((key, status.st_size))
                            links_count = max(links_count, status.st_nlink)
            if links_count > 1 and self._fsync:
                self._flush_names(fd)
        return sorted(listing)

    def _open_to_list(self, folder: str) -> int:
        with _closing(self._open_folder(folder)[0]) as path_fd:
            return os.open(".", _FLUSH_FLAGS, dir_fd=path_fd)

    def _is_local_disk(self) -> bool:
        if self._is_local is None:
            # A read error in a map is SIGBUS, which kills the process, so network files are never mapped. Direct
            # writes also behave differently there.
            self._is_local = not file_system_of(self._root).is_remote
        return self._is_local

    def _check_root(self, *, is_of_journal: bool = False) -> None:
        """Refuse a root that is missing; with a journal's folder also one that was made again since its first use."""
        if not os.path.isdir(self._root):
            raise RetriableError(
                ErrorCode.REPLOG_ROOT_STALE,
                "the root directory is missing. Bring it back (mount the disk, undo the rename).",
                url=self.url,
            )
        if not is_of_journal:
            return
        if self._root_file not in (None, NO_ROOT_FILE, root_file_identity(self.url)):
            raise RetriableError(
                ErrorCode.REPLOG_ROOT_STALE,
                f"{ROOT_FILE_KEY} has changed since this process first used the root.",
                url=self.url,
            )

    def _read_failed(self, error: OSError, key: str) -> RetriableError:
        code = ErrorCode.REPLOG_STORE_REFUSED
        if error.errno == errno.ELOOP:
            text = _SYMLINK_TEXT
        elif isinstance(error, PermissionError):
            text = f"the file system refuses access: {error.strerror}. Check owner and mode of the root."
        else:
            code = ErrorCode.KAFKA_STORAGE_ERROR
            text = f"the file system failed: {error}. Check the disk of this root."
        return RetriableError(code, text, url=self.url, key=key)

    def _refused(self, error: OSError, key: str) -> ReplogError:
        if error.errno == errno.ELOOP:
            return ReplogError(ErrorCode.REPLOG_STORE_REFUSED, _SYMLINK_TEXT, url=self.url, key=key)
        if isinstance(error, _NoHardLinksError):
            kind = file_system_of(self._root).type or "this file system"
            remedy = (
                f"{kind} refuses hard links, and a create needs them. Use a file system that has them (ext4, xfs; not "
                "vfat or exFAT), an NFS export without all_squash, or the URL of the bucket (s3://, gs://, abfs://) "
                "instead of its mount."
            )
        elif error.errno == errno.ENOTDIR:
            remedy = "A file has the name of a folder: choose another path."
        elif not os.path.isdir(self._root) and error.errno == errno.ENOENT:
            remedy = "The root directory is missing: bring it back, or run `replog init` for a new store."
        elif error.errno == errno.ENOENT:
            remedy = "Its folder is missing: the root was emptied or is another store's."
        elif error.errno in (errno.ENOSPC, errno.EDQUOT):
            remedy = (
                "The disk or quota of this root is full: enlarge it, or remove files of other programs from it. "
                f"`df -h {shlex.quote(self._root)}` shows its use."
            )
        else:
            remedy = "Check owner, mode and mount options of this root."
        return ReplogError(
            ErrorCode.REPLOG_STORE_REFUSED,
            f"the file system refused the write: {error.strerror}. {remedy}",
            url=self.url,
            key=key,
        )


def sweep_temp_files(url: str, min_age_ms: int, *, is_dry_run: bool = False) -> int:
    """Remove, or only count, temp files of interrupted writers under a root; return their number. Needs no free space.

    A writer that still uses so old a file gets a definite error, and nothing of it is visible. Files' age is by the
    file system's own clock; to count only, by this machine's: that writes nothing, so a read-only root will do.
    REPLOG_STORE_REFUSED if the root is read-only or another user's; some files may be removed.
    """
    root = os.path.abspath(url.removeprefix("file://"))
    swept_count = 0
    try:
        if not is_dry_run:
            os.utime(root)  # the server's time on NFS
        now = SYSTEM_CLOCK.now_ms() / 1000 if is_dry_run else os.stat(root).st_mtime
        for _, _, names, folder_fd in os.fwalk(root):
            for name in names:
                if name.startswith(TEMP_PREFIX):
                    with suppress(FileNotFoundError):
                        status = os.stat(name, dir_fd=folder_fd, follow_symlinks=False)
                        if (now - status.st_mtime) * 1000 >= min_age_ms:
                            if not is_dry_run:
                                if status.st_nlink > 1:  # its writer died before it had flushed the other name
                                    _fsync_folder(folder_fd)
                                os.unlink(name, dir_fd=folder_fd)
                            swept_count += 1
    except OSError as error:
        raise ReplogError(
            ErrorCode.REPLOG_STORE_REFUSED,
            f"old temp files were not removed: {error.strerror}. Check owner, mode and mount options of this root.",
            url=url,
        ) from error
    return swept_count


def _leave_reserve(folder_fd: int, data: Buffer | Sequence[Buffer]) -> None:
    """Raise ENOSPC for a data object where little is free: journals need it, for entries that delete rows or topics."""
    volume = os.fstatvfs(folder_fd)
    size_bytes = sum(memoryview(piece).nbytes for piece in ((data,) if isinstance(data, Buffer) else data))
    reserve_bytes = min(RESERVE_BYTES_MAX, volume.f_blocks * volume.f_frsize // RESERVE_SHARE)
    if volume.f_bavail * volume.f_frsize < size_bytes + reserve_bytes:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class _closing:
    """Closes a descriptor at the end of a block."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def __enter__(self) -> int:
        return self._fd

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)


class _UnconfirmedError(OSError):
    """The name may exist, or a power failure may lose it. Has no errno, so it is never reported as REFUSED."""


class _NoHardLinksError(OSError):
    """link(2) is refused here for every name."""


def _is_same_file(folder_fd: int, temp_name: str, name: str) -> bool:
    """Return whether the name is our own file although link(2) returned EEXIST.

    The link count proves nothing: a backup that makes hard links changes it.
    """
    try:
        ours, theirs = (os.stat(file_name, dir_fd=folder_fd, follow_symlinks=False) for file_name in (temp_name, name))
    except OSError as error:  # the temp file was swept, or the folder is out of reach
        raise _UnconfirmedError(error) from error
    return (ours.st_ino, ours.st_dev) == (theirs.st_ino, theirs.st_dev)


NO_ROOT_FILE = (0, 0)


def root_file_identity(url: str) -> tuple[int, int]:
    """Return inode and time of change (ns) of a local root's file, written once; `NO_ROOT_FILE` without one."""
    try:
        status = os.stat(f"{url.removeprefix('file://')}/{ROOT_FILE_KEY}")
    except OSError:
        return NO_ROOT_FILE
    return status.st_ino, status.st_mtime_ns


def _identity(path: str) -> tuple[int, int] | None:
    """Return device and inode of what a path names; None if they cannot be read."""
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _take_mode(fd: int, above: os.stat_result, bits: int) -> None:
    """Give a new file or folder the group of the folder above and ``bits`` of its mode, whatever the umask."""
    made = os.fstat(fd)
    mode = stat.S_IMODE(above.st_mode) & bits
    if made.st_gid != above.st_gid:
        try:
            os.fchown(fd, -1, above.st_gid)
        except OSError:  # not a member: do not give this user's own group the rights meant for that one
            mode &= ~(stat.S_IRWXG | stat.S_ISGID)
    if stat.S_IMODE(made.st_mode) != mode:
        with suppress(OSError):  # some network file systems have no modes
            os.fchmod(fd, mode)


_temp_numbers = itertools.count()
_temp_token = os.urandom(16).hex()


@in_each_child
def _new_temp_token() -> None:
    global _temp_token  # unique per process: a forked child makes its own
    _temp_token = os.urandom(16).hex()


def _fsync_folder(path_fd: int) -> None:
    try:
        os.fsync(path_fd)
        return
    except OSError as error:
        if error.errno != errno.EBADF:  # opened by O_PATH
            raise
    with _closing(os.open(".", _FLUSH_FLAGS, dir_fd=path_fd)) as fd:
        os.fsync(fd)


def _write_all(fd: int, pieces: list[memoryview]) -> bool:
    """Write the pieces of bytes; the list is used up."""
    first = 0
    while first < len(pieces):
        written = os.writev(fd, pieces[first : first + _WRITEV_PIECES_MAX])
        while first < len(pieces) and written >= pieces[first].nbytes:
            written -= pieces[first].nbytes
            first += 1
        if written:
            pieces[first] = pieces[first][written:]
    return True


def _read_range(fd: int, start: int, size_bytes: int) -> bytes:
    parts = [os.pread(fd, min(size_bytes, _READ_SIZE_BYTES_MAX), start)]  # also of 0 bytes: it fails of a pipe
    while parts[-1] and (left_bytes := size_bytes - sum(map(len, parts))):
        parts.append(os.pread(fd, min(left_bytes, _READ_SIZE_BYTES_MAX), start + size_bytes - left_bytes))
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _map_range(fd: int, start: int, size_bytes: int) -> Buffer:
    slack = start % mmap.ALLOCATIONGRANULARITY
    mapped = mmap.mmap(fd, size_bytes + slack, access=mmap.ACCESS_READ, offset=start - slack)
    return memoryview(mapped)[slack:]
