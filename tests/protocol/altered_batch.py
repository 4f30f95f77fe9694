"""Record batches that no client sends: fields of the header that do not fit."""

from __future__ import annotations

import struct
from typing import Any

from crc32c import crc32c

FIELDS = (
    "base_offset", "length", "leader_epoch", "magic", "crc", "attributes", "last_offset_delta", "base_timestamp",
    "max_timestamp", "producer_id", "producer_epoch", "base_sequence", "record_count",
)  # fmt: skip
_HEADER = struct.Struct(">qiibIhiqqqhii")
_CRC_FROM = 21


def altered(batch: bytes, **fields: Any) -> bytes:
    """Return a batch with other values in its header, and a checksum that fits unless `crc` is given."""
    values = dict(zip(FIELDS, _HEADER.unpack_from(batch), strict=True)) | fields
    made = bytearray(_HEADER.pack(*values.values()) + batch[_HEADER.size :])
    if "crc" not in fields:
        struct.pack_into(">I", made, _CRC_FROM - 4, crc32c(bytes(made[_CRC_FROM:])))
    return bytes(made)
