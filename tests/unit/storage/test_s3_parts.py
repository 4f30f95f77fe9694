"""What an upload in parts asks of S3, and after which errors it is aborted."""

from __future__ import annotations

import asyncio

import pytest

from spark_replog.storage import s3_store
from spark_replog.storage.parts import NoPartsError, parts_of
from spark_replog.storage.s3_store import S3Store

BEGIN, PART, END, ABORT = (
    f"{verb}_multipart_upload" if verb else "upload_part" for verb in ("create", "", "complete", "abort")
)


class ReadTimeoutError(Exception):
    """As botocore's."""


class Answered(OSError):
    """As botocore's ClientError."""

    def __init__(self, status):
        super().__init__(f"status {status}")
        self.response = {"ResponseMetadata": {"HTTPStatusCode": status}, "Error": {"Code": "Code"}}


class FakeS3:
    """Answers each method from a dict: what to return, an exception to raise, or a function to await."""

    def __init__(self, **answers):
        self.answers = {BEGIN: {"UploadId": "u"}, PART: {"ETag": "e"}, END: {"ETag": "whole"}, ABORT: {}, **answers}
        self.calls = []

    def split_path(self, path):
        return *path.split("/", 1), None

    async def _call_s3(self, method, **given):
        self.calls.append((method, given))
        answer = self.answers[method]
        if isinstance(answer, Exception):
            raise answer
        return await answer() if callable(answer) else answer

    def methods(self):
        return [method for method, _ in self.calls]


def create(client):
    asyncio.run(S3Store("s3://bucket", {}).create_in_parts(client, "bucket/a/b", parts_of([b"abcdef"], 4)))


def test_the_last_request_lists_all_parts_in_order_with_the_condition():
    client = FakeS3()
    create(client)
    assert client.methods() == [BEGIN, PART, PART, END]
    where = {"Bucket": "bucket", "Key": "a/b"}
    listed = [{"PartNumber": 1, "ETag": "e"}, {"PartNumber": 2, "ETag": "e"}]
    assert client.calls[0][1] == where
    assert [arguments["Body"] for _, arguments in client.calls[1:3]] == [b"abcd", b"ef"]
    assert client.calls[3][1] == {**where, "UploadId": "u", "MultipartUpload": {"Parts": listed}, "IfNoneMatch": "*"}


@pytest.mark.parametrize(("algorithm", "is_listed"), [("SHA256", True), ("CRC32", False), (None, False)])
def test_the_checksum_that_an_upload_was_begun_with_is_listed(algorithm, is_listed):
    begun = {"UploadId": "u"} if algorithm is None else {"UploadId": "u", "ChecksumAlgorithm": algorithm}
    client = FakeS3(**{BEGIN: begun, PART: {"ETag": "e", "ChecksumSHA256": "s"}})
    create(client)
    assert [("ChecksumSHA256" in part) for part in client.calls[3][1]["MultipartUpload"]["Parts"]] == [is_listed] * 2


@pytest.mark.parametrize(
    ("method", "error", "is_aborted"),
    [
        (BEGIN, Answered(500), False),
        (PART, Answered(500), True),
        (PART, ReadTimeoutError(), True),
        (END, Answered(500), True),
        (END, Answered(412), True),
        (END, ConnectionResetError(), True),
        (END, Answered(504), False),  # the service may be joining the parts still
        (END, ReadTimeoutError(), False),
    ],
    ids=str,
)
def test_an_upload_is_aborted_unless_it_may_still_be_completed(method, error, is_aborted):
    client = FakeS3(**{method: error})
    with pytest.raises(type(error) if is_aborted or method == BEGIN else OSError):
        create(client)
    assert client.methods().count(ABORT) == is_aborted


@pytest.mark.parametrize("abort", [OSError("the abort's"), asyncio.Event().wait], ids=["fails", "hangs"])
def test_an_abort_that_fails_or_hangs_does_not_hide_the_first_error(monkeypatch, abort):
    monkeypatch.setattr(s3_store, "CLEAN_UP_SECONDS", 0.01)
    client = FakeS3(**{END: Answered(403), ABORT: abort})
    with pytest.raises(Answered, match="status 403"):
        create(client)
    assert client.methods()[-1] == ABORT


@pytest.mark.parametrize(
    ("method", "status", "expected"),
    [
        (BEGIN, 403, NoPartsError), (BEGIN, 405, NoPartsError), (BEGIN, 501, NoPartsError), (BEGIN, 404, Answered),
        (PART, 403, Answered), (PART, 501, NoPartsError), (END, 501, NoPartsError), (END, 405, Answered),
    ],
)  # fmt: skip
def test_which_answers_mean_that_there_are_no_parts(method, status, expected):
    with pytest.raises(expected):
        create(FakeS3(**{method: Answered(status)}))
