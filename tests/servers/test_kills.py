"""Writers on real servers are killed at any moment and repeat what was not answered: each batch is there once."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.scenarios.test_snapshot_kills import Told
from tests.servers.committing import RemoteStore
from tests.servers.conftest import FEW
from tests.servers.nfs import Nfs
from tests.servers.stores import RealRoots

KILLS = 2


@pytest.mark.guarantee("G3")
@pytest.mark.parametrize("real", [*FEW, pytest.param(Nfs, id="nfs")], indirect=True)
def test_a_writer_that_is_killed_again_and_again_has_each_batch_in_the_log_once(real):
    roots = RealRoots.of(real, 3)
    roots.make("orders")
    told, moments = Told(), random.Random(11)
    command = [sys.executable, "-m", "tests.servers.committing"]
    for _ in range(KILLS):
        with subprocess.Popen(
            command, cwd=Path(__file__).parents[2], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as writer:
            given = {"path": roots.path, "options": roots.options, "first": len(told.bounds)}
            writer.stdin.write(json.dumps(given))
            writer.stdin.close()
            for _ in range(moments.randint(1, 10)):
                told.take(json.loads(writer.stdout.readline()))
            writer.kill()
            for line in writer.stdout:
                if line.endswith("\n"):
                    told.take(json.loads(line))
    store = RemoteStore(roots.path, roots.options)
    told.settle(store)
    told.check(store)
    assert roots.replog("store", "verify", "--deep")[0] == 0
