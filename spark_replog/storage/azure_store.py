"""Object store over Azure Blob Storage, and the blocks of large blobs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import fsspec.asyn

from spark_replog.ids import new_id
from spark_replog.storage.client_errors import error_code_of, is_of_proxy, status_of
from spark_replog.storage.fsspec_store import CONNECT_SECONDS, READ_SECONDS, FsspecStore
from spark_replog.storage.parts import NO_PARTS_STATUSES, NoPartsError, Part, sent


class AzureStore(FsspecStore):
    """An ObjectStore over a container, or a prefix in one: ``abfs://container/prefix``."""

    protocol: ClassVar[str] = "abfs"
    extra: ClassVar[str] = "azure"
    classes: ClassVar[frozenset[str]] = frozenset({"adlfs.spec.AzureBlobFileSystem"})
    is_taken_forbidden: ClassVar[bool] = True
    has_parts: ClassVar[bool] = True

    def _prepared(self, file_system: Any) -> Any:
        # The SDK tries four times, 15 s or more apart, and waits 60 s. adlfs passes no retry settings on, and the
        # timeouts that it accepts do not apply to listings.
        config = file_system.service_client._config
        policy, connection = config.retry_policy, config.transport.connection_config
        policy.total_retries = policy.connect_retries = policy.read_retries = policy.status_retries = 0
        given = self._file_system_options()
        connection.timeout = given.get("connection_timeout", CONNECT_SECONDS)
        connection.read_timeout = given.get("read_timeout", READ_SECONDS)
        config.max_single_put_size = self.size_bytes_max  # the default is 64 MiB
        return file_system

    def _one_request(self, size_bytes: int) -> dict[str, int]:
        return {}

    async def create_in_parts(self, client: Any, path: str, parts: Sequence[Part]) -> None:
        """As ``FsspecStore.create_in_parts``. Azure deletes blocks that are not committed within a week."""
        from azure.core import MatchConditions
        from azure.storage.blob import BlobBlock

        container, name, _ = client.split_path(path)
        timeouts = getattr(client, "_timeout_kwargs", {})
        # All who create a name share its blocks that are not committed. Older SDKs number them alike for everybody, so
        # that a commit could join two writers' bytes. All ids of one name must have the same length.
        unique, staged_count = new_id(), 0
        async with client.service_client.get_blob_client(container=container, blob=name) as blob:

            async def send(number: int, body: bytes) -> Any:
                nonlocal staged_count
                block_id = f"{unique}{number:05d}"
                await blob.stage_block(block_id, body, length=len(body), **timeouts)
                staged_count += 1
                return BlobBlock(block_id)

            try:
                blocks = await sent(parts, send)
            except Exception as error:
                # InvalidBlobOrBlock: another program's blocks have ids of another length. A put removes them.
                is_none_taken = status_of(error) in NO_PARTS_STATUSES or error_code_of(error) == "InvalidBlobOrBlock"
                if is_none_taken and staged_count == 0:
                    raise NoPartsError from error
                raise
            await blob.commit_block_list(
                blocks, metadata={"is_directory": "false"}, match_condition=MatchConditions.IfMissing, **timeouts
            )

    def _listed(self, prefix: str, after: str) -> Iterable[tuple[str, int]]:
        client, (bucket, start) = self.file_system(), self._bucket_and_start(prefix)

        async def list_container() -> list[tuple[str, int]]:
            async with client.service_client.get_container_client(container=bucket) as container:
                return [
                    (f"{bucket}/{blob.name}", blob.size)
                    async for blob in container.list_blobs(name_starts_with=start, include=["metadata"])
                    if (blob.metadata or {}).get("hdi_isfolder") != "true"
                ]

        listed: list[tuple[str, int]] = fsspec.asyn.sync(client.loop, list_container)
        return listed

    def _is_absent(self, error: Exception, status: int | None) -> bool:
        return super()._is_absent(error, status) and not is_of_proxy(error, status)

    def _is_refused(self, error: Exception, status: int | None) -> bool:
        # InvalidBlockList (400): another create of the name dropped this one's blocks.
        is_dropped = error_code_of(error) == "InvalidBlockList"
        return super()._is_refused(error, status) and not is_dropped and not is_of_proxy(error, status)

    def _is_existing(self, error: Exception, status: int | None) -> bool:
        # Azure answers 409 for a taken name, and for other conflicts with other error codes.
        if status == 409:
            code = error_code_of(error)
            return code == "BlobAlreadyExists" or (not code and isinstance(error, FileExistsError))
        return super()._is_existing(error, status)
