"""Topics of bytes read as columns: the option ``valueFormat``, and what becomes of a bad record in each ``mode``."""

from __future__ import annotations

import base64
import logging
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc

from spark_replog.errors import ErrorCode, InvalidConfigError, ReplogError, conflicting_options, invalid_option
from spark_replog.log.avro_columns import Registry, columns_of_avro, is_avro_schema
from spark_replog.log.ddl import columns_text, type_text
from spark_replog.log.row_schema import RowSchema
from spark_replog.log.value_decoder import ValueDecoder
from spark_replog.storage.schema_registry import SchemaRegistry, read_schema_file

_LOG = logging.getLogger(__name__)
PERMISSIVE, DROP, FAIL = "PERMISSIVE", "DROPMALFORMED", "FAILFAST"
CORRUPT_COLUMN = "_corrupt_record"


@dataclass(frozen=True)
class Decoding:
    """How values become columns. Picklable and small; goes to executors.

    Args:
        value_format: as of `ValueDecoder`.
        rows: all columns of the option ``valueSchema``.
        mode: what a bad record is: a row of nulls, no row, or an error.
        corrupt: the name of the STRING column that gets the value of a bad record, if ``rows`` has it.
        avro: the Avro schema of the values, if ``valueSchema`` is one and they are Avro; else "".
        registry: the URL of the schema registry; "": there is none.
        registry_options: of its client.
        storage_options: of a registry that is a folder.

    Raises:
        InvalidConfigError: REPLOG_INVALID_OPTION: that column is none of STRING, or the only one.
    """

    value_format: str
    rows: RowSchema
    mode: str = PERMISSIVE
    corrupt: str = CORRUPT_COLUMN
    avro: str = ""
    registry: str = ""
    registry_options: tuple[tuple[str, str], ...] = field(default=(), repr=False)  # secrets
    storage_options: tuple[tuple[str, str], ...] = field(default=(), repr=False)  # secrets

    def __post_init__(self) -> None:
        column = next((column for column in self.rows.arrow if column.name == self.corrupt), None)
        if column is None:
            return
        if column.type != pa.string() or not column.nullable:
            raise invalid_option(
                f"column '{column.name}' {type_text(column.type)}{'' if column.nullable else ' NOT NULL'} is to hold "
                "the values of bad records as text, or null. Make it STRING in valueSchema, or name another one in "
                "columnNameOfCorruptRecord.",
                column=column.name,
            )
        if len(self.rows.names) == 1:
            raise invalid_option(f"valueSchema has no column besides '{column.name}'. Add those of the values.")

    def check_topics(self, typed: Iterable[str]) -> None:
        """Refuse typed topics. Raises REPLOG_CONFLICTING_OPTIONS."""
        name = next(iter(typed), None)
        if name is not None:
            raise conflicting_options(
                f"valueFormat decodes values of topics of bytes, and topic '{name}' is typed: its rows are columns "
                "already. Leave valueFormat and valueSchema out, or read that topic by itself.",
                topic=name,
            )

    def open_registry(self) -> Registry | None:
        """Return what finds the schema of a value; None: values have no numbers of schemas.

        Raises:
            ReplogError: REPLOG_INVALID_OPTION, REPLOG_ENVIRONMENT.
        """
        if not self.registry:
            return None
        return SchemaRegistry(self.registry, dict(self.registry_options), dict(self.storage_options)).texts


def decoding_of(
    value_format: str,
    text: str,
    mode: str,
    corrupt: str | None,
    *,
    registry: tuple[str, tuple[tuple[str, str], ...]] = ("", ()),
    storage_options: tuple[tuple[str, str], ...] = (),
) -> Decoding:
    """Return how values are decoded, and check that they can be.

    Args:
        text: the columns, as DDL or an Avro schema, or the path or URL of a file with either.
        corrupt: the column for the values of bad records. It is added to the columns of an Avro schema, which has no
            place for it. None: `CORRUPT_COLUMN`, if the columns have it.
        registry: its URL, and its client's options.

    Raises:
        ReplogError: REPLOG_INVALID_SCHEMA, REPLOG_INVALID_OPTION, REPLOG_MISSING_OPTION, REPLOG_ENVIRONMENT.
    """
    if not is_avro_schema(text) and (text.startswith(("/", "./", "../")) or "://" in text or not _SPACE.search(text)):
        text = read_schema_file(text, dict(storage_options)).strip()
    avro = text if is_avro_schema(text) else ""
    is_avro = value_format == "avro"
    if is_avro and not avro and not registry[0]:
        raise InvalidConfigError(
            ErrorCode.REPLOG_MISSING_OPTION,
            "values in Avro are read with the schema with which they were written. Give it as valueSchema, or name the "
            "registry that has it in valueRegistry.",
        )
    rows = RowSchema.of(columns_of_avro(avro) if avro else text)
    if avro and corrupt is not None and corrupt not in rows.names:
        rows = RowSchema(f"{rows.ddl}, {columns_text([pa.field(corrupt, pa.string())])}")
    corrupt = corrupt or CORRUPT_COLUMN
    decoding = Decoding(value_format, rows, mode, corrupt, avro if is_avro else "", *registry, storage_options)
    decoding.open_registry()
    return decoding


