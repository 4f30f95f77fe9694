from __future__ import annotations

import errno
import os
import stat
import threading
from contextlib import suppress

import pytest

from spark_replog.errors import CorruptDataError, ErrorCode, OutcomeUnknownError, ReplogError, RetriableError
from spark_replog.storage import posix_store
from spark_replog.storage.mount_table import MountedFileSystem
from spark_replog.storage.object_store import CreateOutcome
from spark_replog.storage.paths import ROOT_FILE_KEY
from spark_replog.storage.posix_store import PosixStore
from spark_replog.storage.retrying_store import RetryingStore

CREATED, EXISTS = CreateOutcome.CREATED, CreateOutcome.EXISTS


@pytest.fixture
def root(tmp_path):
    path = tmp_path / "root"
    (path / "j").mkdir(parents=True)
    return path


@pytest.fixture
def store(root):
    return PosixStore(f"file://{root}")


class Calls:
    """Records the calls that durability rests on, in order, and lets one of them fail.

    Of the test's thread alone: those of other tests' stores may still run.
    """

    def __init__(self, monkeypatch):
        self.log = []
        self._thread = threading.get_ident()
        self.failures = {}
        self.before = {}
        self._real = {name: getattr(os, name) for name in ("fsync", "link", "unlink", "writev", "mkdir")}
        for name in self._real:
            monkeypatch.setattr(os, name, self._wrapper(name))

    def fail(self, event, number):
        self.failures[event] = OSError(number, os.strerror(number))

    def _wrapper(self, name):
        def call(*args, **kwargs):
            if threading.get_ident() != self._thread:
                return self._real[name](*args, **kwargs)
            event = self._event(name, args)
            if event in self.before:
                self.before[event]()
            if event in self.failures:
                raise self.failures[event]
            result = self._real[name](*args, **kwargs)
            self.log.append(event)
            return result

        return call

    @staticmethod
    def _event(name, args):
        if name != "fsync":
            return name
        is_folder = stat.S_ISDIR(os.fstat(args[0]).st_mode)
        return (
            f"fsync folder {os.path.basename(os.readlink(f'/proc/self/fd/{args[0]}'))}" if is_folder else "fsync file"
        )


@pytest.fixture
def calls(monkeypatch):
    return Calls(monkeypatch)


def refused(raised):
    return raised.value.code is ErrorCode.REPLOG_STORE_REFUSED and type(raised.value) is ReplogError


class TestDurability:
    @pytest.mark.guarantee("G2")
    def test_create_flushes_file_then_links_then_flushes_folder(self, store, calls):
        assert store.create("j/0", b"x") is CREATED
        assert calls.log == ["writev", "fsync file", "link", "fsync folder j", "unlink"]

    def test_loser_flushes_the_folder_before_it_says_exists(self, store, calls):
        store.create("j/0", b"x")
        calls.log.clear()
        assert store.create("j/0", b"y") is EXISTS
        assert calls.log == ["writev", "fsync file", "fsync folder j", "unlink"]

    def test_without_fsync_nothing_is_flushed(self, root, calls):
        store = PosixStore(str(root), fsync=False)
        assert store.create("j/0", b"x") is CREATED
        assert store.create("j/g/0", b"x", make_parent=True) is CREATED
        assert store.create("j/0", b"x") is EXISTS
        assert not [event for event in calls.log if event.startswith("fsync")]

    def test_a_new_parent_is_durable_before_its_first_object(self, store, calls):
        assert store.create("j/000001/a", b"x", make_parent=True) is CREATED
        assert calls.log == [
            "mkdir",
            "fsync folder j",
            "writev",
            "fsync file",
            "link",
            "fsync folder 000001",
            "unlink",
        ]
        calls.log.clear()
        assert store.create("j/000001/b", b"x", make_parent=True) is CREATED
        assert calls.log == ["writev", "fsync file", "link", "fsync folder 000001", "unlink"]

    def test_a_parent_that_another_process_made_is_flushed_too(self, store, root, calls):
        (root / "j" / "000001").mkdir()
        calls.log.clear()
        store.create("j/000001/a", b"x", make_parent=True)
        assert calls.log.index("fsync folder j") < calls.log.index("link")

    def test_a_parent_that_was_removed_is_made_again(self, store, root, calls):
        store.create("j/000001/a", b"x", make_parent=True)
        store.delete("j/000001/a")
        store.delete("j/000001/")
        assert not (root / "j" / "000001").exists()
        calls.log.clear()
        assert store.create("j/000001/a", b"x", make_parent=True) is CREATED
        assert "fsync folder j" in calls.log

    def test_a_parent_that_was_replaced_is_flushed_again(self, store, root, calls):
        store.create("j/000001/a", b"x", make_parent=True)
        (root / "other").mkdir()
        os.rename(root / "j" / "000001", root / "away")
        os.rename(root / "other", root / "j" / "000001")
        calls.log.clear()
        assert store.create("j/000001/a", b"x", make_parent=True) is CREATED
        assert calls.log.index("fsync folder j") < calls.log.index("link")

    def test_make_folder_flushes_every_level(self, tmp_path, calls):
        store = PosixStore(str(tmp_path / "new" / "root"))
        store.make_folder("")
        assert calls.log == ["mkdir", f"fsync folder {tmp_path.name}", "mkdir", "fsync folder new"]
        calls.log.clear()
        store.make_folder("a/b")
        assert calls.log == ["mkdir", "fsync folder root", "mkdir", "fsync folder a"]


