"""The servers of this run: each is started once, where its program can be had."""

from __future__ import annotations

import functools

import pytest

from tests.servers import server
from tests.servers.builds import IS_ALL, NotBuilt
from tests.servers.hdfs import Hdfs


@pytest.fixture(scope="session")
def servers(tmp_path_factory):
    """Return a function: class of a server to the running one; skips where there is no program."""
    running = []

    @functools.cache
    def start(kind):
        try:
            kind.build.folder()
        except NotBuilt as why:
            return why
        running.append(kind(tmp_path_factory.mktemp(kind.name)))
        running[-1].start()
        return running[-1]

    def get(kind):
        found = start(kind)
        if isinstance(found, NotBuilt):
            pytest.skip(str(found))
        return found

    yield get
    for each in running:
        each.kill()


KINDS = (server.VersityGateway, server.Minio, server.FakeGcs, server.Azurite)
on_buckets = pytest.mark.parametrize("real", KINDS, ids=lambda kind: kind.name, indirect=True)
"""For tests of what HDFS has not: buckets."""
_LONG = pytest.mark.skipif(not IS_ALL, reason="half a minute on HDFS: REPLOG_TEST_SERVERS_ALL=1 runs it")
on_all_for_long = pytest.mark.parametrize(
    "real", [*KINDS, pytest.param(Hdfs, marks=_LONG)], ids=lambda kind: kind.name, indirect=True
)


@pytest.fixture(params=(*KINDS, Hdfs), ids=lambda kind: kind.name)
def real(request, servers):
    """Each kind of server in turn."""
    return servers(request.param)
