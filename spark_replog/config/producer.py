"""Settings of writers: those of the sink's tasks and of the plain ``Producer``, and those of the latter alone."""

from __future__ import annotations

from dataclasses import dataclass

from spark_replog.config.key import INT32_MAX, SAME, declared_keys, setting, words
from spark_replog.errors import conflicting_options, invalid_option

IDEMPOTENT_IN_FLIGHT_MAX = 5
_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig:
    """How a writer batches, sends and waits. Made on the driver and pickled to the tasks."""

    acks: int = setting(
        -1,
        "Copies to wait for. all: every in-sync replica, and exactly once. 1: the leader. 0: failed puts are not "
        "repeated; their rows are dropped and counted in the log.",
        kafka=SAME,
        choices={"all": -1, "-1": -1, "0": 0, "1": 1},
    )
    batch_size_bytes: int = setting(
        1 * _MIB,
        "Size of one record batch per partition. 0 puts one record in each batch. Larger than Kafka's because a "
        "batch holds Arrow columns.",
        kafka="16384",
        name="batch.size",
        maximum=INT32_MAX,
    )
    linger_ms: int | None = setting(
        None,
        "How long a batch waits to fill. Not set in a Spark task: until the task ends, a request is full or memory "
        "runs out. A small task then writes one object. Not set in a plain Producer: 5 ms, and a batch whose result "
        "is waited for goes at once if nothing is in flight.",
        kafka="5",
    )
    buffer_memory_bytes: int = setting(
        128 * _MIB, "Memory for rows that wait to be sent, per task.", kafka="33554432", name="buffer.memory", minimum=1
    )
    max_request_size_bytes: int = setting(
        32 * _MIB,
        "Size of one data object, and of the largest record. Larger than Kafka's because an object holds sections "
        "of many partitions. On local folders a task of Spark makes objects of 16 MiB.",
        kafka="1048576",
        name="max.request.size",
        minimum=1,
        maximum=INT32_MAX,
    )
    max_block_ms: int = setting(
        60_000,
        "How long an append waits for buffer.memory, and the plan of a write in Spark for slow roots.",
        kafka=SAME,
    )
    delivery_timeout_ms: int = setting(
        120_000, "How long a write is retried before it fails. At least linger.ms + request.timeout.ms.", kafka=SAME
    )
    request_timeout_ms: int = setting(30_000, "How long one put may take.", kafka=SAME, minimum=1)
    retries: int = setting(
        INT32_MAX,
        "How often a plain producer appends a batch again after a retriable error. Puts are retried until "
        "delivery.timeout.ms.",
        kafka=SAME,
        maximum=INT32_MAX,
    )
    retry_backoff_ms: int = setting(100, "First pause before a put is retried.", kafka=SAME)
    retry_backoff_max_ms: int = setting(1_000, "Longest pause between two attempts.", kafka=SAME)
    max_in_flight: int = setting(
        5,
        "Data objects that a task writes at the same time.",
        kafka=SAME,
        name="max.in.flight.requests.per.connection",
        minimum=1,
        maximum=64,
    )
    compression_type: str | None = setting(
        None,
        "Compression inside data objects. Not set: the topic's.",
        kafka="none",
        choices=words("none", "lz4", "zstd"),
    )
    replica_grace_ms: int = setting(
        500, "With acks=all, how long a task waits for the other replicas after min.insync.replicas have the object."
    )
    partitioner_ignore_keys: bool = setting(False, "Choose partitions without looking at keys.", kafka=SAME)
    partitioner_class: str | None = setting(
        None,
        "Your class as module.Class, importable on the workers. Its partition_array(keys, count) returns a "
        "partition per key. Not set: murmur2 of the key, and sticky for rows without a key.",
    )

    def __post_init__(self) -> None:
        """Check the timeouts against each other (source: ``KafkaProducer.configureDeliveryTimeout``)."""
        least_ms = (self.linger_ms or 0) + self.request_timeout_ms
        if self.delivery_timeout_ms < least_ms:
            raise invalid_option(
                f"delivery.timeout.ms must be at least linger.ms + request.timeout.ms. Set it to {least_ms} or more.",
                delivery_timeout_ms=self.delivery_timeout_ms,
            )
        object.__setattr__(self, "batch_size_bytes", max(1, self.batch_size_bytes))  # 0 means no batching, as in Kafka


