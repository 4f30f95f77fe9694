"""Kafka's checks when a topic is created or grown, and the placement of partitions on brokers. Pure.

Source: ``Topic.validate``, ``Topic.hasCollision``, ``ReplicationControlManager``, and
``AdminUtils.assignReplicasToBrokers`` (rack-unaware and rack-aware).
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from spark_replog.clock import SYSTEM_RANDOM
from spark_replog.config.store import TopicConfig
from spark_replog.errors import ErrorCode, InvalidConfigError, NotFoundError, ReplogError, command_line
from spark_replog.ids import TOPIC_NAME_LENGTH_MAX, BrokerId, is_valid_topic_name
from spark_replog.log.ddl import type_text
from spark_replog.log.row_schema import RowSchema
from spark_replog.log_position import offset_between

if TYPE_CHECKING:
    import pyarrow as pa

NEW_PARTITIONS_MAX = 10_000
"""In one request, as in Kafka (``ReplicationControlManager.MAX_PARTITIONS_PER_BATCH``)."""
Assignment = tuple[tuple[BrokerId, ...], ...]
"""Per partition the replicas, preferred leader first."""


def assign_replicas(
    brokers: Mapping[BrokerId, str | None],
    partition_count: int,
    replication_factor: int,
    *,
    start_index: int | None = None,
    first_partition: int = 0,
) -> Assignment:
    """Spread replicas so that leaders and copies are even and racks differ where possible.

    Args:
        brokers: broker id to rack; None if no rack is known.
        start_index: where the first leader goes; None picks one at random.
        first_partition: number of the first partition placed (growth continues the pattern).

    Raises:
        InvalidConfigError: INVALID_PARTITIONS, INVALID_REPLICATION_FACTOR, or INVALID_REPLICA_ASSIGNMENT
            if some brokers have a rack and others have none.
    """
    if partition_count <= 0:
        text = "a topic needs at least one partition. Give a number above 0."
        raise InvalidConfigError(ErrorCode.INVALID_PARTITIONS, text, partitions=partition_count)
    check_replication_factor(replication_factor, len(brokers))
    racks = {broker: rack for broker, rack in brokers.items() if rack is not None}
    if racks and len(racks) != len(brokers):
        raise InvalidConfigError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "some brokers have a rack and others have none. Give every broker a rack, or none.",
            without_rack=sorted(set(brokers) - set(racks)),
        )
    start = SYSTEM_RANDOM.randrange(len(brokers)) if start_index is None else start_index
    # Without racks all brokers are in one: Kafka's rack-unaware algorithm is the same loop.
    return _assign(racks or dict.fromkeys(brokers, ""), partition_count, replication_factor, start, first_partition)


def place_replicas(
    brokers: Mapping[BrokerId, str | None],
    fenced: Collection[BrokerId],
    partition_count: int,
    replication_factor: int,
    *,
    start_index: int | None = None,
    first_partition: int = 0,
) -> Assignment:
    """Spread replicas over the brokers in service; fenced ones come last, and only if the others are too few.

    So each partition has a leader (source: Kafka's ``StripedReplicaPlacer``). The caller has checked that a broker is
    in service and that there are enough brokers. Other arguments and errors: ``assign_replicas``.
    """
    active = {broker_id: rack for broker_id, rack in brokers.items() if broker_id not in fenced}
    resting = sorted(set(brokers) - set(active))
    active_count = min(replication_factor, len(active))
    rows = assign_replicas(
        active, partition_count, active_count, start_index=start_index, first_partition=first_partition
    )
    return tuple(
        (*row, *(resting[(number + step) % len(resting)] for step in range(replication_factor - active_count)))
        for number, row in enumerate(rows, first_partition)
    )


def check_explicit(
    assignment: Assignment,
    registered: Collection[BrokerId],
    fenced: Collection[BrokerId] = (),
    *,
    replication_factor: int | None = None,
    first_partition: int = 0,
) -> None:
    """Refuse an invalid assignment from a user: INVALID_REPLICA_ASSIGNMENT. Source: ``ReplicationControlManager``.

    Args:
        fenced: brokers that are out of service.
        replication_factor: of every partition; None: that of the first.
        first_partition: number of the first partition in it.
    """
    factor = len(assignment[0]) if assignment and replication_factor is None else replication_factor
    for partition, replicas in enumerate(assignment, first_partition):
        unknown = sorted(set(replicas).difference(registered))
        problem = ""
        if not replicas or len(set(replicas)) != len(replicas):
            problem = "list at least one broker, without duplicates"
        elif len(replicas) != factor:
            problem = f"it has {len(replicas)} replicas where {factor} are due"
        elif unknown:
            problem = f"brokers {unknown} are not registered"
        elif set(replicas) <= set(fenced):
            problem = "all of its brokers are fenced"
        if problem:
            text = f"Invalid replica list {list(replicas)}: {problem}. Correct the assignment."
            raise InvalidConfigError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, text, partition=partition)


def _assign(
    racks: Mapping[BrokerId, str], partition_count: int, replication_factor: int, start: int, first_partition: int
) -> Assignment:
    brokers = rack_alternated(racks)
    count, rack_count = len(brokers), len(set(racks.values()))
    shift = start
    rows: list[tuple[BrokerId, ...]] = []
    for partition in range(first_partition, first_partition + partition_count):
        if partition > 0 and partition % count == 0:
            shift += 1
        first = (partition + start) % count
        chosen = [brokers[first]]
        used_racks = {racks[brokers[first]]}
        candidate_number = 0
        while len(chosen) < replication_factor:
            broker = brokers[(first + 1 + (shift * rack_count + candidate_number) % (count - 1)) % count]
            candidate_number += 1
            repeats_rack = racks[broker] in used_racks and len(used_racks) < rack_count
            repeats_broker = broker in chosen and len(chosen) < count
            if not repeats_rack and not repeats_broker:
                chosen.append(broker)
                used_racks.add(racks[broker])
        rows.append(tuple(chosen))
    return tuple(rows)


def rack_alternated(racks: Mapping[BrokerId, str]) -> list[BrokerId]:
    """Order brokers so that adjacent ones are in different racks, as far as possible."""
    members: dict[str, list[BrokerId]] = {}
    for broker in sorted(racks):
        members.setdefault(racks[broker], []).append(broker)
    ordered: list[BrokerId] = []
    depth = 0
    while len(ordered) < len(racks):
        ordered += [members[rack][depth] for rack in sorted(members) if depth < len(members[rack])]
        depth += 1
    return ordered


def check_name(name: str) -> None:
    """Refuse a name that Kafka refuses. Raises INVALID_TOPIC_EXCEPTION."""
    if not is_valid_topic_name(name):
        raise InvalidConfigError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"'{name}' cannot name a topic. Use 1 to {TOPIC_NAME_LENGTH_MAX} of a-z A-Z 0-9 . _ - and not '.' or '..'.",
        )


def check_ledger_name(name: str) -> None:
    """Refuse a ledger name that is not a valid topic name. Raises REPLOG_INVALID_OPTION."""
    if not is_valid_topic_name(name):
        text = f"'{name}' cannot name a ledger. Use 1 to {TOPIC_NAME_LENGTH_MAX} of a-z A-Z 0-9 . _ -."
        raise InvalidConfigError(ErrorCode.REPLOG_INVALID_OPTION, text)


def check_collision(name: str, existing: Iterable[str]) -> None:
    """Refuse a name that differs from an existing one only in '.' and '_'. Raises INVALID_TOPIC_EXCEPTION."""
    unified = name.replace(".", "_")
    for other in existing:
        if other != name and other.replace(".", "_") == unified:
            text = f"'{name}' collides with the topic '{other}': '.' and '_' count as the same. Choose another name."
            raise InvalidConfigError(ErrorCode.INVALID_TOPIC_EXCEPTION, text)


def check_init_finished(roots: Collection[BrokerId], registered: Collection[BrokerId], path: str) -> None:
    """Raise REPLOG_STORE_NOT_INITIALISED if init stopped half-way: a new topic would use only some of the roots."""
    missing = sorted(set(roots) - set(registered))
    if missing:
        text = (
            f"the init of this store stopped before it had registered brokers {missing}. "
            f"Run it again: {command_line(path, 'init')}, with the same arguments."
        )
        raise NotFoundError(ErrorCode.REPLOG_STORE_NOT_INITIALISED, text, path=path)


def check_replication_factor(replication_factor: int, broker_count: int) -> None:
    """Refuse a replication factor that the brokers cannot hold. Raises INVALID_REPLICATION_FACTOR."""
    if not 1 <= replication_factor <= broker_count:
        text = (
            f"this store has {broker_count} broker(s), so a topic can have 1 to {broker_count} replicas. "
            "Give --replicas in that range."
        )
        raise InvalidConfigError(ErrorCode.INVALID_REPLICATION_FACTOR, text, replicas=replication_factor)


def checked_schema(schema: pa.Schema | str | RowSchema | None, key: Collection[str]) -> RowSchema | None:
    """Return version 1 of a typed topic's schema; None: rows are bytes. Raises REPLOG_INVALID_SCHEMA."""
    if schema is not None:
        return RowSchema.of(schema, key)
    if key:
        text = f"key columns {list(key)} are given without a schema. Give the schema too, or leave the key out."
        raise InvalidConfigError(ErrorCode.REPLOG_INVALID_SCHEMA, text)
    return None


def check_compaction(schema: RowSchema | None, config: TopicConfig) -> None:
    """Refuse settings of compaction by key that do not fit a topic's columns; they fit all later versions as well.

    Raises POLICY_VIOLATION: a typed topic without key columns; INVALID_CONFIG: delete.column.
    """
    if schema is not None and not schema.key and "compact" in config.cleanup_policy:
        text = (
            f"cleanup.policy={config.cleanup_policy} keeps the last row of each key, and the schema has no key columns:"
            f" {schema.ddl}. Make a topic with a key (--key, key=[...]), or use delete."
        )
        raise InvalidConfigError(ErrorCode.POLICY_VIOLATION, text)
    name = config.delete_column
    if name is not None and (problem := _delete_column_problem(name, schema)):
        raise InvalidConfigError(ErrorCode.INVALID_CONFIG, f"delete.column={name}: {problem}.", column=name)


def _delete_column_problem(name: str, schema: RowSchema | None) -> str:
    """Return why a column cannot say which rows delete, and the remedy; "": it can."""
    if schema is None:
        return "the rows are bytes, and a null value deletes. Leave it out"
    if name not in schema.names:
        near = next((other for other in schema.names if other.lower() == name.lower()), "")
        booleans = [column.name for column in schema.arrow if type_text(column.type) == "BOOLEAN"]
        hint = f"Did you mean '{near}'?" if near else f"Its BOOLEAN columns are {', '.join(booleans) or 'none'}."
        return f"the schema has no such column. {hint} Name one of them, or add it first: replog topic schema evolve"
    kind = type_text(schema.arrow.field(name).type)
    if kind != "BOOLEAN":
        return f"the column is {kind}. Name a BOOLEAN column"
    if name in schema.key:
        return "it is a key column, so a row that deletes would have another key. Name another BOOLEAN column"
    return ""


def check_somebody_leads(brokers: Collection[BrokerId], fenced: Collection[BrokerId]) -> None:
    """Refuse to place a topic if every broker is out of service. Raises INVALID_REPLICATION_FACTOR."""
    if set(brokers) <= set(fenced):
        text = "all brokers of this store are fenced, so no broker could lead. Put one back: replog broker unfence."
        raise InvalidConfigError(ErrorCode.INVALID_REPLICATION_FACTOR, text)


def whole_number(value: object, what: str, code: ErrorCode) -> int:
    """Return a number that a program gives; else raise an error with this code that names ``what`` it is."""
    try:
        if not isinstance(value, bool):
            return operator.index(value)  # type: ignore[arg-type]  # also numpy's integers
    except TypeError:
        pass
    raise InvalidConfigError(code, f"{what} is {value!r:.100}. Give a whole number.")


def whole_counts(partitions: object, replicas: object) -> tuple[int | None, int | None]:
    """Return both counts of a new topic as whole numbers, None as None."""
    return (
        None if partitions is None else whole_number(partitions, "partitions", ErrorCode.INVALID_PARTITIONS),
        None if replicas is None else whole_number(replicas, "replicas", ErrorCode.INVALID_REPLICATION_FACTOR),
    )


def check_new_count(count: int) -> None:
    """Refuse more new partitions than one request may make. Raises POLICY_VIOLATION."""
    if count > NEW_PARTITIONS_MAX:
        text = (
            f"{count} new partitions are more than the {NEW_PARTITIONS_MAX} that one request may make. Give a smaller "
            "number; a topic can grow by more requests."
        )
        raise InvalidConfigError(ErrorCode.POLICY_VIOLATION, text, partitions=count)


def check_growth(name: str, count: int, total: int) -> None:
    """Refuse a partition count that does not grow. Raises INVALID_PARTITIONS."""
    if total <= count:
        text = f"'{name}' already has {count} partition(s), and a topic can only grow. Give a total above {count}."
        raise InvalidConfigError(ErrorCode.INVALID_PARTITIONS, text, total=total)


def log_starts(name: str, bounds: Sequence[tuple[int, int]], offsets: Mapping[int, int]) -> tuple[tuple[int, int], ...]:
    """Return (partition, new log start offset) where it moves (source: ``Partition.deleteRecordsOnLeader``).

    Args:
        bounds: log start offset and high watermark per partition.
        offsets: as requested; EARLIEST and LATEST are the ends. Others may be OFFSET_OUT_OF_RANGE.
    """
    moved = []
    for partition, asked in sorted(offsets.items()):
        if not 0 <= partition < len(bounds):
            text = f"topic '{name}' has no partition {partition}. It has 0 to {len(bounds) - 1}."
            raise NotFoundError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text)
        log_start, high_watermark = bounds[partition]
        offset = offset_between(asked, log_start, high_watermark)
        if not 0 <= offset <= high_watermark:
            raise ReplogError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{name}-{partition} can be trimmed to an offset from {log_start} to {high_watermark}, its high "
                f"watermark, not to {asked}. Give one of these, or latest for the high watermark.",
            )
        if offset > log_start:
            moved.append((partition, offset))
    return tuple(moved)


def already_exists(name: str) -> ReplogError:
    """Return the error for a name that is taken."""
    text = f"topic '{name}' exists. Use --if-not-exists to accept it, or another name."
    return ReplogError(ErrorCode.TOPIC_ALREADY_EXISTS, text, topic=name)
