from __future__ import annotations

import gc
import sys
import weakref

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from s3fs import S3FileSystem

from spark_replog.errors import ErrorCode, InvalidConfigError
from spark_replog.storage.azure_store import AzureStore
from spark_replog.storage.fsspec_store import CLIENTS_MAX
from spark_replog.storage.gcs_store import GcsStore
from spark_replog.storage.memory_store import MemoryStore
from spark_replog.storage.open_store import normalise_url, open_store
from spark_replog.storage.posix_store import PosixStore
from spark_replog.storage.s3_store import S3Store
from spark_replog.storage.webhdfs_store import WebHdfsStore


@pytest.mark.parametrize(
    ("url", "normal"),
    [
        ("/data/store/", "file:///data/store"),
        ("/data//a/../store", "file:///data/store"),
        ("file:///data/store/", "file:///data/store"),
        ("file:/data/store", "file:///data/store"),
        ("FILE:///data", "file:///data"),
        ("file://localhost/data/store", "file:///data/store"),
        ("s3a://bucket/a/", "s3://bucket/a"),
        ("S3://bucket", "s3://bucket"),
        ("gcs://b/x", "gs://b/x"),
        ("az://c/x", "abfs://c/x"),
        ("abfss://c@account.dfs.core.windows.net/x", "abfs://c@account.dfs.core.windows.net/x"),
        (" memory://x ", "memory://x"),
    ],
)
def test_normalise(url, normal):
    assert normalise_url(url) == normal
    assert normalise_url(normal) == normal


@pytest.mark.parametrize("url", ["file://host/data", "file://data", "file://./data", "file://", "file://~/data"])
def test_a_folder_of_another_machine_is_refused(url):
    with pytest.raises(InvalidConfigError, match="file:///FOLDER") as raised:
        open_store(url)
    assert raised.value.code is ErrorCode.REPLOG_UNSUPPORTED_STORE


def test_relative_paths_and_homes_become_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    assert normalise_url("store") == f"file://{tmp_path}/store"
    assert normalise_url("~/store") == "file:///home/me/store"


@pytest.mark.parametrize(
    ("url", "cls"),
    [("/a", PosixStore), ("memory://a", MemoryStore), ("s3://b/a", S3Store), ("webhdfs://h:1/a", WebHdfsStore)],
)
def test_one_store_class_per_scheme(url, cls):
    assert type(open_store(url)) is cls


@pytest.mark.parametrize(
    "url",
    [
        "hdfs://host/a",
        "ftp://host/a",
        "sftp://host/a",
        "http://host/a",
        "dbfs:/a",
        "s3:/bucket/a",
        "zip://a",
        "nosuch://a",
        "dir://a",
        "smb://host/a",
    ],
)
def test_everything_else_is_refused_by_name(url):
    with pytest.raises(InvalidConfigError, match=r"^\[REPLOG_UNSUPPORTED_STORE\].*Use one of.*s3://") as raised:
        open_store(url)
    assert url.partition(":")[0] in str(raised.value)


@pytest.mark.parametrize(
    ("scheme", "cls", "extra"), [("gs", GcsStore, "gcs"), ("abfs", AzureStore, "azure"), ("s3", S3Store, "s3")]
)
def test_a_missing_package_is_named(monkeypatch, scheme, cls, extra):
    def absent(protocol):
        raise ImportError(f"install what serves {protocol}")

    monkeypatch.setattr(fsspec, "get_filesystem_class", absent)
    with pytest.raises(InvalidConfigError, match=rf"REPLOG_UNSUPPORTED_STORE.*spark-replog\[{extra}\]"):
        open_store(f"{scheme}://bucket/a")
    assert cls.protocol == scheme


@pytest.mark.parametrize(
    "call",
    [
        lambda store: store.get("a"),
        lambda store: store.create("a", b"x"),
        lambda store: list(store.list_keys("")),
        lambda store: store.delete("a"),
        lambda store: store.make_folder(""),
    ],
)
def test_a_package_that_only_an_option_needs_is_named(monkeypatch, call):
    monkeypatch.setitem(sys.modules, "requests_kerberos", None)
    store = open_store("webhdfs://h:1/a", {"kerberos": "true"})
    with pytest.raises(InvalidConfigError, match=r"REPLOG_UNSUPPORTED_STORE.*requests_kerberos.*Install it"):
        call(store)


