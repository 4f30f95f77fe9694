"""Converts input batches to a typed topic's columns, by name and without a step per row.

Nothing is guessed: a column that the topic lacks, one that it needs, or a type that may lose a value is refused before
any row is stored. What a reader could not read back is refused too, such as text that is not UTF-8.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from spark_replog.errors import ErrorCode, InvalidConfigError
from spark_replog.log.codec.data_object import (
    BUFFER_BYTES_MAX,
    HEADERS_TYPE,
    LOG_PREFIX,
    TIMESTAMP_TYPE,
    TYPED_HEADERS,
    TYPED_TIMESTAMP,
    data_schema,
)
from spark_replog.log.codec.empty_lists import with_offsets
from spark_replog.log.column_cast import cast_column, widens
from spark_replog.log.ddl import input_type_text, invalid_schema, type_text
from spark_replog.log.row_key import key_array
from spark_replog.log.row_schema import RowSchema
from spark_replog.write.columns import Rows, is_headers, is_time, normalise_headers, row_ends, row_times

TYPED_PARTITION = LOG_PREFIX + "partition"


class TypedColumns:
    """Finds and checks the columns of one input schema; created once per schema.

    Besides the topic's columns an input may have ``_replog_timestamp`` (with a zone), ``_replog_headers`` and
    ``_replog_partition`` (int32): the time, the headers and the partition of a row. Other names that begin with
    ``_replog_``, as a scan gives them, are left out.

    Args:
        schema: of the input.
        rows: the topic's columns.
        topic: its name, for errors.
        is_case_sensitive: whether names must be equal; else case does not count.
        timestamp_column: the column with the rows' times in place of ``_replog_timestamp``; if the topic has a column
            of this name it is stored there too.
        headers_column: likewise, in place of ``_replog_headers``.

    Raises:
        InvalidConfigError: REPLOG_INVALID_SCHEMA; no row was read.
    """

    def __init__(
        self,
        schema: pa.Schema,
        rows: RowSchema,
        topic: str,
        *,
        is_case_sensitive: bool = True,
        timestamp_column: str | None = None,
        headers_column: str | None = None,
    ) -> None:
        self.schema, self.rows = schema, rows
        self._topic = topic
        self._fold = str if is_case_sensitive else str.lower
        at: dict[str, int] = {}
        for number, name in enumerate(schema.names):
            if at.setdefault(self._fold(name), number) != number:
                raise invalid_schema(
                    f"the input for topic '{topic}' has two columns '{name}'. Rename or drop one.", column=name
                )
        self._at = [at.pop(self._fold(field.name), None) for field in rows.arrow]
        self._timestamp = self._log_column(at, timestamp_column or TYPED_TIMESTAMP, is_time, "a TIMESTAMP")
        self._headers = self._log_column(at, headers_column or TYPED_HEADERS, is_headers, type_text(HEADERS_TYPE))
        for name, place in ((timestamp_column, self._timestamp), (headers_column, self._headers)):
            if name is not None and place is None:
                raise invalid_schema(f"the input for topic '{topic}' lacks the column '{name}'. Name another.")
        self._partition = self._log_column(at, TYPED_PARTITION, pa.types.is_int32, "INT")
        self._refuse_extra([schema.names[number] for number in at.values()])
        for field, place in zip(rows.arrow, self._at, strict=True):
            self._check(field, None if place is None else schema.field(place))

    def _log_column(
        self, at: dict[str, int], name: str, accepts: Callable[[pa.DataType], bool], wanted: str
    ) -> int | None:
        schema = self.schema
        number: int | None = at.pop(self._fold(name), None)
        if number is None and name not in (TYPED_TIMESTAMP, TYPED_HEADERS, TYPED_PARTITION):
            names = [self._fold(field.name) for field in self.rows.arrow]
            number = self._at[names.index(self._fold(name))] if self._fold(name) in names else None
        if number is not None and not accepts(schema.field(number).type):
            kind = type_text(schema.field(number).type)
            raise invalid_schema(f"column '{name}' is {kind}. Make it {wanted}, or leave it out.", column=name)
        return number

    def _refuse_extra(self, names: list[str]) -> None:
        extra = [name for name in names if not name.lower().startswith(LOG_PREFIX)]
        if not extra:
            return
        near = next((name for name in self.rows.names if name.lower() == extra[0].lower()), "")
        hint = f"Rename it to '{near}'" if near else "Drop it, or add it to the topic's schema"
        raise invalid_schema(
            f"column '{extra[0]}' is not in the schema of topic '{self._topic}': {self.rows.ddl}. {hint}.",
            column=extra[0],
            topic=self._topic,
        )

    def _check(self, field: pa.Field, given: pa.Field | None) -> None:
        if given is None:
            if not field.nullable:
                raise invalid_schema(
                    f"column '{field.name}' {type_text(field.type)} of topic '{self._topic}' is NOT NULL, and the input"
                    " lacks it. Add it.",
                    column=field.name,
                    topic=self._topic,
                )
        elif not widens(given.type, field.type):
            raise invalid_schema(
                f"column '{field.name}' of the input is {input_type_text(given.type)}, and topic '{self._topic}' has"
                f" {type_text(field.type)}, which may not hold each of its values. Cast it:"
                f" CAST({field.name} AS {type_text(field.type)}), or column.cast(...) in pyarrow.",
                column=field.name,
                topic=self._topic,
                input=input_type_text(given.type),
                schema=type_text(field.type),
            )

    def normalise(self, batch: pa.RecordBatch, now_ms: int) -> Rows:
        """Return the batch's rows in the topic's columns; zero-copy where types allow it.

        Args:
            batch: N >= 1 rows of this schema.
            now_ms: timestamp of rows that have none.

        Raises:
            InvalidConfigError: INVALID_RECORD: a null in a NOT NULL column, or a value that cannot be stored;
                INVALID_TIMESTAMP.
        """
        columns = [
            pa.nulls(len(batch), field.type) if number is None else self._column(batch.column(number), field)
            for field, number in zip(self.rows.arrow, self._at, strict=True)
        ]
        keys = pa.nulls(len(batch), pa.binary())
        if self.rows.key:
            names = self.rows.names
            keys = key_array([columns[names.index(name)] for name in self.rows.key])
        if self._timestamp is None:
            micros = pa.py_buffer(np.full(len(batch), now_ms * 1000, dtype=np.int64))
            columns.append(pa.Array.from_buffers(TIMESTAMP_TYPE, len(batch), [None, micros]))
        else:
            columns.append(row_times(batch.column(self._timestamp), now_ms))
        headers = None if self._headers is None else normalise_headers(batch.column(self._headers))
        if headers is not None:
            columns.append(headers)
        data = pa.RecordBatch.from_arrays(columns, schema=data_schema(headers is not None, rows=self.rows))
        return Rows(
            data=data,
            topic=None,
            partition=None if self._partition is None else batch.column(self._partition),
            size_bytes=int(row_ends(data, np.array([0, len(data)]))[-1]),
            pinned_bytes=max(batch.get_total_buffer_size(), data.get_total_buffer_size()),
            dated_at_ms=None if self._timestamp is None else now_ms,
            schema=self.rows,
            typed_keys=keys,
        )

    def _column(self, column: pa.Array, field: pa.Field) -> pa.Array:
        if not field.nullable and column.null_count:
            raise self._refusal(field, f"{column.null_count} of {len(column)} rows are null in the NOT NULL column")
        try:
            made = cast_column(with_offsets(column), field.type)
            made.validate(full=True)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise self._refusal(field, f"a value of the input cannot be stored ({error}) in column") from error
        if not field.nullable and made.null_count:  # a dictionary may hold a null
            raise self._refusal(field, f"{made.null_count} of {len(made)} rows are null in the NOT NULL column")
        if made.nbytes >= BUFFER_BYTES_MAX:
            raise InvalidConfigError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"An Arrow batch has 2 GiB or more in column '{field.name}'. Send fewer rows at once; in Spark lower"
                " spark.sql.execution.arrow.maxRecordsPerBatch.",
                column=field.name,
            )
        return made

    def _refusal(self, field: pa.Field, what: str) -> InvalidConfigError:
        return InvalidConfigError(
            ErrorCode.INVALID_RECORD,
            f"{what} '{field.name}' {type_text(field.type)} of topic '{self._topic}'. Correct these rows, or leave them"
            " out.",
            column=field.name,
            topic=self._topic,
        )
