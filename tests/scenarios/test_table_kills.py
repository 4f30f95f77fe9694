"""``replog table sync`` in processes that are killed at every step, and two of them at once by mistake."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter

import pyarrow as pa
import pytest

import spark_replog
from tests.scenarios.test_table_sync import Target, require_each_row_once, send

COMMAND = "import sys; from spark_replog.cli.main import main; main()"
DIES_IN_A_COMMIT = """
import os, signal, sys, threading
from pathlib import Path
folder = Path(sys.argv.pop(1))
before = set(folder.rglob("*.parquet"))
def watch():
    while set(folder.rglob("*.parquet")) <= before:
        threading.Event().wait(0.001)
    os.kill(os.getpid(), signal.SIGKILL)
threading.Thread(target=watch, daemon=True).start()
"""
"""The process dies when the first data file of a commit has its name, so before or in the commit itself."""
DUCKDB = ("duckdb==1.4.4", *(f"duckdb-ext-{name}==1.4.4.20260205" for name in ("avro", "iceberg", "delta")))
"""DuckDB's own readers of tables, as packages; there are none for newer releases."""
COUNTS = """
import json, sys
from pathlib import Path
import duckdb
folder, table = sys.argv[1:]
files = {path.name.partition(".")[0]: path for path in Path(folder).rglob("*.duckdb_extension")}
for name in ("avro", "iceberg", "delta"):
    duckdb.execute(f"load '{files[name]}'")
query = f"select _partition, count(*), count(distinct _offset), max(_offset) + 1 from {table} group by 1 order by 1"
print(json.dumps(duckdb.sql(query).fetchall()))
"""
ROWS, PIECE = 60, 10
STEPS = ["table.made:1", "table.committed:1", "table.read:3"]


@pytest.fixture
def store(tmp_path):
    made = spark_replog.init(str(tmp_path / "store"), 1, fsync=False)
    made.admin().create_topic("orders", partitions=3, schema="id BIGINT, region STRING, note STRING", key="id")
    send(made, [{"id": number, "region": f"r{number % 3}", "note": "x"} for number in range(ROWS)])
    return made


@pytest.fixture(params=["delta", pytest.param("iceberg", marks=pytest.mark.wide)])
def target(request, tmp_path):
    return Target(request.param, tmp_path)


def words_of(store, target, *more: str) -> list[str]:
    options = [word for key, value in target.options.items() for word in ("--table-option", f"{key}={value}")]
    words = ["-s", store.path, "table", "sync", "orders", target.name, "--rows-max", str(PIECE), "--provenance"]
    return [*words, *options, "-f", "json", *more]


def killed(store, target, step: str = "", script: str = "", *more: str) -> None:
    arguments = [str(target.folder)] if script else []
    died = subprocess.run(
        [sys.executable, "-c", script + COMMAND, *arguments, *words_of(store, target, "--once", *more)],
        env={**os.environ, "REPLOG_FAULT_POINT": step},
        capture_output=True,
        check=False,
    )
    assert died.returncode == -signal.SIGKILL, (step, died.stdout, died.stderr)


def finished(store, target) -> dict:
    command = [sys.executable, "-c", COMMAND, *words_of(store, target, "--once")]
    done = subprocess.run(command, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["items"][0]


def test_a_sync_that_is_killed_at_each_step_goes_on_and_writes_no_row_twice(store, target):
    for step in STEPS:
        killed(store, target, step)
    killed(store, target, script=DIES_IN_A_COMMIT)
    rows = finished(store, target)["rows"]
    assert rows in (ROWS - 3 * PIECE, ROWS - 4 * PIECE), "three pieces, and perhaps the one that was being committed"
    require_each_row_once(store, target)
    again = spark_replog.sync_table(store.path, "orders", target.name, table_options=target.options)
    assert again.row_count == 0


def test_two_syncs_at_once_write_no_row_twice(store, target):
    command = [sys.executable, "-c", COMMAND, *words_of(store, target, "--every", "1s")]
    runners = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(2)]
    try:
        for runner in runners:
            assert b"SIGTERM stops it" in runner.stderr.readline()
        finished(store, target)
    finally:
        for runner in runners:
            runner.terminate()
    answers = [runner.communicate(timeout=60) for runner in runners]
    assert [runner.returncode for runner in runners] == [0, 0], answers
    require_each_row_once(store, target)


@pytest.fixture(scope="module")
def duckdb_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("duckdb")
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--target", folder, *DUCKDB], check=True)
    return folder


def require_each_row_once_in_duckdb(store, target, folder) -> None:
    """As DuckDB's own reader of the format sees the table."""
    scan = f"delta_scan('{target.folder}/table')"
    if target.kind == "iceberg":
        scan = f"iceberg_scan('{target.iceberg().metadata_location.removeprefix('file://')}')"
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    command = [sys.executable, "-c", COUNTS, str(folder), scan]
    counted = json.loads(subprocess.run(command, env=environment, capture_output=True, check=True).stdout)
    ends = [part.high_watermark for part in store.admin().describe_topic("orders").partitions]
    assert counted == [[number, end, end, end] for number, end in enumerate(ends)]


@pytest.mark.wide
@pytest.mark.parametrize("kind", ["delta", "iceberg"])
@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_a_sync_that_is_killed_again_and_again_while_rows_come(store, tmp_path, duckdb_folder, kind, mode):
    target, sent = Target(kind, tmp_path), ROWS
    for number in range(9):
        send(store, [{"id": key % 70, "region": "new", "note": str(number)} for key in range(sent, sent + 15)])
        sent += 15
        step = ("table.read:1", "table.committed:1", "")[number % 3]
        killed(store, target, step, "" if step else DIES_IN_A_COMMIT, "--mode", mode)
    command = [sys.executable, "-c", COMMAND, *words_of(store, target, "--once")]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as rival:
        finished(store, target)
        assert rival.wait(120) == 0
    if mode == "append":
        require_each_row_once(store, target)
        require_each_row_once_in_duckdb(store, target, duckdb_folder)
        return
    newest = {row["id"]: row for row in store.topic("orders").scan().to_arrow().to_pylist()}
    written = target.read()
    assert Counter(written.column("id").to_pylist()) == dict.fromkeys(newest, 1)
    assert written.select(["id", "note"]).sort_by("id") == pa.Table.from_pylist(
        [{"id": key, "note": newest[key]["note"]} for key in sorted(newest)], written.select(["id", "note"]).schema
    )
