"""Options of ``format("replog")``: read once into values, and refused with a reason.

Spark hands keys over in lower case, so names are compared that way. Every entry point of the
data source comes through here, since Spark calls ``schema()`` only for some reads and never for
writes, and the first failure should be the clean one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar, cast

from spark_replog.config import (
    CoordinatorConfig,
    ProducerConfig,
    keys_of,
    normalise_key,
    parse_value,
    unknown_option_error,
)
from spark_replog.errors import ErrorCode, InvalidConfigError
from spark_replog.log.model import ResetPolicy
from spark_replog.spark.kafka_options import without_ignored
from spark_replog.spark.positions import EARLIEST, LATEST, Position, parse_assignment, parse_position

_STORAGE_PREFIX = "storage."
_ENGINE_KEYS = frozenset({"checkpointlocation", "queryname", "path", "paths"})
"""Put there by Spark itself, on sources and sinks."""
_TABLE_KEY = "provider"
"""Present only when a catalog table asks for its schema; its properties are there as options too."""
_SUBSCRIPTIONS = ("assign", "subscribe", "subscribepattern")

_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """Which store. Hashable and picklable: it is the key of per-process caches."""

    path: str
    storage: tuple[tuple[str, str], ...]

    def storage_options(self) -> dict[str, str]:
        """Return the options of the file system."""
        return dict(self.storage)


@dataclass(frozen=True, slots=True)
class Subscription:
    """Which topics; exactly one of the three is set."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assignment: Mapping[str, tuple[int, ...]] | None = None


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Options of a read, stream or batch."""

    store: StoreOptions
    subscription: Subscription
    starting: Position
    ending: Position
    include_headers: bool
    fail_on_data_loss: bool
    row_limit: int | None
    partitions_min: int | None
    rows_per_partition_max: int | None
    push_down_filters: bool = False


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Options of a write, stream or batch."""

    store: StoreOptions
    topic: str | None
    producer: ProducerConfig
    coordinator: CoordinatorConfig
    principal: str | None
    client_id: str
    transactional_id: str | None
    on_reset: ResetPolicy
    txn: tuple[str, int] | None


