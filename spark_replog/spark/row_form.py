"""The form in which a read hands rows to Spark: Kafka's columns, or a typed topic's own.

The options ask for a form before the topics are known. The schema of the DataFrame is made of it once, by ``load()``;
each later plan finds the version of the topic's columns that gives the same schema again. So a query keeps its columns
while the topic gets newer ones.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from spark_replog.errors import ErrorCode, InvalidConfigError, conflicting_options, invalid_option
from spark_replog.log.ddl import columns_text, invalid_schema
from spark_replog.log.row_key import key_array
from spark_replog.log.row_schema import RowSchema
from spark_replog.logs import Once
from spark_replog.read.rows import LOG_COLUMNS, RowView
from spark_replog.read.rows import read_schema as arrow_read_schema
from spark_replog.spark.column_types import spark_type

if TYPE_CHECKING:
    from spark_replog.spark.decoding import Decoding

_LOG = logging.getLogger(__name__)
COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
METADATA = "_metadata"
HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
_KAFKA_TYPES = dict(
    zip(
        COLUMNS,
        (
            BinaryType(), BinaryType(), StringType(), IntegerType(), LongType(), TimestampType(), IntegerType(), HEADERS
        ),
        strict=True,
    )
)  # fmt: skip
_METADATA_NAMES = (*COLUMNS[2:7], "key", "headers")
_METADATA_TYPE = StructType([StructField(name, _KAFKA_TYPES[name]) for name in _METADATA_NAMES])
_LOG_NAMES = dict(zip((*COLUMNS[2:7], "headers"), LOG_COLUMNS, strict=True))
"""Column of Kafka's form -> of a typed read."""
_WITH_HEADERS = arrow_read_schema(True)
NAMED_NEWER = Once()
Versions: TypeAlias = tuple[RowSchema, ...]
"""Of a topic's columns, oldest first; () for a topic of bytes."""


