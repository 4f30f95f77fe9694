"""replog beside Kafka (one and three brokers), Delta and parquet: one command, one run, cases in turn.

    python -m benchmarks.peers [--rows 1000000] [--rounds 3] [--dir FOLDER] [--plots FOLDER] [--without delta ...]
        [--records FILE] [--sweeps value_bytes partitions writers depth_mb] [--sweep-mb 30] [--minutes 12]

--minutes: rounds and points of the plots that do not fit in are left out; the table has at least one round.
--sweeps: the plots: by the size of a value, by partitions, by tasks that write side by side, and by what the topic
holds already. Their peers are replog and Kafka with three roots or brokers, and parquet.
--sweep-mb: payload of each point of the plots, 0 for none; by depth, what is written and read back is a third of it.

Kafka 4.1 in KRaft mode, its Spark connector and Delta come from Maven Central by ``mvn``, once per cache folder
(``REPLOG_PEERS_CACHE``). Brokers listen on loopback, and are stopped (SIGSTOP) while others have their turn. A peer
that cannot be had or does not start is left out, and a line says why. The first round warms up. Each turn begins with
a write that is not counted: brokers that were stopped are slow at first, and Spark may have ended its idle Python
workers. Seconds are of a whole write or read; processor seconds and peak memory of Spark's JVM with its heap, its
Python workers and the peer's own brokers; bytes are what lies on disk, by payload byte and replica. Kafka runs as it
flushes by default, and once with a flush after every message batch (``fsync``), as replog does.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from functools import partial
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession

from benchmarks.bench_session import scratch, session, tree_usage
from spark_replog import session_conf
from spark_replog.admin.controller import Controller
from spark_replog.cli.java import java_environment
from spark_replog.cluster.init_store import init_cluster

TASKS = 2
VALUE_BYTES = 100
SWEEP_PEERS = "replog, 3 roots", "Kafka, 3 brokers", "parquet"
SWEEP_ROUNDS = 2
SWEEPS = {
    "value_bytes": "bytes of a value",
    "partitions": "partitions",
    "writers": "tasks that write side by side",
    "depth_mb": "MB of values in the topic before",
}
"""Field of a shape -> what its plots say."""
BASE_SHARE = 0.6
"""Of the time that a run may take, for the table."""
SETTLE_SECONDS = 0.5
DEPTHS_MB = 0, 30, 120, 480
"""Of values, in the topic before it is written to and read back; what the points themselves write comes on top."""
DEPTH_STEP_MB = 30
WARM_SHARE = 4
"""A turn begins with a quarter of its rows into a topic of their own."""
COLORS = {"replog, 3 roots": "#c87838", "Kafka, 3 brokers": "#4878a8", "parquet": "#489858"}
_ALONE = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
JARS: dict[str, list[tuple[str, str, str]]] = {
    "broker": [("org.apache.kafka", "kafka_2.13", "4.1.0"), ("org.apache.kafka", "kafka-tools", "4.1.0")],
    "connector": [
        ("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.2.0"),
        ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
        ("org.apache.kafka", "kafka-clients", "3.9.1"),
        ("org.apache.commons", "commons-pool2", "2.12.0"),
    ],
    # For Spark 4.2: there is none for 4.3, whose LogicalRDD has another constructor than this one calls.
    "delta": [
        ("io.delta", "delta-spark_4.2_2.13", "4.4.0"),
        ("io.delta", "delta-storage", "4.4.0"),
        ("io.delta", "delta-kernel-api", "4.4.0"),
        ("io.delta", "delta-kernel-defaults", "4.4.0"),
        ("io.delta", "delta-kernel-unitycatalog", "4.4.0"),
        ("io.unitycatalog", "unitycatalog-client", "0.6.0"),
    ],
}


def jars(name: str) -> Path:
    """Return a folder with the jars of a peer, fetched by mvn at most once per cache.

    Raises:
        RuntimeError: mvn is not there, or cannot get them.
    """
    cache = Path(os.environ.get("REPLOG_PEERS_CACHE", Path.home() / ".cache" / "replog-peers"))
    folder = cache / name
    if folder.is_dir() and {f"{artifact}-{version}.jar" for _, artifact, version in JARS[name]} <= {
        jar.name for jar in folder.iterdir()
    }:
        return folder
    if folder.is_dir():
        shutil.rmtree(folder)  # of an earlier release of this program
    if shutil.which("mvn") is None:
        raise RuntimeError("mvn is not installed")
    alone = "" if name == "broker" else _ALONE
    body = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>"
        f"{alone}</dependency>"
        for group, artifact, version in JARS[name]
    )
    partial = cache / f"{name}-{os.getpid()}"
    partial.mkdir(parents=True)
    pom = partial / "pom.xml"
    pom.write_text(
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion><groupId>peers</groupId>'
        f"<artifactId>{name}</artifactId><version>1</version><dependencies>{body}</dependencies></project>"
    )
    command = ["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies", "-DincludeScope=runtime"]
    done = subprocess.run([*command, f"-DoutputDirectory={partial}"], capture_output=True, text=True, check=False)
    if done.returncode:
        shutil.rmtree(partial)
        raise RuntimeError((done.stdout.strip().splitlines() or ["mvn failed"])[0][:200])
    partial.rename(folder)
    return folder


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def java(folder: Path) -> list[str]:
    """Return the beginning of a command that runs a class of a folder of jars."""
    home = java_environment(os.environ).get("JAVA_HOME") or os.environ.get("JAVA_HOME")
    return [f"{home}/bin/java" if home else "java", "-Xmx1g", "-cp", f"{folder}/*"]


@contextmanager
def kafka(
    folder: Path,
    brokers: int,
    *,
    is_fsync: bool,
    settings: Mapping[str, object] | None = None,
    jars_folder: Path | None = None,
) -> Iterator[tuple[str, list[int]]]:
    """Start a cluster of brokers that are controllers too; yield its addresses and process ids.

    Args:
        settings: of each broker, beside what the benchmarks need.
        jars_folder: where Kafka's jars are; None: the cache of this program.
    """
    base = java(jars_folder or jars("broker"))
    ports = [(_free_port(), _free_port()) for _ in range(brokers)]
    voters = ",".join(f"{number}@127.0.0.1:{control}" for number, (_, control) in enumerate(ports))
    cluster_id = "cmVwbG9nLXBlZXJzLTAwMQ"
    processes = []
    try:
        for number, (port, control) in enumerate(ports):
            home = folder / f"kafka-{number}"
            home.mkdir(parents=True)
            lines = {
                "process.roles": "broker,controller",
                "node.id": number,
                "controller.quorum.voters": voters,
                "controller.listener.names": "CONTROLLER",
                "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{control}",
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
                "log.dirs": home / "data",
                "num.partitions": TASKS,
                "default.replication.factor": brokers,
                "min.insync.replicas": brokers // 2 + 1,
                "offsets.topic.replication.factor": brokers,
                "message.max.bytes": 33554432,
            }
            # A stopped cluster must go on unchanged: no broker counts as late, and no leader is elected.
            patient = "broker.session", "controller.quorum.fetch"
            lines |= {f"{name}.timeout.ms": 3_600_000 for name in patient} | {"replica.lag.time.max.ms": 3_600_000}
            if is_fsync:
                lines["log.flush.interval.messages"] = 1
            lines |= settings or {}
            conf = home / "server.properties"
            conf.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
            tool = [*base, "kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(conf)]
            subprocess.run(tool, check=True, capture_output=True)
            with (home / "server.log").open("w") as log:
                processes.append(subprocess.Popen([*base, "kafka.Kafka", str(conf)], stdout=log, stderr=log))
        deadline = time.monotonic() + 90
        for port, _ in ports:
            while True:
                if any(process.poll() is not None for process in processes) or time.monotonic() > deadline:
                    raise RuntimeError(f"Kafka did not start: see {folder}/kafka-*/server.log")
                try:
                    socket.create_connection(("127.0.0.1", port), 1).close()
                    break
                except OSError:
                    time.sleep(0.3)
        yield ",".join(f"127.0.0.1:{port}" for port, _ in ports), [process.pid for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()


class Watch:
    """Samples the memory of the process tree while a case runs, without others' brokers."""

    def __init__(self, without: Sequence[int]) -> None:
        self._without = without

    def __enter__(self) -> Watch:
        """Begin."""
        self._ended = threading.Event()
        self.peak_mib = 0.0
        self._cpu_seconds, _ = tree_usage(self._without)
        self._began = time.perf_counter()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def _run(self) -> None:
        while not self._ended.wait(0.2):
            self.peak_mib = max(self.peak_mib, tree_usage(self._without)[1])

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """End; ``seconds``, ``cpu_seconds`` and ``peak_mib`` are known then."""
        self.seconds = time.perf_counter() - self._began
        self._ended.set()
        self._thread.join()
        cpu_seconds, mib = tree_usage(self._without)
        self.cpu_seconds, self.peak_mib = cpu_seconds - self._cpu_seconds, max(self.peak_mib, mib)


