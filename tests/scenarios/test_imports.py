"""A fresh process: what it imports, and what works without a package or a program that is missing."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pyarrow as pa
import pytest
from pyarrow import parquet

import spark_replog
from spark_replog.admin.controller import Controller
from spark_replog.cli import java
from spark_replog.client.consumer import Consumer
from spark_replog.cluster.cluster import Cluster
from spark_replog.cluster.init_store import init_cluster
from tests.unit.cli.test_java import fake_java
from tests.unit.cli.test_produce import records

HEAVY = ("pyspark", "pyarrow", "pandas", "numpy", "fsspec", "rich")
WITHOUT_PANDAS = """
import sys

class NoPandas:
    def find_spec(self, name, *_):
        if name.partition(".")[0] == "pandas":
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, NoPandas())
from spark_replog.cli.main import run
sys.exit(run(sys.argv[1:]))
"""


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["topic", "--help"], ["demo", "--help"]])
def test_help_imports_nothing_heavy(arguments):
    script = (
        "import sys\n"
        "from spark_replog.cli.main import run\n"
        f"code = run({arguments!r})\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)\n"
        "sys.exit(code)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert done.stderr.strip() == "[]"
    assert done.stdout


def test_a_command_in_a_pipe_does_not_import_rich(tmp_path):
    script = (
        "import sys\n"
        "from spark_replog.cli.main import run\n"
        f"codes = [run(['-s', {str(tmp_path / 'store')!r}, *words]) for words in (['init'], ['store', 'info'])]\n"
        "print('rich' in sys.modules, file=sys.stderr)\n"
        "sys.exit(max(codes))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.strip()) == (0, "False")


def test_clients_and_a_send_do_not_import_pandas(tmp_path):
    store = str(tmp_path / "store")
    init_cluster(store, 1, {}, fsync=False)
    Controller(Cluster.open(store)).create_topic("orders", 2)
    script = (
        "import sys\n"
        "from spark_replog import Consumer, Producer\n"
        "with Producer(sys.argv[1]) as producer:\n"
        "    producer.send('orders', b'1', key=b'k').result(60)\n"
        "consumer = Consumer(sys.argv[1], 'orders')\n"
        "print('pandas' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, store], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_fresh_worker_of_spark_imports_nothing_of_upkeep_and_groups():
    script = (
        "import sys\n"
        "import spark_replog.spark.data_source\n"
        "import spark_replog.spark.sink.sink\n"
        "import spark_replog.spark.source.reading\n"
        "import spark_replog.spark.source.stream_reader\n"
        "unwanted = ('pandas', 'spark_replog.maintenance', 'spark_replog.groups', 'spark_replog.admin')\n"
        "print([each for each in sys.modules if each.startswith(unwanted)])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_package_shows_its_classes_and_imports_nothing_before_they_are_asked_for():
    done = subprocess.run(
        [sys.executable, "-c", "import spark_replog, sys; print(sorted({'pyarrow', 'numpy'} & set(sys.modules)))"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"
    assert spark_replog.Consumer is Consumer
    with pytest.raises(AttributeError):
        _ = spark_replog.nothing


def test_logs_are_there_after_the_package_is_imported():
    """As docs/operations.md calls it; a fresh process, since others import the module themselves."""
    script = "import spark_replog; spark_replog.logs.log_to_stderr('INFO')"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_spark_is_not_imported():
    code = "import sys, spark_replog; spark_replog.Producer; assert 'pyspark' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_completion_lists_every_public_name_before_its_first_use():
    code = "import spark_replog; print(*dir(spark_replog))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {"Consumer", "Producer", "TopicPartition", "OffsetAndMetadata", "init", "open"} <= set(done.stdout.split())


def test_wheel_serves_where_there_is_no_java(tmp_path, monkeypatch):
    program = fake_java(tmp_path / "it's a wheel", "21.0.8") / "bin" / "java"
    program.write_text('#!/bin/sh\nfor a do echo "<$a>"; done\n')
    monkeypatch.setattr(java, "wheel_java", lambda: program)
    environment = java.java_environment({"HOME": str(tmp_path / "home"), "PATH": "/nowhere"})
    assert environment["JAVA_HOME"] == str(tmp_path / "home/.cache/replog/java")
    shown = subprocess.run(
        [environment["JAVA_HOME"] + "/bin/java", "-Da=b c", "--add-modules=jdk.incubator.vector", "--x", "", "*"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert shown == "<-Da=b c>\n<--x>\n<>\n<*>\n"


@pytest.mark.parametrize("flags", [[], ["--value", "at"]])
def test_nanoseconds_of_a_table_stay_without_pandas(tmp_path, flags):
    path = str(tmp_path / "store")
    init_cluster(path, 1, fsync=False)
    Controller(Cluster.open(path)).create_topic("t", 2, 1)
    times = pa.array([None, -1, 1_000_000_001, 2_000_000_000], pa.timestamp("ns", "Europe/Berlin"))
    parquet.write_table(pa.table({"at": times}), tmp_path / "in.parquet")
    words = [
        sys.executable,
        "-c",
        WITHOUT_PANDAS,
        "-s",
        path,
        "produce",
        "t",
        str(tmp_path / "in.parquet"),
        "-p",
        "0",
        *flags,
    ]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = [None if record.value is None else json.loads(record.value) for record in records(path)]
    assert [row if flags else row["at"] for row in rows] == [
        None,
        "1970-01-01 00:59:59.999999999+01:00",
        "1970-01-01 01:00:01.000000001+01:00",
        "1970-01-01 01:00:02+01:00",
    ]


@pytest.mark.parametrize("module", ["data_source", "sink.sink", "source.reading", "source.stream_reader"])
def test_whatever_spark_imports_in_a_worker_logs_as_its_environment_says(module):
    code = f"import logging, spark_replog.spark.{module}; logging.getLogger('spark_replog.x').info('told')"
    environment = {**os.environ, "REPLOG_LOG_LEVEL": "INFO", "REPLOG_LOG_FORMAT": "json"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert json.loads(done.stderr.splitlines()[-1])["message"] == "told"
