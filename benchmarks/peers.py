"""replog beside Kafka (one and three brokers), Delta and parquet: one command, one run, cases in turn.

    python -m benchmarks.peers [--rows 1000000] [--rounds 5] [--dir FOLDER] [--plots FOLDER] [--without delta ...]

Kafka 4.1 in KRaft mode, its Spark connector and Delta come from Maven Central by ``mvn``, once per cache folder
(``REPLOG_PEERS_CACHE``). Brokers listen on loopback. A peer that cannot be had or does not start is left out, and a
line says why. The first round warms up. Seconds are of a whole write or read; processor seconds and peak memory of
the process tree: Spark's JVM, its Python workers, the brokers; bytes are what lies on disk, by payload byte and
replica. Kafka runs as it flushes by default, and once with a flush after every message batch (``fsync``), as replog
does.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession

from benchmarks.bench_session import scratch, session, tree_usage
from spark_replog import session_conf
from spark_replog.admin.controller import Controller
from spark_replog.cli.java import java_environment
from spark_replog.cluster.init_store import init_cluster

PARTITIONS = 2
VALUE_BYTES = 100
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
        each.name for each in folder.iterdir()
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
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextmanager
def kafka(folder: Path, brokers: int, *, is_fsync: bool) -> Iterator[str]:
    """Start a cluster of brokers that are controllers too; yield its addresses."""
    java = java_environment(os.environ).get("JAVA_HOME") or os.environ.get("JAVA_HOME")
    base = [f"{java}/bin/java" if java else "java", "-Xmx1g", "-cp", f"{jars('broker')}/*"]
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
                "num.partitions": PARTITIONS,
                "default.replication.factor": brokers,
                "min.insync.replicas": brokers // 2 + 1,
                "offsets.topic.replication.factor": brokers,
                "message.max.bytes": 33554432,
            }
            if is_fsync:
                lines["log.flush.interval.messages"] = 1
            conf = home / "server.properties"
            conf.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
            tool = [*base, "kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(conf)]
            subprocess.run(tool, check=True, capture_output=True)
            log = (home / "server.log").open("w")
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
        yield ",".join(f"127.0.0.1:{port}" for port, _ in ports)
    finally:
        for process in processes:
            process.kill()
            process.wait()


class Watch:
    """Samples the memory of the process tree while a case runs."""

    def __enter__(self) -> Watch:
        """Begin."""
        self._ended = threading.Event()
        self.peak_mib = 0.0
        self._cpu_seconds, _ = tree_usage()
        self._began = time.perf_counter()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def _run(self) -> None:
        while not self._ended.wait(0.2):
            self.peak_mib = max(self.peak_mib, tree_usage()[1])

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """End; ``seconds``, ``cpu_seconds`` and ``peak_mib`` are known then."""
        self.seconds = time.perf_counter() - self._began
        self._ended.set()
        self._thread.join()
        cpu_seconds, mib = tree_usage()
        self.cpu_seconds, self.peak_mib = cpu_seconds - self._cpu_seconds, max(self.peak_mib, mib)


class Peer(NamedTuple):
    """One system: how it writes and reads a frame, where its bytes are, and its number of replicas."""

    write: Callable[[DataFrame], None]
    read: Callable[[SparkSession], DataFrame]
    folder: Path
    replicas: int


def replog_peer(folder: Path, replicas: int, compression: str = "none") -> Peer:
    """Return replog with fsync on."""
    path = str(folder / f"replog-{replicas}-{compression}")
    controller = Controller(init_cluster(path, replicas, {}, fsync=True))
    controller.create_topic("t", PARTITIONS, replicas, config={"compression.type": compression})
    return Peer(
        lambda frame: frame.write.format("replog").mode("append").option("topic", "t").save(path),
        lambda spark: spark.read.format("replog").option("subscribe", "t").load(path),
        Path(path),
        replicas,
    )


def kafka_peer(folder: Path, address: str, brokers: int) -> Peer:
    """Return Kafka's connector, acks=all."""

    def options(each: Any) -> Any:
        return each.format("kafka").option("kafka.bootstrap.servers", address)

    return Peer(
        lambda frame: options(frame.write).option("topic", "t").option("kafka.acks", "all").save(),
        lambda spark: options(spark.read).option("subscribe", "t").load(),
        folder,
        brokers,
    )


def table_peer(folder: Path, form: str) -> Peer:
    """Return a table of files of one copy."""
    path = str(folder / form)
    return Peer(
        lambda frame: frame.write.format(form).mode("append").save(path),
        lambda spark: spark.read.format(form).load(path),
        Path(path),
        1,
    )


def bytes_in(folder: Path) -> int:
    """Return the bytes that files take, whole pages that were only reserved not counted."""
    return sum(min(each.stat().st_blocks * 512, each.stat().st_size) for each in folder.rglob("*") if each.is_file())


