"""Options of ``format("replog")``: parsed once into frozen values, or refused with the reason.

Spark passes names in lower case, so they are compared in lower case. Every entry point of the data source parses its
options here: Spark calls ``schema()`` only for some reads and never for writes.

What Kafka's clients or its connector know and is of no use here is logged once and ignored, so that a job only has to
change its format and its address. Names that are nearly a known one are refused, and options that would change the rows
with the texts of Spark's Kafka connector.
"""

from __future__ import annotations

import difflib
import json
import logging
import os
import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from spark_replog.cluster.cluster import Cluster
from spark_replog.config.coordinator import CoordinatorConfig
from spark_replog.config.key import KEY_PREFIX, REGISTRY_PREFIX, STORAGE_PREFIX, ConfigKey, normalise_key
from spark_replog.config.producer import ProducerConfig, TaskHooks
from spark_replog.config.registry import (
    UNUSED_KAFKA_SETTINGS,
    is_kafka_setting,
    keys_of,
    read_coordinator_config,
    read_producer_config,
    unknown_option_error,
    without_prefix,
)
from spark_replog.errors import ErrorCode, InvalidConfigError, conflicting_options, invalid_option
from spark_replog.log.model import ResetPolicy
from spark_replog.logs import Once, log_as_environment_says
from spark_replog.spark.row_form import COLUMNS, RowForm
from spark_replog.spark.source.positions import (
    Position,
    check_bounds,
    parse_assignment,
    parse_bounds,
    parse_duration_ms,
    warn_of_precedence,
)
from spark_replog.spark.source.sizing import TriggerLimits
from spark_replog.storage.open_store import is_server_address

if TYPE_CHECKING:
    from spark_replog.spark.decoding import Decoding

Side = Literal["source", "sink"]

DEFAULT_CLIENT_ID = "spark-replog"
_ADDRESS = "kafka.bootstrap.servers"
"""Ignored if ``path`` names the store; otherwise it may hold the store's roots."""
_CLIENT_ID = "kafka.client.id"
_PROTECTED = frozenset(
    {"auto.offset.reset", "enable.auto.commit", "interceptor.classes", "key.deserializer", "value.deserializer"}
)
"""Consumer settings that the source sets itself: refused after the subscription is parsed, as in the connector."""
_HOOKS = frozenset({"interceptor.classes", "key.serializer", "value.serializer"})
_ALSO_PREFIXED = ("transactional.id", "group.id")
_CONNECTOR_ONLY: Mapping[Side, frozenset[str]] = {
    "sink": frozenset({"includeheaders"}),
    "source": frozenset(
        {"fetchoffset.numretries", "fetchoffset.retryintervalms", "groupidprefix", "kafkaconsumer.polltimeoutms"}
    ),
}
"""The connector's own options without a meaning here. The sink writes headers whenever the column exists; the source
has no servers to poll and no consumer group."""
_CONNECTOR_NAMES = (
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "groupIdPrefix",
    "kafkaConsumer.pollTimeoutMs",
    "kafka.bootstrap.servers",
)
MISSPELLING_RATIO = 0.8
"""From this likeness to a known name on (difflib's ratio), an unknown one is taken for a misspelling of it."""
SHORT_NAME, SHORT_MISSPELLING_RATIO = 6, 0.75
"""In a name of so few characters two swapped ones count for more."""
_ENGINE_KEYS = frozenset({"checkpointlocation", "queryname", "path", "paths"})
"""Added by Spark itself, on sources and sinks."""
_PASSED_ON = (STORAGE_PREFIX, REGISTRY_PREFIX)
_TABLE_KEY = "provider"
"""Present only when Spark loads the schema of a catalog table. The table's properties then come as options too."""
_SUBSCRIPTIONS = ("assign", "subscribe", "subscribepattern")
# Here, because every process that Spark starts imports this module: planners, tasks and commits unpickle its classes.
log_as_environment_says()
_STREAM_ONLY = ("minOffsetsPerTrigger", "maxOffsetsPerTrigger", "maxTriggerDelay", "maxBytesPerTrigger")


