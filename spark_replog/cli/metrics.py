"""``replog metrics``: a store's metrics for Prometheus."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from spark_replog.cli.output import EXIT_OK, note, show
from spark_replog.cli.settings import ReplogGroup, current_settings
from spark_replog.cli.tables import escaped, is_terminal
from spark_replog.cli.view import checkpoint_flag, limit_flags, read_limits
from spark_replog.errors import ErrorCode, ReplogError


@click.group("metrics", cls=ReplogGroup)
def metrics() -> None:
    """Serve a store's metrics to Prometheus."""


@metrics.command(
    "serve",
    examples=[
        "-s ./store metrics serve --checkpoint ./checkpoints",
        "-s ./store metrics serve --once --output /var/lib/node_exporter/replog.prom",
    ],
)
@click.option("--listen", default="127.0.0.1:9410", show_default=True, metavar="HOST:PORT", help="Where to listen.")
@checkpoint_flag("Queries to judge too.")
@click.option("--once", is_flag=True, help="Print the metrics once, or write them to --output, and end.")
@click.option("--output", type=click.Path(dir_okay=False), help="With --once: a file, replaced as a whole.")
@limit_flags
def serve(
    listen: str, checkpoints: tuple[str, ...], once: bool, output: str | None, after: str, max_lag: str | None
) -> int:
    """Serve all metrics of a store as Prometheus text and OpenMetrics. Reads only.

    With --once for cron: node-exporter's textfile collector picks the file up.
    """
    settings = current_settings()
    if output and not once:
        raise click.UsageError("--output needs --once")
    host, port = host_and_port(listen)
    limits, cluster = read_limits(after, max_lag), settings.open_cluster()
    try:
        from spark_replog.monitor.exporter import StoreCollector, server_of
        from spark_replog.monitor.store_monitor import StoreWatch
    except ModuleNotFoundError:
        raise ReplogError(
            ErrorCode.REPLOG_ENVIRONMENT, "metrics need prometheus_client. Run: pip install 'spark-replog[metrics]'"
        ) from None
    collector = StoreCollector(StoreWatch(cluster, checkpoints, settings.storage_options, limits))
    if once:
        data = collector.text()
        if output:
            replace_file(Path(output), data)
        else:  # a group may have any name, and a terminal would act on it
            show(escaped(data.decode()) if is_terminal(sys.stdout) else data, newline=False)
        return EXIT_OK
    try:
        server = server_of(collector, host.strip("[]"), port)
    except OSError as error:
        raise cannot_listen(listen, error) from error
    note(f"serving metrics on http://{host}:{server.server_port}/metrics; end it with Ctrl-C")
    with server:
        server.serve_forever()
    return EXIT_OK


def host_and_port(listen: str) -> tuple[str, int]:
    """Return the parts of ``--listen HOST:PORT``."""
    host, separator, port = listen.rpartition(":")
    if not separator or not port.isdecimal() or int(port) > 65_535:
        raise click.UsageError(f"--listen needs HOST:PORT, not '{listen}'")
    return host, int(port)


def cannot_listen(listen: str, error: OSError) -> ReplogError:
    """Return the error for an address that is taken, or is not this machine's."""
    text = f"cannot listen on {listen}: {error.strerror}. Give another --listen."
    return ReplogError(ErrorCode.REPLOG_ENVIRONMENT, text)


def replace_file(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    """Write a file so that a reader sees the old one or the new one."""
    part = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as out:
            out.write(data)
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise ReplogError(
            ErrorCode.REPLOG_ENVIRONMENT, f"cannot write {path}: {error.strerror}. Give another --output."
        ) from error
