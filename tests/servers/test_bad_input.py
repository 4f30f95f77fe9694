"""What users get wrong, on each real server: a coded error that says what to do, and nothing half made."""

from __future__ import annotations

import datetime

import botocore.auth
import pytest

import spark_replog
from spark_replog.errors import ErrorCode, InvalidConfigError, OutcomeUnknownError, ReplogError, RetriableError
from spark_replog.storage.brokers import BrokerSet, write_root_files
from spark_replog.storage.object_store import CreateOutcome
from spark_replog.storage.open_store import open_store
from spark_replog.storage.retrying_store import RetryingStore
from tests.servers.conftest import on_buckets
from tests.servers.hdfs import Hdfs
from tests.servers.nfs import Nfs
from tests.servers.server import Azurite, FakeGcs, Minio, VersityGateway, free_port
from tests.servers.stores import RealRoots

CREATED = CreateOutcome.CREATED


@on_buckets
def test_a_missing_bucket_is_named_and_leaves_no_root_file_in_the_others(real):
    first, last = real.new_root(), real.new_root()
    missing = f"{real.scheme}://no-such-bucket/log"
    with pytest.raises(ReplogError, match=r"bucket does not exist|Check the bucket's name") as raised:
        write_root_files([first, missing, last], real.options())
    assert raised.value.context["url"] == missing
    assert raised.value.code in (ErrorCode.REPLOG_ROOT_STALE, ErrorCode.REPLOG_STORE_REFUSED)
    for url in (first, last):
        assert list(open_store(url, real.options()).list_keys("")) == []
    with pytest.raises(ReplogError, match="Check the bucket's name") as refused:
        open_store(missing, real.options()).create("a", b"x")
    assert refused.value.code is ErrorCode.REPLOG_STORE_REFUSED


@pytest.mark.parametrize("kind", [VersityGateway, Minio, Azurite], ids=lambda kind: kind.name)
def test_wrong_credentials_are_refused_at_once_and_never_shown(servers, kind):
    server = servers(kind)
    wrong = {name: value.replace(server.secret, "d3JvbmctdmVyeS13cm9uZw==") for name, value in server.options().items()}
    path = ",".join([server.new_root(), server.new_root()])
    for call in (lambda: BrokerSet.open(path, wrong), lambda: write_root_files(path.split(","), wrong)):
        with pytest.raises(ReplogError, match="Check credentials and permissions") as raised:
            call()
        assert raised.value.code is ErrorCode.REPLOG_STORE_REFUSED
        assert "d3Jvbmc" not in str(raised.value) + repr(raised.value)


@pytest.mark.parametrize("kind", [VersityGateway, Minio], ids=lambda kind: kind.name)
def test_a_clock_that_is_wrong_is_named(servers, kind, monkeypatch):
    server = servers(kind)
    store = open_store(server.new_root(), server.options())
    now = botocore.auth.get_current_datetime
    monkeypatch.setattr(botocore.auth, "get_current_datetime", lambda: now() - datetime.timedelta(hours=3))
    with pytest.raises(ReplogError, match=r"Set this machine's clock\.") as raised:
        RetryingStore(store, deadline_ms=5_000).create("a", b"x")
    assert raised.value.code is ErrorCode.REPLOG_STORE_REFUSED


@pytest.mark.parametrize("kind", [Minio, VersityGateway], ids=lambda kind: kind.name)
@pytest.mark.parametrize("is_locked", [False, True], ids=["versioned", "locked"])
def test_a_versioned_bucket_and_a_locked_one_behave_as_any_other(servers, kind, is_locked):
    """An object lock keeps versions: a deletion adds a marker, and the name is free again."""
    server = servers(kind)
    roots = RealRoots([server.new_guarded_root(is_locked=is_locked) for _ in range(3)], server.options())
    raw = open_store(roots.path.split(",")[0], server.options())
    assert raw.create("f/a", b"1") is CREATED
    assert raw.create("f/a", b"2") is CreateOutcome.EXISTS
    raw.delete("f/a")
    assert (raw.get("f/a"), list(raw.list_keys("f/"))) == (None, [])
    assert server.versions(raw.url, "f/a")  # so the bucket does keep them
    # On versitygw the name stays taken: no name is given twice but by a repair, which says so.
    if kind is Minio:
        assert (raw.create("f/a", b"3"), raw.get("f/a")) == (CREATED, b"3")
    else:
        with pytest.raises(OutcomeUnknownError):
            RetryingStore(raw, deadline_ms=100).create("f/a", b"3")
        assert raw.get("f/a") is None
    raw.delete("f/a")

    store = roots.make("orders", "gone")
    with store.producer(inline_max_bytes=0) as producer:
        for topic in ("orders", "gone"):
            assert producer.send(topic, b"x").result(timeout=60).offset == 0
    assert roots.replog("topic", "delete", "gone", "-y")[0] == 0
    assert roots.replog("store", "gc")[0] == 0
    assert roots.replog("store", "verify", "--deep")[0] == 0
    opened = spark_replog.open(roots.path, roots.options)
    assert opened.topic("orders").scan().to_arrow()["value"].to_pylist() == [b"x"]


