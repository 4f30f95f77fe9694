"""Options of Kafka's clients that a log without servers has no use for.

Harmless ones are accepted and named once in the log, so that a job changes its format and its address and
nothing else. Those that would change what is written or read are refused elsewhere, with Kafka's words
(``config.unknown_option_error``).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from typing import Literal

from spark_replog.config import KEY_PREFIX, keys_of, normalise_key, unknown_option_error
from spark_replog.errors import ErrorCode, InvalidConfigError
from spark_replog.once import Once

_LOG = logging.getLogger(__name__)

Side = Literal["source", "sink"]

ADDRESS = "kafka.bootstrap.servers"
"""Ignored where ``path`` names the store; else it may hold the store's roots."""
PROTECTED = frozenset(
    {
        "auto.offset.reset",
        "enable.auto.commit",
        "interceptor.classes",
        "key.deserializer",
        "value.deserializer",
    }
)
"""Settings of a consumer that the source is in charge of: refused, after the subscription was looked at."""
_CONNECTION = frozenset(
    {
        "auto.include.jmx.reporter",
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
_PREFIXES = ("config.providers.", "sasl.", "security.", "ssl.")
_PRODUCER = frozenset(
    {
        "block.on.buffer.full",
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
        "isolation.level",
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
    "source": frozenset(
        {"fetchoffset.numretries", "fetchoffset.retryintervalms", "groupidprefix", "kafkaconsumer.polltimeoutms"}
    ),
}
"""Of the connector itself, without a meaning there: the sink writes headers whenever the column exists, the
source has no servers to ask again and no consumer group."""
_OTHER_CLIENT: Mapping[Side, frozenset[str]] = {
    "sink": _CONSUMER | PROTECTED,
    "source": _PRODUCER
    | {"key.serializer", "transactional.id", "value.serializer"}
    | {key.name for key in keys_of("producer")},
}
"""Settings of the client that a side does not use; Kafka's own only log them. Without the prefix they are refused."""

_logged = Once()


def without_ignored(given: Mapping[str, str], *sides: Side) -> dict[str, str]:
    """Return the options that this project reads or refuses; the harmless rest is named once a process.

    Args:
        given: options, names in lower case.
        sides: whose options these can be.
    """
    kept, ignored = {}, []
    for name, value in given.items():
        is_only_address = name == ADDRESS and not given.get("path") and not given.get("paths")
        if not is_only_address and any(_is_ignored(name, side) for side in sides):
            ignored.append(name)
        else:
            kept[name] = value
    _say_once("ignored, as there are no servers here", (name for name in ignored if name != "includeheaders"))
    if len(sides) > 1:
        return kept
    others = [name for name in kept if _is_of_other_client(name, sides[0])]
    client = "producer" if "source" in sides else "consumer"
    _say_once(f"ignored, as they are settings of a {client} and this is the {sides[0]}", others)
    return {name: value for name, value in kept.items() if name not in others}


def _say_once(why: str, names: Iterable[str]) -> None:
    fresh = [name for name in names if _logged.is_first(name)]
    if fresh:
        _LOG.warning("%s: %s", why, ", ".join(sorted(fresh)))


def _is_of_other_client(name: str, side: Side) -> bool:
    plain = name.removeprefix(KEY_PREFIX)
    return plain != name and plain in _OTHER_CLIENT[side] and plain not in _read_by(side)


def _read_by(side: Side) -> set[str]:
    """Return the names that a side reads or refuses itself, in lower case."""
    own = PROTECTED if side == "source" else frozenset({"client.id"})
    return {key.name.lower() for key in keys_of(*(("producer", "coordinator") if side == "sink" else ()), side)} | own


def _is_ignored(name: str, side: Side) -> bool:
    if name in _WITHOUT_PREFIX[side]:
        return True
    if not name.startswith(KEY_PREFIX):
        return False
    plain = name[len(KEY_PREFIX) :]
    own = _PRODUCER if side == "sink" else _CONSUMER
    return plain not in _read_by(side) and (plain in _CONNECTION or plain in own or plain.startswith(_PREFIXES))


def check_consumer_options(given: Mapping[str, str]) -> None:
    """Refuse values that Kafka's connector or consumer refuses, of options that mean nothing here.

    Args:
        given: options, names in lower case.

    Raises:
        InvalidConfigError: REPLOG_INVALID_OPTION.
    """
    level = given.get("kafka.isolation.level", "read_uncommitted").strip()
    if level not in ("read_uncommitted", "read_committed"):
        raise InvalidConfigError(
            ErrorCode.REPLOG_INVALID_OPTION,
            f"Invalid value {level} for configuration isolation.level: String must be one of: read_committed, "
            "read_uncommitted. Leave it out: every row that can be read is committed.",
        )
    for name in ("fetchOffset.numRetries", "fetchOffset.retryIntervalMs", "kafkaConsumer.pollTimeoutMs"):
        text = given.get(name.lower(), "0").strip()
        if not re.fullmatch("[+-]?[0-9]{1,18}", text):
            raise InvalidConfigError(
                ErrorCode.REPLOG_INVALID_OPTION, f'{name}: For input string: "{text}". Give a whole number.'
            )


def refuse_protected(given: Mapping[str, str]) -> None:
    """Refuse settings that the source itself is in charge of.

    Raises:
        InvalidConfigError: REPLOG_UNKNOWN_OPTION, in Kafka's words.
    """
    for name in given:
        if normalise_key(name) in PROTECTED:
            raise unknown_option_error(name, ())


__all__ = ["ADDRESS", "PROTECTED", "Side", "check_consumer_options", "refuse_protected", "without_ignored"]
