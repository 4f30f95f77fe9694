"""The fold of mirrored topics: rows that keep the offsets of their source, and the end of mirroring. Pure.

A topic is mirrored from before its first row until it is promoted. Its position is its own log end: an append says
where it begins, so one that was decided already changes nothing, and one that leaves a gap or overlaps is refused. No
producer is remembered.
"""

from __future__ import annotations

from collections.abc import Iterable

from spark_replog.errors import ErrorCode
from spark_replog.log.fold.object_table import ObjectTable
from spark_replog.log.fold.partition_state import PartitionState
from spark_replog.log.fold.topic_table import TopicState, TopicTable
from spark_replog.log.model import (
    OK,
    Append,
    CommandResult,
    LogExtend,
    MirrorAdvance,
    MirrorAppend,
    MirrorSet,
    OffsetRanges,
    Outcome,
)

OFFSET_MAX = 2**62


def judge_ordinary(append: Append, topics: TopicTable) -> CommandResult | None:
    """Return the refusal of an ordinary append to a mirrored topic, or None."""
    for topic_id in dict.fromkeys(topic_id for topic_id, _ in append.row_counts):
        topic = topics.topics.get(topic_id)
        if topic is not None and topic.mirror:
            return CommandResult(Outcome.MIRRORED, f"topic '{topic.name}' is a mirror of {topic.mirror}")
    return None


def judge_place(append: MirrorAppend, topics: TopicTable) -> CommandResult | None:
    """Return DUPLICATE if all rows of a mirror's append are in the log, its refusal, or None if it comes next."""
    lasts = dict(zip(_places(append), append.ends, strict=True))
    wrong, passed_count = "", 0
    for place, follows in zip(append.row_counts, append.follows, strict=True):
        partition = topics.partitions.get(place)
        if partition is None:
            return CommandResult(Outcome.INVALID, "topic id {} has no partition {}".format(*place))
        end = partition.log_end_offset
        passed_count += lasts[place] <= end
        if follows != end:
            name = topics.topics[place[0]].name
            wrong = wrong or f"{name}-{place[1]} ends at offset {end}, and the append follows offset {follows}"
    if passed_count == len(lasts):
        return CommandResult(Outcome.DUPLICATE)
    for topic_id in dict.fromkeys(topic_id for topic_id, _ in append.row_counts):
        topic = topics.topics[topic_id]
        if not topic.mirror:
            return CommandResult(Outcome.MIRRORED, f"topic '{topic.name}' is no mirror")
    return CommandResult(Outcome.NOT_NEXT, wrong) if wrong else None


def _places(append: Append) -> Iterable[tuple[str, int]]:
    return ((section.topic_id, section.partition) for item in append.objects for section in item.sections)


def find_bad_spans(append: MirrorAppend) -> str:
    """Return why the offsets of an append cannot be those of its rows, '' if they can."""
    sections = (section for item in append.objects for section in item.sections)
    for section, (base, end) in zip(sections, append.spans(), strict=True):
        if end > OFFSET_MAX or section.row_count > end - base:
            return f"{section.row_count} rows cannot hold offsets {base} to {end}"
    return ""


def ranges_of(append: MirrorAppend) -> OffsetRanges:
    """Return the offsets that an append spans in each partition."""
    ends = dict(zip(_places(append), append.ends, strict=True))
    return {place: (follows, ends[place]) for place, follows in zip(append.row_counts, append.follows, strict=True)}


def apply_mirror_set(command: MirrorSet, topics: TopicTable) -> CommandResult:
    """Fold that an empty topic is mirrored from now on, or that a topic no longer is."""
    topic = topics.open_topic(command.topic_id)
    if isinstance(topic, CommandResult):
        return topic
    if topic.mirror == command.source:
        return CommandResult(Outcome.EXISTS, f"topic '{topic.name}' is so already")
    if not command.source:
        topic.mirror = ""
        return OK
    partitions = topic.partitions
    is_used = topic.mirror or topic.schemas or any(partition.log_end_offset for partition in partitions)
    if is_used or len(command.starts) > len(partitions) or max(command.starts, default=0) > OFFSET_MAX:
        detail = f"topic '{topic.name}' has rows, columns, or another source: only an empty one becomes a mirror"
        return CommandResult(Outcome.REFUSED, detail, error_code=ErrorCode.REPLOG_MIRRORED_TOPIC)
    topic.mirror = command.source
    for partition, start in zip(partitions, command.starts, strict=False):
        partition.move_empty(start)
    return OK


def apply_mirror_advance(command: MirrorAdvance, topics: TopicTable, objects: ObjectTable) -> CommandResult:
    """Fold that partitions without a row end later: all of them, or none."""
    topic = topics.open_topic(command.topic_id)
    if isinstance(topic, CommandResult):
        return topic
    partitions = topic.partitions
    numbers = {number for number, *_ in command.ends}
    if len(numbers) < len(command.ends) or max(numbers, default=0) >= len(partitions):
        return CommandResult(Outcome.INVALID, f"topic '{topic.name}' has {len(partitions)} partitions, each named once")
    moves = [(partitions[number], follows, end) for number, follows, end in command.ends]
    if all(end <= partition.log_end_offset for partition, _, end in moves):
        return CommandResult(Outcome.EXISTS, "the partitions end there or later")
    for partition, follows, end in moves:
        refused = _find_unmovable(topic, partition, follows, end, objects)
        if refused or partition.log_start_offset < partition.log_end_offset:
            return _refused(refused or f"a partition of '{topic.name}' has rows")
    for partition, _, end in moves:
        partition.move_empty(end)
    return OK


def refuse_extension(
    command: LogExtend, topic: TopicState, partition: PartitionState, objects: ObjectTable
) -> CommandResult | None:
    """Return why the end of a partition does not move, or None. Its last sections are judged as for a replacement."""
    if command.log_end_offset <= partition.log_end_offset:
        return CommandResult(Outcome.EXISTS, "the partition ends there or later")
    refused = _find_unmovable(topic, partition, command.end_offset, command.log_end_offset, objects)
    return _refused(refused) if refused else None


def _find_unmovable(topic: TopicState, partition: PartitionState, follows: int, end: int, objects: ObjectTable) -> str:
    """Return why an end does not move from one offset to another, '' if it does."""
    if not topic.mirror:
        return f"topic '{topic.name}' is no mirror"
    if partition.log_end_offset != follows or not follows < end <= OFFSET_MAX:
        return f"a partition of '{topic.name}' ends at offset {partition.log_end_offset}, not at {follows}"
    if any(partition in pending.ends for pending in objects.unstable):
        return f"rows of a partition of '{topic.name}' are not on every in-sync replica yet"
    return ""


def _refused(detail: str) -> CommandResult:
    return CommandResult(Outcome.REFUSED, detail, error_code=ErrorCode.INVALID_UPDATE_VERSION)