_LOG = logging.getLogger(__name__)
LOGGED_OPTIONS = Once()


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """Which store. Hashable and picklable: it is the key of per-process caches."""

    path: str
    storage: tuple[tuple[str, str], ...] = field(repr=False)  # secrets

    def cluster(self) -> Cluster:
        """Return this process's opened store."""
        return Cluster.shared(self.path, dict(self.storage))


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
    form: RowForm
    fail_on_data_loss: bool
    limits: TriggerLimits
    partitions_min: int | None
    rows_per_partition_max: int | None
    push_down_filters: bool = False
    hedge_ratio: float = 0.0
    partitions_max: int | None = None
    principal: str | None = None
    client_id: str = DEFAULT_CLIENT_ID
    group_id: str | None = None
    """Group under which a stream publishes its position; None: it does not."""


class TypedInput(NamedTuple):
    """Options that only a write to a typed topic has.

    Attributes:
        timestamp_column: the column with the rows' times; None: the time of the write.
        headers_column: the column with the rows' headers; None: they have none.
        merges_schema: whether columns that the topic lacks are added to it.
    """

    timestamp_column: str | None = None
    headers_column: str | None = None
    merges_schema: bool = False


_UNTYPED = TypedInput()


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Options of a write, stream or batch."""

    store: StoreOptions
    topic: str | None
    producer: ProducerConfig
    coordinator: CoordinatorConfig
    hooks: TaskHooks
    principal: str | None
    client_id: str
    transactional_id: str | None
    on_reset: ResetPolicy
    txn: tuple[str, int] | None
    typed: TypedInput = _UNTYPED
    checkpoint: str | None = None
    query_name: str | None = None


def parse_source_options(options: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """Read the options of ``readStream`` or ``read``.

    Raises:
        InvalidConfigError: REPLOG_UNKNOWN_OPTION, REPLOG_MISSING_OPTION, REPLOG_CONFLICTING_OPTIONS
            or REPLOG_INVALID_OPTION.
    """
    lowered = _lowered(options)
    given = _without_unknown(_without_ignored(lowered, "source"), "source")
    parsed = _source_options(lowered, given, streaming=streaming)
    warn_of_precedence(given)
    if not streaming:
        for name in (option for option in _STREAM_ONLY if option.lower() in given):
            _LOG.warning("%s is for streams and ignored in a batch query", name)
    elif "maxtriggerdelay" in given and parsed.limits.rows_min is None:
        _LOG.warning("maxTriggerDelay has no effect without minOffsetsPerTrigger")
    return parsed


def _source_options(lowered: Mapping[str, str], given: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """Parse known options, in the order of Kafka's connector."""
    starting, ending = parse_bounds(given, streaming=streaming)
    subscription = _subscription(given)
    partitions_min, rows_per_partition_max, partitions_max = _splitting(given)
    for name in given:
        if name.startswith(KEY_PREFIX) and normalise_key(name) in _PROTECTED:
            raise unknown_option_error(name, ())
    _check_consumer_options(lowered)
    store = _store(given)
    limits = _limits(given)
    fail_on_data_loss = _typed(given, "failOnDataLoss")
    if not streaming:
        check_bounds(starting, ending)
    return SourceOptions(
        store=store,
        subscription=subscription,
        starting=starting,
        ending=ending,
        form=_row_form(given),
        fail_on_data_loss=fail_on_data_loss,
        limits=limits,
        partitions_min=partitions_min,
        rows_per_partition_max=rows_per_partition_max,
        partitions_max=partitions_max,
        push_down_filters=_typed(given, "pushDownFilters"),
        hedge_ratio=_typed(given, "hedgeRatio"),
        principal=given.get("principal") or None,
        client_id=_client_id(lowered),
        group_id=_get_prefixed(given, "group.id"),
    )


def parse_sink_options(options: Mapping[str, str], *, streaming: bool) -> SinkOptions:
    """Parse the options of ``writeStream`` or ``write``: once per process, though Spark passes them with every batch.

    Raises the errors of ``parse_source_options``.
    """
    return _sink_options(tuple(options.items()), streaming)


