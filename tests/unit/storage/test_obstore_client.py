"""Which options mean the same to obstore, and which client a root gets."""

from __future__ import annotations

import os
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from spark_replog.errors import ErrorCode, InvalidConfigError, RetriableError
from spark_replog.storage import obstore_client
from spark_replog.storage.obstore_client import ObstoreError, ObstoreSettings, settings_of
from spark_replog.storage.open_store import open_store

KEY = {"key": "k", "secret": "s"}
S3 = {**KEY, "endpoint_url": "http://h:1"}
AZURE = "DefaultEndpointsProtocol=http;AccountName=a;AccountKey=a2V5;BlobEndpoint=http://127.0.0.1:9/a;"


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name in [name for name in os.environ if name.startswith(("AWS_", "AZURE_"))]:
        monkeypatch.delenv(name)


def why_not(url, options, *, is_forced=False):
    found = settings_of(url, options, is_forced=is_forced)
    return "" if isinstance(found, ObstoreSettings) else found


@pytest.mark.parametrize(
    ("url", "options", "expected"),
    [
        ("s3://b/r", S3, ""),
        ("s3://b/r", {**S3, "client": "auto"}, ""),
        ("s3://b", {**KEY, "token": "t", "client_kwargs": '{"region_name": "eu-west-1"}'}, ""),
        ("s3://b", {"anon": "true", "endpoint_url": "https://h"}, ""),
        ("s3://b", {**S3, "config_kwargs": '{"read_timeout": 1, "connect_timeout": 2}'}, ""),
        ("s3://b", KEY, "neither a region nor an endpoint"),
        ("s3://b", {"endpoint_url": "http://h:1"}, "no key and secret"),
        ("s3://b", {"key": "k", "endpoint_url": "http://h:1"}, "no key and secret"),
        ("s3://b", {**S3, "profile": "p", "ssl": "no"}, "no option like profile, ssl"),
        ("s3://b", {**S3, "client_kwargs": '{"verify": false}'}, "no option like client_kwargs.verify"),
        ("s3://b", {**S3, "config_kwargs": '{"proxies": {}}'}, "no option like config_kwargs.proxies"),
        ("s3://b", {**S3, "client_kwargs": "eu-west-1"}, "does not take these options"),
        ("s3://b", {**S3, "endpoint_url": "h:1"}, "does not take these options"),
        ("s3://b", {**S3, "endpoint_url": "http://h:1AAA"}, "does not take these options"),
        ("abfs://c/r", {"connection_string": AZURE}, ""),
        ("abfs://c/r", {"account_name": "a", "account_key": "a2V5", "read_timeout": "3"}, ""),
        ("abfs://c@a.dfs.core.windows.net/r", {"account_key": "a2V5"}, ""),
        ("abfs://c/r", {"account_name": "a"}, "no account and key"),
        ("abfs://c/r", {"account_name": "a", "sas_token": "x"}, "no option like sas_token"),
        ("abfs://c/r", {"connection_string": f"{AZURE}SharedAccessSignature=x"}, "no option like connection_string.Sh"),
        ("abfs://c/r", {"connection_string": "AccountName=a"}, "does not take these options"),
        ("gs://b/r", {"token": "anon"}, "not proven for gs"),
        ("webhdfs://h:1/r", {}, "not proven for webhdfs"),
    ],
)
def test_options_that_mean_the_same(url, options, expected):
    found = why_not(url, options)
    assert found.startswith(expected) or expected in found, found
    assert bool(found) is bool(expected)


def test_what_the_environment_says_counts(monkeypatch):
    end = {"endpoint_url": "http://h:1"}
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "k")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    assert why_not("s3://b", end) == ""
    assert "no key and secret" in why_not("s3://b", {**end, "key": "k"})
    monkeypatch.setenv("AWS_PROFILE", "p")
    assert "no key and secret" in why_not("s3://b", end)
    assert why_not("s3://b", {**S3}) == ""
    monkeypatch.setenv("AWS_SESSION_TOKEN", "t")
    assert "AWS_SESSION_TOKEN" in why_not("s3://b", S3)
    assert why_not("s3://b", {**S3, "token": "mine"}) == ""
    monkeypatch.setenv("AWS_ENDPOINT", "http://other")
    assert "reads AWS_ENDPOINT in its own way" in why_not("s3://b", {**S3, "token": "mine"})
    assert why_not("s3://b", {}, is_forced=True) == ""  # its own search, asked for by name


def test_the_client_is_chosen_and_can_be_named():
    assert open_store("s3://b/r", S3).client_name() == "obstore"
    assert open_store("s3://b/r", {**S3, "ssl": "no"}).client_name() == "fsspec"
    assert open_store("s3://b/r", {**S3, "s3.client": "fsspec"}).client_name() == "fsspec"
    assert open_store("s3://b/r", {"client": "obstore"}).client_name() == "obstore"
    assert open_store("gs://b/r", {"token": "anon"}).client_name() == "fsspec"


