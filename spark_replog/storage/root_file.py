"""``replog.json``: what a root is. JSON, write-once, first thing on every root."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from spark_replog.errors import CorruptDataError, ErrorCode, UnsupportedFormatError
from spark_replog.ids import BrokerId
from spark_replog.storage.object_store import Buffer

FORMAT_VERSION = 1
_FORMAT = "replog-root"


@dataclass(frozen=True, slots=True)
class BrokerRef:
    """One initial broker as a root file names it."""

    broker_id: BrokerId
    url: str
    """Absolute, or relative to the folder that holds this root where they share it (``broker-1``)."""
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class RootFile:
    """What one root says about itself and its cluster."""

    cluster_id: str
    broker_id: BrokerId
    format_version: int
    brokers: tuple[BrokerRef, ...]
    metadata_broker_ids: tuple[BrokerId, ...]
    fsync: bool


def metadata_broker_ids(broker_count: int) -> tuple[BrokerId, ...]:
    """Return which brokers hold journals: the first 1, 2, 3, 3, then 5 of 1, 2, 3, 4, 5 and more."""
    count = broker_count if broker_count <= 3 else 3 if broker_count == 4 else 5
    return tuple(range(count))


def encode_root_file(root: RootFile) -> bytes:
    """Return the JSON text, UTF-8, equal for equal values."""
    fields = {
        "format": _FORMAT,
        "version": root.format_version,
        "clusterId": root.cluster_id,
        "brokerId": root.broker_id,
        "brokers": [{"id": ref.broker_id, "url": ref.url, "rack": ref.rack} for ref in root.brokers],
        "metadataBrokers": list(root.metadata_broker_ids),
        "fsync": root.fsync,
    }
    return (json.dumps(fields, indent=2) + "\n").encode()


def decode_root_file(data: Buffer, *, url: str) -> RootFile:
    """Read a root file.

    Args:
        data: the file's bytes.
        url: the root, for error texts.

    Raises:
        CorruptDataError: CORRUPT_MESSAGE: not a root file, or a broken one.
        UnsupportedFormatError: UNSUPPORTED_VERSION: written by a newer release.
    """
    try:
        fields = json.loads(bytes(data))
        if fields["format"] != _FORMAT:
            raise ValueError(f"format is {fields['format']!r}")
        version = int(fields["version"])
        if version > FORMAT_VERSION:
            raise UnsupportedFormatError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"the root has format version {version}, this release reads up to {FORMAT_VERSION}. "
                "Upgrade spark-replog.",
                url=url,
            )
        return _root_file(fields, version)
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptDataError(
            ErrorCode.CORRUPT_MESSAGE,
            f"replog.json is damaged: {error}. Put this root's own replog.json back from a backup.",
            url=url,
        ) from error


def _root_file(fields: dict[str, Any], version: int) -> RootFile:
    root = RootFile(
        cluster_id=str(fields["clusterId"]),
        broker_id=int(fields["brokerId"]),
        format_version=version,
        brokers=tuple(BrokerRef(int(ref["id"]), str(ref["url"]), ref["rack"]) for ref in fields["brokers"]),
        metadata_broker_ids=tuple(int(broker_id) for broker_id in fields["metadataBrokers"]),
        fsync=bool(fields["fsync"]),
    )
    known = {ref.broker_id for ref in root.brokers}
    if root.broker_id not in known or not root.metadata_broker_ids or not known.issuperset(root.metadata_broker_ids):
        raise ValueError("it names brokers that it does not list")
    return root


__all__ = [
    "FORMAT_VERSION",
    "BrokerRef",
    "RootFile",
    "decode_root_file",
    "encode_root_file",
    "metadata_broker_ids",
]