@lru_cache(maxsize=64)
def _sink_options(options: tuple[tuple[str, str], ...], streaming: bool) -> SinkOptions:
    lowered = _lowered(dict(options))
    given = _without_ignored(lowered, "sink")
    for name in given:
        if name not in _HOOKS and normalise_key(name) in _HOOKS:
            raise unknown_option_error(name, ())  # as Kafka's connector; only the name without prefix is an option here
    given = _without_unknown(given, "sink")
    client = without_prefix(
        {
            name: value
            for name, value in given.items()
            if normalise_key(name) in _client_names() and name not in _ENGINE_KEYS
        }
    )
    return SinkOptions(
        store=_store(given),
        topic=_topic(given),
        producer=read_producer_config(client),
        coordinator=read_coordinator_config(client),
        principal=given.get("principal") or None,
        hooks=TaskHooks(**{name.replace(".", "_"): given[name] for name in _HOOKS if name in given}),
        client_id=_client_id(lowered),
        transactional_id=_get_prefixed(given, "transactional.id"),
        on_reset=_reset_policy(given, streaming=streaming),
        txn=_transaction(given, streaming=streaming),
        typed=_typed_input(given),
        checkpoint=lowered.get("checkpointlocation"),
        query_name=lowered.get("queryname"),
    )


class SchemaRequest(NamedTuple):
    """What the schema of a read depends on.

    Attributes:
        topics: the store and its topics whose columns count; None: there are none to look at.
        written: the store and the one topic that a view only writes to, whose columns an INSERT gives.
    """

    form: RowForm
    topics: tuple[StoreOptions, Subscription, str | None] | None = None
    """With the principal, who must be allowed to read them."""
    written: tuple[StoreOptions, str, str | None] | None = None
    """With the principal, who must be allowed to write to it."""


def parse_schema_options(options: Mapping[str, str]) -> SchemaRequest:
    """Check the options that ``schema()`` sees, and return what the schema is made of.

    ``schema()`` cannot see whether a stream, a batch or a SQL view calls it, for reading or for writing. It accepts
    the options of both sides. The properties of a catalog table come as options too; they are not checked.
    """
    given = _lowered(options)
    if _TABLE_KEY in given:
        return SchemaRequest(RowForm(include_headers=_typed(given, "includeHeaders")))
    kept = _without_unknown(_without_ignored(given, "source", "sink"), "source", "sink")
    subscriptions = [name for name in _SUBSCRIPTIONS if name in given]
    if "topic" in given and not subscriptions:
        form = RowForm(include_headers=_typed(given, "includeHeaders"))
        return SchemaRequest(form, written=(_store(kept), kept["topic"], kept.get("principal") or None))
    _refuse_as_both_modes(given, kept)
    form = _row_form(given)
    if len(subscriptions) != 1:
        return SchemaRequest(form)
    return SchemaRequest(form, (_store(kept), _subscription(kept), kept.get("principal") or None))


def _row_form(given: Mapping[str, str]) -> RowForm:
    """Parse what is asked of each row.

    Raises:
        InvalidConfigError: REPLOG_INVALID_OPTION: no column is named, or one that ``rows=kafka`` lacks;
            REPLOG_CONFLICTING_OPTIONS.
    """
    text = given.get("columns")
    names = None if text is None else tuple(name.strip() for name in text.split(",") if name.strip())
    if names == ():
        raise invalid_option(
            f"option 'columns' is '{text}'. Name some of a typed topic's columns, or {', '.join(COLUMNS)}, separated "
            "by commas."
        )
    rows = _typed(given, "rows")
    form = RowForm(
        names,
        _typed(given, "includeHeaders"),
        _typed(given, "includeMetadata"),
        is_kafka=rows == "kafka",
        decoding=_decoding(given),
    )
    if form.decoding is not None:
        if form.is_kafka or form.include_headers:
            name = "rows=kafka" if form.is_kafka else "includeHeaders"
            raise conflicting_options(
                f"{name} shows Kafka's columns, and valueFormat decodes values into columns of their own. Leave one "
                "out; includeMetadata=true adds topic, partition, offset, timestamp, key and headers to decoded rows."
            )
        _ = form.typed_schema(form.decoding.rows)
        return form
    if form.is_kafka and form.include_metadata:
        raise conflicting_options(
            "rows=kafka shows the metadata in columns of their own, so includeMetadata=true has no use. Leave one out."
        )
    if form.is_kafka:
        _ = form.kafka_names
    return form


