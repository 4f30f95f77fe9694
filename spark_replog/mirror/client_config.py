"""The settings of a connection to Kafka: a file of client properties, as Kafka's own tools take it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spark_replog.errors import ErrorCode, InvalidConfigError

_NAMES: Mapping[str, str] = {
    "security.protocol": "security_protocol",
    "sasl.mechanism": "sasl_mechanism",
    "sasl.mechanisms": "sasl_mechanism",
    "sasl.username": "sasl_plain_username",
    "sasl.password": "sasl_plain_password",
    "sasl.kerberos.service.name": "sasl_kerberos_service_name",
    "ssl.ca.location": "ssl_cafile",
    "ssl.truststore.location": "ssl_cafile",
    "ssl.certificate.location": "ssl_certfile",
    "ssl.key.location": "ssl_keyfile",
    "ssl.key.password": "ssl_password",
    "client.id": "client_id",
    "request.timeout.ms": "request_timeout_ms",
    "connections.max.idle.ms": "connections_max_idle_ms",
    "reconnect.backoff.ms": "reconnect_backoff_ms",
    "reconnect.backoff.max.ms": "reconnect_backoff_max_ms",
}
"""Of Java's and librdkafka's clients -> of kafka-python. Certificates are files in PEM."""
_JAAS = re.compile(r"\b(?P<name>username|password)\s*=\s*\"(?P<value>[^\"]*)\"")


def read_client_config(path: Path) -> dict[str, Any]:
    """Return the arguments of a connection that a file of ``name=value`` lines gives.

    Raises:
        InvalidConfigError: REPLOG_INVALID_OPTION: it cannot be read, or a line is not one. REPLOG_UNKNOWN_OPTION.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeError) as error:
        raise _invalid(f"{path} cannot be read: {error}") from error
    made: dict[str, Any] = {}
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text[0] in "#!":
            continue
        name, separator, value = (part.strip() for part in text.partition("="))
        if not separator:
            raise _invalid(f"line {number} of {path} is not NAME=VALUE")
        made |= _argument(name, value, path)
    return made


def _argument(name: str, value: str, path: Path) -> dict[str, Any]:
    if name == "sasl.jaas.config":
        return {f"sasl_plain_{match['name']}": match["value"] for match in _JAAS.finditer(value)}
    if name == "ssl.endpoint.identification.algorithm":
        return {"ssl_check_hostname": value not in ("", "none")}
    if name == "ssl.truststore.type" and value == "PEM":
        return {}
    if name not in _NAMES:
        raise InvalidConfigError(
            ErrorCode.REPLOG_UNKNOWN_OPTION,
            f"{path} has the setting '{name}', which a mirror does not know. It knows: {', '.join(sorted(_NAMES))},"
            " sasl.jaas.config, ssl.endpoint.identification.algorithm.",
            name=name,
        )
    if not name.endswith(".ms"):
        return {_NAMES[name]: value}
    if not value.isdecimal():
        raise _invalid(f"{path} has {name}={value}, which is not a number of milliseconds")
    return {_NAMES[name]: int(value)}


def _invalid(text: str) -> InvalidConfigError:
    return InvalidConfigError(ErrorCode.REPLOG_INVALID_OPTION, f"{text}. Correct the file of --config.")
