"""Azure Blob Storage through adlfs: Put Blob with ``If-None-Match: *``."""

from __future__ import annotations

from typing import ClassVar

from spark_replog.storage.fsspec_store import FsspecStore, error_code_of


class AzureStore(FsspecStore):
    """An ObjectStore over a container, or a prefix in one: ``abfs://container/prefix``."""

    protocol: ClassVar[str] = "abfs"
    extra: ClassVar[str] = "azure"
    classes: ClassVar[frozenset[str]] = frozenset({"adlfs.spec.AzureBlobFileSystem"})
    # azure-storage-blob: one Put Blob up to max_single_put_size, 64 MiB.
    size_bytes_max: ClassVar[int] = 64 * (1 << 20) - 1

    def _is_existing(self, error: Exception, status: int | None) -> bool:
        # Azure says 409 for a taken name, and for other conflicts under other codes.
        if status == 409:
            code = error_code_of(error)
            return code == "BlobAlreadyExists" or (not code and isinstance(error, FileExistsError))
        return super()._is_existing(error, status)


__all__ = ["AzureStore"]
