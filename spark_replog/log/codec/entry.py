"""Framing of one ENTRY payload: the commands of one group commit, each judged alone by the fold."""

from __future__ import annotations

from collections.abc import Sequence

from spark_replog.errors import ErrorCode, UnsupportedFormatError
from spark_replog.log.codec.wire import Reader, Writer

ENTRY_FORMAT_VERSION = 1


def encode_entry(commands: Sequence[bytes]) -> bytes:
    """Return the payload: version byte, command count, then each command behind its length.

    Args:
        commands: results of `commands.encode_command`, in the order in which the fold judges them.
    """
    writer = Writer()
    writer.byte(ENTRY_FORMAT_VERSION)
    writer.uint(len(commands))
    for command in commands:
        writer.uint(len(command))
        writer.raw(command)
    return bytes(writer.data)


def decode_entry(payload: bytes) -> list[bytes]:
    """Return the encoded commands of a payload.

    Raises:
        UnsupportedFormatError: UNSUPPORTED_VERSION: written by a newer release.
        CorruptDataError: CORRUPT_MESSAGE: cut short or damaged.
    """
    reader = Reader(bytes(payload))
    version = reader.byte()
    if version != ENTRY_FORMAT_VERSION:
        raise UnsupportedFormatError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"ledger entry has format {version}, this release reads {ENTRY_FORMAT_VERSION}."
            " Upgrade spark-replog on every driver and worker.",
        )
    commands = [reader.raw(reader.uint()) for _ in range(reader.count())]
    reader.finish()
    return commands
