"""The rights on folders of docs/least-privilege.md, set by its commands, for users of HDFS and of an NFS server."""

from __future__ import annotations

import contextlib
import shlex
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

import pytest
import requests

import spark_replog
from spark_replog.errors import ErrorCode, ReplogError
from spark_replog.storage.open_store import open_store
from tests.scenarios.committing import SMALL
from tests.servers import policy_page
from tests.servers.hdfs import Hdfs
from tests.servers.nfs import Nfs
from tests.servers.stores import RealRoots

OFFSETS = "__consumer_offsets"


class Shared(ABC):
    """A store with topics ``orders`` and ``payments``, whose folders have the rights of the page.

    Attributes:
        roots: as the superuser has them.
        users: roots, as each user has them: two writers, two members of a group, a reader, and one without rights.
    """

    heading: ClassVar[str]

    def __init__(self, roots: RealRoots, users: Mapping[str, RealRoots]) -> None:
        self.roots, self.users = roots, users
        roots.make("orders", "payments", OFFSETS, replicas=1)
        self.names = {"CLUSTER": roots.replog("store", "info")[1][0]["clusterId"]}
        for topic, name in (("orders", "TOPIC"), ("payments", "OTHER"), (OFFSETS, "GROUPS")):
            self.names[name] = self.ledger(topic)
        for number in range(3):
            self.run(number)

    def ledger(self, topic: str) -> str:
        ledger_id: str = self.roots.replog("topic", "describe", topic)[1][0]["ledgerId"]
        return ledger_id

    @abstractmethod
    def run(self, number: int, **names: str) -> None:
        """Run a block of the page's commands as the superuser."""

    @abstractmethod
    def damages(self, user: str, key: str) -> Iterator[Callable[[], Any]]:
        """Yield what a user may try with another user's file, past spark-replog; each raises `PermissionError`."""

    @abstractmethod
    def owner(self, key: str) -> str:
        """Return the user whose a file of the root is."""

    def raw(self, user: str) -> Any:
        roots = self.users[user]
        return open_store(f"{roots.path}/broker-0", roots.options)

    def key(self, text: str) -> str:
        return policy_page.filled(text, self.names)

    def keys(self, text: str) -> list[str]:
        raw = open_store(f"{self.roots.path}/broker-0", self.roots.options)
        return [info.key for info in raw.list_keys(self.key(text))]

    def key_of(self, user: str, text: str) -> str:
        """Return a key of a user's file."""
        return next(key for key in self.keys(text) if self.owner(key) == user)

    def send(self, user: str, value: bytes, *, topic: str = "orders", inline_bytes: int = 0) -> int:
        roots = self.users[user]
        with spark_replog.open(roots.path, roots.options).producer(inline_max_bytes=inline_bytes) as producer:
            offset: int = producer.send(topic, value).result(timeout=60).offset
            return offset

    def values(self, user: str) -> list[bytes]:
        roots = self.users[user]
        topic = spark_replog.open(roots.path, roots.options).topic("orders")
        rows: list[bytes] = topic.scan().to_arrow()["value"].to_pylist()
        return rows


