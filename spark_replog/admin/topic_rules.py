"""What Kafka refuses when a topic is created or grown. Pure.

Source: ``Topic.validate``, ``Topic.hasCollision``, ``ReplicationControlManager``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from spark_replog.errors import ErrorCode, InvalidConfigError, NotFoundError, ReplogError, RetriableError, command_line
from spark_replog.ids import TOPIC_NAME_LENGTH_MAX, BrokerId, is_valid_topic_name


def check_name(name: str) -> None:
    """Refuse a name that Kafka refuses.

    Raises:
        InvalidConfigError: INVALID_TOPIC_EXCEPTION.
    """
    if not is_valid_topic_name(name):
        raise InvalidConfigError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"'{name}' cannot name a topic. Use 1 to {TOPIC_NAME_LENGTH_MAX} of a-z A-Z 0-9 . _ - and not '.' or '..'.",
        )


def check_ledger_name(name: str) -> None:
    """Refuse a ledger name that could not be a topic name either.

    Raises:
        InvalidConfigError: REPLOG_INVALID_OPTION.
    """
    if not is_valid_topic_name(name):
        raise InvalidConfigError(
            ErrorCode.REPLOG_INVALID_OPTION,
            f"'{name}' cannot name a ledger. Use 1 to {TOPIC_NAME_LENGTH_MAX} of a-z A-Z 0-9 . _ -.",
        )


def check_collision(name: str, existing: Iterable[str]) -> None:
    """Refuse a name that equals an existing other one after '.' became '_'.

    Raises:
        InvalidConfigError: INVALID_TOPIC_EXCEPTION.
    """
    unified = name.replace(".", "_")
    for other in existing:
        if other != name and other.replace(".", "_") == unified:
            raise InvalidConfigError(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                f"'{name}' collides with the topic '{other}': '.' and '_' count as the same. Choose another name.",
            )


def check_init_finished(roots: Collection[BrokerId], registered: Collection[BrokerId], path: str) -> None:
    """Refuse a store whose init stopped half-way: a topic would spread over a part of the roots.

    Raises:
        NotFoundError: REPLOG_STORE_NOT_INITIALISED.
    """
    missing = sorted(set(roots) - set(registered))
    if missing:
        raise NotFoundError(
            ErrorCode.REPLOG_STORE_NOT_INITIALISED,
            f"the init of this store stopped before it had registered brokers {missing}. "
            f"Run it again: {command_line(path, 'init')}, with the same arguments.",
            path=path,
        )


def check_replication_factor(replication_factor: int, broker_count: int) -> None:
    """Refuse a replication factor that the brokers cannot hold.

    Raises:
        InvalidConfigError: INVALID_REPLICATION_FACTOR.
    """
    if not 1 <= replication_factor <= broker_count:
        raise InvalidConfigError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"this store has {broker_count} broker(s), so a topic can have 1 to {broker_count} replicas. "
            "Give --replicas in that range.",
            replicas=replication_factor,
        )


def check_somebody_leads(brokers: Collection[BrokerId], fenced: Collection[BrokerId]) -> None:
    """Refuse to place a topic where every broker is out of service.

    Raises:
        InvalidConfigError: INVALID_REPLICATION_FACTOR.
    """
    if set(brokers) <= set(fenced):
        raise InvalidConfigError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "all brokers of this store are fenced, so nobody could lead. Put one back: replog broker unfence.",
        )


def check_assignment_count(new_count: int, given_count: int) -> None:
    """Refuse an assignment that does not say where each new partition goes.

    Raises:
        InvalidConfigError: INVALID_REPLICA_ASSIGNMENT.
    """
    if new_count != given_count:
        raise InvalidConfigError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"{given_count} lists of replicas are given for {new_count} new partitions. Give one for each.",
        )


def check_growth(name: str, count: int, total: int) -> None:
    """Refuse a partition count that does not grow.

    Raises:
        InvalidConfigError: INVALID_PARTITIONS.
    """
    if total <= count:
        raise InvalidConfigError(
            ErrorCode.INVALID_PARTITIONS,
            f"'{name}' already has {count} partition(s), and a topic can only grow. Give a total above {count}.",
            total=total,
        )


def log_starts(name: str, bounds: Sequence[tuple[int, int]], offsets: Mapping[int, int]) -> tuple[tuple[int, int], ...]:
    """Return (partition, new log start offset) of those that move (source: ``Partition.deleteRecordsOnLeader``).

    Args:
        name: the topic, for messages.
        bounds: log start offset and high watermark per partition.
        offsets: as they were asked for; -1 is the high watermark.

    Raises:
        NotFoundError: UNKNOWN_TOPIC_OR_PARTITION.
        ReplogError: OFFSET_OUT_OF_RANGE.
    """
    moved = []
    for partition, asked in sorted(offsets.items()):
        if not 0 <= partition < len(bounds):
            raise NotFoundError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"topic '{name}' has no partition {partition}. It has 0 to {len(bounds) - 1}.",
            )
        log_start, high_watermark = bounds[partition]
        offset = high_watermark if asked == -1 else asked
        if not 0 <= offset <= high_watermark:
            raise ReplogError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{name}-{partition} can be trimmed to an offset from {log_start} to {high_watermark}, its high "
                f"watermark, not to {asked}. Give one of these, or -1 for the high watermark.",
            )
        if offset > log_start:
            moved.append((partition, offset))
    return tuple(moved)


def already_exists(name: str) -> ReplogError:
    """Return the error of a taken name."""
    return ReplogError(
        ErrorCode.TOPIC_ALREADY_EXISTS,
        f"topic '{name}' exists. Use --if-not-exists to accept it, or another name.",
        topic=name,
    )


def reassignment_in_progress(name: str) -> RetriableError:
    """Return the error of growth while partitions move."""
    return RetriableError(
        ErrorCode.REASSIGNMENT_IN_PROGRESS,
        f"partitions of '{name}' are being moved. Let that end (replog coordinator run --once), or cancel it "
        "(replog topic reassign NAME --cancel).",
        topic=name,
    )
