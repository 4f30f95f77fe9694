"""Google Cloud Storage through gcsfs: ``ifGenerationMatch=0``."""

from __future__ import annotations

from typing import ClassVar

from spark_replog.storage.fsspec_store import FsspecStore


class GcsStore(FsspecStore):
    """An ObjectStore over a bucket, or a prefix in one: ``gs://bucket/prefix``."""

    protocol: ClassVar[str] = "gs"
    extra: ClassVar[str] = "gcs"
    classes: ClassVar[frozenset[str]] = frozenset(
        {"gcsfs.core.GCSFileSystem", "gcsfs.extended_gcsfs.ExtendedGcsFileSystem"}
    )
    # gcsfs: one request below its chunk size of 50 MiB.
    size_bytes_max: ClassVar[int] = 50 * (1 << 20) - 1

    def _is_refused(self, error: Exception, status: int | None) -> bool:
        # gcsfs turns 403 and some 400 into plain errors without their response.
        told = status is None and str(error).startswith(("Forbidden", "Bad Request"))
        return told or super()._is_refused(error, status)


__all__ = ["GcsStore"]