def _decoding(given: Mapping[str, str]) -> Decoding | None:
    """Parse how values become columns; None: they stay bytes."""
    value_format, schema = _typed(given, "valueFormat"), given.get("valueschema", "").strip()
    if value_format is None and not schema and "valueregistry" not in given:
        return None
    if value_format is None or not schema:
        raise InvalidConfigError(
            ErrorCode.REPLOG_MISSING_OPTION,
            "valueFormat says how values are written, and valueSchema which columns they have. Give both, as in "
            "valueFormat=json and valueSchema='id BIGINT NOT NULL, tags ARRAY<STRING>'.",
        )
    from spark_replog.spark.decoding import decoding_of  # few reads need it

    corrupt = given.get("columnnameofcorruptrecord", "").strip() or None
    place = given.get("valueregistry", "").strip()
    return decoding_of(
        value_format,
        schema,
        _typed(given, "mode"),
        corrupt,
        registry=(place, _with_prefix(given, REGISTRY_PREFIX) if place else ()),
        storage_options=_with_prefix(given, STORAGE_PREFIX),
    )


def _refuse_as_both_modes(lowered: Mapping[str, str], given: Mapping[str, str]) -> None:
    """Refuse options that a stream and a batch refuse with the same text; each mode refuses the others itself."""
    refusals = []
    for streaming in (True, False):
        try:
            _source_options(lowered, given, streaming=streaming)
        except InvalidConfigError as error:
            refusals.append(error)
    if len({str(error) for error in refusals}) == 1 < len(refusals):
        raise refusals[0]


def _without_ignored(given: Mapping[str, str], *sides: Side) -> dict[str, str]:
    """Return the options that these sides use or refuse; log the names of the others once per process."""
    ignored = {name for name in given for side in sides if _is_unused(name, side, side)}
    if given.get("path") or given.get("paths"):
        ignored |= given.keys() & {_ADDRESS}
    else:
        ignored.discard(_ADDRESS)
    _log_once("ignored, because there are no servers here", ignored - {"includeheaders", _CLIENT_ID})
    foreign: set[str] = set()
    if len(sides) == 1:
        other: Side = "sink" if sides[0] == "source" else "source"
        foreign = {name for name in given.keys() - ignored if _is_unused(name, sides[0], other)} - {_ADDRESS}
        _log_once(f"ignored, because they are settings of a {_kafka_client(other)} and this is the {sides[0]}", foreign)
    return {name: value for name, value in given.items() if name not in ignored | foreign}


def _kafka_client(side: Side) -> Literal["producer", "consumer"]:
    return "producer" if side == "sink" else "consumer"


def _is_unused(name: str, side: Side, client_of: Side) -> bool:
    """Return whether ``side`` ignores an option that the Kafka client of ``client_of``, or the connector, knows."""
    if name == _CLIENT_ID or (side == client_of and name in _CONNECTOR_ONLY[side]):
        return True
    plain = name.removeprefix(KEY_PREFIX)
    if plain == name or plain in _names(side) or (side == "source" and plain in _PROTECTED):
        return False
    return is_kafka_setting(plain, _kafka_client(client_of))


def _log_once(why: str, names: Iterable[str]) -> None:
    fresh = sorted(name for name in names if LOGGED_OPTIONS.is_first(name))
    if fresh:
        _LOG.warning("%s: %s", why, ", ".join(fresh))


