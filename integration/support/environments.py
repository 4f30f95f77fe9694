"""Fresh virtual environments with the built wheel, one per Spark version.

What is under test comes from the wheel. Third-party packages are borrowed from the interpreter that
runs pytest, so that an environment takes a second; an older Spark is unpacked from its release, once per
cache folder (``REPLOG_TEST_CACHE``), and goes before the borrowed one.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("pyproject.toml", "setup.cfg", "README.md", "spark_replog", "pyspark_replog")
SPARK_LAYOUT = {
    "deps/jars/": "jars/",
    "deps/bin/": "bin/",
    "deps/sbin/": "sbin/",
    "lib/": "python/lib/",
    "pyspark/": "",
}
"""Folders of a source release and where its installation puts them in the package."""

PRINCIPAL = "User:integration"

WARM_UP = """
import tempfile
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
with tempfile.TemporaryDirectory() as checkpoint:
    writer = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load().writeStream.format("noop")
    query = writer.option("checkpointLocation", checkpoint).trigger(once=True).start()
    query.awaitTermination()
spark.stop()
"""
"""Loads the classes of a streaming query."""


@dataclass(frozen=True)
class Environment:
    """A virtual environment that has the wheel."""

    folder: Path
    java_home: str | None
    spark_home: Path | None = None
    jvm_options: tuple[str, ...] = ()

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def replog(self) -> Path:
        return self.folder / "bin" / "replog"

    def variables(self) -> dict[str, str]:
        """Return the process environment: nothing of the checkout, the worker's Python named."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "SPARK_"))}
        kept.pop("JAVA_HOME", None)
        if self.java_home is not None:
            kept["JAVA_HOME"] = self.java_home
        if self.spark_home is not None:
            kept["SPARK_HOME"] = str(self.spark_home)
        if self.jvm_options:
            kept["SPARK_SUBMIT_OPTS"] = " ".join(self.jvm_options)
        return {
            **kept,
            "PYSPARK_PYTHON": str(self.python),
            "PYSPARK_DRIVER_PYTHON": str(self.python),
            "PATH": f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "REPLOG_PRINCIPAL": PRINCIPAL,
        }

    def quick_to_start(self) -> Environment:
        """Return the same environment for drivers that live for seconds.

        Spark puts ``pyspark.zip`` first on its Python workers' path, where nothing is kept compiled: each of a
        dozen processes compiles pyspark again. A SPARK_HOME without the zip leaves them the installed package.
        And a JVM of a few seconds need not compile for speed.
        """
        home = self.folder / "spark-home"
        if not home.exists():
            package = self.run(str(self.python), "-c", "import pyspark; print(pyspark.__path__[0])").stdout.strip()
            home.mkdir()
            for name in ("jars", "bin"):
                (home / name).symlink_to(Path(package) / name)
        return replace(self, spark_home=home, jvm_options=("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"))

    def quick_to_start_often(self) -> Environment:
        """Return `quick_to_start` with Spark's classes archived: it pays from some five starts on."""
        quick = self.quick_to_start()
        archive = self.folder / "spark-classes.jsa"
        if not archive.exists():
            dumping = replace(quick, jvm_options=(*quick.jvm_options, f"-XX:ArchiveClassesAtExit={archive}"))
            dumping.run(str(self.python), "-c", WARM_UP, timeout_s=900)  # it runs after all others
        return replace(quick, jvm_options=(*quick.jvm_options, f"-XX:SharedArchiveFile={archive}"))

    def run(self, *command: str, check: bool = True, timeout_s: int = 300) -> subprocess.CompletedProcess[str]:
        """Run a command of this environment and return what it printed."""
        answer = subprocess.run(
            command, env=self.variables(), cwd=self.folder, capture_output=True, text=True, timeout=timeout_s
        )
        if check and answer.returncode != 0:
            raise AssertionError(f"{command} exited {answer.returncode}:\n{answer.stdout}\n{answer.stderr}")
        return answer


def build_wheel(folder: Path) -> Path:
    """Build the wheel from a copy of the sources: no left-over of an earlier build can get into it."""
    copy = folder / "source"
    for name in SOURCES:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif source.exists():
            copy.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, copy / name)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(copy)]
    built = subprocess.run(command, capture_output=True, text=True, timeout=180)
    assert built.returncode == 0, built.stdout + built.stderr
    (wheel,) = folder.glob("*.whl")
    return wheel


def make_environment(folder: Path, wheel: Path | None, *, spark: Path | None, java_home: str | None) -> Environment:
    """Make a virtual environment with the wheel and nothing else of its own.

    Args:
        folder: to make it in.
        wheel: of spark-replog, None for an environment without it.
        spark: folder that holds another ``pyspark``, None for the one beside pytest.
        java_home: for Spark, None where the machine's own Java serves.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=120)
    environment = Environment(folder, java_home)
    if wheel is not None:
        subprocess.run(
            [sys.executable, "-m", "pip", "--python", str(environment.python), "install", "--quiet", "--no-deps",
             "--no-index", "--disable-pip-version-check", str(wheel)],
            check=True, timeout=120, env={**os.environ, "PYTHONPATH": ""},  # else a copy there counts as installed
        )  # fmt: skip
    borrowed = [str(spark)] if spark is not None else []
    borrowed.append(sysconfig.get_path("purelib"))
    site = environment.folder / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    (site / "borrowed.pth").write_text("\n".join(borrowed) + "\n")
    return environment


def unpacked_spark(version: str, cache: Path) -> Path:
    """Return a folder whose ``pyspark`` is the newest release of ``4.x``; downloaded once a cache, by one process."""
    folder = cache / f"pyspark-{version}"
    with open(cache / f"pyspark-{version}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "pyspark").is_dir():
            _unpack_spark(version, folder)
    return folder


def _unpack_spark(version: str, folder: Path) -> None:
    """Download a release and unpack it, whole or not at all."""
    download = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(download, ignore_errors=True)  # of a process that ended
    subprocess.run(
        [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-build-isolation",
         "--disable-pip-version-check", "--dest", str(download), f"pyspark=={version}.*"],
        check=True, timeout=300,
    )  # fmt: skip
    (archive,) = download.glob("pyspark-*")
    partial = download / "unpacked"
    with tarfile.open(archive) as members:
        for member in members:
            target = _target_of(member)
            if target is not None:
                path = partial / "pyspark" / target
                path.parent.mkdir(parents=True, exist_ok=True)
                with members.extractfile(member) as source, path.open("wb") as copy:
                    shutil.copyfileobj(source, copy, 1 << 20)
                path.chmod(member.mode & 0o755)
    partial.rename(folder)
    shutil.rmtree(download)


def _target_of(member: tarfile.TarInfo) -> str | None:
    if not member.isfile():
        return None
    inner = member.name.partition("/")[2]
    for prefix, target in SPARK_LAYOUT.items():
        if inner.startswith(prefix):
            return target + inner[len(prefix) :]
    return None
