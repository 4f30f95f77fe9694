"""Settings of the coordinator, which commits: how long it waits for replicas, how much catching up may cost."""

from __future__ import annotations

from dataclasses import dataclass

from spark_replog.config.key import INT64_MAX, SAME, declared_keys, setting
from spark_replog.errors import invalid_option

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorConfig:
    """How the driver-side owner of a ledger waits for replicas and for its commit."""

    replica_lag_time_max_ms: int = setting(
        2_000,
        "A replica that does not get its copies within this time leaves the ISR in the same commit, unless fewer than "
        "min.insync.replicas would remain. Less than half of request.timeout.ms. Shorter than Kafka's because a "
        "micro-batch waits for it.",
        kafka="30000",
        minimum=1,
    )
    metadata_max_age_ms: int = setting(
        300_000, "Maximum age of the known roots and topics before they are read again.", kafka=SAME
    )
    metadata_page_cache_bytes: int = setting(
        64 * _MIB,
        "Memory of one process for the index pages of one ledger: where older rows are. More makes reads all over a "
        "long log load fewer of them again.",
        minimum=_MIB,
    )
    replica_catchup_budget_ms: int = setting(
        5_000, "With acks=0 and acks=1, how long followers may take their copies in the background, after the answer."
    )
    replica_catchup_bytes: int = setting(
        32 * _MIB, "How much one commit, and one write task after its own rows, may copy to replicas that lack objects."
    )
    replica_rejoin_wait_ms: int = setting(
        30_000,
        "How long a replica stays out of the ISR, unless the ISR is too small. Also how often a commit checks "
        "whether its root is back.",
    )
    num_replica_fetchers: int = setting(
        4,
        "Copies to one replica at the same time, per process. More than in Kafka because each copy is a whole object.",
        kafka="1",
        minimum=1,
        maximum=8,
    )
    replica_fetch_backoff_ms: int = setting(
        1_000,
        "Pause before catch-up tries a replica again after a failed copy. Doubles with each failure, up to 32 times"
        " this value.",
        kafka=SAME,
    )
    follower_replication_throttled_rate: int = setting(
        INT64_MAX,
        "Bytes per second that a process copies to out-of-sync replicas. Copies that an append waits for are not "
        "throttled.",
        unit="bytes",
        kafka=SAME,
        minimum=1,
    )
    gc_floor_lag_ms: int = setting(
        604_800_000,
        "Age at which an uncommitted data object is deleted as garbage. A task that runs longer than half of "
        "this fails.",
        minimum=2,
    )
    log_retention_check_interval_ms: int = setting(
        300_000,
        "How often a process that commits, and 'replog coordinator run', deletes rows by retention and collects "
        "garbage. A process that commits does so in the background, the first time after its first commit.",
        kafka=SAME,
        minimum=1,
    )
    file_delete_delay_ms: int = setting(
        60_000,
        "How long files stay after the last of their rows was deleted, so that a reader that has planned them seldom "
        "has to plan again.",
        kafka=SAME,
    )
    auto_leader_rebalance_enable: bool = setting(
        True,
        "Whether 'replog coordinator run' moves leadership back to preferred replicas. Commits never do.",
        kafka=SAME,
    )
    leader_imbalance_per_broker_percentage: int = setting(
        10,
        "'replog coordinator run' moves leaders back when other brokers lead more than this share of a broker's "
        "preferred partitions.",
        kafka=SAME,
    )
    leader_imbalance_check_interval_seconds: int = setting(
        300,
        "How often 'replog coordinator run' checks this, in seconds. It also checks in its first round.",
        kafka=SAME,
        minimum=1,
    )
    log_cleaner_enable: bool = setting(
        True,
        "Whether 'replog coordinator run' compacts: it joins small objects into large ones, and removes replaced rows "
        "of topics with cleanup.policy=compact. 'replog topic compact' always does.",
        kafka=SAME,
    )
    log_cleaner_dedupe_buffer_size: int = setting(
        128 * _MIB,
        "Memory for the keys of one pass of compaction by key, about. A pass over more keys ends early, and the next "
        "one goes on.",
        unit="bytes",
        kafka=SAME,
        minimum=_MIB,
    )
    log_cleaner_backoff_ms: int = setting(
        15_000, "How long 'replog coordinator run' waits after it found nothing more to compact.", kafka=SAME
    )
    commit_wait_ms: int = setting(20, "How long a decided commit waits for the remaining metadata roots.")
    delivery_timeout_ms: int = setting(
        120_000,
        "How long a commit tries to reach a majority before it fails with REPLOG_COMMIT_OUTCOME_UNKNOWN.",
        kafka=SAME,
    )
    request_timeout_ms: int = setting(
        30_000, "How long a commit waits for replicas before it fails with REQUEST_TIMED_OUT.", kafka=SAME, minimum=1
    )

    def __post_init__(self) -> None:
        """A replica must leave the ISR well before a request gives up, or acks=all could never succeed."""
        if self.replica_lag_time_max_ms * 2 >= self.request_timeout_ms:
            raise invalid_option(
                "replica.lag.time.max.ms must be less than half of request.timeout.ms. Lower it or raise "
                "request.timeout.ms.",
                replica_lag_time_max_ms=self.replica_lag_time_max_ms,
                request_timeout_ms=self.request_timeout_ms,
            )


COORDINATOR_KEYS = declared_keys("coordinator", CoordinatorConfig)
