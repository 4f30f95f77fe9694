from __future__ import annotations

import gc
import json
import os
import pickle
import shutil
import threading
import weakref

import pytest

from spark_replog.errors import (
    CorruptDataError,
    ErrorCode,
    InvalidConfigError,
    NotFoundError,
    ReplogError,
    RetriableError,
    UnsupportedFormatError,
)
from spark_replog.ids import new_id
from spark_replog.storage import brokers as module
from spark_replog.storage import fan_out, root_file
from spark_replog.storage.brokers import BrokerSet, shared_brokers, write_root_files
from spark_replog.storage.call_counter import by_kind
from spark_replog.storage.object_store import CreateOutcome
from spark_replog.storage.open_store import open_store
from spark_replog.storage.paths import ROOT_FILE_KEY, journal_key, ledger_folders
from spark_replog.storage.posix_store import PosixStore
from tests.manual_clock import ManualClock


def roots_of(folder, count=3):
    return [str(folder / f"broker-{number}") for number in range(count)]


def ids_and_names(brokers):
    return [(broker.broker_id, os.path.basename(broker.url)) for broker in brokers.brokers]


def code_of(call):
    with pytest.raises(ReplogError) as raised:
        call()
    return raised.value.code


@pytest.fixture
def made(tmp_path):
    folder = tmp_path / "store"
    return folder, write_root_files(roots_of(folder))


