"""``replog topic schema``: the columns of a typed topic, their versions, and their next one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from spark_replog.cli.completion import complete_topics
from spark_replog.cli.output import EXIT_WARN, act_on_each, confirm, emit, note
from spark_replog.cli.settings import ReplogGroup, current_settings, yes_flag
from spark_replog.cli.tables import Table, table

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_replog.admin.controller import Controller
    from spark_replog.log.row_schema import RowSchema

_COLUMNS = {"COLUMN": "column", "TYPE": "type", "NULLABLE": "nullable", "KEY": "key"}


@click.group("schema", cls=ReplogGroup)
def schema() -> None:
    """Show and change the columns of typed topics."""


_name = click.argument("name", shell_complete=complete_topics)
_file = click.Path(dir_okay=False)


def _controller() -> Controller:
    from spark_replog.admin.controller import Controller

    return Controller(current_settings().open_cluster())


def column_items(made: RowSchema | None) -> list[dict[str, Any]] | None:
    """Return the columns of a schema; None without one."""
    from spark_replog.log.ddl import type_text

    if made is None:
        return None
    return [
        {"column": field.name, "type": type_text(field.type), "nullable": field.nullable, "key": field.name in made.key}
        for field in made.arrow
    ]


def _item(name: str, made: RowSchema) -> dict[str, Any]:
    columns = column_items(made)
    return {"topic": name, "version": made.version, "key": list(made.key), "schema": made.ddl, "columns": columns}


def columns_table(made: RowSchema) -> Table:
    """Return the columns of a schema as a table."""
    return table(_COLUMNS, column_items(made) or ())


def change_words(older: RowSchema | None, newer: RowSchema) -> list[str]:
    """Return what a version changes, one line a column; of the first one its columns."""
    from spark_replog.log.schema_merge import column_changes

    if older is None:
        return [newer.ddl]
    return [
        f"{change.column}: {change.before} becomes {change.after}"
        if change.before
        else f"{change.column} {change.after} is added"
        for change in column_changes(older, newer)
    ]


@schema.command("show", examples=["topic schema show orders", "topic schema show orders --version 1"])
@_name
@click.option("--version", type=click.IntRange(min=1), help="This version. [the newest]")
def show(name: str, version: int | None) -> int:
    """Show the columns of a topic's rows."""
    from spark_replog.errors import ErrorCode, NotFoundError

    controller = _controller()
    parts: list[str | Table] = []

    def act(topic: str) -> dict[str, Any]:
        versions = controller.schema_history(topic)
        if version is not None and version > len(versions):
            text = f"the schema of topic '{topic}' has versions 1 to {len(versions)}, not {version}. Give one of them."
            raise NotFoundError(ErrorCode.REPLOG_INVALID_SCHEMA, text, topic=topic)
        made = versions[(version or len(versions)) - 1]
        parts.extend([f"topic {topic}: schema version {made.version} of {len(versions)}", columns_table(made)])
        return {**_item(topic, made), "ok": True}

    return emit(act_on_each("topic", (name,), act), *parts)


@schema.command("history", examples=["topic schema history orders"])
@_name
def history(name: str) -> int:
    """Show all versions of a topic's schema, and what each one changed."""
    controller = _controller()
    rows: list[tuple[str, str]] = []

    def act(topic: str) -> dict[str, Any]:
        versions = controller.schema_history(topic)
        items = []
        for older, made in zip((None, *versions[:-1]), versions, strict=True):
            words = change_words(older, made)
            items.append({"version": made.version, "schema": made.ddl, "changes": [] if older is None else words})
            rows.extend((str(made.version) if not number else "", word) for number, word in enumerate(words))
        return {"topic": topic, "key": list(versions[0].key), "versions": items, "ok": True}

    items = act_on_each("topic", (name,), act)
    return emit(items, Table(["VERSION", "CHANGE"], rows) if rows else "")


