"""Real Spark, real processes, the built wheel. One environment and one session serve most tests."""

from __future__ import annotations

import functools
import io
import itertools
import json
import os
import shutil
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from spark_replog.cli.main import run

sys.path.insert(0, str(Path(__file__).parent / "support"))

from environments import PRINCIPAL, Environment, build_wheel, make_environment, unpacked_spark
from spark_driver import SparkDriver


def pytest_addoption(parser):
    parser.addoption("--kills", type=int, default=20, help="how often drivers are killed in the long kill loop")


@pytest.fixture(scope="session")
def work_folder():
    """A folder for stores and checkpoints, removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix="replog-it-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def cache_folder():
    """Where unpacked Spark releases and jars are kept between runs, and for all processes of one."""
    folder = Path(os.environ.get("REPLOG_TEST_CACHE") or "~/.cache/spark-replog/test-sparks").expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def java_home():
    """JAVA_HOME for Spark, None where the machine's Java serves."""
    from spark_replog.cli.java import java_environment

    return java_environment(os.environ).get("JAVA_HOME")


@pytest.fixture(scope="session")
def wheel(work_folder):
    folder = work_folder / "wheel"
    folder.mkdir()
    return build_wheel(folder)


@pytest.fixture(scope="session")
def environment(work_folder, wheel, java_home) -> Environment:
    """A fresh environment with the wheel and the newest Spark."""
    return make_environment(work_folder / "env", wheel, spark=None, java_home=java_home)


def after_others():
    """Let the processors be the tests'; on Linux a thread has a priority of its own, and its children take it over."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)


@pytest.fixture(scope="session", autouse=True)
def prepared(request, environment, cache_folder):
    """What tests of this run will ask for and takes long to make, made beside the tests before them."""
    made = {}
    with ThreadPoolExecutor(1, initializer=after_others) as thread:
        for item in request.session.items:
            version = next((mark.args[0] for mark in item.iter_markers("older_spark")), None)
            if version is not None and version not in made:
                made[version] = thread.submit(unpacked_spark, version, cache_folder)
        yield made
        thread.shutdown(cancel_futures=True)


@pytest.fixture(scope="session")
def older_environment(work_folder, wheel, java_home, prepared):
    """Return a function: Spark version, which the test's mark ``older_spark`` names too, to its environment."""

    @functools.cache
    def make(version: str) -> Environment:
        spark = prepared[version].result()
        return make_environment(work_folder / f"env-{version}", wheel, spark=spark, java_home=java_home)

    return make


@pytest.fixture(scope="session")
def spark(environment, work_folder):
    """A driver with a session, shared by all tests that do not harm it."""
    with SparkDriver(environment.quick_to_start(), work_folder / "driver.log", "serve") as driver:
        yield driver


@pytest.fixture(scope="session")
def other_spark(environment, work_folder):
    """Another driver, for tests of two at once."""
    with SparkDriver(environment.quick_to_start(), work_folder / "driver-other.log", "serve") as driver:
        yield driver


class Store:
    """A store of this checkout's command line, in this process: a program takes a second to start.

    ``test_the_wheel_is_what_runs`` and ``test_readme.py`` run the wheel's program.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.folder = path.parent

    def cli(self, *arguments: str) -> list[dict]:
        with redirect_stdout(io.StringIO()) as out, pytest.MonkeyPatch.context() as patched:
            patched.setenv("REPLOG_PRINCIPAL", PRINCIPAL)
            code = run(["-f", "json", "-s", str(self.path), *arguments])
        assert code == 0, (arguments, out.getvalue())
        return json.loads(out.getvalue())["items"]

    def topic(self, name: str, partitions: int = 2, replicas: int = 3, *more: str) -> str:
        self.cli("topic", "create", name, "-p", str(partitions), "--replicas", str(replicas), *more)
        return name

    def checkpoint(self, name: str = "checkpoint") -> str:
        return str(self.folder / name)


@pytest.fixture(scope="session")
def make_store(work_folder):
    """Return a function that makes a store with some brokers."""
    numbers = itertools.count()

    def make(brokers: int = 3, name: str = "log") -> Store:
        folder = work_folder / f"store-{next(numbers)}"
        folder.mkdir()
        store = Store(folder / name)
        store.cli("init", "--brokers", str(brokers))
        return store

    return make


@pytest.fixture(scope="module")
def store(make_store):
    """A store of three brokers, shared by the tests of a module: each uses topics of its own."""
    return make_store()


@pytest.fixture
def topics(make_store):
    """A store with the topics of `deployment_job.py`."""
    store = make_store()
    store.topic("in", 2)
    store.topic("out", 2)
    return store