class TestOpen:
    def test_by_parent_folder(self, made):
        folder, written = made
        brokers = BrokerSet.open(str(folder))
        assert brokers.cluster_id == written.cluster_id
        assert brokers.broker_ids == (0, 1, 2) and brokers.metadata_broker_ids == (0, 1, 2)
        assert brokers.brokers == written.brokers
        assert brokers.fsync and 1 in brokers.local_ids
        assert brokers.url(2) == f"file://{folder}/broker-2"

    @pytest.mark.parametrize("shown", [(0,), (2,), (2, 0), (1, 2, 0)])
    def test_by_any_roots_in_any_order(self, made, shown):
        folder, written = made
        path = " , ".join(roots_of(folder)[number] + "/" for number in shown)
        assert BrokerSet.open(path).brokers == written.brokers

    def test_by_file_url(self, made):
        folder, written = made
        assert BrokerSet.open(f"file://{folder}/").brokers == written.brokers

    @pytest.mark.parametrize("gone", [(0,), (1,), (2,), (0, 1), (1, 2)])
    def test_roots_may_be_away(self, made, gone):
        folder, written = made
        for number in gone:
            (folder / f"broker-{number}").rename(folder / f"broker-{number}.away")
        brokers = BrokerSet.open(str(folder))
        assert brokers.brokers == written.brokers
        assert BrokerSet.open(",".join(roots_of(folder))).brokers == written.brokers
        for number in brokers.broker_ids:
            if number in gone:
                assert code_of(lambda number=number: brokers.check_root(number)) is ErrorCode.REPLOG_ROOT_STALE
            else:
                brokers.check_root(number)

    def test_a_root_beyond_the_stores_is_reported_with_the_path_to_give(self, made, tmp_path, caplog):
        folder, written = made
        roots = roots_of(folder)
        (tmp_path / "empty").mkdir()
        for surplus in (tmp_path / "empty", tmp_path / "missing"):
            caplog.clear()
            assert BrokerSet.open(",".join([*roots[:2], str(surplus), roots[2]])).brokers == written.brokers
            (said,) = [record.getMessage() for record in caplog.records if "REPLOG_CLUSTER_MISMATCH" in record.msg]
            assert f"file://{surplus}" in said and ",".join(f"file://{root}" for root in roots) in said

    def test_of_two_roots_one_may_be_wrong_and_is_reported(self, made, tmp_path, caplog):
        folder, written = made
        path = f"{folder}/broker-0,{tmp_path}/typo"
        assert BrokerSet.open(path).brokers == written.brokers
        assert BrokerSet.open(path).brokers == written.brokers
        (said,) = [record.getMessage() for record in caplog.records if "REPLOG_CLUSTER_MISMATCH" in record.msg]
        assert f"file://{tmp_path}/typo" in said

    def test_a_moved_root_and_its_old_place_in_one_path(self, made, tmp_path, caplog):
        folder, _ = made
        both = ",".join([*roots_of(folder), str(tmp_path / "moved")])
        (folder / "broker-2").rename(tmp_path / "moved")
        brokers = BrokerSet.open(both)
        assert brokers.url(2) == f"file://{tmp_path}/moved"
        (said,) = [record.getMessage() for record in caplog.records if "REPLOG_CLUSTER_MISMATCH" in record.msg]
        assert f"file://{folder}/broker-2" in said and f"{tmp_path}/moved" in said.partition("Give")[2]

    def test_a_root_that_is_away_is_not_reported_as_foreign(self, made, tmp_path, caplog):
        folder, _ = made
        (folder / "broker-1").rename(folder / "gone")
        BrokerSet.open(",".join(roots_of(folder)))
        BrokerSet.open(",".join(roots_of(folder)[:2]))
        BrokerSet.open(str(folder))
        BrokerSet.open(",".join([*roots_of(folder)[::2], str(tmp_path / "new place of 1")]))
        assert not [record for record in caplog.records if "REPLOG_CLUSTER_MISMATCH" in record.msg]

    def test_a_renamed_root_is_not_the_same_broker_twice(self, made):
        folder, written = made
        shutil.copytree(folder / "broker-1", folder / "broker-1.away")
        shutil.copytree(folder / "broker-1", folder / "broker-7x")
        assert BrokerSet.open(str(folder)).brokers == written.brokers

    def test_a_moved_parent_folder_is_found(self, made, tmp_path):
        folder, written = made
        folder.rename(tmp_path / "elsewhere")
        brokers = BrokerSet.open(str(tmp_path / "elsewhere"))
        assert brokers.cluster_id == written.cluster_id
        assert brokers.url(1) == f"file://{tmp_path}/elsewhere/broker-1"
        brokers.check_root(1)

    def test_urls_given_win_over_recorded_ones(self, tmp_path):
        urls = [str(tmp_path / name / "root") for name in "abc"]
        written = write_root_files(urls)
        (tmp_path / "b").rename(tmp_path / "moved")
        given = [urls[0], str(tmp_path / "moved" / "root"), urls[2]]
        brokers = BrokerSet.open(",".join(given))
        assert [broker.url for broker in brokers.brokers] == [f"file://{url}" for url in given]
        brokers.check_root(1)
        recorded = BrokerSet.open(urls[0])
        assert [broker.url for broker in recorded.brokers] == [broker.url for broker in written.brokers]
        assert code_of(lambda: recorded.check_root(1)) is ErrorCode.REPLOG_ROOT_STALE

    def test_a_url_given_for_a_root_that_is_away_wins_too(self, tmp_path):
        urls = [str(tmp_path / name / "root") for name in "abc"]
        write_root_files(urls)
        shutil.rmtree(tmp_path / "b")
        given = [urls[0], str(tmp_path / "new-mount" / "root"), urls[2]]
        assert BrokerSet.open(",".join(given)).url(1) == f"file://{given[1]}"
        assert BrokerSet.open(",".join(reversed(given))).url(1) == f"file://{given[1]}"

    def test_broker_ids_follow_the_files_not_the_order(self, tmp_path):
        urls = [str(tmp_path / name / "root") for name in "abc"]
        write_root_files(urls)
        brokers = BrokerSet.open(",".join(reversed(urls)))
        assert [brokers.url(number) for number in (0, 1, 2)] == [f"file://{url}" for url in urls]

    def test_not_initialised(self, tmp_path):
        with pytest.raises(NotFoundError, match=r"^\[REPLOG_STORE_NOT_INITIALISED\].*init"):
            BrokerSet.open(str(tmp_path / "nothing"))
        with pytest.raises(NotFoundError, match="REPLOG_STORE_NOT_INITIALISED"):
            BrokerSet.open(f"{tmp_path}/a,{tmp_path}/b")

    def test_empty_path(self):
        with pytest.raises(InvalidConfigError, match="REPLOG_MISSING_OPTION"):
            BrokerSet.open(" , ")

    def test_roots_of_different_clusters(self, tmp_path):
        write_root_files(roots_of(tmp_path / "a"))
        write_root_files(roots_of(tmp_path / "b"))
        mixed = [*roots_of(tmp_path / "a")[:1], roots_of(tmp_path / "b")[2]]
        assert code_of(lambda: BrokerSet.open(",".join(mixed))) is ErrorCode.REPLOG_CLUSTER_MISMATCH

    def test_one_root_of_another_cluster_is_outvoted(self, tmp_path):
        written = write_root_files(roots_of(tmp_path / "a"))
        write_root_files(roots_of(tmp_path / "b"))
        brokers = BrokerSet.open(",".join([*roots_of(tmp_path / "a")[:2], roots_of(tmp_path / "b")[2]]))
        assert brokers.cluster_id == written.cluster_id and brokers.broker_ids == (0, 1, 2)
        assert code_of(lambda: brokers.check_root(2)) is ErrorCode.REPLOG_ROOT_STALE

    def test_a_copied_root(self, made):
        folder, _ = made
        shutil.copytree(folder / "broker-1", folder / "copy")
        path = ",".join([*roots_of(folder), str(folder / "copy")])
        with pytest.raises(InvalidConfigError, match=r"REPLOG_CLUSTER_MISMATCH.*broker 1.*copy"):
            BrokerSet.open(path)

    def test_one_damaged_root_file_leaves_the_store_usable(self, made):
        folder, written = made
        (folder / "broker-0" / "replog.json").write_bytes(b"{")
        brokers = BrokerSet.open(str(folder))
        assert brokers.brokers == written.brokers
        assert code_of(lambda: brokers.check_root(0)) is ErrorCode.REPLOG_ROOT_STALE

    def test_only_damaged_or_future_root_files(self, made):
        folder, _ = made
        for number in range(3):
            (folder / f"broker-{number}" / "replog.json").write_bytes(b"{")
        with pytest.raises(CorruptDataError):
            BrokerSet.open(str(folder))
        future = {"format": "replog-root", "version": 99}
        for number in range(3):
            (folder / f"broker-{number}" / "replog.json").write_text(json.dumps(future))
        with pytest.raises(UnsupportedFormatError):
            BrokerSet.open(str(folder))

    def test_nobody_answers(self, monkeypatch, made):
        def fail(store):
            raise RetriableError(ErrorCode.REPLOG_STORE_UNAVAILABLE, "down.", url=store.url)

        monkeypatch.setattr(root_file, "read_root", fail)
        with pytest.raises(RetriableError, match="REPLOG_STORE_UNAVAILABLE"):
            BrokerSet.open(",".join(roots_of(made[0])))

    def test_a_hung_root_does_not_hold_up_the_others(self, monkeypatch, made):
        import threading

        release = threading.Event()
        real = root_file.read_root

        def read(store):
            if store.url.endswith("broker-1"):
                release.wait(10)
            return real(store)

        monkeypatch.setattr(root_file, "read_root", read)
        monkeypatch.setattr(root_file, "OPEN_GRACE_SECONDS", 0.1)
        try:
            assert BrokerSet.open(",".join(roots_of(made[0]))).broker_ids == (0, 1, 2)
        finally:
            release.set()

    def test_the_wait_for_others_begins_with_the_first_root_that_answers(self, monkeypatch, made):
        clock, real, waits = ManualClock(), fan_out.wait, []

        def wait(futures, timeout, return_when="ALL_COMPLETED"):
            waits.append((timeout, len(futures)))
            clock.time_ms += 1_500
            first, *others = real(futures).done
            return {first}, set(others)

        monkeypatch.setattr(fan_out, "wait", wait)
        root_file.read_roots(roots_of(made[0]), {}, clock=clock)
        assert waits == [(root_file.OPEN_TIMEOUT_SECONDS, 3), (root_file.OPEN_GRACE_SECONDS, 2)]

    def test_unsupported_scheme(self):
        with pytest.raises(InvalidConfigError, match="REPLOG_UNSUPPORTED_STORE"):
            BrokerSet.open("hdfs://host/store")


