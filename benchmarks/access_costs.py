"""What ACLs cost where they are asked: in an append of 1,000 partitions, in the plan of a micro-batch.

    python -m benchmarks.access_costs

Processor time of one call, the median, for a store with 0, 1, 100 and 10,000 ACLs. Roots in memory. Once with all
partitions in one topic (one decision a call), once with a topic for each (a thousand).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

from spark_replog.admin.access_admin import AclAdmin
from spark_replog.admin.controller import Controller
from spark_replog.cluster.authorizer import Authorizer
from spark_replog.cluster.cluster import Cluster
from spark_replog.cluster.init_store import init_cluster
from spark_replog.commit.append_request import AppendRequest
from spark_replog.commit.replica_manager import ReplicaManager
from spark_replog.commit.write_plan import make_write_plan
from spark_replog.ids import ObjectId, new_id
from spark_replog.log.acl import AclBinding, AclOperation, PatternType, Permission, ResourceType
from spark_replog.log.model import Append, DataObject, IdentityKind, ProducerIdentity, Section

WRITER = "User:writer"
PARTITION_COUNT = 1_000
CALL_COUNT = 15
ACL_COUNTS = (0, 1, 100, 10_000)
ACLS_PER_ENTRY = 1_000
TOPIC_NAME = "analytics.team-{}.events"


def bindings(count: int, names: Sequence[str]) -> list[AclBinding]:
    """Return ACLs as a large site has them: half prefixes, and all principals but one other people."""
    acls = []
    for number in range(count - 1):
        name = names[number % len(names)]
        is_prefix = number % 2 == 0
        pattern = PatternType.PREFIXED if is_prefix else PatternType.LITERAL
        acls.append(
            AclBinding(
                ResourceType.TOPIC,
                name[: 10 + number % 8] if is_prefix else name,
                pattern,
                f"User:other-{number}",
                AclOperation.WRITE,
                Permission.ALLOW,
            )
        )
    if count:
        acls.append(
            AclBinding(ResourceType.TOPIC, "*", PatternType.LITERAL, WRITER, AclOperation.ALL, Permission.ALLOW)
        )
    return acls


def opened(topic_count: int, acl_count: int) -> tuple[Cluster, list[str]]:
    """Return a store of one ledger with so many topics and ACLs, and the topics' names."""
    cluster = init_cluster(f"memory://{new_id()}")
    names = [TOPIC_NAME.format(number) for number in range(topic_count)]
    controller = Controller(cluster)
    for name in names:
        controller.create_topic(name, PARTITION_COUNT // topic_count, 1, ledger_name="all")
    admin = AclAdmin(cluster, "User:admin")
    admin.configure({"super.users": "User:admin"})
    made = bindings(acl_count, names)
    for start in range(0, len(made), ACLS_PER_ENTRY):
        admin.add(made[start : start + ACLS_PER_ENTRY])
    return cluster, names


def median_ms(call: Callable[[int], object]) -> float:
    """Return the processor time of a call."""
    seconds = []
    for number in range(CALL_COUNT):
        start = time.process_time()
        call(number)
        seconds.append(time.process_time() - start)
    return statistics.median(seconds) * 1000


def measure(topic_count: int, acl_count: int) -> tuple[float, float, float]:
    """Return milliseconds of a decision for every topic, of an append, and of a plan."""
    cluster, names = opened(topic_count, acl_count)
    handles = [cluster.lookup(name) for name in names]
    manager, query = ReplicaManager(cluster), new_id()
    authorizer = Authorizer(cluster, WRITER)

    def append(batch: int) -> None:
        partitions = [(handle.topic_id, index) for handle in handles for index in range(PARTITION_COUNT // topic_count)]
        sections = tuple(
            Section(topic_id, partition, 100, place * 9000, 9000, 7, 0, 0)
            for place, (topic_id, partition) in enumerate(partitions)
        )
        size_bytes = 9000 * len(sections)
        item = DataObject(
            ObjectId(0, f"{query[:8]}-{batch}-0-{new_id()}.arrow"), size_bytes, False, frozenset((0,)), sections
        )
        identity = ProducerIdentity(query, query, batch, "run", IdentityKind.STREAM)
        request = AppendRequest(Append(identity, WRITER, "", 0, (item,)), 30_000)
        answers = manager.append_records({handles[0].ledger_id: request})
        assert [answer.error for answer in answers.values()] == [None]

    return (
        median_ms(lambda _: authorizer.allowed_topics(AclOperation.WRITE, names)),
        median_ms(append),
        median_ms(lambda _: make_write_plan(cluster, names, WRITER)),
    )


def main() -> None:
    """Print a row for each number of ACLs."""
    print("| topics x partitions | ACLs | decisions, ms | append_records, ms | plan of a micro-batch, ms |")
    print("| --- | --- | --- | --- | --- |")
    for topic_count in (1, PARTITION_COUNT):
        for acl_count in ACL_COUNTS:
            decisions, append, plan = measure(topic_count, acl_count)
            shape = f"{topic_count:,} x {PARTITION_COUNT // topic_count:,}"
            print(f"| {shape} | {acl_count:,} | {decisions:.1f} | {append:.1f} | {plan:.1f} |", flush=True)


if __name__ == "__main__":
    main()
