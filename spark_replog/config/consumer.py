"""Settings of the plain Python consumer: Kafka's names, what each means here, and why the others are refused."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from spark_replog.config.duration import duration_ms
from spark_replog.config.key import ConfigKey
from spark_replog.errors import ErrorCode, InvalidConfigError

_MIB = 1024 * 1024
BY_DURATION = "by_duration"
_RESETS = ("latest", "earliest", "none")
_INSTANCE_ID = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,249}")
"""Source: ``JoinGroupRequest.validateGroupInstanceId``: the rule of topic names."""
_INT32_MAX = 2**31 - 1
_CONNECTION = "There is no connection to a server: leave it out. Options of the file system go under 'storage.'."
_PACES = "A look at the group, and a commit that is repeated, are retry.backoff.ms apart: leave it out."
_METRICS = "The consumer's counters are read with Consumer.metrics(): leave it out."

REFUSED_CONSUMER_SETTINGS: Mapping[str, str] = {
    "bootstrap.servers": "There are no servers: give the roots of the store as the path.",
    "allow.auto.create.topics": "A topic is never made by reading it: `replog topic create`.",
    "client.rack": "Local roots are read before remote ones, and any in-sync copy serves: leave it out.",
    "group.protocol": "Groups are coordinated through the ledger, with the assignors of"
    " partition.assignment.strategy: leave it out.",
    "group.remote.assignor": "Assignments are made by the leading member: use partition.assignment.strategy.",
    "config.providers": "Read secrets in your own code and pass them as 'storage.' options.",
    "request.timeout.ms": "default.api.timeout.ms bounds a commit, fetch.max.wait.ms a fetch: leave it out.",
    "retry.backoff.max.ms": _PACES,
    **dict.fromkeys(
        ("share.acknowledgement.mode", "share.acquire.mode"),
        "There are no share groups: members of a group have partitions of their own. Leave it out.",
    ),
    **dict.fromkeys(
        (
            "bootstrap.resolve.timeout.ms",
            "client.dns.lookup",
            "connections.max.idle.ms",
            "receive.buffer.bytes",
            "send.buffer.bytes",
            "reconnect.backoff.ms",
            "reconnect.backoff.max.ms",
            "socket.connection.setup.timeout.ms",
            "socket.connection.setup.timeout.max.ms",
            "metadata.cluster.check.enable",
            "metadata.recovery.strategy",
            "metadata.recovery.rebootstrap.trigger.ms",
        ),
        _CONNECTION,
    ),
    **dict.fromkeys(
        (
            "auto.include.jmx.reporter",
            "enable.metrics.push",
            "metric.reporters",
            "metrics.num.samples",
            "metrics.recording.level",
            "metrics.sample.window.ms",
        ),
        _METRICS,
    ),
}
"""Kafka's consumer settings that have no meaning here, with the reason and what to do instead."""
REFUSED_CONSUMER_PREFIXES: Mapping[str, str] = dict.fromkeys(("sasl.", "ssl.", "security."), _CONNECTION)