class TestCheckRoot:
    def test_what_makes_a_root_stale(self, made, tmp_path):
        folder, brokers = made
        brokers.check_root(0)
        file = folder / "broker-0" / "replog.json"
        text = file.read_text()
        write_root_files(roots_of(tmp_path / "other"))
        for wrong in (
            None,
            "{",
            (folder / "broker-1" / "replog.json").read_text(),
            (tmp_path / "other" / "broker-0" / "replog.json").read_text(),
        ):
            file.unlink() if wrong is None else file.write_text(wrong)
            with pytest.raises(RetriableError, match="REPLOG_ROOT_STALE"):
                brokers.check_root(0)
        file.write_text(text)
        brokers.check_root(0)

    def test_many_ledgers_that_begin_share_a_look_at_the_root_file_once_a_second(self, made):
        clock, file = ManualClock(), made[0] / "broker-0" / "replog.json"
        brokers = BrokerSet.open(str(made[0]), clock=clock)

        def gets(**how):
            before = by_kind(brokers.calls.read())["get"].call_count
            for _ in range(5):
                brokers.check_root(0, **how)
            return by_kind(brokers.calls.read())["get"].call_count - before

        clock.time_ms += 5_000
        assert gets(is_first=True) == 1
        clock.time_ms += 999
        assert gets(is_first=True) == 0
        clock.time_ms += 1
        assert gets(is_first=True) == 1
        assert gets() == 5  # any other check looks
        text = file.read_text()
        file.unlink()
        assert code_of(lambda: brokers.check_root(0)) is ErrorCode.REPLOG_ROOT_STALE
        assert code_of(lambda: brokers.check_root(0, is_first=True)) is ErrorCode.REPLOG_ROOT_STALE
        file.write_text(text)
        assert gets(is_first=True) == 1

    def test_a_ledger_that_begins_takes_what_open_read_within_a_second_and_no_check_followed(self, made):
        clock, file = ManualClock(), made[0] / "broker-0" / "replog.json"
        text = file.read_text()

        def opened():
            file.write_text(text)
            return BrokerSet.open(str(made[0]), clock=clock)

        def gets(brokers):
            return sum(calls.call_count for (_, kind, _), calls in brokers.calls.read().items() if kind == "get")

        brokers = opened()
        before = gets(brokers)
        file.unlink()
        clock.time_ms += 999
        for _ in range(2):  # of each ledger
            brokers.check_root(0, is_first=True)
        assert gets(brokers) == before
        brokers.root_ids = {0: new_id()}  # folded meanwhile: `store repair` made another root
        assert code_of(lambda: brokers.check_root(0, is_first=True)) is ErrorCode.REPLOG_ROOT_STALE
        brokers.root_ids = {}
        clock.time_ms += 1
        assert code_of(lambda: brokers.check_root(0, is_first=True)) is ErrorCode.REPLOG_ROOT_STALE

        brokers = opened()
        file.unlink()
        assert code_of(lambda: brokers.check_root(0)) is ErrorCode.REPLOG_ROOT_STALE
        assert code_of(lambda: brokers.check_root(0, is_first=True)) is ErrorCode.REPLOG_ROOT_STALE


