"""The errors of gcsfs, adlfs and webhdfs as their classes raise them, without their packages."""

from __future__ import annotations

import errno
import socket
import threading
import traceback
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import requests
from aiohttp.client_exceptions import ClientPayloadError
from aiohttp.http_exceptions import ContentLengthError

from spark_replog.errors import ErrorCode, OutcomeUnknownError, ReplogError, RetriableError
from spark_replog.storage.azure_store import AzureStore
from spark_replog.storage.client_errors import error_code_of, status_of
from spark_replog.storage.fsspec_store import FsspecStore
from spark_replog.storage.gcs_store import GcsStore
from spark_replog.storage.object_store import CreateOutcome
from spark_replog.storage.retrying_store import RetryingStore
from spark_replog.storage.s3_store import S3Store
from tests.manual_clock import ManualClock


class FakeFileSystem:
    """Answers from a list: an exception to raise, or a value."""

    def __init__(self):
        self.objects = {}
        self.answers = []
        self.calls = []

    def _next(self, verb, path, **kwargs):
        self.calls.append((verb, path, kwargs))
        if self.answers:
            answer = self.answers.pop(0)
            if isinstance(answer, BaseException):
                raise answer

    def pipe_file(self, path, value, mode, chunksize=2**30):
        assert mode == "create" and len(value) < chunksize
        self._next("pipe_file", path)
        if path in self.objects:
            raise FileExistsError(path)
        self.objects[path] = value

    def cat_file(self, path, start, end):
        self._next("cat_file", path, start=start, end=end)
        if path not in self.objects:
            raise FileNotFoundError(path)
        return self.objects[path][start:end]

    def find(self, path, detail, **kwargs):
        self._next("find", path, **kwargs)
        return {name: {"size": len(body)} for name, body in self.objects.items() if name.startswith(path)}

    def rm_file(self, path):
        self._next("rm_file", path)
        if self.objects.pop(path, None) is None:
            raise FileNotFoundError(path)


def store_over(cls, url):
    file_system = FakeFileSystem()

    class Store(cls):
        def _make_file_system(self):
            self._root = url.partition("://")[2]
            return file_system

        _listed = FsspecStore._listed  # the double has a ``find``

    return Store(url, {}), file_system


class HttpError(Exception):
    """As gcsfs.retry.HttpError."""

    def __init__(self, code):
        super().__init__(f"message, {code}")
        self.code = code


class HttpResponseError(Exception):
    """As azure.core.exceptions.HttpResponseError."""

    def __init__(self, status_code, error_code=None):
        super().__init__("message")
        self.status_code = status_code
        self.error_code = error_code
        self.response = type("Response", (), {"status_code": status_code})()


class ServiceRequestError(Exception):
    """As azure.core: no answer came; ``response`` is there and None."""

    response = None


class ClientAuthenticationError(Exception):
    """As azure.core, raised before any request."""


def caused(error, cause):
    error.__cause__ = cause
    return error


UNKNOWN, REFUSED, EXISTS = "unknown", "refused", "exists"
GCS = [
    (FileExistsError("412"), EXISTS),
    (OSError("Forbidden: b/x\nno"), REFUSED),
    (ValueError("Bad Request: b/x\ninvalid"), REFUSED),
    (FileNotFoundError("bucket"), REFUSED),
    (HttpError(400), REFUSED),
    (HttpError(401), REFUSED),
    (HttpError("401"), REFUSED),
    (HttpError(408), UNKNOWN),
    (HttpError(425), UNKNOWN),
    (HttpError(429), UNKNOWN),
    (HttpError(503), UNKNOWN),
    (HttpError(None), UNKNOWN),
    (ConnectionResetError("reset"), UNKNOWN),
    (TimeoutError(), UNKNOWN),
]
AZURE = [
    (caused(FileExistsError("x"), HttpResponseError(409, "BlobAlreadyExists")), EXISTS),
    (HttpResponseError(409, "BlobAlreadyExists"), EXISTS),
    (HttpResponseError(412, "ConditionNotMet"), EXISTS),
    (HttpResponseError(409, "ContainerBeingDeleted"), UNKNOWN),
    (HttpResponseError(409), UNKNOWN),
    (caused(FileExistsError("x"), HttpResponseError(409)), EXISTS),
    (caused(FileExistsError("x"), HttpResponseError(409, "LeaseIdMissing")), UNKNOWN),
    (caused(RuntimeError("wrapped"), HttpResponseError(503, "ServerBusy")), UNKNOWN),
    (caused(RuntimeError("wrapped"), HttpResponseError(403, "AuthorizationFailure")), REFUSED),
    (HttpResponseError(404, "ContainerNotFound"), REFUSED),
    (HttpResponseError(400, "InvalidBlockList"), UNKNOWN),  # another create dropped the blocks
    (HttpResponseError(400, "InvalidHeaderValue"), REFUSED),
    (HttpResponseError(500), UNKNOWN),
    (ClientAuthenticationError("no token"), REFUSED),
    (ServiceRequestError("no route"), UNKNOWN),
]


