"""What the Spark benchmarks share: a quiet session that sees this checkout, a scratch folder, medians."""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from spark_replog.cli.java import java_environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parent.parent


@contextmanager
def session(name: str, cores: int = 2, **confs: str) -> Iterator[SparkSession]:
    """Yield a session whose workers import this checkout and benchmarks.floors."""
    # As installed, so that a worker that starts late does not compile what it imports.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ.setdefault("PYTHONPYCACHEPREFIX", str(Path(tempfile.gettempdir()) / "replog-bench-bytecode"))
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    os.environ.update(java_environment(os.environ))
    from pyspark.sql import SparkSession

    from benchmarks.floors import Floor

    builder = SparkSession.builder.master(f"local[{cores}]").appName(name)
    builder = builder.config("spark.ui.enabled", "false").config("spark.log.level", "ERROR")
    builder = builder.config("spark.driver.memory", "6g").config("spark.sql.session.timeZone", "UTC")
    for key, value in confs.items():
        builder = builder.config(key.replace("__", "."), value)
    spark = builder.getOrCreate()
    spark.dataSource.register(Floor)
    try:
        yield spark
    finally:
        spark.stop()


@contextmanager
def scratch(base: str | None) -> Iterator[Path]:
    """Yield a fresh folder on the disk under test and remove it afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="replog-bench-", dir=base))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def table(rows: list[tuple[str, list[float]]], unit: str) -> str:
    """Return a markdown table of medians with their spread."""
    lines = [f"| case | median {unit} | min | max | runs |", "| --- | --- | --- | --- | --- |"]
    for name, values in rows:
        median = statistics.median(values)
        lines.append(f"| {name} | {median:,.1f} | {min(values):,.1f} | {max(values):,.1f} | {len(values)} |")
    return "\n".join(lines)


def tree_usage(without: Collection[int] = ()) -> tuple[float, float]:
    """Return processor seconds and resident MiB of this process and all below it that live, but some ids."""
    parents: dict[int, int] = {}
    usage: dict[int, tuple[float, float]] = {}
    page_bytes, tick = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_CLK_TCK")
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(entry.name)] = int(fields[1])
            # Of waited-for children too: Spark's workers that have ended.
            cpu_seconds = sum(int(fields[index]) for index in (11, 12, 13, 14)) / tick
            usage[int(entry.name)] = cpu_seconds, int(fields[21]) * page_bytes / 2**20
    pids, size = {os.getpid()}, 0
    while len(pids) != size:
        size = len(pids)
        pids |= {pid for pid, parent in parents.items() if parent in pids}
    pids -= set(without)
    return sum(usage[pid][0] for pid in pids), sum(usage[pid][1] for pid in pids)