class TestVisibility:
    def test_nothing_is_visible_before_the_link(self, store, calls):
        seen = []

        def look():
            seen.append((store.get("j/0"), list(store.list_keys("j/"))))

        calls.before["fsync file"] = calls.before["link"] = look
        store.create("j/0", b"whole")
        assert seen == [(None, []), (None, [])]
        assert store.get("j/0") == b"whole"

    def test_a_killed_writer_leaves_no_name(self, store, root, calls):
        class Killed(BaseException):
            pass

        def die():
            raise Killed

        calls.before["link"] = die
        with pytest.raises(Killed):
            store.create("j/0", b"x")
        del calls.before["link"]
        assert list(store.list_keys("")) == [] and store.get("j/0") is None
        assert all(name.startswith(posix_store.TEMP_PREFIX) for name in os.listdir(root / "j"))
        assert store.create("j/0", b"y") is CREATED

    def test_silly_renamed_files_of_nfs_are_not_listed(self, store, root):
        (root / "j" / ".nfs0000abcd").write_bytes(b"x")
        assert list(store.list_keys("j/")) == []

    def test_short_writes_are_continued(self, store, monkeypatch):
        real = os.writev
        monkeypatch.setattr(os, "writev", lambda fd, views: real(fd, [views[0][: max(1, len(views[0]) // 2)]]))
        body = os.urandom(1000)
        assert store.create("j/0", [body[:10], b"", body[10:]]) is CREATED
        assert store.get("j/0") == body

    @pytest.mark.parametrize("start", [0, 7])
    def test_short_reads_are_continued(self, store, monkeypatch, start):
        body = os.urandom(5000)
        store.create("j/0", body)
        real = os.pread
        monkeypatch.setattr(os, "pread", lambda fd, size_bytes, at: real(fd, min(size_bytes, 999), at))
        assert store.get("j/0", start=start) == body[start:]
        assert store.get("j/0", start=start, size_bytes=9000) == body[start:]

    def test_no_descriptor_is_left_open(self, store, root, calls):
        def open_now():
            paths = []
            for name in os.listdir("/proc/self/fd"):
                with suppress(OSError):  # closed meanwhile
                    paths.append(os.readlink(f"/proc/self/fd/{name}"))
            return sum(path.startswith(str(root)) for path in paths)  # threads of other tests' stores open some too

        store.create("j/0", bytes(100_000))
        before = open_now()
        for _ in range(3):
            store.create("j/0", b"other")
            store.get("j/0", size_bytes=10)
            bytes(store.get("j/0"))  # a map lives as long as its view
            list(store.list_keys("j/"))
            store.make_folder("a/b")
        assert open_now() == before
        for event in ("writev", "fsync file", "fsync folder j"):
            calls.failures.clear()
            calls.fail(event, errno.EIO)
            with pytest.raises(ReplogError):
                store.create("j/1", b"x")
        assert open_now() == before

    def test_no_temp_file_is_left(self, store, root, calls):
        store.create("j/0", b"x")
        store.create("j/0", b"y")
        calls.fail("link", errno.EPERM)
        with pytest.raises(ReplogError):
            store.create("j/1", b"x")
        assert os.listdir(root / "j") == ["0"]


class TestNamesThatAreNotDurableYet:
    """Between a writer's link and its flush of the folder, others see a name that a power failure takes back."""

    @pytest.fixture
    def left(self, root, calls):
        """Return a function that leaves a file as a writer that was killed after its link."""

        def leave(name):
            (root / "j" / f".tmp-{name}").write_bytes(b"x")
            os.link(root / "j" / f".tmp-{name}", root / "j" / name)
            calls.log.clear()

        return leave

    @pytest.mark.guarantee("G2")
    @pytest.mark.parametrize("read", ["get", "list"])
    def test_who_finds_one_flushes_its_folder_first(self, store, root, calls, read):
        other = PosixStore(str(root))

        def look():
            del calls.before["fsync folder j"]
            if read == "get":
                assert other.get("j/0") == b"x"
            else:
                assert [info.key for info in other.list_keys("j/")] == ["j/0"]
            assert calls.log[-2:] == ["link", "fsync folder j"]

        calls.before["fsync folder j"] = look
        assert store.create("j/0", b"x") is CREATED
        assert calls.log == ["writev", "fsync file", "link", "fsync folder j", "fsync folder j", "unlink"]

    def test_a_name_whose_writer_is_done_costs_no_flush(self, store, root, calls):
        store.create("j/0", b"x")
        calls.log.clear()
        other = PosixStore(str(root))
        assert other.get("j/0") == b"x"
        assert len(list(other.list_keys("j/"))) == 1
        assert calls.log == []

    def test_a_name_whose_writer_died_is_flushed_once_in_each_process(self, store, root, calls, left, monkeypatch):
        left("0")
        left("1")
        for reader in (store, PosixStore(str(root))):
            calls.log.clear()
            for key in ("j/0", "j/1", "j/0", "j/1"):
                assert reader.get(key, size_bytes=1) == b"x"
            assert calls.log == ["fsync folder j"] * 2
        (root / "j" / ".tmp-0").unlink()
        (root / "j" / "0").unlink()
        left("0")  # another file under this name
        calls.log.clear()
        assert store.get("j/0") == b"x"
        assert calls.log == ["fsync folder j"]
        monkeypatch.setattr(posix_store, "SETTLED_KEYS_MAX", 1)
        left("2")
        for key in ("j/2", "j/1", "j/1", "j/2"):
            assert store.get(key) == b"x"
        assert len(calls.log) == 3, "one is remembered"

    @pytest.mark.parametrize("read", ["get", "list"])
    def test_what_cannot_be_flushed_is_not_returned(self, store, calls, left, read):
        left("0")
        calls.fail("fsync folder j", errno.EIO)
        for _ in range(2):
            with pytest.raises(RetriableError) as raised:
                store.get("j/0") if read == "get" else list(store.list_keys("j/"))
            assert raised.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        calls.failures.clear()
        assert store.get("j/0") == b"x"

    def test_a_writer_that_could_not_flush_leaves_the_second_link_for_readers(self, store, root, calls):
        calls.fail("fsync folder j", errno.EIO)
        with pytest.raises(OutcomeUnknownError):
            RetryingStore(store, deadline_ms=0).create("j/0", b"x")
        assert (root / "j" / "0").stat().st_nlink == 2
        calls.failures.clear()
        calls.log.clear()
        assert RetryingStore(store, deadline_ms=0).create("j/0", b"x") is CREATED
        assert "fsync folder j" in calls.log

    def test_an_interrupted_writer_leaves_the_second_link_too(self, store, root, calls):
        calls.failures["fsync folder j"] = KeyboardInterrupt()
        with pytest.raises(KeyboardInterrupt):
            store.create("j/0", b"x")
        assert (root / "j" / "0").stat().st_nlink == 2

    def test_a_sweep_flushes_the_name_before_it_takes_the_second_link(self, store, calls, left):
        left("0")
        assert posix_store.sweep_temp_files(store.url, -1_000_000) == 1
        assert calls.log == ["fsync folder j", "unlink"]

    def test_without_fsync_nothing_is_flushed(self, root, calls, left):
        left("0")
        store = PosixStore(str(root), fsync=False)
        assert store.get("j/0") == b"x"
        assert len(list(store.list_keys("j/"))) == 1
        assert calls.log == []

    def test_where_the_folder_may_not_be_listed_the_file_is_flushed(self, store, calls, left, monkeypatch):
        left("0")
        real = os.open

        def open_no_folder(path, *args, **kwargs):
            if path == ".":
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            return real(path, *args, **kwargs)

        monkeypatch.setattr(os, "open", open_no_folder)
        assert store.get("j/0") == b"x"
        assert calls.log == ["fsync file"]

    @pytest.mark.parametrize("number", [0, errno.EROFS, errno.EACCES, errno.ENOSYS])
    def test_on_a_network_the_server_is_made_to_commit_the_folder(self, store, root, calls, left, monkeypatch, number):
        left("0")
        os.utime(root / "j", (1, 1))
        nfs = MountedFileSystem("nfs4", frozenset())
        monkeypatch.setattr(posix_store, "file_system_of", lambda path: nfs)
        if number:
            refuse = OSError(number, os.strerror(number))
            monkeypatch.setattr(os, "utime", lambda *_: (_ for _ in ()).throw(refuse))
        assert store.get("j/0") == b"x", "a reader that may not write reads all the same"
        assert ((root / "j").stat().st_mtime > 1) is (number == 0)


class TestSweep:
    """Ages are the file system's: of a file made now, whatever else lies there."""

    @pytest.fixture
    def temp_files(self, root):
        def make(**ages_seconds):
            paths = [root / "j" / f"{posix_store.TEMP_PREFIX}{name}" for name in ages_seconds]
            for path, age in zip(paths, ages_seconds.values(), strict=True):
                path.write_bytes(b"part")
                now = path.stat().st_mtime
                os.utime(path, (now - age, now - age))
            return paths

        return make

    def test_old_ones_go_even_where_nothing_was_written_since(self, store, root, temp_files):
        store.create("j/0", b"x")
        old, young = temp_files(old=100, young=50)
        for path in (root, root / "j", root / "j" / "0"):
            os.utime(path, (1, 1))
        assert posix_store.sweep_temp_files(store.url, 75_000) == 1
        assert (old.exists(), young.exists()) == (False, True)
        assert store.get("j/0") == b"x"

    def test_no_file_is_made_to_sweep_as_a_full_disk_takes_none(self, store, temp_files, monkeypatch):
        (old,) = temp_files(old=100)
        real = os.open

        def full(path, flags, *args, **kwargs):
            if flags & os.O_CREAT:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(path, flags, *args, **kwargs)

        monkeypatch.setattr(os, "open", full)
        assert posix_store.sweep_temp_files(store.url, 75_000) == 1
        store.delete("j/0")
        assert not old.exists()

    def test_a_dry_run_counts_them_on_a_read_only_root(self, store, temp_files, monkeypatch):
        old, _ = temp_files(old=100, young=50)

        def read_only(*args, **kwargs):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))

        for name in ("utime", "unlink"):
            monkeypatch.setattr(os, name, read_only)
        assert posix_store.sweep_temp_files(store.url, 75_000, is_dry_run=True) == 1
        assert old.exists()

    def test_a_file_from_the_future_makes_no_other_one_old(self, store, root, temp_files):
        (root / "j" / "0").write_bytes(b"x")
        os.utime(root / "j" / "0", (2**32, 2**32))
        (young,) = temp_files(young=50)
        assert posix_store.sweep_temp_files(store.url, 75_000) == 0
        assert young.exists()
        assert sorted(os.listdir(root)) == ["j"]


class TestErrors:
    def test_lost_answer_of_link_on_nfs_is_success(self, store, monkeypatch):
        real = os.link

        def link(*args, **kwargs):
            real(*args, **kwargs)
            raise FileExistsError(errno.EEXIST, "the retransmission found our own name")

        monkeypatch.setattr(os, "link", link)
        assert store.create("j/0", b"x") is CREATED

    @pytest.mark.parametrize("event", ["fsync folder j", "link"])
    def test_a_failure_from_the_link_on_is_unknown(self, store, calls, event):
        calls.fail(event, errno.EIO)
        with pytest.raises(OutcomeUnknownError) as raised:
            store.create("j/0", b"x")
        assert raised.value.code is ErrorCode.REPLOG_STORE_OUTCOME_UNKNOWN

    def test_a_loser_that_cannot_flush_does_not_say_exists(self, store, calls):
        store.create("j/0", b"x")
        calls.fail("fsync folder j", errno.EIO)
        with pytest.raises(OutcomeUnknownError):
            store.create("j/0", b"y")

    @pytest.mark.parametrize(
        ("event", "number"),
        [
            ("writev", errno.ENOSPC),
            ("writev", errno.EDQUOT),
            ("fsync file", errno.EIO),
            ("link", errno.EPERM),
            ("link", errno.EROFS),
            ("link", errno.ENOENT),
        ],
    )
    def test_a_definite_failure_is_refused_and_leaves_nothing(self, store, root, calls, event, number):
        calls.fail(event, number)
        with pytest.raises(ReplogError) as raised:
            store.create("j/0", b"x")
        assert refused(raised)
        assert os.listdir(root / "j") == []

    @pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS])
    def test_a_file_system_without_hard_links_is_named(self, store, root, calls, monkeypatch, number):
        exfat = MountedFileSystem("exfat", frozenset())
        monkeypatch.setattr(posix_store, "file_system_of", lambda path: exfat)
        calls.fail("link", number)
        with pytest.raises(ReplogError, match="exfat") as raised:
            store.create("j/0", b"x")
        assert refused(raised)
        assert os.listdir(root / "j") == []

    def test_nobody_knows_whose_name_it_is_once_the_temp_file_is_swept(self, store, root, calls):
        # The answer to our own LINK was lost, and a repair with a wrong clock took the temp file meanwhile.
        store.create("j/0", b"x")
        calls.before["link"] = lambda: [os.unlink(path) for path in (root / "j").glob(".tmp-*")] and None
        calls.failures["link"] = FileExistsError(errno.EEXIST, "exists")
        with pytest.raises(OutcomeUnknownError):
            store.create("j/0", b"x")

    def test_a_file_where_a_folder_must_be_is_refused_at_once(self, tmp_path):
        (tmp_path / "file").write_bytes(b"")
        store = PosixStore(str(tmp_path / "file" / "root"))
        for call in (lambda: store.make_folder(""), lambda: store.make_folder("a"), lambda: store.create("a", b"x")):
            with pytest.raises(ReplogError, match="REPLOG_STORE_REFUSED") as raised:
                call()
            assert refused(raised)

    @pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES])
    def test_a_folder_that_cannot_be_made_is_refused_at_once(self, store, calls, number):
        calls.fail("mkdir", number)
        with pytest.raises(ReplogError) as raised:
            store.make_folder("k")
        assert refused(raised)

    def test_a_folder_on_a_failing_disk_is_tried_again(self, store, calls):
        calls.fail("mkdir", errno.EIO)
        with pytest.raises(RetriableError) as raised:
            store.make_folder("k")
        assert raised.value.code is ErrorCode.KAFKA_STORAGE_ERROR

    def test_stale_handle_is_unknown(self, store, calls):
        calls.fail("link", errno.ESTALE)
        with pytest.raises(OutcomeUnknownError):
            store.create("j/0", b"x")

    @pytest.mark.parametrize(
        ("number", "code"), [(errno.EIO, ErrorCode.KAFKA_STORAGE_ERROR), (errno.EPERM, ErrorCode.REPLOG_STORE_REFUSED)]
    )
    def test_a_delete_that_failed_says_so(self, store, calls, number, code):
        store.create("j/0", b"x")
        calls.fail("unlink", number)
        with pytest.raises(RetriableError) as raised:
            store.delete("j/0")
        assert raised.value.code is code
        assert store.get("j/0") == b"x"

    def test_failing_disk_is_retriable_on_reads(self, store, monkeypatch):
        store.create("j/0", b"x")

        def fail(*args):
            raise OSError(errno.EIO, "Input/output error")

        monkeypatch.setattr(os, "pread", fail)
        with pytest.raises(RetriableError) as raised:
            store.get("j/0")
        assert raised.value.code is ErrorCode.KAFKA_STORAGE_ERROR

    def test_no_permission_is_told_as_such(self, store, monkeypatch):
        def fail(*args, **kwargs):
            raise PermissionError(errno.EACCES, "Permission denied")

        monkeypatch.setattr(os, "open", fail)
        with pytest.raises(RetriableError) as raised:
            store.get("j/0")
        assert raised.value.code is ErrorCode.REPLOG_STORE_REFUSED
        with pytest.raises(ReplogError) as raised:
            store.create("j/0", b"x")
        assert refused(raised)

    def test_a_second_link_made_by_a_backup_does_not_make_a_lost_create_look_won(self, store, root, calls, tmp_path):
        # cp -al of the whole root, between the write of the temp file and its link.
        store.create("j/0", b"the other writer's")

        def back_up():
            for path in (root / "j").glob(".tmp-*"):
                os.link(path, tmp_path / f"backup-{path.name}")

        calls.before["fsync file"] = back_up
        assert store.create("j/0", b"ours") is EXISTS
        assert len(list(tmp_path.glob("backup-*"))) == 1
        assert store.get("j/0") == b"the other writer's"

    def test_a_full_disk_says_which_and_what_to_type(self, store, root, calls):
        calls.fail("writev", errno.ENOSPC)
        with pytest.raises(ReplogError) as raised:
            store.create("j/0", b"x")
        assert refused(raised) and f"df -h {root}" in str(raised.value)