def _check_consumer_options(given: Mapping[str, str]) -> None:
    """Refuse values that Kafka's connector or consumer refuses, of options without a meaning here."""
    level = given.get("kafka.isolation.level", "read_uncommitted").strip()
    if level not in ("read_uncommitted", "read_committed"):
        raise invalid_option(
            f"Invalid value {level} for configuration isolation.level: String must be one of: read_committed, "
            "read_uncommitted. Leave it out: every row that can be read is committed."
        )
    for name in ("fetchOffset.numRetries", "fetchOffset.retryIntervalMs", "kafkaConsumer.pollTimeoutMs"):
        text = given.get(name.lower(), "0").strip()
        if not re.fullmatch("[+-]?[0-9]{1,18}", text):
            raise invalid_option(f'{name}: For input string: "{text}". Give a whole number.')


def _topic(given: Mapping[str, str]) -> str | None:
    """Return the trimmed topic option. An empty one is refused: it must not silently select the topic column."""
    if "topic" not in given:
        return None
    topic = given["topic"].strip()
    if not topic:
        raise invalid_option("option 'topic' is empty. Name a topic, or leave the option out to use the topic column.")
    return topic


def _client_id(lowered: Mapping[str, str]) -> str:
    return lowered.get("kafka.client.id") or lowered.get("queryname") or DEFAULT_CLIENT_ID


def _lowered(options: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in options.items()}


@cache
def _client_names() -> dict[str, str]:
    """Return the settings of a client that the sink reads: name in lower case -> name."""
    return {key.name.lower(): key.name for key in keys_of("producer", "coordinator")}


@cache
def _names(side: Side) -> dict[str, str]:
    """Return all options that a side reads: name in lower case -> name."""
    names = {key.name.lower(): key.name for key in keys_of(side)}
    return names | _client_names() if side == "sink" else names


@cache
def _key(name: str) -> ConfigKey:
    return next(key for key in keys_of("source", "sink") if key.name == name)


def _without_unknown(given: Mapping[str, str], *sides: Side) -> dict[str, str]:
    """Return the options that the sides read, or refuse themselves; log the names of the others once per process.

    A job may pass one set of options to several formats, so unknown names are ignored. A name that is nearly one that
    is known is refused: its writer means that one.
    """
    names = {lower: name for side in sides for lower, name in _names(side).items()}
    foreign, unknown = set(), set()
    for name in given:
        plain = normalise_key(name)
        if name == "storage.fsync":
            raise invalid_option("storage.fsync is chosen once, by 'replog init'. Remove the option.")
        if name in _ENGINE_KEYS or name == _ADDRESS or name.startswith(_PASSED_ON) or name in names:
            continue
        if plain != name and (plain in _client_names() or plain in _PROTECTED or plain in _ALSO_PREFIXED):
            if plain not in names and plain not in _PROTECTED:
                foreign.add(name)
        elif plain != name and plain in _all_names():
            raise InvalidConfigError(
                ErrorCode.REPLOG_UNKNOWN_OPTION,
                f"option '{name}' is unknown: only settings of a client have that prefix. Write "
                f"'{_all_names()[plain]}'.",
            )
        elif plain in _all_names():
            foreign.add(name)
        else:
            likeness = SHORT_MISSPELLING_RATIO if len(plain) <= SHORT_NAME else MISSPELLING_RATIO
            near = difflib.get_close_matches(plain, _all_names(), n=1, cutoff=likeness)
            if near:
                meant = KEY_PREFIX * (near[0] in _kafka_names()) + _all_names()[near[0]]
                raise InvalidConfigError(
                    ErrorCode.REPLOG_UNKNOWN_OPTION, f"unknown option '{name}'. Did you mean '{meant}'?"
                )
            unknown.add(name)
    _log_once(f"ignored, because the {' and the '.join(sides)} have no such options", foreign)
    _log_once("ignored, because neither this data source nor Kafka's connector knows these options", unknown)
    return {name: value for name, value in given.items() if name not in foreign | unknown}


@cache
def _kafka_names() -> dict[str, str]:
    """Return the settings of Kafka's clients that are not read here: name in lower case -> name."""
    names = {*UNUSED_KAFKA_SETTINGS, *(key.name for key in keys_of("producer", "client", "consumer")), *_PROTECTED}
    return {name.lower(): name for name in names if name not in _names("source") | _names("sink")}


