"""Programs that the tests' servers run: built once into a cache folder, by the clients of their registries."""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

CACHE = Path(os.environ.get("REPLOG_TEST_SERVERS") or "~/.cache/spark-replog/test-servers").expanduser()
_BUILD_SECONDS_MAX = 2_700
_LOCK_SECONDS_MAX = _BUILD_SECONDS_MAX + 60


class NotBuilt(Exception):
    """Why a server is not there: the reason of a skip."""


@dataclass(frozen=True)
class Build:
    """One program of a server.

    Attributes:
        name: folder below the cache; it holds the version, so that another version is another build.
        tool: what must be on the PATH.
        command: run in the new folder, ``{folder}`` filled in.
        variables: added to its environment.
    """

    name: str
    tool: str
    command: tuple[str, ...]
    variables: Mapping[str, str] = field(default_factory=dict)

    def folder(self) -> Path:
        """Return where the program is; made on first use, by one process at a time.

        Raises:
            NotBuilt: no tool, no answer from the registry, or not built in time.
        """
        ready = CACHE / self.name
        if ready.is_dir():
            return ready
        if shutil.which(self.tool) is None:
            raise NotBuilt(f"{self.name} is built by '{self.tool}', which is not on the PATH")
        CACHE.mkdir(parents=True, exist_ok=True)
        faulthandler.cancel_dump_traceback_later()  # a test that waits for a build does not hang
        with self._lock():
            if not ready.is_dir():
                self._make_once(ready)
        return ready

    def environment(self) -> dict[str, str]:
        """Return this process's environment, with the libraries that were unpacked with the program."""
        folders = sorted({str(path.parent) for path in self.folder().glob("**/*.so*")})
        return {**os.environ, "LD_LIBRARY_PATH": ":".join(folders)}

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        deadline = time.monotonic() + _LOCK_SECONDS_MAX
        with open(CACHE / f"{self.name}.lock", "w") as lock:
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise NotBuilt(f"{self.name} is still being built by another process") from None
                    time.sleep(0.2)
            yield

    def _make_once(self, ready: Path) -> None:
        """Build, unless this run of pytest tried before, in whichever of its processes."""
        failed = CACHE / f"{self.name}.failed"
        run_id, _, reason = failed.read_text().partition("\n") if failed.exists() else ("", "", "")
        if run_id == _run_id():
            raise NotBuilt(reason)
        try:
            self._make(ready)
        except NotBuilt as why:
            failed.write_text(f"{_run_id()}\n{why}")
            raise
        failed.unlink(missing_ok=True)

    def _make(self, ready: Path) -> None:
        for left in CACHE.glob(f"{self.name}.*.part"):  # of processes that were killed
            shutil.rmtree(left, ignore_errors=True)
        made = CACHE / f"{self.name}.{os.getpid()}.part"
        made.mkdir()
        command = ["nice", "-n", "5", *(word.format(folder=made) for word in self.command)]
        try:
            with open(CACHE / f"{self.name}.log", "w") as log:
                subprocess.run(
                    command, cwd=made, check=True, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                    timeout=_BUILD_SECONDS_MAX, env={**os.environ, "GOBIN": str(made), **self.variables},
                )  # fmt: skip
        except (subprocess.SubprocessError, OSError) as error:
            shutil.rmtree(made, ignore_errors=True)
            raise NotBuilt(f"{self.name} could not be built: {error}; see {CACHE / self.name}.log") from error
        made.rename(ready)


def _run_id() -> str:
    """Return the same for all processes of one run of pytest."""
    return os.environ.get("PYTEST_XDIST_TESTRUNUID") or f"process {os.getpid()}"


def begin(builds: Collection[Build]) -> list[subprocess.Popen[bytes]]:
    """Start to make what is not there yet, so that tests run meanwhile; `Build.folder` waits for it.

    A process for what is compiled, one for what is only fetched. The caller gives each to `end`.
    """
    missing = [build for build in builds if not (CACHE / build.name).is_dir() and shutil.which(build.tool) is not None]
    groups = [[build.name for build in missing if (build.tool == "go") is is_go] for is_go in (True, False)]
    variables = {**os.environ, "PYTEST_XDIST_TESTRUNUID": _run_id()}
    return [
        subprocess.Popen(
            [sys.executable, "-m", "tests.servers.builds", *names], cwd=Path(__file__).parents[2],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=variables,
            start_new_session=True,
        )
        for names in groups if names
    ]  # fmt: skip


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process of `begin`, if it still runs, with its compilers."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
    process.wait()


# Compilers that optimize nothing, write no debug data and seldom collect garbage take two thirds of the processor time:
# 207 s instead of 308 s for MinIO on a busy machine. The tests do not measure how fast a server is.
_GO = {"GOFLAGS": "-mod=mod", "CGO_ENABLED": "0", "GOGC": "400"}
_GO_FLAGS = ("-gcflags=all=-N -l -dwarf=false", "-ldflags=-s -w")


def _go(name: str, module: str, version: str) -> Build:
    return Build(f"{name}-{version}", "go", ("go", "install", *_GO_FLAGS, f"{module}@{version}"), _GO)