class TestSymbolicLinks:
    """A link below the root could lead out of it: nothing is read, written, listed or deleted through one."""

    @pytest.fixture
    def outside(self, tmp_path, root):
        outside = tmp_path / "outside"
        (outside / "g").mkdir(parents=True)
        (outside / "g" / "secret").write_bytes(b"secret")
        (root / "j" / "folder").symlink_to(outside)
        (root / "j" / "file").symlink_to(outside / "g" / "secret")
        return outside

    @pytest.mark.parametrize(
        "call",
        [
            lambda store: store.get("j/file"),
            lambda store: store.get("j/folder/g/secret"),
            lambda store: store.create("j/folder/new", b"x"),
            lambda store: store.create("j/folder/g/new", b"x", make_parent=True),
            lambda store: store.create("j/folder/x/new", b"x", make_parent=True),
            lambda store: store.make_folder("j/folder/x"),
            lambda store: store.make_folder("j/folder"),
            lambda store: list(store.list_keys("j/folder/")),
            lambda store: list(store.list_keys("")),
            lambda store: store.delete("j/folder/g/secret"),
        ],
    )
    def test_nothing_goes_through_a_link(self, store, outside, call):
        with pytest.raises(ReplogError, match="symbolic link") as raised:
            call(store)
        assert raised.value.code is ErrorCode.REPLOG_STORE_REFUSED and store.url in str(raised.value)
        assert sorted(path.name for path in outside.rglob("*")) == ["g", "secret"]
        assert (outside / "g" / "secret").read_bytes() == b"secret"

    def test_a_folder_that_becomes_a_link_between_two_calls_is_noticed(self, store, root, outside):
        store.create("j/000001/a", b"x", make_parent=True)
        os.rename(root / "j" / "000001", root / "j" / "000001.away")
        (root / "j" / "000001").symlink_to(outside)
        with pytest.raises(ReplogError, match="symbolic link"):
            store.create("j/000001/b", b"x", make_parent=True)
        assert not (outside / "b").exists()

    @pytest.mark.parametrize("linked", ["j", "j/000001", "j/000001/secret"])
    def test_nothing_is_read_through_a_link_in_the_way_to_a_known_folder(self, store, root, outside, linked):
        store.create("j/000001/secret", b"x", make_parent=True)
        assert store.get("j/000001/secret") == b"x"
        if linked == "j":
            (outside / "000001").mkdir()
        os.rename(root / linked, root / f"{linked}.away")
        (root / linked).symlink_to(outside if linked != "j/000001/secret" else outside / "secret")
        for key in ("j/000001/secret", "j/000001/absent")[: 1 if linked == "j/000001/secret" else 2]:
            with pytest.raises(ReplogError, match="symbolic link"):
                store.get(key)

    def test_an_absent_folder_is_not_looked_for_through_a_link(self, store, root, outside):
        (root / "j" / "inner").mkdir()
        assert store.get("j/inner/absent/a") is None
        os.rename(root / "j" / "inner", root / "j" / "inner.away")
        (root / "j" / "inner").symlink_to(outside)
        with pytest.raises(ReplogError, match="symbolic link"):
            store.get("j/inner/absent/a")

    def test_another_folder_in_the_place_of_a_known_one_is_read(self, store, root):
        store.create("j/000001/a", b"x", make_parent=True)
        assert store.get("j/000001/a") == b"x"
        os.rename(root / "j" / "000001", root / "j" / "000001.away")
        (root / "j" / "000001").mkdir()
        (root / "j" / "000001" / "a").write_bytes(b"y")
        assert store.get("j/000001/a") == b"y" and store.get("j/000001/b") is None

    @pytest.mark.parametrize("key, cost", [("j/b", ["open", "lstat"]), ("j/absent/b", ["lstat", "lstat"])])
    def test_an_absent_file_or_folder_in_a_known_folder_costs_two_looks(self, store, monkeypatch, key, cost):
        store.create("j/a", b"x")
        assert store.get(key) is None
        looks = []

        def watch(name, real):
            def call(*args, **kwargs):
                looks.append((threading.get_ident(), name))
                return real(*args, **kwargs)

            monkeypatch.setattr(os, name, call)

        for name in ("open", "stat", "lstat", "fstat", "close"):
            watch(name, getattr(os, name))
        assert store.get(key) is None
        assert [name for thread, name in looks if thread == threading.get_ident()] == cost

    def test_the_root_itself_may_be_a_link(self, root, tmp_path):
        (tmp_path / "name").symlink_to(root)
        linked = PosixStore(str(tmp_path / "name"))
        assert linked.create("j/0", b"x") is CREATED
        assert PosixStore(str(root)).get("j/0") == b"x"

    def test_a_pipe_in_the_place_of_a_file_does_not_block(self, store, root):
        os.mkfifo(root / "j" / "pipe")
        with pytest.raises(RetriableError) as raised:
            store.get("j/pipe", size_bytes=10)
        assert raised.value.code is ErrorCode.KAFKA_STORAGE_ERROR


