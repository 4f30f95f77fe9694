"""Topic administration over the two kinds of ledger.

A topic's state is in its own ledger; the cluster ledger only maps its name. No write spans
both atomically, so creation publishes the name last and deletion unpublishes it last. Every
step is repeatable: the next command finishes what a crash interrupted.
Source of the order of checks and of the codes: Kafka's ``ReplicationControlManager``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from spark_replog.admin import topic_rules
from spark_replog.admin.admin import Admin, settle_fences
from spark_replog.admin.topic_rules import Assignment, check_explicit, place_replicas
from spark_replog.cluster.cluster import Cluster, TopicHandle
from spark_replog.cluster.root_check import make_ledger_folders
from spark_replog.commit.retention import Retired, appended_rule, retired_of
from spark_replog.commit.schema_changes import checked_evolution, decide_schema, overtaken, schema_versions
from spark_replog.commit.state_changes import (
    check_deleted,
    close_topic,
    create_topic,
    grow_topic,
    is_reassigning,
    leave_empty,
    live_topic,
)
from spark_replog.config.registry import keys_of, read_topic_config, stored_topic_config, unknown_option_error
from spark_replog.errors import ErrorCode, InvalidConfigError, NotFoundError, ReplogError, RetriableError, command_line
from spark_replog.health.store import TopicDescription, describe, would_be
from spark_replog.ids import INTERNAL_TOPICS, BrokerId, LedgerId, TopicId, new_id
from spark_replog.ledger.ledger import Ledger
from spark_replog.log.acl import AclOperation
from spark_replog.log.codec.commands import encode_command
from spark_replog.log.fold.cluster_state import ClusterLedgerState
from spark_replog.log.fold.topic_state import TopicLedgerState
from spark_replog.log.model import (
    CommandResult,
    ConfigSet,
    LedgerRegister,
    LogStartAdvance,
    LogStartReason,
    MirrorSet,
    Outcome,
    PartitionsAdd,
    TopicInit,
    TopicPublish,
    TopicUnpublish,
)
from spark_replog.log.row_schema import RowSchema
from spark_replog.log_position import EARLIEST, LATEST, offset_between, parse_offset

if TYPE_CHECKING:
    import pyarrow as pa

DEFAULT_REPLICATION_FACTOR_MAX = 3


@dataclass(frozen=True, slots=True)
class MirrorOf:
    """What a new topic is a mirror of.

    Attributes:
        source: names it; a mirror of anything else is refused.
        starts: the offset at which each partition begins.
    """

    source: str
    starts: tuple[int, ...] = ()


class Controller(Admin):
    """Creates, grows, deletes and describes topics. Thread-safe.

    Each method may raise TOPIC_AUTHORIZATION_FAILED and REPLOG_NO_QUORUM; one that names a topic
    UNKNOWN_TOPIC_OR_PARTITION; one that lists or creates topics REPLOG_STORE_NOT_INITIALISED: an init stopped half-way.

    Args:
        cluster: the opened store.
        principal: the caller; None: see ``default_principal``.
        timeout_ms: how long a change may take.
        is_internal: for this project's own internal topics: no ACL is checked.
    """

    def __init__(
        self, cluster: Cluster, principal: str | None = None, *, timeout_ms: int = 60_000, is_internal: bool = False
    ) -> None:
        super().__init__(cluster, principal, timeout_ms=timeout_ms)
        self._is_internal = is_internal

    def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        replicas: int | None = None,
        config: Mapping[str, str] | None = None,
        ledger_name: str | None = None,
        if_not_exists: bool = False,
        *,
        schema: pa.Schema | str | RowSchema | None = None,
        key: Sequence[str] = (),
        start_index: int | None = None,
        assignment: Sequence[Sequence[BrokerId]] | None = None,
        validate_only: bool = False,
        mirror: MirrorOf | None = None,
    ) -> TopicDescription:
        """Create a topic. Checks run in Kafka's order, before anything is changed.

        Args:
            name: 1 to 249 characters of a-z A-Z 0-9 . _ -.
            partitions: None: 1.
            replicas: None: min(3, brokers).
            config: topic settings by Kafka's dotted names.
            ledger_name: topics of one ledger commit atomically together; None: its own.
            if_not_exists: return the existing topic as it is.
            schema: the columns of a typed topic's rows, as Arrow fields or Spark's DDL; None: rows are bytes.
            key: names of its columns that choose the partition; they become NOT NULL.
            start_index: of the first leader; None: random.
            assignment: per partition the replicas, preferred leader first, instead of counts.
            validate_only: check everything, change nothing, and return the topic as it would be.
            mirror: whose offsets its rows will have; only a mirror may write.

        Raises:
            InvalidConfigError: INVALID_TOPIC_EXCEPTION, INVALID_CONFIG, INVALID_REQUEST,
                INVALID_REPLICA_ASSIGNMENT, INVALID_REPLICATION_FACTOR, INVALID_PARTITIONS, POLICY_VIOLATION,
                REPLOG_INVALID_SCHEMA.
            ReplogError: TOPIC_ALREADY_EXISTS.
        """
        topic_rules.check_name(name)
        partitions, replicas = topic_rules.whole_counts(partitions, replicas)
        if not self._is_internal:
            self._cluster.refresh_if_stale()
            self._authorizer.require_create(name)
        existing = self._live_handle(name)
        if existing is not None:
            if not if_not_exists:
                raise topic_rules.already_exists(name)
            return self._describe_with_folders(name, existing)
        self._cluster.cluster_ledger.ask(lambda state: topic_rules.check_collision(name, state.topics))
        settings = _validated_config(config or {})
        columns = topic_rules.checked_schema(schema, key)
        topic_rules.check_compaction(columns, read_topic_config(dict(settings)))
        topic_rules.check_init_finished(self._cluster.brokers.broker_ids, self._racks(), self._cluster.path)
        placed = self._place(partitions, replicas, assignment, start_index)
        if validate_only:
            return would_be(name, placed, settings, columns)
        ledger_id = self._register_ledger(ledger_name)
        away = self._make_folders(ledger_id, {broker for row in placed for broker in row})
        topic_id = self._init_topic(ledger_id, TopicInit(new_id(), name, placed, settings, columns), away, mirror)
        try:
            winner = self._publish(TopicHandle(name, topic_id, ledger_id))
        except InvalidConfigError:  # a colliding name was first: a topic without a name could not be deleted
            self._close(self._cluster.topic_ledger(ledger_id), topic_id)
            raise
        if winner != topic_id:
            self._close(self._cluster.topic_ledger(ledger_id), topic_id)
        if winner != topic_id and not if_not_exists:
            raise topic_rules.already_exists(name)
        return self._describe(name)

    def delete_topic(self, name: str) -> None:
        """Delete a topic: first fence its writers, then free the name.

        Raises:
            InvalidConfigError: INVALID_TOPIC_EXCEPTION: an internal topic.
        """
        self._require_topic(AclOperation.DELETE, name)
        if name in INTERNAL_TOPICS:
            text = (
                f"'{name}' is internal: every group has its offsets there. Nothing was deleted. To forget one group: "
                f"{command_line(self._cluster.path, 'group', 'delete', 'GROUP')}."
            )
            raise InvalidConfigError(ErrorCode.INVALID_TOPIC_EXCEPTION, text, topic=name)
        self._cluster.refresh()
        self._finish_delete(self._cluster.lookup(name))

    def add_partitions(
        self,
        name: str,
        total: int,
        assignment: Sequence[Sequence[BrokerId]] | None = None,
        *,
        validate_only: bool = False,
    ) -> TopicDescription:
        """Grow a topic to ``total`` partitions; existing ones never move.

        Args:
            total: partitions afterwards.
            assignment: replicas of each new partition, as many as existing partitions have; None: spread.
            validate_only: check everything and change nothing; return the topic as it is.

        Raises:
            InvalidConfigError: INVALID_PARTITIONS when it already has that many or more;
                INVALID_REPLICA_ASSIGNMENT; POLICY_VIOLATION: more than 10,000 new ones.
            RetriableError: REASSIGNMENT_IN_PROGRESS.
        """
        self._require_topic(AclOperation.ALTER, name)
        total = topic_rules.whole_number(total, "the number of partitions", ErrorCode.INVALID_PARTITIONS)
        handle, ledger = self._open(name)
        rows = ledger.ask(lambda state: [partition.replicas for partition in state.topics[handle.topic_id].partitions])
        count, first_row = len(rows), rows[0]
        topic_rules.check_growth(name, count, total)
        topic_rules.check_new_count(total - count)
        racks, fenced = self._racks(), self._fenced()
        if assignment is not None:
            added = tuple(tuple(row) for row in assignment)
            if len(added) != total - count:
                text = (
                    f"{len(added)} lists of replicas are given for {total - count} new partitions. Give one for each."
                )
                raise InvalidConfigError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, text)
            check_explicit(added, racks, fenced, replication_factor=len(first_row), first_partition=count)
        else:
            topic_rules.check_somebody_leads(set(racks), fenced)
            active = sorted(set(racks) - fenced)
            start = next((at for at, broker_id in enumerate(active) if broker_id >= first_row[0]), 0)
            added = place_replicas(
                racks, fenced, total - count, len(first_row), start_index=start, first_partition=count
            )

        def propose(state: TopicLedgerState) -> tuple[bytes, ...]:
            current = live_topic(state, handle.topic_id)
            topic_rules.check_growth(name, len(current.partitions), total)
            if any(is_reassigning(partition) for partition in current.partitions):
                text = (
                    f"partitions of '{name}' are being moved. Let that end (replog coordinator run --once), or cancel "
                    "it (replog topic reassign NAME --cancel)."
                )
                raise RetriableError(ErrorCode.REASSIGNMENT_IN_PROGRESS, text, topic=name)
            grown = grow_topic(state, PartitionsAdd(handle.topic_id, total, added), fenced=fenced)
            return tuple(map(encode_command, grown))

        if validate_only:
            ledger.ask(propose)
            return self._describe(name)
        away = self._make_folders(handle.ledger_id, {broker for row in added for broker in row})

        def leave(state: TopicLedgerState) -> tuple[bytes, ...]:
            return tuple(map(encode_command, leave_empty(state, handle.topic_id, range(count, total), away)))

        self._settle_fences(ledger, fenced)
        self._decide(ledger, propose)
        if away:
            self._decide(ledger, leave)
        return self._describe(name)

    def alter_config(
        self, name: str, changes: Mapping[str, str | None], *, validate_only: bool = False
    ) -> TopicDescription:
        """Change settings of a topic; None restores the default.

        They apply to later writes and reads; ``min.insync.replicas`` also to writes that wait.

        Args:
            validate_only: check everything and change nothing; return the topic as it is.

        Raises:
            InvalidConfigError: INVALID_CONFIG: nothing was changed.
        """
        self._require_topic(AclOperation.ALTER_CONFIGS, name)
        handle, ledger = self._open(name)
        key_names = [key.name for key in keys_of("topic")]

        def propose(state: TopicLedgerState) -> tuple[bytes, ...]:
            topic = live_topic(state, handle.topic_id)
            wanted = {**topic.config, **{key: value for key, value in changes.items() if value is not None}}
            for key in [key for key, value in changes.items() if value is None]:
                if wanted.pop(key, None) is None and key not in key_names:
                    raise unknown_option_error(key, key_names, code=ErrorCode.INVALID_CONFIG)
            _validated_config(wanted)
            topic_rules.check_compaction(topic.schema, read_topic_config(wanted))
            if wanted == topic.config:
                return ()
            return (encode_command(ConfigSet(handle.topic_id, tuple(sorted(changes.items())))),)

        if validate_only:
            ledger.ask(propose)
        else:
            self._decide(ledger, propose)
        return self._describe(name)

    def _describe_with_folders(self, name: str, handle: TopicHandle) -> TopicDescription:
        """Return a topic that exists; a creation that was interrupted may have left no folders."""
        topic = self._describe(name)
        self._make_folders(handle.ledger_id, {root for part in topic.partitions for root in part.replicas})
        return topic

    def promote(self, name: str) -> TopicDescription:
        """End the mirroring of a topic for good: ordinary writers go on at its ends, with dense offsets.

        Raises:
            InvalidConfigError: REPLOG_MIRRORED_TOPIC: the topic is no mirror.
        """
        self._require_topic(AclOperation.ALTER, name)
        handle, ledger = self._open(name)

        def propose(state: TopicLedgerState) -> tuple[bytes, ...]:
            if not live_topic(state, handle.topic_id).mirror:
                text = f"topic '{name}' is no mirror: ordinary programs write to it already. Nothing was changed."
                raise InvalidConfigError(ErrorCode.REPLOG_MIRRORED_TOPIC, text, topic=name)
            return (encode_command(MirrorSet(handle.topic_id, "")),)

        self._decide(ledger, propose)
        return self._describe(name)

    def schema_history(self, name: str) -> tuple[RowSchema, ...]:
        """Return all versions of a typed topic's schema, from version 1 to the newest.

        Raises:
            InvalidConfigError: REPLOG_INVALID_SCHEMA: its rows are bytes.
        """
        self._require_topic(AclOperation.DESCRIBE, name)
        handle, ledger = self._open(name)
        return schema_versions(ledger, handle.topic_id)

    def evolve_schema(
        self,
        name: str,
        schema: pa.Schema | str | RowSchema,
        *,
        key: Sequence[str] | None = None,
        from_version: int | None = None,
        validate_only: bool = False,
    ) -> TopicDescription:
        """Give a typed topic the next version of its schema; without a difference nothing changes.

        A version may add nullable columns, widen numbers and decimals, and drop NOT NULL. Older rows read through it.
        Writers and readers that are open keep their version; those that open later have the new one.

        Args:
            schema: all columns afterwards, as Arrow fields or Spark's DDL.
            key: the key columns, for a check: they cannot change. None: they are kept.
            from_version: the version that the change was made from, for programs that may run late or again; None: the
                newest. With it a repetition succeeds also if later versions were made since.
            validate_only: check everything and change nothing; return the topic with the schema that it would have.

        Raises:
            InvalidConfigError: REPLOG_INVALID_SCHEMA: the topic's rows are bytes, the text does not parse, or a column
                would be dropped, renamed, narrowed, made NOT NULL or added as NOT NULL, or the key would change.
            ReplogError: INVALID_UPDATE_VERSION: another change was made first; nothing of this one was.
            OutcomeUnknownError: REPLOG_COMMIT_OUTCOME_UNKNOWN: repeat it.
        """
        self._require_topic(AclOperation.DESCRIBE if validate_only else AclOperation.ALTER_CONFIGS, name)
        handle, ledger = self._open(name)
        versions = schema_versions(ledger, handle.topic_id)
        path = self._cluster.path
        wanted = checked_evolution(name, path, versions, schema, key, from_version)
        if validate_only:
            return replace(self._describe(name), schemas=(*versions[: wanted.version - 1], wanted))
        if wanted.version > len(versions) and not decide_schema(ledger, handle.topic_id, wanted, self._timeout_ms):
            raise overtaken(name, path, schema_versions(ledger, handle.topic_id)[-1], wanted.version - 1)
        return self._describe(name)

    def aged_out(self, name: str, changes: Mapping[str, str | None] | None = None) -> list[Retired]:
        """Return the rows that retention is about to delete, by partition; with ``changes`` (as for
        ``alter_config``), those that it would then delete. Changes nothing.

        Raises:
            InvalidConfigError: INVALID_CONFIG.
        """
        self._require_topic(AclOperation.DESCRIBE_CONFIGS, name)
        handle, ledger = self._open(name)
        now_ms = self._cluster.retention_now_ms(ledger)

        def ask(state: TopicLedgerState) -> list[Retired]:
            topic = live_topic(state, handle.topic_id)
            changed = {**topic.config, **(changes or {})}
            wanted = {key: value for key, value in changed.items() if value is not None}
            rule = appended_rule(state, topic.topic_id, wanted)
            return retired_of(topic, read_topic_config(wanted), now_ms, rule)

        return ledger.ask(ask)

    def delete_records(self, name: str, offsets: Mapping[int, int]) -> TopicDescription:
        """Delete the rows below an offset, per partition; they can never be read again.

        Readers that have not read them see data loss. Bytes are freed by garbage collection, later.

        Args:
            offsets: partition to its new log start offset; -1 is its high watermark, -2 its start. An offset below the
                log start changes nothing.

        Raises:
            ReplogError: OFFSET_OUT_OF_RANGE: above the high watermark, or negative. POLICY_VIOLATION: rows of the
                topic are only removed by key. Nothing was deleted.
        """
        self._require_topic(AclOperation.DELETE, name)
        handle, ledger = self._open(name)

        def propose(state: TopicLedgerState) -> tuple[bytes, ...]:
            topic = live_topic(state, handle.topic_id)
            if "delete" not in stored_topic_config(tuple(topic.config.items()))[0].cleanup_policy:
                text = (
                    f"topic '{name}' has cleanup.policy=compact: its rows go by key only. Add delete to its"
                    " cleanup.policy, trim, and set it back."
                )
                raise ReplogError(ErrorCode.POLICY_VIOLATION, text, topic=name)
            bounds = [(partition.log_start_offset, partition.high_watermark) for partition in topic.partitions]
            moved = topic_rules.log_starts(name, bounds, offsets)
            if not moved:
                return ()
            return (encode_command(LogStartAdvance(handle.topic_id, LogStartReason.DELETE_RECORDS, moved)),)

        self._decide(ledger, propose)
        return self._describe(name)

    def list_topics(self) -> list[TopicDescription]:
        """Return all topics that the caller may describe, by name, without those being deleted.

        Reads the ledger of each topic; ``name_topics`` does not.
        """
        handles = self.name_topics()
        self._cluster.refresh_topics(handles)
        topics = []
        for handle in handles:
            try:
                ledger, _ = self._cluster.folded_topic(handle)
            except NotFoundError:
                continue
            topics.append(ledger.ask(partial(describe, topic_id=handle.topic_id, name=handle.name)))
        return topics

    def name_topics(self) -> list[TopicHandle]:
        """Return the names and ids of all topics that the caller may describe, by name.

        Reads the cluster's ledger only. A topic that is being deleted may be among them.
        """
        names = self._authorizer.allowed_topics(AclOperation.DESCRIBE, self._cluster.topic_names())
        topic_rules.check_init_finished(self._cluster.brokers.broker_ids, self._racks(), self._cluster.path)
        return [self._cluster.lookup(name) for name in names]

    def describe_topic(self, name: str) -> TopicDescription:
        """Return a topic's description on the newest fold."""
        self._require_topic(AclOperation.DESCRIBE, name)
        return self._describe(name)

    def _describe(self, name: str) -> TopicDescription:
        handle, ledger = self._open(name)
        return ledger.ask(partial(describe, topic_id=handle.topic_id, name=name))

    def offsets(self, name: str, at: str | int = "latest") -> dict[int, int]:
        """Return per partition the log start offset (``earliest``) or the high watermark (``latest``).

        Args:
            at: the end, by any of its names in ``log_position.py``; anything else is REPLOG_INVALID_OPTION.
        """
        end = parse_offset(at)
        if end not in (EARLIEST, LATEST):
            text = "offsets are read at 'earliest' or 'latest'. Give one of them."
            raise InvalidConfigError(ErrorCode.REPLOG_INVALID_OPTION, text, at=at)
        topic = self.describe_topic(name)
        return {
            part.partition: offset_between(end, part.log_start_offset, part.high_watermark) for part in topic.partitions
        }

    def _place(
        self,
        partitions: int | None,
        replicas: int | None,
        assignment: Sequence[Sequence[BrokerId]] | None,
        start_index: int | None,
    ) -> Assignment:
        """Return a new topic's assignment: the given one, or one that spreads leaders and replicas."""
        racks, fenced = self._racks(), self._fenced()
        if assignment is not None:
            if partitions is not None or replicas is not None:
                raise InvalidConfigError(
                    ErrorCode.INVALID_REQUEST, "an assignment sets partitions and replicas. Give it alone."
                )
            topic_rules.check_new_count(len(assignment))
            given = tuple(tuple(row) for row in assignment)
            check_explicit(given, racks, fenced)
            return given
        topic_rules.check_new_count(1 if partitions is None else partitions)
        factor = min(DEFAULT_REPLICATION_FACTOR_MAX, len(racks)) if replicas is None else replicas
        topic_rules.check_replication_factor(factor, len(racks))
        topic_rules.check_somebody_leads(set(racks), fenced)
        return place_replicas(racks, fenced, 1 if partitions is None else partitions, factor, start_index=start_index)

    def _live_handle(self, name: str) -> TopicHandle | None:
        """Return the published topic; first finish an interrupted deletion."""
        self._cluster.refresh()
        try:
            handle = self._cluster.lookup(name)
        except NotFoundError:
            return None
        topic = self._cluster.topic_ledger(handle.ledger_id).refresh().topics.get(handle.topic_id)
        if topic is not None and not topic.closed:
            return handle
        self._finish_delete(handle)
        return None

    def _racks(self) -> dict[BrokerId, str | None]:
        racks = self._cluster.cluster_ledger.ask(lambda state: {at: entry.rack for at, entry in state.brokers.items()})
        return {broker_id: racks[broker_id] for broker_id in self._cluster.brokers.broker_ids if broker_id in racks}

    def _register_ledger(self, ledger_name: str | None) -> LedgerId:
        """Return the id of the named ledger, which is recorded if new; a topic's own ledger has its id as name."""
        fresh = new_id()
        name = fresh if ledger_name is None else ledger_name
        topic_rules.check_ledger_name(name)

        def propose(state: ClusterLedgerState) -> bytes | None:
            return None if name in state.ledgers else encode_command(LedgerRegister(name, fresh))

        ledger = self._cluster.cluster_ledger
        ledger.append(propose, timeout_ms=self._timeout_ms)
        return ledger.ask(lambda state: state.ledgers[name])

    def _make_folders(self, ledger_id: LedgerId, data_brokers: set[BrokerId]) -> set[BrokerId]:
        """Make the ledger's folders; return the data brokers that could not be reached."""
        brokers = self._cluster.brokers
        return make_ledger_folders(brokers, ledger_id, data_brokers.union(brokers.metadata_broker_ids)) & data_brokers

    def _init_topic(
        self, ledger_id: LedgerId, made: TopicInit, away: set[BrokerId], mirror: MirrorOf | None
    ) -> TopicId:
        """Write the topic to its ledger; brokers that are away start out of sync."""
        fenced, now_ms = self._fenced(), self._cluster.clock.now_ms()

        def propose(state: TopicLedgerState) -> tuple[bytes, ...]:
            commands = create_topic(state, made, fenced=fenced, away=away, now_ms=now_ms)
            begun = [] if mirror is None else [MirrorSet(made.topic_id, mirror.source, mirror.starts)]
            return tuple(map(encode_command, [*commands, *begun]))

        ledger = self._cluster.topic_ledger(ledger_id)
        self._settle_fences(ledger, fenced)
        self._decide(ledger, propose)
        return made.topic_id

    def _settle_fences(self, ledger: Ledger[TopicLedgerState], fenced: frozenset[BrokerId]) -> None:
        """Finish a fence that has not reached this ledger, as ``fence`` does: rows lost with it are cut."""
        if fenced and ledger.refresh().topics and fenced - ledger.state.fenced:
            settle_fences(self._cluster, ledger, self._timeout_ms)

    def _publish(self, handle: TopicHandle) -> TopicId:
        """Publish the topic's name; return the id that got the name: another topic's if a race was lost.

        Judged by the entry, since the topic may be deleted right after it.
        """
        winner = handle.topic_id

        def propose(state: ClusterLedgerState) -> bytes | None:
            nonlocal winner
            winner, _ = state.topics.get(handle.name, (handle.topic_id, ""))
            if handle.name in state.topics:
                return None
            topic_rules.check_collision(handle.name, state.topics)
            return encode_command(TopicPublish(handle.name, handle.topic_id, handle.ledger_id))

        ledger = self._cluster.cluster_ledger
        result: CommandResult | None = ledger.append(propose, timeout_ms=self._timeout_ms).result
        if result is not None and result.outcome is Outcome.EXISTS:  # another command of the same entry came first
            with ledger.lock:
                winner, _ = ledger.state.topics.get(handle.name, ("", ""))
        return winner

    def _finish_delete(self, handle: TopicHandle) -> None:
        topic_ledger = self._cluster.topic_ledger(handle.ledger_id)
        self._close(topic_ledger, handle.topic_id)
        with topic_ledger.lock:
            check_deleted(topic_ledger.state, handle.topic_id, handle.name)

        def propose(state: ClusterLedgerState) -> bytes | None:
            ids = state.topics.get(handle.name)
            is_ours = ids is not None and ids[0] == handle.topic_id
            return encode_command(TopicUnpublish(handle.name, handle.topic_id)) if is_ours else None

        self._cluster.cluster_ledger.append(propose, timeout_ms=self._timeout_ms)

    def _close(self, ledger: Ledger[TopicLedgerState], topic_id: TopicId) -> None:
        self._decide(ledger, lambda state: tuple(map(encode_command, close_topic(state, topic_id))))


def _validated_config(config: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    for key, value in config.items():
        if value is None:
            raise InvalidConfigError(ErrorCode.INVALID_CONFIG, f"'{key}' has no value. Give one or leave it out.")
    try:
        read_topic_config(config)
    except InvalidConfigError as error:
        raise InvalidConfigError(ErrorCode.INVALID_CONFIG, str(error.args[0]), **error.context) from error
    return tuple(sorted(config.items()))
