"""Large files past the page cache: same bytes, same durability, same refusals as through it."""

from __future__ import annotations

import errno
import itertools
import os
import threading

import numpy as np
import pytest

from spark_replog.errors import ErrorCode, ReplogError
from spark_replog.storage import direct_write, posix_store
from spark_replog.storage.direct_write import ALIGN_BYTES, BLOCK_SIZE_BYTES, DIRECT_SIZE_BYTES_MIN, AlignedCopy
from spark_replog.storage.mount_table import MountedFileSystem
from spark_replog.storage.object_store import CreateOutcome
from spark_replog.storage.posix_store import PosixStore

CREATED = CreateOutcome.CREATED


def body(size_bytes, seed=0):
    return np.random.default_rng(seed).integers(0, 256, size_bytes, dtype=np.uint8).tobytes()


@pytest.fixture
def store(tmp_path):
    return PosixStore(f"file://{tmp_path}")


@pytest.fixture
def writes(monkeypatch):
    """Positions and sizes of direct writes; the calls that follow them."""
    log, mine = [], threading.get_ident()  # threads of other tests' stores may still write
    real = {name: getattr(os, name) for name in ("pwritev", "writev", "ftruncate", "fsync", "link")}

    def watch(name):
        def call(*args, **kwargs):
            result = real[name](*args, **kwargs)
            if threading.get_ident() == mine:
                log.append((name, args[2], sum(map(len, args[1]))) if name == "pwritev" else (name,))
            return result

        return call

    for name in real:
        monkeypatch.setattr(os, name, watch(name))
    return log


@pytest.mark.parametrize("extra_bytes", [0, 1, ALIGN_BYTES - 1, ALIGN_BYTES, BLOCK_SIZE_BYTES + 17])
def test_the_file_holds_the_pieces_whatever_their_lengths(store, tmp_path, extra_bytes, writes):
    data = body(DIRECT_SIZE_BYTES_MIN + extra_bytes)
    cuts = [0, 0, 1, 4095, 70_001, BLOCK_SIZE_BYTES * 3 + 5, len(data)]
    pieces = [memoryview(data)[start:stop] for start, stop in itertools.pairwise(cuts)]
    assert store.create("big", pieces) is CREATED
    assert (tmp_path / "big").read_bytes() == data
    assert {size for _, _, size in (item for item in writes if item[0] == "pwritev")} <= set(
        range(ALIGN_BYTES, BLOCK_SIZE_BYTES + 1, ALIGN_BYTES)
    ), "every write is of whole blocks"
    assert ("writev",) not in writes


def test_a_direct_file_is_flushed_before_its_name_exists(store, writes):
    store.create("big", body(DIRECT_SIZE_BYTES_MIN + 5))
    names = [item[0] for item in writes]
    assert names[-5:] == ["pwritev", "ftruncate", "fsync", "link", "fsync"]


def test_small_bodies_and_network_mounts_keep_to_the_page_cache(tmp_path, writes, monkeypatch):
    PosixStore(f"file://{tmp_path}").create("small", body(DIRECT_SIZE_BYTES_MIN - 1))
    monkeypatch.setattr(posix_store, "file_system_of", lambda path: MountedFileSystem("nfs4", frozenset()))
    PosixStore(f"file://{tmp_path}").create("far", body(DIRECT_SIZE_BYTES_MIN))
    assert not [item for item in writes if item[0] == "pwritev"]
    assert ("writev",) in writes


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EOPNOTSUPP])
def test_a_file_system_without_direct_writes_is_written_through_the_cache(store, tmp_path, monkeypatch, writes, number):
    real_open = os.open

    def refuse(path, flags, *args, **kwargs):
        if flags & os.O_DIRECT:
            real_open(path, flags & ~os.O_DIRECT, *args, **kwargs)  # as Linux: the name stays behind
            raise OSError(number, os.strerror(number))
        return real_open(path, flags, *args, **kwargs)

    monkeypatch.setattr(os, "open", refuse)
    data = body(DIRECT_SIZE_BYTES_MIN)
    assert store.create("big", data) is CREATED
    assert (tmp_path / "big").read_bytes() == data
    assert os.listdir(tmp_path) == ["big"]
    assert ("writev",) in writes


def test_a_device_that_refuses_the_alignment_gets_the_bytes_through_the_cache(store, tmp_path, monkeypatch):
    def refuse(*args):
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(os, "pwritev", refuse)
    data = body(DIRECT_SIZE_BYTES_MIN)
    assert store.create("big", data) is CREATED
    assert (tmp_path / "big").read_bytes() == data
    assert os.listdir(tmp_path) == ["big"]


