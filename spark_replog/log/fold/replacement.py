"""The rules of `Replace`: when sections of a partition may be replaced by others of the same offsets. Pure.

Nothing may change for a reader: the inputs are the live sections, all readable, and every broker that must have the
rows has the outputs. Values decide, never what a process happens to have in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from spark_replog.log.fold.object_table import LogObject
from spark_replog.log.fold.partition_state import (
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_STORED_APPEND_TIME,
    PartitionState,
    SectionRow,
)
from spark_replog.log.model import Replace, inputs_digest


def find_bad_outputs(command: Replace) -> str:
    """Return why outputs contradict themselves, '' when they do not."""
    bases, end = command.base_offsets, command.end_offset
    found = [(section, item.has_offsets) for item in command.outputs for section in item.sections]
    if not found or len(found) != len(bases) or bases[0] != command.first_offset or end <= bases[-1] or end >= 2**63:
        return f"{len(found)} sections cannot hold offsets {command.first_offset} to {end} from {list(bases[:3])}"
    if any(not item.sections for item in command.outputs):
        return "an object has no section"
    if len({item.id for item in command.outputs}) < len(command.outputs):
        return "an object is named twice"
    for (section, has_offsets), (base, after) in zip(found, pairwise((*bases, end)), strict=True):
        if (section.topic_id, section.partition) != (command.topic_id, command.partition):
            return f"a section is of partition {section.partition} of topic id {section.topic_id}"
        if not 1 <= section.row_count <= after - base or (section.row_count < after - base and not has_offsets):
            return f"{section.row_count} rows cannot hold offsets {base} to {after}"
    return ""


def judge_replace(
    command: Replace, partition: PartitionState, inputs: Sequence[SectionRow], objects: Sequence[LogObject]
) -> str:
    """Return why the state does not allow a replacement, '' when it does.

    Args:
        command: without contradictions in itself.
        partition: whose rows are replaced.
        inputs: its live sections of the command's offsets.
    """
    first, end = command.first_offset, command.end_offset
    if end > partition.high_watermark:
        return f"offset {end} is above the high watermark {partition.high_watermark}"
    # Compared as values: whether sections below the log start are still in a table must not matter.
    if not inputs or inputs[0].base_offset != first or inputs[0].end_offset <= partition.log_start_offset:
        return f"no live section begins at offset {first}"
    rows = zip(inputs, objects, strict=True)
    if inputs[-1].end_offset != end or command.inputs != inputs_digest(
        (item.id, row.start_byte, row.base_offset) for row, item in rows
    ):
        return f"the sections of offsets {first} to {end} are others by now"
    needed = set(partition.isr).union(*(item.holders for item in objects)) & set(partition.replicas)
    for item in command.outputs:
        if not item.holders >= needed:
            return f"brokers {sorted(needed - item.holders)} would lose their copy"
    return ""


def output_rows(command: Replace, inputs: Sequence[SectionRow], first_number: int) -> list[SectionRow]:
    """Return the rows of a replacement that is allowed; its objects are counted from `first_number`.

    Timestamps are of the kind of the last input: compaction joins others only where none of their rows stays.
    """
    kind = TIMESTAMP_STORED_APPEND_TIME if inputs[-1].timestamp_type else TIMESTAMP_CREATE_TIME
    sections = [
        (first_number + object_no, section)
        for object_no, item in enumerate(command.outputs)
        for section in item.sections
    ]
    ranges = pairwise((*command.base_offsets, command.end_offset))
    return [
        SectionRow(base, section.row_count, number, *section[3:], kind, end)
        for (number, section), (base, end) in zip(sections, ranges, strict=True)
    ]
