"""Makes the plan that the tasks of a micro-batch carry. Runs driver-side; folds each ledger once."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial

from spark_replog.cluster.authorizer import Authorizer
from spark_replog.cluster.cluster import Cluster, TopicHandle
from spark_replog.commit.catch_up import plan_copies
from spark_replog.config.coordinator import CoordinatorConfig
from spark_replog.config.registry import stored_topic_config
from spark_replog.errors import NotFoundError
from spark_replog.ids import BrokerId
from spark_replog.log.acl import AclOperation, ResourceType
from spark_replog.log.fold.partition_state import NO_LEADER, PartitionState
from spark_replog.log.write_plan import TIME_UNBOUNDED_MS, TopicPlan, WritePlan
from spark_replog.logs import Once

_LOG = logging.getLogger(__name__)
_warned = Once()


def make_write_plan(
    cluster: Cluster,
    topics: Sequence[str] | None = None,
    principal: str | None = None,
    config: CoordinatorConfig | None = None,
) -> WritePlan:
    """Fold the topics' ledgers and return what tasks need to know.

    Args:
        topics: the names to write to; None: every topic, for rows that name theirs. The plan lists the refused ones.
        principal: of the writer; None: see ``default_principal``.
        config: of the catch-up; None: the cluster's.

    Raises:
        AuthorizationError: TOPIC_AUTHORIZATION_FAILED: the principal may not write to a given name.
        NotFoundError: UNKNOWN_TOPIC_OR_PARTITION: a given name is not a topic.
        RetriableError: REPLOG_NO_QUORUM.
    """
    plans = []
    authorizer = Authorizer(cluster, principal)
    if topics is None:
        names = cluster.topic_names()  # folds the ACLs as well
        allowed = authorizer.allowed_topics(AclOperation.WRITE, names)
    else:
        names = allowed = list(dict.fromkeys(topics))
    handles, missing = cluster.fold_topics(
        allowed, partial(authorizer.require, AclOperation.WRITE, ResourceType.TOPIC, *(topics or ()))
    )
    for error in missing.values():
        raise error
    for handle in handles.values():
        try:
            plans.append(_topic_plan(cluster, handle))
        except NotFoundError:
            if topics is not None:
                raise
    return WritePlan(
        path=cluster.path,
        topics=tuple(plans),
        principal=authorizer.principal,
        made_at_ms=cluster.clock.now_ms(),
        refused=tuple(
            (name, str(authorizer.refusal(AclOperation.WRITE, ResourceType.TOPIC, name).args[0]))
            for name in sorted(set(names).difference(allowed))
        ),
        missing_copies=plan_copies(cluster, [plan.ledger_id for plan in plans], config or cluster.config),
    )


def _topic_plan(cluster: Cluster, handle: TopicHandle) -> TopicPlan:
    try:
        ledger, _ = cluster.folded_topic(handle)
    except NotFoundError:
        # Deleted, and perhaps created again under a new id, since this process last looked.
        cluster.refresh()
        handle = cluster.lookup(handle.name)
        ledger, _ = cluster.topic_state(handle)
    with ledger.lock:
        state, topic = ledger.state, ledger.state.topics[handle.topic_id]
        config, unknown = stored_topic_config(tuple(topic.config.items()))
        has_own_times = config.message_timestamp_type == "CreateTime"
        min_insyncs = tuple(partition.min_insync for partition in topic.partitions)
        if unknown and _warned.is_first((handle.topic_id, unknown)):
            _LOG.warning(
                "topic '%s': this release does not know the settings %s, which a newer one set: it writes with their "
                "defaults. Upgrade spark-replog.",
                handle.name, ", ".join(f"{name}={topic.config[name]}" for name in unknown),
            )  # fmt: skip
        return TopicPlan(
            name=handle.name,
            topic_id=handle.topic_id,
            ledger_id=handle.ledger_id,
            generation=state.generations.newest,
            replica_sets=tuple(_leader_first(partition, partition.replicas) for partition in topic.partitions),
            in_sync=tuple(_leader_first(partition, partition.isr) for partition in topic.partitions),
            min_insync=min_insyncs[0],
            compression=config.compression_of(is_typed=topic.schema is not None),
            max_message_bytes=config.max_message_bytes,
            is_compacted="compact" in config.cleanup_policy,
            fenced=state.fenced,
            offline=frozenset(number for number, part in enumerate(topic.partitions) if part.leader == NO_LEADER),
            fold_index=state.applied_index,
            timestamp_before_max_ms=config.message_timestamp_before_max_ms if has_own_times else TIME_UNBOUNDED_MS,
            timestamp_after_max_ms=config.message_timestamp_after_max_ms if has_own_times else TIME_UNBOUNDED_MS,
            min_insyncs=min_insyncs if len(set(min_insyncs)) > 1 else (),
            schema=topic.schema,
        )


def _leader_first(partition: PartitionState, brokers: Sequence[BrokerId]) -> tuple[BrokerId, ...]:
    leader = partition.leader
    if leader == NO_LEADER:  # the commit refuses its rows
        return tuple(brokers)
    return (leader, *(broker_id for broker_id in brokers if broker_id != leader))
