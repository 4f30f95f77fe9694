"""Spark's settings: by version and file system, what is lost without them, and the line that says so."""

from __future__ import annotations

import logging
import os

import pyspark
import pytest

from spark_replog import session_conf
from spark_replog.cli import doctor
from spark_replog.config.spark import CHECKPOINT_MANAGER, UNIX_SOCKETS, installed_spark, lost_ms
from spark_replog.errors import InvalidConfigError
from spark_replog.spark import compat

STREAMING = "org.apache.spark.sql.execution.streaming"


def test_conf_by_version_and_file_system():
    assert session_conf("4.0.1")[CHECKPOINT_MANAGER] == f"{STREAMING}.FileSystemBasedCheckpointFileManager"
    assert session_conf("4.1.0")[CHECKPOINT_MANAGER].startswith(f"{STREAMING}.checkpointing.")
    assert UNIX_SOCKETS not in session_conf("4.0.9")
    assert session_conf("5.0.0-SNAPSHOT")[UNIX_SOCKETS] == "true"
    for checkpoint in ("hdfs", "s3a://bucket/x", "hdfs://name/checkpoints"):
        assert CHECKPOINT_MANAGER not in session_conf("4.3.0", checkpoint)
    for checkpoint in ("file", "file:///x", "/data/x", "relative/x"):
        assert CHECKPOINT_MANAGER in session_conf("4.3.0", checkpoint)
    assert session_conf() == session_conf(pyspark.__version__)


def test_installed_spark_is_found_without_an_import(monkeypatch):
    monkeypatch.delitem(__import__("sys").modules, "pyspark")
    assert installed_spark() == pyspark.__version__


@pytest.mark.parametrize("version", ["3.5.1", "latest", "4"])
def test_conf_of_no_spark_version(version):
    with pytest.raises(InvalidConfigError, match="REPLOG_INVALID_OPTION"):
        session_conf(version)


def test_lost_time():
    assert lost_ms(session_conf("4.3.0"), "4.3.0") == {}
    assert set(lost_ms({}, "4.3.0")) == {CHECKPOINT_MANAGER, UNIX_SOCKETS}
    assert set(lost_ms({}, "4.0.0")) == {CHECKPOINT_MANAGER}
    changed = session_conf("4.3.0") | {"spark.python.worker.reuse": "false"}
    assert lost_ms(changed, "4.3.0") == {"spark.python.worker.reuse": 1350}


@pytest.fixture
def checkpoint(tmp_path):
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "7").write_text("{}")
    return tmp_path


@pytest.mark.parametrize("sockets", [True, False])
@pytest.mark.parametrize("rename_ms", [2, 20])
def test_first_micro_batch_says_what_is_lost(checkpoint, caplog, monkeypatch, sockets, rename_ms):
    monkeypatch.setattr(compat, "HINTED_QUERIES", compat.Once())
    monkeypatch.setattr(compat.pyspark, "__version__", "4.3.0")
    path = checkpoint / "offsets" / "7"
    os.utime(path, ns=(0, path.stat().st_ctime_ns - rename_ms * 1_000_000))
    os.utime(path, ns=(0, path.stat().st_ctime_ns - rename_ms * 1_000_000))  # the first one moved the time of change
    status = path.stat()
    age_ms = (status.st_ctime_ns - status.st_mtime_ns) / 1e6
    environ = {"PYTHON_UNIX_DOMAIN_ENABLED": "True"} if sockets else {}
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            compat.log_lost_time("query", f"file://{checkpoint}", 7, environ)
    is_slow = age_ms >= compat.SLOW_RENAME_MS
    lost = lost_ms({}, "4.3.0")
    wanted = (0 if sockets else lost[UNIX_SOCKETS]) + (lost[CHECKPOINT_MANAGER] if is_slow else 0)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == (1 if wanted else 0)
    if wanted:
        assert f"about {wanted} ms longer" in lines[0]
        assert ("checkpointFileManagerClass" in lines[0]) is is_slow
    assert is_slow or rename_ms < compat.SLOW_RENAME_MS


@pytest.mark.parametrize("where", [None, "s3a://bucket/x", "/nowhere"])
def test_a_checkpoint_that_cannot_be_seen_says_nothing(where, caplog, monkeypatch):
    monkeypatch.setattr(compat, "HINTED_QUERIES", compat.Once())
    compat.log_lost_time("query", where, 0, {"PYTHON_UNIX_DOMAIN_ENABLED": "true"})
    assert not caplog.records


def test_doctor_reads_the_defaults_of_sessions(tmp_path):
    (check,) = [doctor.session_check({"SPARK_CONF_DIR": str(tmp_path)})]
    assert "loses 82 ms" in check.detail and "session_conf" in check.remedy and check.verdict == "ok"
    lines = [f"{name}\t {value}" for name, value in session_conf().items()]
    (tmp_path / "spark-defaults.conf").write_text("# ours\n" + "\n".join(lines) + "\nspark.local.dir\n")
    assert not doctor.session_check({"SPARK_CONF_DIR": str(tmp_path)}).remedy
