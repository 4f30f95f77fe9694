from __future__ import annotations

import gc
import os
import uuid
import warnings
import weakref

import pytest

from spark_replog.errors import (
    ErrorCode,
    InvalidConfigError,
    OutcomeUnknownError,
    ReplogError,
    RetriableError,
)
from spark_replog.storage.fsspec_store import CLIENTS_MAX
from spark_replog.storage.object_store import CreateOutcome
from spark_replog.storage.open_store import open_store
from spark_replog.storage.probe import probe_root
from spark_replog.storage.retrying_store import RetryingStore
from tests.contract.store_contract import ObjectStoreContract
from tests.http_fault_proxy import HttpFault, PlannedAnswer

CREATED, EXISTS = CreateOutcome.CREATED, CreateOutcome.EXISTS


def error_document(code, extra=""):
    return f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>said so</Message>{extra}</Error>".encode()


@pytest.fixture
def store(s3_options):
    bucket = f"bucket-{uuid.uuid4().hex}"
    open_store(f"s3://{bucket}", s3_options).file_system().mkdir(bucket)
    return open_store(f"s3://{bucket}/some/root", s3_options)


@pytest.fixture
def retrying(store):
    return RetryingStore(store, deadline_ms=5_000)


class TestS3Store(ObjectStoreContract):
    has_folders = False
    # The server is one process, and eight clients would each import botocore for seconds: threads race.
    race_in_processes = False
    race_name_count = 5


class TestFork:
    @pytest.mark.parametrize("newer_count", [0, CLIENTS_MAX])
    def test_a_child_never_cleans_up_what_it_inherited(self, store, s3_options, newer_count):
        # Its clean-up works on the event poll that it shares with its parent, which then hangs.
        store.create("a", b"x")
        inherited = weakref.ref(store.file_system())
        for number in range(newer_count):  # the process itself keeps only the newest ones
            open_store(store.url, {**s3_options, "token": str(number)}).file_system()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            try:
                read = store.get("a")
                del store
                gc.collect()
                os._exit(0 if read == b"x" and inherited() is not None else 1)
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


class TestErrorMapping:
    def answer(self, proxy, status, code, when=HttpFault.BEFORE, method="PUT", times=1, extra=""):
        proxy.plan(method, PlannedAnswer(when, status, error_document(code, extra)), times=times)

    def test_412_with_condition_exists(self, store, s3_proxy):
        self.answer(s3_proxy, 412, "PreconditionFailed", extra="<Condition>If-None-Match</Condition>")
        assert store.create("a", b"x") is EXISTS

    def test_412_without_condition_exists(self, store, s3_proxy):
        self.answer(s3_proxy, 412, "PreconditionFailed")
        assert store.create("a", b"x") is EXISTS

    def test_other_400_codes_with_the_same_errno_do_not_exist(self, store, s3_proxy):
        self.answer(s3_proxy, 400, "InvalidDigest")
        with pytest.raises(ReplogError) as raised:
            store.create("a", b"x")
        assert raised.value.code is ErrorCode.REPLOG_STORE_REFUSED

    @pytest.mark.parametrize(
        ("status", "code"),
        [
            (401, "InvalidToken"),
            (403, "AccessDenied"),
            (404, "NoSuchBucket"),
            (405, "MethodNotAllowed"),
            (501, "NotImplemented"),
        ],
    )
    def test_refused(self, store, retrying, s3_proxy, status, code):
        s3_proxy.clear()
        self.answer(s3_proxy, status, code)
        with pytest.raises(ReplogError) as raised:
            retrying.create("a", b"x")
        assert raised.value.code is ErrorCode.REPLOG_STORE_REFUSED
        assert not isinstance(raised.value, RetriableError | OutcomeUnknownError)
        assert [method for method, _ in s3_proxy.requests] == ["PUT"]

    @pytest.mark.parametrize(
        ("status", "code"),
        [
            (400, "RequestTimeout"),
            (408, "RequestTimeout"),
            (409, "ConditionalRequestConflict"),
            (409, "OperationAborted"),
            (429, "TooManyRequests"),
            (500, "InternalError"),
            (502, "BadGateway"),
            (503, "SlowDown"),
        ],
    )
    def test_unknown_then_repeated(self, store, retrying, s3_proxy, status, code):
        self.answer(s3_proxy, status, code)
        with pytest.raises(OutcomeUnknownError) as raised:
            store.create("a", b"x")
        assert raised.value.code is ErrorCode.REPLOG_STORE_OUTCOME_UNKNOWN
        self.answer(s3_proxy, status, code)
        assert retrying.create("a", b"x") is CREATED

    def test_409_is_not_exists(self, store, retrying, s3_proxy):
        # A client that reads it as "already exists" would leave a hole where it thinks another has won.
        self.answer(s3_proxy, 409, "ConditionalRequestConflict", times=3)
        assert retrying.create("a", b"x") is CREATED
        assert store.get("a") == b"x"

    def test_exists_over_nothing_is_asked_again(self, retrying, s3_proxy):
        self.answer(s3_proxy, 412, "PreconditionFailed", times=2)
        assert retrying.create("a", b"x") is CREATED

    def test_refused_after_unknown_stays_unknown(self, store, retrying, s3_proxy):
        self.answer(s3_proxy, 500, "InternalError", when=HttpFault.AFTER)
        self.answer(s3_proxy, 403, "AccessDenied")
        with pytest.raises(OutcomeUnknownError):
            retrying.create("a", b"x")
        assert store.get("a") == b"x"

    def test_reads(self, store, retrying, s3_proxy):
        assert retrying.create("a", b"0123") is CREATED
        self.answer(s3_proxy, 503, "SlowDown", method="GET")
        with pytest.raises(RetriableError) as raised:
            store.get("a")
        assert raised.value.code is ErrorCode.REPLOG_STORE_UNAVAILABLE
        self.answer(s3_proxy, 503, "SlowDown", method="GET", times=3)
        assert retrying.get("a", start=1, size_bytes=2) == b"12"
        self.answer(s3_proxy, 403, "AccessDenied", method="GET")
        with pytest.raises(RetriableError) as raised:
            retrying.get("a")
        assert raised.value.code is ErrorCode.REPLOG_STORE_REFUSED
        assert "secret" not in str(raised.value)

    @pytest.mark.parametrize("body", [b"default backend - 404", b"<html><body>Not Found</body></html>", b""])
    def test_a_404_of_a_proxy_is_no_absent_object(self, store, retrying, s3_proxy, body):
        assert store.create("a", b"x") is CREATED
        for method, call in (
            ("GET", lambda: store.get("a")),
            ("GET", lambda: list(store.list_keys(""))),
            ("DELETE", lambda: store.delete("a")),
        ):
            s3_proxy.plan(method, PlannedAnswer(HttpFault.BEFORE, 404, body))
            with pytest.raises(RetriableError) as raised:
                call()
            assert raised.value.code is ErrorCode.REPLOG_STORE_UNAVAILABLE
        s3_proxy.plan("GET", PlannedAnswer(HttpFault.BEFORE, 404, body))
        assert retrying.get("a") == b"x"
        s3_proxy.plan("PUT", PlannedAnswer(HttpFault.BEFORE, 404, body))
        assert retrying.create("b", b"y") is CREATED

    def test_missing_bucket_is_a_missing_root(self, s3_options):
        lost = open_store("s3://no-such-bucket/root", s3_options)
        for call in (lambda: lost.get("a"), lambda: list(lost.list_keys(""))):
            with pytest.raises(RetriableError) as raised:
                call()
            assert raised.value.code is ErrorCode.REPLOG_ROOT_STALE

    def test_unknown_client_option_is_named(self, s3_options):
        with pytest.raises(InvalidConfigError, match=r"REPLOG_INVALID_OPTION.*no_such_option") as raised:
            open_store("s3://bucket/root", {**s3_options, "no_such_option": "1"}).get("a")
        assert "secret'" in str(raised.value) and "=secret" not in str(raised.value)


