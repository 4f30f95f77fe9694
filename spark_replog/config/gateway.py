"""Settings of the gateway: what its clients may send at once, and how long records wait for others."""

from __future__ import annotations

from dataclasses import dataclass

from spark_replog.config.key import INT32_MAX, SAME, declared_keys, setting, words

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig:
    """How a gateway treats its clients."""

    gateway_linger_ms: int | None = setting(
        None,
        "How long a gateway waits before it writes the records of all its connections together. More makes fewer and "
        "larger objects. Not set: 0 if all roots are folders, else 250.",
        unit="ms",
    )
    gateway_cache_bytes: int = setting(
        64 * _MIB,
        "Memory of a gateway for record batches that it sent to a consumer lately: other consumers get them without a "
        "read of the store.",
    )
    socket_request_max_bytes: int = setting(
        100 * _MIB,
        "Largest request that a gateway reads; the connection of a larger one is closed.",
        kafka=SAME,
        minimum=1024,
        maximum=INT32_MAX,
    )
    queued_max_request_bytes: int = setting(
        128 * _MIB,
        "Memory of a gateway for requests that are not answered yet. If it is full, the gateway reads no further "
        "requests until others are answered.",
        kafka="-1",
        minimum=_MIB,
    )
    max_in_flight_requests: int = setting(
        16,
        "Requests of one connection that a gateway reads before it has answered the first of them.",
        name="gateway.max.in.flight.requests",
        minimum=1,
        maximum=1000,
    )
    gateway_heartbeat_interval_ms: int | None = setting(
        None,
        "How often a gateway says that it runs; others count it as gone after 3 of them. Not set: 3,000 if all roots "
        "are folders, else 10,000.",
        unit="ms",
        minimum=10,
        maximum=3_600_000,
    )
    gateway_receive_timeout_ms: int = setting(
        30_000,
        "How long a client may take to send one request, and to say who it is.",
        minimum=100,
        maximum=3_600_000,
    )
    max_connections: int = setting(
        2000, "Connections of a gateway; more are closed at once.", kafka="2147483647", minimum=1, maximum=INT32_MAX
    )
    max_connections_per_ip: int = setting(
        INT32_MAX,
        "Connections of one address to a gateway; more are closed at once.",
        kafka=SAME,
        minimum=1,
        maximum=INT32_MAX,
    )
    connections_max_idle_ms: int = setting(
        600_000,
        "A gateway closes a connection that has been idle for so long, or that does not read its answers.",
        kafka=SAME,
        minimum=100,
    )
    sasl_server_max_receive_size: int = setting(
        16 * 1024,
        "Largest request that a gateway reads of a client that has not said who it is.",
        unit="bytes",
        kafka="524288",
        minimum=1024,
        maximum=INT32_MAX,
    )
    connection_failed_authentication_delay_ms: int = setting(
        100, "How long a gateway waits before it refuses a wrong user or password.", kafka=SAME, maximum=60_000
    )
    ssl_client_auth: str | None = setting(
        None,
        "Whether clients need a certificate. required: each one; requested: who has none is User:ANONYMOUS, or says "
        "who it is by SASL; none: nobody is asked for one. Not set: required with --tls-client-ca, else none.",
        kafka="none",
        choices=words("required", "requested", "none"),
    )
    auto_create_topics_enable: bool = setting(
        False,
        "Whether a gateway creates a topic that a client asks for, with num.partitions. With --memory it always does.",
        kafka="true",
    )
    num_partitions: int = setting(
        1, "Partitions of a topic that a gateway creates for a client that names no number.", kafka=SAME, minimum=1
    )


GATEWAY_KEYS = declared_keys("gateway", GatewayConfig)