def outcome_of(store):
    try:
        return EXISTS if store.create("k", b"x") is CreateOutcome.EXISTS else "created"
    except OutcomeUnknownError as error:
        assert error.code is ErrorCode.REPLOG_STORE_OUTCOME_UNKNOWN
        return UNKNOWN
    except ReplogError as error:
        assert error.code is ErrorCode.REPLOG_STORE_REFUSED
        return REFUSED


@pytest.mark.parametrize(
    ("cls", "url", "error", "expected"),
    [(GcsStore, "gs://b/r", *case) for case in GCS] + [(AzureStore, "abfs://c/r", *case) for case in AZURE],
    ids=lambda value: repr(value) if isinstance(value, Exception) else str(value),
)
def test_failed_creates(cls, url, error, expected):
    store, file_system = store_over(cls, url)
    file_system.answers = [error]
    assert outcome_of(store) == expected
    # Who may create and not overwrite is forbidden a taken name: the store looks whether it is one.
    look = ["cat_file"] if "Forbidden" in str(error) or status_of(error) == 403 else []
    assert [verb for verb, _, _ in file_system.calls] == ["pipe_file", *look]


@pytest.mark.parametrize(
    ("cls", "url", "error"),
    [
        (GcsStore, "gs://b/r", OSError("Forbidden: b/x\nno")),
        (GcsStore, "gs://b/r", HttpError(403)),
        (AzureStore, "abfs://c/r", HttpResponseError(403, "AuthorizationPermissionMismatch")),
    ],
)
def test_a_taken_name_that_is_forbidden_is_taken(cls, url, error):
    store, file_system = store_over(cls, url)
    assert store.create("k", b"1") is CreateOutcome.CREATED
    file_system.answers = [error]
    assert outcome_of(store) == EXISTS
    file_system.answers = [error, error]
    assert outcome_of(store) == REFUSED
    assert bytes(store.get("k")) == b"1"