class TestBrokerSet:
    def test_pickles_as_settings(self, made):
        brokers = BrokerSet.open(str(made[0]), {"secret": "x"})
        brokers.store(0)
        copy = pickle.loads(pickle.dumps(brokers))
        assert copy.brokers == brokers.brokers and copy.cluster_id == brokers.cluster_id
        assert copy.storage_options == {"secret": "x"} and copy.fsync
        assert copy.store(2).get("replog.json") is not None

    def test_stores_are_made_once_and_retry(self, made):
        _, brokers = made
        assert brokers.store(1) is brokers.store(1)
        assert brokers.store(1).create("a", b"x") is CreateOutcome.CREATED
        assert brokers.store(1).create("a", b"x") is CreateOutcome.CREATED  # own bytes
        assert brokers.store(1).create("a", b"y") is CreateOutcome.EXISTS

    def test_fsync_is_what_the_root_files_say(self, tmp_path, monkeypatch):
        write_root_files(roots_of(tmp_path / "a"), fsync=False)
        flushed = []
        monkeypatch.setattr(os, "fsync", lambda _: flushed.append(threading.get_ident()))
        brokers = BrokerSet.open(str(tmp_path / "a"))
        brokers.store(0).create("x", b"x")
        assert not brokers.fsync and threading.get_ident() not in flushed  # other tests' stores may still flush

    def test_racks(self, tmp_path):
        write_root_files(roots_of(tmp_path / "a"), racks=["r1", "r2", None])
        brokers = BrokerSet.open(str(tmp_path / "a"))
        assert [brokers.rack(number) for number in brokers.broker_ids] == ["r1", "r2", None]

    def test_memory_roots(self):
        name = new_id()
        written = write_root_files([f"memory://{name}/broker-{number}" for number in range(2)])
        brokers = BrokerSet.open(f"memory://{name}")
        assert brokers.brokers == written.brokers and 0 not in brokers.local_ids


