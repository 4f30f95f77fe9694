"""Object store over S3 and services that speak its language, and the uploads in parts of large objects."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar

from spark_replog.storage.client_errors import causes_of, error_code_of, is_of_proxy, status_of
from spark_replog.storage.fsspec_store import CONNECT_SECONDS, READ_SECONDS, FsspecStore
from spark_replog.storage.parts import CLEAN_UP_SECONDS, NO_PARTS_STATUSES, NoPartsError, Part, sent

_CONFIG: dict[str, Any] = {
    "connect_timeout": CONNECT_SECONDS,
    "read_timeout": READ_SECONDS,
    "retries": {"total_max_attempts": 1},
    "max_pool_connections": 64,
}
_UNDECIDED_CODES = frozenset({"RequestTimeout", "NoSuchUpload", "InvalidPart"})
"""RequestTimeout (400): the connection stalled; the request itself is valid. The others: a lifecycle rule or another
program dropped the upload or a part of it; a new upload may succeed."""


class S3Store(FsspecStore):
    """An ObjectStore over a bucket, or a prefix in one: ``s3://bucket/prefix``."""

    protocol: ClassVar[str] = "s3"
    extra: ClassVar[str] = "s3"
    classes: ClassVar[frozenset[str]] = frozenset({"s3fs.core.S3FileSystem"})
    has_parts: ClassVar[bool] = True

    def _file_system_options(self) -> dict[str, Any]:
        options = super()._file_system_options()
        options["config_kwargs"] = {**_CONFIG, **options.get("config_kwargs", {})}
        return options

    def _prepared(self, file_system: Any) -> Any:
        file_system.retries = 1
        return file_system

    async def create_in_parts(self, client: Any, path: str, parts: Sequence[Part]) -> None:
        """As ``FsspecStore.create_in_parts``."""
        bucket, key, _ = client.split_path(path)
        where = {"Bucket": bucket, "Key": key}
        try:
            begun = await client._call_s3("create_multipart_upload", **where)
        except Exception as error:
            if status_of(error) in NO_PARTS_STATUSES:
                raise NoPartsError from error
            raise
        upload = {**where, "UploadId": begun["UploadId"]}
        try:
            listed = await sent(parts, partial(_send_part, client, upload, f"Checksum{begun.get('ChecksumAlgorithm')}"))
            await _complete(client, upload, listed)
        except BaseException as error:
            await _abort(client, upload, error)
            if status_of(error) == 501:
                raise NoPartsError from error
            raise

    def _listed(self, prefix: str, after: str) -> Iterable[tuple[str, int]]:
        client, (bucket, start) = self.file_system(), self._bucket_and_start(prefix)
        more = {"StartAfter": self._bucket_and_start(after)[1]} if after else {}
        while True:
            page = client.call_s3("list_objects_v2", Bucket=bucket, Prefix=start, **more)
            yield from ((f"{bucket}/{entry['Key']}", entry["Size"]) for entry in page.get("Contents", ()))
            if not page.get("IsTruncated"):
                return
            more = {"ContinuationToken": page["NextContinuationToken"]}

    def _is_absent(self, error: Exception, status: int | None) -> bool:
        # A proxy before the bucket and a service that gives credentials answer 404 too, in other words.
        return super()._is_absent(error, status) and (status is None or error_code_of(error) == "NoSuchKey")

    def _is_refused(self, error: Exception, status: int | None) -> bool:
        if error_code_of(error) in _UNDECIDED_CODES or is_of_proxy(error, status):
            return False
        return super()._is_refused(error, status)


async def _send_part(client: Any, upload: Mapping[str, str], checksum: str, number: int, body: bytes) -> dict[str, Any]:
    """Return the part as the last request lists it.

    Args:
        checksum: an upload that was begun with one (an option of the client) wants it again in that list, of each part.
            One that was begun without is refused for it by versitygw. Parts have a checksum of their own, as puts have.
    """
    answer = await client._call_s3("upload_part", **upload, PartNumber=number + 1, Body=body)
    listed = {"PartNumber": number + 1, "ETag": answer["ETag"]}
    return {**listed, checksum: answer[checksum]} if checksum in answer else listed


async def _complete(client: Any, upload: Mapping[str, str], listed: Sequence[Mapping[str, Any]]) -> None:
    try:
        answer = await client._call_s3(
            "complete_multipart_upload", **upload, MultipartUpload={"Parts": listed}, IfNoneMatch="*"
        )
    except Exception as error:
        is_late = any(type(cause).__name__ == "ReadTimeoutError" for cause in causes_of(error))
        if is_late or status_of(error) == 504:
            raise _MayStillCompleteError(str(error)) from error
        raise
    if not answer.get("ETag"):  # the service begins its answer with 200 before it knows the outcome
        raise OSError("the answer to the last request of an upload in parts names no object")


class _MayStillCompleteError(OSError):
    """The service may be joining the parts still. An abort could undo that, and each repeat would meet the same."""


async def _abort(client: Any, upload: Mapping[str, str], error: BaseException) -> None:
    """Let the service drop the parts, as far as it answers soon: the caller raises the error that led here."""
    if isinstance(error, _MayStillCompleteError):
        return
    with suppress(Exception):
        await asyncio.wait_for(client._call_s3("abort_multipart_upload", **upload), CLEAN_UP_SECONDS)
