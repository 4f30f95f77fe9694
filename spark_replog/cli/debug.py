"""``replog debug bundle``: the data about a store that support needs, in one file without rows and credentials."""

from __future__ import annotations

import io
import json
import os
import platform
import re
import sys
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from importlib.metadata import distributions
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from spark_replog.cli.metrics import replace_file
from spark_replog.cli.output import emit, item_of
from spark_replog.cli.settings import ReplogGroup, Settings, current_settings
from spark_replog.cli.tables import human_bytes
from spark_replog.cli.view import (
    broker_items,
    checkpoint_flag,
    finding_items,
    reader_item,
    size_items,
    topic_item,
    totals,
)
from spark_replog.clock import SYSTEM_CLOCK
from spark_replog.errors import ErrorCode, ReplogError

if TYPE_CHECKING:
    from spark_replog.cluster.cluster import Cluster
    from spark_replog.health.store import StoreView

_PACKAGES = re.compile(
    r"(spark-replog|pyspark|pyarrow|numpy|pandas|fsspec|s3fs|gcsfs|adlfs|crc32c|click|rich|prometheus-client|botocore)$",
    re.I,
)
_SECRET_NAME = re.compile(r"secret|token|passw|credential|access_?key|account_?key|sas|private", re.I)
_IN_URL = re.compile(r"://[^/@\s\"']+@")
_IN_QUERY = re.compile(r"([?&][^=&\s\"']*(?:sig|signature|token|key|secret)[^=&\s\"']*=)[^&\s\"']+", re.I)
_HIDDEN = "(hidden)"


@click.group("debug", cls=ReplogGroup)
def debug() -> None:
    """Collect what support needs."""


@debug.command("bundle", examples=["debug bundle", "debug bundle --checkpoint ./checkpoints -o /tmp/bundle.tar.gz"])
@click.option("-o", "--output", type=click.Path(dir_okay=False), help="File to write. [replog-bundle-TIME.tar.gz]")
@checkpoint_flag("Queries to describe.")
@click.option("-n", "--entries", type=click.IntRange(min=0), default=50, show_default=True,
              help="Newest entries of each ledger, in words.")  # fmt: skip
def bundle(output: str | None, checkpoints: tuple[str, ...], entries: int) -> int:
    """Pack versions, status, topics, groups, queries, settings and the newest entries of each ledger into a .tar.gz.

    It holds no keys, values, headers or commit notes, no values of storage options or environment variables, and no
    credentials of URLs. It holds names: of topics, groups, principals, client ids, paths and buckets. Look through it
    before you send it. What cannot be read is an error in the file of that part, so a store in trouble has one too.
    """
    settings = current_settings()
    settings.required_store()
    now_ms = SYSTEM_CLOCK.now_ms()
    parts: dict[str, Any] = {}
    failed: list[str] = []

    def collect(name: str, make: Callable[[], Any]) -> Any:
        try:
            part = make()
        except Exception as error:  # continue: bundles are made of broken stores
            failed.append(name)
            code = error.code.name if isinstance(error, ReplogError) else ErrorCode.UNKNOWN_SERVER_ERROR.name
            parts[name] = {"error": code, "message": f"{type(error).__name__}: {error}"}
            return None
        parts[name] = part
        return part

    collect("about", lambda: _about(settings, now_ms))
    cluster: Cluster | None = collect("store", settings.open_cluster)
    if cluster is not None:
        collect("store", partial(_store, cluster))
        view: StoreView | None = collect("status", partial(_look, cluster, checkpoints, settings))
        if view is not None:
            collect("status", partial(_status, view, settings))
            collect("topics", partial(_topics, view))
            collect("readers", partial(_readers, view))
        for ledger in _ledgers(cluster):
            collect(f"ledgers/{ledger}", partial(_entries, cluster, ledger, entries))
    hide = _hider(settings, os.environ)
    files = {f"{name}.json": json.dumps(_all_texts(part, hide), indent=1) for name, part in parts.items()}
    path = Path(output or f"replog-bundle-{now_ms}.tar.gz")
    size_bytes = _write(path, files, now_ms)
    items = [{"file": str(path), "bytes": size_bytes, "parts": sorted(files), "failed": failed, "ok": True}]
    head = f"{path}: {len(files)} files, {human_bytes(size_bytes)}."
    return emit(
        items,
        f"{head} It holds no rows and no credentials; look through it.",
        *([f"with an error instead of: {', '.join(failed)}"] if failed else []),
    )