class TestModes:
    """New folders and files have the group and mode of the folder above, whatever the umask."""

    @pytest.fixture(params=[0o000, 0o022, 0o077, 0o027])
    def umask(self, request):
        before = os.umask(request.param)
        yield
        os.umask(before)

    @pytest.mark.parametrize(
        ("root_mode", "file_mode"), [(0o755, 0o644), (0o2775, 0o644), (0o3770, 0o640), (0o700, 0o600), (0o750, 0o640)]
    )
    def test_mode_comes_from_above(self, store, root, umask, root_mode, file_mode):
        root.chmod(root_mode)
        store.make_folder("ledgers/a/data")
        assert store.create("ledgers/a/data/000001/x", b"x", make_parent=True) is CREATED
        for folder in ("ledgers", "ledgers/a", "ledgers/a/data", "ledgers/a/data/000001"):
            assert stat.S_IMODE((root / folder).stat().st_mode) == root_mode
        assert stat.S_IMODE((root / "ledgers/a/data/000001/x").stat().st_mode) == file_mode

    def test_a_folder_that_exists_keeps_its_mode(self, store, root, umask):
        (root / "j").chmod(0o2711)
        store.make_folder("j")
        store.create("j/0", b"x", make_parent=True)
        assert stat.S_IMODE((root / "j").stat().st_mode) == 0o2711

    @pytest.mark.skipif(os.getuid() != 0, reason="needs root, to give a folder to another group")
    def test_group_comes_from_above(self, store, root, umask):
        os.chown(root, -1, 4321)
        store.make_folder("ledgers/a")
        store.create("ledgers/a/0", b"x")
        assert {path.stat().st_gid for path in (root / "ledgers").rglob("*")} == {4321}


