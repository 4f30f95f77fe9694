"""``replog mirror``: topics of a Kafka cluster, with the same offsets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from spark_replog.cli.output import EXIT_FAILED, ProgressLine, emit, error_item, note, on_signals
from spark_replog.cli.settings import ReplogCommand, current_settings
from spark_replog.cli.tables import table
from spark_replog.errors import ErrorCode, ReplogError

if TYPE_CHECKING:
    from spark_replog.cluster.cluster import Cluster
    from spark_replog.mirror.kafka_source import KafkaSource
    from spark_replog.mirror.mirror import Mirror
    from spark_replog.mirror.mirrored_topic import MirroredTopic

SCHEME = "kafka://"
_COLUMNS = {"TOPIC": "topic", "ROWS": "rows", "BYTES": "bytes", "LAG": "lag", "ENDS": "ends", "LOST": "lost",
            "ERROR": "error"}  # fmt: skip


@contextmanager
def needs_kafka() -> Iterator[None]:
    """Say which extra is missing, if an import fails. Raises REPLOG_ENVIRONMENT."""
    try:
        yield
    except ModuleNotFoundError:
        raise ReplogError(
            ErrorCode.REPLOG_ENVIRONMENT, "this needs kafka-python. Run: pip install 'spark-replog[kafka]'"
        ) from None


@click.command(
    "mirror",
    cls=ReplogCommand,
    examples=[
        "mirror kafka://broker-1:9092,broker-2:9092 --topics orders,payments --once",
        "mirror kafka://broker-1:9092 --pattern 'shop[.].*' --config client.properties",
        "mirror kafka://broker-1:9092 --topics orders --verify",
    ],
)
@click.argument("source", metavar="kafka://HOST:PORT")
@click.option("--topics", default="", metavar="NAME,...", help="Topics to mirror.")
@click.option("--pattern", metavar="REGEX", help="Mirror all topics whose whole name matches, also later ones.")
@click.option("--once", is_flag=True, help="Mirror what is there now and exit.")
@click.option("--verify", is_flag=True, help="Write nothing: compare what both sides have now, row by row.")
@click.option("--config", "config_file", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
              help="Settings of Kafka's client, as client.properties: SASL, TLS, timeouts.")  # fmt: skip
@click.option("--skip-lost", is_flag=True, help="Go on although Kafka deleted rows before they were mirrored.")
def mirror(source: str, topics: str, pattern: str | None, **given: Any) -> int:
    """Mirror topics of a Kafka cluster into the store: the same partitions, offsets, keys, values, headers and times.

    Only committed records are read. Topics are made with the source's partitions and those of its settings that mean
    the same here, and grow with it. Only mirrors write to them, until 'replog topic promote'.

    Nothing is kept beside the topics: the command goes on where they end, may be killed at any moment, and may run
    twice. Without --once it runs until SIGTERM.

    A topic that was made again in Kafka, or lost rows there before they were read, is left alone with an error; the
    others go on.

    --verify reads what both sides have now and names the first difference of each partition; exit code 1 if there is
    one. Rows that one side has not got yet, or has no more, are no difference: the ends are shown.
    """
    names = [name.strip() for name in topics.split(",") if name.strip()]
    if not names and pattern is None:
        raise click.UsageError("give --topics, --pattern, or both")
    if not source.startswith(SCHEME) or not source.removeprefix(SCHEME).strip("/"):
        raise click.UsageError(f"the source is '{source}'. Give kafka://HOST:PORT")
    cluster = current_settings().open_cluster()
    with needs_kafka():
        from spark_replog.mirror.client_config import read_client_config
        from spark_replog.mirror.kafka_source import KafkaSource
        from spark_replog.mirror.mirror import Mirror
    settings = {} if given["config_file"] is None else read_client_config(given["config_file"])
    stops: list[int] = []
    with (
        KafkaSource(source.removeprefix(SCHEME).strip("/"), settings) as kafka,
        ProgressLine(quiet=current_settings().quiet) as line,
        on_signals(lambda number, _: stops.append(number)),
    ):
        if given["verify"]:
            return _verify(cluster, kafka, names, pattern, line)
        job = Mirror(cluster, kafka, names, pattern, accepts_loss=given["skip_lost"])

        def show() -> None:
            rows, lag = (sum(getattr(topic, name) for topic in job.topics.values()) for name in ("row_count", "lag"))
            line.update(f"mirrored {rows:,} rows, {lag:,} offsets behind")

        if given["once"]:
            job.run_once(lambda: bool(stops), show)
        else:
            note(f"replog: the mirror of {source} runs; SIGTERM stops it")
            job.run(lambda: bool(stops), show)
    return _emit(job)


def _verify(cluster: Cluster, kafka: KafkaSource, names: list[str], pattern: str | None, line: ProgressLine) -> int:
    """Compare the topics of both sides, and show the ranges and the first differences."""
    from spark_replog.ids import TopicPartition
    from spark_replog.mirror.comparison import row_text, verify
    from spark_replog.mirror.kafka_side import KafkaSide
    from spark_replog.mirror.mirror import topics_of
    from spark_replog.mirror.replog_side import ReplogSide

    topics, rows = topics_of(kafka, names, pattern), [0]
    keys = [TopicPartition(topic.name, number) for topic in topics for number in range(len(topic.leaders))]

    def show(count: int) -> None:
        rows[0] += count
        line.update(f"compared {rows[0]:,} rows")

    items: list[dict[str, Any]] = []
    for part in verify(ReplogSide(cluster), KafkaSide(kafka), keys, show):
        item = {"topic": part.key.topic, "partition": part.key.partition, "from": part.begin, "to": part.end,
                "rows": part.row_count, "here": part.one and list(part.one), "kafka": part.other and list(part.other),
                "difference": None, "ok": part.is_same}  # fmt: skip
        if part.one is None:
            item["difference"] = "the store has no such partition"
        elif part.difference is not None:
            texts = row_text(part.difference.one), row_text(part.difference.other)
            item["difference"] = f"offset {part.difference.offset}: here {texts[0]}; in Kafka {texts[1]}"
        items.append(item)
    columns = {"TOPIC": "topic", "PARTITION": "partition", "FROM": "from", "TO": "to", "ROWS": "rows", "HERE": "here",
               "KAFKA": "kafka", "FIRST DIFFERENCE": "difference"}  # fmt: skip
    return emit(items, table(columns, items), exit_code=0 if all(item["ok"] for item in items) else EXIT_FAILED)


def _emit(job: Mirror) -> int:
    items = [_item(topic) for _, topic in sorted(job.topics.items())]
    items += [error_item(error, topic=name) for name, error in sorted(job.refused.items())]
    for item in items:
        if "message" in item:
            note(f"replog: {item['message']}")
    is_fine = all(item["ok"] for item in items)
    return emit(items, table(_COLUMNS, items), exit_code=0 if is_fine else EXIT_FAILED)


def _item(topic: MirroredTopic) -> dict[str, Any]:
    item: dict[str, Any] = {"ok": True, "error": None} if topic.error is None else error_item(topic.error)
    lost = {str(number): f"{first}-{end}" for number, (first, end) in sorted(topic.lost.items())}
    ends = {str(number): end for number, end in enumerate(topic.ends)}
    counts = {"rows": topic.row_count, "bytes": topic.size_bytes, "lag": topic.lag}
    return {"topic": topic.name, **counts, "ends": ends, "lost": lost, **item}
