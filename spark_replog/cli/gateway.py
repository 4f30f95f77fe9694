"""``replog gateway``: Kafka's protocol over a store."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path

import click

from spark_replog.cli.completion import config_flag
from spark_replog.cli.metrics import cannot_listen, host_and_port
from spark_replog.cli.output import EXIT_OK, note
from spark_replog.cli.settings import ReplogCommand, current_settings, key_values
from spark_replog.config.gateway import GatewayConfig
from spark_replog.config.registry import read_group
from spark_replog.errors import ErrorCode, ReplogError
from spark_replog.gateway.listening import is_any_address, require_safe, tls_context
from spark_replog.gateway.user_file import UserFile, read_users
from spark_replog.ids import new_id


@click.command(
    "gateway",
    cls=ReplogCommand,
    examples=[
        "-s ./store gateway",
        "gateway --memory --listen 127.0.0.1:9092",
        "-s ./store gateway --listen 10.0.0.7:9092 --users users.json --tls-cert cert.pem --tls-key key.pem",
    ],
)
@click.option("--listen", default="127.0.0.1:9092", show_default=True, metavar="HOST:PORT", help="Where to listen.")
@click.option(
    "--advertised",
    multiple=True,
    metavar="HOST:PORT",
    help="What clients connect to, if it is not the address of --listen. Given more than once: a list that clients get "
    "whatever gateways run, such as those behind a balancer.",
)
@click.option("--id", "node_id", type=click.IntRange(0, 2**31 - 1), help="Broker id.  [default: a free one]")
@click.option("--rack", help="Where it is: clients with this rack=NAME in their client.id are sent here.")
@click.option("--users", type=click.Path(dir_okay=False, path_type=Path), help="Who may connect: see replog user.")
@click.option("--tls-cert", type=click.Path(dir_okay=False, path_type=Path), help="Certificate, a file in PEM.")
@click.option("--tls-key", type=click.Path(dir_okay=False, path_type=Path), help="Its private key, a file in PEM.")
@click.option("--insecure", is_flag=True, help="Let other machines connect without TLS or without users.")
@click.option("--memory", is_flag=True, help="Serve a new store in memory, for tests: it ends with the process.")
@config_flag("Gateway setting. Repeatable.", "gateway")
def gateway(
    listen: str,
    advertised: tuple[str, ...],
    node_id: int | None,
    rack: str | None,
    users: Path | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    insecure: bool,
    memory: bool,
    configs: tuple[str, ...],
) -> int:
    """Serve the store to Kafka's clients, by Kafka's protocol.

    The first line that it prints has the address that clients need, bootstrap.servers. Keeps nothing: any number of
    gateways serve one store, and tell clients of each other. Until SIGTERM: then it answers what it has read, and ends.

    Without --users everybody who can connect acts as this process's principal. So it listens on this machine only,
    unless there are --users and TLS.
    """
    settings = current_settings()
    host, port = host_and_port(listen)
    host = host.strip("[]")
    if (tls_cert is None) != (tls_key is None):
        raise click.UsageError("--tls-cert and --tls-key need each other")
    require_safe(listen, host, has_tls=tls_key is not None, has_users=users is not None, is_insecure=insecure)
    addresses = [_address(text) for text in advertised]
    if is_any_address(host) and not addresses:
        raise click.UsageError(f"--listen {listen} is no address to connect to: add --advertised HOST:PORT")
    config = GatewayConfig(**read_group("gateway", key_values("-c", configs)))
    if memory and settings.store and not settings.is_store_from_environment:
        raise click.UsageError("--memory makes a store of its own: leave -s out")
    if users is not None:
        read_users(users)  # the command fails if it cannot
    tls = None if tls_cert is None or tls_key is None else tls_context(tls_cert, tls_key)
    try:
        from spark_replog.gateway.command import Endpoint, serve
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
    endpoint = Endpoint(bound, addresses, node_id, rack, None if users is None else UserFile(users), tls)
    serve(cluster, config, endpoint, lambda address: note(f"replog: gateway runs, bootstrap.servers={address}"))
    return EXIT_OK


def _address(text: str) -> tuple[str, int]:
    host, separator, port = text.rpartition(":")
    host = host.strip("[]")
    if not separator or not host or is_any_address(host) or not port.isdecimal() or not 0 < int(port) <= 65_535:
        raise click.UsageError(f"--advertised needs HOST:PORT that clients can connect to, not '{text}'")
    return host, int(port)
