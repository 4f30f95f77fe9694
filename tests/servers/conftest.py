"""The servers of this run: each is started once, where its program can be had."""

from __future__ import annotations

import functools
import os
import subprocess

import pytest

from tests.servers import server
from tests.servers.builds import MINIO, NotBuilt, end
from tests.servers.hdfs import Hdfs

_BEGUN: list[subprocess.Popen[bytes]] = []


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build MinIO beside the tests before its own; with ``-n 2`` by one of the processes."""
    is_wanted = any("minio" in item.nodeid or hasattr(getattr(item, "module", None), "Minio") for item in session.items)
    if is_wanted and not session.config.option.collectonly and os.environ.get("PYTEST_XDIST_WORKER", "gw0") == "gw0":
        _BEGUN.extend(filter(None, [MINIO.begin()]))


def pytest_sessionfinish() -> None:
    while _BEGUN:
        end(_BEGUN.pop())


@pytest.fixture(scope="session")
def servers(tmp_path_factory):
    """Return a function: class of a server to the running one; skips where there is no program."""
    running = []

    @functools.cache
    def start(kind):
        try:
            kind.build.folder()
            running.append(kind(tmp_path_factory.mktemp(kind.name)))
            running[-1].start()
        except NotBuilt as why:
            return why
        return running[-1]

    def get(kind):
        found = start(kind)
        if isinstance(found, NotBuilt):
            pytest.skip(str(found))
        return found

    yield get
    for each in running:
        each.close()


KINDS = (server.VersityGateway, server.Minio, server.FakeGcs, server.Azurite)
CLIENTS = [(kind, "fsspec") for kind in KINDS] + [(kind, "obstore") for kind in (server.VersityGateway, server.Azurite)]
on_buckets, on_fsspec_buckets = (
    pytest.mark.parametrize("real", clients, ids=lambda each: f"{each[0].name}-{each[1]}", indirect=True)
    for clients in (CLIENTS, CLIENTS[: len(KINDS)])
)
"""For tests of what HDFS has not: buckets; and of what only fsspec's clients do."""
ON_ALL = [
    *(pytest.param(each, id=f"{each[0].name}-{each[1]}") for each in CLIENTS),
    pytest.param((Hdfs, "auto"), id="hdfs"),
]


@pytest.fixture(params=(*CLIENTS, (Hdfs, "auto")), ids=lambda each: f"{each[0].name}-{each[1]}")
def real(request, servers, monkeypatch):
    """Each kind of server in turn, by each client that may serve it."""
    kind, client = request.param
    monkeypatch.setattr(kind, "client", client)
    return servers(kind)
