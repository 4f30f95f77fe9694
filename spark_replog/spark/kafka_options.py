"""Options of Kafka's clients that a log without servers has no use for.

Harmless ones are accepted and named once in the log, so that a job changes its format and its address and
nothing else. Those that would change what is written or read are refused elsewhere, with Kafka's words
(``config.unknown_option_error``).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Literal

from spark_replog.config import KEY_PREFIX, keys_of

_LOG = logging.getLogger(__name__)

Side = Literal["source", "sink"]

_CONNECTION = frozenset(
    {
        "bootstrap.servers",
        "client.dns.lookup",
        "client.rack",
        "config.providers",
        "connections.max.idle.ms",
        "enable.metrics.push",
        "metadata.max.age.ms",
        "metadata.recovery.rebootstrap.trigger.ms",
        "metadata.recovery.strategy",
        "metric.reporters",
        "metrics.num.samples",
        "metrics.recording.level",
        "metrics.sample.window.ms",
        "receive.buffer.bytes",
        "reconnect.backoff.max.ms",
        "reconnect.backoff.ms",
        "send.buffer.bytes",
        "socket.connection.setup.timeout.max.ms",
        "socket.connection.setup.timeout.ms",
    }
)
_PREFIXES = ("sasl.", "security.", "ssl.")
_PRODUCER = frozenset(
    {
        "client.id",
        "compression.gzip.level",
        "compression.lz4.level",
        "compression.zstd.level",
        "enable.idempotence",
        "metadata.max.idle.ms",
        "partitioner.adaptive.partitioning.enable",
        "partitioner.availability.timeout.ms",
        "retries",
        "transaction.timeout.ms",
    }
)
_CONSUMER = frozenset(
    {
        "allow.auto.create.topics",
        "auto.commit.interval.ms",
        "check.crcs",
        "client.id",
        "default.api.timeout.ms",
        "exclude.internal.topics",
        "fetch.max.bytes",
        "fetch.max.wait.ms",
        "fetch.min.bytes",
        "group.id",
        "group.instance.id",
        "group.protocol",
        "group.remote.assignor",
        "heartbeat.interval.ms",
        "max.partition.fetch.bytes",
        "max.poll.interval.ms",
        "max.poll.records",
        "partition.assignment.strategy",
        "request.timeout.ms",
        "retry.backoff.max.ms",
        "retry.backoff.ms",
        "session.timeout.ms",
    }
)
_WITHOUT_PREFIX: Mapping[Side, frozenset[str]] = {
    "sink": frozenset({"includeheaders"}),
    "source": frozenset(),
}
"""Of the connector itself, without a meaning there: the sink writes headers whenever the column exists."""

_logged: set[str] = set()


def without_ignored(given: Mapping[str, str], *sides: Side) -> dict[str, str]:
    """Return the options that this project reads or refuses; the harmless rest is named once a process.

    Args:
        given: options, names in lower case.
        sides: whose options these can be.
    """
    kept, ignored = {}, []
    for name, value in given.items():
        if any(_is_ignored(name, side) for side in sides):
            ignored.append(name)
        else:
            kept[name] = value
    fresh = [name for name in ignored if name.startswith(KEY_PREFIX) and name not in _logged]
    if fresh:
        _logged.update(fresh)
        _LOG.warning("ignored, as there are no servers here: %s", ", ".join(sorted(fresh)))
    return kept


def _is_ignored(name: str, side: Side) -> bool:
    if name in _WITHOUT_PREFIX[side]:
        return True
    if not name.startswith(KEY_PREFIX):
        return False
    plain = name[len(KEY_PREFIX) :]
    read_here = {key.name.lower() for key in keys_of(*(("producer", "coordinator") if side == "sink" else ()), side)}
    own = _PRODUCER if side == "sink" else _CONSUMER
    return plain not in read_here and (plain in _CONNECTION or plain in own or plain.startswith(_PREFIXES))


__all__ = ["Side", "without_ignored"]