class SharedHdfs(Shared):
    """Its users are names; the NameNode knows their groups."""

    heading = "HDFS"

    def __init__(self, server: Hdfs) -> None:
        self._server = server
        roots = RealRoots.of(server, 1)
        super().__init__(roots, {name: RealRoots([roots.path], {"user": name}) for name in Hdfs.groups})

    def run(self, number: int, **names: str) -> None:
        given = {**self.names, "STORE": urlsplit(self.roots.path).path, **names}
        for line in policy_page.commands(self.heading, number, given).splitlines():
            program, command, *arguments = shlex.split(line)
            assert (program, command) == ("hdfs", "dfs")
            self._server.shell(*arguments)

    def ask(self, user: str, method: str, op: str, key: str, **query: str | int) -> dict[str, Any]:
        """Make a call of WebHDFS. Raises `PermissionError`."""
        url = f"http://127.0.0.1:{self._server.port}/webhdfs/v1{self.path(key)}"
        answer = requests.request(method, url, params={"op": op, "user.name": user, **query}, timeout=30)
        if answer.status_code == 403:
            raise PermissionError(answer.text)
        answer.raise_for_status()
        fields: dict[str, Any] = answer.json() if answer.content else {}
        return fields

    def path(self, key: str) -> str:
        return f"{urlsplit(self.roots.path).path}/broker-0/{key}"

    def owner(self, key: str) -> str:
        owner: str = self.ask("replog", "GET", "GETFILESTATUS", key)["FileStatus"]["owner"]
        return owner

    def damages(self, user: str, key: str) -> Iterator[Callable[[], Any]]:
        yield lambda: self.ask(user, "DELETE", "DELETE", key)
        yield lambda: self.ask(user, "PUT", "RENAME", key, destination=f"{self.path(key)}x")
        yield lambda: self.ask(user, "POST", "TRUNCATE", key, newlength=0)
        yield lambda: self.ask(user, "POST", "APPEND", key)
        yield lambda: self.ask(user, "PUT", "CREATE", key, overwrite="true")
        yield lambda: self.ask(user, "PUT", "SETPERMISSION", key, permission="777")
        yield lambda: self.ask(user, "PUT", "SETOWNER", key, owner=user)


class SharedNfs(Shared):
    """Each user is a mount of its own, whose numbers the server gets; the commands run on the server."""

    heading = "POSIX, NFS"
    groups: ClassVar[dict[str, str]] = {"log": "61200", "writers": "61201", "members": "61202"}
    numbers: ClassVar[dict[str, int]] = {
        name: 61301 + number for number, name in enumerate(("ann", "bob", "carol", "dave", "eve", "mallory"))
    }

    def __init__(self, server: Nfs, mounts: contextlib.ExitStack) -> None:
        roots = RealRoots.of(server, 1)
        mount_point = str(server.mounted.point)
        self._there = roots.path.replace(mount_point, str(server.folder / "data"))
        users = {"replog": roots}
        for name, number in self.numbers.items():
            groups = [int(self.groups[group]) for group in Hdfs.groups[name]] or [number]
            point = mounts.enter_context(server.mount(number, groups)).point
            users[name] = RealRoots([roots.path.replace(mount_point, str(point))], {})
        super().__init__(roots, users)

    def run(self, number: int, **names: str) -> None:
        given = {**self.names, **self.groups, "STORE": self._there, **names}
        subprocess.run(["sh", "-eu", "-c", policy_page.commands(self.heading, number, given)], check=True)

    def path(self, user: str, key: str) -> Path:
        return Path(self.users[user].path, "broker-0", key)

    def owner(self, key: str) -> str:
        number = self.path("replog", key).stat().st_uid
        return {number: name for name, number in self.numbers.items()}.get(number, "replog")

    def damages(self, user: str, key: str) -> Iterator[Callable[[], Any]]:
        path = self.path(user, key)
        yield path.unlink
        yield lambda: path.rename(f"{path}x")
        yield lambda: path.open("r+b")
        yield lambda: path.chmod(0o777)
        path.with_name("own").write_bytes(b"x")
        yield lambda: path.with_name("own").replace(path)
        path.with_name("own").unlink()


@pytest.fixture(params=(Hdfs, Nfs), ids=lambda kind: kind.name, scope="module")
def shared(request, servers):
    server = servers(request.param)
    with contextlib.ExitStack() as mounts:
        yield SharedHdfs(server) if isinstance(server, Hdfs) else SharedNfs(server, mounts)


@pytest.fixture(autouse=True)
def nothing_is_lost(shared):
    """Whatever a test was refused, each row that was there is still there, once."""
    before = shared.values("replog")
    yield
    assert shared.values("replog")[: len(before)] == before
    assert shared.roots.replog("store", "verify", "--deep")[0] == 0
    assert [key for key in shared.keys("ledgers/") if "/.tmp-" in key] == []