def run_case(name: str, action: Callable[[], object]) -> dict[str, float]:
    """Return what one case took."""
    with Watch() as watch:
        action()
    print(f"{name}: {watch.seconds:.2f} s", file=sys.stderr, flush=True)
    return {"seconds": watch.seconds, "cpu_seconds": watch.cpu_seconds, "peak_mib": watch.peak_mib}


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


def report(records: list[dict[str, Any]], rows: int, plots: Path | None) -> str:
    """Return the tables of a run's records; write its plots."""
    lines = [
        "| case | M rows/s, median | min | max | processor s | peak MiB | bytes by payload byte and replica |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    rates: dict[str, dict[str, float]] = {"write": {}, "read": {}}
    for verb in rates:
        for name in dict.fromkeys(each["peer"] for each in records):
            mine = [each for each in records if each["peer"] == name and each["case"] == verb]
            if not mine:
                continue
            speeds = [rows / each["seconds"] / 1e6 for each in mine]
            rates[verb][name] = statistics.median(speeds)
            size = mine[-1].get("bytes_ratio")
            lines.append(
                f"| {verb}: {name} | {statistics.median(speeds):.2f} | {min(speeds):.2f} | {max(speeds):.2f} | "
                f"{statistics.median(each['cpu_seconds'] for each in mine):.1f} | "
                f"{max(each['peak_mib'] for each in mine):,.0f} | {'' if size is None else f'{size:.2f}'} |"
            )
        if plots is not None:
            plots.mkdir(parents=True, exist_ok=True)
            (plots / f"peers-{verb}.svg").write_text(
                plot(f"{verb}, {VALUE_BYTES}-byte values", rates[verb], "M rows/s")
            )
    return "\n".join(lines)


def main() -> None:
    """Start the peers, run their cases in turn, print the table and the records."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dir", default=None)
    parser.add_argument("--plots", type=Path)
    parser.add_argument("--records", type=Path, help="write every measurement here, one JSON line each")
    parser.add_argument("--without", nargs="*", default=[], choices=["kafka", "delta"])
    given = parser.parse_args()
    missing: dict[str, str] = {}
    found: dict[str, Path] = {}
    wanted = {"kafka": ["broker", "connector"], "delta": ["delta"]}
    for system, names in wanted.items():
        try:
            if system in given.without:
                raise RuntimeError("left out")
            found |= {name: jars(name) for name in names}
        except RuntimeError as error:
            missing[system] = str(error)
    with scratch(given.dir) as folder:
        confs = session_conf()
        paths = [str(jar) for name in ("connector", "delta") if name in found for jar in found[name].glob("*.jar")]
        confs["spark.driver.extraClassPath"] = os.pathsep.join(paths)
        if "delta" in found:
            confs["spark.sql.extensions"] = "io.delta.sql.DeltaSparkSessionExtension"
        confs = {name.replace(".", "__"): value for name, value in confs.items()}
        records: list[dict[str, Any]] = []
        with ExitStack() as stack:
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
                    address = stack.enter_context(kafka(home, brokers, is_fsync=is_fsync))
                    peers[name] = kafka_peer(home, address, brokers)
                except (RuntimeError, OSError, subprocess.SubprocessError) as error:
                    missing[name] = str(error)
            spark = stack.enter_context(session("peers", 2, **confs))
            text = "concat('order ', id, ' of customer ', id % 1000, ' is on its way to the warehouse')"
            frame = spark.range(0, given.rows, 1, PARTITIONS).selectExpr(
                "cast(id % 10000 as string) key", f"rpad({text}, {VALUE_BYTES}, '.') value"
            )
            frame = frame.cache()
            frame.count()
            payload = given.rows * VALUE_BYTES
            for number in range(given.rounds + 1):
                for name, peer in list(peers.items()):
                    try:
                        for case in ("write", "read"):
                            sink = peer.read(spark).write.format("noop").mode("overwrite") if case == "read" else None
                            action = sink.save if sink is not None else lambda peer=peer: peer.write(frame)
                            took = run_case(f"{name}, {case}", action)
                            # A read takes all that was written so far.
                            took["seconds"] /= number + 1 if case == "read" else 1
                            took["cpu_seconds"] /= number + 1 if case == "read" else 1
                            ratio = bytes_in(peer.folder) / peer.replicas / payload / (number + 1)
                            if number:
                                records.append({"peer": name, "case": case, **took, "bytes_ratio": ratio})
                    except Exception as error:  # a peer that fails leaves the others
                        missing[name] = str(error).splitlines()[0][:200]
                        del peers[name]
    print(report(records, given.rows, given.plots))
    for name, why in missing.items():
        print(f"\nwithout {name}: {why}")
    if given.records is not None:
        given.records.write_text("".join(json.dumps(each) + "\n" for each in records), encoding="utf-8")


if __name__ == "__main__":
    main()
