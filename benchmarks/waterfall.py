"""The waterfall of one micro-batch, replog to replog, or of one batch write, as an SVG picture of real timestamps.

    python -m benchmarks.waterfall --out FILE.svg [--defaults] [--floor] [--batches 60] [--dir FOLDER]
    python -m benchmarks.waterfall --out FILE.svg --write {replog,least,floor} [--copies 1] [--rows 4000000]

--floor: of the Python source and sink that do nothing, their garbage frozen.
--write: of a batch write as `benchmarks.spark_throughput` times it; the median of nine after two that warm up. Each
Arrow batch costs a note of the hook, some 0.05 ms.

Three local roots, 3 replicas, fsync on, two tasks, 1,000 rows a batch, the settings of ``session_conf()`` unless
``--defaults``. Of the micro-batches after the 30th the one whose duration is the median is drawn; the table has the
medians of all. Spark's phases are its own durations, one after the other from the trigger's time; jobs and tasks come
from its event log; the spans of Python processes from a hook that is loaded into each of them and notes when what Spark
calls, and each storage call, began and ended.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections import defaultdict
from datetime import datetime
from html import escape
from pathlib import Path
from typing import NamedTuple

from benchmarks.bench_session import scratch, session
from benchmarks.micro_batch import ROWS, WARM_UP, durations, floor_sink, floor_source, replog_sink, replog_source
from benchmarks.spark_throughput import PARTITIONS, least_folders, make_store
from spark_replog import session_conf
from spark_replog.admin.controller import Controller
from spark_replog.cluster.init_store import init_cluster

WRITES, WRITES_WARM_UP = 9, 2
PHASES = ("latestOffset", "walCommit", "getBatch", "queryPlanning", "addBatch", "commitOffsets")
COLORS = {"driver": "#4878a8", "job": "#88a8c8", "task": "#b8c8d8", "python": "#c87838", "storage": "#489858"}
HOOK = '''
"""Notes when functions of spark_replog began and ended in this process: made by benchmarks.waterfall."""
import functools, gc, importlib.abc, importlib.machinery, inspect, json, os, sys, time

FILE = {file!r}
WRAPPED = {{
    "spark_replog.spark.data_source": [
        "ReplogDataSource.streamWriter", "ReplogDataSource.streamReader", "ReplogDataSource.writer"],
    "spark_replog.spark.source.stream_reader": [
        "StreamReader.latestOffset", "StreamReader.partitions", "StreamReader.commit", "StreamReader.read"],
    "spark_replog.spark.sink.sink": [
        "StreamWriter.write", "StreamWriter.commit", "BatchWriter.write", "BatchWriter.commit"],
    "spark_replog.write.task_writer": ["TaskWriter.append", "TaskWriter.close"],
    "spark_replog.storage.posix_store": ["PosixStore.create", "PosixStore.get"],
    "benchmarks.floors": [
        "Floor.streamWriter", "PassStreamReader.latestOffset", "PassStreamReader.partitions", "PassStreamReader.read",
        "CountStreamWriter.write", "CountStreamWriter.commit", "Floor.writer", "CountWriter.write",
        "CountWriter.commit", "LeastWriter.write", "LeastTask.append", "LeastTask.await_puts"],
}}


def note(name, began_ns):
    line = json.dumps([os.getpid(), name, began_ns / 1e6, time.time_ns() / 1e6]) + "\\n"
    fd = os.open(FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, line.encode())
    os.close(fd)


def collecting(phase, info):
    global began_gc_ns
    if phase == "start":
        began_gc_ns = time.time_ns()
    elif info["generation"] == 2 and sys.modules.keys() & WRAPPED.keys():
        note("gc", began_gc_ns)


began_gc_ns = 0
gc.callbacks.append(collecting)


def wrap(name, function):
    @functools.wraps(function)  # Spark looks at the parameters
    def call(self, *args, **named):
        began_ns = time.time_ns()
        try:
            found = function(self, *args, **named)
            if not inspect.isgenerator(found):
                return found
        finally:
            if not name.endswith("StreamReader.read"):
                key = args[0] if args and name.startswith("PosixStore") else ""
                note(name + " " + key.split("/")[2] if key.count("/") > 2 else name, began_ns)
        return rows(found, began_ns)

    def rows(found, began_ns):
        yield from found
        note(name, began_ns)

    return call


class Loader(importlib.abc.Loader):
    def __init__(self, inner):
        self.inner = inner

    def create_module(self, spec):
        return self.inner.create_module(spec)

    def exec_module(self, module):
        began_ns = time.time_ns()
        self.inner.exec_module(module)
        note("import " + module.__name__.removeprefix("spark_replog."), began_ns)
        for each in WRAPPED[module.__name__]:
            kind, method = each.split(".")
            owner = getattr(module, kind)
            setattr(owner, method, wrap(each, getattr(owner, method)))


class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name not in WRAPPED:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        spec.loader = Loader(spec.loader)
        return spec


sys.meta_path.insert(0, Finder())
'''


class Span(NamedTuple):
    """What ran from when to when, in epoch milliseconds."""

    lane: str
    name: str
    kind: str
    start_ms: float
    end_ms: float


def spans_of_spark(folder: Path, run_id: str) -> tuple[dict[int, tuple[float, float]], list[Span]]:
    """Return when each micro-batch of a run began and ended, and the spans of phases, jobs and tasks."""
    batches: dict[int, tuple[float, float]] = {}
    spans: list[Span] = []
    job_start_ms: dict[int, float] = {}
    for path in sorted(
        file for file in folder.rglob("*") if file.is_file() and not file.name.startswith((".", "appstatus"))
    ):
        for line in path.read_text(encoding="utf-8").splitlines():
            event = json.loads(line) if line.startswith("{") else {}
            kind = event.get("Event", "")
            if kind == "SparkListenerJobStart":
                job_start_ms[event["Job ID"]] = event["Submission Time"]
            elif kind == "SparkListenerJobEnd":
                start_ms = job_start_ms[event["Job ID"]]
                spans.append(Span("driver: job", f"job {event['Job ID']}", "job", start_ms, event["Completion Time"]))
            elif kind == "SparkListenerTaskEnd":
                info = event["Task Info"]
                lane = f"executor: task {info['Index']}"
                spans.append(Span(lane, "task", "task", info["Launch Time"], info["Finish Time"]))
            elif kind.endswith("QueryProgressEvent"):
                progress = event["progress"]
                progress = json.loads(progress) if isinstance(progress, str) else progress
                if progress["runId"] != run_id or not any(source["numInputRows"] for source in progress["sources"]):
                    continue
                at_ms = datetime.fromisoformat(progress["timestamp"].replace("Z", "+00:00")).timestamp() * 1000
                batches[progress["batchId"]] = at_ms, at_ms + progress["durationMs"]["triggerExecution"]
                for phase in PHASES:
                    took_ms = progress["durationMs"].get(phase, 0)
                    spans.append(Span("driver: phases", phase, "driver", at_ms, at_ms + took_ms))
                    at_ms += took_ms
    return batches, spans


def spans_of_python(path: Path) -> list[Span]:
    """Return the spans that the hook noted; a lane for each kind of process, and one for its storage calls."""
    notes = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    roles: dict[int, str] = {}
    names = {
        "StreamReader.latestOffset": "source process",
        "StreamWriter.commit": "commit workers",
        "BatchWriter.commit": "commit workers",
        "StreamReader.read": "task workers",
        "StreamWriter.write": "task workers",
        "BatchWriter.write": "task workers",
        "LeastWriter.write": "task workers",
    }
    for pid, name, _, _ in notes:
        for other, base in (("PassStream", "Stream"), ("CountStream", "Stream"), ("CountWriter", "BatchWriter")):
            name = name.replace(other, base)
        roles[pid] = names.get(name, roles.get(pid, "planner workers"))
    spans = []
    for pid, name, start_ms, end_ms in notes:
        is_storage = name.startswith("PosixStore")
        short = name.replace("PosixStore.", "").split(".")[-1]
        lane = f"{roles[pid]}{': storage' if is_storage else ''}"
        spans.append(Span(lane, short, "storage" if is_storage else "python", start_ms, end_ms))
    return spans


def picture(spans: list[Span], start_ms: float, end_ms: float, title: str) -> str:
    """Return one micro-batch as SVG: a row for each lane, more where its spans overlap."""
    rows: list[tuple[str, list[Span]]] = []
    for span in sorted(spans, key=lambda other_span: (other_span.lane, other_span.start_ms)):
        for lane, row_spans in rows:
            if lane == span.lane and row_spans[-1].end_ms <= span.start_ms:
                row_spans.append(span)
                break
        else:
            rows.append((span.lane, [span]))
    left, height, width = 220, 18, 900
    scale = width / (end_ms - start_ms)
    lines = [f'<text x="4" y="14" font-weight="bold">{escape(title)}</text>']
    step_ms = next(step for step in (1, 2, 5, 10, 20, 50, 100, 1000) if (end_ms - start_ms) / step <= 20)
    for number in range(int((end_ms - start_ms) // step_ms) + 1):
        x = left + number * step_ms * scale
        lines.append(f'<line x1="{x:.1f}" y1="24" x2="{x:.1f}" y2="{40 + height * len(rows)}" stroke="#ddd"/>')
        lines.append(f'<text x="{x:.1f}" y="34" fill="#666">{number * step_ms}</text>')
    previous = ""
    for number, (lane, row_spans) in enumerate(rows):
        y = 40 + number * height
        if lane != previous:
            lines.append(f'<text x="4" y="{y + 12}">{escape(lane)}</text>')
        previous = lane
        for span in row_spans:
            x, length = left + (span.start_ms - start_ms) * scale, max(0.8, (span.end_ms - span.start_ms) * scale)
            said = f"{span.name} {span.end_ms - span.start_ms:.1f} ms"
            lines.append(
                f'<rect x="{x:.1f}" y="{y}" width="{length:.1f}" height="{height - 4}" fill="{COLORS[span.kind]}">'
                f"<title>{escape(said)}</title></rect>"
            )
            if length > 6 * len(span.name):
                lines.append(f'<text x="{x + 2:.1f}" y="{y + 11}" fill="#fff">{escape(span.name)}</text>')
    size = f'width="{left + width + 20}" height="{50 + height * len(rows)}"'
    body = "\n".join(lines)
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="10">\n{body}\n</svg>\n'


def medians(batches: dict[int, tuple[float, float]], spans: list[Span]) -> str:
    """Return a table of what a micro-batch has: spans by lane and name, their begin and length."""
    groups_by_name: dict[tuple[str, str], list[list[Span]]] = defaultdict(list)
    for start_ms, end_ms in batches.values():
        inside: dict[tuple[str, str], list[Span]] = defaultdict(list)
        for span in spans:
            if start_ms <= span.start_ms <= end_ms:
                name = "job" if span.kind == "job" else span.name
                lane = "executor: tasks" if span.kind == "task" else span.lane
                inside[lane, name].append(
                    span._replace(start_ms=span.start_ms - start_ms, end_ms=span.end_ms - start_ms)
                )
        for key, group in inside.items():
            groups_by_name[key].append(group)
    lines = [
        "| where | what | a batch | begins, ms | takes, ms | its last ends, ms |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    rows = []
    for (lane, name), groups in groups_by_name.items():
        begin = statistics.median(min(member.start_ms for member in group) for group in groups)
        length = statistics.median(member.end_ms - member.start_ms for group in groups for member in group)
        end = statistics.median(max(member.end_ms for member in group) for group in groups)
        count = sum(len(group) for group in groups) / len(batches)
        rows.append((begin, f"| {lane} | {name} | {count:.1f} | {begin:.1f} | {length:.1f} | {end:.1f} |"))
    return "\n".join([*lines, *(line for _, line in sorted(rows))])


Windows = dict[int, tuple[float, float]]
"""Number -> when it began and ended, in epoch milliseconds."""


def micro_batches(given: argparse.Namespace, folder: Path, confs: dict[str, str]) -> tuple[str, Windows, list[Span]]:
    """Run a query; return the picture's title, its warm micro-batches and Spark's spans."""
    path = str(folder / "store")
    controller = Controller(init_cluster(path, 3, {}, fsync=True))
    for topic in ("in", "out"):
        controller.create_topic(topic, partitions=2, replicas=3, config={})
    confs |= {"spark.sql.streaming.numRecentProgressUpdates": "1000"}
    confs |= {} if given.defaults else session_conf()
    with session("waterfall", 2, **{name.replace(".", "__"): value for name, value in confs.items()}) as spark:
        rows = spark.read.format("floor").option("rows", ROWS * (given.batches + 5)).load().select("key", "value")
        rows.write.format("replog").option("path", path).option("topic", "in").mode("append").save()
        if given.floor:
            query = floor_sink(floor_source(spark, given.batches, True), folder / "checkpoint", True)
        else:
            query = replog_sink(replog_source(spark, path), path, folder / "checkpoint")
        run_id = str(query.runId)
        durations(query, given.batches)
    batches, spans = spans_of_spark(folder / "events", run_id)
    batches = {number: window for number, window in batches.items() if number >= WARM_UP}
    settings = "Spark's defaults" if given.defaults else "session_conf()"
    pair = "the do-nothing pair" if given.floor else "replog to replog"
    return f"One micro-batch, {pair}, {settings}", batches, spans


def batch_writes(given: argparse.Namespace, folder: Path, confs: dict[str, str]) -> tuple[str, Windows, list[Span]]:
    """Write the same rows again and again; return the picture's title, the writes that count and Spark's spans."""
    path = make_store(folder, "store", given.copies)
    windows: Windows = {}
    with session("waterfall", 2, **{name.replace(".", "__"): value for name, value in confs.items()}) as spark:
        source = spark.read.format("floor").option("rows", given.rows).option("tasks", PARTITIONS).load()
        frame = source.select("key", "value").cache()
        frame.count()
        for number in range(WRITES_WARM_UP + WRITES):
            writer = frame.write.mode("append").format("replog" if given.write == "replog" else "floor")
            options = {"replog": {"path": path, "topic": "t"}, "floor": {}}
            options["least"] = {"folders": least_folders(folder, given.copies)}
            began_ms = time.time() * 1000
            writer.options(**options[given.write]).save()
            if number >= WRITES_WARM_UP:
                windows[number] = began_ms, time.time() * 1000
    _, spans = spans_of_spark(folder / "events", "")
    what = {"replog": "replog", "least": "the least work of a log", "floor": "a sink that does nothing"}[given.write]
    copies = "" if given.write == "floor" else f", {given.copies} {'copy' if given.copies == 1 else 'copies'}"
    return f"A batch write of {given.rows:,} rows, {what}{copies}", windows, spans


def main() -> None:
    """Run the query or the writes, draw the median one and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True)
    parser.add_argument("--defaults", action="store_true")
    parser.add_argument("--floor", action="store_true")
    parser.add_argument("--batches", type=int, default=60)
    parser.add_argument("--write", choices=["replog", "least", "floor"])
    parser.add_argument("--copies", type=int, default=1)
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--dir", default=None)
    given = parser.parse_args()
    with scratch(given.dir) as folder:
        for name in ("hook", "events"):
            (folder / name).mkdir()
        notes = folder / "notes"
        (folder / "hook" / "sitecustomize.py").write_text(HOOK.format(file=str(notes)), encoding="utf-8")
        os.environ["PYTHONPATH"] = os.pathsep.join([str(folder / "hook"), os.environ.get("PYTHONPATH", "")])
        confs = {
            "spark.eventLog.enabled": "true",
            "spark.eventLog.compress": "false",
            "spark.eventLog.dir": f"file://{folder / 'events'}",
        }
        title, windows, spans = (micro_batches if given.write is None else batch_writes)(given, folder, confs)
        spans += spans_of_python(notes)
    took = sorted(windows, key=lambda number: windows[number][1] - windows[number][0])
    start_ms, end_ms = windows[took[len(took) // 2]]
    inside = [span for span in spans if span.end_ms >= start_ms and span.start_ms <= end_ms]
    inside = [span._replace(start_ms=max(start_ms, span.start_ms), end_ms=min(end_ms, span.end_ms)) for span in inside]
    title = f"{title}: {end_ms - start_ms:.0f} ms (median of {len(took)})"
    Path(given.out).write_text(picture(inside, start_ms, end_ms, title), encoding="utf-8")
    print(f"{title}: {given.out}\n\n{medians(windows, spans)}")


if __name__ == "__main__":
    main()