def refused(call: Callable[[], Any]) -> None:
    with pytest.raises(ReplogError) as raised:
        call()
    assert raised.value.code is ErrorCode.REPLOG_STORE_REFUSED, raised.value


def folder(key: str) -> str:
    return key.rpartition("/")[0]


def create_refused(shared: Shared, user: str, *keys: str) -> None:
    for key in map(shared.key, keys):
        refused(lambda key=key: shared.raw(user).create(key, b"x"))
        assert shared.raw("replog").get(key) is None


def test_producers_use_folders_of_each_other_and_delete_no_files_of_each_other(shared, monkeypatch):
    for patch in SMALL:  # each commit snapshots and truncates, so each kind of folder is made and used
        monkeypatch.setattr(*patch)
    before = len(shared.values("replog"))
    kinds: set[str] = set()
    for number in range(40):
        user = ("ann", "bob")[number // 2 % 2]
        assert shared.send(user, user.encode(), inline_bytes=4096 * (number % 2)) == before + number
        kinds |= {key.split("/")[2] for key in shared.keys("ledgers/TOPIC/")}
        if number >= 7 and kinds >= {"data", "journal", "markers", "pages", "snapshots"}:
            break
    guarded = [
        key for key in shared.keys("ledgers/TOPIC/") if not {shared.owner(key), shared.owner(folder(key))} & {"bob"}
    ]
    assert {key.split("/")[2] for key in guarded} >= {"data", "journal"}
    for key in {folder(key): key for key in guarded}.values():
        refused(lambda key=key: shared.raw("bob").delete(key))
        for damage in shared.damages("bob", key):
            with pytest.raises(PermissionError):
                damage()
        assert shared.raw("bob").get(key) is not None
    assert shared.owner(shared.key("ledgers/TOPIC/journal")) == "replog"
    create_refused(
        shared, "ann", "ledgers/OTHER/data/x", "ledgers/OTHER/journal/x", "ledgers/GROUPS/journal/x",
        "ledgers/CLUSTER/journal/x", "ledgers/x", "x",
    )  # fmt: skip
    refused(lambda: shared.raw("ann").delete("replog.json"))
    refused(lambda: shared.raw("ann").make_folder("ledgers/another"))


def test_who_made_a_folder_may_delete_the_files_of_others_there(shared):
    """The page warns of it: the sticky bit spares a folder's owner."""
    shared.send("ann", b"0")
    data = next(key for key in map(folder, shared.keys("ledgers/TOPIC/data/")) if shared.owner(key) == "ann")
    shared.raw("bob").create(f"{data}/his", b"x")
    refused(lambda: shared.raw("carol").delete(f"{data}/his"))
    shared.raw("ann").delete(f"{data}/his")
    assert shared.raw("bob").get(f"{data}/his") is None


def test_a_reader_reads_and_writes_nothing(shared):
    shared.send("ann", b"1")
    assert shared.values("eve") == shared.values("replog")
    assert shared.users["eve"].replog("store", "verify", "--deep")[0] == 0
    create_refused(shared, "eve", "ledgers/TOPIC/data/x", "ledgers/TOPIC/journal/x", "ledgers/GROUPS/journal/x", "x")
    refused(lambda: shared.raw("eve").delete(shared.key_of("ann", "ledgers/TOPIC/journal/")))
    refused(lambda: shared.raw("mallory").get("replog.json"))
    refused(lambda: shared.values("mallory"))


def test_members_of_a_group_commit_and_delete_notes_of_each_other(shared):
    shared.send("ann", b"2")
    wanted = len(shared.values("replog"))
    opened = [spark_replog.open(shared.users[name].path, shared.users[name].options) for name in ("carol", "dave")]
    carol, dave = (store.consumer("orders", group="billing", auto_offset_reset="earliest") for store in opened)
    read = 0
    with carol, dave:
        for _ in range(20):
            read += len(carol.poll(100)) + len(dave.poll(100))
            carol.commit()
            dave.commit()
            if read == wanted:
                break
    assert read == wanted
    assert {shared.owner(key) for key in shared.keys("ledgers/GROUPS/journal/")} >= {"carol"}
    assert shared.keys("ledgers/GROUPS/notes/") == []
    create_refused(shared, "carol", "ledgers/TOPIC/journal/x", "ledgers/TOPIC/data/x", "ledgers/CLUSTER/journal/x")
    refused(lambda: shared.raw("dave").delete(shared.key_of("carol", "ledgers/GROUPS/journal/")))
    create_refused(shared, "ann", "ledgers/GROUPS/notes/x")


def check_only_the_superuser_deletes(shared: Shared, topic: str) -> None:
    """Delete a topic that ann and bob have written to, and its files."""
    data = f"ledgers/{shared.ledger(topic)}/data/"
    assert shared.roots.replog("topic", "delete", topic, "-y")[0] == 0
    refused(lambda: shared.raw("bob").delete(shared.key_of("ann", data)))
    if isinstance(shared, SharedNfs):  # takes seconds for each ledger that he may not write to
        code, items = shared.users["bob"].replog("store", "gc", "--now", "--older-than", "0s")
        assert code == 1 and "REPLOG_STORE_REFUSED" in {item.get("error") for item in items}
        assert shared.key_of("ann", data)
    assert shared.roots.replog("store", "gc", "--now", "--older-than", "0s")[0] == 0
    assert shared.keys(data) == []


@pytest.mark.parametrize("shared", [Nfs], ids=["nfs"], indirect=True)
def test_only_root_collects_garbage_of_all(shared):
    assert shared.roots.replog("topic", "create", "brief", "-p", "1", "--replicas", "1")[0] == 0
    shared.run(1, TOPIC=shared.ledger("brief"))
    for user in ("ann", "bob"):
        shared.send(user, b"x", topic="brief")
    check_only_the_superuser_deletes(shared, "brief")


@pytest.mark.parametrize("shared", [Hdfs], ids=["hdfs"], indirect=True)
def test_on_hdfs_only_the_group_of_an_acl_reads_a_topic(shared):
    assert shared.roots.replog("topic", "create", "payroll", "-p", "1", "--replicas", "1")[0] == 0
    ledger = shared.ledger("payroll")
    for number in (1, 3):
        shared.run(number, TOPIC=ledger)
    for number, user in enumerate(("ann", "bob", "ann")):
        assert shared.send(user, b"x", topic="payroll") == number
    keys = shared.keys(f"ledgers/{ledger}/")
    assert {key.split("/")[2] for key in keys} == {"data", "journal"}
    for key in keys:
        assert shared.raw("frank").get(key) is not None
        refused(lambda key=key: shared.raw("eve").get(key))
    roots = shared.users["frank"]
    assert spark_replog.open(roots.path, roots.options).topic("payroll").scan().to_arrow().num_rows == 3
    create_refused(shared, "frank", f"ledgers/{ledger}/data/x", f"ledgers/{ledger}/journal/x")
    check_only_the_superuser_deletes(shared, "payroll")


@pytest.mark.parametrize("shared", [Hdfs], ids=["hdfs"], indirect=True)
def test_on_hdfs_a_rename_that_overwrites_passes_the_sticky_bit(shared):
    """The page warns of it: spark-replog does not send it."""
    folder = shared.key("ledgers/TOPIC/data/000000")
    for user in ("ann", "bob"):
        shared.raw(user).create(f"{folder}/{user}", user.encode(), make_parent=True)
    shared.ask(
        "bob", "PUT", "RENAME", f"{folder}/bob", destination=shared.path(f"{folder}/ann"), renameoptions="OVERWRITE"
    )
    assert shared.raw("ann").get(f"{folder}/ann") == b"bob"
    shared.raw("replog").delete(f"{folder}/ann")
