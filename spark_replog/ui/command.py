"""``replog ui``: the console in the browser."""

from __future__ import annotations

import socket

import click

from spark_replog.cli.metrics import cannot_listen, host_and_port
from spark_replog.cli.output import EXIT_OK, note
from spark_replog.cli.settings import FiniteRange, ReplogCommand, current_settings
from spark_replog.cli.view import checkpoint_flag, limit_flags, read_limits
from spark_replog.errors import ErrorCode, ReplogError
from spark_replog.ui.access import LOOPBACK, Access, host_of


@click.command(
    "ui",
    cls=ReplogCommand,
    examples=["-s ./store ui", "-s ./store ui --checkpoint ./checkpoints --listen 127.0.0.1:8080"],
)
@click.option("--listen", default="127.0.0.1:9411", show_default=True, metavar="HOST:PORT", help="Loopback only.")
@checkpoint_flag("Queries to show too.")
@click.option("--every", default=2.0, show_default=True, type=FiniteRange(0.5, 86_400), help="Seconds between looks.")
@click.option(
    "--budget", default=16, show_default=True, type=click.IntRange(min=1), help="MiB that one search may read."
)
@limit_flags
def ui(listen: str, checkpoints: tuple[str, ...], every: float, budget: int, after: str, max_lag: str | None) -> int:
    """Open a console in the browser: partitions, rates, lag, rows, groups, queries, settings, health.

    Reads only. Prints a link that works once; when it was used, the next one. From another machine: ssh -L.
    """
    settings = current_settings()
    _, port = host_and_port(listen)
    if host_of(listen) not in LOOPBACK:
        raise click.UsageError(
            f"--listen is '{listen}', and the console answers on this machine only. Give 127.0.0.1:{port}, and from "
            f"another machine: ssh -L {port}:127.0.0.1:{port} HOST"
        )
    limits, cluster = read_limits(after, max_lag), settings.open_cluster()
    try:
        import uvicorn

        from spark_replog.ui.server import Console, ConsoleServer
    except ModuleNotFoundError:
        raise ReplogError(
            ErrorCode.REPLOG_ENVIRONMENT, "the console needs starlette and uvicorn. Run: pip install 'spark-replog[ui]'"
        ) from None
    from spark_replog.monitor.store_monitor import StoreWatch
    from spark_replog.ui.live import LiveStore

    host = host_of(listen)
    try:
        bound = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise cannot_listen(listen, error) from error
    name, number = bound.getsockname()[:2]
    address = f"[{name}]:{number}" if ":" in name else f"{name}:{number}"
    watch = StoreWatch(cluster, checkpoints, settings.storage_options, limits)
    live = LiveStore(watch, cluster.clock, int(every * 1000))
    live.seen()  # the command fails if the store cannot be read
    access = Access(lambda token: note(f"open this link (it works once): http://{address}/enter?token={token}"))
    app = Console(cluster, live, access, settings, budget << 20).app()
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, server_header=False, lifespan="off", timeout_graceful_shutdown=1
    )
    ConsoleServer(config, access.renew).run(sockets=[bound])
    return EXIT_OK
