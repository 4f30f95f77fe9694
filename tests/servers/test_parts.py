"""Large data objects in parts on real servers: one winner, whole or not there, and no upload left behind."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from spark_replog.errors import ErrorCode, OutcomeUnknownError, ReplogError
from spark_replog.storage import parts
from spark_replog.storage.fsspec_store import FsspecStore
from spark_replog.storage.object_store import CreateOutcome
from spark_replog.storage.open_store import open_store
from spark_replog.storage.parts import ONE_REQUEST_BYTES_MAX
from spark_replog.storage.probe import probe_root
from spark_replog.storage.retrying_store import RetryingStore
from tests.http_fault_proxy import HttpFault, HttpFaultProxy, PlannedAnswer
from tests.servers.server import Azurite, Minio, VersityGateway
from tests.servers.test_lies import LIES
from tests.waiting import wait_until

CREATED, EXISTS = CreateOutcome.CREATED, CreateOutcome.EXISTS
BEFORE, AFTER, HANG = HttpFault.BEFORE, HttpFault.AFTER, HttpFault.HANG
KEY = "ledgers/x/data/000000/a"
PART_BYTES = 5 << 20
"""The least that S3 takes for a part that is not the last."""
BODY_BYTES = 2 * PART_BYTES + 1
STEPS = {
    "s3": {"begin": ("POST", "?uploads"), "part": ("PUT", "partNumber=2"), "end": ("POST", "uploadId=")},
    "abfs": {"part": ("PUT", "comp=block&"), "end": ("PUT", "comp=blocklist")},
}
"""The requests of a create in parts: method, and what is in the path."""
BUSY = b"<?xml version='1.0'?><Error><Code>InternalError</Code><Message>said so</Message></Error>"


def on(*kinds):
    return pytest.mark.parametrize("real", kinds, ids=lambda kind: kind.name, indirect=True)


on_all = on(VersityGateway, Minio, Azurite)
on_s3 = on(VersityGateway, Minio)


@pytest.fixture
def small_parts(monkeypatch):
    monkeypatch.setattr(FsspecStore, "one_request_bytes_max", PART_BYTES)
    monkeypatch.setattr(FsspecStore, "part_size_bytes", PART_BYTES)


@pytest.fixture
def proxy(real):
    with HttpFaultProxy(real.port, one_at_a_time=False) as made:
        yield made


def unfinished(real, url):
    """Return the uploads that are neither completed nor aborted, each as the count of its parts."""
    if real.scheme != "s3":
        return []  # Azure's blocks that nobody commits end by themselves
    bucket = url.split("/")[2]
    client = real.file_system(bucket)
    uploads = client.call_s3("list_multipart_uploads", Bucket=bucket).get("Uploads", [])
    wheres = [{"Bucket": bucket, "Key": upload["Key"], "UploadId": upload["UploadId"]} for upload in uploads]
    return [len(client.call_s3("list_parts", **where).get("Parts", [])) for where in wheres]


def steps_of(proxy):
    """Return which steps of a create in parts have arrived, in order."""
    named = {"?uploads": "begin", "partNumber=": "part", "comp=block&": "part", "comp=blocklist": "end"}
    named["uploadId="] = "end"
    return [next(step for words, step in named.items() if words in path) for _, path in proxy.requests]


@on_all
def test_a_large_data_object_goes_in_parts_and_its_name_is_created_once(real, proxy):
    store = open_store(real.new_root(), real.options(proxy.port))
    body = random.randbytes(ONE_REQUEST_BYTES_MAX + 1)
    assert store.create(KEY, [body[:10], memoryview(body)[10:]]) is CREATED
    begun = [*STEPS[real.scheme]][:-2]
    assert steps_of(proxy) == [*begun, "part", "part", "part", "end"]
    assert store.get(KEY) == body
    retrying = RetryingStore(store, deadline_ms=30_000)
    assert retrying.create(KEY, b"x" + body) is EXISTS
    assert retrying.get(KEY) == body
    assert [(info.key, info.size_bytes) for info in store.list_keys("ledgers/")] == [(KEY, len(body))]
    assert unfinished(real, store.url) == []


@on_all
def test_of_racing_creators_in_parts_one_wins_with_all_its_bytes(real, small_parts):
    store = open_store(real.new_root(), real.options())
    bodies = [bytes([65 + number]) * (BODY_BYTES + number) for number in range(4)]
    start = threading.Barrier(len(bodies))

    def race(body):
        start.wait(60)
        return RetryingStore(store, deadline_ms=30_000).create(KEY, body)

    with ThreadPoolExecutor(len(bodies)) as pool:
        outcomes = list(pool.map(race, bodies))
    assert sorted(outcome.name for outcome in outcomes) == ["CREATED", "EXISTS", "EXISTS", "EXISTS"]
    assert store.get(KEY) == bodies[outcomes.index(CREATED)]
    assert unfinished(real, store.url) == []


@pytest.mark.parametrize("step", ["begin", "part", "end"])
@on_all
def test_a_lie_at_a_step_loses_overwrites_and_leaves_nothing(real, proxy, small_parts, step):
    if step not in STEPS[real.scheme]:
        pytest.skip("Azure's blocks need no beginning")
    store = open_store(real.new_root(), real.hasty_options(proxy.port))
    retrying = RetryingStore(store, deadline_ms=60_000)
    body = random.randbytes(PART_BYTES + 1)
    method, part = STEPS[real.scheme][step]
    for number, (name, lie) in enumerate(LIES.items()):
        key = f"{KEY}{number}"
        proxy.plan(method, lie, part=part)
        assert retrying.create(key, body) is CREATED, name
        assert not proxy.is_planned(), name
        assert store.get(key) == body, name
        if step != "begin":
            assert unfinished(real, store.url) == [], name
    # The answer that has the id of an upload was lost: nobody can abort that one, and no part was sent for it.
    assert not any(unfinished(real, store.url))
    assert retrying.create(f"{KEY}0", body[1:]) is EXISTS
    assert len(list(store.list_keys("ledgers/"))) == len(LIES)


@pytest.mark.parametrize("body", [BUSY, b"", b"<?xml version='1.0'?>", b"<?xml version='1.0'?><a/>"])
@on_s3
def test_200_with_anything_but_the_object_is_no_success(real, proxy, small_parts, body):
    store = open_store(real.new_root(), real.options(proxy.port))
    proxy.plan("POST", PlannedAnswer(BEFORE, 200, body), part="uploadId=")
    with pytest.raises(OutcomeUnknownError):
        store.create(KEY, bytes(BODY_BYTES))
    assert store.get(KEY) is None
    assert unfinished(real, store.url) == []


class AbortingProxy(HttpFaultProxy):
    """Calls ``abort`` with the next request of the method and part of a path in ``step``, before it forwards it."""

    def __init__(self, port, abort):
        super().__init__(port, one_at_a_time=False)
        self.abort, self.step = abort, None

    def exchange(self, planned, method, path, headers, body):
        if self.step is not None and method == self.step[0] and self.step[1] in path:
            self.step = None
            self.abort(path)
        return super().exchange(planned, method, path, headers, body)


@pytest.mark.parametrize("at", [("PUT", "partNumber=3"), ("POST", "uploadId=")], ids=["part", "end"])
@on_s3
def test_an_upload_that_others_abort_is_repeated(real, small_parts, monkeypatch, at):
    monkeypatch.setattr(parts, "PARTS_AT_ONCE", 1)  # a part on its way may bring an aborted upload back: S3 says so
    url = real.new_root()
    bucket = url.split("/")[2]
    client = real.file_system(bucket)

    def abort(path):
        (upload,) = client.call_s3("list_multipart_uploads", Bucket=bucket)["Uploads"]
        client.call_s3("abort_multipart_upload", Bucket=bucket, Key=upload["Key"], UploadId=upload["UploadId"])

    with AbortingProxy(real.port, abort) as proxy:
        store = open_store(url, real.options(proxy.port))
        body = random.randbytes(BODY_BYTES)
        proxy.step = at
        with pytest.raises(OutcomeUnknownError, match="HTTP 404"):
            store.create(KEY, body)
        assert store.get(KEY) is None
        proxy.step = at
        assert RetryingStore(store, deadline_ms=30_000).create(KEY, body) is CREATED
        assert proxy.step is None
    assert store.get(KEY) == body
    assert unfinished(real, store.url) == []


@on_all
def test_a_part_that_is_refused_refuses_the_create_and_ends_the_upload(real, proxy, small_parts, monkeypatch):
    monkeypatch.setattr(parts, "PARTS_AT_ONCE", 1)  # so that a part arrives before the one that is refused
    store = RetryingStore(open_store(real.new_root(), real.options(proxy.port)), deadline_ms=30_000)
    method, part = STEPS[real.scheme]["part"]
    if real.scheme == "abfs":
        proxy.plan(method, PlannedAnswer(AFTER, 201), part=part)
    proxy.plan(method, PlannedAnswer(BEFORE, 403, BUSY.replace(b"InternalError", b"AccessDenied")), part=part)
    with pytest.raises(ReplogError) as raised:
        store.create(KEY, bytes(BODY_BYTES))
    assert raised.value.code is ErrorCode.REPLOG_STORE_REFUSED
    assert store.get(KEY) is None
    assert unfinished(real, store.url) == []


@pytest.mark.parametrize(("step", "status"), [("begin", 403), ("begin", 501), ("part", 403), ("end", 501)])
@on_all
def test_where_parts_are_not_taken_the_body_is_one_request(real, proxy, small_parts, step, status):
    if (real.scheme, step) in {("abfs", "begin"), ("abfs", "end"), ("s3", "part")}:
        pytest.skip("another answer decides there")
    store = open_store(real.new_root(), real.options(proxy.port))
    method, part = STEPS[real.scheme][step]
    times = 3 if real.scheme == "abfs" else 1
    proxy.plan(method, PlannedAnswer(BEFORE, status, BUSY), part=part, times=times)
    body = random.randbytes(BODY_BYTES)
    assert store.create(KEY, body) is CREATED
    assert store.get(KEY) == body
    proxy.clear()
    assert store.create(f"{KEY}2", body) is CREATED
    assert [method for method, _ in proxy.requests] == ["PUT"]  # it is not tried again
    assert unfinished(real, store.url) == []


def begin_to_create(real, proxy, url):
    """Start a process that creates an object, and return it when all parts are there, one of them not answered."""
    proxy.plan("PUT", PlannedAnswer(HANG), part=STEPS[real.scheme]["part"][1])
    creator = subprocess.Popen(
        [sys.executable, "-m", "tests.servers.creating"],
        cwd=Path(__file__).parents[2], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    given = {"url": url, "options": real.options(proxy.port), "key": KEY}
    given.update(size_bytes=BODY_BYTES, part_size_bytes=PART_BYTES)
    creator.stdin.write(json.dumps(given))
    creator.stdin.close()
    wait_until(
        lambda: creator.poll() is not None or (not proxy.is_planned() and unfinished(real, url) in ([], [3])),
        pause_seconds=0.01,
    )
    assert creator.poll() is None, creator.stderr.read()
    return creator


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT])
@on_all
def test_an_upload_that_ends_in_the_middle_is_not_visible(real, proxy, small_parts, end):
    store = open_store(real.new_root(), real.options())
    with begin_to_create(real, proxy, store.url) as creator:
        creator.send_signal(end)
        error = creator.stderr.read()
    assert ("KeyboardInterrupt" in error) is (end is signal.SIGINT)
    proxy.clear()
    assert store.get(KEY) is None
    assert list(store.list_keys("")) == []
    if end is signal.SIGINT:
        assert unfinished(real, store.url) == []
    assert RetryingStore(store, deadline_ms=30_000).create(KEY, b"x" * BODY_BYTES) is CREATED


@on_all
def test_a_service_that_ignores_the_condition_of_the_last_part_is_found_by_the_probe(real, monkeypatch, request):
    store = RetryingStore(open_store(real.new_root(), real.options()), deadline_ms=5_000)
    if real.scheme == "s3":
        store.list_keys("")  # the client connects
        events = store.store.file_system().s3.meta.events
        named = "provide-client-params.s3.CompleteMultipartUpload"

        def without_condition(params, **given):
            return {name: value for name, value in params.items() if name != "IfNoneMatch"}

        events.register(named, without_condition)
        request.addfinalizer(lambda: events.unregister(named, without_condition))  # all roots share the client
    else:
        from azure.storage.blob.aio import BlobClient

        plain_commit = BlobClient.commit_block_list
        monkeypatch.setattr(
            BlobClient,
            "commit_block_list",
            lambda self, blocks, metadata, **given: plain_commit(self, blocks, metadata=metadata),
        )
    (warning,) = probe_root(store).warnings
    assert "overwrites" in warning
    assert list(store.list_keys("")) == []


@on_all
def test_names_that_writers_share_are_created_by_one_request(real, proxy, small_parts):
    store = open_store(real.new_root(), real.options(proxy.port))
    assert store.create("ledgers/x/journal/00000000000000000000", bytes(BODY_BYTES)) is CREATED
    assert [method for method, _ in proxy.requests] == ["PUT"]
