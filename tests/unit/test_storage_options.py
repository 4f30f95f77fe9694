"""A file system's options on their way there: how they are spelled, and that nothing shows their values."""

from __future__ import annotations

import gc
import io
import weakref
from contextlib import redirect_stderr, redirect_stdout

import pytest

import spark_replog
from spark_replog.cli.main import run
from spark_replog.cli.settings import Settings
from spark_replog.client.settings import ProducerSettings
from spark_replog.cluster.cluster import Cluster
from spark_replog.cluster.init_store import init_cluster
from spark_replog.config.registry import storage_options
from spark_replog.errors import ErrorCode, InvalidConfigError
from spark_replog.spark.options import parse_sink_options, parse_source_options
from spark_replog.storage.brokers import SHARED_SETS_MAX
from spark_replog.storage.open_store import normalise_url

SECRET = "Xy7SecretXy7"


@pytest.fixture
def path(tmp_path):
    path = str(tmp_path / "log")
    init_cluster(path).cluster_ledger.refresh()
    return path


def test_a_kafka_prefix_is_dropped_and_nested_ones_become_json():
    given = {"kafka.storage.key": "k", "storage.client_kwargs": {"region_name": "r"}, "acks": "all"}
    assert storage_options(given) == {"key": "k", "client_kwargs": '{"region_name": "r"}'}


@pytest.mark.parametrize("client", ["producer", "consumer"])
def test_both_clients_take_them_in_each_spelling(path, monkeypatch, client):
    opened = []
    shared = Cluster.shared.__func__

    def note(cls, path, options=None):
        opened.append(options)
        return shared(cls, path, options)

    monkeypatch.setattr(Cluster, "shared", classmethod(note))
    made = {"producer": spark_replog.Producer, "consumer": spark_replog.Consumer}[client]
    for spelling in ({"config": {"storage.endpoint_url": "e"}}, {"config": {"kafka.storage.endpoint_url": "e"}}):
        made(path, **spelling).close()
    made(path, storage_endpoint_url="e").close()
    assert opened == [{"endpoint_url": "e"}] * 3


def test_a_store_may_be_opened_with_nested_options(path):
    opened = spark_replog.open(path, {"client_kwargs": {"region_name": "r"}})
    assert opened.cluster is spark_replog.open(path, {"client_kwargs": '{"region_name": "r"}'}).cluster


def test_of_the_stores_of_old_tokens_only_the_newest_are_kept(path):
    lasting = Cluster.shared(path, {"token": "lasting"})
    first = weakref.ref(Cluster.shared(path, {"token": "0"}))
    for number in range(1, 2 * SHARED_SETS_MAX):
        newest = Cluster.shared(path, {"token": str(number)})
        assert Cluster.shared(path, {"token": "lasting"}) is lasting
        assert Cluster.shared(path, {"token": str(number)}) is newest
    gc.collect()
    assert first() is None


@pytest.mark.parametrize("client", ["producer", "consumer"])
def test_options_for_a_store_that_is_open_are_refused(path, client):
    with pytest.raises(InvalidConfigError, match="secret") as raised:
        getattr(spark_replog.open(path), client)(config={"storage.secret": SECRET})
    assert raised.value.code is ErrorCode.REPLOG_CONFLICTING_OPTIONS and SECRET not in str(raised.value)


def test_no_object_shows_them():
    spark = {"path": "/s", "storage.secret": SECRET}
    shown = [
        ProducerSettings.read({"storage.secret": SECRET}),
        Settings(storage_options={"secret": SECRET}),
        parse_source_options({**spark, "subscribe": "t"}, streaming=True),
        parse_sink_options({**spark, "topic": "t"}, streaming=False),
    ]
    assert [text for text in map(repr, shown) if SECRET in text] == []


@pytest.mark.parametrize("mistake", [f"storage.secret:{SECRET}", f"secret={SECRET}", f"storage.s4.secret={SECRET}"])
def test_the_command_line_does_not_show_them_when_they_are_mistyped(path, mistake):
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        assert run(["-s", path, "-v", "-X", mistake, "topic", "list"]) == 2
    assert SECRET not in out.getvalue() + err.getvalue()


def test_a_password_in_a_url_is_refused_before_any_root_records_it():
    with pytest.raises(InvalidConfigError, match="REPLOG_INVALID_OPTION") as raised:
        normalise_url(f"webhdfs://me:{SECRET}@namenode:9870/log")
    assert raised.value.code is ErrorCode.REPLOG_INVALID_OPTION and SECRET not in str(raised.value)
    for url in ("webhdfs://me@namenode:9870/log", "abfs://container@account.dfs.core.windows.net/a:b@c"):
        assert normalise_url(url) == url


@pytest.mark.parametrize(
    "url",
    [f"s3://AKIA:half/{SECRET}@bucket/log", f"s3a://AKIA:half/{SECRET}@bucket", f"webhdfs://me:/{SECRET}@host:1/x"],
)
def test_a_password_with_a_slash_in_a_url_is_one_too(url):
    with pytest.raises(InvalidConfigError, match="holds a password") as raised:
        normalise_url(url)
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize(
    "url",
    [
        "webhdfs://namenode:9870/user/a@b",
        "webhdfs://me@[::1]:9870/user/a@b",
        "s3://arn:aws:s3:eu-west-1:123456789012:accesspoint/mine/a@b",
        "gs://bucket/a:b/c@d",
    ],
)
def test_a_port_an_arn_and_a_folder_are_no_password(url):
    assert normalise_url(url) == url


@pytest.mark.parametrize("url", ["s3://", "s3:///log", "S3A://"])
def test_a_remote_url_names_a_place(url):
    with pytest.raises(InvalidConfigError, match="PLACE/FOLDER") as raised:
        init_cluster(url)
    assert raised.value.code is ErrorCode.REPLOG_UNSUPPORTED_STORE
