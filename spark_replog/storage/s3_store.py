"""Object store over S3 and services that speak its language."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from spark_replog.storage.client_errors import error_code_of, is_of_proxy
from spark_replog.storage.fsspec_store import CONNECT_SECONDS, READ_SECONDS, FsspecStore
from spark_replog.storage.parts import Part
from spark_replog.storage.s3_parts import create_in_parts

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

    async def _create_from(self, client: Any, path: str, parts: Sequence[Part]) -> None:
        await create_in_parts(client, path, parts)

    def _listed(self, prefix: str, after: str) -> Iterable[tuple[str, int]]:
        client, (bucket, start) = self.file_system(), self._bucket_and_start(prefix)
        more = {"StartAfter": self._bucket_and_start(after)[1]} if after else {}
        while True:
            page = client.call_s3("list_objects_v2", Bucket=bucket, Prefix=start, **more)
            yield from ((f"{bucket}/{each['Key']}", each["Size"]) for each in page.get("Contents", ()))
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
