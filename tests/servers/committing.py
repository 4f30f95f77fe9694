"""A process that commits micro-batches on remote roots until it is killed, and says what it was answered.

``python -m tests.servers.committing``, with ``{"path", "options", "first"}`` as JSON on standard input.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from itertools import count

from spark_replog.admin.controller import Controller
from spark_replog.cluster.cluster import Cluster
from spark_replog.commit.replica_manager import ReplicaManager
from tests.scenarios.committing import commit
from tests.scenarios.conftest import FAST, LocalStore


class RemoteStore(LocalStore):
    """As LocalStore, on roots anywhere."""

    def __init__(self, path: str, options: Mapping[str, str]) -> None:
        self._where = path, options
        self.config = FAST
        self.reopen()

    def reopen(self) -> None:
        self.cluster = Cluster.open(*self._where, config=self.config)
        self.controller = Controller(self.cluster)
        self.manager = ReplicaManager(self.cluster)


if __name__ == "__main__":
    given = json.load(sys.stdin)
    opened = RemoteStore(given["path"], given["options"])
    for number in count(given["first"]):
        print(json.dumps(commit(opened, "query", number)), flush=True)