class TestInit:
    def test_files_come_with_their_folders_and_relative_urls(self, made):
        folder, brokers = made
        for number in range(3):
            fields = json.loads((folder / f"broker-{number}" / "replog.json").read_text())
            assert fields["brokerId"] == number and fields["clusterId"] == brokers.cluster_id
            assert [ref["url"] for ref in fields["brokers"]] == ["broker-0", "broker-1", "broker-2"]

    def test_roots_in_different_folders_are_recorded_absolute(self, tmp_path):
        write_root_files([str(tmp_path / "a" / "root"), str(tmp_path / "b" / "root")])
        fields = json.loads((tmp_path / "a" / "root" / "replog.json").read_text())
        assert [ref["url"] for ref in fields["brokers"]] == [
            f"file://{tmp_path}/a/root",
            f"file://{tmp_path}/b/root",
        ]

    def test_five_metadata_roots_of_six(self, tmp_path):
        assert write_root_files(roots_of(tmp_path / "a", 6)).metadata_broker_ids == (0, 1, 2, 3, 4)

    def test_a_complete_store_is_refused_and_says_that_it_is_complete(self, made):
        folder, _ = made
        before = (folder / "broker-0" / "replog.json").read_bytes()
        with pytest.raises(ReplogError, match="REPLOG_STORE_EXISTS") as raised:
            write_root_files(roots_of(folder))
        assert raised.value.context["complete"] is True
        assert (folder / "broker-0" / "replog.json").read_bytes() == before

    @pytest.mark.parametrize("there", [(0,), (0, 1), (2,)])
    def test_an_unfinished_init_is_resumed(self, made, there):
        folder, brokers = made
        for number in {0, 1, 2}.difference(there):
            shutil.rmtree(folder / f"broker-{number}")
        again = write_root_files(roots_of(folder))
        assert again.cluster_id == brokers.cluster_id
        assert BrokerSet.open(",".join(roots_of(folder))).brokers == brokers.brokers

    @pytest.mark.parametrize("stop_after", [0, 1, 2])
    def test_an_init_that_dies_between_roots_is_resumed(self, tmp_path, monkeypatch, stop_after):
        real = module._write_root_file
        written = []

        def write(root, url, options):
            if len(written) == stop_after:
                raise KeyboardInterrupt
            written.append(root.cluster_id)
            real(root, url, options)

        monkeypatch.setattr(module, "_write_root_file", write)
        with pytest.raises(KeyboardInterrupt):
            write_root_files(roots_of(tmp_path / "s"))
        monkeypatch.setattr(module, "_write_root_file", real)
        brokers = write_root_files(roots_of(tmp_path / "s"))
        assert set(written) <= {brokers.cluster_id}
        for number in brokers.broker_ids:
            brokers.check_root(number)

    def test_a_root_that_lost_its_file_is_not_made_again(self, made):
        # An emptied root must not come back as an acceptor that forgot its promises.
        folder, brokers = made
        ledger = new_id()
        for made_folder in ledger_folders(ledger):
            brokers.store(0).make_folder(made_folder)
        brokers.store(0).create(journal_key(ledger, 0), b"record")
        shutil.rmtree(folder / "broker-1")
        with pytest.raises(ReplogError, match="REPLOG_STORE_EXISTS") as raised:
            write_root_files(roots_of(folder))
        assert raised.value.context["complete"] is False
        assert not (folder / "broker-1").exists()

    @pytest.mark.parametrize(
        "change",
        [
            lambda folder: roots_of(folder)[:2],
            lambda folder: roots_of(folder, 4),
            lambda folder: list(reversed(roots_of(folder))),
            lambda folder: [*roots_of(folder)[:2], str(folder / "new")],
        ],
    )
    def test_another_shape_over_existing_roots_is_refused(self, made, change):
        folder, _ = made
        before = sorted(os.listdir(folder))
        with pytest.raises(ReplogError, match="REPLOG_STORE_EXISTS") as raised:
            write_root_files(change(folder))
        assert raised.value.context["complete"] is False
        assert sorted(os.listdir(folder)) == before

    def test_another_fsync_or_rack_is_another_cluster(self, made):
        folder, _ = made
        shutil.rmtree(folder / "broker-2")
        assert code_of(lambda: write_root_files(roots_of(folder), fsync=False)) is ErrorCode.REPLOG_STORE_EXISTS
        racks = ["a", "b", "c"]
        assert code_of(lambda: write_root_files(roots_of(folder), racks=racks)) is ErrorCode.REPLOG_STORE_EXISTS

    def test_an_unreachable_root_stops_init_before_anything_is_written(self, tmp_path, monkeypatch):
        real = root_file.read_root

        def read(store):
            if store.url.endswith("broker-2"):
                raise RetriableError(ErrorCode.REPLOG_STORE_UNAVAILABLE, "down.")
            return real(store)

        monkeypatch.setattr(root_file, "read_root", read)
        assert code_of(lambda: write_root_files(roots_of(tmp_path / "s"))) is ErrorCode.REPLOG_STORE_UNAVAILABLE
        assert not (tmp_path / "s").exists()

    def test_an_answer_that_is_lost_does_not_stop_init(self, tmp_path, monkeypatch):
        """On a busy machine the first connection of a client may take longer than the client waits."""
        get, lost = PosixStore.get, []

        def lose_first(self, key, **more):
            if self.url.endswith("broker-1") and not lost:
                lost.append(key)
                raise RetriableError(ErrorCode.REPLOG_STORE_UNAVAILABLE, "no answer")
            return get(self, key, **more)

        monkeypatch.setattr(PosixStore, "get", lose_first)
        assert len(write_root_files(roots_of(tmp_path / "s")).broker_ids) == 3
        assert lost == [ROOT_FILE_KEY]

    def test_two_inits_at_once_make_one_cluster(self, tmp_path, monkeypatch):
        urls = roots_of(tmp_path / "s")
        real = module._cluster_id_to_use
        other = []

        def look(roots, options, brokers, *, fsync):
            cluster_id = real(roots, options, brokers, fsync=fsync)
            if not other:  # the other one runs between our look and our write
                other.append(None)
                other.append(write_root_files(urls))
            return cluster_id

        monkeypatch.setattr(module, "_cluster_id_to_use", look)
        assert code_of(lambda: write_root_files(urls)) is ErrorCode.REPLOG_STORE_EXISTS
        assert BrokerSet.open(str(tmp_path / "s")).cluster_id == other[1].cluster_id
        for number in range(3):
            other[1].check_root(number)

    @pytest.mark.parametrize("urls", [[], ["/a", "/b", "/a/"]])
    def test_wrong_lists(self, urls):
        assert code_of(lambda: write_root_files(urls)) is ErrorCode.REPLOG_CONFLICTING_OPTIONS

    @pytest.mark.parametrize("name", ["no\u00a0break", "line\nend", "zero\u200dwidth", "back\\slash"])
    def test_a_folder_that_no_root_file_can_name_is_refused_before_anything_is_made(self, tmp_path, name):
        with pytest.raises(InvalidConfigError, match="Rename the folder") as raised:
            write_root_files([f"{tmp_path}/{name}"])
        assert raised.value.code is ErrorCode.REPLOG_INVALID_OPTION and str(raised.value).isprintable()
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("name", ["a b", "données", "データ", "a'b", "a%20b", "a:b"])
    def test_a_folder_of_any_other_name_can_be_opened(self, tmp_path, name):
        made = write_root_files([f"{tmp_path}/{name}"])
        assert BrokerSet.open(f"{tmp_path}/{name}").cluster_id == made.cluster_id

    def test_a_root_with_foreign_ledgers_is_refused(self, tmp_path):
        store = open_store(str(tmp_path / "s" / "broker-0"))
        store.make_folder("")
        store.make_folder("ledgers/x/journal")
        store.create("ledgers/x/journal/0", b"x")
        assert code_of(lambda: write_root_files(roots_of(tmp_path / "s"))) is ErrorCode.REPLOG_STORE_EXISTS


