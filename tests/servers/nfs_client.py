"""An NFS client as a program: ``python -m tests.servers.nfs_client POINT PORT LIBRARY USER GROUP...``.

The server gets these numbers as who calls (AUTH_SYS), whoever uses the mount.

libnfs speaks NFS 4; each call of the mounted folder is a call of the server, without a cache. It waits for a server
that is away, as a mount with ``hard`` does, and repeats the call then: a link whose answer was lost is answered EEXIST.
A line of JSON on standard input says what to do with the answers of links: ``"lose a link"`` or ``"lose no link"``.
"""

from __future__ import annotations

import ctypes
import errno
import itertools
import json
import os
import stat
import sys
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import mfusepy

from tests.servers.mount import serve

_STAT = ("dev", "ino", "mode", "nlink", "uid", "gid", "rdev", "size", "blksize", "blocks")
_TIMES = ("atime", "mtime", "ctime")
_UTIME_NOW = (1 << 30) - 1
_FORGOTTEN = (b"EXPIRED", b"STALE_CLIENTID", b"STALE_STATEID", b"BAD_STATEID")
_READ_SIZE_BYTES = 1 << 17
_WRITE_SIZE_BYTES = 3 << 10
"""libnfs 4.0 encodes a call of NFS 4 into 4 KiB."""


class _Stat(ctypes.Structure):
    _fields_ = [
        (f"st_{name}", ctypes.c_uint64) for name in (*_STAT, *_TIMES, *(f"{stamp}_nsec" for stamp in _TIMES), "used")
    ]


class _Entry(ctypes.Structure):
    _fields_ = [("next", ctypes.c_void_p), ("name", ctypes.c_char_p)]


class _Timeval(ctypes.Structure):
    _fields_ = [("sec", ctypes.c_long), ("usec", ctypes.c_long)]


