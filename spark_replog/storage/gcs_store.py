"""Object store over Google Cloud Storage, and which 404 is the service's own."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable
from typing import Any, ClassVar

from spark_replog.storage.fsspec_store import CONNECT_SECONDS, READ_SECONDS, FsspecStore


class GcsStore(FsspecStore):
    """An ObjectStore over a bucket, or a prefix in one: ``gs://bucket/prefix``."""

    protocol: ClassVar[str] = "gs"
    extra: ClassVar[str] = "gcs"
    classes: ClassVar[frozenset[str]] = frozenset(
        {"gcsfs.core.GCSFileSystem", "gcsfs.extended_gcsfs.ExtendedGcsFileSystem"}
    )
    is_taken_forbidden: ClassVar[bool] = True

    def file_system_class(self) -> Any:
        """As ``FsspecStore.file_system_class``: always the plain class.

        The extended class first asks a gRPC control service for each bucket's kind. That needs another permission,
        and an endpoint without this service costs a wait until the timeout.
        """
        return next(cls for cls in super().file_system_class().__mro__ if cls.__module__ == "gcsfs.core")

    def _file_system_options(self) -> dict[str, Any]:
        options = super()._file_system_options()
        import aiohttp

        given = options.get("requests_timeout")
        if given is None:  # gcsfs's own default is five minutes
            given = aiohttp.ClientTimeout(total=None, connect=CONNECT_SECONDS, sock_read=READ_SECONDS)
        elif isinstance(given, int | float):
            given = aiohttp.ClientTimeout(total=given)
        return {**options, "requests_timeout": given}

    def _prepared(self, file_system: Any) -> Any:
        # gcsfs tries six times within one call, with half a minute of pauses.
        once = getattr(type(file_system)._request, "__wrapped__", None)
        if once is not None:
            file_system._request = functools.partial(once, file_system)
        import aiohttp

        # gcsfs drops the body of each 404, so it must be judged before gcsfs sees the answer.
        trace = aiohttp.TraceConfig()
        trace.on_request_end.append(_check_404_of_gcs)
        given = file_system.session_kwargs
        file_system.session_kwargs = {**given, "trace_configs": [*given.get("trace_configs", ()), trace]}
        return file_system

    def _listed(self, prefix: str, after: str) -> Iterable[tuple[str, int]]:
        client, (bucket, start) = self.file_system(), self._bucket_and_start(prefix)
        more: dict[str, str] = {}
        while True:
            page = client.call("GET", "b/{}/o", bucket, prefix=start, json_out=True, **more)
            yield from ((f"{bucket}/{blob['name']}", int(blob["size"])) for blob in page.get("items", ()))
            if "nextPageToken" not in page:
                return
            more = {"pageToken": page["nextPageToken"]}

    # gcsfs turns 403 and some 400 answers into plain errors without a response.
    def _is_forbidden(self, error: Exception, status: int | None) -> bool:
        return super()._is_forbidden(error, status) or (status is None and str(error).startswith("Forbidden"))

    def _is_refused(self, error: Exception, status: int | None) -> bool:
        told = status is None and str(error).startswith("Bad Request")
        return told or self._is_forbidden(error, status) or super()._is_refused(error, status)


async def _check_404_of_gcs(_session: Any, _context: Any, ended: Any) -> None:
    """Raise an error without a status if a 404 comes from a proxy before GCS: the object was not looked for."""
    answer = ended.response
    if answer.status != 404 or "x-guploader-uploadid" in answer.headers:
        return
    body = await answer.read()
    if not _is_404_of_gcs(body, answer.url.host or ""):
        raise OSError(f"a 404 that is not the service's: {body[:100].decode(errors='replace')}")


def _is_404_of_gcs(body: bytes, host: str) -> bool:
    """Return whether GCS or an emulator of it says 404 in these words: JSON, but plain text to a download.

    "Not Found" is what fake-gcs-server says to a download. Google says "No such object", and has its header there.
    """
    if body.startswith(b"No such object"):
        return True
    if body.strip() == b"Not Found":
        return not host.endswith("googleapis.com")
    try:
        return isinstance(json.loads(body)["error"], dict)
    except (ValueError, LookupError, TypeError):
        return False