@dataclass(frozen=True, slots=True)
class RowForm:
    """What the options ask of each row. Picklable; goes to executors.

    Attributes:
        columns: names of the option ``columns``, as given; None: all.
        include_headers: whether the column ``headers`` is asked for by its own option.
        include_metadata: whether rows of typed topics, and decoded ones, get the struct ``_metadata``.
        is_kafka: whether rows of typed topics are shown in Kafka's columns too.
        decoding: how values of topics of bytes become columns; None: they stay bytes.
    """

    columns: tuple[str, ...] | None = None
    include_headers: bool = False
    include_metadata: bool = False
    is_kafka: bool = False
    decoding: Decoding | None = None

    @property
    def fits_bytes(self) -> bool:
        """Return whether topics of bytes have what the options ask for."""
        return self.decoding is not None or (not self.include_metadata and set(self.columns or ()) <= set(COLUMNS))

    @property
    def kafka_names(self) -> tuple[str, ...]:
        """Return the columns of Kafka's form, in its order.

        Raises:
            InvalidConfigError: REPLOG_INVALID_OPTION: an unknown name.
        """
        asked = set(COLUMNS[:7] if self.columns is None else self.columns)
        if not asked <= set(COLUMNS):
            raise invalid_option(
                f"option 'columns' is '{','.join(self.columns or ())}'. Name some of {', '.join(COLUMNS)}, separated "
                "by commas."
            )
        return tuple(name for name in COLUMNS if name in asked or (name == "headers" and self.include_headers))

    @property
    def kafka_schema(self) -> StructType:
        """Return the schema of Kafka's form; every field is nullable. Raises as `kafka_names`."""
        return StructType([StructField(name, _KAFKA_TYPES[name]) for name in self.kafka_names])

    def shown(self, rows: RowSchema) -> tuple[str, ...]:
        """Return the columns of a typed topic that the option names, in the topic's order; all without the option.

        A name is found by its exact letters, else without regard to case: a topic has no two names that differ in case.

        Raises:
            InvalidConfigError: REPLOG_INVALID_OPTION: the topic has no such column.
        """
        if self.columns is None:
            return tuple(rows.names)
        by_lower = {name.lower(): name for name in rows.names}
        for name in self.columns:
            if name.lower() not in by_lower:
                raise invalid_option(
                    f"option 'columns' names '{name}', and the topic has {', '.join(rows.names)}. Name some of these, "
                    "separated by commas.",
                    column=name,
                )
        asked = {name.lower() for name in self.columns}
        return tuple(name for name in rows.names if name.lower() in asked)

    def typed_schema(self, rows: RowSchema) -> StructType:
        """Return the schema in which Spark gets a typed topic's rows.

        Every field is nullable, as in Spark's readers of files: a later version of the topic's columns may drop
        NOT NULL.
        """
        fields = [StructField(name, spark_type(rows.arrow.field(name).type)) for name in self.shown(rows)]
        if self.include_metadata:
            taken = next((name for name in rows.names if name.lower() == METADATA), None)
            if taken is not None:
                raise conflicting_options(
                    f"includeMetadata adds a column {METADATA}, and the topic has a column '{taken}'. Leave the option "
                    "out, or read the topic with rows=kafka.",
                    column=taken,
                )
            fields.append(StructField(METADATA, _METADATA_TYPE))
        return StructType(fields)

    def schema(self, topics: Mapping[str, Versions]) -> StructType:
        """Return the schema of a read of these topics, with their newest columns.

        Args:
            topics: by name; none: they are taken for topics of bytes.

        Raises:
            InvalidConfigError: REPLOG_INVALID_SCHEMA: the topics differ; REPLOG_INVALID_OPTION or
                REPLOG_CONFLICTING_OPTIONS: an option does not fit them.
        """
        if self.decoding is not None:
            self.decoding.check_topics(sorted(name for name, versions in topics.items() if versions))
            return self.typed_schema(self.decoding.rows)
        if self._is_kafka_form(topics):
            return self.kafka_schema
        schemas = {name: self.typed_schema(versions[-1]) for name, versions in sorted(topics.items())}
        first, *others = schemas
        for other in others:
            if schemas[other].simpleString() != schemas[first].simpleString():
                raise _differ(first, schemas[first], other, schemas[other])
        return schemas[first]

    def views(self, declared: StructType | None, topics: Mapping[str, Versions]) -> dict[str, RowView]:
        """Return how the rows of each typed topic are read so that a DataFrame gets the columns that it has.

        Args:
            declared: the DataFrame's schema; None: what `schema` returns now.
            topics: that exist now, by name.

        Raises:
            InvalidConfigError: REPLOG_INVALID_SCHEMA: no version of a topic's columns fits the DataFrame; as `schema`.
        """
        if not topics:
            return {}
        text = (self.schema(topics) if declared is None else declared).simpleString()
        if self.decoding is not None:
            self._check_decoded(text, topics)
            return {}
        if self._is_kafka_form(topics):
            self.check(text)
            return {name: self._kafka_view(versions[-1]) for name, versions in topics.items() if versions}
        views = {}
        for name, versions in topics.items():
            rows = next((rows for rows in reversed(versions) if _typed_text(self, rows) == text), None)
            if rows is None:
                raise invalid_schema(
                    f"the DataFrame has the columns {text}, and no version of topic '{name}' has them: its newest is "
                    f"{_typed_text(self, versions[-1])}. Call load() again, without schema(...); select and cast "
                    "columns after it.",
                    topic=name,
                )
            if rows is not versions[-1] and NAMED_NEWER.is_first((name, len(versions))):
                _LOG.warning(
                    "topic '%s' has version %d of its columns, and this query began with version %d, which it keeps. "
                    "Start it again, with a new load(), to read the newer columns.",
                    name, len(versions), rows.version,
                )  # fmt: skip
            views[name] = RowView(_nullable(rows), self._needed(rows))
        return views

    def check(self, declared: str) -> None:
        """Refuse a user's schema that differs from Kafka's form. Raises REPLOG_INVALID_SCHEMA."""
        expected = self.kafka_schema.simpleString()
        if declared != expected:
            raise InvalidConfigError(
                ErrorCode.REPLOG_INVALID_SCHEMA,
                "replog has a fixed schema. Remove schema(...) and cast the columns in a select.",
                given=declared,
                expected=expected,
            )

    def _check_decoded(self, declared: str, topics: Mapping[str, Versions]) -> None:
        expected = self.schema(topics).simpleString()
        if declared != expected:
            raise invalid_schema(
                "valueSchema says which columns the values have. Remove schema(...), and select and cast columns after "
                "load().",
                given=declared,
                expected=expected,
            )

    def _is_kafka_form(self, topics: Mapping[str, Versions]) -> bool:
        """Return whether Kafka's columns are shown; refuse topics and options that do not fit each other."""
        typed = sorted(name for name, versions in topics.items() if versions)
        if self.is_kafka or not topics:
            return True
        untyped = sorted(name for name, versions in topics.items() if not versions)
        if typed and untyped:
            raise invalid_schema(
                f"topic '{typed[0]}' is typed, and topic '{untyped[0]}' has rows of bytes, so they have no columns in "
                "common. Read them one by one, or all with rows=kafka.",
                topic=typed[0],
            )
        if self.include_metadata and not typed:
            raise conflicting_options(
                f"includeMetadata adds the column {METADATA} to rows of typed topics, and topic '{untyped[0]}' has "
                "rows of bytes, whose metadata are columns already. Leave the option out."
            )
        if self.include_headers and typed:
            raise conflicting_options(
                f"includeHeaders adds a column to Kafka's, and topic '{typed[0]}' is typed. Use includeMetadata=true "
                f"and {METADATA}.headers, or rows=kafka."
            )
        return not typed

    def _needed(self, rows: RowSchema) -> tuple[str, ...]:
        """Return the columns to decode: those shown, then those of the key that only its bytes are made of."""
        shown = self.shown(rows)
        return shown + tuple(name for name in rows.key if self.include_metadata and name not in shown)

    def _kafka_view(self, rows: RowSchema) -> RowView:
        names = self.kafka_names
        if "value" in names:
            return RowView(rows)
        return RowView(rows, rows.key if "key" in names else ())

    # ------------------------------------------------------------------------------ rows: executors

    def reads_headers(self, *, is_typed: bool) -> bool:
        """Return whether headers are to be read from storage; is_typed: of typed topics."""
        if self.decoding is not None or (is_typed and not self.is_kafka):
            return self.include_metadata
        return "headers" in self.kafka_names

    def of_bytes(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the asked columns of rows of bytes, in Kafka's order, of a read with or without headers.

        All columns, if `decoded` is to follow.
        """
        return batch.select(list(self.kafka_names)) if self.columns is not None and self.decoding is None else batch

    def decoded(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield a task's rows of bytes as Spark gets them: as they are, or decoded into columns.

        Raises:
            ReplogError: REPLOG_DESERIALIZATION: a record is bad, and ``mode=FAILFAST``.
        """
        if self.decoding is None:
            yield from batches
            return
        from spark_replog.spark.decoding import RowDecoder  # few reads need it

        for batch, columns in RowDecoder(self.decoding, self.shown(self.decoding.rows)).decode(batches):
            if not len(columns):
                continue
            rows = columns
            if self.include_metadata:
                inner = [_WITH_HEADERS.field(name) for name in _METADATA_NAMES]
                parts = [batch.column(name) for name in _METADATA_NAMES]
                metadata = pa.StructArray.from_arrays(parts, fields=inner)
                rows = columns.append_column(METADATA, metadata)
            yield rows

    def of_typed(self, batch: pa.RecordBatch, view: RowView) -> Iterator[pa.RecordBatch]:
        """Yield typed rows as Spark gets them; one batch, or several if they become large texts.

        Without a step per row. The JSON of `rows=kafka` takes several times as long as reading the columns: each value
        becomes text, and the names of all columns are repeated in every row.

        Args:
            batch: N >= 1 rows of `view.read_schema(True)`, or without headers if none are asked for.
        """
        if not self.is_kafka:
            yield self._columns_of(batch, view)
            return
        names = self.kafka_names
        schema = pa.schema([_WITH_HEADERS.field(name) for name in names])
        step = len(batch)
        if "value" in names:
            from spark_replog.log.json_rows import json_step  # few reads need it

            step = json_step(batch)
        for start in range(0, len(batch), step):
            part = batch.slice(start, step)
            yield pa.RecordBatch.from_arrays([self._kafka_column(name, part, view) for name in names], schema=schema)

    def _columns_of(self, batch: pa.RecordBatch, view: RowView) -> pa.RecordBatch:
        assert view.schema is not None
        names = self.shown(view.schema)
        columns = [batch.column(name) for name in names]
        fields = [column.with_nullable(True) for column in view.fields[: len(names)]]
        if self.include_metadata:
            parts = [self._kafka_column(name, batch, view) for name in _METADATA_NAMES]
            inner = [_WITH_HEADERS.field(name) for name in _METADATA_NAMES]
            columns.append(pa.StructArray.from_arrays(parts, fields=inner))
            fields.append(pa.field(METADATA, columns[-1].type))
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))

    def _kafka_column(self, name: str, batch: pa.RecordBatch, view: RowView) -> pa.Array:
        assert view.schema is not None
        if name == "key":
            keys = [batch.column(column) for column in view.schema.key]
            return key_array(keys) if keys else pa.nulls(len(batch), pa.binary())
        if name == "value":
            from spark_replog.log.json_rows import json_rows

            return json_rows(batch.select([column.name for column in view.fields]))
        return batch.column(_LOG_NAMES[name])


@lru_cache(maxsize=256)
def _nullable(rows: RowSchema) -> RowSchema:
    """Return the columns without NOT NULL: the DataFrame's have none, and a newer version may have dropped it."""
    return RowSchema(columns_text(column.with_nullable(True) for column in rows.arrow), rows.key, rows.version)


@lru_cache(maxsize=256)
def _typed_text(form: RowForm, rows: RowSchema) -> str:
    """Return `RowForm.typed_schema` as text; "" if the version lacks a column that the options name."""
    try:
        return form.typed_schema(rows).simpleString()
    except InvalidConfigError:
        return ""


def _differ(name: str, schema: StructType, other: str, its: StructType) -> InvalidConfigError:
    return invalid_schema(
        f"topic '{name}' has the columns {schema.simpleString()}, and topic '{other}' {its.simpleString()}. Read them "
        "one by one, name columns that they share in the option 'columns', or use rows=kafka.",
        topic=other,
    )
