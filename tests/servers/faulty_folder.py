"""A folder that fails, as a program: ``python -m tests.servers.faulty_folder POINT FOLDER``.

A line of JSON on standard input is what is wrong from now on: ``{"seed": 1, "faults": [[CALL, WHAT, SHARE], ...],
"stale": LOOKS}``. WHAT is the name of an error, ``"EIO after"`` (the call was made), or ``"short"`` (half of what a
read found). ``stale`` is a client with a cache of names, as of NFS: what was absent stays so for LOOKS more looks,
or until the client itself makes it. The answer counts the faults since the last line.
"""

from __future__ import annotations

import errno
import json
import os
import random
import sys
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import mfusepy

from tests.servers.mount import serve

_STAT = ("mode", "ino", "nlink", "uid", "gid", "size", "blocks", "blksize")
_TIMES = ("atime", "mtime", "ctime")


class FaultyFolder(mfusepy.Operations):
    """Makes each call in the folder below, unless something is wrong."""

    use_ns = True

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self.set({"seed": 0, "faults": [], "stale": 0})

    def set(self, wrong: dict[str, Any]) -> None:
        """Take what is wrong from now on."""
        with self._lock:
            self._draw = random.Random(wrong["seed"])
            self._faults, self._stale = wrong["faults"], wrong["stale"]
            self._absent: dict[str, int] = {}
            """Of each name that was looked for and not there: for how many looks it stays so."""
            self.done: Counter[str] = Counter()

    def _fault_of(self, call: str) -> str:
        with self._lock:
            for name, what, share in self._faults:
                if name == call and self._draw.random() < share:
                    self.done[f"{name} {what}"] += 1
                    return str(what)
        return ""

    def _do(self, call: str, perform: Callable[..., Any], *arguments: Any) -> Any:
        what = self._fault_of(call)
        if what in ("", "short") or what.endswith("after"):
            answer = perform(*arguments)
        if what not in ("", "short"):
            number = getattr(errno, what.split()[0])
            raise OSError(number, os.strerror(number))
        return answer[: len(answer) // 2] if what == "short" else answer

    def _made(self, path: str) -> None:
        with self._lock:
            self._absent.pop(path, None)

    def _below(self, path: str) -> str:
        return self._folder + path

    # Names

    def getattr(self, path: str, fh: int | None = None) -> dict[str, int]:
        with self._lock:
            left = self._absent.pop(path, 0)
            if left:
                self._absent[path] = left - 1
                self.done["stale name"] += os.path.lexists(self._below(path))
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        try:
            status = self._do("getattr", os.lstat, self._below(path))
        except FileNotFoundError:
            with self._lock:
                self._absent[path] = self._stale
            raise
        told = {f"st_{name}": getattr(status, f"st_{name}") for name in _STAT}
        return {**told, **{f"st_{name}": getattr(status, f"st_{name}_ns") for name in _TIMES}}

    def readdir(self, path: str, fh: int) -> list[tuple[str, dict[str, int], int]]:
        names = self._do("readdir", os.listdir, self._below(path))
        return [(name, {"st_ino": 1, "st_mode": 0}, 0) for name in names]

    def mkdir(self, path: str, mode: int) -> None:
        self._do("mkdir", os.mkdir, self._below(path), mode)
        self._made(path)

    def rmdir(self, path: str) -> None:
        self._do("rmdir", os.rmdir, self._below(path))

    def unlink(self, path: str) -> None:
        self._do("unlink", os.unlink, self._below(path))

    def rename(self, old: str, new: str) -> None:
        self._do("rename", os.rename, self._below(old), self._below(new))
        self._made(new)

    def link(self, target: str, source: str) -> None:
        try:
            self._do("link", os.link, self._below(source), self._below(target))
        finally:
            self._made(target)

    def chmod(self, path: str, mode: int) -> None:
        os.chmod(self._below(path), mode)

    def chown(self, path: str, uid: int, gid: int) -> None:
        os.chown(self._below(path), *(-1 if owner_id == 0xFFFFFFFF else owner_id for owner_id in (uid, gid)))

    def utimens(self, path: str, times: tuple[int, int] | None = None) -> None:
        os.utime(self._below(path))

    def fsyncdir(self, path: str, datasync: int, fh: int) -> None:
        self._do("fsyncdir", lambda: None)

    # Files

    def create(self, path: str, mode: int, flags: int = os.O_WRONLY) -> int:
        self._made(path)
        return int(self._do("create", os.open, self._below(path), os.O_CREAT | os.O_EXCL | os.O_RDWR, mode))

    def open(self, path: str, flags: int) -> int:
        return int(self._do("open", os.open, self._below(path), flags & os.O_ACCMODE))

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        return bytes(self._do("read", os.pread, fh, size, offset))

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        return int(self._do("write", os.pwrite, fh, data, offset))

    def fsync(self, path: str, datasync: int, fh: int) -> None:
        self._do("fsync", os.fsync, fh)

    def release(self, path: str, fh: int) -> None:
        os.close(fh)


def _answer_questions(folder: FaultyFolder) -> None:
    for line in sys.stdin:
        done = folder.done
        folder.set(json.loads(line))
        print(json.dumps(done), flush=True)


if __name__ == "__main__":
    mounted = FaultyFolder(sys.argv[2])
    threading.Thread(target=_answer_questions, args=(mounted,), daemon=True).start()
    serve(mounted, sys.argv[1])