@pytest.mark.parametrize("end", ["?versionid=1", "#part", "//deeper", "/./x", "/../log", "/.."])
def test_a_url_that_services_would_read_in_different_ways_is_refused(end):
    for scheme in ("s3", "gs", "abfs", "webhdfs"):
        with pytest.raises(InvalidConfigError) as raised:
            open_store(f"{scheme}://place/log{end}")
        assert raised.value.code is ErrorCode.REPLOG_INVALID_OPTION


def test_trailing_slashes_and_odd_letters_are_one_place(real):
    url = real.new_root("a b/ü+%41")
    store, other = open_store(url, real.options()), open_store(f"{url}//", real.options())
    store.make_folder("f")
    assert store.create("f/x y", b"1") is CREATED
    assert other.create("f/x y", b"2") is CreateOutcome.EXISTS
    assert [info.key for info in other.list_keys("f/")] == ["f/x y"]


def test_two_roots_that_are_one_place_are_found_at_init(real):
    url = real.new_root("log")
    options = {**real.options(), **{f"{url}.{name}": value for name, value in real.options().items()}}
    with pytest.raises(InvalidConfigError) as raised:
        write_root_files([url, f"{url}/"], options)
    assert raised.value.code is ErrorCode.REPLOG_CONFLICTING_OPTIONS


@pytest.mark.parametrize(("kind", "scheme"), [(VersityGateway, "s3a"), (FakeGcs, "gcs"), (Azurite, "az")])
def test_two_roots_that_are_one_place_under_two_names_are_found_at_init(servers, kind, scheme):
    url = servers(kind).new_root("log")
    other = f"{scheme}{url[url.index(':') :]}"
    with pytest.raises(ReplogError) as raised:
        write_root_files([url, other], servers(kind).options())
    assert raised.value.code is ErrorCode.REPLOG_CONFLICTING_OPTIONS
    assert f"{url},{url}" in str(raised.value)
    assert list(open_store(url, servers(kind).options()).list_keys("")) == []


def test_an_endpoint_that_is_away_at_the_start_is_named_in_time(real):
    path = ",".join(real.new_root() for _ in range(2))
    away = real.hasty_options(free_port())
    for call in (lambda: spark_replog.open(path, away), lambda: write_root_files(path.split(","), away)):
        with pytest.raises(RetriableError, match="Check network and endpoint") as raised:
            call()
        assert raised.value.code is ErrorCode.REPLOG_STORE_UNAVAILABLE


@pytest.mark.guarantee("G4")
@pytest.mark.parametrize(
    ("leaving", "staying"),
    [
        *((kind, FakeGcs) for kind in (Minio, Hdfs, Nfs)),
        *(pytest.param(kind, FakeGcs, marks=pytest.mark.wide) for kind in (VersityGateway, Azurite)),
        pytest.param(FakeGcs, VersityGateway, marks=pytest.mark.wide),
    ],
    ids=lambda kind: kind.name,
)
def test_one_roots_server_goes_in_the_middle_and_comes_back(staying, leaving, servers):
    """The third root is on another server: it is away while rows are written, then repaired."""
    real, other = servers(staying), servers(leaving)
    two, one = RealRoots.of(real, 2), RealRoots.of(other, 1)
    roots = RealRoots([*two.path.split(","), one.path], {**two.options, **one.options})
    store = roots.make("orders")
    settings = {"request.timeout.ms": 20_000, "replica.lag.time.max.ms": 500, "replica.grace.ms": 50}
    with store.producer(settings, inline_max_bytes=0) as producer:
        offsets = [producer.send("orders", b"0").result(timeout=60).offset]
        other.kill()
        try:
            offsets += [producer.send("orders", b"%d" % number).result(timeout=60).offset for number in (1, 2)]
        finally:
            other.start()
        offsets.append(producer.send("orders", b"3").result(timeout=60).offset)
    assert offsets == [0, 1, 2, 3]
    assert roots.replog("store", "repair", "-y")[0] == 0
    assert roots.replog("store", "verify", "--deep")[0] == 0
    rows = spark_replog.open(roots.path, roots.options).topic("orders").scan().to_arrow()
    assert rows["value"].to_pylist() == [b"0", b"1", b"2", b"3"]
