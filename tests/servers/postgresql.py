"""A real PostgreSQL, of Debian's package, whose changes can be followed."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Self

from tests.gateway_process import free_port
from tests.servers.builds import POSTGRESQL
from tests.waiting import wait_until

AS_SOMEBODY = ("unshare", "--user", "--map-user=65534", "--map-group=65534")
"""PostgreSQL refuses root. In a namespace of its own it is somebody else, who may still use root's folders."""


class PostgreSql:
    """A server of a new database; use it in a ``with`` statement.

    Args:
        folder: for its files.
        user: its superuser, who needs a password.
        database: this is made.

    Raises:
        NotBuilt: its program is not there.
    """

    def __init__(self, folder: Path, user: str, password: str, database: str) -> None:
        (bin_folder,) = POSTGRESQL.folder().glob("usr/lib/postgresql/*/bin")
        self._programs, self._user, self._database = bin_folder, user, "postgres"
        self._environment = {**POSTGRESQL.environment(), "PGPASSWORD": password}
        self._base = AS_SOMEBODY if os.geteuid() == 0 else ()
        self.port, self._log = free_port(), folder / "postgresql.log"
        (folder / "password").write_text(password)
        files = ("-D", str(folder / "data"))
        words = ("-U", user, "-A", "scram-sha-256", f"--pwfile={folder / 'password'}", "--locale=C", "-E", "UTF8", "-N")
        made = subprocess.run(
            [*self._base, str(bin_folder / "initdb"), *files, *words],
            env=self._environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert made.returncode == 0, made.stdout + made.stderr
        settings = ("listen_addresses=127.0.0.1", f"port={self.port}", "unix_socket_directories=", "wal_level=logical")
        command = [*self._base, str(bin_folder / "postgres"), *files, "-F", *(f"--{setting}" for setting in settings)]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=self._environment)
        try:
            wait_until(self._is_ready, self._log.read_text, pause_seconds=0.1)
            self.run(f"create database {database}")
        except BaseException:
            self.close()
            raise
        self._database = database

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End it at once: nobody reads its files again."""
        self._process.send_signal(signal.SIGQUIT)
        self._process.wait()

    def run(self, statement: str) -> list[tuple[int, ...]]:
        """Run an SQL statement; return the rows that it answers, whose columns are whole numbers."""
        done = self._ask("psql", "-qXAt", "-F", " ", "-v", "ON_ERROR_STOP=1", "-d", self._database, "-c", statement)
        assert done.returncode == 0, done.stderr
        return [tuple(map(int, line.split())) for line in done.stdout.splitlines()]

    def _is_ready(self) -> bool:
        assert self._process.poll() is None, self._log.read_text()
        return self._ask("pg_isready").returncode == 0

    def _ask(self, program: str, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self._programs / program), "-h", "127.0.0.1", "-p", str(self.port), "-U", self._user, *words],
            env=self._environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