def _go_program(folder: str, tests_of: str = "") -> Build:
    """Return the build of a program in a folder beside this file; another text of it is another build.

    Args:
        tests_of: a package that the program imports: build the package's own tests instead, as ``{folder}/tests``.
    """
    source = Path(__file__).with_name(folder)
    digest = zlib.crc32(b"".join(path.read_bytes() for path in sorted(source.iterdir())))
    variables = {**_GO, "GOFLAGS": "-mod=readonly"}
    name, words = f"{folder}-{digest:08x}", ("go", "-C", str(source))
    if tests_of:
        tests = ("test", "-c", *_GO_FLAGS, "-o", "{folder}/tests", tests_of)
        return Build(f"{name}-tests", "go", (*words, *tests), variables)
    return Build(name, "go", (*words, "install", *_GO_FLAGS), variables)


VERSITYGW = _go("versitygw", "github.com/versity/versitygw/cmd/versitygw", "v1.8.0")
FAKE_GCS = _go("fake-gcs-server", "github.com/fsouza/fake-gcs-server", "v1.56.1")
MINIO = _go("minio", "github.com/minio/minio", "v0.0.0-20260212201848-7aac2a2c5b7c")
"""Takes minutes to build: tests/servers/conftest.py begins before the first test."""
FRANZ = _go_program("franz")
FRANZ_TESTS = _go_program("franz", "github.com/twmb/franz-go/pkg/kgo")
AZURITE = Build(
    "azurite-3.35.0", "npm", ("npm", "install", "--no-audit", "--no-fund", "--prefix", "{folder}", "azurite@3.35.0")
)
S3RVER = Build(
    "s3rver-3.7.1", "npm", ("npm", "install", "--no-audit", "--no-fund", "--prefix", "{folder}", "s3rver@3.7.1")
)


def apt_command(packages: tuple[str, ...], sources: str) -> str:
    """Return shell lines that begin an ``apt-get`` command, which writes below ``{folder}`` only and needs no root.

    Args:
        packages: with what they depend on. What is installed is not unpacked, for libraries are found where they are.
        sources: what else is made of one of these, with ``|`` between, is unpacked also if it is installed: a program
            looks for its parts beside itself.
    """
    parts = "dpkg-query -W -f '${{source:Package}} ${{Package}} ${{Status}}\\n'"
    return (
        "mkdir -p {folder}/lists/partial {folder}/cache/archives/partial; "
        "apt='apt-get -qq -y -o Debug::NoLocking=1 -o APT::Sandbox::User="
        " -o Dir::State::lists={folder}/lists -o Dir::Cache={folder}/cache'; $apt update; "
        f"parts=$({parts} | awk '$1 ~ /^({sources})$/ && $5 == \"installed\" {{{{ print $2 }}}}'); "
        f"$apt --reinstall --no-install-recommends --download-only install {' '.join(packages)} $parts"
    )


def _debian(name: str, sources: str, *packages: str) -> Build:
    """Debian's packages with what they depend on, unpacked and not installed."""
    unpack = (
        "for each in {folder}/cache/archives/*.deb; do dpkg -x $each {folder}; done; "
        "cd {folder}; rm -rf lists cache usr/share/doc usr/share/javascript usr/share/locale"
    )
    return Build(name, "apt-get", ("sh", "-ec", f"{apt_command(packages, sources)}; {unpack}"))


MOUNTS = _debian("debian-nfs-fuse", "nfs-ganesha|libnfs|fuse3", "nfs-ganesha-vfs", "libnfs-utils", "fuse3")
"""An NFS server and client in user space, and what mounts a file system of a process."""
PROMETHEUS = _debian("debian-prometheus", "prometheus", "prometheus")
KCAT = _debian("debian-kcat", "kcat", "kcat")
CHROMIUM = _debian("debian-chromium", "chromium", "chromium", "fonts-dejavu-core")
POSTGRESQL = _debian("debian-postgresql", "postgresql-[0-9]+", "postgresql")


def _maven(name: str, description: str) -> Build:
    """Return the build of the jars that a Maven description beside this file names."""
    return Build(
        name,
        "mvn",
        (
            "mvn", "-q", "-B", "-f", str(Path(__file__).with_name(description)),
            "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies",
            "-DincludeScope=runtime", "-DoutputDirectory={folder}",
            # Not the user's own: Ivy, which finds a description there, looks for the jar nowhere else.
            "-Dmaven.repo.local={folder}/repository",
        ),
    )  # fmt: skip


HADOOP = _maven("hadoop-3.4.2", "hadoop.xml")
KAFKA_TOOLS = _maven("kafka-tools-4.1.0", "kafka_tools.xml")
KAFKA_CONNECT = _maven("kafka-connect-4.1.0", "kafka_connect.xml")
DEBEZIUM = _maven("debezium-3.6.1", "debezium.xml")

ALL = {build.name: build for build in globals().copy().values() if isinstance(build, Build)}


def main(names: list[str]) -> None:
    """Make the builds with these names, else all, as far as they can be made here."""
    for name in names or ALL:
        try:
            ALL[name].folder()
        except NotBuilt as why:
            print(why, file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1:])