class TestLostAnswers:
    @pytest.mark.parametrize("status", [0, 500, 503])
    def test_own_write_is_found(self, store, retrying, s3_proxy, status):
        s3_proxy.plan("PUT", PlannedAnswer(HttpFault.AFTER, status))
        assert retrying.create("a", b"mine") is CREATED
        assert retrying.create("a", b"other") is EXISTS
        assert store.get("a") == b"mine"

    def test_the_client_may_call_its_own_write_existing(self, store, s3_proxy):
        # aiohttp sends the PUT again by itself: why EXISTS from a raw store proves nothing.
        s3_proxy.plan("PUT", PlannedAnswer(HttpFault.AFTER, 0))
        assert store.create("a", b"mine") is EXISTS

    def test_nothing_written(self, store, retrying, s3_proxy):
        s3_proxy.plan("PUT", PlannedAnswer(HttpFault.BEFORE, 0), times=3)
        assert retrying.create("a", b"mine") is CREATED

    def test_dead_endpoint_is_unknown_until_the_deadline(self, s3_options):
        dead = open_store("s3://bucket/root", {**s3_options, "endpoint_url": "http://127.0.0.1:9"})
        with pytest.raises(OutcomeUnknownError):
            RetryingStore(dead, deadline_ms=50).create("a", b"x")
        with pytest.raises(RetriableError):
            RetryingStore(dead, deadline_ms=50).get("a")


class TestCost:
    def test_one_request_per_call(self, store, s3_proxy):
        store.create("f/a", b"0123456789")
        s3_proxy.clear()
        store.create("f/b", b"0123456789")
        store.get("f/a")
        store.get("f/a", start=2, size_bytes=3)
        store.get("f/absent")
        list(store.list_keys("f/"))
        store.delete("f/a")
        assert [method for method, _ in s3_proxy.requests] == ["PUT", "GET", "GET", "GET", "GET", "DELETE"]

    def test_object_that_needs_parts_is_refused(self, store, s3_proxy, monkeypatch):
        monkeypatch.setattr(type(store), "size_bytes_max", 9)
        s3_proxy.clear()
        with pytest.raises(ReplogError, match=r"REPLOG_STORE_REFUSED.*max\.request\.size"):
            store.create("big", bytes(store.size_bytes_max + 1))
        assert s3_proxy.requests == []


def test_probe_passes(retrying):
    report = probe_root(retrying)
    assert (report.file_system, report.warnings) == ("s3", ())
    assert list(retrying.list_keys("")) == []