class TestEmptyFolderInPlaceOfTheRoot:
    """Where a disk was mounted, an empty folder stays. What is written there would be gone with the next mount."""

    @pytest.fixture(autouse=True)
    def replaced(self, store, root):
        store.create(ROOT_FILE_KEY, b"{}")
        store.create("j/0", b"x", make_parent=True)
        assert bytes(store.get(ROOT_FILE_KEY)) == b"{}"
        root.rename(root.with_name("root.away"))
        root.mkdir()

    @pytest.mark.parametrize("inner", ["", "j", "ledgers/a/journal"], ids=["empty", "known folder", "other folders"])
    def test_nothing_is_written_even_where_folders_are(self, store, root, inner):
        """The folders may be those of a process that had looked for the root just before."""
        (root / inner).mkdir(parents=True, exist_ok=True)
        before = sorted(root.rglob("*"))
        for call in (
            lambda: store.create("j/1", b"x"),
            lambda: store.create("j/1", b"x", make_parent=True),
            lambda: store.create("ledgers/a/journal/0", b"x"),
            lambda: store.make_folder("ledgers/a/data"),
        ):
            with pytest.raises(RetriableError) as raised:
                call()
            assert raised.value.code is ErrorCode.REPLOG_ROOT_STALE
        assert sorted(root.rglob("*")) == before

    def test_nor_by_a_process_that_began_while_the_root_was_away(self, store, root):
        late = PosixStore(store.url)
        assert late.get(ROOT_FILE_KEY) is None
        root.rmdir()
        root.with_name("root.away").rename(root)
        assert bytes(late.get(ROOT_FILE_KEY)) == b"{}"
        root.rename(root.with_name("root.away"))
        (root / "j").mkdir(parents=True)
        with pytest.raises(RetriableError, match="another folder has the root's name"):
            late.create("j/1", b"x")
        assert not list((root / "j").iterdir())

    def test_it_goes_on_when_the_root_is_back(self, store, root):
        root.rmdir()
        root.with_name("root.away").rename(root)
        assert store.create("j/1", b"x") is CreateOutcome.CREATED
        store.make_folder("ledgers/a/data")

    def test_who_makes_the_root_again_writes_its_file_last(self, store, root):
        store.make_folder("")
        store.make_folder("j")
        assert store.create("j/0", b"y") is CreateOutcome.CREATED
        assert store.create(ROOT_FILE_KEY, b"{}") is CreateOutcome.CREATED


