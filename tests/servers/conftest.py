"""The servers of this run: each is started once, where its program can be had."""

from __future__ import annotations

import functools
import os
import subprocess

import pytest

from tests.servers import server
from tests.servers.builds import Build, NotBuilt, begin, end
from tests.servers.hdfs import Hdfs

_BEGUN: list[subprocess.Popen[bytes]] = []


def builds_of(item: pytest.Item) -> dict[str, Build]:
    """Return by name what a test runs: its parameters and the names of its file, where these are servers or builds."""
    named = list(vars(item.module).values()) if isinstance(item, pytest.Function) else []
    for given in item.callspec.params.values() if hasattr(item, "callspec") else ():
        named += given if isinstance(given, tuple) else (given,)
    builds = [getattr(value, "build", None) if isinstance(value, type) else value for value in named]
    return {build.name: build for build in builds if isinstance(build, Build)}


def pytest_collection_finish(session: pytest.Session) -> None:
    """Begin with the programs of all servers beside the tests before theirs; with ``-n 2`` by one of the processes."""
    if not session.config.option.collectonly and os.environ.get("PYTEST_XDIST_WORKER", "gw0") == "gw0":
        wanted = {name: build for item in session.items for name, build in builds_of(item).items()}
        _BEGUN.extend(begin(wanted.values()))


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
        answer = start(kind)
        if isinstance(answer, NotBuilt):
            pytest.skip(str(answer))
        return answer

    yield get
    for running_server in running:
        running_server.close()


KINDS = (server.VersityGateway, server.Minio, server.FakeGcs, server.Azurite)
on_buckets = pytest.mark.parametrize("real", KINDS, ids=lambda kind: kind.name, indirect=True)
"""For tests of what HDFS has not: buckets."""
ON_ALL = [pytest.param(kind, id=kind.name) for kind in (*KINDS, Hdfs)]
SHORT = (server.Minio, Hdfs)
FEW = [pytest.param(kind, id=kind.name, marks=[] if kind in SHORT else pytest.mark.wide) for kind in (*KINDS, Hdfs)]
on_few = pytest.mark.parametrize("real", FEW, indirect=True)
"""For long tests: on a bucket and HDFS in the runs that people wait for, on the others in the tier wide."""


@pytest.fixture(params=ON_ALL)
def real(request, servers):
    """Each kind of server in turn."""
    return servers(request.param)
