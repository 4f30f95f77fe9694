"""Ledger entries in words, for people. Pure. Names and texts come from storage: the caller must escape them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from spark_replog.errors import ReplogError
from spark_replog.ids import TopicId
from spark_replog.log import model
from spark_replog.log.codec.commands import TYPE_IDS, Undecodable, decode_command, decode_commands, decode_entry
from spark_replog.log.codec.group_records import GroupRecord, OffsetRecord, Record
from spark_replog.log.model import Append, Command, CommandResult, DataObject, GroupRecords, Outcome

_SHOWN_MAX = 8
"""Parts of one command that are named; the others are counted."""


def entry_words(payload: bytes, topic_names: Mapping[TopicId, str]) -> list[str]:
    """Return a sentence per command of an entry, also if the entry or a command cannot be decoded."""
    try:
        commands = decode_commands(payload)
    except ReplogError as error:
        return [f"cannot be read: {error.args[0]}"]
    return [command_words(command, topic_names) for command in commands]


_NORMAL = Append, model.SequencedAppend, model.ProducerInit, GroupRecords, model.HoldersAdd
"""Commands of normal writing and reading."""
_QUIET = frozenset(TYPE_IDS[command] for command in _NORMAL)


def state_changes(
    payload: bytes, results: Sequence[CommandResult], topic_names: Mapping[TopicId, str]
) -> list[tuple[str, str]]:
    """Return (kind, sentence) of the commands of an entry that changed something other than rows and offsets."""
    changes = []
    for data, result in zip(decode_entry(payload), results, strict=False):
        if data[0] not in _QUIET and result.outcome is Outcome.APPLIED:
            command = decode_command(data)
            kind = re.sub("(?<!^)(?=[A-Z])", "_", type(command).__name__).lower()
            changes.append((kind, command_words(command, topic_names)))
    return changes


def command_words(command: Command | Undecodable, topic_names: Mapping[TopicId, str]) -> str:
    """Return one command as a sentence."""
    match command:
        case Undecodable():
            return f"a command without effect: {command.reason}"
        case Append():
            return _append_words(command, topic_names)
        case GroupRecords():
            return _group_words(command)
        case model.LogExtend():
            where = f"{_topic(command.topic_id, topic_names)}-{command.partition}"
            return f"mirrored {where} ends at offset {command.log_end_offset}, after offsets without rows"
        case model.MirrorSet():
            where = _topic(command.topic_id, topic_names)
            return f"topic {where} is a mirror of {command.source}" if command.source else f"promotes topic {where}"
        case model.Replace():
            where = f"{_topic(command.topic_id, topic_names)}-{command.partition}"
            span = f"{command.first_offset} to {command.end_offset}"
            return f"compaction replaces offsets {span} of {where} by {_objects(command.outputs)}"
        case model.TopicInit():
            typed = "" if command.schema is None else f" and the columns {command.schema.ddl}"
            count = len(command.assignments)
            return f"creates topic {command.name} with {count} partitions{typed}{_config(command.config)}"
        case model.SchemaEvolve():
            where = _topic(command.topic_id, topic_names)
            return f"gives topic {where} version {command.version} of its schema: {command.schema.ddl}"
        case model.TopicPublish():
            return f"names topic {command.name}: id {command.topic_id}, ledger {command.ledger_id}"
        case model.PartitionsAdd():
            return f"grows topic {_topic(command.topic_id, topic_names)} to {command.total} partitions"
        case model.TopicClose():
            return f"deletes topic {_topic(command.topic_id, topic_names)}"
        case model.ConfigSet():
            return f"changes settings of topic {_topic(command.topic_id, topic_names)}{_config(command.changes)}"
        case model.IsrChange():
            where = "all topics" if command.topic_id is None else f"topic {_topic(command.topic_id, topic_names)}"
            return f"broker {command.broker_id} {'joins' if command.in_sync else 'leaves'} the ISR of {where}"
        case model.PartitionChange():
            where = f"{_topic(command.topic_id, topic_names)}-{command.partition}"
            unclean = " UNCLEAN" if command.is_unclean else ""
            isr, replicas = _list(command.isr), _list(command.replicas)
            return f"{where}: leader {command.leader}{unclean}, ISR {isr}, replicas {replicas}"
        case model.BrokerFence():
            return f"broker {command.broker_id} is {'fenced' if command.is_fenced else 'back in service'}"
        case model.LogStartAdvance():
            ends = _list(f"{number} from {offset}" for number, offset in command.offsets)
            why = command.reason.name.lower().replace("_", " ")
            return f"{_topic(command.topic_id, topic_names)} begins later ({why}): partition {ends}"
        case model.Truncate():
            return f"cuts all appends after entry {command.after_index}"
        case model.HoldersAdd():
            brokers = _list(command.broker_ids)
            return f"brokers {brokers} hold object {command.object_no} of entry {command.entry_index} too"
        case model.SnapshotCommit():
            return f"snapshot {command.base_no + 1}, of entry {command.index}, counts from now on"
    values = ", ".join(f"{name} {_value(getattr(command, name))}" for name in command.__dataclass_fields__)
    return f"{_spaced(type(command).__name__)}: {values}"


def _append_words(append: Append, topic_names: Mapping[TopicId, str]) -> str:
    rows: dict[str, int] = {}
    for item in append.objects:
        for section in item.sections:
            where = f"{_topic(section.topic_id, topic_names)}-{section.partition}"
            rows[where] = rows.get(where, 0) + section.row_count
    who = append.identity
    places = _list(f"{where} ({count:,})" for where, count in rows.items())
    kind = who.kind.name.lower().replace("_", " ")
    return (
        f"appends {sum(rows.values()):,} rows to {places} in {_objects(append.objects)}, by {append.principal} "
        f"{append.client_id or '(no client id)'}: {kind} {who.producer_id}, sequence {who.sequence}"
    )


def _objects(objects: tuple[DataObject, ...]) -> str:
    size_bytes = sum(item.size_bytes for item in objects)
    holders = sorted({broker_id for item in objects for broker_id in item.holders if not item.inline})
    inline_count = sum(bool(item.inline) for item in objects)
    where = [f"on brokers {_list(holders)}"] if holders or not inline_count else []
    if inline_count:
        where.append("inline" if inline_count == len(objects) else f"{inline_count} inline")
    return f"{len(objects)} object{'' if len(objects) == 1 else 's'} of {size_bytes:,} bytes {', '.join(where)}"


def _group_words(command: GroupRecords) -> str:
    who = f"member {command.member_id or command.writer_id} of group {command.group}"
    if not command.records:
        return f"heartbeat of {who}"
    return f"{who}: {_list(map(_record, command.records))}"


def _record(record: Record) -> str:
    match record:
        case OffsetRecord(_, topic, partition, value):
            return f"{topic}-{partition} " + ("offset forgotten" if value is None else f"read up to {value.offset}")
        case GroupRecord(_, value):
            if value is None:
                return "group forgotten"
            phase = value.phase.name.lower().replace("_", " ")
            return f"{phase}, generation {value.generation}, {len(value.members)} members"


def _topic(topic_id: TopicId, names: Mapping[TopicId, str]) -> str:
    return names.get(topic_id, topic_id)


def _config(pairs: tuple[tuple[str, str | None], ...]) -> str:
    changes = _list(f"{key} {'removed' if value is None else f'= {value}'}" for key, value in pairs)
    return f": {changes}" if changes else ""


def _value(value: object) -> str:
    return _list(value) if isinstance(value, tuple | list | frozenset) else str(value)


def _list(values: Iterable[object]) -> str:
    texts = [str(value) for value in values]
    more = len(texts) - _SHOWN_MAX
    return ", ".join(texts[:_SHOWN_MAX]) + (f" and {more} more" if more > 0 else "")


def _spaced(name: str) -> str:
    return "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in name).strip()