class TestVanishedRoot:
    """A root that is gone must not look like an empty one, nor come back as one."""

    @pytest.fixture(autouse=True)
    def renamed(self, store, root):
        store.create("j/0", b"x")
        root.rename(root.with_name("root.away"))

    def test_reads_say_that_it_is_out(self, store):
        for call in (
            lambda: store.get("j/0"),
            lambda: list(store.list_keys("j/")),
            lambda: store.delete("j/0"),
        ):
            with pytest.raises(RetriableError) as raised:
                call()
            assert raised.value.code is ErrorCode.REPLOG_ROOT_STALE

    def test_writes_are_refused_and_make_nothing(self, store, root):
        for call in (
            lambda: store.create("j/1", b"x"),
            lambda: store.create("j/1", b"x", make_parent=True),
            lambda: store.make_folder("j"),
            lambda: store.make_folder("ledgers/a/journal/"),
        ):
            with pytest.raises(ReplogError) as raised:
                call()
            assert refused(raised)
        assert not root.exists()

    def test_it_works_again_when_it_is_back(self, store, root):
        root.with_name("root.away").rename(root)
        assert store.get("j/0") == b"x"
        assert store.create("j/1", b"y") is CREATED


class TestMaps:
    def test_large_ranges_are_maps_and_small_ones_bytes(self, store):
        store.create("j/0", bytes(200_000))
        assert type(store.get("j/0", size_bytes=65_535)) is bytes
        body = store.get("j/0", start=4097, size_bytes=65_536)
        assert type(body) is memoryview and body.readonly and body.nbytes == 65_536

    def test_nothing_is_mapped_from_a_network_file_system(self, store, monkeypatch):
        store.create("j/0", bytes(200_000))
        nfs = MountedFileSystem("nfs4", frozenset())
        monkeypatch.setattr(posix_store, "file_system_of", lambda path: nfs)
        assert type(store.get("j/0")) is bytes


