"""Settings of who commits: how long replicas may take, what catching up may cost.

Part of the registry ``CONFIG_KEYS``.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from spark_replog.config.key import ConfigKey
from spark_replog.errors import ErrorCode, InvalidConfigError

_MIB = 1024 * 1024
_INT64_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorConfig:
    """How the driver-side owner of a ledger waits for replicas and for its commit."""

    replica_lag_time_max_ms: int = 2_000
    metadata_max_age_ms: int = 300_000
    replica_catchup_budget_ms: int = 5_000
    replica_catchup_bytes: int = 32 * _MIB
    replica_rejoin_wait_ms: int = 30_000
    num_replica_fetchers: int = 4
    replica_fetch_backoff_ms: int = 1_000
    follower_replication_throttled_rate: int = _INT64_MAX
    gc_floor_lag_ms: int = 604_800_000
    auto_leader_rebalance_enable: bool = True
    leader_imbalance_per_broker_percentage: int = 10
    leader_imbalance_check_interval_seconds: int = 300
    commit_wait_ms: int = 20
    delivery_timeout_ms: int = 120_000
    request_timeout_ms: int = 30_000

    def __post_init__(self) -> None:
        """A replica must leave the ISR well before a request gives up, or acks=all could never succeed."""
        if self.replica_lag_time_max_ms * 2 >= self.request_timeout_ms:
            raise InvalidConfigError(
                ErrorCode.REPLOG_INVALID_OPTION,
                "replica.lag.time.max.ms must be less than half of request.timeout.ms. Lower it or raise "
                "request.timeout.ms.",
                replica_lag_time_max_ms=self.replica_lag_time_max_ms,
                request_timeout_ms=self.request_timeout_ms,
            )


_DEFAULTS = {field.name: field.default for field in fields(CoordinatorConfig)}


def _key(name: str, kafka_default: str | None, unit: str, doc: str, **more: Any) -> ConfigKey:
    field = name.replace(".", "_")
    return ConfigKey(name, "coordinator", _DEFAULTS[field], kafka_default, unit, doc, field=field, **more)


COORDINATOR_KEYS = (
    _key(
        "replica.lag.time.max.ms",
        "30000",
        "ms",
        "A replica that has not taken its copies within this time leaves the ISR in the same commit. Less "
        "than half of request.timeout.ms. Shorter than Kafka's, since a micro-batch waits for it.",
        minimum=1,
    ),
    _key(
        "metadata.max.age.ms",
        "300000",
        "ms",
        "How old a view of the roots may get before it is read again without a cause.",
    ),
    _key(
        "replica.catchup.budget.ms",
        None,
        "ms",
        "With acks=0 and 1, how long a commit may copy to followers after its entry is decided.",
    ),
    _key(
        "replica.catchup.bytes",
        None,
        "bytes",
        "How much one commit, and one write task after its own rows, may copy to replicas that miss objects.",
    ),
    _key(
        "replica.rejoin.wait.ms",
        None,
        "ms",
        "How long a replica stays out of the ISR, unless too few are in it, and how often a commit looks for its root.",
    ),
    _key(
        "num.replica.fetchers",
        "1",
        "count",
        "Copies at once to one replica that misses objects, per process. More than Kafka's one, since each is "
        "a whole object.",
        minimum=1,
        maximum=8,
    ),
    _key(
        "replica.fetch.backoff.ms",
        "1000",
        "ms",
        "How long catching up leaves a replica alone after a copy to it failed; doubled each time, 32 times at most.",
    ),
    _key(
        "follower.replication.throttled.rate",
        "9223372036854775807",
        "bytes",
        "Bytes a second that a process copies to replicas that are out of sync. Copies that an append waits for "
        "are never throttled.",
        minimum=1,
    ),
    _key(
        "gc.floor.lag.ms",
        None,
        "ms",
        "How long after its making an uncommitted data object may be collected as garbage. A task older than half of "
        "it fails.",
        minimum=2,
    ),
    _key(
        "auto.leader.rebalance.enable",
        "true",
        "bool",
        "Whether 'replog coordinator run' gives preferred replicas their leadership back. Commits never do.",
    ),
    _key(
        "leader.imbalance.per.broker.percentage",
        "10",
        "count",
        "Above this share of a broker's preferred partitions led by others, 'replog coordinator run' moves them back.",
    ),
    _key(
        "leader.imbalance.check.interval.seconds",
        "300",
        "count",
        "How often 'replog coordinator run' looks at that, in seconds; its first round always does.",
        minimum=1,
    ),
    _key(
        "commit.wait.ms",
        None,
        "ms",
        "How long a decided commit waits for the metadata roots that have not answered.",
    ),
    _key(
        "delivery.timeout.ms",
        "120000",
        "ms",
        "After this a commit that reached no majority ends with COMMIT_OUTCOME_UNKNOWN.",
    ),
    _key(
        "request.timeout.ms",
        "30000",
        "ms",
        "How long a commit waits for replicas before REQUEST_TIMED_OUT.",
        minimum=1,
    ),
)

__all__ = ["COORDINATOR_KEYS", "CoordinatorConfig"]
