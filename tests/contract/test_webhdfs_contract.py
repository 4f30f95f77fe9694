"""WebHDFS against a double of a NameNode that answers as Hadoop 3.4.2 did when it was tried."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from spark_replog.errors import ErrorCode, OutcomeUnknownError, ReplogError, RetriableError
from spark_replog.storage.object_store import CreateOutcome
from spark_replog.storage.open_store import open_store
from spark_replog.storage.probe import probe_root
from spark_replog.storage.retrying_store import RetryingStore
from spark_replog.testing.store_contract import ObjectStoreContract

CREATED, EXISTS = CreateOutcome.CREATED, CreateOutcome.EXISTS
FOLDER = None


class NameNode(ThreadingHTTPServer):
    """Files and folders in a dict; one lock, as HDFS has one for its name space."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.tree = {"": FOLDER, "/store": FOLDER}
        self.lock = threading.RLock()
        self.requests = []
        self.planned = {}
        self.sick_data_node = False

    def plan(self, op, answer):
        """Use ``answer(perform)`` for the next request of this kind."""
        self.planned[op] = answer


class RemoteError(Exception):
    def __init__(self, status, name):
        super().__init__(name)
        self.status = status


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # one packet an answer: else Nagle and delayed acknowledgements cost 40 ms each

    def log_message(self, format, *args):
        pass

    def serve(self):
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        path = unquote(parts.path).removeprefix("/webhdfs/v1").rstrip("/")
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        op = query["op"]
        server = self.server
        server.requests.append(op)

        def perform():
            with server.lock:
                return getattr(self, f"op_{op.lower()}")(server.tree, path, query, body)

        planned = server.planned.pop(op, None)
        try:
            answer = planned(perform) if planned else perform()
        except RemoteError as error:
            text = {"RemoteException": {"exception": str(error), "message": f"{error} {path}"}}
            answer = (error.status, {}, json.dumps(text).encode())
        if answer is None:
            self.close_connection = True
            return
        status, headers, content = answer
        self.send_response_only(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_PUT = do_DELETE = serve

    @staticmethod
    def answer(**fields):
        return 200, {"Content-Type": "application/json"}, json.dumps(fields).encode()

    @staticmethod
    def status(tree, path, suffix):
        body = tree[path]
        kind = "DIRECTORY" if body is FOLDER else "FILE"
        return {"pathSuffix": suffix, "type": kind, "length": 0 if body is FOLDER else len(body)}

    def need(self, tree, path):
        if path not in tree:
            raise RemoteError(404, "FileNotFoundException")

    def op_getfilestatus(self, tree, path, query, body):
        self.need(tree, path)
        return self.answer(FileStatus=self.status(tree, path, ""))

    def op_liststatus(self, tree, path, query, body):
        self.need(tree, path)
        if tree[path] is not FOLDER:
            return self.answer(FileStatuses={"FileStatus": [self.status(tree, path, "")]})
        found = [name for name in tree if name.rpartition("/")[0] == path and name]
        statuses = [self.status(tree, name, name.rpartition("/")[2]) for name in found]
        return self.answer(FileStatuses={"FileStatus": statuses})

    def op_mkdirs(self, tree, path, query, body):
        parts = path.split("/")
        for count in range(1, len(parts) + 1):
            tree.setdefault("/".join(parts[:count]), FOLDER)
        return self.answer(boolean=True)

    def op_create(self, tree, path, query, body):
        if "datanode" in query and self.server.sick_data_node:
            return 500, {}, b""
        if "datanode" not in query:
            if query.get("createparent") == "false":
                self.need(tree, path.rpartition("/")[0])
            return 307, {"Location": f"http://{self.headers['Host']}{self.path}&datanode=1"}, b""
        if query.get("overwrite") != "true" and path in tree:
            raise RemoteError(403, "FileAlreadyExistsException")
        tree[path] = body
        return 201, {}, b""

    def op_rename(self, tree, path, query, body):
        target = query["destination"]
        folder = target.rpartition("/")[0]
        done = path in tree and target not in tree and folder in tree and tree[folder] is FOLDER
        if done:
            tree[target] = tree.pop(path)
        return self.answer(boolean=done)

    def op_open(self, tree, path, query, body):
        self.need(tree, path)
        start, length = int(query.get("offset", 0)), int(query.get("length", 1 << 40))
        if start > len(tree[path]):
            raise RemoteError(403, "IOException")
        return 200, {}, tree[path][start : start + length]

    def op_delete(self, tree, path, query, body):
        below = [name for name in tree if name.startswith(f"{path}/")]
        for name in below if query.get("recursive") == "true" else ():
            tree.pop(name)
        if below and query.get("recursive") != "true":
            raise RemoteError(403, "PathIsNotEmptyDirectoryException")
        return self.answer(boolean=tree.pop(path, 0) != 0)


@pytest.fixture
def name_node():
    with NameNode() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def store(name_node):
    made = open_store(f"webhdfs://127.0.0.1:{name_node.server_address[1]}/store/root", {"user": "me"})
    made.make_folder("")
    return made


class TestWebHdfsStore(ObjectStoreContract):
    race_name_count = 5
    race_racer_count = 4


class TestRecipe:
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
        assert request.keywords["timeout"]

    def test_probe(self, store, name_node):
        assert probe_root(RetryingStore(store, deadline_ms=2000)).file_system == "webhdfs"
        assert sorted(name_node.tree) == ["", "/store", "/store/root"]
