"""``replog store dump``: what lies on storage, in words, for support."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from spark_replog.cli.output import EXIT_FAILED, act_on_each, emit, quoted
from spark_replog.cli.settings import ReplogCommand, current_settings
from spark_replog.errors import ErrorCode, InvalidConfigError

_FILE_BYTES_MAX = 1 << 30


@click.command(
    "dump",
    cls=ReplogCommand,
    examples=[
        "store dump --ledger orders -n 5",
        "store dump --ledger cluster --broker 2 --before 100",
        "store dump ./broker-0/ledgers/*/journal/00000000000000000007",
    ],
)
@click.argument("files", nargs=-1, metavar="[FILE]...")
@click.option("--ledger", metavar="NAME", help="Journal records of this ledger: a topic, a ledger id, or 'cluster'.")
@click.option("--broker", "broker_id", type=int, help="Read the journal of this broker. [the first with journals]")
@click.option(
    "-n",
    "--count",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    help="Print at most this many records.",
)
@click.option(
    "--before", type=click.IntRange(min=0), metavar="POSITION", help="Records below this position. [the newest]"
)
def dump(files: tuple[str, ...], ledger: str | None, broker_id: int | None, count: int, before: int | None) -> int:
    """Show files in words: journal records with their entries, markers, snapshots, data objects, replog.json.

    FILE is a path on this machine, and needs no store: its first bytes say what it is. With --ledger the newest records
    of a journal are read from a root. Damaged files are shown as far as they can be read. It shows no rows.

    Exit code 1 when a file is damaged.
    """
    settings = current_settings()
    if bool(files) == (ledger is not None):
        raise click.UsageError("give files, or --ledger")
    from spark_replog.monitor.file_words import FileWords, file_words, journal_files, ledger_named

    found: list[FileWords] = []

    def act(name: str) -> dict[str, Any]:
        words = file_words(name, _read(name))
        found.append(words)
        return _item(words)

    if ledger is None:
        items = act_on_each("name", files, act)
    else:
        from spark_replog.cluster.authorizer import require_of_readable
        from spark_replog.log.acl import AclOperation

        cluster = settings.open_cluster()
        require_of_readable(cluster, AclOperation.DESCRIBE)
        roots = cluster.brokers.metadata_broker_ids
        if broker_id is not None and broker_id not in roots:
            raise click.UsageError(f"broker {broker_id} has no journals: {', '.join(map(str, roots))} have")
        ledger_id, names = ledger_named(cluster, ledger)
        records = journal_files(cluster, ledger_id, roots[0] if broker_id is None else broker_id, count, before)
        found = [file_words(key, data, names) for key, data in records]
        items = [_item(words) for words in found]
    text = "\n\n".join(_text(words) for words in found)
    exit_code = None if all(item["ok"] for item in items) else EXIT_FAILED
    return emit("store dump", items, settings, text=text, exit_code=exit_code)


def _read(name: str) -> bytes:
    try:
        with Path(name).open("rb") as file:
            data = file.read(_FILE_BYTES_MAX + 1)
    except (OSError, ValueError) as error:
        raise InvalidConfigError(ErrorCode.INVALID_REQUEST, f"cannot read {name}: {error}. Name a file.") from error
    if len(data) > _FILE_BYTES_MAX:
        raise InvalidConfigError(ErrorCode.INVALID_REQUEST, f"{name} is larger than any file of a store. Name another.")
    return data


def _item(words: Any) -> dict[str, Any]:
    damage = {"error": ErrorCode.CORRUPT_MESSAGE.name, "message": words.damage} if words.damage else {}
    return {
        "name": words.name,
        "kind": words.kind,
        "bytes": words.size_bytes,
        "lines": words.lines,
        "ok": not words.damage,
        **damage,
    }


def _text(words: Any) -> str:
    head = f"{quoted(words.name)}: {words.kind}, {words.size_bytes:,} bytes{', DAMAGED' if words.damage else ''}"
    return "\n".join([head, *(f"  {quoted(line)}" for line in words.lines)])
