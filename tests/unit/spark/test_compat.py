"""What is bridged between versions of Spark."""

from __future__ import annotations

import importlib.util
import os
import sys
import types
import zipfile
import zipimport

import pytest

from spark_replog.spark import compat


@pytest.fixture
def archive(tmp_path, monkeypatch):
    """An archive on the path, an old Spark and an old Python; the count of directory reads."""
    path = tmp_path / "some.zip"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("replog_zipped.py", "answer = 1\n")
    monkeypatch.setattr(zipimport.zipimporter, "invalidate_caches", zipimport.zipimporter.invalidate_caches)
    monkeypatch.setattr(compat, "HAS_READ_LIMITS", False)
    monkeypatch.setattr(compat.sys, "version_info", (3, 12, 0))
    monkeypatch.setenv(compat.ZIPIMPORT_PATCH_VARIABLE, "1")
    reads = []
    original = zipimport._read_directory
    monkeypatch.setattr(zipimport, "_read_directory", lambda name: reads.append(name) or original(name))
    return path, reads


def test_unchanged_archives_are_not_read_again(archive):
    path, reads = archive
    importer = zipimport.zipimporter(str(path))
    compat.patch_zipimport_if_asked()
    compat.patch_zipimport_if_asked()
    del reads[:]
    for _ in range(5):
        importer.invalidate_caches()
        importer.find_spec("replog_zipped")  # from 3.13 on the library reads when it is asked
    assert len(reads) == 1, "once to know the archive, then not again"
    with zipfile.ZipFile(path, "a") as file:
        file.writestr("replog_added.py", "answer = 2\n")
    importer.invalidate_caches()
    assert importer.find_spec("replog_added") is not None
    assert len(reads) == 2
    os.remove(path)
    importer.invalidate_caches()
    assert importer.find_spec("replog_added") is None


@pytest.mark.parametrize("reason", ["not asked for", "new Spark", "new Python"])
def test_the_library_is_left_alone(archive, monkeypatch, reason):
    if reason == "not asked for":
        monkeypatch.delenv(compat.ZIPIMPORT_PATCH_VARIABLE)
    elif reason == "new Spark":
        monkeypatch.setattr(compat, "HAS_READ_LIMITS", True)
    else:
        monkeypatch.setattr(compat.sys, "version_info", (3, 13, 0))
    before = zipimport.zipimporter.invalidate_caches
    compat.patch_zipimport_if_asked()
    assert zipimport.zipimporter.invalidate_caches is before


def test_the_data_source_applies_the_patch_where_it_is_imported(archive):
    spec = importlib.util.find_spec("spark_replog.spark.data_source")
    spec.loader.exec_module(importlib.util.module_from_spec(spec))  # a copy: the imported one keeps its class
    assert getattr(zipimport.zipimporter.invalidate_caches, "is_replog_patch", False)


@pytest.mark.parametrize(
    ("module", "constant"),
    [
        ("pyspark.sql.worker.python_streaming_sink_runner", compat.COMMIT_WORKER),
        ("pyspark.sql.worker.data_source_pushdown_filters", compat.PUSH_DOWN_WORKER),
    ],
)
def test_workers_are_told_apart_by_their_module(monkeypatch, module, constant):
    monkeypatch.delitem(sys.modules, module, raising=False)
    assert constant == module
    assert not compat.is_worker(module)
    monkeypatch.setitem(sys.modules, module, types.ModuleType(module))
    assert compat.is_worker(module), "started by the daemon"
    monkeypatch.delitem(sys.modules, module)
    main = types.ModuleType("__main__")
    main.__spec__ = types.SimpleNamespace(name=module)
    monkeypatch.setitem(sys.modules, "__main__", main)
    assert compat.is_worker(module), "started by itself"


def test_garbage_is_frozen_again_after_imports_only(freezes, monkeypatch):
    compat.freeze_garbage()
    compat.freeze_garbage()
    assert len(freezes) == 1
    monkeypatch.setitem(sys.modules, "replog_imported_later", types.ModuleType("replog_imported_later"))
    compat.freeze_garbage()
    assert len(freezes) == 2
    monkeypatch.delitem(sys.modules, "replog_imported_later")
    compat.freeze_garbage()
    assert len(freezes) == 2, "whoever imports and forgets modules again and again keeps no garbage for ever"