def test_many_threads_one_winner_each(store):
    wins = []
    barrier = threading.Barrier(6)

    def work(number):
        for name in range(20):
            barrier.wait()
            if store.create(f"j/{name}", f"{number}".encode()) is CREATED:
                wins.append((name, number))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(name for name, _ in wins) == list(range(20))
    assert all(store.get(f"j/{name}") == f"{number}".encode() for name, number in wins)


@pytest.mark.parametrize(
    "key",
    ["", ".", "..", "../x", "j/..", "j/../x", "j/./x", "/x", "j//x", "j/", "j\\x", "j/x\n", "j/\x7f", "j/" + "x" * 256],
)
def test_a_key_that_could_leave_the_root_is_refused(store, root, key):
    for call in (lambda: store.get(key), lambda: store.create(key, b"x", make_parent=True)):
        with pytest.raises(CorruptDataError):
            call()
    assert list(root.rglob("*")) == [root / "j"]


@pytest.mark.parametrize("key", ["x", ".x", "...", "j/..x", "j/x..", "j/x y", "j/" + "x" * 255])
def test_any_other_key_is_a_name(store, key):
    assert store.create(key, b"body") is CREATED
    assert bytes(store.get(key)) == b"body"


def test_a_folder_in_place_of_a_file_is_an_error_and_not_absent(store, root, monkeypatch):
    """Of thousands of entries."""
    (root / "j" / "a").touch()
    monkeypatch.setattr(posix_store, "MAP_SIZE_BYTES_MIN", 1)
    assert (root / "j").stat().st_size >= 1
    for size_bytes in (None, 1):
        with pytest.raises(CorruptDataError, match="must be a file"):
            store.get("j", size_bytes=size_bytes)


def test_a_folder_where_a_file_belongs_is_damage_and_goes_with_a_delete_if_it_is_empty(tmp_path):
    store = PosixStore(str(tmp_path))
    for name in ("empty", "full"):
        store.make_folder(f"j/{name}")
        with pytest.raises(CorruptDataError) as raised:
            store.get(f"j/{name}")
        assert raised.value.code is ErrorCode.CORRUPT_MESSAGE and f"j/{name}" in str(raised.value)
        assert store.create(f"j/{name}", b"x") is CreateOutcome.EXISTS
    store.create("j/full/a", b"a")
    store.delete("j/empty")
    assert store.create("j/empty", b"x") is CreateOutcome.CREATED
    with pytest.raises(RetriableError):
        store.delete("j/full")
    assert store.get("j/full/a") == b"a"
