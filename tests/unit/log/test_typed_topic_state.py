"""The fold of typed topics: which objects fit, versions of a schema, and snapshots."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_replog.errors import CorruptDataError, ErrorCode
from spark_replog.log.codec.commands import decode_command, encode_command
from spark_replog.log.fold.topic_state import TopicLedgerState
from spark_replog.log.model import Outcome, SchemaEvolve, TopicInit
from spark_replog.log.row_schema import RowSchema
from tests.unit.log import conftest as kit

SCHEMA = RowSchema("id INT, x STRING", ("id",))
TYPED = "ef" * 16


@pytest.fixture
def log():
    made = kit.Log(topics=((kit.TOPIC, "bytes"),))
    made.entry(TopicInit(TYPED, "typed", ((0, 1, 2),) * 2, (), SCHEMA))
    return made


def appended(log, rows, version, sequence):
    append = kit.append(rows, sequence)
    objects = tuple(replace(item, schema_version=version) for item in append.objects)
    return log.one(replace(append, objects=objects))


@pytest.mark.parametrize(
    ("rows", "version", "outcome"),
    [
        ({(TYPED, 0): 3}, 1, Outcome.APPLIED),
        ({(TYPED, 0): 3, (TYPED, 1): 1}, 1, Outcome.APPLIED),
        ({(TYPED, 0): 3}, 0, Outcome.INVALID),  # bytes of a release that knows no schemas
        ({(TYPED, 0): 3}, 2, Outcome.INVALID),
        ({(kit.TOPIC, 0): 3}, 0, Outcome.APPLIED),
        ({(kit.TOPIC, 0): 3}, 1, Outcome.INVALID),
        ({(kit.TOPIC, 0): 3, (TYPED, 0): 1}, 1, Outcome.INVALID),
        ({(kit.TOPIC, 0): 3, (TYPED, 0): 1}, 0, Outcome.INVALID),
    ],
)
def test_an_object_names_a_version_that_its_topic_has(log, rows, version, outcome):
    assert appended(log, rows, version, 0).outcome is outcome
    ends = log.ends(TYPED) if any(topic == TYPED for topic, _ in rows) else log.ends(kit.TOPIC)
    assert (sum(ends) > 0) == (outcome is Outcome.APPLIED)


def test_typed_rows_of_two_topics_share_no_object(log):
    log.entry(TopicInit(kit.OTHER, "typed-2", ((0, 1, 2),), (), SCHEMA))
    assert appended(log, {(TYPED, 0): 1, (kit.OTHER, 0): 1}, 1, 0).outcome is Outcome.INVALID


def test_of_two_that_evolve_at_once_one_wins(log):
    first = SchemaEvolve(TYPED, 2, RowSchema("id INT, x STRING, y INT", ("id",)))
    second = SchemaEvolve(TYPED, 2, RowSchema("id INT, x STRING, z INT", ("id",)))
    assert log.one(first).outcome is Outcome.APPLIED
    lost = log.one(second)
    assert (lost.outcome, lost.error_code) == (Outcome.REFUSED, ErrorCode.INVALID_UPDATE_VERSION)
    assert log.one(first).outcome is Outcome.EXISTS
    topic = log.state.topics[TYPED]
    assert [schema.version for schema in topic.schemas] == [1, 2]
    assert topic.schema.names == ["id", "x", "y"]
    assert topic.rows_of(1) == SCHEMA
    assert topic.rows_of(0) is None


@pytest.mark.parametrize(
    ("topic", "schema", "code"),
    [
        (TYPED, RowSchema("id INT", ("id",)), ErrorCode.REPLOG_INVALID_SCHEMA),
        (TYPED, RowSchema("id INT, x STRING"), ErrorCode.REPLOG_INVALID_SCHEMA),
        (kit.TOPIC, RowSchema("id INT"), ErrorCode.REPLOG_INVALID_SCHEMA),
        ("99" * 16, RowSchema("id INT"), None),
    ],
)
def test_a_version_that_does_not_follow_changes_nothing(log, topic, schema, code):
    answer = log.one(SchemaEvolve(topic, 2, schema))
    assert answer.outcome in (Outcome.REFUSED, Outcome.UNKNOWN_TOPIC)
    assert answer.error_code is code
    assert log.state.topics[TYPED].schemas == (SCHEMA,)


def test_a_snapshot_keeps_schemas_and_the_versions_of_objects(log):
    appended(log, {(TYPED, 0): 2}, 1, 0)
    log.entry(SchemaEvolve(TYPED, 2, RowSchema("id INT, x STRING, y INT", ("id",))))
    appended(log, {(TYPED, 0): 1}, 2, 1)
    restored = TopicLedgerState("L")
    restored.restore(log.state.freeze().head, lambda name: b"")
    for state in (log.state, restored):
        assert [schema.ddl for schema in state.topics[TYPED].schemas] == [
            "id INT NOT NULL, x STRING", "id INT NOT NULL, x STRING, y INT",
        ]  # fmt: skip
        assert [row.object.schema_version for row in state.sections(TYPED, 0, 0, 9)] == [1, 2]
        assert state.topics[kit.TOPIC].schema is None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"INT NOT NULL", b"INT  NOT NUL"),
        (b"x STRING", b"x string"),
        (b"x STRING", b"id TRING"),
        (b"STRING", b"STRIN\xff"),
    ],
)
def test_a_schema_that_no_release_writes_is_damage(old, new):
    data = encode_command(TopicInit(TYPED, "typed", ((0,),), (), SCHEMA))
    assert decode_command(data).schema == SCHEMA
    assert data.count(old) == 1
    with pytest.raises(CorruptDataError):
        decode_command(data.replace(old, new))
