"""Where a gateway listens, and what it tells clients: who may reach it, TLS, and addresses. Needs no Kafka library."""

from __future__ import annotations

import ipaddress
import ssl
from pathlib import Path

from spark_replog.errors import ErrorCode, InvalidConfigError


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def is_any_address(host: str) -> bool:
    """Return whether it stands for all addresses of the machine, and so is none that a client can connect to."""
    try:
        return host == "" or ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def require_safe(listen: str, host: str, *, has_tls: bool, has_users: bool, is_insecure: bool) -> None:
    """Check that a gateway which other machines reach encrypts, and knows who asks.

    Raises:
        InvalidConfigError: REPLOG_OPEN_TO_ALL: it does not, and nobody has typed that it need not.
    """
    if is_loopback(host) or is_insecure or (has_tls and has_users):
        return
    users = "--users or --tls-client-ca"
    lacking = [*([] if has_tls else ["--tls-cert and --tls-key"]), *([] if has_users else [users])]
    text = (
        f"other machines reach {listen}, and there everybody could read and write the store as this process may, or "
        f"listen in. Add {' and '.join(lacking)}; or --insecure, if only trusted machines can reach it"
    )
    raise InvalidConfigError(ErrorCode.REPLOG_OPEN_TO_ALL, f"{text}.")


_CLIENT_AUTH = {"required": ssl.CERT_REQUIRED, "requested": ssl.CERT_OPTIONAL, "none": ssl.CERT_NONE}


def tls_context(
    certificate: Path, key: Path, client_authority: Path | None = None, client_auth: str = "required"
) -> ssl.SSLContext:
    """Return what encrypts connections.

    Args:
        certificate: file in PEM with the gateway's certificate, and those between it and the authority.
        key: file in PEM with its private key, without a password.
        client_authority: file in PEM with the certificates of those who sign for clients. None: clients show none.
        client_auth: whether they must show one: ``ssl.client.auth``.

    Raises:
        InvalidConfigError: REPLOG_INPUT: the files cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2

    def no_password() -> str:
        raise ValueError("the key has a password")

    try:
        context.load_cert_chain(certificate, key, no_password)
    except (OSError, ValueError) as error:
        reason = str(error) or type(error).__name__
        text = f"TLS with {certificate} and {key} cannot start: {reason}. Give a certificate in PEM and its key."
        raise InvalidConfigError(ErrorCode.REPLOG_INPUT, text) from error
    if client_authority is not None:
        try:
            context.load_verify_locations(client_authority)
        except (OSError, ValueError) as error:
            text = f"{client_authority} holds no certificates: {error}. Give those who sign for clients, in PEM."
            raise InvalidConfigError(ErrorCode.REPLOG_INPUT, text) from error
        context.verify_mode = _CLIENT_AUTH[client_auth]
    return context
