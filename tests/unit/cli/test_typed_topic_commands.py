"""``replog`` on typed topics: created with a schema, described with it, consumed as JSON and as tables."""

from __future__ import annotations

import json
import re
from decimal import Decimal

import pytest

import spark_replog
from spark_replog.cli import consume
from spark_replog.cli.output import OutputError
from spark_replog.errors import ErrorCode

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


@pytest.fixture
def filled(store, replog):
    """Two typed topics with rows, and one of bytes."""
    replog("-s", store, "topic", "create", "orders", "--schema", f"{DDL}, note STRING", "--key", "id")
    replog("-s", store, "topic", "create", "visits", "--schema", "id BIGINT, ok BOOLEAN")
    replog("-s", store, "topic", "create", "notes")
    with spark_replog.open(str(store)).producer() as producer:
        for number in range(3):
            tags = ["a", None] if number else None
            note = ["two words", "\x1b[2Jevil", None][number]
            producer.send("orders", {"id": 1000 + number, "amount": Decimal(number), "tags": tags, "note": note})
        producer.send("visits", {"id": 7, "ok": True})
        producer.send("notes", b"bytes")
    return store


TABLE = r"""
id    amount  raw   tags        note
1000  0.00    NULL  NULL        two words
1001  1.00    NULL  ["a",null]  '\x1b[2Jevil'
1002  2.00    NULL  ["a",null]  NULL
""".lstrip()


def test_a_person_sees_typed_rows_as_a_table_and_a_program_json(filled, replog, monkeypatch):
    assert replog("-s", filled, "consume", "orders", "--output", "table").out == TABLE
    assert [json.loads(line)["id"] for line in replog("-s", filled, "consume", "orders").out.splitlines()] == [
        1000, 1001, 1002,
    ]  # fmt: skip
    monkeypatch.setattr(consume, "is_terminal", lambda _stream: True)
    assert replog("-s", filled, "consume", "orders").out == TABLE
    assert replog("-s", filled, "consume", "notes").out == "bytes\n"
    assert replog("-s", filled, "consume", "orders", "--output", "values", "-n", 1).out.startswith('{"id":1000')
    followed = replog("-s", filled, "consume", "orders", "--from-beginning", "--follow", "-n", 1).out
    assert followed.startswith('{"id":1000')
    (record,) = replog("-s", filled, "consume", "orders", "-n", 1, "-f", "json").items
    assert record["value"]["amount"] == "0.00"
    some = replog(
        "-s", filled, "consume", "orders", "-o", 1, "--grep", "two|evil", "--columns", "note,id", "--print-offset"
    )
    assert some.out == "OFFSET  note           id\n1       '\\x1b[2Jevil'  1001\n"
    assert replog("-s", filled, "consume", "orders", "--key", 1002, "--columns", "id").out == "id\n1002\n"
    assert "1001" in replog("-s", filled, "tail", "orders", "--no-follow", "--key", 1001).out
    assert replog("-s", filled, "consume", "orders", "--key", "x").exit_code == 2
    both = replog("-s", filled, "consume", "visits", "notes", "--output", "table").out
    pages = {"TOPIC   id  ok\nvisits  7   true\n", "TOPIC  VALUE\nnotes  bytes\n"}
    assert {both[: len(page)] for page in pages} & pages and {both[-len(page) :] for page in pages} & pages


def test_only_rows_that_were_printed_are_committed(filled, replog, monkeypatch):
    monkeypatch.setattr(consume, "_PAGE_ROWS", 2)
    real, pages = consume.show, []

    def show(text, **how):
        pages.append(text)
        if len(pages) == 2:
            raise OutputError(ErrorCode.REPLOG_ENVIRONMENT, "the disk is full. Make room.")
        real(text, **how)

    monkeypatch.setattr(consume, "show", show)
    words = ("-s", filled, "consume", "orders", "-g", "readers", "-p", 0, "--output", "table")
    assert replog(*words).exit_code == 1
    monkeypatch.setattr(consume, "show", real)
    assert [line.split()[0] for line in replog(*words).out.splitlines()] == ["id", "1000", "1001", "id", "1002"]
    assert replog(*words).out == ""


def test_columns_and_tables_that_cannot_be_are_refused(filled, replog):
    for words, said in (
        (["orders", "--columns", "id,nope"], "nope.*id, amount"),
        (["notes", "--columns", "id"], "notes.*bytes"),
        (["orders", "--output", "table", "--follow"], "--follow"),
    ):
        answer = replog("-s", filled, "consume", *words)
        assert (answer.exit_code, answer.out) == (2, "")
        assert re.search(said, answer.err)