@pytest.mark.parametrize(
    ("url", "options", "said"),
    [
        ("s3://b/r", {**S3, "client": "boto"}, "no client 'boto'. Write one of auto, fsspec, obstore"),
        ("s3://b/r", {**S3, "client": "obstore", "profile": "p"}, "no option like profile"),
        ("gs://b/r", {"client": "obstore"}, "not proven for gs://"),
    ],
)
def test_a_client_that_cannot_serve_a_root_is_refused(url, options, said):
    with pytest.raises(InvalidConfigError, match=re.escape(said)) as raised:
        open_store(url, options)
    assert raised.value.code is ErrorCode.REPLOG_INVALID_OPTION
    assert "secret" not in str(raised.value)


def test_without_the_package_fsspec_serves(monkeypatch):
    monkeypatch.setattr(obstore_client.importlib.util, "find_spec", lambda name: None)
    assert open_store("s3://b/r", S3).client_name() == "fsspec"
    with pytest.raises(InvalidConfigError, match=r"pip install 'spark-replog\[fast\]'"):
        open_store("s3://b/r", {**S3, "client": "obstore"})


def test_a_child_of_a_process_that_uses_it_has_fsspec(monkeypatch):
    store = open_store("s3://b/r", S3)
    monkeypatch.setattr(obstore_client, "_is_inherited", True)
    assert store.client_name() == "fsspec"
    assert type(store.file_system()).__name__ == "S3FileSystem"


class AlreadyExistsError(Exception):
    """As obstore's."""


class GenericError(Exception):
    """As obstore's."""


SAID = "Generic S3 error: Error performing GET http://h/b/x - Server returned non-2xx status code: "
TOLD = [
    (AlreadyExistsError(f"{SAID}412 Precondition Failed: <Code>PreconditionFailed</Code>"), 412, "PreconditionFailed"),
    (AlreadyExistsError(f"{SAID}409 Conflict: <Code>BlobAlreadyExists</Code>"), 409, "BlobAlreadyExists"),
    (AlreadyExistsError("said in another way"), 412, ""),
    (FileNotFoundError(f"{SAID}404 Not Found: <Code>NoSuchKey</Code>"), 404, "NoSuchKey"),
    (FileNotFoundError(f"{SAID}404 Not Found: <html>default backend</html>"), None, ""),
    (FileNotFoundError("Bulk delete request failed for key x: is not there. (code: 404)"), 404, ""),
    (FileNotFoundError("said in another way"), 404, ""),
    # A server of credentials answers so too: no word about the object.
    (GenericError(f"{SAID}404 Not Found"), None, ""),
    (GenericError(f"{SAID}412 Precondition Failed"), None, ""),
    (GenericError(f"{SAID}416 Range Not Satisfiable: <Code>InvalidRange</Code>"), 416, "InvalidRange"),
    (GenericError("Wanted range starting at 10, but object was only 10 bytes long"), 416, ""),
    (GenericError(f"{SAID}503 Slow Down\n\nDebug source:\nstatus code: 404"), 503, ""),
    (GenericError("HTTP error: error sending request"), None, ""),
]


@pytest.mark.parametrize(("error", "status", "code"), TOLD)
def test_answers_are_told_by_status_and_class(error, status, code):
    with pytest.raises(ObstoreError) as raised, obstore_client._translated():
        raise error
    assert (raised.value.status, raised.value.error_code) == (status, code)
    assert "Debug" not in str(raised.value)


def test_its_panics_are_errors_and_an_interrupt_is_none():
    panic = type("PanicException", (BaseException,), {})
    with pytest.raises(ObstoreError), obstore_client._translated():
        raise panic("unwrap")
    with pytest.raises(KeyboardInterrupt), obstore_client._translated():
        raise KeyboardInterrupt


class Bucket(BaseHTTPRequestHandler):
    """Lists two objects; no store makes a name like that of the second."""

    def do_GET(self):
        names = ("r/a/1", "r/a/x//y")
        listed = "".join(
            f"<Contents><Key>{each}</Key><LastModified>2020-01-01T00:00:00.000Z</LastModified><Size>7</Size></Contents>"
            for each in names
        )
        body = f"<ListBucketResult><Name>b</Name><IsTruncated>false</IsTruncated>{listed}</ListBucketResult>".encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        """Say nothing."""


@pytest.fixture
def bucket():
    with ThreadingHTTPServer(("127.0.0.1", 0), Bucket) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield {**KEY, "endpoint_url": f"http://127.0.0.1:{server.server_port}"}
        server.shutdown()


def test_an_object_of_others_with_two_slashes_does_not_hide_those_of_a_listing(bucket):
    store = open_store("s3://b/r", bucket)
    assert store.client_name() == "obstore"
    assert [(info.key, info.size_bytes) for info in store.list_keys("a/")] == [("a/1", 7), ("a/x//y", 7)]


@pytest.mark.parametrize("client", ["obstore", "auto"])
def test_where_only_obstore_lists_such_an_object_is_named_with_what_to_do(bucket, monkeypatch, client):
    def missing(protocol):
        raise ImportError("No module named 's3fs'")

    monkeypatch.setattr("fsspec.get_filesystem_class", missing)
    store = open_store("s3://b/r", {**bucket, "client": client})
    with pytest.raises(RetriableError, match=r"a/x//y.*delete it.*client=fsspec") as raised:
        list(store.list_keys("a/"))
    assert raised.value.code is ErrorCode.REPLOG_STORE_REFUSED