class Peer(NamedTuple):
    """One system: how it makes a topic, writes and reads a frame there, where its bytes are, its number of replicas."""

    make: Callable[[str, int], object]
    write: Callable[[DataFrame, str], None]
    read: Callable[[SparkSession, str, int], DataFrame]
    """Of a topic, what was written since a time (epoch ms)."""
    folder: Path
    replicas: int
    pids: Sequence[int] = ()
    """Of its brokers."""


@contextmanager
def awake(pids: Sequence[int]) -> Iterator[None]:
    """Let a peer's stopped brokers run meanwhile."""
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    try:
        time.sleep(SETTLE_SECONDS if pids else 0.0)
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)


class Shape(NamedTuple):
    """What is written: partitions of the topic, bytes of a value, rows, and the tasks that write side by side."""

    partitions: int
    value_bytes: int
    rows: int
    writers: int = TASKS

    @property
    def topic(self) -> str:
        """Return the name of its topic."""
        return f"p{self.partitions}-v{self.value_bytes}-w{self.writers}"

    def frame(self, spark: SparkSession, rows: int) -> DataFrame:
        """Return some of its rows, computed once."""
        text = "concat('order ', id, ' of customer ', id % 1000, ' is on its way to the warehouse')"
        frame = spark.range(0, rows, 1, self.writers).selectExpr(
            "cast(id % 10000 as string) key", f"rpad({text}, {self.value_bytes}, '.') value"
        )
        frame = frame.cache()
        frame.count()
        return frame


