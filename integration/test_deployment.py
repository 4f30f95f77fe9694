"""Ways to run Spark that docs/spark-submit.md names, as far as one machine can show them."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from pathlib import Path

from deployments import SMALL, run_job
from doc_blocks import read_page

ROOT = Path(__file__).resolve().parents[1]


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
