"""The demo's own side: where things go, what it makes of the job's words, and that a wrong count fails."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from spark_replog.cli import demo, demo_job
from spark_replog.cli.output import ProgressLine
from spark_replog.errors import ReplogError

DONE = {
    "event": "done",
    "written": 3,
    "writeBatches": 1,
    "read": 3,
    "readBatches": 1,
    "readWhileWriting": 2,
    "writeMs": 1500,
    "totalMs": 2000,
    "groups": [{"key": "UA", "rows": 2, "bytes": 9}, {"key": None, "rows": 1, "bytes": 3}],
}


def job_of(monkeypatch, tmp_path, body: str) -> None:
    """Let a shell script stand in for the Spark side."""
    program = tmp_path / "job"
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))


def run_job(folder):
    stream = io.StringIO()
    progress = ProgressLine(quiet=False, stream=stream)
    return demo.run_job({"topic": "t"}, {"PATH": "/usr/bin:/bin"}, folder, progress, 3), stream


def test_last_word_of_the_job_is_its_result(monkeypatch, tmp_path):
    told = json.dumps({"event": "progress", "written": 1, "writeBatches": 1, "read": 0, "readBatches": 0, "ms": 500})
    job_of(monkeypatch, tmp_path, f"echo '{told}'; echo '{json.dumps(DONE)}'; echo noise >&2")
    done, stream = run_job(tmp_path)
    # 2 rows in the second that lies between the first micro-batch and the end.
    assert done == {**DONE, "steadyRowsPerSecond": 2}
    assert "written 1 of 3, 2 rows/s  read 0  micro-batches 1 + 0" in stream.getvalue()
    assert (tmp_path / "spark.log").read_text() == "noise\n"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ('echo \'{"event":"failed","message":"no luck"}\'; exit 1', "no luck"),
        ("exit 7", "exit code 7"),
        (f"echo '{json.dumps(DONE)}'; exit 1", "exit code 1"),
    ],
)
def test_a_failed_job_shows_the_end_of_its_log(monkeypatch, tmp_path, capsys, body, said):
    job_of(monkeypatch, tmp_path, f"echo why >&2; {body}")
    with pytest.raises(ReplogError, match=said) as failed:
        run_job(tmp_path)
    assert failed.value.code.name == "REPLOG_ENVIRONMENT"
    assert "replog doctor" in str(failed.value)
    assert "  | why" in capsys.readouterr().err


def test_counts_that_differ_fail(tmp_path):
    demo.check_counts(3, 3, DONE, tmp_path)
    for rows, end_offsets, done in (
        (4, 3, DONE),
        (3, 4, DONE),
        (3, 3, {**DONE, "groups": DONE["groups"][:1]}),
        (3, 3, {**DONE, "read": 2}),
    ):
        with pytest.raises(ReplogError, match="REPLOG_DATA_LOSS"):
            demo.check_counts(rows, end_offsets, done, tmp_path)


def test_rows_without_a_key_are_counted_under_no_name():
    counts = dict.fromkeys(("rows", "rowsRead", "rowsReadWhileWriting", "partitions", "replicas"), 3)
    times = dict.fromkeys(("writeBatches", "readBatches", "writeMs", "totalMs", "steadyRowsPerSecond"), 1)
    item = {**counts, **times, "offsets": {}, "directory": "x", "key": "carrier", "groups": DONE["groups"]}
    assert [line.split() for line in str(demo.summary(item)[-1]).splitlines()[-2:]] == [
        ["UA", "2", "9"],
        ["-", "1", "3"],
    ]


def test_a_columns_name_may_hold_what_spark_takes_apart():
    assert demo_job.quoted("a.b`c") == "`a.b``c`"


def test_folders_are_new(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert demo.new_folder(None) == tmp_path / "replog-demo-1"
    assert demo.new_folder(None) == tmp_path / "replog-demo-2"
    assert demo.new_folder(Path("mine/own")) == tmp_path / "mine" / "own"


def test_an_existing_folder_is_refused(tmp_path, replog):
    (tmp_path / "x.csv").write_text("a\n1\n")
    answer = replog("demo", "--input", tmp_path / "x.csv", "--dir", tmp_path)
    assert answer.exit_code == 2
    assert "exists already" in answer.err


@pytest.mark.parametrize(
    ("arguments", "code"), [(["--input", "nothing.csv"], 2), (["--key", "zzz"], 2), (["-s", "mine"], 2)]
)
def test_bad_input_starts_no_spark(tmp_path, replog, monkeypatch, arguments, code):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.csv").write_text("a\n1\n")
    if "--input" not in arguments:
        arguments = ["--input", "x.csv", *arguments]
    answer = replog("demo", *arguments)
    assert answer.exit_code == code
    assert not list(tmp_path.glob("replog-demo-*")), "nothing is left behind"


def test_spark_of_the_demo_is_this_environments_own():
    environ = demo.spark_environment({"SPARK_HOME": "/opt/spark3", "PYTHONPATH": "/x"})
    assert "SPARK_HOME" not in environ
    assert environ["PYSPARK_PYTHON"] == sys.executable
    assert environ["PYTHONPATH"].endswith(":/x")
