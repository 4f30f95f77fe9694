"""Stores whose roots lie on real servers, and the command line for them."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import redirect_stdout
from typing import Any, Self

import pytest

import spark_replog
from spark_replog.cli.main import run
from spark_replog.errors import ErrorCode, ReplogError
from spark_replog.storage.open_store import open_store
from tests.servers import policy_page
from tests.servers.server import Minio, Server, Statement, VersityGateway


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

    def _must(self, *arguments: str) -> None:
        code, items = self.replog(*arguments)
        assert code == 0, (arguments, code, items)

    def make(self, *topics: str, replicas: int = 3) -> Any:
        """Make the store and topics of one partition; return it opened."""
        self._must("init")
        for topic in topics:
            self._must("topic", "create", topic, "-p", "1", "--replicas", str(replicas))
        return spark_replog.open(self.path, self.options)


class Prefixed:
    """A store of three roots with topics ``orders`` and ``payments``, a row in each.

    Attributes:
        names: what stands on the page in capitals, and the ledger of ``payments``.
    """

    def __init__(self, server: VersityGateway | Minio) -> None:
        self.server = server
        self.roots = RealRoots([server.new_root("log")], server.options())
        assert self.roots.replog("init", "--brokers", "3")[0] == 0
        self.bucket = self.roots.path.split("/")[2]
        self.names = {"BUCKET": self.bucket, "FOLDER": "log"}
        for topic, name in (("orders", "TOPIC"), ("payments", "OTHER"), ("__consumer_offsets", "GROUPS")):
            assert self.roots.replog("topic", "create", topic, "-p", "1", "--replicas", "3")[0] == 0
            self.names[name] = self.roots.replog("topic", "describe", topic)[1][0]["ledgerId"]
        self.names["CLUSTER"] = self.roots.replog("store", "info")[1][0]["clusterId"]
        for topic in ("orders", "payments"):
            send(self.roots, b"0", topic=topic)

    def statements(self, role: str, topic: str = "orders") -> list[Statement]:
        """Return the policy of a role, for one of the two topics."""
        ledger = self.names["TOPIC" if topic == "orders" else "OTHER"]
        return policy_page.policy(role, {**self.names, "TOPIC": ledger})

    def as_user(self, name: str, statements: list[Statement], *beside: str) -> RealRoots:
        """Return the same roots as a new user; those beside it keep their rights, others need not."""
        return RealRoots([self.roots.path], self.server.make_user(name, self.bucket, statements, *beside))

    def key(self, text: str) -> str:
        return policy_page.filled(text, self.names)

    def check(self, roots: RealRoots, *, may: Iterable[str] = (), may_not: Iterable[str] = ()) -> None:
        """Try operations, each a verb and a key below a root; what is not refused leaves nothing."""
        raw = open_store(f"{roots.path}/broker-1", roots.options)
        calls: dict[str, Callable[[str], object]] = {
            "get": raw.get,
            "list": lambda key: list(raw.list_keys(key)),
            "create": lambda key: raw.create(key, b"x"),
            "delete": raw.delete,
        }
        for operation in may:
            verb, _, key = self.key(operation).partition(" ")
            calls[verb](key)
        for operation in may_not:
            verb, _, key = self.key(operation).partition(" ")
            with pytest.raises(ReplogError) as raised:
                calls[verb](key)
            assert raised.value.code is ErrorCode.REPLOG_STORE_REFUSED, (operation, raised.value)

    def check_nothing_was_refused(self, user: str) -> None:
        """Check it by the server's log, if any; deletes are left to the coordinator, except those of notes."""
        if isinstance(self.server, VersityGateway):
            refused = self.server.requests_of(user, are_refused=True)
            missing = [(done, key) for done, key in refused if done != "s3:DeleteObject" or "/notes/" in key]
            assert not missing, missing


def send(roots: RealRoots, value: bytes, *, topic: str = "orders", inline_bytes: int = 4096) -> int:
    with spark_replog.open(roots.path, roots.options).producer(inline_max_bytes=inline_bytes) as producer:
        offset: int = producer.send(topic, value).result(timeout=60).offset
        return offset


def values(roots: RealRoots, topic: str = "orders") -> list[bytes]:
    rows: list[bytes] = spark_replog.open(roots.path, roots.options).topic(topic).scan().to_arrow()["value"].to_pylist()
    return rows
