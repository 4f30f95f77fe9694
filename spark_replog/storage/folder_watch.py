"""Waits for new files in local folders with the kernel's inotify, called through ctypes.

A hint only. A missed event (another machine writes, a folder was replaced, the queue overflowed) only costs time: the
caller still reads the folders after a pause.
"""

from __future__ import annotations

import ctypes
import os
import select
import struct
from collections.abc import Sequence
from contextlib import suppress

from spark_replog.clock import SYSTEM_CLOCK
from spark_replog.quorum import majority_of
from spark_replog.storage.mount_table import file_system_of
from spark_replog.storage.posix_store import TEMP_PREFIX

SETTLE_MS = 2.0
"""How long to wait for the group's other folders after a first file: a journal entry needs a majority."""
_CREATED, _MOVED_IN, _OVERFLOW, _IGNORED = 0x100, 0x80, 0x4000, 0x8000
_ONLY_FOLDERS = 0x1000000
_HEAD = struct.Struct("iIII")
_READ_SIZE_BYTES = 65536


class FolderWatch:
    """Watches groups of folders for new files. Not thread-safe; a forked child must make its own.

    Args:
        groups: local paths; the folders of one group get files at the same time, as the journals of one ledger do.

    Attributes:
        has_told: whether any new file was reported. Until then, the file system may not report others' writes.

    Raises:
        OSError: this system has no inotify, no watch is left, or a folder is missing or on a network file system.
    """

    def __init__(self, groups: Sequence[Sequence[str]]) -> None:
        self._pid = os.getpid()
        self._fd = -1
        self.has_told = False
        self._libc = ctypes.CDLL(None, use_errno=True)
        if not hasattr(self._libc, "inotify_init1"):
            raise OSError("this system has no inotify")
        self._fd = self._checked(self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        self._group_of: dict[int, int] = {}
        self._needed = [majority_of(len(paths)) for paths in groups]
        for number, paths in enumerate(groups):
            for path in paths:
                if file_system_of(path).is_remote:
                    raise OSError(f"others write to {path} unseen: it is on a network")
                mask = _CREATED | _MOVED_IN | _ONLY_FOLDERS
                watch = self._checked(self._libc.inotify_add_watch(self._fd, os.fsencode(path), mask))
                self._group_of[watch] = number

    def __del__(self) -> None:
        self.close()

    @property
    def is_usable(self) -> bool:
        """Return whether this process made the watch and no watched folder has been deleted."""
        return self._fd >= 0 and self._pid == os.getpid()

    def wait(self, timeout_ms: float) -> frozenset[int]:
        """Wait for a new file in most folders of a group; return the groups where any new file was seen, and reset.

        Files since the last call count. The store's temporary files do not. All groups if events were lost. An unusable
        watch only waits.
        """
        if not self.is_usable:  # a folder was deleted during an earlier wait of the same caller
            SYSTEM_CLOCK.sleep_ms(timeout_ms)
            return frozenset()
        until_ms = SYSTEM_CLOCK.monotonic_ms() + timeout_ms
        seen: set[int] = set()
        while True:
            is_first = not seen
            if self._take(seen):
                break
            now_ms = SYSTEM_CLOCK.monotonic_ms()
            if is_first and seen:
                until_ms = min(until_ms, now_ms + SETTLE_MS)
            if now_ms >= until_ms:
                break
            poll = select.poll()
            poll.register(self._fd, select.POLLIN)
            poll.poll(until_ms - now_ms)
        self.has_told = self.has_told or bool(seen)
        return frozenset(self._group_of[watch] for watch in seen)

    def close(self) -> None:
        """Stop watching."""
        if self._fd >= 0 and self._pid == os.getpid():
            with suppress(OSError):
                os.close(self._fd)
        self._fd = -1

    def _take(self, seen: set[int]) -> bool:
        """Add the folders with new files to ``seen``; return whether the wait is over."""
        while True:
            try:
                events = os.read(self._fd, _READ_SIZE_BYTES)
            except BlockingIOError:
                break
            at = 0
            while at < len(events):
                watch, mask, _, size_bytes = _HEAD.unpack_from(events, at)
                name = events[at + _HEAD.size : at + _HEAD.size + size_bytes]
                at += _HEAD.size + size_bytes
                if mask & (_OVERFLOW | _IGNORED):
                    if mask & _IGNORED:
                        self.close()  # a folder was deleted: the caller reads the folders and makes a new watch
                    seen.update(self._group_of)
                    return True
                if not name.startswith(TEMP_PREFIX.encode()):
                    seen.add(watch)
        counts = [0] * len(self._needed)
        for watch in seen:
            counts[self._group_of[watch]] += 1
        return any(count >= needed for count, needed in zip(counts, self._needed, strict=True))

    def _checked(self, result: int) -> int:
        if result < 0:
            number = ctypes.get_errno()
            self.close()
            raise OSError(number, os.strerror(number))
        return result
