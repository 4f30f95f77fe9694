"""``replog copy`` in processes that are killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from spark_replog.admin.controller import Controller
from tests.unit.cli.test_copy import COLUMNS, records, typed_records, write_typed
from tests.unit.client.consumer_setup import Store, rows

SMALL_CHUNKS = (
    "from spark_replog.client.topic_copy import TopicCopy; TopicCopy.__init__.__kwdefaults__['chunk_rows'] = 4\n"
    "from spark_replog.cli.main import main; main()"
)


@pytest.mark.parametrize("is_typed", [False, True], ids=["bytes", "typed"])
def test_a_copy_that_is_killed_again_and_again_goes_on_and_writes_no_row_twice(tmp_path, is_typed):
    source, other = Store.init(str(tmp_path / "source")), Store.init(str(tmp_path / "other"), 3)
    typed = {"schema": COLUMNS, "key": ["id"]} if is_typed else {}
    for store in (source, other):
        Controller(store.cluster).create_topic("orders", 2, **typed)
    for number in range(4):
        if is_typed:
            write_typed(source, "orders", range(10 * number, 10 * number + 10))
            continue
        source.write("orders", rows(5, 5 * number), partition=0, times_ms=[1000 * number] * 5)
        source.write("orders", rows(5, 100 + 5 * number), partition=1)
    words = ["-s", source.path, "copy", "orders", "orders", "--to-store", other.path, "-f", "json"]
    command = [sys.executable, "-c", SMALL_CHUNKS, *words]
    steps = ["copy.written:1", "copy.appended:1", "copy.written:3", "copy.appended:3"]  # 10 chunks, 5 a partition
    for step in steps:
        died = subprocess.run(command, env={**os.environ, "REPLOG_FAULT_POINT": step}, capture_output=True, check=False)
        assert died.returncode == -signal.SIGKILL, (step, died.stderr)
    done = subprocess.run(command, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    items = json.loads(done.stdout)["items"]
    assert [item["position"] for item in items] == [20, 20]
    assert sum(item["rows"] for item in items) == 40 - 4 * (1 + 2 + 3), "it copies what the killed ones did not append"
    read = typed_records if is_typed else records
    assert read(other, "orders") == read(source, "orders")
    again = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)["items"]
    assert [item["rows"] for item in again] == [0, 0]
