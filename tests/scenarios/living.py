"""One process of a store that lives: a writer that says what it was told, or a keeper that retains, compacts, collects.

``python -m tests.scenarios.living STORE writer NAME COUNT`` or ``... STORE keeper NAME ROUNDS``; test_life.py judges.
``REPLOG_TEST_CLOCK_MS`` is added to what the clock of the process says.
"""

from __future__ import annotations

import json
import os
import sys

import spark_replog
from spark_replog import fault_point
from spark_replog.cli.main import run
from spark_replog.clock import SystemClock
from spark_replog.cluster.cluster import Cluster
from spark_replog.config.coordinator import CoordinatorConfig
from spark_replog.errors import ReplogError
from spark_replog.maintenance.upkeep import Upkeep
from tests.scenarios.committing import SMALL, pass_fault_points_at_journals

TOPICS = {
    "plain": {"retention.ms": "-1"},
    "aged": {"retention.ms": "-1", "retention.bytes": "3000"},
    "keyed": {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"},
}
KEYS = 5
ROUNDS_MAX = 20
"""A keeper that has not reached its step by then does nothing at that step."""
SETTINGS = {"delivery.timeout.ms": 20_000, "request.timeout.ms": 10_000}
UPKEEP = CoordinatorConfig(
    log_retention_check_interval_ms=1, file_delete_delay_ms=0, gc_floor_lag_ms=1, delivery_timeout_ms=20_000
)


def say(**what: object) -> None:
    print(json.dumps(what), flush=True)


def write(path: str, name: str, count: int) -> None:
    """Send rows one by one to each topic, each with a value of its own; what fails is sent again as another row."""
    store = spark_replog.open(path)
    number, told = 0, 0
    producer = store.producer(SETTINGS)
    while told < count and number < 4 * count:
        number += 1
        topic = (*TOPICS,)[number % len(TOPICS)]
        value = f"{name}-{number}"
        say(sent=value, topic=topic, key=f"k{number % KEYS}")
        try:
            offset = producer.send(topic, value.encode(), key=f"k{number % KEYS}".encode()).result(timeout=60).offset
        except ReplogError as error:
            say(refused=value, code=error.code.name)
            producer.close()
            producer = store.producer(SETTINGS)
            continue
        told += 1
        say(told=value, topic=topic, key=f"k{number % KEYS}", offset=offset)
    producer.close()


def is_step_ahead() -> bool:
    """Return whether this process is to be killed or stopped at a step that it has not reached."""
    return bool(os.environ.get(fault_point.VARIABLE)) and fault_point._left > 0


def keep(path: str, name: str, rounds: int, *, is_upkeep: bool) -> None:
    """Do all that deletes or moves rows, round by round; what cannot be done now is left to the next round.

    A keeper that is to die or stop at a step makes more rounds until it is there, and writes rows before each of them:
    what a round finds to do depends on what the ones before it and other processes have left.

    `is_upkeep`: only what commits do themselves.
    """
    store, cluster = ["-q", "-s", path], Cluster.open(path, config=UPKEEP)
    upkeep = Upkeep(cluster)
    for number in range(ROUNDS_MAX):
        if number >= rounds:
            if not is_step_ahead():
                return
            write(path, f"{name}r{number}", 2 * len(TOPICS))
        for topic in TOPICS:
            try:
                cluster.refresh()
                ledger, _ = cluster.folded_topic(cluster.lookup(topic))
                upkeep.run(ledger)
                ledger.snapshot(timeout_ms=20_000)
            except ReplogError as error:
                say(left=topic, code=error.code.name)
        if is_upkeep:
            continue
        codes = [run([*store, "topic", "compact", topic, "--all"]) for topic in TOPICS]
        codes.append(run([*store, "store", "gc", *(["--now", "--older-than", "0s"] if number % 2 else [])]))
        say(round=number, codes=codes)


if __name__ == "__main__":
    path, role, name, count = sys.argv[1:]
    for module, attribute, value in SMALL:
        setattr(module, attribute, value)
    pass_fault_points_at_journals()
    real, ahead_ms = SystemClock.now_ms, int(os.environ.get("REPLOG_TEST_CLOCK_MS", "0"))
    SystemClock.now_ms = lambda clock: real(clock) + ahead_ms  # type: ignore[method-assign]
    if role == "writer":
        write(path, name, int(count))
    else:
        keep(path, name, int(count), is_upkeep=role == "upkeep")
