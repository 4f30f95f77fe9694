"""A query over a store whose three replicas lie on three kinds of storage, each away in turn."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path

import pytest
from real_servers import running

from tests.remote_roots import RemoteRoots, name_node_running, s3_running
from tests.servers.hdfs import Hdfs
from tests.servers.nfs import Nfs
from tests.servers.server import Azurite, FakeGcs, Minio, VersityGateway

QUICK = {"kafka.request.timeout.ms": "15000", "replica.lag.time.max.ms": "1000", "replica.rejoin.wait.ms": "0"}


class RealRoots:
    """As RemoteRoots, a root on each server; the folder of an NFS mount that is away is renamed, a server is killed."""

    def __init__(self, servers):
        self._servers = servers
        urls = [server.new_root("log") for server in servers]
        self._folders = {number: Path(urls[number]) for number, server in enumerate(servers) if isinstance(server, Nfs)}
        self.path = ",".join(urls)
        self.options = {}
        for root_server, url in zip(servers, urls, strict=True):
            self.options |= {} if isinstance(root_server, Nfs) else root_server.scoped_options(url)

    def away(self, broker_id):
        folder = self._folders.get(broker_id)
        if folder is None:
            self._servers[broker_id].kill()
        else:
            folder.rename(f"{folder}.away")

    def back(self, broker_id):
        folder = self._folders.get(broker_id)
        if folder is None:
            self._servers[broker_id].start()
        else:
            folder.with_name(f"{folder.name}.away").rename(folder)


def real_roots(stack, folder, kinds):
    """Return roots on running servers; skips where one has no program."""
    return RealRoots([running(stack, kind, folder) for kind in kinds])


SERVERS = {
    "doubles": (),
    "nfs, versitygw, azurite": (Nfs, VersityGateway, Azurite),
    "hdfs, minio, fake-gcs": (Hdfs, Minio, FakeGcs),
}


REPEATED = ("hdfs, minio, fake-gcs",)
"""As the others, on more servers: what is their own is in tests/servers."""


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.wide if name in REPEATED else ()) for name in SERVERS])
def roots(request, work_folder, environment):
    """On doubles and on real servers: Spark forks its workers, and none may use another's client."""
    kinds = SERVERS[request.param]
    folder = work_folder / f"mixed-{list(SERVERS).index(request.param)}"
    folder.mkdir()
    with ExitStack() as stack:
        if kinds:
            made = real_roots(stack, folder, kinds)
        else:
            services = stack.enter_context(s3_running()), stack.enter_context(name_node_running())
            made = RemoteRoots(folder / "log", *services)
        made.name = folder.name
        made.spark_options = {f"storage.{name}": value for name, value in made.options.items()}

        def cli(*arguments):
            settings = [text for name, value in made.spark_options.items() for text in ("-X", f"{name}={value}")]
            answer = environment.run(str(environment.replog), "-f", "json", "-s", made.path, *settings, *arguments)
            return json.loads(answer.stdout)["items"]

        made.cli = cli
        cli("init")
        for topic in ("in", "out"):
            cli("topic", "create", topic, "-p", "2", "--replicas", "3")
        yield made


def test_a_query_goes_on_whichever_kind_of_storage_is_away(spark, roots, work_folder):
    options = roots.spark_options
    spark.call("write", path=roots.path, topic="in", start=0, end=100, options=options)
    spark.call(
        "start_named", name=roots.name, path=roots.path, source="in", sink="out",
        checkpoint=str(work_folder / roots.name / "ck"), source_options=options, sink_options={**options, **QUICK},
    )  # fmt: skip
    try:
        for broker_id in range(3):
            roots.away(broker_id)
            start = 100 * (broker_id + 1)
            spark.call("write", path=roots.path, topic="in", start=start, end=start + 100, options={**options, **QUICK})
            roots.back(broker_id)
    finally:
        spark.call("drain_named", name=roots.name)
    rows = spark.call("read", path=roots.path, topic="out", options=options)
    assert sorted(int(row[3]) for row in rows) == list(range(400))
    assert [row[:2] for row in rows] == [[p, n] for p in (0, 1) for n in range(sum(row[0] == p for row in rows))]
    assert roots.cli("store", "repair") is not None
    (checked,) = roots.cli("store", "verify", "--deep")
    assert (checked["ok"], checked["lostObjects"]) == (True, 0)