INLINE_BYTES_REMOTE = 4096
"""About twelve rows of 100 bytes. A larger object costs little more for its own call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """What only a plain ``Producer`` reads."""

    inline_max_bytes: int | None = setting(
        None,
        "Rows that are sent together and take at most this many bytes go into the ledger's entry itself, without a "
        "data object: one call less. 0: none do. Not set: 4096 where no metadata root is on a local disk or in memory, "
        "else 0.",
        maximum=64 * 1024,
    )

    client_id: str = setting(
        "", "A name recorded with each append. Empty: producer-1, producer-2 and so on.", kafka=SAME
    )
    principal: str | None = setting(
        None, "Who writes (advisory). Not set: REPLOG_PRINCIPAL, else User: and the operating system's user name."
    )
    key_serializer: str = setting(
        "bytes",
        "bytes, string, json, short, int, long, float, double (numbers are big-endian), Kafka's class for one of them, "
        "or your class as module.Class.",
        kafka="required",
    )
    value_serializer: str = setting("bytes", "As key.serializer, for values.", kafka="required")
    interceptor_classes: str = setting(
        "",
        "Your classes, comma separated, called in this order. Methods: on_send, on_send_batch, on_acknowledgement, "
        "close.",
        kafka=SAME,
    )
    enable_idempotence: bool | None = setting(
        None,
        "Whether a repeated append is recognized by its sequence. Not set: true with acks=all, retries above 0 and "
        "at most 5 requests in flight, else false. true refuses the other combinations.",
        kafka="true",
    )
    transactional_id: str | None = setting(
        None,
        "A name for the program that stays the same when it restarts: a new process with it fences the older one. "
        "Transactions need it.",
        kafka="null",
    )
    transaction_timeout_ms: int = setting(
        60_000,
        "A transaction that is open longer is aborted instead of committed.",
        kafka=SAME,
        minimum=1,
        maximum=INT32_MAX,
    )
    adaptive_partitioning: bool = setting(
        True,
        "Records without a key go less often to partitions with long queues.",
        kafka=SAME,
        name="partitioner.adaptive.partitioning.enable",
    )
    availability_timeout_ms: int = setting(
        0,
        "Records without a key skip partitions whose objects waited longer than this to be put. 0 skips none.",
        kafka=SAME,
        name="partitioner.availability.timeout.ms",
    )
    metadata_max_idle_ms: int = setting(
        300_000, "A topic that is not written to for longer is dropped from the cache.", kafka=SAME, minimum=5000
    )
    metrics_num_samples: int = setting(
        2, "Windows that a rate or an average covers.", kafka=SAME, minimum=1, maximum=1000
    )
    metrics_sample_window_ms: int = setting(30_000, "Length of one window.", kafka=SAME, minimum=1)

    def check_idempotence(self, acks: int, retries: int, max_in_flight: int) -> bool:
        """Return whether appends are idempotent (source: ``postProcessAndValidateIdempotenceConfigs``).

        Raises:
            InvalidConfigError: REPLOG_CONFLICTING_OPTIONS: idempotence or a transactional id was set and cannot hold.
        """
        if self.transactional_id == "":
            raise conflicting_options("transactional.id is empty. Name the program, or leave the setting out.")
        if self.transactional_id is not None and self.enable_idempotence is False:
            raise conflicting_options("a transactional.id needs idempotence. Leave enable.idempotence out.")
        is_asked = bool(self.enable_idempotence) or self.transactional_id is not None
        obstacle = None
        if acks != -1:
            obstacle = "idempotence and transactions need acks=all. Set acks to all."
        elif retries == 0:
            obstacle = "idempotence and transactions need retries. Set retries to more than 0."
        elif max_in_flight > IDEMPOTENT_IN_FLIGHT_MAX:
            most = IDEMPOTENT_IN_FLIGHT_MAX
            obstacle = f"idempotence needs max.in.flight.requests.per.connection of at most {most}. Lower it."
        if obstacle is not None and is_asked:
            raise conflicting_options(obstacle)
        return obstacle is None and self.enable_idempotence is not False


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskHooks:
    """Classes of the user that a write task makes: names only, carried from the driver."""

    interceptor_classes: str = ""
    key_serializer: str = "bytes"
    value_serializer: str = "bytes"


PRODUCER_KEYS = declared_keys("producer", ProducerConfig)
CLIENT_KEYS = declared_keys("client", ClientConfig)
