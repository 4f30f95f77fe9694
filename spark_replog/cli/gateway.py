"""``replog gateway``: Kafka's protocol over a store."""

from __future__ import annotations

import socket
import ssl
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from spark_replog.cli.completion import config_flag
from spark_replog.cli.metrics import cannot_listen, host_and_port
from spark_replog.cli.output import EXIT_OK, note, show
from spark_replog.cli.settings import ReplogCommand, current_settings, key_values
from spark_replog.config.gateway import GatewayConfig
from spark_replog.config.registry import read_group
from spark_replog.errors import ErrorCode, ReplogError
from spark_replog.gateway.listening import is_any_address, require_safe, tls_context
from spark_replog.gateway.user_file import UserFile, read_users
from spark_replog.gateway.workers import Place, Workers, worker_command
from spark_replog.ids import new_id

PORT_MAX = 65_535


@click.command(
    "gateway",
    cls=ReplogCommand,
    examples=[
        "-s ./store gateway",
        "gateway --memory --listen 127.0.0.1:9092",
        "-s ./store gateway --workers 4",
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
@click.option("--rack", help="Where it is: clients with this client.rack, or rack=NAME in client.id, are sent here.")
@click.option("--users", type=click.Path(dir_okay=False, path_type=Path), help="Who may connect: see replog user.")
@click.option("--tls-cert", type=click.Path(dir_okay=False, path_type=Path), help="Certificate, a file in PEM.")
@click.option("--tls-key", type=click.Path(dir_okay=False, path_type=Path), help="Its private key, a file in PEM.")
@click.option(
    "--tls-client-ca",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Who signed the certificates of clients, a file in PEM: a client needs one. See ssl.client.auth.",
)
@click.option(
    "--workers",
    type=click.IntRange(1, 256),
    default=1,
    show_default=True,
    help="Gateways to run, each in a process of its own, on this port and the next ones: about one a core.",
)
@click.option("--worker", hidden=True)
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
    tls_client_ca: Path | None,
    workers: int,
    worker: str | None,
    insecure: bool,
    memory: bool,
    configs: tuple[str, ...],
) -> int:
    """Serve the store to Kafka's clients, by Kafka's protocol.

    The first line that it prints has the address that clients need, bootstrap.servers. Keeps nothing: any number of
    gateways serve one store, and tell clients of each other. Until SIGTERM: then it answers what it has read, and ends.

    Without --users and --tls-client-ca everybody who can connect acts as this process's principal. So it listens on
    this machine only, unless there is TLS and one of them.
    """
    settings = current_settings()
    host, port = host_and_port(listen)
    host = host.strip("[]")
    config = GatewayConfig(**read_group("gateway", key_values("-c", configs)))
    tls = _tls(tls_cert, tls_key, tls_client_ca, config)
    knows_clients = users is not None or (tls is not None and tls.verify_mode is ssl.CERT_REQUIRED)
    require_safe(listen, host, has_tls=tls is not None, has_users=knows_clients, is_insecure=insecure)
    addresses = [_address(text) for text in advertised]
    if is_any_address(host) and not addresses:
        raise click.UsageError(f"--listen {listen} is no address to connect to: add --advertised HOST:PORT")
    if memory and settings.store and not settings.is_store_from_environment:
        raise click.UsageError("--memory makes a store of its own: leave -s out")
    if memory and workers > 1:
        raise click.UsageError("--memory is in one process: leave --workers out")
    if users is not None:
        read_users(users)  # the command fails if it cannot
    if workers > 1 and worker is None:
        return _run_workers(listen, host, port, workers)
    place = Place(0, _bound(listen, host, port), new_id(), None) if worker is None else Place.parse(worker)
    with place.bound:
        if len(addresses) == 1:
            addresses = [(addresses[0][0], addresses[0][1] + place.number)]
        node_id = None if node_id is None else node_id + place.number
        _serve(place, config, memory, worker is not None, advertised=addresses, node_id=node_id, rack=rack,
               users=None if users is None else UserFile(users), tls=tls)  # fmt: skip
    return EXIT_OK


def _tls(cert: Path | None, key: Path | None, client_ca: Path | None, config: GatewayConfig) -> ssl.SSLContext | None:
    if (cert is None) != (key is None):
        raise click.UsageError("--tls-cert and --tls-key need each other")
    if client_ca is not None and cert is None:
        raise click.UsageError("--tls-client-ca needs --tls-cert and --tls-key")
    if client_ca is None and config.ssl_client_auth in ("required", "requested"):
        raise click.UsageError(f"ssl.client.auth={config.ssl_client_auth} needs --tls-client-ca")
    if cert is None or key is None:
        return None
    return tls_context(cert, key, client_ca, config.ssl_client_auth or "required")


def _bound(listen: str, host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise cannot_listen(listen, error) from error


def _serve(place: Place, config: GatewayConfig, is_memory: bool, is_worker: bool, **endpoint: Any) -> None:
    """Serve a store on a socket until a signal."""
    try:
        from spark_replog.gateway.command import Endpoint, serve
    except ModuleNotFoundError:
        raise ReplogError(
            ErrorCode.REPLOG_ENVIRONMENT,
            "the gateway needs kafka-python. Run: pip install 'spark-replog[gateway]'",
        ) from None
    if is_memory:
        from spark_replog.cluster.init_store import init_cluster

        cluster = init_cluster(f"memory://gateway-{new_id()}", fsync=False)
        config = replace(config, auto_create_topics_enable=True)
    else:
        cluster = current_settings().open_cluster()

    def tell(address: str) -> None:
        if is_worker:
            show(address)  # to the process that started this one
        else:
            note(f"replog: gateway runs, bootstrap.servers={address}")

    parent = sys.stdin.fileno() if is_worker else None
    made = Endpoint(place.bound, parent=parent, run=place.run, ended_run=place.ended_run, **endpoint)
    serve(cluster, config, made, tell)


def _run_workers(listen: str, host: str, port: int, count: int) -> int:
    """Run gateways as processes on a port and the next ones, or on free ones for port 0, until a signal."""
    if port + count - 1 > PORT_MAX:
        raise click.UsageError(
            f"--workers {count} needs the ports {port} to {port + count - 1}; {PORT_MAX} is the last"
        )
    command = worker_command(current_settings().arguments)

    def tell(addresses: Sequence[str]) -> None:
        note(f"replog: {count} gateways run, bootstrap.servers={','.join(addresses)}")

    with ExitStack() as stack:
        ports = [port + number if port else 0 for number in range(count)]
        sockets = [stack.enter_context(_bound(f"{listen.rpartition(':')[0]}:{at}", host, at)) for at in ports]
        return Workers(command, sockets).serve(tell)


def _address(text: str) -> tuple[str, int]:
    host, separator, port = text.rpartition(":")
    host = host.strip("[]")
    if not separator or not host or is_any_address(host) or not port.isdecimal() or not 0 < int(port) <= PORT_MAX:
        raise click.UsageError(f"--advertised needs HOST:PORT that clients can connect to, not '{text}'")
    return host, int(port)
