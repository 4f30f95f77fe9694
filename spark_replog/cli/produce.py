"""``replog produce``: lines, JSON lines, CSV, Parquet and Arrow into a topic."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING, Any

import click

from spark_replog.cli.output import EXIT_INTERRUPTED, emit, error_item, exit_code_of, note, table
from spark_replog.cli.produce_input import FORMATS, format_of, read_batches
from spark_replog.cli.progress import ProgressLine
from spark_replog.cli.settings import Settings, current_settings, global_options, key_values, named_values
from spark_replog.errors import ErrorCode, InvalidConfigError, ReplogError

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_replog.client.arrow_sender import TableHandle
    from spark_replog.client.producer import Producer

HANDLES_OPEN_MAX = 64
"""So many batches may wait for their acknowledgement before the next one is read."""


@click.command("produce")
@global_options
@click.argument("topic")
@click.argument("files", nargs=-1, type=click.Path(dir_okay=False))
@click.option("-i", "--input", "kind", type=click.Choice(FORMATS), help="Format. [by the file's name, else lines]")
@click.option("-k", "--key", metavar="KEY", help="Lines: what stands between key and value. Else: the key's field.")
@click.option("--value", metavar="FIELD", help="The value's field. [the whole line or row]")
@click.option("-H", "--header", "headers", multiple=True, metavar="NAME=VALUE", help="On every record. Repeatable.")
@click.option("-p", "--partition", type=click.IntRange(min=0), help="Where all records go. [by key]")
@click.option("--acks", type=click.Choice(["all", "1", "0"]), default="all", show_default=True)
@click.option("-c", "--config", multiple=True, metavar="KEY=VALUE", help="A producer setting. Repeatable.")
def produce(topic: str, files: tuple[str, ...], **given: Any) -> int:
    """Append to TOPIC what FILES, or standard input, hold; one record a line or row.

    A table with a column 'value' gives its columns key, value, headers, partition and timestamp as they
    are (a time without a zone is UTC); of any other table a row becomes a JSON object.
    """
    settings = current_settings()
    settings.required_store()
    from spark_replog.client.producer import Producer

    config: dict[str, object] = {
        "client.id": "replog-produce",
        "acks": given["acks"],
        **key_values("-c", given["config"]),
    }
    if config.get("transactional.id"):
        raise click.UsageError("-c transactional.id needs a program that begins and commits: see docs/producer.md")
    headers = named_values("-H", given["headers"], "NAME=VALUE")
    if not all(_is_text(name) for name, _ in headers):
        raise click.UsageError("-H has a name that is no UTF-8, and a header's name is text")
    if given["key"] == "":
        raise click.UsageError("-k is empty: name what stands between key and value, or the key's field")
    written = _Written(topic)
    failure: ReplogError | None = None
    progress = ProgressLine(quiet=settings.quiet)
    try:
        with Producer(settings.open_cluster(), config) as producer:
            for batch in _batches(files, given):
                changed = _with_constants(batch, headers, given["partition"])
                _send(producer, topic, changed, written)
                if written.row_count:
                    progress.update(f"{written.row_count:,} records acknowledged")
            written.settle(0)
    except ReplogError as error:
        failure = error
    except KeyboardInterrupt:  # the producer was closed, so what it had taken is decided
        progress.close()
        return _stopped(written, settings)
    progress.close()
    if failure is not None:
        written.settle_acknowledged()
        if settings.format == "text" and written.row_count:
            note(f"replog: {written.row_count:,} records were acknowledged, the others were not")
    item = written.item() if failure is None else error_item(failure, **written.item())
    rows = [(number, None if first < 0 else first, count) for number, first, count in written.rows()]  # acks=0: unknown
    text = table(["partition", "first offset", "records"], rows) if failure is None else ""
    code = None if failure is None else exit_code_of(failure)
    return emit("produce", [item], settings, text=text, exit_code=code)


class _Written:
    """What was acknowledged so far."""

    def __init__(self, topic: str) -> None:
        self.row_count = 0
        self._topic = topic
        self._open: deque[TableHandle] = deque()
        self._counts: dict[int, int] = {}
        self._firsts: dict[int, int] = {}

    def add(self, handle: TableHandle) -> None:
        """Wait for an older batch where too many are open."""
        self._open.append(handle)
        self.settle(HANDLES_OPEN_MAX)

    def settle(self, left_count: int) -> None:
        """Wait until no more than so many batches are open.

        Raises:
            ReplogError: why one was refused.
        """
        while len(self._open) > left_count or (self._open and self._open[0].done()):
            handle = self._open.popleft()
            for found, row_count in zip(handle.result(), handle.row_counts, strict=True):
                self.row_count += row_count
                self._counts[found.partition] = self._counts.get(found.partition, 0) + row_count
                self._firsts.setdefault(found.partition, found.offset)

    def settle_acknowledged(self) -> None:
        """Count what was acknowledged of the open batches, and wait for none."""
        while self._open:
            if not self._open[0].done():
                self._open.popleft()
                continue
            with suppress(ReplogError):
                self.settle(len(self._open) - 1)

    def item(self) -> dict[str, Any]:
        """Return the result for scripts."""
        partitions = [
            {"partition": number, "firstOffset": first, "records": count} for number, first, count in self.rows()
        ]
        return {"topic": self._topic, "records": self.row_count, "partitions": partitions, "ok": True}

    def rows(self) -> list[tuple[int, int, int]]:
        """Return partition, first offset and number of records."""
        return [(number, self._firsts[number], self._counts[number]) for number in sorted(self._counts)]


def _stopped(written: _Written, settings: Settings) -> int:
    """Say what a Ctrl-C leaves in the log: who sends the rest must know where it begins."""
    written.settle_acknowledged()
    note(f"replog: stopped; {written.row_count:,} records were acknowledged before")
    return emit("produce", [{**written.item(), "ok": False}], settings, text="", exit_code=EXIT_INTERRUPTED)


def _is_text(name: str) -> bool:
    """Return whether an argument was UTF-8: Python keeps bytes that are not as surrogates."""
    return not any("\ud800" <= letter <= "\udfff" for letter in name)


def _send(producer: Producer, topic: str, batch: pa.RecordBatch, written: _Written) -> None:
    if batch.num_rows:
        written.add(producer.send_arrow(topic, batch))


def _batches(files: tuple[str, ...], given: dict[str, Any]) -> Iterator[pa.RecordBatch]:
    for name in files or ("-",):
        kind = given["kind"] or format_of(name)
        if kind == "lines" and given["value"] is not None:
            raise click.UsageError("--value names a field, and lines have none: add --input jsonl, csv, parquet")
        with _opened(name, kind) as stream:
            yield from read_batches(stream, name, kind, given["key"], given["value"])


@contextmanager
def _opened(name: str, kind: str) -> Iterator[IO[bytes]]:
    if name != "-":
        try:
            stream = open(name, "rb")  # noqa: SIM115
        except OSError as error:
            raise InvalidConfigError(
                ErrorCode.REPLOG_INPUT, f"{name} cannot be opened: {error.strerror}. Correct the path."
            ) from error
        with stream:
            if kind == "lines" or kind == "jsonl" or not os.path.isfile(name):
                yield stream
                return
            import pyarrow as pa

            # Arrow's threads read ahead; with a file of Python's they might still do when the interpreter ends.
            with pa.OSFile(name) as native:
                yield native
        return
    if kind == "parquet":
        raise click.UsageError("a Parquet file is read from its end: give it as a file, not through a pipe")
    if sys.stdin is None:
        raise InvalidConfigError(ErrorCode.REPLOG_INPUT, "standard input is closed. Name a file, or pipe records in.")
    yield sys.stdin.buffer


def _with_constants(batch: pa.RecordBatch, headers: list[tuple[str, str]], partition: int | None) -> pa.RecordBatch:
    """Return the batch with the headers and the partition that every record gets."""
    import pyarrow as pa

    if headers:
        kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
        row = [{"key": name, "value": os.fsencode(value)} for name, value in headers]
        place = batch.schema.get_field_index("headers")
        own = pa.nulls(batch.num_rows, kind) if place < 0 else batch.column(place)
        if pa.types.is_list(own.type) and pa.types.is_struct(
            own.type.value_type
        ):  # any other is refused when it is sent
            added = pa.array([[*(each or ()), *row] for each in own.to_pylist()], kind)
            batch = _with_column(batch, "headers", added)
    if partition is not None:
        batch = _with_column(batch, "partition", pa.array([partition] * batch.num_rows, pa.int32()))
    return batch


def _with_column(batch: pa.RecordBatch, name: str, column: pa.Array) -> pa.RecordBatch:
    place = batch.schema.get_field_index(name)
    return batch.append_column(name, column) if place < 0 else batch.set_column(place, name, column)