class Patched(S3FileSystem):
    """As some packages do: another class under the same scheme."""


@pytest.mark.parametrize("cls", [Patched, LocalFileSystem, MemoryFileSystem])
def test_another_class_under_a_known_scheme_is_refused(monkeypatch, cls):
    # A subclass is refused as well: it is not proven what it does with mode="create".
    monkeypatch.setattr(fsspec, "get_filesystem_class", lambda protocol: cls)
    with pytest.raises(InvalidConfigError, match=cls.__name__) as raised:
        open_store("s3://bucket/a")
    assert raised.value.code is ErrorCode.REPLOG_UNSUPPORTED_STORE


def test_options_are_typed_and_listing_caches_are_off():
    options = {"anon": "True", "client_kwargs": '{"region_name": "eu-west-1"}', "use_listings_cache": "true"}
    file_system = open_store("s3://bucket/a", options).file_system()
    assert file_system.anon is True
    assert file_system.client_kwargs == {"region_name": "eu-west-1"}
    assert file_system.dircache.use_listings_cache is False
    assert file_system.retries == 1 and file_system.config_kwargs["read_timeout"] == 10


def test_time_outs_given_by_the_user_win():
    options = {"config_kwargs": '{"read_timeout": 3}'}
    config = open_store("s3://bucket/a", options).file_system().config_kwargs
    assert config["read_timeout"] == 3 and config["connect_timeout"] == 5


def test_file_systems_are_made_once_per_process():
    store = open_store("s3://bucket/a")
    made = store.file_system()
    assert store.file_system() is made
    store._file_system = (-1, made)  # what a forked child inherits
    assert store._file_system[0] != -2 and store.file_system() is not None
    assert store._file_system[0] > 0


@pytest.mark.parametrize("value", ["auto", "fsspec", "obstore"])
@pytest.mark.parametrize(
    ("url", "scope"),
    [("s3://b/r", ""), ("s3a://b/r", "s3."), ("abfs://c/r", "az://c."), ("gs://b/r", ""), ("webhdfs://h:1/r", "")],
)
def test_a_choice_of_clients_is_refused_with_what_to_do(url, scope, value):
    with pytest.raises(InvalidConfigError, match=r"one client for .* Remove the option") as raised:
        open_store(url, {f"{scope}client": value, "secret": "hidden"})
    assert raised.value.code is ErrorCode.REPLOG_INVALID_OPTION
    assert "hidden" not in str(raised.value)


def test_of_the_clients_of_old_tokens_only_the_newest_stay_open():
    options = {"key": "k", "secret": "s", "endpoint_url": "http://127.0.0.1:9"}
    used = open_store("s3://bucket/a", {**options, "token": "used"})
    made = [weakref.ref(used.file_system())]
    for number in range(CLIENTS_MAX + 20):
        made.append(weakref.ref(open_store("s3://bucket/a", {**options, "token": f"t{number}"}).file_system()))
    gc.collect()
    assert [reference() is not None for reference in made] == [True] + [False] * 20 + [True] * CLIENTS_MAX
    newest = open_store("s3://bucket/a", {**options, "token": f"t{CLIENTS_MAX + 19}"})
    assert newest.file_system() is made[-1]() and used.file_system() is made[0]()


def test_a_path_that_is_no_text_is_refused_before_anything_is_made():
    with pytest.raises(InvalidConfigError, match=r"b'/a/\\xff'") as raised:
        normalise_url("/a/\udcff")
    assert raised.value.code is ErrorCode.REPLOG_INVALID_OPTION


def test_each_root_gets_its_own_options():
    options = {"s3.key": "k", "s3.endpoint_url": "http://one", "s3://two.endpoint_url": "http://two"}
    one, two = (open_store(url, options).file_system() for url in ("s3://one/log", "s3://two/log"))
    assert (one.endpoint_url, two.endpoint_url) == ("http://one", "http://two")
    assert (one.key, two.key) == ("k", "k")