def test_tasks_share_stores_only_if_their_credentials_are_the_same(made):
    """A Spark worker runs tasks of several queries, and a query that began again may have a new token."""
    folder, _ = made
    sets = [BrokerSet.open(str(folder), {"key": key}) for key in ("producer", "consumer", "producer")]
    first, second, third = map(shared_brokers, sets)
    assert first is third is sets[0]
    assert second is sets[1]


def test_of_the_stores_of_old_credentials_only_the_newest_stay_open(made):
    """A worker lives as long as its executor, and tokens change each hour."""
    folder, _ = made
    lasting = shared_brokers(BrokerSet.open(str(folder), {"key": "lasting"}))
    tokens = [shared_brokers(BrokerSet.open(str(folder), {"key": str(number)})) for number in range(2)]
    kept = [weakref.ref(broker_set) for broker_set in tokens]
    store = tokens[0].store(0)
    del tokens
    for number in range(2, 2 * module.SHARED_SETS_MAX):
        shared_brokers(BrokerSet.open(str(folder), {"key": str(number)}))
        assert shared_brokers(BrokerSet.open(str(folder), {"key": "lasting"})) is lasting
    gc.collect()
    assert [reference() for reference in kept] == [None, None]
    assert store.get("replog.json") is not None  # of a task that still has it