def refusal_of(name: str) -> str | None:
    """Return why this setting of Kafka's consumer has no meaning here, None where it has one or is not known."""
    found = REFUSED_CONSUMER_SETTINGS.get(name)
    if found is not None:
        return found
    return next((why for prefix, why in REFUSED_CONSUMER_PREFIXES.items() if name.startswith(prefix)), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig:
    """How a consumer reads, commits and takes part in its group."""

    group_id: str | None = None
    group_instance_id: str | None = None
    client_id: str = "consumer"
    principal: str | None = None
    auto_offset_reset: str = "latest"
    enable_auto_commit: bool = True
    auto_commit_interval_ms: int = 5_000
    isolation_level: str = "read_uncommitted"
    fetch_min_bytes: int = 1
    fetch_max_wait_ms: int = 500
    fetch_max_bytes: int = 50 * _MIB
    max_partition_fetch_bytes: int = 8 * _MIB
    fetch_refresh_interval_ms: int = 100
    max_poll_records: int = 500
    max_poll_interval_ms: int = 300_000
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 3_000
    partition_assignment_strategy: str = "range,sticky"
    key_deserializer: str | None = None
    value_deserializer: str | None = None
    interceptor_classes: str | None = None
    exclude_internal_topics: bool = True
    check_crcs: bool = True
    default_api_timeout_ms: int = 60_000
    retry_backoff_ms: int = 100
    offsets_retention_minutes: int = 10_080

    def __post_init__(self) -> None:
        """Check what one key cannot know of another (source: ``ConsumerConfig``, ``AbstractCoordinator``)."""
        if self.auto_offset_reset not in _RESETS and self.reset_duration_ms is None:
            raise InvalidConfigError(
                ErrorCode.REPLOG_INVALID_OPTION,
                f"'auto.offset.reset' is '{self.auto_offset_reset}'. Give {', '.join(_RESETS)}, or by_duration: and a"
                " duration, as by_duration:PT1H30M.",
            )
        if self.group_instance_id is not None and not _INSTANCE_ID.fullmatch(self.group_instance_id):
            raise InvalidConfigError(
                ErrorCode.REPLOG_INVALID_OPTION,
                f"'group.instance.id' is '{self.group_instance_id}'. Give 1 to 249 letters, digits, dots, underscores"
                " and hyphens, and not only dots.",
            )
        if self.heartbeat_interval_ms * 3 > self.session_timeout_ms:
            raise InvalidConfigError(
                ErrorCode.REPLOG_INVALID_OPTION,
                "heartbeat.interval.ms must be at most a third of session.timeout.ms. Lower it or raise"
                " session.timeout.ms.",
                heartbeat_interval_ms=self.heartbeat_interval_ms,
                session_timeout_ms=self.session_timeout_ms,
            )

    @property
    def reset_duration_ms(self) -> int | None:
        """Return how far back ``auto.offset.reset`` goes where it is by_duration, None where it is not."""
        word, mark, duration = self.auto_offset_reset.partition(":")
        return duration_ms(duration) if mark and word == BY_DURATION else None


_DEFAULTS = {field.name: field.default for field in fields(ConsumerConfig)}


def _key(name: str, kafka_default: str | None, unit: str, doc: str, **more: Any) -> ConfigKey:
    field = name.replace(".", "_")
    return ConfigKey(name, "consumer", _DEFAULTS[field], kafka_default, unit, doc, field=field, **more)


CONSUMER_KEYS = (
    _key("group.id", "null", "text", "The group whose offsets are committed, and whose members share the partitions."),
    _key(
        "group.instance.id",
        "null",
        "text",
        "A name that outlives the process: a static member comes back without a rebalance.",
    ),
    _key("client.id", "", "text", "Begins the member's id; shown by 'replog group describe'; quotas may name it."),
    _key(
        "principal",
        None,
        "text",
        "Who reads; advisory. Not set means REPLOG_PRINCIPAL, else User: and the operating system's name.",
    ),
    _key(
        "auto.offset.reset",
        "latest",
        "text",
        "Where to begin without a committed offset, or where it is out of range: latest, earliest, none (an error), "
        "or by_duration:PT1H, the first record of the last hour.",
    ),
    _key(
        "enable.auto.commit",
        "true",
        "bool",
        "Commit positions from poll, close and before a rebalance. Only with group.id.",
    ),
    _key("auto.commit.interval.ms", "5000", "ms", "How often."),
    _key(
        "isolation.level",
        "read_uncommitted",
        "choice",
        "Both levels read the same: rows become visible with their whole transaction, so none can be aborted "
        "behind a reader.",
        choices={"read_uncommitted": "read_uncommitted", "read_committed": "read_committed"},
    ),
    _key("fetch.min.bytes", "1", "bytes", "A poll waits until so much is there, or fetch.max.wait.ms passed."),
    _key("fetch.max.wait.ms", "500", "ms", "The longest wait for fetch.min.bytes."),
    _key(
        "fetch.max.bytes",
        "52428800",
        "bytes",
        "Most bytes of one fetch over all partitions. The first section is read whole whatever its size.",
    ),
    _key(
        "max.partition.fetch.bytes",
        "1048576",
        "bytes",
        "Most bytes of one fetch from one partition. Larger than Kafka's, since a section is Arrow columns.",
        maximum=_INT32_MAX,
    ),
    _key(
        "fetch.refresh.interval.ms",
        None,
        "ms",
        "How often a waiting poll looks for new entries: one get per metadata root and ledger.",
        minimum=1,
    ),
    _key("max.poll.records", "500", "count", "Most records of one poll.", minimum=1, maximum=_INT32_MAX),
    _key(
        "max.poll.interval.ms",
        "300000",
        "ms",
        "A member that does not poll for so long leaves its group.",
        minimum=1,
    ),
    _key(
        "session.timeout.ms",
        "45000",
        "ms",
        "A member that shows no sign of life for so long is removed by another one. 6000 to 1800000.",
    ),
    _key(
        "heartbeat.interval.ms",
        "3000",
        "ms",
        "How often a member looks at its group. A sign of life is written when a third of session.timeout.ms "
        "passed since its last one.",
        minimum=1,
    ),
    _key(
        "partition.assignment.strategy",
        "range,cooperative-sticky",
        "text",
        "Assignors in order of preference: range, roundrobin, sticky, or module.Class of yours. Cooperative "
        "rebalancing is not there: sticky keeps what it can in one step.",
    ),
    _key(
        "key.deserializer",
        None,
        "text",
        "bytes, string, json, integer, long, double, module.Class, or a callable. Not set means bytes.",
    ),
    _key("value.deserializer", None, "text", "As key.deserializer."),
    _key(
        "interceptor.classes",
        "",
        "text",
        "Classes as module.Class, comma separated, with on_consume(records) and on_commit(offsets).",
    ),
    _key("exclude.internal.topics", "true", "bool", "A pattern never matches __consumer_offsets."),
    _key(
        "check.crcs",
        "true",
        "choice",
        "Sections are always checked; false is refused.",
        choices={"true": True},
    ),
    _key("default.api.timeout.ms", "60000", "ms", "How long commit repeats what the group's ledger could not decide."),
    _key("retry.backoff.ms", "100", "ms", "Pause between two looks at a rebalance.", minimum=1),
    _key(
        "offsets.retention.minutes",
        "10080",
        "count",
        "Committed offsets of groups without members are deleted after this. A broker's setting in Kafka.",
        minimum=1,
    ),
)
"""In the order in which the documents show them."""