def test_a_short_write_goes_on_at_the_last_whole_block(store, tmp_path, monkeypatch):
    real_pwritev, calls = os.pwritev, []

    def short(fd, views, position):
        calls.append(position)
        return real_pwritev(fd, [views[0][: ALIGN_BYTES * 3]] if len(calls) == 1 else views, position)

    monkeypatch.setattr(os, "pwritev", short)
    data = body(DIRECT_SIZE_BYTES_MIN + 9)
    store.create("big", data)
    assert (tmp_path / "big").read_bytes() == data
    assert calls[:2] == [0, ALIGN_BYTES * 3]


@pytest.mark.parametrize("written_bytes", [None, 100])
def test_a_full_disk_is_refused_and_leaves_nothing(store, tmp_path, monkeypatch, written_bytes):
    real_pwritev, calls = os.pwritev, []

    def full(fd, views, position):
        calls.append(position)
        if len(calls) < 3:
            return real_pwritev(fd, views, position)
        if written_bytes is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return written_bytes  # the last bytes of a disk: less than a block

    monkeypatch.setattr(os, "pwritev", full)
    with pytest.raises(ReplogError) as raised:
        store.create("big", body(DIRECT_SIZE_BYTES_MIN))
    assert raised.value.code is ErrorCode.REPLOG_STORE_REFUSED
    assert f"df -h {tmp_path}" in str(raised.value)
    assert os.listdir(tmp_path) == []


def test_writers_of_one_process_never_share_a_buffer(store, tmp_path):
    bodies = {f"big{number}": body(DIRECT_SIZE_BYTES_MIN + number, seed=number) for number in range(6)}
    threads = [threading.Thread(target=store.create, args=item) for item in bodies.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name, data in bodies.items():
        assert (tmp_path / name).read_bytes() == data


@pytest.mark.parametrize("extra_bytes", [0, 1, ALIGN_BYTES, BLOCK_SIZE_BYTES - 1])
def test_an_aligned_copy_is_written_as_it_is_to_each_root(store, tmp_path, extra_bytes, writes):
    data = body(DIRECT_SIZE_BYTES_MIN + extra_bytes)
    cuts = [0, 0, 1, 4095, 70_001, BLOCK_SIZE_BYTES * 3 + 5, len(data)]
    copy = AlignedCopy([memoryview(data)[start:stop] for start, stop in itertools.pairwise(cuts)])
    for name in ("one", "two"):
        assert store.create(name, copy.buffers) is CREATED
        assert (tmp_path / name).read_bytes() == data
    padded_bytes = -(-extra_bytes // ALIGN_BYTES) * ALIGN_BYTES
    whole_bytes = len(data) if padded_bytes == extra_bytes else DIRECT_SIZE_BYTES_MIN
    rest = [("pwritev", whole_bytes, padded_bytes)] if padded_bytes > extra_bytes else []
    assert [write for write in writes if write[0] == "pwritev"] == [("pwritev", 0, whole_bytes), *rest] * 2


def test_a_short_write_of_several_views_goes_on_in_the_view_where_it_ended(store, tmp_path, monkeypatch):
    real_pwritev, calls = os.pwritev, []

    def short(fd, views, position):
        calls.append(position)
        return real_pwritev(fd, [*views[:1], views[1][: ALIGN_BYTES + 512]] if len(calls) == 1 else views, position)

    monkeypatch.setattr(os, "pwritev", short)
    data = body(DIRECT_SIZE_BYTES_MIN)
    store.create("big", AlignedCopy([data]).buffers)
    assert (tmp_path / "big").read_bytes() == data
    assert calls == [0, BLOCK_SIZE_BYTES + ALIGN_BYTES]


def test_a_released_copy_gives_its_blocks_to_the_next_and_a_forbidden_one_does_not(monkeypatch):
    monkeypatch.setattr(direct_write, "free_blocks", direct_write.deque())
    first = AlignedCopy([body(2 * BLOCK_SIZE_BYTES)])
    first.release()
    first.release()
    assert len(direct_write.free_blocks) == 2
    late = AlignedCopy([body(2 * BLOCK_SIZE_BYTES, seed=1)])
    assert not direct_write.free_blocks
    late.forbid_reuse()
    late.release()
    assert not direct_write.free_blocks
    AlignedCopy([body(2 * BLOCK_SIZE_BYTES, seed=2)])
    assert b"".join(late.buffers) == body(2 * BLOCK_SIZE_BYTES, seed=1)
    most = AlignedCopy([bytes((direct_write.FREE_BLOCKS_MAX + 3) * BLOCK_SIZE_BYTES)])
    most.release()
    assert len(direct_write.free_blocks) == direct_write.FREE_BLOCKS_MAX


def test_buffers_are_used_again(store, monkeypatch):
    monkeypatch.setattr(direct_write, "free_blocks", direct_write.deque())
    for number in range(3):
        store.create(f"big{number}", body(DIRECT_SIZE_BYTES_MIN))
    assert len(direct_write.free_blocks) == 1