@cache
def _all_names() -> dict[str, str]:
    """Return every option that a job of the connector may have, on either side: name in lower case -> name."""
    connector = {name.lower(): name for name in _CONNECTOR_NAMES}
    return _kafka_names() | connector | _names("source") | _names("sink")


def _typed(given: Mapping[str, str], name: str) -> Any:
    """Return the option's parsed value, or its default if it is not given."""
    key, text = _key(name), given.get(name.lower())
    if text is None:
        return key.default
    if key.unit == "bool" and text.strip().lower() not in ("true", "false"):
        raise invalid_option(f'{name}: For input string: "{text}". Give one of: true, false.')
    return key.parse(text)


def _store(given: Mapping[str, str]) -> StoreOptions:
    path = given.get("path", "").strip()
    if not path and given.get("paths"):
        path = ",".join(json.loads(given["paths"]))
    address = given.get(_ADDRESS, "").strip()
    if not path and address and not any(map(_is_server, address.split(","))):
        path = address  # a job that only changed its format and its address
    if not path:
        servers = f" 'kafka.bootstrap.servers' names servers ({address}), and this store has none." if address else ""
        raise InvalidConfigError(
            ErrorCode.REPLOG_MISSING_OPTION,
            f"no store is given.{servers} 'path' (or the roots in 'kafka.bootstrap.servers') must be specified: "
            "give it as load(path), start(path) or option('path', ...). The options of a "
            "CREATE TABLE do not reach its reads and writes: use CREATE TEMPORARY VIEW ... USING replog OPTIONS.",
        )
    return StoreOptions(path, _with_prefix(given, STORAGE_PREFIX))


def _with_prefix(given: Mapping[str, str], prefix: str) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((name[len(prefix) :], value) for name, value in given.items() if name.startswith(prefix)))


def _is_server(address: str) -> bool:
    """Return whether a part of Kafka's address is a server's: a bare word may be a folder, if it exists."""
    text = address.strip()
    return is_server_address(text) or ("/" not in text and not os.path.isdir(text))


def _subscription(given: Mapping[str, str]) -> Subscription:
    present = [name for name in _SUBSCRIPTIONS if name in given]
    if not present:
        raise InvalidConfigError(
            ErrorCode.REPLOG_MISSING_OPTION,
            "one of the following options must be specified: subscribe, subscribePattern, assign. (The options of "
            "a CREATE TABLE do not reach its reads: use CREATE TEMPORARY VIEW ... USING replog OPTIONS.)",
        )
    if len(present) > 1:
        raise conflicting_options(
            "only one of the following options can be specified: subscribe, subscribePattern, assign.",
            given=",".join(present),
        )
    text = given[present[0]].strip()
    if present[0] == "assign":
        return Subscription(assignment=parse_assignment(text))
    if present[0] == "subscribe":
        topics = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
        if not topics:
            raise invalid_option("subscribe names no topics to subscribe. Give topic names, comma separated.")
        return Subscription(topics=topics)
    return Subscription(pattern=_pattern(text))


def _pattern(text: str) -> str:
    if not text:
        raise invalid_option("subscribePattern: the pattern to subscribe is empty. Give a regular expression.")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", FutureWarning)  # Java's set operations ([a-z&&[^q]]) match differently here
            re.compile(text)
    except (re.error, FutureWarning) as error:
        raise invalid_option(
            f"subscribePattern is not a valid Python regular expression: {error}. Correct it."
        ) from error
    return text


def _splitting(given: Mapping[str, str]) -> tuple[int | None, int | None, int | None]:
    """Return minPartitions, maxRecordsPerPartition and maxPartitions."""
    names = ("minPartitions", "maxRecordsPerPartition", "maxPartitions")
    least, rows_most, most = (_positive(given, name) for name in names)
    if most is not None and rows_most is not None:
        raise conflicting_options(
            "maxPartitions limits the number of tasks and maxRecordsPerPartition their size, so both cannot hold. Keep "
            "one of them."
        )
    if most is not None and least is not None and least > most:
        raise conflicting_options(
            f"the value of minPartitions({least}) is higher than the maxPartitions({most}). Lower the first or "
            "raise the second."
        )
    return least, rows_most, most


