"""A wheel that is handed over with ``--py-files`` and installed nowhere."""

from __future__ import annotations

from pathlib import Path

from environments import make_environment


def test_wheel_by_py_files(store, wheel, work_folder, java_home):
    store.topic("carried", 1)
    bare = make_environment(work_folder / "env-bare", None, spark=None, java_home=java_home).quick_to_start()
    job = Path(__file__).parent / "support" / "py_files_job.py"
    submit = bare.run(
        str(bare.spark_home / "bin/spark-submit"), "--master", "local[1]", "--conf", "spark.ui.enabled=false",
        "--py-files", str(wheel), str(job), str(store.path),
    )  # fmt: skip
    (line,) = [line for line in submit.stdout.splitlines() if line.startswith("@@replog ")]
    facts = dict(item.split("=", 1) for item in line.removeprefix("@@replog ").split())
    assert facts["rows"] == "10"
    assert ".whl" in facts["driver"]
    assert ".zip" in facts["worker"]