@pytest.mark.parametrize(("cls", "url"), [(GcsStore, "gs://b/r"), (AzureStore, "abfs://c/r")])
class TestBothClouds:
    def test_verbs(self, cls, url):
        store, file_system = store_over(cls, url)
        assert store.create("f/a", [b"01", b"23"]) is CreateOutcome.CREATED
        assert store.create("f/a", b"x") is CreateOutcome.EXISTS
        assert store.get("f/a", start=1, size_bytes=2) == b"12"
        assert store.get("f/b") is None
        assert [(info.key, info.size_bytes) for info in store.list_keys("f/")] == [("f/a", 4)]
        store.delete("f/a")
        store.delete("f/a")
        root = url.partition("://")[2]
        assert {path for _, path, _ in file_system.calls} == {f"{root}/f/a", f"{root}/f/b", f"{root}/f"}

    def test_own_write_after_a_lost_answer(self, cls, url):
        store, file_system = store_over(cls, url)
        real = file_system.pipe_file
        lost = [True]

        def pipe_file(path, value, **how):
            real(path, value, **how)
            if lost.pop() if lost else False:
                raise ConnectionResetError

        file_system.pipe_file = pipe_file
        retrying = RetryingStore(store, deadline_ms=1000)
        assert retrying.create("a", b"mine") is CreateOutcome.CREATED
        assert retrying.create("a", b"other") is CreateOutcome.EXISTS

    def test_reads(self, cls, url):
        store, file_system = store_over(cls, url)
        file_system.answers = [HttpError(416)]
        assert store.get("a", start=10) == b""
        for error, code in [
            (HttpError(503), ErrorCode.REPLOG_STORE_UNAVAILABLE),
            (HttpError(403), ErrorCode.REPLOG_STORE_REFUSED),
            (ConnectionResetError(), ErrorCode.REPLOG_STORE_UNAVAILABLE),
        ]:
            for call in (
                lambda: store.get("a"),
                lambda: list(store.list_keys("a")),
                lambda: store.delete("a"),
            ):
                file_system.answers = [error]
                with pytest.raises(RetriableError) as raised:
                    call()
                assert raised.value.code is code

    def test_a_listing_holds_no_folder_marker_and_no_other_name(self, cls, url):
        store, file_system = store_over(cls, url)
        root = url.partition("://")[2]
        file_system.objects = {f"{root}/f/{name}": b"x" for name in ("b2", "a", "b", "b1", "")}
        assert [info.key for info in store.list_keys("f/b")] == ["f/b", "f/b1", "f/b2"]
        assert [info.key for info in store.list_keys("f/")] == ["f/a", "f/b", "f/b1", "f/b2"]

    def test_too_large_for_one_request(self, cls, url, monkeypatch):
        store, file_system = store_over(cls, url)
        monkeypatch.setattr(cls, "size_bytes_max", 9)
        with pytest.raises(ReplogError, match=r"max\.request\.size"):
            store.create("a", bytes(store.size_bytes_max + 1))
        assert file_system.calls == []


def test_status_is_found_behind_any_number_of_wrappers():
    boto = Exception()
    boto.response = {"ResponseMetadata": {"HTTPStatusCode": 412}, "Error": {"Code": "PreconditionFailed"}}
    wrapped = caused(RuntimeError("a"), caused(OSError("b"), boto))
    assert (status_of(wrapped), error_code_of(wrapped)) == (412, "PreconditionFailed")
    aiohttp = Exception()
    aiohttp.status = 503
    assert status_of(aiohttp) == 503
    assert status_of(OSError(5, "x")) is None and error_code_of(OSError(5, "x")) == ""
    unchained = OSError("raised while another was handled")
    unchained.__context__ = boto
    assert status_of(unchained) == 412
    loop = RuntimeError("a")
    loop.__cause__ = loop
    assert status_of(loop) is None


def test_an_answer_that_was_cut_is_no_status_of_the_server():
    """aiohttp raises its own 400 for it, which would count as a refusal and never be repeated."""
    cut = caused(ClientPayloadError("not completed"), ContentLengthError("Not enough data"))
    assert cut.__cause__.code == 400 and status_of(cut) is None
    store, file_system = store_over(S3Store, "s3://b/r")
    file_system.objects["b/r/a"] = b"whole"
    file_system.answers = [cut]
    assert RetryingStore(store, deadline_ms=1_000, clock=ManualClock()).get("a") == b"whole"


def test_options_in_text_are_numbers_by_their_names_and_secrets_stay_text():
    secrets = {"secret": "[x9!", "password": "{y", "account_key": "False", "client_secret": "[]", "username": "true"}
    given = {
        **secrets,
        "token": '{"type": "service_account"}',
        "read_timeout": "7",
        "default_block_size": "1048576",
        "requests_timeout": "2.5",
        "key": "0123",
        "ssl": "no",
    }
    options = FsspecStore("s3://b/r", given)._file_system_options()
    expected = {"read_timeout": 7, "default_block_size": 1 << 20, "requests_timeout": 2.5, "key": "0123", "ssl": "no"}
    account = {"type": "service_account"}
    assert options == {**secrets, **expected, "token": account, "use_listings_cache": False}


def test_clients_are_made_to_try_once_and_not_to_wait_for_minutes():
    gcs = GcsStore("gs://b/r", {"token": "anon", "requests_timeout": "3"}).file_system()
    assert type(gcs).__module__ == "gcsfs.core" and gcs.requests_timeout.total == 3
    assert GcsStore("gs://b/r", {"token": "anon"}).file_system().requests_timeout.sock_read == 10
    text = "DefaultEndpointsProtocol=http;AccountName=a;AccountKey=a2V5;BlobEndpoint=http://127.0.0.1:9/a;"
    config = (
        AzureStore("abfs://c/r", {"connection_string": text, "read_timeout": "4"}).file_system().service_client._config
    )
    assert config.retry_policy.total_retries == 0
    connection = config.transport.connection_config
    assert (connection.timeout, connection.read_timeout) == (5, 4)


