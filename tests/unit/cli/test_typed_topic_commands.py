"""``replog`` on typed topics: created with a schema, described with it, consumed as JSON."""

from __future__ import annotations

import json
from decimal import Decimal

import pytest

import spark_replog

DDL = "id BIGINT NOT NULL, amount DECIMAL(12,2), raw BINARY, tags ARRAY<STRING>"


@pytest.fixture
def store(tmp_path, replog):
    path = tmp_path / "store"
    assert replog("-s", path, "init", "--no-fsync").exit_code == 0
    return path


def test_a_typed_topic_is_created_described_and_consumed(store, replog):
    made = replog("-s", store, "topic", "create", "orders", "-p", 2, "--schema", DDL.lower(), "--key", "id")
    assert made.exit_code == 0
    assert DDL in made.out
    (item,) = replog("-s", store, "topic", "describe", "orders", "-f", "json").items
    assert (item["schema"], item["schemaVersion"], item["key"]) == (DDL, 1, ["id"])
    text = replog("-s", store, "topic", "describe", "orders").out
    assert f"schema version 1, key id: {DDL}" in text
    with spark_replog.open(str(store)).producer() as producer:
        producer.send("orders", {"id": 7, "amount": Decimal("1.50"), "raw": b"\xff", "tags": ["a", None]})
    expected = {"id": 7, "amount": "1.50", "raw": "/w==", "tags": ["a", None]}
    assert json.loads(replog("-s", store, "consume", "orders").out) == expected
    (record,) = replog("-s", store, "consume", "orders", "-f", "json").items
    assert record["value"] == expected
    assert replog("-s", store, "consume", "orders", "--grep", '"id":8').out == ""
    assert '"id":7' in replog("-s", store, "consume", "orders", "--output", "%s\\n").out


def test_topics_of_bytes_have_no_schema(store, replog):
    replog("-s", store, "topic", "create", "notes")
    (item,) = replog("-s", store, "topic", "describe", "notes", "-f", "json").items
    assert (item["schema"], item["schemaVersion"], item["key"]) == (None, None, None)
    assert "schema" not in replog("-s", store, "topic", "describe", "notes").out


@pytest.mark.parametrize(
    ("words", "facts"),
    [
        (["--schema", "id VARCHAR(3)"], ["REPLOG_INVALID_SCHEMA", "VARCHAR", "STRING"]),
        (["--schema", "id INT", "--key", "ID"], ["REPLOG_INVALID_SCHEMA", "'ID'", "'id'"]),
        (["--key", "id"], ["REPLOG_INVALID_SCHEMA", "without a schema"]),
        (["--schema", "id INT", "-c", "cleanup.policy=compact"], ["POLICY_VIOLATION", "cleanup.policy"]),
    ],
)
def test_a_schema_that_cannot_be_is_refused_before_anything_is_made(store, replog, words, facts):
    answer = replog("-s", store, "topic", "create", "orders", *words)
    assert answer.exit_code == 1
    assert all(fact in answer.out + answer.err for fact in facts), answer.out
    assert replog("-s", store, "topic", "list", "-f", "json").items == []
    checked = replog("-s", store, "topic", "create", "orders", "--validate-only", "--schema", "id INT")
    assert checked.exit_code == 0
