"""A disk that keeps only what was flushed: power cuts for stores in local folders.

``PowerCuts`` is between ``posix_store`` and the kernel. It notes which names a folder has got and lost since its last
flush, and copies the folders as a power cut leaves them: of these names, any may be there. A writer's flush can be
stopped, as if its process was killed between the link and the flush; the flush of a reader never is.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
import threading
from collections.abc import Callable, Collection
from pathlib import Path
from random import Random
from typing import Any

import pytest

from spark_replog.storage import posix_store
from spark_replog.storage.posix_store import TEMP_PREFIX

_Folder = tuple[int, int]
Choice = Callable[[Path, str], bool]
"""(folder, name that was not flushed) -> whether the power cut keeps it as it is."""


class PowerCuts:
    """Notes what is not flushed in any folder that this process writes to. One for a test.

    Attributes:
        links: called with (folder, name) before a name is linked; may raise.
        stops: (folder, name) -> whether the writer of this name stops before it flushes the folder.
        stop: what a stopped writer does.
        stopped: how many wait for `go_on`, or have.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.links: Callable[[str, str], None] = lambda folder, name: None
        self.stops: Callable[[str, str], bool] = lambda folder, name: False
        self.stop: Callable[[], object] = self._wait
        self.stopped = 0
        self.changed = threading.Condition()
        self._made: dict[_Folder, set[str]] = {}
        self._removed: dict[_Folder, dict[str, bytes]] = {}
        self._linked = threading.local()
        self._round = 0  # of `go_on`
        monkeypatch.setattr(posix_store, "os", _Calls(self))

    def _wait(self) -> None:
        with self.changed:
            before = self._round
            self.stopped += 1
            self.changed.notify_all()
            self.changed.wait_for(lambda: self._round != before)

    def go_on(self) -> None:
        """Let the stopped writers go on; from now on none stops."""
        self.stops = lambda folder, name: False
        with self.changed:
            self._round += 1
            self.changed.notify_all()

    def cut(self, path: Path, target: Path, keeps: Choice) -> None:
        """Copy a folder as a power cut leaves it."""
        with self.changed:
            self._copy(path, target, keeps, {})

    def _copy(self, path: Path, target: Path, keeps: Choice, copies: dict[int, Path]) -> None:
        status = path.stat()
        made, removed = (changes.get(_identity(status), ()) for changes in (self._made, self._removed))
        target.mkdir()
        target.chmod(stat.S_IMODE(status.st_mode))
        for entry in sorted(os.scandir(path), key=lambda child: child.name):
            if entry.name in made and not keeps(path, entry.name):
                continue
            if entry.is_dir(follow_symlinks=False):
                self._copy(path / entry.name, target / entry.name, keeps, copies)
            elif (copy := copies.get(entry.inode())) is not None:
                os.link(copy, target / entry.name)
            else:
                copies[entry.inode()] = target / entry.name
                shutil.copy(path / entry.name, target / entry.name)
        for name in removed:
            if not (target / name).exists() and not keeps(path, name):
                (target / name).write_bytes(self._removed[_identity(status)][name])

    # -- what the store calls -------------------------------------------------------------------------

    def made(self, folder_fd: int, name: str) -> None:
        with self.changed:
            key = _identity(os.fstat(folder_fd))
            self._made.setdefault(key, set()).add(name)
            self._removed.get(key, {}).pop(name, None)
        self._linked.name = name

    def removed(self, folder_fd: int, name: str, body: bytes) -> None:
        with self.changed:
            key = _identity(os.fstat(folder_fd))
            if name in self._made.get(key, ()):
                self._made[key].discard(name)  # it was never durable, and is not again
            elif not name.startswith(TEMP_PREFIX):
                self._removed.setdefault(key, {})[name] = body

    def flushed(self, fd: int) -> None:
        status = os.fstat(fd)
        if not stat.S_ISDIR(status.st_mode):
            return
        key = _identity(status)
        with self.changed:
            made = set(self._made.get(key, ()))
        name, self._linked.name = getattr(self._linked, "name", ""), ""
        if name and self.stops(_path_of(fd), name):
            self.stop()
        with self.changed:
            self._made.get(key, set()).difference_update(made)
            self._removed.pop(key, None)


class _Calls:
    """The module ``os``, with the calls noted on which durability rests."""

    def __init__(self, cuts: PowerCuts) -> None:
        self._cuts = cuts

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def link(self, source: str, name: str, *, src_dir_fd: int, dst_dir_fd: int) -> None:
        self._cuts.links(_path_of(dst_dir_fd), name)
        # Noted first: the name is visible at once.
        os.stat(source, dir_fd=src_dir_fd)
        try:
            os.stat(name, dir_fd=dst_dir_fd, follow_symlinks=False)
        except FileNotFoundError:
            self._cuts.made(dst_dir_fd, name)
        os.link(source, name, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)

    def mkdir(self, name: str, *, dir_fd: int | None = None) -> None:
        os.mkdir(name, dir_fd=dir_fd)
        if dir_fd is not None:
            self._cuts.made(dir_fd, name)

    def unlink(self, name: str, *, dir_fd: int) -> None:
        body = b""
        if not name.startswith(TEMP_PREFIX):
            with open(os.open(name, os.O_RDONLY, dir_fd=dir_fd), "rb") as file:
                body = file.read()
        os.unlink(name, dir_fd=dir_fd)
        self._cuts.removed(dir_fd, name, body)

    def fsync(self, fd: int) -> None:
        if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_PATH:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        self._cuts.flushed(fd)  # the real disk keeps its power


def draw(rng: Random, brokers: Collection[str], share: float) -> Choice:
    """Return what a power cut of some roots (names of their folders) keeps, by chance; the others keep all."""

    def keeps(folder: Path, name: str) -> bool:
        is_cut = any(part in brokers for part in folder.parts)
        return not is_cut or rng.random() < share

    return keeps


def loses_all(folder: Path, name: str) -> bool:
    """A power cut that keeps no name that was not flushed."""
    return False


def _path_of(fd: int) -> str:
    return os.readlink(f"/proc/self/fd/{fd}")


def _identity(status: os.stat_result) -> _Folder:
    return status.st_dev, status.st_ino
