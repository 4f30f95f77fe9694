"""Options and settings of all tests but those of real Spark."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import sys
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from spark_replog.commit import catch_up
from spark_replog.read import fetcher
from spark_replog.storage import io_pool, probe

if os.environ.get("REPLOG_TEST_SNAPSHOTS") == "1":
    from tests import snapshot_stress

    snapshot_stress.install()

# Images of containers set PYTHONDONTWRITEBYTECODE=1. Then each worker, and each process that a test starts, compiles
# every module again: a fifth of the fast set's processor time.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# Thousands of stores are opened in one process here: their threads must not wait a minute for more work.
io_pool.THREAD_IDLE_SECONDS_MAX = 0.5
# Every one of those stores is probed when it is made; tests/unit/storage/test_probe.py races as often as users' stores.
probe.RACE_NAMES = 1
# Tests count gets: none is sent twice because this machine is busy. tests/unit/read/test_hedge.py sets what it needs.
fetcher.HEDGE_UNKNOWN_MS = fetcher.HEDGE_MIN_MS = 600_000
# Only a root that hangs does not answer a planner in time, not one that a busy machine keeps waiting.
catch_up.PLANNER_ROOT_TIMEOUT_MS = 5_000
# No test depends on how fast this machine is.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")


_FOLDER_NUMBERS = itertools.count()
_LEFT_FOLDERS: deque[tuple[float, Path]] = deque()
_LEFT_SECONDS_MIN = 60.0
_HAS_FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    if report.failed:
        item.stash[_HAS_FAILED] = True
    return report


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder whose name no other test of this process gets, and which stays for a minute after its test.

    pytest's own is deleted as soon as its test has passed, and its name is given again, to the next parameters of the
    same test for example. Threads of the former test still run then: what they write must not reach the latter, and
    what they say of a store that vanished must not come into its log. A failed test's folder stays.
    """
    name = re.sub(r"\W", "_", request.node.name)[:30]
    path = tmp_path_factory.mktemp(f"{name}-{next(_FOLDER_NUMBERS)}", numbered=False)
    yield path
    if _HAS_FAILED not in request.node.stash:
        _LEFT_FOLDERS.append((time.monotonic(), path))
    while _LEFT_FOLDERS and _LEFT_FOLDERS[0][0] < time.monotonic() - _LEFT_SECONDS_MIN:
        shutil.rmtree(_LEFT_FOLDERS.popleft()[1], ignore_errors=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items if os.environ.get("REPLOG_TEST_SNAPSHOTS") == "1" else ():
        reason = snapshot_stress.SKIPPED.get(getattr(item, "originalname", item.name))
        if reason is not None:
            item.add_marker(pytest.mark.skip(reason=reason))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--seeds",
        type=int,
        default=10_000,
        help="schedules of the ledger simulation, about 2 ms each; of the whole system twice as many, 30 ms each",
    )
    parser.addoption("--power-cuts", type=int, default=30, help="simulated power cuts of local folders, 60 ms each")
    parser.addoption(
        "--storms", type=int, default=5, help="long runs of processes whose roots come and go, a minute each"
    )
    parser.addoption(
        "--records", type=int, default=100_000, help="what Kafka's producer sends while gateways are killed and stopped"
    )
    parser.addoption("--mirror-kills", type=int, default=8, help="how often a mirror of Kafka is killed, 3 s each")
    parser.addoption("--first-seed", type=int, default=0, help="the first schedule of the whole system, or storm")
    parser.addoption("--seed", type=int, help="the one schedule of the whole-system simulation to run again")