_SPACE = re.compile(r"\s")


class RowDecoder:
    """Decodes the batches of one task. Executor.

    Args:
        shown: the columns that the rows get, in their order.
    """

    def __init__(self, decoding: Decoding, shown: Iterable[str]) -> None:
        self._decoding = decoding
        self._shown = tuple(shown)
        self._bad_count, self._first_bad = 0, ""

    @cached_property
    def _decoder(self) -> ValueDecoder:
        arrow, corrupt = self._decoding.rows.arrow, self._decoding.corrupt
        names = [name for name in self._shown if name != corrupt] or [name for name in arrow.names if name != corrupt]
        return ValueDecoder(
            self._decoding.value_format,
            pa.schema([arrow.field(name) for name in names]),
            avro=self._decoding.avro,
            registry=self._decoding.open_registry(),
        )

    def decode(self, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[pa.RecordBatch, pa.RecordBatch]]:
        """Yield batches of a read of bytes, without bad records if they are left out, and their shown columns.

        Raises:
            ReplogError: REPLOG_DESERIALIZATION: a record is bad, and mode is FAILFAST.
        """
        try:
            for batch in batches:
                yield self._decode(batch)
        finally:
            if self._bad_count:
                became = "left out" if self._decoding.mode == DROP else "rows of nulls"
                _LOG.warning("%d bad records are %s; the first is %s", self._bad_count, became, self._first_bad)

    def _decode(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        columns, reasons = self._decoder.decode(batch.column("value"))
        is_bad = reasons.is_valid()
        bad_count = len(reasons) - reasons.null_count
        if bad_count:
            self._note(batch, reasons, is_bad.index(True).as_py(), bad_count)
            if self._decoding.mode == DROP:
                is_good = pc.invert(is_bad)
                batch, columns, is_bad = batch.filter(is_good), columns.filter(is_good), is_bad.filter(is_good)
        arrays = [
            _texts(batch.column("value"), is_bad) if name == self._decoding.corrupt else columns.column(name)
            for name in self._shown
        ]
        fields = [pa.field(name, array.type) for name, array in zip(self._shown, arrays, strict=True)]
        return batch, pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))

    def _note(self, batch: pa.RecordBatch, reasons: pa.Array, row: int, bad_count: int) -> None:
        topic, partition, offset = (batch.column(name)[row].as_py() for name in ("topic", "partition", "offset"))
        if self._decoding.mode == FAIL:
            raise ReplogError(
                ErrorCode.REPLOG_DESERIALIZATION,
                f"the value at offset {offset} of {topic}-{partition} does not fit valueSchema: {reasons[row]}. "
                "Correct valueSchema, or choose the mode PERMISSIVE or DROPMALFORMED.",
                topic=topic,
                partition=partition,
                offset=offset,
            )
        self._first_bad = self._first_bad or f"offset {offset} of {topic}-{partition}: {reasons[row]}"
        self._bad_count += bad_count


def _texts(values: pa.Array, is_bad: pa.Array) -> pa.Array:
    """Return the values of bad records as text, null for good ones; bytes that are not UTF-8 as ``{"b64": ...}``."""
    bad = pc.if_else(is_bad, values, pa.scalar(None, values.type))
    try:
        return bad.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([None if value is None else _text(value) for value in bad.to_pylist()], pa.string())


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return f'{{"b64":"{base64.b64encode(value).decode()}"}}'
