"""Programs that the tests' servers run: built once into a cache folder, by the clients of their registries."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

CACHE = Path(os.environ.get("REPLOG_TEST_SERVERS") or "~/.cache/spark-replog/test-servers").expanduser()
IS_ALL = os.environ.get("REPLOG_TEST_SERVERS_ALL") == "1"
"""Builds what takes minutes too; what the cache has already is used without it."""
_BUILD_SECONDS_MAX = 900


class NotBuilt(Exception):
    """Why a server is not there: the reason of a skip."""


@dataclass(frozen=True)
class Build:
    """One program of a server.

    Attributes:
        name: folder below the cache; it holds the version, so that another version is another build.
        tool: what must be on the PATH.
        command: run in the new folder, ``{folder}`` filled in.
        is_long: takes minutes: only made when asked for.
    """

    name: str
    tool: str
    command: tuple[str, ...]
    is_long: bool = False

    def folder(self) -> Path:
        """Return where the program is; made on first use, by one process at a time.

        Raises:
            NotBuilt: no tool, no answer from the registry, or too long to build unasked.
        """
        ready = CACHE / self.name
        if ready.is_dir():
            return ready
        if self.is_long and not IS_ALL:
            raise NotBuilt(f"{self.name} takes minutes to build: REPLOG_TEST_SERVERS_ALL=1 builds it into {CACHE}")
        if shutil.which(self.tool) is None:
            raise NotBuilt(f"{self.name} is built by '{self.tool}', which is not on the PATH")
        CACHE.mkdir(parents=True, exist_ok=True)
        with open(CACHE / f"{self.name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not ready.is_dir():
                self._make(ready)
        return ready

    def environment(self) -> dict[str, str]:
        """Return this process's environment, with the libraries that were unpacked with the program."""
        folders = sorted({str(path.parent) for path in self.folder().glob("**/*.so*")})
        return {**os.environ, "LD_LIBRARY_PATH": ":".join(folders)}

    def _make(self, ready: Path) -> None:
        made = CACHE / f"{self.name}.{os.getpid()}.part"
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir()
        command = ["nice", "-n", "10", *(each.format(folder=made) for each in self.command)]
        try:
            with open(CACHE / f"{self.name}.log", "w") as log:
                subprocess.run(
                    command, cwd=made, check=True, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                    timeout=_BUILD_SECONDS_MAX, env={**os.environ, "GOBIN": str(made), "GOFLAGS": "-mod=mod"},
                )  # fmt: skip
        except (subprocess.SubprocessError, OSError) as error:
            shutil.rmtree(made, ignore_errors=True)
            raise NotBuilt(f"{self.name} could not be built: {error}; see {CACHE / self.name}.log") from error
        made.rename(ready)


def _go(name: str, module: str, version: str, *, is_long: bool = False) -> Build:
    return Build(f"{name}-{version}", "go", ("go", "install", f"{module}@{version}"), is_long)


VERSITYGW = _go("versitygw", "github.com/versity/versitygw/cmd/versitygw", "v1.8.0")
FAKE_GCS = _go("fake-gcs-server", "github.com/fsouza/fake-gcs-server", "v1.56.1")
MINIO = _go("minio", "github.com/minio/minio", "v0.0.0-20260212201848-7aac2a2c5b7c", is_long=True)
AZURITE = Build(
    "azurite-3.35.0", "npm", ("npm", "install", "--no-audit", "--no-fund", "--prefix", "{folder}", "azurite@3.35.0")
)
S3RVER = Build(
    "s3rver-3.7.1", "npm", ("npm", "install", "--no-audit", "--no-fund", "--prefix", "{folder}", "s3rver@3.7.1")
)


def _debian(name: str, *packages: str) -> Build:
    """Debian's packages with what they depend on, unpacked and not installed: apt locks nothing, so needs no root."""
    apt = (
        "apt-get -qq -y -o Debug::NoLocking=1 -o APT::Sandbox::User= "
        "-o Dir::State::lists={folder}/lists -o Dir::Cache={folder}/cache"
    )
    return Build(
        name,
        "apt-get",
        (
            "sh", "-ec",
            f"mkdir -p {{folder}}/lists/partial {{folder}}/cache/archives/partial; {apt} update; "
            f"{apt} --reinstall --no-install-recommends --download-only install {' '.join(packages)}; "
            "for each in {folder}/cache/archives/*.deb; do dpkg -x $each {folder}; done; "
            "cd {folder}; rm -rf lists cache usr/share/doc usr/share/javascript usr/share/locale",
        ),
    )  # fmt: skip


MOUNTS = _debian("debian-nfs-fuse", "nfs-ganesha-vfs", "libnfs-utils", "fuse3")
"""An NFS server and client in user space, and what mounts a file system of a process."""
PROMETHEUS = _debian("debian-prometheus", "prometheus")
CHROMIUM = _debian("debian-chromium", "chromium", "fonts-dejavu-core")
HADOOP = Build(
    "hadoop-3.4.2",
    "mvn",
    (
        "mvn", "-q", "-B", "-f", str(Path(__file__).with_name("hadoop.xml")),
        "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies",
        "-DincludeScope=runtime", "-DoutputDirectory={folder}",
        # Not the user's own: Ivy, which finds a description there, looks for the jar nowhere else.
        "-Dmaven.repo.local={folder}/repository",
    ),
)  # fmt: skip
