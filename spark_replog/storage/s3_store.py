"""S3 and what speaks its protocol, through s3fs: PutObject with ``If-None-Match: *``."""

from __future__ import annotations

from typing import Any, ClassVar

from spark_replog.errors import ErrorCode, RetriableError
from spark_replog.storage.fsspec_store import FsspecStore, error_code_of

_MIB = 1 << 20
_CONFIG: dict[str, Any] = {
    # Our own loop repeats, with a deadline; a client that waits and repeats as well only hides time.
    "connect_timeout": 5,
    "read_timeout": 10,
    "retries": {"total_max_attempts": 1},
    "max_pool_connections": 32,
}


class S3Store(FsspecStore):
    """An ObjectStore over a bucket, or a prefix in one: ``s3://bucket/prefix``."""

    protocol: ClassVar[str] = "s3"
    extra: ClassVar[str] = "s3"
    classes: ClassVar[frozenset[str]] = frozenset({"s3fs.core.S3FileSystem"})
    # s3fs: one PUT below twice its chunk size of 50 MiB.
    size_bytes_max: ClassVar[int] = 2 * 50 * _MIB - 1

    def _file_system_options(self) -> dict[str, Any]:
        options = super()._file_system_options()
        options["config_kwargs"] = {**_CONFIG, **options.get("config_kwargs", {})}
        return options

    def _prepared(self, file_system: Any) -> Any:
        file_system.retries = 1
        return file_system

    def _is_absent(self, error: Exception, status: int | None) -> bool:
        if error_code_of(error) == "NoSuchBucket":
            raise RetriableError(
                ErrorCode.REPLOG_ROOT_STALE, "the bucket does not exist. Check its name.", url=self.url
            ) from error
        return super()._is_absent(error, status)

    def _is_refused(self, error: Exception, status: int | None) -> bool:
        # 400 RequestTimeout: the connection stalled, nothing is wrong with the request.
        return super()._is_refused(error, status) and error_code_of(error) != "RequestTimeout"


__all__ = ["S3Store"]
