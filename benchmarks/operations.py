"""What an operator waits for on a large store: commands as processes, a scrape, the console's first view.

    python -m benchmarks.ages grow --kind off-1000 --to 100000
    python -m benchmarks.operations /var/tmp/replog-ages/off-1000-100000 [--rounds 9]

Reads only. Commands run with compiled modules, as an installed package does. Wall time, and CPU time of commands.
"""

from __future__ import annotations

import argparse
import http.client
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

COMMANDS = ("--help", "status", "store info", "topic list")
FIRST_VIEW = ("/", "/console.css", "/console.js", "/icon.svg", "/api/overview", "/api/placement?count=200")


def children_cpu_ms() -> float:
    """Return the CPU time of the processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1000 * (used.ru_utime + used.ru_stime)


def measure(name: str, rounds: int, act: Callable[[], object], pause_seconds: float = 0.0) -> None:
    """Act often and print the times; the first round warms up and does not count."""
    walls, cpus = [], []
    for _ in range(rounds + 1):
        time.sleep(pause_seconds)
        began, cpu = time.perf_counter(), children_cpu_ms()
        act()
        walls.append(1000 * (time.perf_counter() - began))
        cpus.append(children_cpu_ms() - cpu)
    shown = f"{name}: wall min {min(walls[1:]):.0f} median {statistics.median(walls[1:]):.0f} ms"
    if max(cpus[1:]) > 0:
        shown += f", CPU min {min(cpus[1:]):.0f} median {statistics.median(cpus[1:]):.0f} ms"
    print(shown, flush=True)


@contextmanager
def serving(command: list[str], environment: dict[str, str], said: str) -> Iterator[re.Match[str]]:
    """Run a command that serves; yield what it said about where."""
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stderr is not None
            match = re.search(said, server.stderr.readline())
            assert match is not None, f"{command} does not serve"
            yield match
        finally:
            server.terminate()


def get(connection: http.client.HTTPConnection, path: str, cookie: str = "") -> http.client.HTTPResponse:
    """Ask for one path and read the answer."""
    connection.request("GET", path, headers={"Cookie": cookie})
    answer = connection.getresponse()
    answer.read()
    assert answer.status < 400, (path, answer.status)
    return answer


def main() -> None:
    """Measure everything."""
    parser = argparse.ArgumentParser()
    parser.add_argument("store")
    parser.add_argument("--rounds", type=int, default=9)
    given = parser.parse_args()
    replog = [sys.executable, "-m", "spark_replog", "-s", given.store]
    with tempfile.TemporaryDirectory() as compiled:
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": compiled, "PYTHONDONTWRITEBYTECODE": ""}
        for words in COMMANDS:
            run = partial(subprocess.run, [*replog, *words.split()], env=environment, capture_output=True, check=True)
            measure(words, given.rounds, run)
        command = [*replog, "metrics", "serve", "--listen", "127.0.0.1:9419"]
        with serving(command, environment, "serving"):
            connection = http.client.HTTPConnection("127.0.0.1", 9419)
            # Answers are kept for a second: each of these is a new look.
            measure("scrape", given.rounds, lambda: get(connection, "/metrics"), pause_seconds=1.1)
        command = [*replog, "ui", "--listen", "127.0.0.1:9418", "--every", "0.5"]
        with serving(command, environment, r"enter\?token=\S+") as link:
            connection = http.client.HTTPConnection("127.0.0.1", 9418)
            cookie = get(connection, f"/{link[0]}").headers["Set-Cookie"].partition(";")[0]
            # Looks are kept for 1.5 seconds while no reader follows: each of these is a new one.
            measure("first view", given.rounds, lambda: [get(connection, page, cookie) for page in FIRST_VIEW], 1.6)


if __name__ == "__main__":
    main()