class NoCredentialsError(Exception):
    """As botocore, raised before any request."""


@pytest.mark.parametrize("handled", [HttpResponseError(404), caused(OSError("gone"), HttpResponseError(404))])
def test_what_the_caller_is_handling_is_no_answer_to_its_call(handled):
    store, file_system = store_over(S3Store, "s3://b/r")
    timed_out = TimeoutError("read timed out")
    for call in (lambda: store.get("a"), lambda: list(store.list_keys("a")), lambda: store.delete("a")):
        with pytest.raises(RetriableError) as raised:
            try:
                raise handled
            except Exception:
                file_system.answers = [caused(OSError("no answer"), timed_out)]
                call()
        assert raised.value.code is ErrorCode.REPLOG_STORE_UNAVAILABLE
        assert "no answer" in str(raised.value) and "404" not in str(raised.value)
    with pytest.raises(OutcomeUnknownError):
        try:
            raise handled
        except Exception:
            file_system.answers = [timed_out]
            store.create("a", b"x")


def test_a_second_attempt_is_judged_by_its_own_answer():
    store, file_system = store_over(S3Store, "s3://b/r")
    retrying = RetryingStore(store, deadline_ms=1_000, clock=ManualClock())
    file_system.answers = [HttpResponseError(503), FileNotFoundError("a")]
    assert retrying.get("a") is None
    file_system.answers = [HttpResponseError(503), NoCredentialsError("Unable to locate credentials")]
    with pytest.raises(RetriableError, match=r"REPLOG_STORE_REFUSED.*no answer, NoCredentials"):
        retrying.get("a")


def test_a_write_without_credentials_is_refused_at_once():
    store, file_system = store_over(S3Store, "s3://b/r")
    file_system.answers = [caused(OSError("x"), NoCredentialsError("Unable to locate credentials"))]
    assert outcome_of(store) == REFUSED


READS = (
    lambda store: store.get("a"),
    lambda store: store.get("a", size_bytes=0),
    lambda store: list(store.list_keys("a")),
    lambda store: store.delete("a"),
)


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize(("cls", "url"), [(GcsStore, "gs://b/r"), (AzureStore, "abfs://c/r"), (S3Store, "s3://b/r")])
def test_a_file_that_the_client_misses_is_no_absent_object(cls, url, read):
    store, file_system = store_over(cls, url)
    file_system.answers = [FileNotFoundError(errno.ENOENT, "No such file or directory", "/run/secrets/token")]
    with pytest.raises(RetriableError, match=r"/run/secrets/token.*Check credentials") as raised:
        read(store)
    assert raised.value.code is ErrorCode.REPLOG_STORE_REFUSED


@pytest.mark.parametrize("read", READS)
def test_without_the_file_of_its_token_an_s3_client_finds_nothing_absent(tmp_path, monkeypatch, read):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_DEFAULT_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/reader")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "token"))
    store = S3Store("s3://bucket/root", {"endpoint_url": "http://127.0.0.1:9"})
    with pytest.raises(RetriableError, match=r"REPLOG_STORE_REFUSED.*token"):
        read(store)


def test_a_404_of_the_service_that_gives_credentials_is_no_absent_object():
    store, file_system = store_over(S3Store, "s3://b/r")
    for code, answer in (("ResourceNotFoundException", RetriableError), ("NoSuchKey", None)):
        boto = Exception()
        boto.response = {"ResponseMetadata": {"HTTPStatusCode": 404}, "Error": {"Code": code}}
        file_system.answers = [caused(OSError("said so"), boto)]
        if answer is None:
            assert store.get("a") is None
        else:
            with pytest.raises(answer, match="REPLOG_STORE_REFUSED"):
                store.get("a")


