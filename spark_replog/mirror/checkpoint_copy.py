"""Copies the checkpoint of a streaming query so that the copy goes on in another system: Kafka's connector, or here.

The two sources write the same positions in other words. A copy differs in `offsets/`, and in `sources/` where it is
written for Kafka's connector; state, commits and the query's id are those of the original, which is never changed.

The file `metadata` is written last. Without it Spark takes a checkpoint for a new query's, so a copy that was
interrupted must be deleted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from spark_replog.errors import ErrorCode, InvalidConfigError
from spark_replog.ids import TopicPartition
from spark_replog.log.log_offset import META_KEY, Ends, LogOffset
from spark_replog.mirror.comparison import RowsSide, first_difference, row_text
from spark_replog.monitor.offset_file import OffsetFile, SourceOffset
from spark_replog.monitor.query_monitor import FILE_BYTES_MAX
from spark_replog.storage.object_store import CreateOutcome, ObjectStore

METADATA_KEY = "metadata"
INITIAL_MARK = b"\0v1\n"
"""Before the initial offsets of Kafka's source. The zero byte is for readers of Spark 2.1.0."""


@dataclass(frozen=True, slots=True)
class Position:
    """The end of a batch in one source, whichever of the two wrote it.

    Attributes:
        origin: where the query started, while its first batch is not past; None: not known here.
    """

    ends: Ends
    origin: Ends | None = None


class Side(RowsSide, Protocol):
    """One of the two systems: how its source writes a position, and which rows it has."""

    def read(self, source: SourceOffset) -> Position | None:
        """Return the position; None: another source wrote it. Raises what `LogOffset.from_json` raises."""
        ...

    def write(self, position: Position) -> str:
        """Return the text that this side's source reads. Raises UNKNOWN_TOPIC_OR_PARTITION."""
        ...

    def initial(self, position: Position) -> bytes | None:
        """Return the file of a source's initial offsets; None: this side's source has none."""
        ...


def kafka_position(source: SourceOffset) -> Position | None:
    """Return the position that Kafka's connector wrote: ``{"orders": {"0": 12}}``."""
    value = source.value
    if not isinstance(value, dict) or META_KEY in value or not value:
        return None
    ends: Ends = {}
    for topic, partitions in value.items():
        if not isinstance(partitions, dict):
            return None
        for partition, offset in partitions.items():
            if not (partition.isascii() and partition.isdecimal() and type(offset) is int and offset >= 0):
                return None
            ends[TopicPartition(topic, int(partition))] = offset
    return Position(ends)


def kafka_text(ends: Mapping[TopicPartition, int]) -> str:
    """Return the position as Kafka's connector writes it."""
    topics: dict[str, dict[str, int]] = {}
    for key in sorted(ends):
        topics.setdefault(key.topic, {})[str(key.partition)] = ends[key]
    return json.dumps(topics, separators=(",", ":"))


def replog_position(source: SourceOffset) -> Position | None:
    """Return the position that this package's source wrote. Raises REPLOG_INPUT, UNSUPPORTED_VERSION."""
    value = source.value
    if not isinstance(value, dict) or META_KEY not in value:
        return None
    offset = LogOffset.from_json(value)
    return Position(offset.ends, offset.origin)


@dataclass(slots=True)
class PartitionCheck:
    """What was compared of one partition.

    Attributes:
        begin, end: the range of offsets whose rows were compared: those of a batch that will run again, and before.
        position: where the query goes on.
    """

    source: str
    key: TopicPartition
    position: int
    begin: int
    end: int
    row_count: int = 0

    def count(self, row_count: int) -> None:
        """Add rows that are the same."""
        self.row_count += row_count


@dataclass(slots=True)
class CheckpointPlan:
    """A copy that is worked out, and not written yet.

    Attributes:
        changed: the bytes of each file that differs from the original's, by key.
        copied: the other files, in the order in which they are written.
        sources: names of the sources that are converted; others: of those that stay as they are.
        unchecked: what could not be compared, in words.
    """

    url: str
    changed: dict[str, bytes] = field(default_factory=dict)
    copied: list[str] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    partitions: list[PartitionCheck] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    listed: dict[str, int] = field(default_factory=dict)


