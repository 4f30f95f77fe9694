"""A file of each kind on storage is damaged on one root, on two, on all: what readers, verify and repair make of it.

On one root every answer stays right, `store verify` finds it, and `store repair` heals it, so that another root may be
lost next. On more roots no answer is wrong, and none is silent where anything on storage proves the loss.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from spark_replog.cli.main import run
from spark_replog.errors import ReplogError
from spark_replog.ledger.record import genesis_hash
from spark_replog.ledger.snapshot_files import decode_marker
from spark_replog.storage.paths import journal_key
from tests.scenarios.aged_store import age, content, kinds

DAMAGES = ("emptied", "truncated", "flipped", "swapped", "missing", "folder")
LEDGERS = ("cluster", "plain", "groups")
SNAPSHOTS = [*(f"{name}: head" for name in LEDGERS), "plain: page"]
JOURNALS = [f"{name}: {file}" for name in LEDGERS for file in ("record", "last record", "first marker", "marker")]
OBJECTS = ["object", "compacted segment"]
KINDS = ["replog.json", *SNAPSHOTS, *JOURNALS, *OBJECTS]
CASES = list(itertools.product(KINDS, DAMAGES))
BEHIND = {(f"{name}: last record", "missing") for name in LEDGERS}
"""Nothing proves it: on one root the next writer gives it the record; on more it looks like an undecided entry."""
UNSEEN = {(f"{name}: {file}", "swapped") for name in LEDGERS for file in ("record", "first marker", "marker")}
"""Nothing may be lost: entries that a snapshot replaces, and markers of positions whose records are still there."""


class Aged:
    """The store, what it says, and the keys of its files by kind."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.content = content(Path(shutil.copytree(path, path.with_name("read"))))
        self.kinds = kinds(path)

    def is_spare(self, kind: str, damage: str) -> bool:
        """Return whether the newest marker is taken away and its records are there: a short journal keeps them all."""
        if not kind.endswith(": marker") or damage != "missing":
            return False
        key = self.kinds[kind][0]
        ledger_id = key.split("/")[1]
        data = (self.path / "broker-0" / key).read_bytes()
        position = decode_marker(data, genesis=genesis_hash(ledger_id), where=key).position
        return (self.path / "broker-0" / journal_key(ledger_id, position - 1)).exists()


@pytest.fixture(scope="module")
def aged(tmp_path_factory):
    path = tmp_path_factory.mktemp("aged") / "store"
    with pytest.MonkeyPatch.context() as patch:
        age(path, patch)
    store = Aged(path)
    assert sorted(store.kinds) == sorted(KINDS)
    return store


@pytest.fixture
def harmed(aged, tmp_path) -> Callable[[str, str, Sequence[int]], Path]:
    """Return a function that copies the store and damages a file of a kind on some roots."""

    def copy(kind: str, damage: str, roots: Sequence[int]) -> Path:
        path = tmp_path / "store"
        if not path.exists():
            shutil.copytree(aged.path, path)
        key, *others = aged.kinds[kind]
        for root in roots:
            other = path / f"broker-{root}" / others[0] if others else path / f"broker-{(root + 1) % 3}" / key
            harm(path / f"broker-{root}" / key, damage, other)
        return path

    return copy


def harm(path: Path, damage: str, other: Path) -> None:
    """Damage a file; `other` is one of its kind, to swap it with: that of another root where a root has only one."""
    data = path.read_bytes()
    middle = len(data) // 2
    path.unlink()
    if damage == "folder":
        path.mkdir()
    elif damage == "swapped":
        path.write_bytes(other.read_bytes())
        if other.name != path.name:
            other.write_bytes(data)
    elif damage != "missing":
        flipped = data[:middle] + bytes([data[middle] ^ 4]) + data[middle + 1 :]
        path.write_bytes({"emptied": b"", "truncated": data[:middle], "flipped": flipped}[damage])


def replog(path: Path, *args: str) -> int:
    return run(["-q", "-s", str(path), *args])


def heal(path: Path, kind: str) -> None:
    """Repair as the message of the damage says: only a bad replog.json has to be named."""
    named = ["--rebuild", "0"] if kind == "replog.json" and (path / "broker-0/replog.json").exists() else []
    assert replog(path, "store", "repair", "-y", "--deep", *named) == 0
    assert replog(path, "store", "verify", "--deep") == 0


def check_one(path: Path, aged: Aged, kind: str, *, is_provable: bool) -> None:
    assert content(path) == aged.content
    assert replog(path, "store", "verify", "--deep") in ({3} if is_provable else {0, 3})
    heal(path, kind)
    (path / "broker-1").rename(path / "gone")
    assert content(path) == aged.content
    assert replog(path, "topic", "create", "after") == 0


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.wide
def test_damage_on_one_root_is_found_and_healed_and_no_answer_is_wrong(aged, harmed, kind, damage):
    path = harmed(kind, damage, [0])
    is_provable = (kind, damage) not in BEHIND | UNSEEN and not aged.is_spare(kind, damage)
    check_one(path, aged, kind, is_provable=is_provable)


@pytest.mark.parametrize(
    ("some", "damage"),
    [
        *(pytest.param(SNAPSHOTS + OBJECTS, damage, id=f"content-{damage}") for damage in DAMAGES),
        *(pytest.param(JOURNALS, damage, id=f"journals-{damage}") for damage in ("flipped", "truncated")),
        *(pytest.param(["replog.json"], damage, id=f"root-{damage}") for damage in ("missing", "flipped")),
    ],
)
def test_damage_of_several_kinds_on_one_root_is_found_and_healed(aged, harmed, some, damage):
    """As the wide test of each kind, but all at once: one look at everything."""
    for kind in some:
        if "last" not in kind and "first" not in kind:
            path = harmed(kind, damage, [0])
    check_one(path, aged, some[0], is_provable=True)


def told(read: Callable[[], Any]) -> Any:
    """Return what a reader gets, or its coded error."""
    try:
        return read()
    except ReplogError as error:
        return error


@pytest.mark.parametrize("roots", [[0, 1], [0, 1, 2]], ids=["two", "all"])
@pytest.mark.parametrize(("kind", "damage"), [case for case in CASES if case not in BEHIND])
@pytest.mark.wide
def test_damage_on_more_roots_is_never_a_wrong_answer_nor_silent(aged, harmed, kind, damage, roots):
    path = harmed(kind, damage, roots)
    answer = told(lambda: content(path))
    if not isinstance(answer, ReplogError):
        assert answer == aged.content
        is_unseen = (kind, damage) in UNSEEN or aged.is_spare(kind, damage)
        assert replog(path, "store", "verify", "--deep") != 0 or is_unseen
