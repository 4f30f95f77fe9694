"""Ways to run Spark that docs/spark-submit.md names, as far as one machine can show them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
from pathlib import Path

import pytest
from doc_blocks import read_page

ROOT = Path(__file__).resolve().parents[1]
JOB = Path(__file__).parent / "support" / "deployment_job.py"
QUICK = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
SMALL = (
    f"spark.driver.extraJavaOptions={QUICK}",
    f"spark.executor.extraJavaOptions={QUICK}",
    "spark.executor.memory=512m",
    "spark.driver.bindAddress=127.0.0.1",
    "spark.driver.host=127.0.0.1",
    "spark.scheduler.minRegisteredResourcesRatio=1.0",
)


@pytest.fixture
def topics(make_store):
    store = make_store()
    store.topic("in", 2)
    store.topic("out", 2)
    return store


def run_job(environment, store, master, *settings):
    answer = environment.run(str(environment.python), str(JOB), master, str(store.path), store.checkpoint(), *settings)
    (line,) = [line for line in answer.stdout.splitlines() if line.startswith("@@replog ")]
    facts = json.loads(line.removeprefix("@@replog "))
    assert facts["error"] is None
    assert (facts["rows"], facts["distinct"]) == (100, 100)
    return facts


def test_local_cluster(environment, topics):
    """Executors in processes of their own."""
    facts = run_job(environment.quick_to_start(), topics, "local-cluster[2,1,512]", *SMALL)
    assert facts["executors"] == 2


def test_standalone_master_with_two_workers(environment, topics, work_folder):
    environment = environment.quick_to_start()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    master = f"spark://127.0.0.1:{port}"
    spark_class = str(environment.spark_home / "bin" / "spark-class")
    package = "org.apache.spark.deploy"
    small = ("--webui-port", "0", "--host", "127.0.0.1")
    commands = [(spark_class, f"{package}.master.Master", "--port", str(port), *small)]
    for number in range(2):
        folder = work_folder / f"worker-{number}"
        commands.append(
            (spark_class, f"{package}.worker.Worker", "--cores", "1", "--memory", "600m",
             "--work-dir", str(folder), *small, master)
        )  # fmt: skip
    with contextlib.ExitStack() as running, (work_folder / "standalone.log").open("w") as log:
        for command in commands:
            process = subprocess.Popen(
                command, env={**environment.variables(), "SPARK_NO_DAEMONIZE": "1"}, cwd=work_folder,
                stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
            running.callback(process.wait, 30)
            running.callback(os.killpg, process.pid, signal.SIGKILL)
        facts = run_job(environment, topics, master, *SMALL)
    assert facts["executors"] == 2


def test_connect(environment, topics):
    """A client without a JVM of its own; the server finds the format, and takes it from the client as well."""
    ((_, block),) = read_page(ROOT / "docs/spark-submit.md").elsewhere
    for name, here in (("server:", "localhost:"), ('"orders"', '"out"'), ("/data/store", str(topics.path))):
        assert name in block
        block = block.replace(name, here)
    (topics.folder / "block.py").write_text(block)
    run_job(environment, topics, "connect:local[2]", f"block={topics.folder / 'block.py'}")
