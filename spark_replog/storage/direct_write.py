"""Writes large files past the page cache: O_DIRECT through a small aligned buffer.

Usually only one of several replicas is read. Through the page cache each copy costs as much memory as data, evicts
pages that readers need, and is slow while the machine finds that memory. Direct writes cost one copy into a buffer that
stays in the CPU's cache, or, with several roots, one `AlignedCopy` for all of them. Small files use the page cache: a
tail reader reads them within milliseconds (ADR 6).
"""

from __future__ import annotations

import errno
import mmap
import os
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from itertools import takewhile
from typing import Any

import numpy as np

from spark_replog.storage.object_store import Buffer

DIRECT_SIZE_BYTES_MIN = 8 * 1024 * 1024
"""Bodies of at least this size are written directly: batch loads and backlogs, not the tail of a live log."""
ALIGN_BYTES = 4096
"""Alignment that every block device and file system accepts, for addresses, lengths and positions."""
BLOCK_SIZE_BYTES = 2 * 1024 * 1024
"""A huge page: the kernel pins and describes it to the device as one, instead of 512 pages."""
FREE_BLOCKS_MAX = 16
"""As many as a body of the default ``max.request.size`` fills."""
_VIEWS_MAX = 1024
_O_DIRECT = getattr(os, "O_DIRECT", 0)

Bytes = np.ndarray[Any, np.dtype[np.uint8]]

free_blocks: deque[mmap.mmap] = deque()
"""Blocks that wait for reuse. Clearing it returns them to the kernel."""


class AlignedCopy:
    """A copy of a body in aligned blocks, which `write_direct` writes as they are: one copy for all roots."""

    def __init__(self, pieces: Sequence[Buffer]) -> None:
        self._blocks: list[mmap.mmap] = []
        self.buffers: list[Buffer] = []
        """The body; each buffer but the last is a whole block."""
        at = BLOCK_SIZE_BYTES
        for piece in pieces:
            rest = memoryview(piece).cast("B")
            while rest:
                if at == BLOCK_SIZE_BYTES:
                    self._blocks.append(_take_block())
                    self.buffers.append(memoryview(self._blocks[-1]))
                    room, at = np.frombuffer(self._blocks[-1], dtype=np.uint8), 0
                count = min(len(rest), BLOCK_SIZE_BYTES - at)
                room[at : at + count] = np.frombuffer(rest[:count], dtype=np.uint8)  # without the GIL
                rest, at = rest[count:], at + count
        if at < BLOCK_SIZE_BYTES:
            self.buffers[-1] = memoryview(self._blocks[-1])[:at]

    def release(self) -> None:
        """Let the blocks be reused."""
        free_blocks.extend(self._blocks[: max(0, FREE_BLOCKS_MAX - len(free_blocks))])
        self._blocks = []

    def forbid_reuse(self) -> None:
        """Keep the blocks from being reused: a put that cannot be stopped may still read them."""
        self._blocks = []


def open_direct(name: str, folder_fd: int) -> int | None:
    """Create the file exclusively for direct writes; None if its file system or this platform has none.

    Raises OSError if it cannot be created: nothing is there.
    """
    if not _O_DIRECT:
        return None
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | _O_DIRECT
        return os.open(name, flags, 0o644, dir_fd=folder_fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
            raise
        with suppress(FileNotFoundError):  # Linux may create the name before it refuses the flag
            os.unlink(name, dir_fd=folder_fd)
        return None


def write_direct(fd: int, pieces: Sequence[Buffer]) -> bool:
    """Write the pieces in order from position 0, and truncate the file after the last.

    Those of an `AlignedCopy` are not copied again. False if the device refuses writes of this alignment: nothing was
    written, and the caller must write through the page cache. Raises OSError as pwritev(2): the file holds a part.
    """
    views = [np.frombuffer(piece, dtype=np.uint8) for piece in pieces if memoryview(piece).nbytes]
    aligned = list(takewhile(_is_aligned, views))
    at_bytes = filled_bytes = 0
    block = _take_block()
    room = np.frombuffer(block, dtype=np.uint8)
    try:
        at_bytes = _write_whole(fd, aligned, 0)
        for rest in views[len(aligned) :]:
            while len(rest):
                count = min(len(rest), BLOCK_SIZE_BYTES - filled_bytes)
                room[filled_bytes : filled_bytes + count] = rest[:count]  # numpy releases the GIL while it copies
                rest = rest[count:]
                filled_bytes += count
                if filled_bytes == BLOCK_SIZE_BYTES:
                    at_bytes, filled_bytes = _write_whole(fd, [room], at_bytes), 0
        if filled_bytes:
            padded_bytes = -(-filled_bytes // ALIGN_BYTES) * ALIGN_BYTES
            room[filled_bytes:padded_bytes] = 0
            _write_whole(fd, [room[:padded_bytes]], at_bytes)
            os.ftruncate(fd, at_bytes + filled_bytes)
    except OSError as error:
        if error.errno == errno.EINVAL and not at_bytes:
            return False
        raise
    finally:
        free_blocks.append(block)
    return True


def _is_aligned(view: Bytes) -> bool:
    return not (view.ctypes.data | len(view)) % ALIGN_BYTES


def _write_whole(fd: int, views: list[Bytes], at_bytes: int) -> int:
    """Write aligned views in full; after a short write, continue at the last aligned position. Return the position."""
    while views:
        written_bytes = os.pwritev(fd, [view.data for view in views[:_VIEWS_MAX]], at_bytes)
        if written_bytes < ALIGN_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        done_bytes = written_bytes // ALIGN_BYTES * ALIGN_BYTES
        at_bytes += done_bytes
        while views and done_bytes >= len(views[0]):
            done_bytes -= len(views[0])
            views = views[1:]
        if done_bytes:
            views = [views[0][done_bytes:], *views[1:]]
    return at_bytes


def _take_block() -> mmap.mmap:
    with suppress(IndexError):
        return free_blocks.popleft()
    # Private: a forked child must never share the bytes that its parent is about to write.
    block = mmap.mmap(-1, BLOCK_SIZE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without huge pages
            block.madvise(mmap.MADV_HUGEPAGE)
    return block
