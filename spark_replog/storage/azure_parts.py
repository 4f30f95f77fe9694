"""An Azure blob created from blocks by adlfs's client: the list of blocks is committed with a put's condition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spark_replog.ids import new_id
from spark_replog.storage.client_errors import error_code_of, status_of
from spark_replog.storage.parts import NoPartsError, Part, sent

_NO_PARTS_STATUSES = frozenset({403, 405, 501})
"""Of a block. 403: a signature that may create blobs but not write to them allows Put Blob alone."""


async def create_in_parts(client: Any, path: str, parts: Sequence[Part]) -> None:
    """Create a blob from blocks if its name is free; nothing of it is visible before that.

    Azure has no call that drops blocks: it deletes those that nobody commits after a week.

    Args:
        client: adlfs's.
        path: container and blob.

    Raises:
        NoPartsError: the service takes no blocks here. Nothing is visible.
        Exception: the SDK's. An error before the last request means that nothing was created; one of the last
            request is judged as that of a put is.
    """
    from azure.core import MatchConditions
    from azure.storage.blob import BlobBlock

    container, name, _ = client.split_path(path)
    timeouts = getattr(client, "_timeout_kwargs", {})
    # All who create a name share its blocks that are not committed. Older SDKs number them alike for everybody, so that
    # a commit could join two writers' bytes. All ids of one name must have the same length.
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
            is_none_taken = status_of(error) in _NO_PARTS_STATUSES or error_code_of(error) == "InvalidBlobOrBlock"
            if is_none_taken and staged_count == 0:
                raise NoPartsError from error
            raise
        await blob.commit_block_list(
            blocks, metadata={"is_directory": "false"}, match_condition=MatchConditions.IfMissing, **timeouts
        )
