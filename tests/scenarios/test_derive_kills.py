"""``replog topic derive`` in processes that are killed, and in two processes at once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

from tests.unit.client.consumer_setup import Store
from tests.unit.client.test_derivation import check_once, fill

SMALL_CHUNKS = (
    "from spark_replog.client.derivation import Derivation; Derivation.__init__.__kwdefaults__['chunk_rows'] = 3\n"
    "from spark_replog.cli.main import main; main()"
)


def command(store: Store, *words: str) -> list[str]:
    return [sys.executable, "-c", SMALL_CHUNKS, "-s", store.path, "topic", "derive", "raw", "sales", "--once", *words]


def test_a_derivation_that_is_killed_again_and_again_derives_each_record_once(tmp_path):
    store = Store.init(str(tmp_path / "store"), 3)
    store.create("raw", 2)
    fill(store)
    words = command(store, "--schema", "at INT, number BIGINT, note STRING", "--errors-topic", "bad", "-f", "json")
    for step in ("derive.written:1", "derive.appended:1", "derive.written:3"):
        died = subprocess.run(words, env={**os.environ, "REPLOG_FAULT_POINT": step}, capture_output=True, check=False)
        assert died.returncode == -signal.SIGKILL, (step, died.stderr)
    runs = [subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(2)]
    outputs = [run.communicate() for run in runs]
    assert [run.returncode for run in runs] == [0, 0], outputs
    for out, _ in outputs:
        (item,) = json.loads(out)["items"]
        assert (item["positions"], item["lag"], item["badRecords"]) == ([12, 12], 0, 4)
    check_once(store)
