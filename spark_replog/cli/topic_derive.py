"""``replog topic derive`` and ``replay``: a topic of bytes becomes a typed one, and its bad records are tried again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from spark_replog.cli.completion import complete_topics
from spark_replog.cli.output import ProgressLine, confirm, emit, note, on_signals
from spark_replog.cli.settings import ReplogCommand, current_settings, yes_flag
from spark_replog.cli.tables import Table, table
from spark_replog.cli.topic_schema import columns_table, schema_of_file
from spark_replog.errors import ErrorCode, InvalidConfigError, NotFoundError

if TYPE_CHECKING:
    from spark_replog.client.derivation import Derivation
    from spark_replog.client.derivations import DerivationStatus

FORMATS = ("json", "avro")
_COLUMNS = {"TOPIC": "topic", "FROM": "source", "FORMAT": "format", "POSITIONS": "positions", "LAG": "lag",
            "ERRORS TOPIC": "errorsTopic", "BAD": "badRecords", "NOT REPLAYED": "notReplayed"}  # fmt: skip


def derivation_item(status: DerivationStatus) -> dict[str, Any]:
    """Return a derivation with its position, its lag, and what went to its errors topic."""
    problem = {"problem": str(status.problem)} if status.problem else {}
    return {
        "topic": status.target,
        "source": status.recipe.source,
        "format": status.recipe.value_format,
        "positions": list(status.positions),
        "lag": status.lag,
        "errorsTopic": status.recipe.errors_topic,
        "badRecords": status.bad_count,
        "notReplayed": status.unreplayed_count,
        **problem,
    }


def derivation_line(item: dict[str, Any]) -> str:
    """Return a derivation as one line."""
    lag = "" if item["lag"] is None else f", lag {item['lag']:,}"
    bad = f", {item['badRecords']:,} bad records"
    if item["errorsTopic"]:
        bad += f" in {item['errorsTopic']}"
    if item["notReplayed"] is not None:
        bad += f", {item['notReplayed']:,} not replayed"
    problem = f"\nit cannot go on: {item['problem']}" if "problem" in item else ""
    return f"derived from {item['source']} ({item['format']}){lag}{bad}{problem}"


def derivation_lines(items: list[dict[str, Any]]) -> list[str | Table]:
    """Return derivations as a table, and why some of them cannot go on."""
    shown = [{**item, "positions": " ".join(map(str, item["positions"]))} for item in items]
    problems = [f"topic {item['topic']}: {item['problem']}" for item in items if "problem" in item]
    return [table(_COLUMNS, shown), *problems]


@click.command(
    "derive",
    cls=ReplogCommand,
    examples=[
        'topic derive clicks sales --schema "id BIGINT, price DOUBLE" --key id --errors-topic bad-sales --once',
        "topic derive --list",
        "topic derive --stop sales",
    ],
)
@click.argument("names", nargs=-1, metavar="[SOURCE] [TARGET]", shell_complete=complete_topics)
@click.option("-i", "--input", "value_format", type=click.Choice(FORMATS), default="json", show_default=True,
              help="How the values of SOURCE are read.")  # fmt: skip
@click.option("--value-schema", "value_file", type=click.Path(dir_okay=False), metavar="FILE",
              help="Avro: the schema with which the values were written, or the reader's with a registry.")  # fmt: skip
@click.option("--value-registry", "registry", default="", metavar="URL",
              help="Avro: a registry of Confluent's, or a folder with files NUMBER.avsc.")  # fmt: skip
@click.option("--schema", metavar="DDL", help="Columns of a TARGET that does not exist yet, as in Spark's DDL.")
@click.option("--schema-from", "schema_file", type=click.Path(dir_okay=False), metavar="FILE",
              help="File with these columns: parquet, Arrow, CSV with a header, JSON lines. Asks first.")  # fmt: skip
@click.option("--key", metavar="COLUMN,...", help="Columns of the schema that choose the partition.")
@click.option("-p", "--partitions", type=click.IntRange(min=1), help="Of a new TARGET. [as many as SOURCE has]")
@click.option("--errors-topic", metavar="NAME", help="Topic that gets each bad record whole. [the first one stops]")
@click.option("--once", is_flag=True, help="Derive what is there now and exit.")
@click.option("--skip-lost", is_flag=True, help="Go on although records of SOURCE are gone, or it was made again.")
@click.option("--interval-ms", type=click.IntRange(min=1), default=1000, show_default=True,
              help="Pause after SOURCE was read to its end.")  # fmt: skip
@click.option(
    "--list", "is_list", is_flag=True, help="List the derivations of the store, or of the topics that are named."
)
@click.option("--stop", "is_stop", is_flag=True, help="End the derivation of TARGET; its position is kept.")
@yes_flag
def derive(names: tuple[str, ...], is_list: bool, is_stop: bool, **given: Any) -> int:
    """Fill the typed topic TARGET from the topic of bytes SOURCE: each record once, as a row or as a bad record.

    Makes TARGET and the errors topic if they do not exist. Rows, bad records and the position are one entry of the
    ledger, so the command may be killed, run again, or run twice at once. It begins at the oldest record of SOURCE.

    The derivation stays with TARGET: 'replog coordinator run' goes on with it. Without --once this command does, until
    SIGTERM. A record that does not fit TARGET goes to the errors topic, with headers that say where it is from and why;
    'replog topic replay' tries it again. Without an errors topic it stops the derivation.
    """
    from spark_replog.admin.controller import Controller
    from spark_replog.client.derivations import Derivations

    if is_list and is_stop:
        raise click.UsageError("give --list or --stop, not both")
    if len(names) != 2 and not is_list and not (is_stop and len(names) == 1):
        raise click.UsageError("name SOURCE and TARGET; with --stop only TARGET")
    cluster = current_settings().open_cluster()
    derivations = Derivations(cluster, Controller(cluster))
    if is_list:
        items = [{**derivation_item(status), "ok": True} for status in derivations.statuses(names or None)]
        return emit(items, *derivation_lines(items))
    if is_stop:
        derivations.stop(names[0])
        return emit([{"topic": names[0], "ok": True}], f"topic {names[0]}: no longer derived; its position is kept")
    source, target = names
    key = [column.strip() for column in given["key"].split(",")] if given["key"] else []
    schema = _schema(target, given["schema"], given["schema_file"], key, yes=given["yes"])
    how = {name: given[name] for name in ("value_format", "registry", "partitions", "errors_topic")}
    value_schema = _text_of(given["value_file"])
    recipe = derivations.set_up(source, target, schema=schema, key=key, value_schema=value_schema, **how)
    from spark_replog.client.derivation import Derivation
    from spark_replog.client.derivations import ShownPosition, follow

    job = Derivation(cluster, target, recipe)
    with _watched(job) as (is_stopped, on_progress):
        job.run(is_stopped=is_stopped, accepts_loss=given["skip_lost"], on_progress=on_progress)
        _tell_lost(job)
        if given["once"]:
            ShownPosition(cluster, target).show(job, at_once=True)
        else:
            note(f"replog: topic {target} is derived from {source}; SIGTERM stops it")
            interval_ms = given["interval_ms"]
            follow(cluster, target, job, is_stopped=is_stopped, interval_ms=interval_ms, on_progress=on_progress)
    items = [{**derivation_item(status), **_counts(job), "ok": True} for status in derivations.statuses([target])]
    return emit(items, *derivation_lines(items))


def _schema(target: str, ddl: str | None, file: str | None, key: list[str], *, yes: bool) -> Any:
    """Return the columns of a new target, after a question if they are a file's."""
    if ddl is not None and file is not None:
        raise click.UsageError("give --schema DDL, or --schema-from FILE")
    if file is None:
        return ddl
    made = schema_of_file(file, key)
    if not yes:
        note(str(columns_table(made)))
        confirm(yes, f"Create {target} with these columns, which {file} has?")
    return made


