"""Settings of the plain Python ``Consumer``, under Kafka's names."""

from __future__ import annotations

import re
from dataclasses import dataclass

from spark_replog.config.key import INT32_MAX, INT64_MAX, SAME, declared_keys, setting, words
from spark_replog.errors import invalid_option

BY_DURATION = "by_duration"
_MIB = 1024 * 1024
_RESETS = ("latest", "earliest", "none")
_INSTANCE_ID = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,249}")
"""Source: ``JoinGroupRequest.validateGroupInstanceId``: the rule of topic names."""
_DURATION = re.compile(
    r"P(?:(?P<days>\d+)D)?"
    r"(?:T(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+)(?:\.(?P<fraction>\d{1,9}))?S)?)?",
    re.IGNORECASE,
)
_MS = {"days": 86_400_000, "hours": 3_600_000, "minutes": 60_000, "seconds": 1_000}
_DIGITS_MAX = 19
"""Of one number: that of a 64-bit one."""


def duration_ms(text: str) -> int | None:
    """Return the milliseconds of an ISO 8601 duration such as ``PT1H30M`` or ``P1DT0.5S`` (Java's ``Duration``).

    None for any other text, also for a negative duration or one above 2**63 - 1 ms.
    """
    match = _DURATION.fullmatch(text.strip())
    parts = {} if match is None else {name: value for name, value in match.groupdict().items() if value}
    if not parts or any(len(value) > _DIGITS_MAX for value in parts.values()):
        return None
    total_ms = int(parts.pop("fraction", "").ljust(3, "0")[:3])  # whole numbers: a float may be a millisecond too small
    total_ms += sum(int(value) * _MS[name] for name, value in parts.items())
    return total_ms if total_ms <= INT64_MAX else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig:
    """How a consumer reads, commits and takes part in its group."""

    group_id: str | None = setting(
        None, "The group. Its committed offsets are stored, and its members share the partitions.", kafka="null"
    )
    group_instance_id: str | None = setting(
        None,
        "A name that stays the same when the process restarts: this static member returns without a rebalance.",
        kafka="null",
    )
    client_id: str = setting(
        "consumer", "First part of the member id. 'replog group describe' shows it, and quotas can name it.", kafka=""
    )
    principal: str | None = setting(
        None, "Who reads (advisory). Not set: REPLOG_PRINCIPAL, else User: and the operating system's user name."
    )
    auto_offset_reset: str = setting(
        "latest",
        "Where to start without a committed offset, or when it is out of range: latest, earliest, none (an error), "
        "or by_duration:PT1H (the first record of the last hour).",
        kafka=SAME,
    )
    enable_auto_commit: bool = setting(
        True, "Commit positions in poll, in close and before a rebalance. Needs group.id.", kafka=SAME
    )
    auto_commit_interval_ms: int = setting(5_000, "Time between automatic commits.", kafka=SAME)
    isolation_level: str = setting(
        "read_uncommitted",
        "Both levels read the same: the rows of a transaction become visible together when it commits, so readers "
        "never see an aborted row.",
        kafka=SAME,
        choices=words("read_uncommitted", "read_committed"),
    )
    fetch_min_bytes: int = setting(1, "A poll waits for this many bytes, at most fetch.max.wait.ms.", kafka=SAME)
    fetch_max_wait_ms: int = setting(500, "Longest wait for fetch.min.bytes.", kafka=SAME)
    fetch_max_bytes: int = setting(
        50 * _MIB, "Largest fetch over all partitions. The first section is always read whole.", kafka=SAME
    )
    max_partition_fetch_bytes: int = setting(
        8 * _MIB,
        "Largest fetch from one partition. Larger than Kafka's because a section holds Arrow columns.",
        kafka="1048576",
        maximum=INT32_MAX,
    )
    fetch_refresh_interval_ms: int | None = setting(
        None,
        "Longest pause between two looks of a waiting poll at a topic's ledger. The first pauses after rows came are "
        "1 ms; they grow with the time since. Not set: as short as 20 gets a second allow on local metadata roots, and "
        "2 on others, for all ledgers that the consumer reads, and at least 100 ms.",
        minimum=1,
    )
    fetch_hedge_ratio: float = setting(
        0.05,
        "A read from a remote root that takes longer than the p95 of that root's reads is asked of a second replica "
        "too. This is the largest part of reads that may be; 0: none.",
        unit="ratio",
    )
    max_poll_records: int = setting(
        500, "Maximum number of records that one poll returns.", kafka=SAME, minimum=1, maximum=INT32_MAX
    )
    max_poll_interval_ms: int = setting(
        300_000, "A member that does not poll for this long leaves its group.", kafka=SAME, minimum=1
    )
    session_timeout_ms: int = setting(
        45_000,
        "A member that writes no heartbeat for this long is removed by another member. 6000 to 1800000.",
        kafka=SAME,
    )
    heartbeat_interval_ms: int = setting(
        3_000,
        "How often a member reads its group's state. It writes a heartbeat when a third of session.timeout.ms has "
        "passed since the last one.",
        kafka=SAME,
        minimum=1,
    )
    partition_assignment_strategy: str = setting(
        "range,sticky",
        "Assignors in order of preference: range, roundrobin, sticky, or your class as module.Class. There is no "
        "cooperative rebalancing: sticky keeps what it can in one step.",
        kafka="range,cooperative-sticky",
    )
    key_deserializer: str | None = setting(
        None,
        "bytes, string, json, short, int, long, float, double, Kafka's class for one of them, your class as "
        "module.Class, or a callable. Not set: bytes.",
        kafka="required",
    )
    value_deserializer: str | None = setting(None, "As key.deserializer.", kafka="required")
    interceptor_classes: str | None = setting(
        None,
        "Your classes as module.Class, comma separated. Methods: on_consume(records), on_commit(offsets).",
        kafka=SAME,
    )
    exclude_internal_topics: bool = setting(True, "Patterns do not match __consumer_offsets.", kafka=SAME)
    check_crcs: bool = setting(
        True, "Sections are always checked. false is refused.", kafka=SAME, choices={"true": True}
    )
    default_api_timeout_ms: int = setting(
        60_000, "How long a commit is retried while the group's ledger has no majority.", kafka=SAME
    )
    retry_backoff_ms: int = setting(
        100, "Pause between two reads of the group's state during a rebalance.", kafka=SAME, minimum=1
    )
    offsets_retention_minutes: int = setting(
        10_080,
        "Committed offsets of groups without members are deleted after this time. A broker's setting in Kafka.",
        kafka=SAME,
        minimum=1,
    )

    def __post_init__(self) -> None:
        """Check texts and timeouts (source: ``ConsumerConfig``, ``AbstractCoordinator``)."""
        if self.auto_offset_reset not in _RESETS and self.reset_duration_ms is None:
            raise invalid_option(
                f"'auto.offset.reset' is '{self.auto_offset_reset}'. Give {', '.join(_RESETS)}, or by_duration: and a"
                " duration, as by_duration:PT1H30M."
            )
        if self.group_instance_id is not None and not _INSTANCE_ID.fullmatch(self.group_instance_id):
            raise invalid_option(
                f"'group.instance.id' is '{self.group_instance_id}'. Give 1 to 249 letters, digits, dots, underscores"
                " and hyphens, and not only dots."
            )
        if self.heartbeat_interval_ms * 3 > self.session_timeout_ms:
            raise invalid_option(
                "heartbeat.interval.ms must be at most a third of session.timeout.ms. Lower it or raise"
                " session.timeout.ms.",
                heartbeat_interval_ms=self.heartbeat_interval_ms,
                session_timeout_ms=self.session_timeout_ms,
            )

    @property
    def reset_duration_ms(self) -> int | None:
        """Return the duration of ``auto.offset.reset=by_duration:...``, None for its other values."""
        word, mark, duration = self.auto_offset_reset.partition(":")
        return duration_ms(duration) if mark and word == BY_DURATION else None


CONSUMER_KEYS = declared_keys("consumer", ConsumerConfig)
