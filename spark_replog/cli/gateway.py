"""``replog gateway``: Kafka's protocol over a store."""

from __future__ import annotations

import socket
from dataclasses import replace

import click

from spark_replog.cli.completion import config_flag
from spark_replog.cli.metrics import cannot_listen, host_and_port
from spark_replog.cli.output import EXIT_OK, note
from spark_replog.cli.settings import ReplogCommand, current_settings, key_values
from spark_replog.config.gateway import GatewayConfig
from spark_replog.config.registry import read_group
from spark_replog.errors import ErrorCode, ReplogError
from spark_replog.ids import new_id


@click.command(
    "gateway",
    cls=ReplogCommand,
    examples=["-s ./store gateway", "gateway --memory --listen 127.0.0.1:9092"],
)
@click.option("--listen", default="127.0.0.1:9092", show_default=True, metavar="HOST:PORT", help="Where to listen.")
@click.option("--memory", is_flag=True, help="Serve a new store in memory, for tests: it ends with the process.")
@config_flag("Gateway setting. Repeatable.", "gateway")
def gateway(listen: str, memory: bool, configs: tuple[str, ...]) -> int:
    """Serve the store to Kafka's clients, by Kafka's protocol.

    The first line that it prints has the address that clients need, bootstrap.servers. Keeps nothing: any number of
    gateways serve one store. Until SIGTERM: then it answers what it has read, and ends.
    """
    settings = current_settings()
    host, port = host_and_port(listen)
    host = host.strip("[]")
    config = GatewayConfig(**read_group("gateway", key_values("-c", configs)))
    if memory and settings.store and not settings.is_store_from_environment:
        raise click.UsageError("--memory makes a store of its own: leave -s out")
    try:
        from spark_replog.gateway.command import serve
    except ModuleNotFoundError:
        raise ReplogError(
            ErrorCode.REPLOG_ENVIRONMENT,
            "the gateway needs kafka-python. Run: pip install 'spark-replog[gateway]'",
        ) from None
    if memory:
        from spark_replog.cluster.init_store import init_cluster

        cluster = init_cluster(f"memory://gateway-{new_id()}", fsync=False)
        config = replace(config, auto_create_topics_enable=True)
    else:
        cluster = settings.open_cluster()
    try:
        bound = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise cannot_listen(listen, error) from error
    serve(cluster, config, bound, lambda address: note(f"replog: gateway runs, bootstrap.servers={address}"))
    return EXIT_OK
