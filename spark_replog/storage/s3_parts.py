"""An S3 object created from parts by s3fs's client: conditional as a put is, and aborted if it fails."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from spark_replog.storage.client_errors import causes_of, status_of
from spark_replog.storage.parts import CLEAN_UP_SECONDS, NoPartsError, Part, sent

_NO_PARTS_STATUSES = frozenset({403, 405, 501})
"""Of the first request. 403: a bucket's policy may demand the put's condition of it, which it cannot have."""


async def create_in_parts(client: Any, path: str, parts: Sequence[Part]) -> None:
    """Create an object from parts if its name is free; nothing of it is visible before that.

    Args:
        client: s3fs's.
        path: bucket and key.

    Raises:
        NoPartsError: there is no upload in parts here, or none with a condition. Nothing is left.
        Exception: the client's. An error before the last request means that nothing was created; one of the last
            request is judged as that of a put is.
    """
    bucket, key, _ = client.split_path(path)
    where = {"Bucket": bucket, "Key": key}
    try:
        begun = await client._call_s3("create_multipart_upload", **where)
    except Exception as error:
        if status_of(error) in _NO_PARTS_STATUSES:
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