@schema.command("check", examples=["topic schema check orders new.parquet"])
@_name
@click.argument("file", type=_file)
def check(name: str, file: str) -> int:
    """Check whether the rows of FILE can be written to a topic: parquet, Arrow, CSV with a header or JSON lines.

    Exit code 3 if the schema must get another version before: 'topic schema evolve --schema-from' makes it.
    """
    from spark_replog.cli.row_files import missing_columns

    controller = _controller()
    parts: list[str | Table] = []
    codes: list[int] = []

    def act(topic: str) -> dict[str, Any]:
        newest = controller.schema_history(topic)[-1]
        given, is_text = _file_columns(file)
        wanted = _merged(newest, given, is_text=is_text)
        nulls = missing_columns(newest, given)
        changes = change_words(newest, wanted)
        codes.extend([EXIT_WARN] if changes else [])
        fits = f"{file} fits version {newest.version} of the schema of topic {topic}"
        parts.append(f"{file} needs version {wanted.version} of the schema of topic {topic}:" if changes else fits)
        parts.extend(f"  {word}" for word in changes)
        parts.extend(f"  {column} is not in the file: its rows have null" for column in nulls)
        verdict = {"file": file, "fits": not changes, "changes": changes, "missing": nulls}
        return {**_item(topic, wanted), **verdict, "ok": True}

    items = act_on_each("topic", (name,), act)
    exit_code = codes[0] if codes and items[0]["ok"] else None
    return emit(items, *parts, exit_code=exit_code)


@schema.command(
    "evolve",
    examples=[
        'topic schema evolve orders --schema "id BIGINT, amount DECIMAL(14,2), note STRING" -y',
        "topic schema evolve orders --schema-from new.parquet --dry-run",
    ],
)
@_name
@click.option("--schema", "ddl", metavar="DDL", help="All columns afterwards, as in Spark's DDL.")
@click.option("--schema-from", "file", type=_file, metavar="FILE",
              help="File whose columns the topic must be able to hold: its new ones are added.")  # fmt: skip
@click.option("--from-version", type=click.IntRange(min=1), help="Version that --schema was made from. [the newest]")
@click.option("--dry-run", is_flag=True, help="Show the version; change nothing.")
@yes_flag
def evolve(name: str, ddl: str | None, file: str | None, from_version: int | None, dry_run: bool, yes: bool) -> int:
    """Give a typed topic the next version of its schema: more nullable columns, wider numbers, no NOT NULL.

    Older rows read through it. Programs that are running keep the version with which they began.
    """
    if (ddl is None) == (file is None):
        raise click.UsageError("give --schema DDL, or --schema-from FILE")
    if file is not None and from_version is not None:
        raise click.UsageError("--from-version goes with --schema: a file's columns are added to the newest version")
    controller = _controller()
    texts: list[str] = []

    def act(topic: str) -> dict[str, Any]:
        versions = controller.schema_history(topic)
        wanted: RowSchema | str = ddl or ""
        if file is not None:
            given, is_text = _file_columns(file)
            wanted = _merged(versions[-1], given, is_text=is_text)
        made = controller.evolve_schema(topic, wanted, from_version=from_version, validate_only=True).schema
        assert made is not None
        if made.version <= len(versions):
            texts.append(f"topic {topic}: these are the columns of version {made.version}, nothing to change")
            return {**_item(topic, made), "changes": [], "dryRun": dry_run, "ok": True}
        changes = change_words(versions[made.version - 2], made)
        if not dry_run:
            if not yes:
                note("\n".join(changes))
            confirm(yes, f"Make this version {made.version} of the schema of {topic}? It cannot be taken back.")
            controller.evolve_schema(topic, made, from_version=made.version - 1)
        texts.append(f"topic {topic}: {'would have' if dry_run else 'has'} schema version {made.version}")
        texts.extend(f"  {word}" for word in changes)
        return {**_item(topic, made), "changes": changes, "dryRun": dry_run, "ok": True}

    items = act_on_each("topic", (name,), act)
    return emit(items, *texts)


def schema_of_file(name: str, key: Sequence[str]) -> RowSchema:
    """Return version 1 of the schema with a file's columns.

    Raises:
        InvalidConfigError: REPLOG_INPUT; REPLOG_INVALID_SCHEMA: a topic cannot hold a column.
    """
    from spark_replog.log.row_schema import RowSchema

    return RowSchema.of(_file_columns(name)[0], key)


def _file_columns(name: str) -> tuple[pa.Schema, bool]:
    from spark_replog.cli.row_files import file_columns

    return file_columns(name)


def _merged(newest: RowSchema, given: pa.Schema, *, is_text: bool) -> RowSchema:
    """Return the schema that holds a file's columns; text is read as the topic's types, so only new names count."""
    import pyarrow as pa

    from spark_replog.log.schema_merge import merged_schema

    if is_text:
        given = pa.schema([field for field in given if field.name not in newest.names])
    return merged_schema(newest, given)
