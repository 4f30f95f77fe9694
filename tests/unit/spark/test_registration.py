"""``spark_replog.register``: classic sessions, Spark Connect, and a wheel that is only carried along."""

from __future__ import annotations

import zipfile
import zipimport

import pytest

import spark_replog
from spark_replog.spark import data_source


class Context:
    def __init__(self):
        self.shipped = []

    def addPyFile(self, path):
        self.shipped.append(path)


class Session:
    """As far as ``register`` looks: Connect's session has no context and says so by raising."""

    def __init__(self, context=None, refusal=None):
        self._context = context
        self._refusal = refusal
        self.registered = []
        self.dataSource = self

    def register(self, source):
        if self._refusal is not None:
            raise RuntimeError(self._refusal)
        self.registered.append(source)

    @property
    def sparkContext(self):
        if self._context is None:
            raise RuntimeError("[JVM_ATTRIBUTE_NOT_SUPPORTED] sparkContext")
        return self._context


@pytest.fixture
def carried(tmp_path, monkeypatch):
    """As if the package had been imported from a wheel on the path."""
    wheel = tmp_path / "spark_replog-0.1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr("spark_replog/__init__.py", "")
    monkeypatch.setattr(data_source, "__loader__", zipimport.zipimporter(str(wheel)))
    monkeypatch.setattr(data_source, "_shipped", set())
    return wheel


def test_an_installed_package_ships_nothing():
    context = Context()
    session = Session(context)
    spark_replog.register(session)
    spark_replog.register(session)
    assert session.registered == [data_source.ReplogDataSource, data_source.ReplogDataSource]
    assert context.shipped == []


def test_a_carried_wheel_is_shipped_once_as_a_zip(carried):
    context = Context()
    spark_replog.register(Session(context))
    spark_replog.register(Session(context))
    (shipped,) = context.shipped
    assert shipped.endswith(f"{carried.stem}.zip")
    with open(shipped, "rb") as copy:
        assert copy.read() == carried.read_bytes()


def test_on_connect_the_class_is_registered_and_nothing_is_shipped(carried):
    session = Session()
    spark_replog.register(session)
    assert session.registered == [data_source.ReplogDataSource]


def test_a_name_that_the_look_up_has_found_is_no_error():
    spark_replog.register(Session(Context(), "[DATA_SOURCE_ALREADY_EXISTS] replog"))
    with pytest.raises(RuntimeError, match="other"):
        spark_replog.register(Session(Context(), "[OTHER] other"))