class CheckpointCopy:
    """Works a copy out, checks it and writes it.

    Args:
        original: the checkpoint's folder; it is only read.
        source, target: the side whose source wrote it, and the one whose source shall go on.
        compared_count: how many rows before the query's position to compare, in each partition.
    """

    def __init__(self, original: ObjectStore, source: Side, target: Side, *, compared_count: int = 10_000) -> None:
        self._original, self._source, self._target = original, source, target
        self._compared_count = compared_count

    def plan(self) -> CheckpointPlan:
        """Read the checkpoint and compare both sides; writes nothing.

        Raises:
            InvalidConfigError: REPLOG_INPUT: it is no checkpoint, no source of it is the expected one, or the other
                side lacks an offset or has another row: the first difference is named.
            CorruptDataError: CORRUPT_MESSAGE: a file is cut off. UnsupportedFormatError: UNSUPPORTED_VERSION.
        """
        plan = CheckpointPlan(self._original.url, listed=self._list())
        numbers = sorted(_numbers(plan.listed, "offsets"))
        if METADATA_KEY not in plan.listed or not numbers:
            raise InvalidConfigError(
                ErrorCode.REPLOG_INPUT,
                f"'{self._original.url}' is not a checkpoint of a query that ran: it needs the file 'metadata' and one "
                "in 'offsets'. Give a query's checkpointLocation.",
            )
        files = {number: self._offset_file(number) for number in numbers}
        self._name_sources(plan, files[numbers[-1]])
        for number, file in files.items():
            plan.changed[f"offsets/{number}"] = file.convert(lambda source: self._converted(plan, source)).render()
        self._convert_initial(plan, files.get(0))
        of_offsets = [f"offsets/.{number}.crc" for number in numbers]  # a local file system's sums of other bytes
        skipped = {*plan.changed, *of_offsets, *(_sum_key(key) for key in plan.changed), METADATA_KEY}
        plan.copied = [key for key in sorted(plan.listed) if key not in skipped]
        self._check_rows(plan, files, numbers)
        return plan

    def write(self, plan: CheckpointPlan, target: ObjectStore, on_progress: Callable[[int, int], None]) -> None:
        """Write the copy into an empty folder; `metadata` last.

        Args:
            on_progress: called with the number of files written and of all.

        Raises:
            InvalidConfigError: REPLOG_INPUT: the folder is not empty, or the original changed meanwhile: its query
                runs. What was written must be deleted.
        """
        if next(iter(target.list_keys("")), None) is not None:
            raise InvalidConfigError(
                ErrorCode.REPLOG_INPUT,
                f"'{target.url}' is not empty. Give a folder that does not exist yet; a copy that was interrupted must "
                "be deleted first.",
            )
        keys = [*plan.copied, *plan.changed]
        total = len(keys) + 1
        for count, key in enumerate(keys):
            on_progress(count, total)
            body = plan.changed.get(key)
            self._put(target, key, self._body(key) if body is None else body)
        now = self._list()
        if any(now.get(key) != size for key, size in plan.listed.items()) or now.keys() - plan.listed.keys():
            raise InvalidConfigError(
                ErrorCode.REPLOG_INPUT,
                f"the checkpoint '{plan.url}' changed while it was copied: its query runs. Stop the query, delete "
                f"'{target.url}' and repeat the command.",
            )
        on_progress(len(keys), total)
        self._put(target, METADATA_KEY, self._body(METADATA_KEY))
        on_progress(total, total)

    # -- reading ----------------------------------------------------------------------------------

    def _list(self) -> dict[str, int]:
        infos = self._original.list_keys("")
        return {info.key: info.size_bytes for info in infos if not info.key.rpartition("/")[2].endswith(".tmp")}

    def _body(self, key: str) -> bytes:
        data = self._original.get(key)
        if data is None:
            raise InvalidConfigError(
                ErrorCode.REPLOG_INPUT,
                f"the file {key} of the checkpoint '{self._original.url}' is gone: its query runs. Stop the query, "
                "delete what was copied and repeat the command.",
            )
        return bytes(data)

    def _offset_file(self, number: int) -> OffsetFile:
        data = self._original.get(f"offsets/{number}", size_bytes=FILE_BYTES_MAX)
        return OffsetFile.parse(bytes(data or b""), f"offsets/{number} of the checkpoint '{self._original.url}'")

    def _name_sources(self, plan: CheckpointPlan, newest: OffsetFile) -> None:
        for source in newest.sources:
            (plan.others if self._source.read(source) is None else plan.sources).append(source.name)
        if not plan.sources:
            raise InvalidConfigError(
                ErrorCode.REPLOG_INPUT,
                f"no source of the checkpoint '{plan.url}' is of {self._source.name}. Its newest file is "
                f"'{', '.join(source.text[:60] for source in newest.sources)}'. "
                f"{'It may be converted already' if self._is_of_target(newest) else 'Give another checkpoint'}.",
            )

    def _is_of_target(self, file: OffsetFile) -> bool:
        return any(self._target.read(source) is not None for source in file.sources)

    # -- converting -------------------------------------------------------------------------------

    def _converted(self, plan: CheckpointPlan, source: SourceOffset) -> str | None:
        if source.name not in plan.sources:
            return None
        position = self._source.read(source)
        return None if position is None else self._target.write(position)  # None: no offset yet

    def _convert_initial(self, plan: CheckpointPlan, first: OffsetFile | None) -> None:
        """Carry over where the query started: a first batch that failed begins there again.

        Kafka's source keeps it in `sources/NAME/0`, this package's in the end of the first batch.
        """
        for source in () if first is None else first.sources:
            position = self._source.read(source) if source.name in plan.sources else None
            if position is None:
                continue
            key = f"sources/{source.name}/0"
            stored = self._initial_of(key) if key in plan.listed else None
            position = Position(position.ends, position.origin if stored is None else stored)
            initial = self._target.initial(position)
            if initial is not None and key not in plan.listed:
                plan.changed[key] = initial
            if position.origin is not None:
                self._replace(plan, "offsets/0", source.name, self._target.write(position))
            elif "commits/0" not in plan.listed:
                plan.unchecked.append(
                    f"where source {source.name} started is not known, and batch 0 was not finished: it begins where "
                    "the query's options say"
                )

    def _replace(self, plan: CheckpointPlan, key: str, name: str, text: str) -> None:
        file = OffsetFile.parse(plan.changed[key], key)
        plan.changed[key] = file.convert(lambda source: text if source.name == name else None).render()

    def _initial_of(self, key: str) -> Ends | None:
        data = self._body(key)
        if not data.startswith(INITIAL_MARK):
            return None
        position = kafka_position(SourceOffset("", data.removeprefix(INITIAL_MARK).decode("utf-8", "replace")))
        return None if position is None else position.ends

    # -- checking ---------------------------------------------------------------------------------

    def _check_rows(self, plan: CheckpointPlan, files: Mapping[int, OffsetFile], numbers: list[int]) -> None:
        """Compare the rows that the query reads next with those of the original, and some before them."""
        done = max((number for number in numbers if f"commits/{number}" in plan.listed), default=-1)
        newest = numbers[-1]
        for place, source in enumerate(files[newest].sources):
            position = self._source.read(source) if source.name in plan.sources else None
            if position is None:
                continue
            before = self._ends_at(files.get(done), place) or position.origin or {}
            theirs, ours = self._target.bounds(position.ends), self._source.bounds(position.ends)
            for key, end in sorted(position.ends.items()):
                begin = min(before.get(key, end), end)
                self._check_bounds(key, begin, end, theirs.get(key))
                check = PartitionCheck(source.name, key, begin, max(0, begin - self._compared_count), end)
                self._compare(plan, check, ours.get(key), theirs[key])
                plan.partitions.append(check)

    def _ends_at(self, file: OffsetFile | None, place: int) -> Ends | None:
        position = None if file is None else self._source.read(file.sources[place])
        return None if position is None else position.ends

    def _check_bounds(self, key: TopicPartition, begin: int, end: int, there: tuple[int, int] | None) -> None:
        if there is None:
            raise InvalidConfigError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"{key.topic}-{key.partition}, which the query reads, is not in {self._target.name}. Bring the topic "
                "over first.",
            )
        if begin < there[0] or end > there[1]:
            raise InvalidConfigError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"the query goes on at the offsets {begin} to {end} of {key.topic}-{key.partition}, and "
                f"{self._target.name} has {there[0]} to {there[1]}. "
                f"{'Wait until it has got that far.' if end > there[1] else 'Its older rows are gone.'}",
            )

    def _compare(
        self, plan: CheckpointPlan, check: PartitionCheck, ours: tuple[int, int] | None, theirs: tuple[int, int]
    ) -> None:
        name = f"{check.key.topic}-{check.key.partition}"
        if ours is None:
            check.begin = check.end
            plan.unchecked.append(f"{name}: {self._source.name} has it no more, so no row was compared")
            return
        check.begin = max(check.begin, ours[0], theirs[0])
        check.end = max(check.begin, min(check.end, ours[1]))
        if check.begin > 0:
            plan.unchecked.append(f"{name}: rows before offset {check.begin} were not compared")
        difference = first_difference(self._source, self._target, check.key, check.begin, check.end, check.count)
        if difference is not None:
            raise InvalidConfigError(
                ErrorCode.REPLOG_INPUT,
                f"the two sides have different rows at offset {difference.offset} of {name}: {self._source.name} has "
                f"{row_text(difference.one)}, {self._target.name} {row_text(difference.other)}. The query would "
                "read other rows: give the store, or the cluster, that was mirrored.",
            )

    def _put(self, target: ObjectStore, key: str, body: bytes) -> None:
        folder = key.rpartition("/")[0]
        if folder:
            target.make_folder(folder)
        if target.create(key, body) is not CreateOutcome.CREATED:
            raise InvalidConfigError(
                ErrorCode.REPLOG_INPUT, f"'{target.url}' got the file {key} from another program. Give another folder."
            )


def _numbers(listed: Mapping[str, int], folder: str) -> set[int]:
    names = (key.removeprefix(f"{folder}/") for key in listed if key.startswith(f"{folder}/"))
    return {int(name) for name in names if name.isascii() and name.isdecimal() and len(name) < 19}


def _sum_key(key: str) -> str:
    folder, slash, name = key.rpartition("/")
    return f"{folder}{slash}.{name}.crc"


__all__ = ["CheckpointCopy", "CheckpointPlan", "Position", "Side"]
