"""Several POSIX users write into one store by the recipe of docs/least-privilege.md, run as it is printed there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import traceback
from pathlib import Path

import pytest

import spark_replog
from spark_replog.cluster.init_store import init_cluster

ADMIN, FIRST, SECOND, STRANGER = 61001, 61002, 61003, 61004
WRITERS = 61100
RECIPE = Path(__file__).parents[2] / "docs" / "least-privilege.md"

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="needs root, to become other users")


@pytest.fixture
def folder():
    """A folder that every user can reach; pytest's own is root's alone."""
    path = Path(tempfile.mkdtemp(prefix="data-"))  # the name must not open folders to a pattern such as */data*
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


def as_user(user, call, *, groups=(WRITERS,), umask=0o077):
    """Run the call in a process of that user, with the umask that locks others out; fail if it raises."""
    read_fd, write_fd = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups(list(groups))
            os.setgid(user)
            os.setuid(user)
            os.umask(umask)
            call()
            os._exit(0)
        except BaseException:
            os.write(write_fd, traceback.format_exc()[-4000:].encode())
            os._exit(1)
    os.close(write_fd)
    _, status = os.waitpid(child, 0)
    with os.fdopen(read_fd, "rb") as told:
        error = told.read().decode()
    assert status == 0, error


def run_recipe(store):
    text = RECIPE.read_text(encoding="utf-8")
    block = re.search(r"### One group for all topics.*?```sh\n(.*?)```", text, re.DOTALL).group(1)
    block = block.replace("admin:writers", f"{ADMIN}:{WRITERS}").replace("STORE", str(store))
    subprocess.run(["sh", "-eux", "-c", block], check=True)


def create(store):
    spark_replog.open(str(store)).admin().create_topic("orders", partitions=2, replicas=3)


def write(store, value):
    with spark_replog.open(str(store)).producer() as producer:
        producer.send("orders", value=value).result(timeout=60)


def read(store):
    return sorted(spark_replog.open(str(store)).topic("orders").scan().to_arrow()["value"].to_pylist())


@pytest.fixture
def imported(tmp_path):
    """Import all that is used before the user changes: another user may not read the interpreter's files."""
    init_cluster(str(tmp_path), broker_count=1)
    spark_replog.open(str(tmp_path)).admin().create_topic("orders", partitions=1, replicas=1)
    write(tmp_path, b"x")
    assert read(tmp_path) == [b"x"]


def test_users_write_into_folders_of_each_other_and_cannot_damage_the_store(folder, imported):
    store = folder / "store"
    init_cluster(str(store), broker_count=3)
    run_recipe(store)

    def check_read():
        assert read(store) == [b"first", b"second", b"third"]

    as_user(FIRST, lambda: create(store))
    as_user(FIRST, lambda: write(store, b"first"))
    as_user(SECOND, lambda: write(store, b"second"))
    as_user(FIRST, lambda: write(store, b"third"))
    as_user(STRANGER, check_read, groups=())
    as_user(SECOND, lambda: damage_nothing(store))
    as_user(STRANGER, lambda: damage_nothing(store), groups=())


def damage_nothing(store):
    """Fail if this user could change or remove a file of another one, or the identity of a root."""
    files = [path for path in store.rglob("*") if path.is_file() and path.stat().st_uid != os.getuid()]
    assert len(files) > 20
    for path in files:
        for act in (path.unlink, lambda path=path: path.open("r+b"), lambda path=path: path.rename(f"{path}x")):
            with pytest.raises(PermissionError):
                act()
    for root in store.iterdir():
        with pytest.raises(PermissionError):
            root.rename(f"{root}.away")
        with pytest.raises(PermissionError):
            (root / "new").mkdir()
