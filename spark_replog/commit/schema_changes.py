"""Has the next version of a typed topic's schema decided. Runs driver-side, or in a plain producer's process.

A change is computed from one version of the schema and decided only on that version. A change that lost its race is
not repeated blindly: what was right for the old version may drop a column of the new one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pyarrow as pa

from spark_replog.cluster.authorizer import Authorizer
from spark_replog.cluster.cluster import Cluster
from spark_replog.commit.state_changes import live_topic
from spark_replog.errors import ErrorCode, InvalidConfigError, ReplogError, RetriableError, command_line
from spark_replog.ids import TopicId
from spark_replog.ledger.ledger import Ledger
from spark_replog.log.acl import AclOperation, ResourceType
from spark_replog.log.codec.commands import encode_command
from spark_replog.log.ddl import invalid_schema
from spark_replog.log.fold.topic_state import TopicLedgerState
from spark_replog.log.model import SchemaEvolve
from spark_replog.log.row_schema import RowSchema
from spark_replog.log.schema_merge import merged_schema

RACES_MAX = 10
"""Lost races after which a change gives up: each time another program changed the same schema."""


def newest_schema(ledger: Ledger[TopicLedgerState], topic_id: TopicId) -> RowSchema:
    """Return the newest version of a typed topic's schema, as folded so far.

    Raises:
        InvalidConfigError: REPLOG_INVALID_SCHEMA: the rows are bytes.
        NotFoundError: UNKNOWN_TOPIC_OR_PARTITION: the topic was deleted.
    """
    return schema_versions(ledger, topic_id)[-1]


def schema_versions(ledger: Ledger[TopicLedgerState], topic_id: TopicId) -> tuple[RowSchema, ...]:
    """Return the versions 1 to N of a typed topic's schema, as folded so far. Raises as ``newest_schema``."""

    def ask(state: TopicLedgerState) -> tuple[str, tuple[RowSchema, ...]]:
        topic = live_topic(state, topic_id)
        return topic.name, topic.schemas

    name, versions = ledger.ask(ask)
    if not versions:
        raise invalid_schema(
            f"the rows of topic '{name}' are bytes, and remain so: it has no schema. Create another topic with one.",
            topic=name,
        )
    return versions


def decide_schema(ledger: Ledger[TopicLedgerState], topic_id: TopicId, newer: RowSchema, timeout_ms: int) -> bool:
    """Have a version decided; return False if another change was first, and nothing was decided.

    A repetition is success without effect: after a lost answer, and also if a later version was decided meanwhile.

    Args:
        newer: made by ``RowSchema.evolve`` or ``merged_schema`` from the version before it.

    Raises:
        NotFoundError: UNKNOWN_TOPIC_OR_PARTITION: the topic was deleted; nothing was decided.
        OutcomeUnknownError: REPLOG_COMMIT_OUTCOME_UNKNOWN: repeat it to learn the outcome.
        RetriableError: REPLOG_NO_QUORUM, REPLOG_LEDGER_BUSY: nothing was decided.
    """
    command = encode_command(SchemaEvolve(topic_id, newer.version, newer))

    def is_open(state: TopicLedgerState) -> bool | None:
        """Return whether it may be decided; None: it was."""
        versions = live_topic(state, topic_id).schemas
        if len(versions) >= newer.version:
            return None if versions[newer.version - 1] == newer else False
        return len(versions) == newer.version - 1

    # Another command of the same entry may come first: then the fold refuses this one, and the next look says why.
    ledger.append(lambda state: command if is_open(state) else None, timeout_ms=timeout_ms)
    return ledger.ask(is_open) is None


def overtaken(name: str, path: str, newest: RowSchema, base_version: int) -> ReplogError:
    """Return the error for a change whose base is not the newest version any more: INVALID_UPDATE_VERSION."""
    return ReplogError(
        ErrorCode.INVALID_UPDATE_VERSION,
        f"this change of the schema of topic '{name}' is based on version {base_version}, and another program has made"
        f" version {newest.version}: {newest.ddl}. Nothing was changed. Make the change to that one; it is shown by"
        f" {command_line(path, 'topic', 'schema', 'show', name)}.",
        topic=name,
        version=newest.version,
    )


def merge_schema(
    cluster: Cluster,
    topic: str,
    given: pa.Schema,
    *,
    principal: str | None = None,
    is_case_sensitive: bool = True,
    leave_out: Collection[str] = (),
    timeout_ms: int = 60_000,
) -> RowSchema:
    """Return the newest version of a topic's schema, which holds an input's columns; if need be it is decided here.

    Without a need it costs one look at the topic's ledger and writes nothing. A lost race is computed again from the
    winner's version, so that two programs that add different columns both succeed.

    Args:
        given: the input's columns; see ``merged_schema``, also for ``is_case_sensitive`` and ``leave_out``.
        principal: who asks; None: see ``default_principal``. A change needs ALTER_CONFIGS on the topic.

    Raises:
        InvalidConfigError: REPLOG_INVALID_SCHEMA: the topic's rows are bytes, or no version can hold both; nothing was
            changed.
        AuthorizationError: TOPIC_AUTHORIZATION_FAILED: a change is needed and not allowed.
        NotFoundError: UNKNOWN_TOPIC_OR_PARTITION.
        ReplogError: as ``decide_schema``; call again.
    """
    handle = cluster.newest_topics([topic])[topic]
    ledger, _ = cluster.folded_topic(handle)
    for _ in range(RACES_MAX):
        newest = newest_schema(ledger, handle.topic_id)
        wanted = merged_schema(newest, given, is_case_sensitive=is_case_sensitive, leave_out=leave_out)
        if wanted is newest:
            return newest
        Authorizer(cluster, principal).require(AclOperation.ALTER_CONFIGS, ResourceType.TOPIC, topic)
        if decide_schema(ledger, handle.topic_id, wanted, timeout_ms):
            return newest_schema(ledger, handle.topic_id)
    raise RetriableError(
        ErrorCode.INVALID_UPDATE_VERSION,
        f"other programs changed the schema of topic '{topic}' each time before this change. Nothing of it was decided."
        " Repeat it.",
        topic=topic,
    )


def checked_evolution(
    name: str,
    path: str,
    versions: Sequence[RowSchema],
    schema: pa.Schema | str | RowSchema,
    key: Sequence[str] | None = None,
    from_version: int | None = None,
) -> RowSchema:
    """Return the version that a change asks for: the next one, or the one that has these columns already. Pure.

    Args:
        versions: of the topic, 1 to N.
        schema: all columns afterwards.
        key: key columns, which must be the topic's; None: those of ``schema`` if it has some, else the topic's.
        from_version: the version that the change was made from; None: the newest.

    Raises:
        InvalidConfigError: REPLOG_INVALID_SCHEMA: older rows may not fit, or the key differs.
        ReplogError: INVALID_UPDATE_VERSION: ``from_version`` is not the newest, and the next one has other columns.
    """
    newest = versions[-1]
    if key is None:
        key = (isinstance(schema, RowSchema) and schema.key) or newest.key
    newer = RowSchema.of(schema, key)
    base = newest.version if from_version is None else from_version
    if not 1 <= base <= newest.version:
        raise InvalidConfigError(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"the schema of topic '{name}' has no version {base}, its newest is {newest.version}. Give that one, or"
            " leave it out.",
            topic=name,
        )
    made = versions[min(base, len(versions) - 1)]  # the newest, or the next one of its base
    if (made.ddl, made.key) == (newer.ddl, newer.key):
        return made
    if base != newest.version:
        raise overtaken(name, path, newest, base)
    return newest.evolve(newer)
