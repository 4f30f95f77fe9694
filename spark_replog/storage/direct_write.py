"""Writes large files past the page cache: O_DIRECT through a small aligned buffer.

Usually only one of several replicas is read. Through the page cache each copy costs as much memory as data, evicts
pages that readers need, and is slow while the machine finds that memory. Direct writes cost one copy into a buffer that
stays in the CPU's cache. Small files use the page cache: a tail reader reads them within milliseconds (ADR 6).
"""

from __future__ import annotations

import errno
import mmap
import os
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from spark_replog.storage.object_store import Buffer

DIRECT_SIZE_BYTES_MIN = 8 * 1024 * 1024
"""Bodies of at least this size are written directly: batch loads and backlogs, not the tail of a live log."""
ALIGN_BYTES = 4096
"""Alignment that every block device and file system accepts, for addresses, lengths and positions."""
CHUNK_SIZE_BYTES = 1024 * 1024
_O_DIRECT = getattr(os, "O_DIRECT", 0)

_free_chunks: deque[mmap.mmap] = deque()


def open_direct(name: str, folder_fd: int) -> int | None:
    """Create the file exclusively for direct writes; None if its file system or this platform has none.

    Args:
        folder_fd: descriptor of its folder.

    Raises:
        OSError: the file cannot be created; nothing is there.
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

    Args:
        fd: from `open_direct`.
        pieces: of any lengths and addresses.

    Returns:
        False if the device refuses writes of this alignment: nothing was written, and the caller
        must write through the page cache.

    Raises:
        OSError: as pwrite(2); the file holds a part.
    """
    chunk = _take_chunk()
    room = np.frombuffer(chunk, dtype=np.uint8)
    at_bytes = filled_bytes = 0
    try:
        for piece in pieces:
            rest = np.frombuffer(piece, dtype=np.uint8) if memoryview(piece).nbytes else room[:0]
            while len(rest):
                count = min(len(rest), CHUNK_SIZE_BYTES - filled_bytes)
                room[filled_bytes : filled_bytes + count] = rest[:count]  # numpy releases the GIL while it copies
                rest = rest[count:]
                filled_bytes += count
                if filled_bytes == CHUNK_SIZE_BYTES:
                    _write_whole(fd, room, at_bytes)
                    at_bytes, filled_bytes = at_bytes + filled_bytes, 0
        if filled_bytes:
            padded_bytes = -(-filled_bytes // ALIGN_BYTES) * ALIGN_BYTES
            room[filled_bytes:padded_bytes] = 0
            _write_whole(fd, room[:padded_bytes], at_bytes)
            os.ftruncate(fd, at_bytes + filled_bytes)
    except OSError as error:
        if error.errno == errno.EINVAL and not at_bytes:
            return False
        raise
    finally:
        _free_chunks.append(chunk)
    return True


def _write_whole(fd: int, block: np.ndarray[Any, np.dtype[np.uint8]], at_bytes: int) -> None:
    """Write an aligned block in full; after a short write, continue at the last aligned position."""
    done_bytes = 0
    while done_bytes < len(block):
        written_bytes = os.pwrite(fd, block[done_bytes:].data, at_bytes + done_bytes)
        if written_bytes < ALIGN_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        done_bytes += written_bytes // ALIGN_BYTES * ALIGN_BYTES


def _take_chunk() -> mmap.mmap:
    try:
        return _free_chunks.popleft()
    except IndexError:
        # Private: a forked child must never share the bytes that its parent is about to write.
        return mmap.mmap(-1, CHUNK_SIZE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
