"""WebHDFS against a double of a NameNode."""

from __future__ import annotations

import traceback

import pytest

from spark_replog.errors import ErrorCode, OutcomeUnknownError, ReplogError, RetriableError
from spark_replog.storage.object_store import CreateOutcome
from spark_replog.storage.open_store import open_store
from spark_replog.storage.probe import probe_root
from spark_replog.storage.retrying_store import RetryingStore
from tests.contract.store_contract import ObjectStoreContract
from tests.remote_roots import Handler, RemoteError, name_node_running

CREATED, EXISTS = CreateOutcome.CREATED, CreateOutcome.EXISTS


@pytest.fixture
def name_node():
    with name_node_running() as server:
        yield server


@pytest.fixture
def store(name_node):
    made = open_store(f"webhdfs://127.0.0.1:{name_node.server_address[1]}/store/root", {"user": "me"})
    made.make_folder("")
    return made


class TestWebHdfsStore(ObjectStoreContract):
    race_name_count = 5
    race_racer_count = 4


class TestRecipe:
    def test_a_new_folder_takes_the_mode_of_the_one_above(self, store, name_node):
        """HDFS would take 755, and no other user could write into it."""
        name_node.modes["/store/root"] = "1775"
        store.make_folder("a/b/")
        store.create("a/b/c/x", b"x", make_parent=True)
        name_node.modes["/store/root"] = "700"
        store.make_folder("a/b/")
        store.make_folder("d/")
        assert name_node.modes == {
            "/store/root": "700",
            "/store/root/a": "1775",
            "/store/root/a/b": "1775",
            "/store/root/a/b/c": "1775",
            "/store/root/d": "700",
        }

    def test_a_temp_file_is_renamed(self, store, name_node):
        name_node.requests.clear()
        assert store.create("a", b"x") is CREATED
        assert name_node.requests == ["CREATE", "CREATE", "RENAME"]
        assert sorted(name_node.tree) == ["", "/store", "/store/root", "/store/root/a"]

    def test_a_loser_leaves_no_temp_file(self, store, name_node):
        store.create("a", b"x")
        assert store.create("a", b"y") is EXISTS
        assert sorted(name_node.tree) == ["", "/store", "/store/root", "/store/root/a"]

    def test_temp_files_are_not_listed(self, store, name_node):
        name_node.tree["/store/root/.tmp-left"] = b"x"
        assert list(store.list_keys("")) == []

    @pytest.mark.parametrize("is_dry_run", [False, True])
    def test_old_temp_files_are_swept_by_the_clock_of_the_name_node(self, store, name_node, is_dry_run):
        day_ms = 86_400_000
        store.create("f/a", b"x", make_parent=True)
        assert store.sweep_temp_files(day_ms) == 0
        if not is_dry_run:
            name_node.now_ms = 10**12  # long ago here, so that by this machine's clock every file is old
        for name, age_ms in (("f/.tmp-old", day_ms), ("f/.tmp-young", day_ms // 2), ("f/old", 9 * day_ms)):
            name_node.tree[f"/store/root/{name}"] = b"part"
            name_node.written_ms[f"/store/root/{name}"] = name_node.now_ms - age_ms
        name_node.requests.clear()
        assert store.sweep_temp_files(day_ms, is_dry_run=is_dry_run) == 1
        names = {name.removeprefix("/store/root/f/") for name in name_node.tree if name.startswith("/store/root/f/")}
        assert names == {"a", "old", ".tmp-young"} | ({".tmp-old"} if is_dry_run else set())
        assert not [name for name in name_node.tree if name.startswith("/store/root/.tmp-")]
        assert not is_dry_run or set(name_node.requests) == {"LISTSTATUS"}

    def test_a_writer_whose_temp_file_was_swept_makes_a_new_one(self, store, name_node):
        def sweep_first(perform):
            name_node.now_ms += 1
            assert store.sweep_temp_files(1) == 1
            return perform()

        name_node.plan("RENAME", sweep_first)
        assert RetryingStore(store, deadline_ms=2000).create("a", b"x") is CREATED
        assert store.get("a") == b"x"
        assert sorted(name_node.tree) == ["", "/store", "/store/root", "/store/root/a"]

    def test_a_temp_file_that_got_its_name_meanwhile_is_not_counted(self, store, name_node):
        name_node.tree["/store/root/.tmp-slow"], name_node.written_ms["/store/root/.tmp-slow"] = b"whole", 0
        name_node.plan("CREATE", lambda perform: name_node.tree.pop("/store/root/.tmp-slow") and perform())
        assert store.sweep_temp_files(1) == 0

    def test_a_sweep_that_is_refused_or_not_answered_says_so(self, store, name_node):
        name_node.tree["/store/root/.tmp-old"], name_node.written_ms["/store/root/.tmp-old"] = b"part", 0

        def fail(perform):
            raise RemoteError(403, "AccessControlException")

        name_node.plan("DELETE", fail)
        name_node.plan("CREATE", fail)
        with pytest.raises(RetriableError, match="REPLOG_STORE_REFUSED"):
            store.sweep_temp_files(1)
        name_node.is_away = True
        with pytest.raises(RetriableError, match="REPLOG_STORE_UNAVAILABLE"):
            store.sweep_temp_files(1)
        assert "/store/root/.tmp-old" in name_node.tree

    def test_a_rename_whose_answer_is_lost(self, store, name_node):
        name_node.plan("RENAME", lambda perform: perform() and None)
        with pytest.raises(OutcomeUnknownError):
            store.create("a", b"mine")
        assert store.get("a") == b"mine"
        assert RetryingStore(store, deadline_ms=1000).create("a", b"mine") is CREATED

    def test_a_rename_that_said_no_though_the_name_is_free(self, store, name_node):
        name_node.plan("RENAME", lambda perform: Handler.answer(boolean=False))
        with pytest.raises(OutcomeUnknownError):
            store.create("a", b"x")
        name_node.plan("RENAME", lambda perform: Handler.answer(boolean=False))
        assert RetryingStore(store, deadline_ms=1000).create("a", b"x") is CREATED

    @pytest.mark.parametrize("name", ["StandbyException", "SafeModeException", "RetriableException"])
    def test_a_name_node_that_is_not_ready_is_asked_again(self, store, name_node, name):
        def fail(perform):
            raise RemoteError(403, name)

        name_node.plan("CREATE", fail)
        with pytest.raises(OutcomeUnknownError):
            store.create("a", b"x")
        name_node.plan("CREATE", fail)
        assert RetryingStore(store, deadline_ms=1000).create("a", b"x") is CREATED
        name_node.plan("GETFILESTATUS", fail)
        with pytest.raises(RetriableError) as raised:
            store.get("a")
        assert raised.value.code is ErrorCode.REPLOG_STORE_UNAVAILABLE

    def test_bytes_that_a_data_node_did_not_take_never_get_the_name(self, store, name_node):
        name_node.sick_data_node = True
        with pytest.raises(OutcomeUnknownError):
            store.create("a", b"x")
        assert "RENAME" not in name_node.requests
        name_node.sick_data_node = False
        assert store.get("a") is None and store.create("a", b"x") is CREATED

    def test_a_listing_is_whole_or_fails(self, store, name_node):
        store.make_folder("f/deep")
        store.create("a", b"x")
        store.create("f/deep/b", b"xy")
        for answered in range(3):
            asked = iter(range(3))

            def answer(perform, asked=asked, answered=answered):
                if next(asked) == answered:
                    return 503, {}, b""
                name_node.plan("LISTSTATUS", answer)
                return perform()

            name_node.plan("LISTSTATUS", answer)
            with pytest.raises(RetriableError) as raised:
                list(store.list_keys(""))
            assert raised.value.code is ErrorCode.REPLOG_STORE_UNAVAILABLE
        assert [(info.key, info.size_bytes) for info in store.list_keys("")] == [("a", 1), ("f/deep/b", 2)]
        assert list(store.list_keys("a/")) == []

    def test_no_permission_is_refused(self, store, name_node):
        def fail(perform):
            raise RemoteError(403, "AccessControlException")

        name_node.plan("CREATE", fail)
        with pytest.raises(ReplogError) as raised:
            store.create("a", b"x")
        assert raised.value.code is ErrorCode.REPLOG_STORE_REFUSED

    def test_a_vanished_root_is_not_made_again(self, store, name_node):
        del name_node.tree["/store/root"]
        for call in (lambda: store.create("a", b"x"), lambda: store.make_folder("ledgers/x")):
            with pytest.raises(ReplogError) as raised:
                call()
            assert raised.value.code is ErrorCode.REPLOG_STORE_REFUSED
        assert sorted(name_node.tree) == ["", "/store"]

    def test_requests_have_time_outs(self, store):
        request = store.file_system().session.request
        assert request.keywords["timeout"] == (5, 30)
        other = open_store(store.url, {"user": "me", "read_timeout": "7"})
        assert other.file_system().session.request.keywords["timeout"] == (5, 7)

    def test_probe(self, store, name_node):
        assert probe_root(RetryingStore(store, deadline_ms=2000)).file_system == "webhdfs"
        assert sorted(name_node.tree) == ["", "/store", "/store/root"]


class TestCutAnswers:
    """A gateway before HDFS may end an answer early and call it whole."""

    def test_a_part_is_no_object(self, store, name_node):
        store.create("a", b"0123456789")

        def cut(perform):
            status, headers, body = perform()
            return status, headers, body[:-1]

        for start, size_bytes in ((0, None), (2, 5), (2, 100)):
            name_node.plan("OPEN", cut)
            with pytest.raises(RetriableError, match=r"got \d of \d+ bytes") as raised:
                store.get("a", start=start, size_bytes=size_bytes)
            assert raised.value.code is ErrorCode.REPLOG_STORE_UNAVAILABLE
        name_node.plan("OPEN", cut)
        assert RetryingStore(store, deadline_ms=10_000).create("a", b"0123456789") is CREATED


class TestTokens:
    """A delegation token is part of each URL, also of those that a NameNode redirects to."""

    @pytest.mark.parametrize(
        "call",
        [
            lambda store: store.get("a"),
            lambda store: store.create("b", b"x"),
            lambda store: list(store.list_keys("")),
            lambda store: store.delete("a"),
            lambda store: store.make_folder("f/"),
            lambda store: store.sweep_temp_files(0),
        ],
    )
    @pytest.mark.parametrize("answer", [(502, {}, b""), None])
    def test_a_token_is_in_no_error_and_no_traceback(self, name_node, call, answer):
        port = name_node.server_address[1] if answer else 9  # no server listens there
        store = open_store(f"webhdfs://127.0.0.1:{port}/store/root", {"token": "dG9rZW4"})
        for op in ("GETFILESTATUS", "CREATE", "LISTSTATUS", "DELETE"):
            name_node.plan(op, lambda perform: answer)
        with pytest.raises(ReplogError, match="502" if answer else "refused") as raised:
            call(store)
        told = "".join(traceback.format_exception(raised.value))
        assert "/webhdfs/v1/store/root" in told and "dG9rZW4" not in told

    def test_a_data_node_s_token_is_in_no_error(self, name_node):
        store = open_store(f"webhdfs://127.0.0.1:{name_node.server_address[1]}/store/root", {"token": "dG9rZW4"})
        store.make_folder("")
        name_node.sick_data_node = True
        with pytest.raises(OutcomeUnknownError, match="500") as raised:
            store.create("a", b"x")
        assert "dG9rZW4" not in "".join(traceback.format_exception(raised.value))