def _text_of(file: str | None) -> str:
    """Return the text of a file, "" without one."""
    if file is None:
        return ""
    try:
        return Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfigError(ErrorCode.REPLOG_INPUT, f"{file} cannot be read: {error}. Name another.") from error


@contextmanager
def _watched(job: Derivation) -> Iterator[tuple[Callable[[], bool], Callable[[], object]]]:
    """Yield whether a signal came, which ends the work after an append, and what shows a line of progress."""
    stops: list[int] = []
    with ProgressLine(quiet=current_settings().quiet) as line, on_signals(lambda number, _: stops.append(number)):

        def show_progress() -> None:
            done = job.row_count + job.bad_count
            line.update(f"derived {done:,} of {done + job.left_count:,} records, {job.bad_count:,} bad")

        yield lambda: bool(stops), show_progress


def _tell_lost(job: Derivation) -> None:
    for lost in job.lost:
        note(f"replog: {lost}")


def _counts(job: Derivation) -> dict[str, int]:
    return {"rows": job.row_count, "bad": job.bad_count}


@click.command(
    "replay",
    cls=ReplogCommand,
    examples=["topic replay sales-errors", "topic replay sales-errors --to sales"],
)
@click.argument("name", metavar="ERRORS", shell_complete=complete_topics)
@click.option("--to", "target", metavar="TARGET", shell_complete=complete_topics,
              help="Topic whose bad records to try again. [all that have this errors topic]")  # fmt: skip
@click.option("--skip-lost", is_flag=True, help="Go on although records of ERRORS are gone, or it was made again.")
def replay(name: str, target: str | None, skip_lost: bool) -> int:
    """Try the records of the errors topic ERRORS again, after the columns of their target were changed.

    Each one is tried once in all runs: it becomes a row of its target, or, if it is still bad, it goes to the end of
    ERRORS with the new reason. Records that came after the command began are left to the next run. To send the records
    to their source again instead: replog copy ERRORS SOURCE --by-key.
    """
    from spark_replog.admin.controller import Controller
    from spark_replog.client.derivation import Derivation
    from spark_replog.client.derivations import Derivations

    cluster = current_settings().open_cluster()
    derivations = Derivations(cluster, Controller(cluster))
    pairs = [pair for pair in derivations.of_errors(name) if target in (None, pair[0])]
    if not pairs:
        who = "no topic has" if target is None else f"topic '{target}' has not"
        raise NotFoundError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            f"{who} the errors topic '{name}'. List derivations and their errors topics: replog topic derive --list.",
            topic=name,
        )
    items = []
    for to, recipe in pairs:
        job = Derivation(cluster, to, recipe)
        with _watched(job) as (is_stopped, on_progress):
            job.run(is_stopped=is_stopped, accepts_loss=skip_lost, on_progress=on_progress)
        _tell_lost(job)
        items.append({"errorsTopic": name, "topic": to, **_counts(job), "ok": True})
    columns = {"ERRORS TOPIC": "errorsTopic", "TARGET": "topic", "ROWS": "rows", "STILL BAD": "bad"}
    return emit(items, table(columns, items))