def since(time_ms: int) -> dict[str, str]:
    """Return the option of a log's reader that begins at a time; none for 0."""
    return {"startingTimestamp": str(time_ms)} if time_ms else {}


def replog_peer(folder: Path, replicas: int, compression: str = "none") -> Peer:
    """Return replog with fsync on."""
    path = str(folder / f"replog-{replicas}-{compression}")
    controller = Controller(init_cluster(path, replicas, {}, fsync=True))
    config = {"compression.type": compression}
    return Peer(
        lambda topic, partitions: controller.create_topic(topic, partitions, replicas, config=config),
        lambda frame, topic: frame.write.format("replog").mode("append").option("topic", topic).save(path),
        lambda spark, topic, since_ms: (
            spark.read.format("replog").option("subscribe", topic).options(**since(since_ms)).load(path)
        ),
        Path(path),
        replicas,
    )


def kafka_peer(folder: Path, address: str, brokers: int, pids: Sequence[int]) -> Peer:
    """Return Kafka's connector, acks=all."""

    def options(builder: Any) -> Any:
        return builder.format("kafka").option("kafka.bootstrap.servers", address)

    def make(topic: str, partitions: int) -> None:
        tool = ["org.apache.kafka.tools.TopicCommand", "--bootstrap-server", address, "--create", "--topic", topic]
        command = [*java(jars("broker")), *tool, "--partitions", str(partitions), "--replication-factor", str(brokers)]
        subprocess.run(command, check=True, capture_output=True)

    return Peer(
        make,
        lambda frame, topic: options(frame.write).option("topic", topic).option("kafka.acks", "all").save(),
        lambda spark, topic, since_ms: options(spark.read).option("subscribe", topic).options(**since(since_ms)).load(),
        folder,
        brokers,
        pids,
    )