def parse_source_options(options: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """Read the options of ``readStream`` or ``read``.

    Raises:
        InvalidConfigError: REPLOG_UNKNOWN_OPTION, REPLOG_MISSING_OPTION, REPLOG_CONFLICTING_OPTIONS
            or REPLOG_INVALID_OPTION.
    """
    given = without_ignored(_lowered(options), "source")
    _refuse_unknown(given, _source_names())
    if streaming and "endingoffsets" in given:
        raise _invalid(
            "endingOffsets is for batch reads: a stream has no end. Remove it, or use read instead of readStream."
        )
    starting = parse_position("startingOffsets", given.get("startingoffsets", "latest" if streaming else "earliest"))
    ending = parse_position("endingOffsets", given.get("endingoffsets", "latest"))
    if not streaming:
        _check_batch_bounds(starting, ending)
    return SourceOptions(
        store=_store(given),
        subscription=_subscription(given),
        starting=starting,
        ending=ending,
        include_headers=_typed(given, "includeHeaders", False),
        fail_on_data_loss=_typed(given, "failOnDataLoss", True),
        row_limit=_typed(given, "maxOffsetsPerTrigger", cast("int | None", None)),
        partitions_min=_typed(given, "minPartitions", cast("int | None", None)),
        rows_per_partition_max=_typed(given, "maxRecordsPerPartition", cast("int | None", None)),
        push_down_filters=_typed(given, "pushDownFilters", False),
    )


def parse_sink_options(options: Mapping[str, str], *, streaming: bool) -> SinkOptions:
    """Read the options of ``writeStream`` or ``write``.

    Raises:
        InvalidConfigError: as ``parse_source_options``.
    """
    lowered = _lowered(options)
    given = without_ignored(lowered, "sink")
    _refuse_unknown(given, _sink_names())
    client = {
        normalise_key(name): value
        for name, value in given.items()
        if normalise_key(name) in _client_names() and name not in _ENGINE_KEYS
    }
    return SinkOptions(
        store=_store(given),
        topic=given.get("topic", "").strip() or None,
        producer=ProducerConfig.from_options(client),
        coordinator=CoordinatorConfig.from_options(client),
        principal=given.get("principal") or None,
        client_id=lowered.get("kafka.client.id") or given.get("queryname") or "spark-replog",
        transactional_id=_get_prefixed(given, "transactional.id"),
        on_reset=_reset_policy(given, streaming=streaming),
        txn=_transaction(given, streaming=streaming),
    )


def check_schema_options(options: Mapping[str, str]) -> bool:
    """Check the options that ``schema()`` sees; return whether the headers column is asked for.

    ``schema()`` is told neither whether a stream, a batch or a SQL view asks, nor whether it is to be
    read or inserted into, so it takes the options of both sides. A catalog table's properties arrive
    as options: they are not looked at.
    """
    given = _lowered(options)
    if _TABLE_KEY not in given:
        _refuse_unknown(without_ignored(given, "source", "sink"), {**_source_names(), **_sink_names()})
        _store(given)
        if "topic" not in given:
            _subscription(given)
    return _typed(given, "includeHeaders", False)


def _lowered(options: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in options.items()}


def _source_names() -> dict[str, str]:
    return {key.name.lower(): key.name for key in keys_of("source")}


def _client_names() -> dict[str, str]:
    return {key.name.lower(): key.name for key in keys_of("producer", "coordinator")}


def _sink_names() -> dict[str, str]:
    return {key.name.lower(): key.name for key in keys_of("sink")} | _client_names()


def _refuse_unknown(given: Iterable[str], known: Mapping[str, str]) -> None:
    for name in given:
        if name == "storage.fsync":
            raise _invalid("storage.fsync is chosen once, by 'replog init'. Remove the option.")
        if name in _ENGINE_KEYS or name.startswith(_STORAGE_PREFIX) or normalise_key(name) in known:
            continue
        other = (_source_names() | _sink_names()).get(normalise_key(name))
        if other is not None:
            side = "sink" if other in _sink_names().values() else "source"
            raise InvalidConfigError(
                ErrorCode.REPLOG_UNKNOWN_OPTION, f"option '{other}' is for the {side}. Remove it here."
            )
        raise unknown_option_error(name, known.values())


def _typed(given: Mapping[str, str], name: str, default: _Value) -> _Value:
    text = given.get(name.lower())
    if text is None:
        return default
    key = next(key for key in keys_of("source", "sink") if key.name == name)
    return cast("_Value", parse_value(key, text))


def _store(given: Mapping[str, str]) -> StoreOptions:
    path = given.get("path", "").strip()
    if not path and given.get("paths"):
        path = ",".join(json.loads(given["paths"]))
    if not path:
        raise InvalidConfigError(
            ErrorCode.REPLOG_MISSING_OPTION,
            "no store is given. Give it as load(path), start(path) or option('path', ...). The options of a "
            "CREATE TABLE do not reach its reads and writes: use CREATE TEMPORARY VIEW ... USING replog OPTIONS.",
        )
    storage = sorted(
        (name[len(_STORAGE_PREFIX) :], value) for name, value in given.items() if name.startswith(_STORAGE_PREFIX)
    )
    return StoreOptions(path, tuple(storage))


def _subscription(given: Mapping[str, str]) -> Subscription:
    present = [name for name in _SUBSCRIPTIONS if name in given]
    if not present:
        raise InvalidConfigError(
            ErrorCode.REPLOG_MISSING_OPTION,
            "one of the following options must be specified: subscribe, subscribePattern, assign.",
        )
    if len(present) > 1:
        raise InvalidConfigError(
            ErrorCode.REPLOG_CONFLICTING_OPTIONS,
            "only one of the following options can be specified: subscribe, subscribePattern, assign.",
            given=",".join(present),
        )
    text = given[present[0]].strip()
    if present[0] == "assign":
        return Subscription(assignment=parse_assignment(text))
    if present[0] == "subscribe":
        topics = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
        if not topics:
            raise _invalid("subscribe names no topics to subscribe. Give topic names, comma separated.")
        return Subscription(topics=topics)
    return Subscription(pattern=_pattern(text))


def _pattern(text: str) -> str:
    import re

    if not text:
        raise _invalid("subscribePattern: the pattern to subscribe is empty. Give a regular expression.")
    try:
        re.compile(text)
    except re.error as error:
        raise _invalid(f"subscribePattern is no regular expression of Python: {error}. Correct it.") from error
    return text


def _check_batch_bounds(starting: Position, ending: Position) -> None:
    """Refuse what needs no log to be known as wrong (source: ``KafkaSourceProvider``)."""
    if LATEST in (starting.default, *starting.topics.values(), *starting.offsets.values()):
        raise _invalid("starting offset can't be latest for batch queries. Use earliest or offsets.")
    if EARLIEST in (ending.default, *ending.topics.values(), *ending.offsets.values()):
        raise _invalid("ending offset can't be earliest for batch queries. Use latest or offsets.")
    for key, end in ending.offsets.items():
        start = starting.offsets.get(key, 0)
        if end >= 0 and start > end:
            raise _invalid(
                f"the specified start offset {start} is greater than the end offset {end} for "
                f"{key.topic}-{key.partition}. Exchange or correct them."
            )


def _reset_policy(given: Mapping[str, str], *, streaming: bool) -> ResetPolicy:
    word = _typed(given, "onCheckpointReset", "fail")
    if "oncheckpointreset" in given and _get_prefixed(given, "transactional.id") is None:
        raise InvalidConfigError(
            ErrorCode.REPLOG_MISSING_OPTION,
            "onCheckpointReset needs transactional.id: without it a new checkpoint is simply a new writer.",
        )
    if _get_prefixed(given, "transactional.id") is not None and not streaming:
        raise InvalidConfigError(
            ErrorCode.REPLOG_CONFLICTING_OPTIONS,
            "transactional.id is for streaming writes. Use txnAppId and txnVersion in a batch write.",
        )
    return ResetPolicy[word.upper()]


def _transaction(given: Mapping[str, str], *, streaming: bool) -> tuple[str, int] | None:
    app_id, version = given.get("txnappid"), given.get("txnversion")
    if app_id is None and version is None:
        return None
    if streaming:
        raise InvalidConfigError(
            ErrorCode.REPLOG_CONFLICTING_OPTIONS,
            "txnAppId and txnVersion are for batch writes: a streaming write has its batch id. Remove them.",
        )
    if app_id is None or version is None:
        raise InvalidConfigError(
            ErrorCode.REPLOG_MISSING_OPTION, "txnAppId and txnVersion only work together. Give both."
        )
    return app_id, _typed(given, "txnVersion", 0)


def _get_prefixed(given: Mapping[str, str], name: str) -> str | None:
    return given.get(name) or given.get("kafka." + name) or None


def _invalid(message: str) -> InvalidConfigError:
    return InvalidConfigError(ErrorCode.REPLOG_INVALID_OPTION, message)
