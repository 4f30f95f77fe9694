"""A Kafka for tests: a gateway over a store in memory, in a process of its own. No Java, no Docker.

Needs the extra ``gateway``. pytest finds the fixture ``kafka_server`` by itself: `spark_replog.pytest_plugin`.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec

from spark_replog.config.gateway import GatewayConfig
from spark_replog.config.registry import read_group
from spark_replog.errors import ErrorCode, ReplogError

PARTITIONS = 4
"""Of a topic that a client uses before somebody has created it: most test suites count on more than one."""
_START_SECONDS_MAX = 60.0
_SETTINGS = {"auto.create.topics.enable": True}


@dataclass(frozen=True, slots=True)
class KafkaServer:
    """A Kafka that runs.

    Args:
        bootstrap_servers: the address for clients, HOST:PORT, on this machine only.
    """

    bootstrap_servers: str


@contextmanager
def kafka(*, partitions: int = PARTITIONS, settings: Mapping[str, object] | None = None) -> Iterator[KafkaServer]:
    """Start a Kafka that ends with the block, and with this process however it ends. Its records are in memory.

    Args:
        partitions: of topics that clients use without creating them.
        settings: others of the gateway, by Kafka's dotted names, such as ``{"auto.create.topics.enable": False}``.

    Raises:
        InvalidConfigError: a setting is wrong.
        ReplogError: REPLOG_ENVIRONMENT: the extra is not installed, or the process ended at once.
    """
    merged = {**_SETTINGS, "num.partitions": partitions, **(settings or {})}
    read_group("gateway", merged)
    if find_spec("kafka") is None:
        raise ReplogError(
            ErrorCode.REPLOG_ENVIRONMENT,
            "a Kafka for tests needs kafka-python. Run: pip install 'spark-replog[gateway]'",
        )
    # -P: a folder of the project under test may have the name of a package, such as kafka.
    command = [sys.executable, "-P", "-m", __name__, json.dumps(merged)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
    timer = threading.Timer(_START_SECONDS_MAX, process.kill)
    timer.start()
    try:
        assert process.stdout is not None
        address = process.stdout.readline().decode().strip()
        timer.cancel()
        if not address:
            raise ReplogError(
                ErrorCode.REPLOG_ENVIRONMENT,
                f"the gateway ended with exit code {process.wait()} before it listened. Its reason is on stderr.",
            )
        yield KafkaServer(address)
    finally:
        timer.cancel()
        process.kill()  # nothing is left to keep: its store is in its memory
        process.communicate()


def _end_with_parent() -> None:
    """End this process when the one that started it has closed its end of the pipe, or is gone."""
    sys.stdin.buffer.read()
    os._exit(0)


def _main() -> None:
    """Serve a store in memory; print the address."""
    gc.disable()  # for the imports, which make nothing but what stays: a tenth of the time to the first record
    import socket

    from spark_replog.cluster.init_store import init_cluster
    from spark_replog.daemon_thread import DaemonThread
    from spark_replog.gateway.command import Endpoint, serve
    from spark_replog.ids import new_id

    gc.freeze()
    gc.enable()
    DaemonThread(_end_with_parent, name="replog-parent").start()
    config = GatewayConfig(**read_group("gateway", json.loads(sys.argv[1])))
    cluster = init_cluster(f"memory://kafka-{new_id()}", fsync=False)
    endpoint = Endpoint(socket.create_server(("127.0.0.1", 0)))
    serve(cluster, config, endpoint, lambda address: print(address, flush=True))


if __name__ == "__main__":
    _main()
