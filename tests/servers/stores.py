"""Stores whose roots lie on real servers, and the command line for them."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from contextlib import redirect_stdout
from typing import Any, Self

import spark_replog
from spark_replog.cli.main import run
from tests.servers.server import Server


class RealRoots:
    """Roots, and what it takes to reach them.

    Attributes:
        path: of the store.
        options: of its roots, without ``storage.``.
    """

    def __init__(self, urls: Sequence[str], options: dict[str, str]) -> None:
        self.path = ",".join(urls)
        self.options = options

    @classmethod
    def of(cls, server: Server, count: int, *, ports: Sequence[int | None] = ()) -> Self:
        """Return roots in buckets of their own on one server.

        Args:
            ports: of proxies before it, one a root; None: without.
        """
        urls = [server.new_root("log") for _ in range(count)]
        options: dict[str, str] = {}
        for number, url in enumerate(urls):
            options.update(server.scoped_options(url, ports[number] if ports else None))
        return cls(urls, options)

    def replog(self, *arguments: str) -> tuple[int, list[dict[str, Any]]]:
        """Run the command line in this process; return its exit code and what it prints."""
        settings = [text for name, value in self.options.items() for text in ("-X", f"storage.{name}={value}")]
        with redirect_stdout(io.StringIO()) as out:
            code = run(["-s", self.path, "-f", "json", "-q", *settings, *arguments])
        return code, json.loads(out.getvalue())["items"]

    def make(self, *topics: str, replicas: int = 3) -> Any:
        """Make the store and topics of one partition; return it opened."""
        assert self.replog("init")[0] == 0
        for topic in topics:
            assert self.replog("topic", "create", topic, "-p", "1", "--replicas", str(replicas))[0] == 0
        return spark_replog.open(self.path, self.options)