@pytest.mark.parametrize("read", READS)
def test_a_404_of_a_proxy_before_azure_is_no_absent_object(read):
    store, file_system = store_over(AzureStore, "abfs://c/r")
    for error in (
        HttpResponseError(404),
        caused(FileNotFoundError(errno.ENOENT, "gone", "c/r/a"), HttpResponseError(404)),
    ):
        file_system.answers = [error]
        with pytest.raises(RetriableError) as raised:
            read(store)
        assert raised.value.code is ErrorCode.REPLOG_STORE_UNAVAILABLE
        file_system.answers = [error]
        assert outcome_of(store) == UNKNOWN
    file_system.answers = [
        caused(FileNotFoundError(errno.ENOENT, "gone", "c/r/a"), HttpResponseError(404, "BlobNotFound"))
    ]
    assert not read(store)


@pytest.fixture
def gcs_that_answers_404():
    """A store before which each request is answered 404 with the body and the headers that the test sets."""

    class Handler(BaseHTTPRequestHandler):
        def _answer(self):
            self.rfile.read(int(self.headers.get("content-length", 0)))
            self.send_response(404)
            for name, value in self.server.answer_headers.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(self.server.answer_body)))
            self.end_headers()
            self.wfile.write(self.server.answer_body)

        do_GET = do_POST = do_DELETE = _answer

        def log_message(self, *args):
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.answer_body, server.answer_headers = b"", {}
        threading.Thread(target=server.serve_forever, daemon=True).start()
        end = f"http://127.0.0.1:{server.server_port}"
        yield GcsStore("gs://b/r", {"token": "anon", "project": "p", "endpoint_url": end}), server
        server.shutdown()


@pytest.mark.parametrize("read", READS)
def test_a_404_of_a_proxy_before_gcs_is_no_absent_object(gcs_that_answers_404, read):
    store, server = gcs_that_answers_404
    for body in (
        b"default backend - 404",
        b"<html>404 Not Found</html>",
        b"",
        b"[]",
        b'{"error": "Not Found"}',
        b"\xff",
    ):
        server.answer_body = body
        with pytest.raises(RetriableError) as raised:
            read(store)
        assert raised.value.code is ErrorCode.REPLOG_STORE_UNAVAILABLE
        assert outcome_of(store) == UNKNOWN


@pytest.mark.parametrize("read", READS)
def test_the_bare_words_not_found_are_not_those_of_googles_service(gcs_that_answers_404, monkeypatch, read):
    _, server = gcs_that_answers_404
    find = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *args, **more: find("127.0.0.1", *args, **more))
    end = f"http://storage.googleapis.com:{server.server_port}"
    store = GcsStore("gs://b/r", {"token": "anon", "project": "p", "endpoint_url": end})
    server.answer_body = b"Not Found"
    with pytest.raises(RetriableError) as raised:
        read(store)
    assert raised.value.code is ErrorCode.REPLOG_STORE_UNAVAILABLE
    server.answer_headers = {"X-GUploader-UploadID": "x"}
    assert read(store) in (None, [])
    server.answer_body, server.answer_headers = b"No such object: b/r/a", {}
    assert read(store) in (None, [])


def test_a_404_of_gcs_or_an_emulator_is_an_absent_object(gcs_that_answers_404):
    store, server = gcs_that_answers_404
    for body, headers in (
        (b"No such object: b/r/a", {}),
        (b"Not Found\n", {}),
        (b'{"error": {"code": 404, "message": "Not Found"}}', {}),
        (b"in other words", {"X-GUploader-UploadID": "x"}),
    ):
        server.answer_body, server.answer_headers = body, headers
        assert [read(store) for read in READS] == [None, None, [], None]
        assert outcome_of(store) == REFUSED


def test_a_token_of_gcs_is_in_no_error_and_no_traceback(monkeypatch):
    def get(url, params, timeout):
        raise requests.ConnectionError(
            f"Max retries exceeded with url: /tokeninfo?access_token={params['access_token']} x"
        )

    monkeypatch.setattr("gcsfs.credentials.requests.get", get)
    store = GcsStore("gs://b/r", {"token": "ya29.token"})
    for call in (lambda: store.get("a"), lambda: store.create("a", b"x")):
        with pytest.raises(ReplogError, match="tokeninfo x") as raised:
            call()
        assert "ya29" not in "".join(traceback.format_exception(raised.value))
