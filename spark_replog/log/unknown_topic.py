"""The error of a name that no topic has: the same where the driver looks it up and where a task writes to it."""

from __future__ import annotations

from spark_replog.errors import ErrorCode, InvalidConfigError, NotFoundError, ReplogError, command_line
from spark_replog.ids import TOPIC_NAME_LENGTH_MAX, is_valid_topic_name


def unknown_topic(name: str, path: str) -> ReplogError:
    """Return what to raise: UNKNOWN_TOPIC_OR_PARTITION, or INVALID_TOPIC_EXCEPTION where no topic could have the name.

    Args:
        name: as the user gave it.
        path: of the store, for the command that creates the topic.
    """
    if not is_valid_topic_name(name):
        return InvalidConfigError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"topic '{name}' is invalid: no topic can have this name. "
            f"Use 1 to {TOPIC_NAME_LENGTH_MAX} of a-z A-Z 0-9 . _ - and not '.' or '..'.",
            topic=name,
        )
    return NotFoundError(
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        f"this store does not host this topic-partition: it has no topic '{name}'. "
        f"Create it: {command_line(path, 'topic', 'create', name, '-p', '1')}.",
        topic=name,
    )


__all__ = ["unknown_topic"]
