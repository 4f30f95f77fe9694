"""How the tests are selected, ordered and shared among processes, by the tiers of ``tests/tiers.py``."""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from xdist.scheduler import LoadScopeScheduling

from tests import examples, tiers

ROOT = Path(__file__).parent
UNIT = ROOT / "tests" / "unit"
IN_MEMORY = {tiers.NEWCOMER, tiers.FAST, tiers.PLAIN}
MEMORY = Path("/dev/shm")
MEMORY_NEEDED_BYTES = 4 << 30
FILES_IN_ONE_PROCESS_MAX = 3
ONE_BY_ONE = "tests/simulation/test_whole_system.py::"
"""Its tests share nothing and need a processor all the time: they are shared out singly, last, so that none is idle."""
_TIER = pytest.StashKey[str]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("tiers")
    group.addoption(
        "--tier",
        metavar="NAME[,NAME]",
        help=f"run these tiers only: {', '.join(tiers.TIERS)}; or {tiers.NEWCOMER}, the default where no path is named;"
        f" {tiers.BUT_NEWCOMER}: without its tests",
    )
    group.addoption("--no-skips", action="store_true", help="a skip fails, but for reasons that tests/tiers.py lists")
    group.addoption(
        "--examples", type=float, default=1.0, metavar="FACTOR", help="try this many times as many generated cases"
    )
    group.addoption("--shuffle", type=int, metavar="SEED", help="run the files in a random order")


def selection_of(config: pytest.Config) -> tuple[str, ...]:
    """Return the tiers to run; none where all that is named runs."""
    named = config.option.tier
    if named is None and config.args_source is pytest.Config.ArgsSource.TESTPATHS:
        named = config.option.tier = tiers.NEWCOMER  # the processes of xdist get the options, and paths as arguments
    selection = tuple(named.split(",")) if named else ()
    unknown = set(selection) - {*tiers.TIERS, tiers.NEWCOMER, tiers.BUT_NEWCOMER}
    if unknown:
        raise pytest.UsageError(f"--tier {named}: the tiers are {', '.join(tiers.TIERS)}")
    return selection


def pytest_configure(config: pytest.Config) -> None:
    """Pass the options on; let the tests of plain Python keep their files in memory: on a disk they take far longer.

    The other tiers are on the disk. ``PYTEST_DEBUG_TEMPROOT`` and ``--basetemp`` still count.
    """
    examples.factor = config.option.examples
    is_plain = bool(selection_of(config)) and IN_MEMORY.issuperset(selection_of(config))
    is_fast_set = all((config.invocation_params.dir / each).is_relative_to(UNIT) for each in config.args)
    if (is_plain or is_fast_set) and MEMORY.is_dir() and shutil.disk_usage(MEMORY).free >= MEMORY_NEEDED_BYTES:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Tally())


@pytest.hookimpl(tryfirst=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """All processors, and two processes more since tests wait; none for a few files: they are done before it starts."""
    files = [each.partition("::")[0] for each in config.args]
    if config.option.collectonly or (len(files) <= FILES_IN_ONE_PROCESS_MAX and all(map(os.path.isfile, files))):
        return 0
    return len(os.sched_getaffinity(0)) + 2 if hasattr(os, "sched_getaffinity") else None


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import no file of other tiers: it may need packages that are not installed."""
    selection = selection_of(config)
    if not selection or not (collection_path.is_dir() or collection_path.name.startswith("test_")):
        return None
    try:
        return None if tiers.may_hold_selected(collection_path.relative_to(ROOT).as_posix(), selection) else True
    except (KeyError, ValueError):  # it is above, or elsewhere
        return None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    selection, left = selection_of(config), []
    for item in items:
        marks = {mark.name for mark in item.iter_markers()}
        item.stash[_TIER] = tiers.tier_of(item.nodeid, marks)
        if selection and not tiers.is_selected(item.nodeid, marks, selection):
            left.append(item)
    if left:
        config.hook.pytest_deselected(items=left)
        gone = set(left)
        items[:] = [item for item in items if item not in gone]
    if config.option.shuffle is not None:
        files = list(dict.fromkeys(item.path for item in items))
        random.Random(config.option.shuffle).shuffle(files)
        places = {path: place for place, path in enumerate(files)}
        items.sort(key=lambda item: places[item.path])
    items.sort(key=lambda item: item.nodeid.startswith(ONE_BY_ONE))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    report.tier = item.stash[_TIER]
    if item.config.option.no_skips and report.skipped and not hasattr(report, "wasxfail"):
        fail_unless_allowed(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    report = yield
    if collector.config.option.no_skips and report.skipped:
        fail_unless_allowed(report)
    return report


def fail_unless_allowed(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Make a failure of a skip whose reason is not listed."""
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    if not any(each in reason for each in tiers.SKIPS_ALLOWED):
        report.outcome, report.longrepr = "failed", f"skipped, which --no-skips does not allow here: {reason}"


class Tally:
    """Seconds and outcomes of each tier, where the reports of all processes come together."""

    def __init__(self) -> None:
        self._seconds: Counter[str] = Counter()
        self._tests: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        tier = getattr(report, "tier", "?")
        self._seconds[tier] += report.duration
        self._tests[tier] += report.when == "call" or (report.when == "setup" and not report.passed)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self._tests:
            return
        terminalreporter.section("minutes by tier, of all processes together")
        for tier in (each for each in (*tiers.TIERS, "?") if each in self._tests):
            terminalreporter.line(f"{tier:8} {self._seconds[tier] / 60:6.1f} min {self._tests[tier]:6} tests")


class FilesBesideSpark(LoadScopeScheduling):
    """Files, one by one, to whichever process is free; the first process begins with those of real Spark.

    A process makes an environment and a session once for all files of Spark that it gets, so the others take some
    only when they have run all other files.
    """

    def _split_scope(self, nodeid: str) -> str:
        return nodeid if nodeid.startswith(ONE_BY_ONE) else nodeid.partition("::")[0]

    def _assign_work_unit(self, node: object) -> None:
        is_first = node.gateway.id == "gw0"
        for scope in self.workqueue:
            if scope.startswith("integration/") is is_first:
                self.workqueue.move_to_end(scope, last=False)
                break
        super()._assign_work_unit(node)


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> FilesBesideSpark:
    config.option.loadscopereorder = False  # in the order of `pytest_collection_modifyitems`
    return FilesBesideSpark(config, log)
