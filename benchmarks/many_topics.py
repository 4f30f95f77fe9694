"""What many topics cost: `topic list`, the first poll of a pattern, an idle poll; with a ledger each, or one for all.

    python -m benchmarks.many_topics [--topics 1857] [--dir FOLDER] [--cases own shared]

Three local roots without fsync. Each case opens the store again in this process. The counts of calls are sums over the
three roots.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from benchmarks.bench_session import scratch
from spark_replog.admin.controller import Controller
from spark_replog.client.consumer import Consumer
from spark_replog.client.producer import Producer
from spark_replog.cluster.cluster import Cluster
from spark_replog.cluster.init_store import init_cluster
from spark_replog.errors import RetriableError

ROOTS = 3


def calls_of(cluster: Cluster) -> Counter[str]:
    """Return the calls so far by kind and purpose."""
    counts: Counter[str] = Counter()
    for (_, kind, purpose), calls in cluster.brokers.calls.read().items():
        counts[f"{kind} {purpose}"] += calls.call_count
    return counts


def measure(name: str, cluster: Cluster, ledger_count: int, act: Callable[[], object]) -> None:
    """Act once and print a line of the table."""
    before, began, cpu = calls_of(cluster), time.perf_counter(), time.process_time()
    act()
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    calls = calls_of(cluster) - before
    average = calls.total() / ledger_count / ROOTS
    kinds = ", ".join(f"{count} {kind}" for kind, count in calls.most_common())
    print(f"| {name} | {seconds:.2f} | {cpu:.2f} | {calls.total()} | {average:.1f} | {kinds} |", flush=True)


def fill(path: str, topic_count: int, *, is_shared: bool) -> None:
    """Make a store with this many topics of one partition and three replicas; one topic in ten has a row."""
    cluster = init_cluster(path, ROOTS, {}, fsync=False)
    controller, names = Controller(cluster), [f"topic-{number:05}" for number in range(topic_count)]
    began = time.perf_counter()
    for name in names:
        while True:
            try:
                controller.create_topic(name, 1, 3, ledger_name="shared" if is_shared else None, if_not_exists=True)
                break
            except RetriableError as error:  # a busy machine
                print(error, flush=True)
    with Producer(cluster) as producer:
        for name in names[::10]:
            producer.send(name, b"v")
    print(f"(made in {time.perf_counter() - began:.0f} s)\n", flush=True)


def run(folder: Path, case: str, topic_count: int) -> None:
    """Measure one kind of store."""
    path, is_shared = str(folder / case), case == "shared"
    fill(path, topic_count, is_shared=is_shared)
    ledger_count = 1 if is_shared else topic_count
    print(f"| {topic_count} topics, {case} | s | CPU s | calls | a ledger and root | of them |")
    print("| --- | --- | --- | --- | --- | --- |")
    cluster = Cluster.open(path)
    measure("names of all topics", cluster, ledger_count, lambda: cluster.topic_names())
    cluster = Cluster.open(path)
    measure("all topics with their sizes", cluster, ledger_count, lambda: Controller(cluster).list_topics())
    cluster = Cluster.open(path)
    with Consumer(cluster, auto_offset_reset="earliest") as consumer:
        consumer.subscribe(pattern="topic-.*")
        measure("first poll of a pattern", cluster, ledger_count, lambda: consumer.poll(0))
        measure("a poll without a wait", cluster, ledger_count, lambda: consumer.poll(0))
        measure("an idle poll of 5 s", cluster, ledger_count, lambda: consumer.poll(5_000))
    cluster = Cluster.open(path)
    measure("one topic, cold", cluster, 1, lambda: cluster.topic_state(cluster.lookup("topic-00000")))
    with Producer(cluster) as producer:
        producer.send("topic-00000", b"v").result(60)

        def send() -> None:
            for _ in range(100):
                producer.send("topic-00000", b"v").result(60)

        measure("100 sends, each waited for", cluster, 1, send)


def main() -> None:
    """Measure both kinds of store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", type=int, default=1857)
    parser.add_argument("--dir", default=None)
    parser.add_argument("--cases", nargs="+", default=["own", "shared"])
    given = parser.parse_args()
    with scratch(given.dir) as folder:
        for case in given.cases:
            run(folder, case, given.topics)


if __name__ == "__main__":
    main()
