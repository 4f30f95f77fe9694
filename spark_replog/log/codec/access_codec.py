"""Codec of what the cluster ledger says of ACLs, quotas and its settings (`docs/format.md`, "Ledger entry")."""

from __future__ import annotations

from spark_replog.log.acl import (
    AclBinding,
    AclOperation,
    AclsAdd,
    AclsRemove,
    PatternType,
    Permission,
    ResourceType,
)
from spark_replog.log.codec.wire import Reader, Writer
from spark_replog.log.model import ClusterConfigSet
from spark_replog.log.quota_set import QuotaAlter, QuotaEntity


def encode_acls(writer: Writer, command: AclsAdd | AclsRemove) -> None:
    """Append the bindings."""
    writer.uint(len(command.bindings))
    for binding in command.bindings:
        writer.byte(binding.resource_type)
        writer.text(binding.name)
        writer.byte(binding.pattern_type)
        writer.text(binding.principal)
        writer.byte(binding.operation)
        writer.byte(binding.permission)


def decode_acls(reader: Reader) -> tuple[AclBinding, ...]:
    """Take the bindings.

    Raises:
        ValueError: a number that no release of this format writes.
    """
    return tuple(
        AclBinding(
            ResourceType(reader.byte()),
            reader.text(),
            PatternType(reader.byte()),
            reader.text(),
            AclOperation(reader.byte()),
            Permission(reader.byte()),
        )
        for _ in range(reader.count())
    )


def encode_quota_alter(writer: Writer, command: QuotaAlter) -> None:
    """Append the entity and its changes."""
    for name in command.entity:
        _encode_optional(writer, name)
    writer.uint(len(command.changes))
    for key, value in command.changes:
        writer.text(key)
        writer.uint(0 if value is None else value + 1)


def decode_quota_alter(reader: Reader) -> QuotaAlter:
    """Take the entity and its changes."""
    entity = QuotaEntity(_decode_optional(reader), _decode_optional(reader))
    changes = []
    for _ in range(reader.count()):
        key, value = reader.text(), reader.uint()
        changes.append((key, value - 1 if value else None))
    return QuotaAlter(entity, tuple(changes))


def encode_cluster_config(writer: Writer, command: ClusterConfigSet) -> None:
    """Append the changes."""
    writer.uint(len(command.changes))
    for key, value in command.changes:
        writer.text(key)
        _encode_optional(writer, value)


def decode_cluster_config(reader: Reader) -> ClusterConfigSet:
    """Take the changes."""
    return ClusterConfigSet(tuple((reader.text(), _decode_optional(reader)) for _ in range(reader.count())))


def _encode_optional(writer: Writer, value: str | None) -> None:
    writer.byte(value is not None)
    if value is not None:
        writer.text(value)


def _decode_optional(reader: Reader) -> str | None:
    return reader.text() if reader.byte() else None