def _about(settings: Settings, now_ms: int) -> dict[str, Any]:
    packages = {
        package.metadata["Name"]: package.version
        for package in distributions()
        if _PACKAGES.match(package.metadata["Name"] or "")
    }
    return {
        "timeMs": now_ms,
        "python": sys.version,
        "platform": platform.platform(),
        "packages": dict(sorted(packages.items())),
        "path": settings.store,
        "storageOptions": dict.fromkeys(sorted(settings.storage_options), _HIDDEN),
    }


def _store(cluster: Cluster) -> dict[str, Any]:
    cluster.refresh()
    brokers = cluster.brokers
    return {
        "clusterId": brokers.cluster_id,
        "fsync": brokers.fsync,
        "roots": {broker_id: brokers.url(broker_id) for broker_id in brokers.broker_ids},
        "metadataBrokers": list(brokers.metadata_broker_ids),
        "config": cluster.cluster_ledger.ask(lambda state: dict(state.config)),
        "coordinator": asdict(cluster.config),
    }


def _look(cluster: Cluster, checkpoints: tuple[str, ...], settings: Settings) -> StoreView:
    from spark_replog.monitor.store_monitor import StoreWatch

    return StoreWatch(cluster, checkpoints, settings.storage_options).look()


def _status(view: StoreView, settings: Settings) -> dict[str, Any]:
    return {
        **totals(view),
        "brokers": broker_items(view),
        "findings": finding_items(view.findings, settings),
        "ledgers": [item_of(ledger, "ledgerId entryCount isTailUnclear behind") for ledger in view.ledgers],
        "unreadCheckpoints": {folder: str(error) for folder, error in view.unread},
    }


def _topics(view: StoreView) -> list[dict[str, Any]]:
    sizes = {item["topic"]: item for item in size_items(view.topics, view.now_ms)}
    return [{**sizes[topic.name], **topic_item(topic)} for topic in view.topics]


def _readers(view: StoreView) -> list[dict[str, Any]]:
    items = []
    for reader in view.readers:
        item = reader_item(reader, reader.kind)
        for part in item["partitions"]:
            part.pop("metadata")  # a program may have written anything there
        members = [item_of(member, "member=member_id client=client_id") for member in reader.members]
        items.append({**item, **item_of(reader, "generation protocol"), "members": members})
    return items


def _ledgers(cluster: Cluster) -> list[str]:
    ids = cluster.cluster_ledger.ask(lambda state: sorted(state.ledger_ids()))
    return [cluster.brokers.cluster_id, *ids]


def _entries(cluster: Cluster, ledger: str, count: int) -> list[dict[str, Any]]:
    """Return the newest records of the first root that answers."""
    from spark_replog.monitor.file_words import file_words, journal_files, ledger_named

    ledger_id, names = ledger_named(cluster, ledger)
    problems = []
    for broker_id in cluster.brokers.metadata_broker_ids:
        try:
            records = journal_files(cluster, ledger_id, broker_id, count) if count else []
        except ReplogError as error:
            problems.append(error)
            continue
        return [
            {"name": words.name, "broker": broker_id, "lines": words.lines, "damage": words.damage}
            for words in (file_words(key, data, names) for key, data in records)
        ]
    raise problems[0]


def _hider(settings: Settings, environ: Mapping[str, str]) -> Callable[[str], str]:
    """Return a function that removes credentials from a text: in URLs, storage options, variables with such names."""
    values = {*settings.storage_options.values()}
    values |= {value for name, value in environ.items() if _SECRET_NAME.search(name)}
    ordered = sorted((value for value in values if len(value) >= 4), key=len, reverse=True)

    def hide(text: str) -> str:
        for value in ordered:
            text = text.replace(value, _HIDDEN)
        return _IN_QUERY.sub(rf"\1{_HIDDEN}", _IN_URL.sub(f"://{_HIDDEN}@", text))

    return hide


def _all_texts(value: Any, change: Callable[[str], str]) -> Any:
    """Return JSON values with every text in them changed, keys included."""

    def changed(node: Any) -> Any:
        if isinstance(node, dict):
            return {change(name): changed(inner) for name, inner in node.items()}
        if isinstance(node, list):
            return [changed(inner) for inner in node]
        return change(node) if isinstance(node, str) else node

    return changed(json.loads(json.dumps(value, default=str)))


def _write(path: Path, files: Mapping[str, str], now_ms: int) -> int:
    """Write the file, readable only by its owner; return its size in bytes."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, text in files.items():
            data = text.encode()
            info = tarfile.TarInfo(f"replog-bundle/{name}")
            info.size, info.mtime, info.mode = len(data), now_ms // 1000, 0o600
            archive.addfile(info, io.BytesIO(data))
    replace_file(path, packed.getvalue(), mode=0o600)
    return len(packed.getvalue())
