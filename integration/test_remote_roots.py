"""A query over a store whose three replicas lie in a folder, in an S3 bucket and in a third kind of storage."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.remote_roots import RemoteRoots, name_node_running, s3_running
from tests.servers.builds import IS_ALL
from tests.servers.nfs import Nfs
from tests.servers.server import Azurite, VersityGateway

QUICK = {"kafka.request.timeout.ms": "15000", "replica.lag.time.max.ms": "1000", "replica.rejoin.wait.ms": "0"}


class RealRoots:
    """As RemoteRoots, on NFS, versitygw and Azurite; the folder that is away is renamed, a server is killed."""

    def __init__(self, nfs, s3, azure):
        self.local, self._servers = Path(nfs.new_root("log")), {1: s3, 2: azure}
        urls = [s3.new_root("log"), azure.new_root("log")]
        self.path = ",".join([str(self.local), *urls])
        self.options = {**s3.scoped_options(urls[0]), **azure.scoped_options(urls[1])}

    def clients(self):
        """Return which clients have asked versitygw, from any process."""
        return self._servers[1].clients_of_objects()

    def away(self, broker_id):
        if broker_id == 0:
            self.local.rename(f"{self.local}.away")
        else:
            self._servers[broker_id].kill()

    def back(self, broker_id):
        if broker_id == 0:
            self.local.with_name(f"{self.local.name}.away").rename(self.local)
        else:
            self._servers[broker_id].start()


def real_or_doubles(stack, folder, client):
    """Return the roots: on doubles (moto, a NameNode of ours), or on servers where all tests of servers are wanted."""
    if not IS_ALL:
        return RemoteRoots(folder / "log", stack.enter_context(s3_running()), stack.enter_context(name_node_running()))
    servers = []
    for kind in (Nfs, VersityGateway, Azurite):
        (folder / kind.name).mkdir()
        servers.append(stack.enter_context(kind(folder / kind.name)))
        servers[-1].client = client
    return RealRoots(*servers)


@pytest.fixture(params=["fsspec", "obstore"] if IS_ALL else ["fsspec"])
def roots(request, work_folder, environment):
    """On doubles, or with each client on real servers: Spark forks its workers, and none may use another's client."""
    folder = work_folder / f"mixed-{request.param}"
    folder.mkdir()
    with ExitStack() as stack:
        made = real_or_doubles(stack, folder, request.param)
        made.name, made.client = folder.name, request.param
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
    if IS_ALL:  # planner, tasks and commits were served by the chosen client alone
        assert roots.clients() == {roots.client}
    (checked,) = roots.cli("store", "verify", "--deep")
    assert (checked["ok"], checked["lostObjects"]) == (True, 0)