class NfsFolder(mfusepy.Operations):
    """The export ``/log`` of a server on this machine."""

    use_ns = True

    def __init__(self, port: int, library: str, user: int = 0, groups: Sequence[int] = (0,)) -> None:
        self._user, self._groups = user, groups
        self._nfs = ctypes.CDLL(library)
        for name in ("nfs_init_context", "nfs_parse_url_dir", "nfs_readdir", "libnfs_authunix_create"):
            getattr(self._nfs, name).restype = ctypes.c_void_p
        self._nfs.nfs_get_error.restype = ctypes.c_char_p
        self._url = f"nfs://127.0.0.1/log?nfsport={port}&version=4".encode()
        self._idle: deque[ctypes.c_void_p] = deque()
        """Connections; one call at a time, and one open file, because libnfs counts as one owner of what it opens."""
        self._files: dict[int, tuple[ctypes.c_void_p, ctypes.c_void_p, threading.Lock]] = {}
        """Of each number that FUSE was given: the connection that opened the file, and libnfs's own number."""
        self._numbers = itertools.count(1)
        self.is_link_lost, self.lost_link_count = False, 0

    def _take(self) -> ctypes.c_void_p:
        """Return a connection; wait for the server."""
        try:
            return self._idle.pop()
        except IndexError:
            pass
        while True:
            made = ctypes.c_void_p(self._nfs.nfs_init_context())
            self._nfs.nfs_destroy_url(ctypes.c_void_p(self._nfs.nfs_parse_url_dir(made, self._url)))
            self._nfs.nfs4_set_client_name(made, uuid.uuid4().hex.encode())
            self._nfs.nfs_set_auth(made, self._identity())
            self._nfs.nfs_set_autoreconnect(made, 0)
            self._nfs.nfs_set_dircache(made, 0)
            if self._nfs.nfs_mount(made, b"127.0.0.1", b"/log") == 0:
                return made
            self._nfs.nfs_destroy_context(made)
            time.sleep(0.1)

    def _identity(self) -> ctypes.c_void_p:
        """Return who calls: the user, the first group, and all groups. The connection frees it."""
        groups = (ctypes.c_uint32 * len(self._groups))(*self._groups)
        made = self._nfs.libnfs_authunix_create(b"tests", self._user, self._groups[0], len(groups), groups)
        return ctypes.c_void_p(made)

    def _ask(self, context: ctypes.c_void_p, answer: int) -> int:
        """Return what the server answered, if it did not fail.

        Raises:
            OSError: the server's answer.
            ConnectionError: there is none, or the server has forgotten this client.
        """
        if answer >= 0:
            return answer
        text = self._nfs.nfs_get_error(context) or b""
        if b"NFS4ERR" in text and not any(error_name in text for error_name in _FORGOTTEN):
            raise OSError(-answer, os.strerror(-answer))
        raise ConnectionError(text)

    def _call(self, perform: Callable[[ctypes.c_void_p], int]) -> ctypes.c_void_p:
        """Make a call until it is answered; return the connection, which the caller gives back."""
        while True:
            context = self._take()
            try:
                self._ask(context, perform(context))
                return context
            except ConnectionError:
                self._nfs.nfs_destroy_context(context)
            except OSError:
                self._idle.append(context)
                raise

    def _path_call(self, name: str, *arguments: Any) -> None:
        self._idle.append(self._call(lambda context: getattr(self._nfs, name)(context, *arguments)))

    # Names

    def getattr(self, path: str, fh: int | None = None) -> dict[str, int]:
        status = _Stat()
        self._path_call("nfs_lstat64", os.fsencode(path), ctypes.byref(status))
        told = {f"st_{name}": getattr(status, f"st_{name}") for name in _STAT}
        for name in _TIMES:
            told[f"st_{name}"] = getattr(status, f"st_{name}") * 10**9 + getattr(status, f"st_{name}_nsec")
        return told

    def readdir(self, path: str, fh: int) -> list[tuple[str, dict[str, int], int]]:
        names: list[str] = []

        def scan(context: ctypes.c_void_p) -> int:
            names.clear()
            folder = ctypes.c_void_p()
            answer = self._nfs.nfs_opendir(context, os.fsencode(path), ctypes.byref(folder))
            if answer == 0:
                while at := self._nfs.nfs_readdir(context, folder):
                    names.append(os.fsdecode(ctypes.cast(at, ctypes.POINTER(_Entry)).contents.name))
                self._nfs.nfs_closedir(context, folder)
            return int(answer)

        self._idle.append(self._call(scan))
        # libnfs 4.0 fills in nothing else with NFS 4; the C library leaves out what has no number.
        return [(name, {"st_ino": 1, "st_mode": 0}, 0) for name in names]

    def mkdir(self, path: str, mode: int) -> None:
        self._path_call("nfs_mkdir2", os.fsencode(path), mode)

    def rmdir(self, path: str) -> None:
        self._path_call("nfs_rmdir", os.fsencode(path))

    def unlink(self, path: str) -> None:
        self._path_call("nfs_unlink", os.fsencode(path))

    def rename(self, old: str, new: str) -> None:
        self._path_call("nfs_rename", os.fsencode(old), os.fsencode(new))

    def link(self, target: str, source: str) -> None:
        pair = os.fsencode(source), os.fsencode(target)
        self._path_call("nfs_link", *pair)
        if self.is_link_lost:
            self.lost_link_count += 1
            self._path_call("nfs_link", *pair)

    def chmod(self, path: str, mode: int) -> None:
        if stat.S_ISDIR(self.getattr(path)["st_mode"]):
            # libnfs 4.0 changes the modes of files only. An empty folder, which its user has just made, is made again.
            self.rmdir(path)
            self._path_call("nfs_mkdir2", os.fsencode(path), mode & 0o7777)
            return
        self._path_call("nfs_chmod", os.fsencode(path), mode & 0o7777)

    def chown(self, path: str, uid: int, gid: int) -> None:
        status = self.getattr(path)
        self._path_call(
            "nfs_chown", os.fsencode(path), *(had if given in (-1, 0xFFFFFFFF) else given
            for given, had in ((uid, status["st_uid"]), (gid, status["st_gid"])))
        )  # fmt: skip

    def truncate(self, path: str, length: int, fh: int | None = None) -> None:
        self._path_call("nfs_truncate", os.fsencode(path), ctypes.c_uint64(length))

    def utimens(self, path: str, times: tuple[int, int] | None = None) -> None:
        if times is None or times[1] == _UTIME_NOW:  # by the server's clock, also for folders, which libnfs refuses
            name = f"{path.rstrip('/')}/.nfs{uuid.uuid4().hex}"
            self.mkdir(name, 0o700)
            self.rmdir(name)
            return
        given = (_Timeval * 2)(*((time_ns // 10**9, time_ns % 10**9 // 1000) for time_ns in times))
        self._path_call("nfs_utimes", os.fsencode(path), given)

    # Files

    def _open(self, path: bytes, flags: int, mode: int = 0) -> int:
        handle = ctypes.c_void_p()
        context = self._call(lambda context: self._nfs.nfs_open2(context, path, flags, mode, ctypes.byref(handle)))
        number = next(self._numbers)
        self._files[number] = context, handle, threading.Lock()
        return number

    def create(self, path: str, mode: int, flags: int = os.O_WRONLY) -> int:
        return self._open(os.fsencode(path), os.O_CREAT | os.O_EXCL | os.O_RDWR, mode)

    def open(self, path: str, flags: int) -> int:
        return self._open(os.fsencode(path), flags & os.O_ACCMODE)

    def _file_call(self, name: str, fh: int, *arguments: Any) -> int:
        """Call with an open file; one whose connection is lost is stale."""
        context, handle, lock = self._files[fh]
        with lock:
            try:
                return self._ask(context, getattr(self._nfs, name)(context, handle, *arguments))
            except ConnectionError:
                raise OSError(errno.ESTALE, os.strerror(errno.ESTALE)) from None

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        parts = []
        while size > 0:
            room = ctypes.create_string_buffer(min(size, _READ_SIZE_BYTES))
            got = self._file_call("nfs_pread", fh, ctypes.c_uint64(offset), ctypes.c_uint64(len(room)), room)
            if not got:
                break
            parts.append(room.raw[:got])
            offset, size = offset + got, size - got
        return b"".join(parts)

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        done = 0
        while done < len(data):
            piece = bytes(data[done : done + _WRITE_SIZE_BYTES])
            done += self._file_call(
                "nfs_pwrite", fh, ctypes.c_uint64(offset + done), ctypes.c_uint64(len(piece)), piece
            )
        return done

    def fsync(self, path: str, datasync: int, fh: int) -> None:
        self._file_call("nfs_fsync", fh)

    def release(self, path: str, fh: int) -> None:
        context, handle, _ = self._files.pop(fh)
        if self._nfs.nfs_close(context, handle) == 0:
            self._idle.append(context)
        else:
            self._nfs.nfs_destroy_context(context)


def _answer_questions(folder: NfsFolder) -> None:
    for line in sys.stdin:
        question = json.loads(line)
        if question != "lost links":
            folder.is_link_lost = question == "lose a link"
        print(folder.lost_link_count, flush=True)


if __name__ == "__main__":
    user, *groups = map(int, sys.argv[4:])
    mounted = NfsFolder(int(sys.argv[2]), sys.argv[3], user, groups)
    threading.Thread(target=_answer_questions, args=(mounted,), daemon=True).start()
    serve(mounted, sys.argv[1])