def _limits(given: Mapping[str, str]) -> TriggerLimits:
    """Return the limits of a micro-batch. 0 and less are refused; Kafka's connector accepts them and stalls."""
    rows_min, rows_max = _positive(given, "minOffsetsPerTrigger"), _positive(given, "maxOffsetsPerTrigger")
    size_max_bytes = _positive(given, "maxBytesPerTrigger")
    if rows_min is not None and rows_max is not None and rows_min > rows_max:
        raise invalid_option(
            f"the value of minOffsetPerTrigger({rows_min}) is higher than the maxOffsetsPerTrigger({rows_max}). "
            "Lower minOffsetsPerTrigger or raise maxOffsetsPerTrigger."
        )
    delay = given.get("maxtriggerdelay", _key("maxTriggerDelay").default_text)
    delay_ms = parse_duration_ms(delay)
    if delay_ms is None:
        raise invalid_option(
            f"Invalid maxTriggerDelay '{delay}'. Give a time such as 15m, 90s or 500ms; a bare number is milliseconds."
        )
    return TriggerLimits(rows_max, rows_min, delay_ms, size_max_bytes)


def _positive(given: Mapping[str, str], name: str) -> int | None:
    text = given.get(name.lower())
    if text is None:
        return None
    plain = text.strip()
    if not re.fullmatch(r"[+-]?[0-9]{1,19}", plain) or abs(int(plain)) > _key(name).maximum:
        raise invalid_option(f'{name}: For input string: "{plain}". Give a whole number; it must be positive.')
    if int(plain) < 1:
        raise invalid_option(f"option '{name}' is {plain}: {name.lower()} must be positive. Give 1 or more.")
    return int(plain)


def _reset_policy(given: Mapping[str, str], *, streaming: bool) -> ResetPolicy:
    policy = ResetPolicy[_typed(given, "onCheckpointReset").upper()]
    if not streaming and "oncheckpointreset" in given and "txnappid" not in given:
        raise InvalidConfigError(
            ErrorCode.REPLOG_MISSING_OPTION,
            "onCheckpointReset in a batch write needs txnAppId: without it, each write is a new one. Set both.",
        )
    if not streaming and policy is ResetPolicy.APPEND:
        raise conflicting_options(
            "onCheckpointReset=append has no use in a batch write. Leave txnAppId and txnVersion out to write the rows "
            "in any case."
        )
    if _get_prefixed(given, "transactional.id") is not None and not streaming:
        raise conflicting_options(
            "transactional.id is for streaming writes. Use txnAppId and txnVersion in a batch write."
        )
    return policy


def _transaction(given: Mapping[str, str], *, streaming: bool) -> tuple[str, int] | None:
    app_id, version = given.get("txnappid"), given.get("txnversion")
    if app_id is None and version is None:
        return None
    if streaming:
        raise conflicting_options(
            "txnAppId and txnVersion are for batch writes: a streaming write has its batch id. Remove them."
        )
    if app_id is None or version is None:
        raise InvalidConfigError(
            ErrorCode.REPLOG_MISSING_OPTION, "txnAppId and txnVersion only work together. Give both."
        )
    if not app_id.strip():
        raise invalid_option("txnAppId is empty, and writers without a name cannot be told apart. Name this one.")
    return app_id, _typed(given, "txnVersion")


def _typed_input(given: Mapping[str, str]) -> TypedInput:
    names = [given.get(name.lower(), "").strip() or None for name in ("timestampColumn", "headersColumn")]
    if names[0] is not None and names[0] == names[1]:
        raise conflicting_options(
            f"timestampColumn and headersColumn are both '{names[0]}', which cannot be a time and headers. Name two."
        )
    return TypedInput(names[0], names[1], _typed(given, "mergeSchema"))


def _get_prefixed(given: Mapping[str, str], name: str) -> str | None:
    both = (name, KEY_PREFIX + name)
    return without_prefix({key: given[key] for key in both if given.get(key)}).get(name)
