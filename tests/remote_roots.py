"""Remote roots on this machine: a double of a NameNode, S3 by moto behind a proxy, and a store on such roots."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
import time
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from spark_replog.storage.open_store import open_store
from tests.http_fault_proxy import HttpFault, HttpFaultProxy, PlannedAnswer

FOLDER = None
SILENT = PlannedAnswer(HttpFault.BEFORE, 0)


class NameNode(ThreadingHTTPServer):
    """Files and folders in a dict; one lock, as HDFS has one for its name space.

    It answers as Hadoop 3.4.2 did when it was tried.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.tree = {"": FOLDER, "/store": FOLDER}
        self.now_ms = int(time.time() * 1000)
        self.written_ms = {}
        self.modes = {}
        """Of folders that were made with one; others have 755."""
        self.lock = threading.RLock()
        self.requests = []
        self.planned = {}
        self.sick_data_node = False
        self.is_away = False

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
        if server.is_away:
            planned = hang_up
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

    def status(self, tree, path, suffix):
        body = tree[path]
        kind, length = ("DIRECTORY", 0) if body is FOLDER else ("FILE", len(body))
        written_ms = self.server.written_ms.get(path, self.server.now_ms)
        told = {"pathSuffix": suffix, "type": kind, "length": length, "modificationTime": written_ms}
        return {**told, "permission": self.server.modes.get(path, "755" if body is FOLDER else "644")}

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
        names = [name for name in tree if name.rpartition("/")[0] == path and name]
        statuses = [self.status(tree, name, name.rpartition("/")[2]) for name in names]
        return self.answer(FileStatuses={"FileStatus": statuses})

    def op_mkdirs(self, tree, path, query, body):
        parts = path.split("/")
        if path not in tree and "permission" in query:
            self.server.modes[path] = query["permission"]
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
        self.server.written_ms[path] = self.server.now_ms
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


def hang_up(perform):
    """Answer nothing."""


@contextlib.contextmanager
def name_node_running():
    """Yield a NameNode that listens."""
    with NameNode() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@contextlib.contextmanager
def s3_running():
    """Yield the proxy before a moto server: moto alone checks, then stores, so the proxy lets one request in."""
    from moto.server import ThreadedMotoServer  # not in [test]: the double of a NameNode needs none of it

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        _, port = server.get_host_and_port()
        with HttpFaultProxy(port) as proxy:
            yield proxy
    finally:
        server.stop()


def s3_options_of(proxy):
    """Return the options of a client."""
    end = f"http://127.0.0.1:{proxy.port}"
    return {"key": "user", "secret": "secret", "endpoint_url": end}


class RemoteRoots:
    """Three roots, a folder, a bucket and HDFS, and what it takes to reach them; each can be away.

    Attributes:
        path: of the store.
        options: of its roots, without ``storage.``.
    """

    def __init__(self, folder: Path, s3: Any, name_node: Any) -> None:
        self.local, self.s3, self.name_node = folder, s3, name_node
        bucket = f"bucket-{uuid.uuid4().hex}"
        urls = [str(folder), f"s3://{bucket}/log", f"webhdfs://127.0.0.1:{name_node.server_address[1]}/store/log"]
        self.path = ",".join(urls)
        self.options = {f"s3://{bucket}.{name}": value for name, value in s3_options_of(s3).items()}
        self.options["webhdfs.user"] = "me"
        open_store(urls[1], self.options).file_system().mkdir(bucket)

    def away(self, broker_id: int) -> None:
        if broker_id == 0:
            os.rename(self.local, f"{self.local}.away")
        elif broker_id == 1:
            for method in ("GET", "PUT", "HEAD", "POST", "DELETE"):
                self.s3.plan(method, SILENT, times=100_000)
        else:
            self.name_node.is_away = True

    def back(self, broker_id: int) -> None:
        if broker_id == 0:
            os.rename(f"{self.local}.away", self.local)
        self.s3.clear()
        self.name_node.is_away = False
