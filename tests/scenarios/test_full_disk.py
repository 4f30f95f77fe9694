"""A real full disk: a small file system of memory."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

import spark_replog
from spark_replog.cli.main import run
from spark_replog.errors import ErrorCode, ReplogError
from spark_replog.ids import new_id
from spark_replog.storage import posix_store
from spark_replog.storage.object_store import CreateOutcome
from spark_replog.storage.paths import data_key, journal_key, ledger_folders
from spark_replog.storage.posix_store import PosixStore


class TestFullDisk:
    @pytest.fixture
    def small(self, tmp_path):
        """A store on a file system of 1 MiB."""
        folder = tmp_path / "small"
        folder.mkdir()
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], check=False)
        if mounted.returncode:
            pytest.skip("mounting a small file system needs root")
        try:
            yield PosixStore(str(folder))
        finally:
            subprocess.run(["umount", "-l", str(folder)], check=True)

    def test_deletes_and_sweeps_work_on_a_full_disk_and_writes_work_after_them(self, small):
        small.make_folder("j")
        (Path(small.url.removeprefix("file://")) / "j" / f"{posix_store.TEMP_PREFIX}left").write_bytes(bytes(300_000))
        with pytest.raises(ReplogError) as raised:
            for number in range(100):
                small.create(f"j/{number}", bytes(100_000))
        assert raised.value.code is ErrorCode.REPLOG_STORE_REFUSED and type(raised.value) is ReplogError
        assert "df -h" in str(raised.value)
        while True:  # the last block too
            try:
                small.create(f"j/{new_id()}", bytes(1))
            except ReplogError as error:
                assert error.code is ErrorCode.REPLOG_STORE_REFUSED
                break
        assert small.get("j/0", size_bytes=1) == b"\0"
        small.delete("j/0")
        assert small.create("j/0", bytes(50_000)) is CreateOutcome.CREATED
        assert posix_store.sweep_temp_files(small.url, 0) == 1
        assert small.create("j/more", bytes(250_000)) is CreateOutcome.CREATED

    def test_data_objects_leave_room_for_records(self, small):
        for folder in ledger_folders("l"):
            small.make_folder(folder)
        with pytest.raises(ReplogError) as raised:
            for number in range(1_000):
                small.create(data_key("l", 0, f"{number}.arrow"), bytes(4_096), make_parent=True)
        assert raised.value.code is ErrorCode.REPLOG_STORE_REFUSED and "full" in str(raised.value)
        for number in range(4):
            assert small.create(journal_key("l", number), bytes(500)) is CreateOutcome.CREATED


@pytest.fixture
def full_roots(tmp_path):
    """Return the path of three roots, each on a file system of 4 MiB."""
    folders = [tmp_path / "store" / f"broker-{number}" for number in range(3)]
    mounted = []
    try:
        for folder in folders:
            folder.mkdir(parents=True)
            command = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)]
            if subprocess.run(command, check=False).returncode:
                pytest.skip("mounting a small file system needs root")
            mounted.append(folder)
        yield tmp_path / "store"
    finally:
        for folder in mounted:
            subprocess.run(["umount", "-l", str(folder)], check=True)


def test_rows_that_fill_all_roots_leave_room_to_delete_a_topic(full_roots):
    path = str(full_roots)
    assert run(["-q", "-s", path, "init", "--brokers", "3"]) == 0
    for topic in ("large", "small"):
        assert run(["-q", "-s", path, "topic", "create", topic]) == 0
    settings = {"delivery.timeout.ms": 5_005, "request.timeout.ms": 5_000, "compression.type": "none"}
    with pytest.raises(ReplogError, match="full"), spark_replog.open(path).producer(settings) as producer:
        for _ in range(100):
            producer.send("large", os.urandom(300_000)).result(60)
    assert run(["-q", "-s", path, "topic", "delete", "large", "-y"]) == 0
    assert run(["-s", path, "store", "gc", "--now"]) == 0
    with spark_replog.open(path).producer(settings) as producer:
        assert producer.send("small", os.urandom(300_000)).result(60).offset == 0
