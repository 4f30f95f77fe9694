"""Processes that append to one ledger and are killed at random moments."""

from __future__ import annotations

import os
import random
import signal
import time
from functools import partial

import pytest

from tests.unit.ledger.conftest import Store
from tests.unit.ledger.test_ledger_storm import insist
from tests.waiting import wait_until


def run_child(store, name, acknowledged_path):
    process = store.process()
    with open(acknowledged_path, "ab", buffering=0) as acknowledged:
        for number in range(100_000):
            command = b"%s %d" % (name, number)
            insist(partial(process.append, command, timeout_ms=500))
            acknowledged.write(command + b"\n")


def wait_for_lines(path, count):
    """However busy the machine is, each kill meets processes that have acknowledged something."""
    wait_until(lambda: path.exists() and path.read_bytes().count(b"\n") >= count)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("root_count", [1, 3])
def test_killed_processes_lose_nothing_that_was_acknowledged(tmp_path, root_count):
    store = Store(tmp_path, root_count)
    rng = random.Random(root_count)
    path = tmp_path / "acknowledged"
    children = {}
    try:
        for kill in range(12):
            while len(children) < 3:
                name = b"child %d.%d" % (kill, len(children))
                child = os.fork()
                if child == 0:
                    try:
                        run_child(store, name, path)
                    finally:
                        os._exit(1)
                children[child] = name
            wait_for_lines(path, 3 * (kill + 1))
            time.sleep(rng.random() * 0.1)
            victim = rng.choice(list(children))
            os.kill(victim, signal.SIGKILL)
            assert os.waitpid(victim, 0)[1] == signal.SIGKILL
            del children[victim]
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    commands = store.process().commands()
    assert len(commands) == len(set(commands))
    acknowledged = path.read_bytes().splitlines()
    assert len(acknowledged) >= 36
    assert set(acknowledged) <= set(commands)
    assert store.process().append(b"after the storm").result == "applied"