def table_peer(folder: Path, form: str) -> Peer:
    """Return tables of files of one copy."""
    path = folder / form
    return Peer(
        lambda topic, partitions: None,
        lambda frame, topic: frame.write.format(form).mode("append").save(str(path / topic)),
        lambda spark, topic, since_ms: read_files(spark, form, path / topic, since_ms),
        path,
        1,
    )


def read_files(spark: SparkSession, form: str, path: Path, since_ms: int) -> DataFrame:
    """Return the rows of a table's files, of plain files only newer ones; Delta has no such option."""
    reader = spark.read.format(form)
    if since_ms and form != "delta":
        after = datetime.fromtimestamp(since_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        reader = reader.option("modifiedAfter", after).option("timeZone", "UTC")
    return reader.load(str(path))


def bytes_in(folder: Path) -> int:
    """Return the bytes that files take, whole pages that were only reserved not counted."""
    return sum(min(file.stat().st_blocks * 512, file.stat().st_size) for file in folder.rglob("*") if file.is_file())


def run_case(name: str, action: Callable[[], object], without: Sequence[int]) -> dict[str, float]:
    """Return what one case took, some processes not counted."""
    with Watch(without) as watch:
        action()
    print(f"{name}: {watch.seconds:.2f} s", file=sys.stderr, flush=True)
    return {"seconds": watch.seconds, "cpu_seconds": watch.cpu_seconds, "peak_mib": watch.peak_mib}


@contextmanager
def its_turn(
    name: str, peers: dict[str, Peer], here: dict[str, Peer], missing: dict[str, str]
) -> Iterator[tuple[Peer, list[int]]]:
    """Let one peer run, and give it with the processes of all others; if it fails, it is no longer here.

    Args:
        here: the peers that have not failed.
        missing: gets the reason of a failure.
    """
    peer = peers[name]
    try:
        with awake(peer.pids):
            yield peer, [pid for other in peers.values() if other is not peer for pid in other.pids]
    except Exception as error:  # a peer that fails leaves the others
        missing.setdefault(name, " ".join(str(error).split())[:300])
        del here[name]


def run_shape(
    spark: SparkSession, peers: dict[str, Peer], shape: Shape, rounds: int, missing: dict[str, str], ends: float
) -> list[dict[str, Any]]:
    """Write and read a shape with each peer in turn, round after round; the first round warms up.

    Args:
        ends: moment of the monotonic clock from which on no round but the first two begins.
        missing: gets the peers that failed, with the reason; the others go on.
    """
    frame, few = shape.frame(spark, shape.rows), shape.frame(spark, shape.rows // WARM_SHARE)
    records: list[dict[str, Any]] = []
    here = dict(peers)
    for number in range(rounds + 1):
        if number > 1 and time.monotonic() > ends:
            break
        for name in list(here):
            with its_turn(name, peers, here, missing) as (peer, others):
                if not number:
                    peer.make(shape.topic, shape.partitions)
                    peer.make(f"{shape.topic}-warm", shape.partitions)
                peer.write(few, f"{shape.topic}-warm")
                bytes_before = bytes_in(peer.folder)
                write = partial(peer.write, frame, shape.topic)
                wrote = run_case(f"{name}, {shape.topic}, write", write, others)
                sink = peer.read(spark, shape.topic, 0).write.format("noop").mode("overwrite")
                took = run_case(f"{name}, {shape.topic}, read", sink.save, others)
            if name not in here:
                continue
            for key in ("seconds", "cpu_seconds"):  # a read takes all that was written so far
                took[key] /= number + 1
            ratio = (bytes_in(peer.folder) - bytes_before) / peer.replicas / (shape.rows * shape.value_bytes)
            if number:
                records += [
                    {"peer": name, "case": case, **shape._asdict(), **figures, "bytes_ratio": ratio}
                    for case, figures in (("write", wrote), ("read", took))
                ]
    frame.unpersist()
    few.unpersist()
    return records


def run_depths(
    spark: SparkSession, peers: dict[str, Peer], size_mb: int, missing: dict[str, str], ends: float
) -> list[dict[str, Any]]:
    """Write to topics that hold more and more, and read that back; as `run_shape`, each depth in all rounds."""
    shape = Shape(TASKS, VALUE_BYTES, size_mb * 1_000_000 // 3 // VALUE_BYTES)
    frame, topic = shape.frame(spark, shape.rows), "depth"
    filler = shape.frame(spark, DEPTH_STEP_MB * 1_000_000 // VALUE_BYTES)
    records: list[dict[str, Any]] = []
    here, filled_mb = dict(peers), 0
    for depth_mb in DEPTHS_MB:
        if time.monotonic() > ends:
            missing[f"plots by depth from {depth_mb} MB on"] = "no time was left"
            break
        for number in range(SWEEP_ROUNDS + 1):
            for name in list(here):
                with its_turn(name, peers, here, missing) as (peer, others):
                    if not depth_mb and not number:
                        peer.make(topic, TASKS)
                    for _ in range(0 if number else (depth_mb - filled_mb) // DEPTH_STEP_MB):
                        peer.write(filler, topic)
                    time.sleep(1.1)  # parquet's reader knows the time of a file in whole seconds
                    since_ms = int(time.time() * 1000)
                    write = partial(peer.write, frame, topic)
                    wrote = run_case(f"{name}, {depth_mb} MB deep, write", write, others)
                    source = peer.read(spark, topic, since_ms)
                    sink = source.write.format("noop").mode("overwrite")
                    took = run_case(f"{name}, {depth_mb} MB deep, read", sink.save, others)
                    if number == SWEEP_ROUNDS and (count := source.count()) != shape.rows:
                        raise RuntimeError(f"{count} rows of {shape.rows} were read at {depth_mb} MB")
                if number and name in here:
                    records += [
                        {"peer": name, "case": case, **shape._asdict(), **figures, "depth_mb": max(1, depth_mb)}
                        for case, figures in (("write", wrote), ("read", took))
                    ]
        filled_mb = depth_mb
    frame.unpersist()
    filler.unpersist()
    return records


def plot(title: str, bars: dict[str, float], unit: str) -> str:
    """Return bars as SVG."""
    top = max(bars.values(), default=1) or 1
    lines = [f'<text x="4" y="14" font-weight="bold">{escape(title)}</text>']
    for number, (name, value) in enumerate(bars.items()):
        y = 24 + 20 * number
        color = "#c87838" if name.startswith("replog") else "#4878a8"
        lines.append(f'<text x="4" y="{y + 12}">{escape(name)}</text>')
        lines.append(f'<rect x="200" y="{y}" width="{420 * value / top:.1f}" height="16" fill="{color}"/>')
        lines.append(f'<text x="{205 + 420 * value / top:.1f}" y="{y + 12}">{value:,.2f} {unit}</text>')
    body = "\n".join(lines)
    size = f'width="720" height="{34 + 20 * len(bars)}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="11">\n{body}\n</svg>\n'


def line_plot(title: str, points: dict[str, dict[int, float]]) -> str:
    """Return lines as SVG, the horizontal axis by its logarithm: peer -> {x: y}."""
    xs = sorted({x for line in points.values() for x in line})
    top = max((y for line in points.values() for y in line.values()), default=1) or 1
    left, width, height = 60, 480, 240
    spread = math.log(xs[-1] / xs[0]) or 1.0
    at_x = {x: left + width * math.log(x / xs[0]) / spread for x in xs}
    lines = [f'<text x="4" y="14" font-weight="bold">{escape(title)}</text>']
    for x in xs:
        lines.append(f'<line x1="{at_x[x]:.1f}" y1="30" x2="{at_x[x]:.1f}" y2="{30 + height}" stroke="#ddd"/>')
        lines.append(f'<text x="{at_x[x]:.1f}" y="{46 + height}" text-anchor="middle">{x:,}</text>')
    for part in range(5):
        y = 30 + height * (1 - part / 4)
        lines.append(f'<line x1="{left}" y1="{y:.1f}" x2="{left + width}" y2="{y:.1f}" stroke="#ddd"/>')
        lines.append(f'<text x="{left - 4}" y="{y + 4:.1f}" text-anchor="end">{top * part / 4:,.2f}</text>')
    for number, (name, line) in enumerate(points.items()):
        corners = " ".join(f"{at_x[x]:.1f},{30 + height * (1 - y / top):.1f}" for x, y in sorted(line.items()))
        color, y = COLORS.get(name, "#888"), 44 + 18 * number
        lines.append(f'<polyline points="{corners}" fill="none" stroke="{color}" stroke-width="2"/>')
        lines.append(f'<rect x="{left + width + 16}" y="{y - 9}" width="10" height="10" fill="{color}"/>')
        lines.append(f'<text x="{left + width + 30}" y="{y}">{escape(name)}</text>')
    body = "\n".join(lines)
    size = f'width="{left + width + 160}" height="{60 + height}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="11">\n{body}\n</svg>\n'


def rates(records: list[dict[str, Any]], case: str, by: str) -> dict[str, dict[int, float]]:
    """Return the median MB of values a second of each peer, by a field of the shape."""
    speeds: dict[str, dict[int, list[float]]] = {}
    for record in records:
        if record["case"] == case:
            speed = record["rows"] * record["value_bytes"] / record["seconds"] / 1e6
            speeds.setdefault(record["peer"], {}).setdefault(record[by], []).append(speed)
    return {name: {x: statistics.median(all_) for x, all_ in line.items()} for name, line in speeds.items()}


def table(records: list[dict[str, Any]]) -> str:
    """Return the table of the records of one shape."""
    lines = [
        "| case | M rows/s, median | min | max | processor s | peak MiB of Spark and own brokers "
        "| bytes by payload byte and replica |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for verb in ("write", "read"):
        for name in dict.fromkeys(record["peer"] for record in records):
            mine = [record for record in records if record["peer"] == name and record["case"] == verb]
            speeds = [record["rows"] / record["seconds"] / 1e6 for record in mine]
            lines.append(
                f"| {verb}: {name} | {statistics.median(speeds):.2f} | {min(speeds):.2f} | {max(speeds):.2f} | "
                f"{statistics.median(record['cpu_seconds'] for record in mine):.1f} | "
                f"{max(record['peak_mib'] for record in mine):,.0f} | {mine[-1]['bytes_ratio']:.2f} |"
            )
    return "\n".join(lines)


def draw(plots: Path, base: list[dict[str, Any]], sweeps: dict[str, list[dict[str, Any]]]) -> None:
    """Write the plots of a run: bars of the base shape, lines of each sweep."""
    plots.mkdir(parents=True, exist_ok=True)
    for case in ("write", "read"):
        bars = {name: line[VALUE_BYTES] for name, line in rates(base, case, "value_bytes").items()}
        text = plot(f"{case}: {VALUE_BYTES}-byte values, {TASKS} partitions, {TASKS} tasks", bars, "MB/s")
        (plots / f"peers-{case}.svg").write_text(text, encoding="utf-8")
        for by, records in sweeps.items():
            points = rates(records, case, by)
            if points:
                title = f"{case}: MB of values a second, by {SWEEPS[by]}"
                name = f"peers-{case}-{by.replace('_', '-')}.svg"
                (plots / name).write_text(line_plot(title, points), encoding="utf-8")


def found_jars(without: list[str], missing: dict[str, str]) -> dict[str, Path]:
    """Return the folders of the peers' jars; note in ``missing`` what cannot be had."""
    folders: dict[str, Path] = {}
    for system, names in {"kafka": ["broker", "connector"], "delta": ["delta"]}.items():
        try:
            if system in without:
                raise RuntimeError("left out")
            folders |= {name: jars(name) for name in names}
        except RuntimeError as error:
            missing[system] = str(error)
    return folders


def main() -> None:
    """Start the peers, run their cases in turn, print the table and the records."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=12)
    parser.add_argument("--sweep-mb", type=int, default=30)
    parser.add_argument("--sweeps", nargs="*", default=list(SWEEPS), choices=list(SWEEPS))
    parser.add_argument("--dir", default=None)
    parser.add_argument("--plots", type=Path)
    parser.add_argument("--records", type=Path, help="write every measurement here, one JSON line each")
    parser.add_argument("--without", nargs="*", default=[], choices=["kafka", "delta"])
    given = parser.parse_args()
    began, seconds = time.monotonic(), given.minutes * 60
    missing: dict[str, str] = {}
    folders = found_jars(given.without, missing)
    with scratch(given.dir) as folder, ExitStack() as stack:
        confs = session_conf()
        paths = [str(jar) for name in ("connector", "delta") if name in folders for jar in folders[name].glob("*.jar")]
        confs["spark.driver.extraClassPath"] = os.pathsep.join(paths)
        if "delta" in folders:
            confs["spark.sql.extensions"] = "io.delta.sql.DeltaSparkSessionExtension"
            confs["spark.sql.catalog.spark_catalog"] = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
        peers = {
            "replog, 1 root": replog_peer(folder, 1),
            "replog, 3 roots": replog_peer(folder, 3),
            "replog, 3 roots, zstd": replog_peer(folder, 3, "zstd"),
            "parquet": table_peer(folder, "parquet"),
        }
        if "delta" not in missing:
            peers["Delta"] = table_peer(folder, "delta")
        for brokers, is_fsync in ((1, False), (3, False), (3, True)) if "kafka" not in missing else ():
            name = f"Kafka, {brokers} broker{'s'[: brokers - 1]}{', fsync' if is_fsync else ''}"
            home = folder / name.replace(", ", "-").replace(" ", "-")
            try:
                address, pids = stack.enter_context(kafka(home, brokers, is_fsync=is_fsync))
                peers[name] = kafka_peer(home, address, brokers, pids)
                time.sleep(SETTLE_SECONDS)
                with awake(pids):
                    pass  # stopped from here on
            except (RuntimeError, OSError, subprocess.SubprocessError) as error:
                missing[name] = str(error)
        settings = {name.replace(".", "__"): value for name, value in confs.items()}
        spark = stack.enter_context(session("peers", TASKS, **settings))
        base = run_shape(
            spark, peers, Shape(TASKS, VALUE_BYTES, given.rows), given.rounds, missing, began + BASE_SHARE * seconds
        )
        print(table(base), flush=True)
        few = {name: peers[name] for name in SWEEP_PEERS if name in peers and name not in missing}
        size = given.sweep_mb * 1_000_000
        shapes = {
            "value_bytes": [Shape(TASKS, value_bytes, size // value_bytes) for value_bytes in (20, 500, 5_000, 50_000)],
            "partitions": [Shape(count, VALUE_BYTES, size // VALUE_BYTES) for count in (1, 8, 32, 128)],
            "writers": [Shape(16, VALUE_BYTES, size // VALUE_BYTES, count) for count in (1, 2, 4, 8)],
        }
        sweeps: dict[str, list[dict[str, Any]]] = {}
        for by, shape in ((by, shape) for by, all_ in shapes.items() if size and by in given.sweeps for shape in all_):
            if time.monotonic() > began + seconds:
                missing[f"plots of {shape.topic}"] = "no time was left"
                continue
            sweeps.setdefault(by, []).extend(run_shape(spark, few, shape, SWEEP_ROUNDS, missing, began + seconds))
        if size and "depth_mb" in given.sweeps:
            sweeps["depth_mb"] = run_depths(spark, few, given.sweep_mb, missing, began + seconds)
    for name, why in missing.items():
        print(f"\nwithout {name}: {why}")
    if given.plots is not None:
        draw(given.plots, base, sweeps)
    if given.records is not None:
        everything = [*base, *(record for records in sweeps.values() for record in records)]
        given.records.write_text("".join(json.dumps(record) + "\n" for record in everything), encoding="utf-8")


if __name__ == "__main__":
    main()
