"""Files and typed topics: ``produce``, ``topic create --schema-from`` and ``topic schema``."""

from __future__ import annotations

import io
import json
import sys
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pyarrow as pa
import pytest
from pyarrow import parquet

import spark_replog
from spark_replog.log import rows_of_text

DDL = (
    "id BIGINT NOT NULL, amount DECIMAL(12,2), at TIMESTAMP, local TIMESTAMP_NTZ, day DATE, ok BOOLEAN, x DOUBLE,"
    " raw BINARY, took INTERVAL DAY TO SECOND, small TINYINT, note STRING"
)
NESTED = "id BIGINT NOT NULL, tags ARRAY<STRING>, place STRUCT<x: INT, y: DECIMAL(5,2)>, counts MAP<INT, BIGINT>"


@pytest.fixture
def store(tmp_path, replog, monkeypatch):
    path = str(tmp_path / "store")
    assert replog("-s", path, "init", "--brokers", "1", "--no-fsync").exit_code == 0
    assert replog("-s", path, "topic", "create", "orders", "--schema", DDL, "--key", "id").exit_code == 0
    assert replog("-s", path, "topic", "create", "nested", "--schema", NESTED, "--key", "id").exit_code == 0
    monkeypatch.setenv("REPLOG_STORE", path)
    return path


def rows_of(store, topic="orders"):
    return spark_replog.open(store).topic(topic).scan().to_arrow().to_pylist()


def write(path, text):
    path.write_text(text)
    return path


FULL = {
    "id": 7, "amount": Decimal("1.10"), "at": datetime(2024, 1, 1, tzinfo=UTC), "local": datetime(2024, 1, 1, 12),
    "day": date(1969, 12, 31), "ok": True, "x": 0.5, "raw": b"\xff\x00", "took": timedelta(microseconds=1_500_000),
    "small": -128, "note": "",
}  # fmt: skip


def test_csv_is_read_as_the_types_of_the_columns(store, replog, tmp_path):
    name = write(tmp_path / "in.csv", (
        "\ufeffnote,id,amount,at,local,day,ok,x,raw,took,small\n"
        '"",7,1.1,2024-01-01 02:00:00+02:00,2024-01-01 12:00:00,1969-12-31,true,0.5,/wA=,1.5,-128\n'
        ",8,,2024-01-01T00:00:00,,,,,,,\n"
        "007,9,,,,,,NaN,,,\n"
    ))  # fmt: skip
    answer = replog("produce", "orders", name, "-f", "json")
    assert answer.exit_code == 0, answer.out
    rows = {row["id"]: row for row in rows_of(store)}
    assert rows[7] == FULL
    assert rows[8] == {**dict.fromkeys(FULL), "id": 8, "at": datetime(2024, 1, 1, tzinfo=UTC)}
    assert rows[9]["note"] == "007"


def test_json_lines_are_read_as_the_types_of_the_columns(store, replog, tmp_path):
    name = write(tmp_path / "in.jsonl", (
        '\ufeff{"id": 7, "amount": 1.10, "at": "2024-01-01T02:00:00+02:00", "local": "2024-01-01 12:00:00",\r'
        '"note": "", "day": "1969-12-31", "ok": true, "x": 0.5, "raw": "/wA=", "took": "1.5",\r'
        '"small": -128}\n'.replace("\r", " ")
        + '\n{"id": 8, "amount": "2.20", "x": "Infinity", "note": null}\n'
    ))  # fmt: skip
    assert replog("produce", "orders", name).exit_code == 0
    rows = {row["id"]: row for row in rows_of(store)}
    assert rows[7] == FULL
    assert rows[8] == {**dict.fromkeys(FULL), "id": 8, "amount": Decimal("2.20"), "x": float("inf")}


def test_nested_json_round_trips_through_consume(store, replog, tmp_path, monkeypatch):
    line = '{"id": 1, "tags": ["a", null], "place": {"x": 1, "y": 1.25}, "counts": {"3": 4}}'
    assert replog("produce", "nested", write(tmp_path / "in.json", line), "-H", "h=1", "-p", "0").exit_code == 0
    before = rows_of(store, "nested")
    assert before == [{"id": 1, "tags": ["a", None], "place": {"x": 1, "y": Decimal("1.25")}, "counts": [(3, 4)]}]
    told = replog("consume", "nested", "-n", "1", "-f", "jsonl", "--from-beginning").out
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(told.encode())))
    assert replog("produce", "nested", "--input", "jsonl").exit_code == 0
    assert rows_of(store, "nested") == before * 2
    columns = ["_replog_timestamp", "_replog_headers"]
    first, second = spark_replog.open(store).topic("nested").scan(columns=columns).to_arrow().to_pylist()
    assert first == second
    assert first["_replog_headers"] == [{"key": "h", "value": b"1"}]


BAD_LINES = [
    ("in.csv", "id,amount\n1,1.10\n2,1.999\n", ["Row 2", "'amount'", "DECIMAL(12,2)", "1.999"]),
    ("in.csv", "id,day\n1,2024-02-30\n", ["Row 1", "'day'", "2024-02-30"]),
    ("in.csv", "id,small\n1,128\n", ["Row 1", "'small'", "TINYINT", "128"]),
    ("in.csv", "id,ok\n1,yes\n", ["'ok'", "BOOLEAN", "yes"]),
    ("in.csv", "id,local\n1,2024-01-01T00:00:00Z\n", ["'local'", "TIMESTAMP_NTZ"]),
    ("in.csv", "id,note\n1,a\n,b\n", ["Row 2", "'id'", "NOT NULL"]),
    ("in.csv", "note\na\n", ["'id'", "NOT NULL"]),
    ("in.csv", "id,other\n1,a\n", ["'other'", "schema"]),
    ("in.csv", "id,Note\n1,a\n", ["'Note'", "'note'"]),
    ("in.csv", "id,id\n1,2\n", ["'id'", "more than one"]),
    ("in.jsonl", '{"id": 1}\n{"id": 2, "amount": 1.999}\n', ["Line 2", "'amount'", "DECIMAL(12,2)", "1.999"]),
    ("in.jsonl", '{"id": "1"}\n', ["Line 1", "'id'", "BIGINT"]),
    ("in.jsonl", '{"id": 1.0}\n', ["Line 1", "'id'"]),
    ("in.jsonl", '{"id": true}\n', ["Line 1", "'id'"]),
    ("in.jsonl", '{"id": 9223372036854775808}\n', ["Line 1", "'id'"]),
    ("in.jsonl", '{"id": 1, "note": 5}\n', ["'note'", "STRING"]),
    ("in.jsonl", '{"id": 1, "at": "2024-01-01T00:00:00.1234567Z"}\n', ["'at'", "microsecond"]),
    ("in.jsonl", '{"id": 1, "at": 5}\n', ["'at'", "ISO 8601"]),
    ("in.jsonl", '{"id": 1, "raw": "?"}\n', ["'raw'"]),
    ("in.jsonl", '\n{"id": null}\n', ["Line 2", "'id'", "NOT NULL"]),
    ("in.jsonl", '{"id": 1, "other": 2}\n', ["Line 1", "'other'"]),
    ("in.jsonl", '{"id": 1}\n[1]\n', ["Line 2", "list"]),
    ("in.jsonl", '{"id": 1}\n{"id": \n', ["Line 2"]),
    ("in.jsonl", '{"id": 1, "x": NaN}\n', ["Line 1", "NaN"]),
]


def test_a_value_that_does_not_fit_is_refused_with_its_place_and_nothing_is_stored(store, replog, tmp_path):
    for file, text, facts in BAD_LINES:
        name = write(tmp_path / file, text)
        answer = replog("produce", "orders", name, "-f", "json")
        (item,) = answer.items
        assert answer.exit_code == 2, (text, answer.out)
        assert item["error"] == "REPLOG_INPUT", (text, item)
        assert all(fact in item["message"] for fact in [file, *facts]), (text, item["message"])
    assert rows_of(store) == []


def test_tables_come_by_name_and_exact_values_may_be_narrowed(store, replog, tmp_path):
    name = str(tmp_path / "in.parquet")
    parquet.write_table(pa.table({"small": [1, 2], "id": pa.array([1, 2], pa.int32()), "x": [1, 2]}), name)
    assert replog("produce", "orders", name).exit_code == 0
    assert sorted((row["id"], row["small"], row["x"]) for row in rows_of(store)) == [(1, 1, 1.0), (2, 2, 2.0)]
    parquet.write_table(pa.table({"id": [3, 4], "small": [1, 300]}), name)
    (item,) = replog("produce", "orders", name, "-f", "json").items
    assert all(fact in item["message"] for fact in ["Row 2", "'small'", "TINYINT", "300"]), item
    parquet.write_table(pa.table({"id": [3], "day": ["2024-01-01"]}), name)
    (item,) = replog("produce", "orders", name, "-f", "json").items
    assert item["error"] == "REPLOG_INVALID_SCHEMA"
    assert len(rows_of(store)) == 2


@pytest.mark.parametrize("flags", [["-k", "id"], ["--value", "id"], ["--typed"], ["--input", "lines"]])
def test_flags_for_bytes_are_refused_for_a_typed_topic(store, replog, tmp_path, flags):
    answer = replog("produce", "orders", write(tmp_path / "in.csv", "id\n1\n"), *flags)
    assert answer.exit_code == 2
    assert "orders is typed" in answer.err


# -- schemas ------------------------------------------------------------------------------------------


def test_a_topic_gets_the_columns_of_a_file_after_they_were_shown(store, replog, tmp_path):
    name = str(tmp_path / "in.parquet")
    parquet.write_table(pa.table({"id": [1], "tags": [["a"]], "word": pa.array(["a"]).dictionary_encode()}), name)
    create = ("topic", "create", "made", "--schema-from", name, "--key", "id")
    answer = replog(*create)
    assert answer.exit_code == 2
    assert "ARRAY<STRING>" in answer.err
    assert "-y" in answer.err
    (item,) = replog(*create, "--validate-only", "-f", "json").items
    assert item["schema"] == "id BIGINT NOT NULL, tags ARRAY<STRING>, word STRING"
    assert [topic["topic"] for topic in replog("topic", "list", "-f", "json").items] == ["nested", "orders"]
    (made,) = replog(*create, "-y", "-f", "json").items
    assert (made["schema"], made["schemaVersion"], made["key"]) == (item["schema"], 1, ["id"])
    assert replog("produce", "made", name).exit_code == 0
    assert replog("topic", "create", "two", "--schema", "a INT", "--schema-from", name).exit_code == 2


@pytest.mark.parametrize(
    ("file", "text", "ddl"),
    [
        (
            "in.csv",
            "id,zip,price,at,day,ok,clock,none\n1,007,1.5,2024-01-01T00:00:00Z,2024-01-01,true,12:00:00,\n",
            "id BIGINT, zip STRING, price DOUBLE, at TIMESTAMP, day DATE, ok BOOLEAN, clock STRING, none STRING",
        ),
        (
            "in.jsonl",
            '{"id": 1, "tags": [], "place": {"x": 1.5, "w": null}}\n{"id": 2, "tags": ["a"]}\n',
            "id BIGINT, tags ARRAY<STRING>, place STRUCT<x: DOUBLE, w: STRING>",
        ),
    ],
)
def test_the_columns_of_text_are_as_its_values_look(store, replog, tmp_path, file, text, ddl):
    name = write(tmp_path / file, text)
    (item,) = replog("topic", "create", "made", "--schema-from", name, "-y", "-f", "json").items
    assert item["schema"] == ddl
    assert replog("produce", "made", name).exit_code == 0


def test_a_file_without_columns_makes_no_topic(store, replog, tmp_path):
    for file, text in (("in.txt", "a\n"), ("in.parquet", "no parquet"), ("in.csv", ""), ("in.jsonl", "{")):
        answer = replog("topic", "create", "made", "--schema-from", write(tmp_path / file, text), "-y")
        assert answer.exit_code == 2, (file, answer)
        assert "REPLOG_INPUT" in answer.err
        assert file in answer.err


def test_a_schema_is_shown_checked_evolved_and_its_history_told(store, replog, tmp_path):
    (shown,) = replog("topic", "schema", "show", "nested", "-f", "json").items
    assert (shown["version"], shown["schema"], shown["key"]) == (1, NESTED, ["id"])
    assert shown["columns"][0] == {"column": "id", "type": "BIGINT", "nullable": False, "key": True}
    wider = write(tmp_path / "wider.jsonl", '{"id": 1, "note": "n"}\n')
    checked = replog("topic", "schema", "check", "nested", wider, "-f", "json")
    assert checked.exit_code == 3
    assert checked.items[0]["changes"] == ["note STRING is added"]
    assert checked.items[0]["missing"] == ["tags", "place", "counts"]
    evolve = ("topic", "schema", "evolve", "nested", "--schema-from", wider)
    (tried,) = replog(*evolve, "--dry-run", "-f", "json").items
    assert (tried["version"], tried["dryRun"]) == (2, True)
    assert replog(*evolve).exit_code == 2, "it asks, and there is no terminal"
    (made,) = replog(*evolve, "-y", "-f", "json").items
    assert (made["version"], made["schema"]) == (2, f"{NESTED}, note STRING")
    (again,) = replog(*evolve, "-y", "-f", "json").items
    assert (again["version"], again["changes"]) == (2, [])
    assert replog("topic", "schema", "check", "nested", wider).exit_code == 0
    newest = f"{NESTED}, note STRING".replace("STRUCT<x: INT", "STRUCT<x: BIGINT")
    assert replog("topic", "schema", "evolve", "nested", "--schema", newest, "--from-version", 2, "-y").exit_code == 0
    (told,) = replog("topic", "schema", "history", "nested", "-f", "json").items
    assert [version["version"] for version in told["versions"]] == [1, 2, 3]
    assert told["versions"][1]["changes"] == ["note STRING is added"]
    assert "becomes" in told["versions"][2]["changes"][0]
    assert replog("topic", "schema", "show", "nested", "--version", 1, "-f", "json").items[0]["schema"] == NESTED
    assert "note STRING is added" in replog("topic", "schema", "history", "nested").out


def test_wrong_changes_of_a_schema_are_told_and_change_nothing(store, replog, tmp_path):
    for flags, code, error in (
        (["--schema", NESTED.replace("tags ARRAY<STRING>, ", "")], 1, "REPLOG_INVALID_SCHEMA"),
        (["--schema", f"{NESTED}, note STRING", "--from-version", 2], 1, "INVALID_UPDATE_VERSION"),
        (["--schema-from", write(tmp_path / "in.jsonl", '{"id": "text", "more": {}}\n')], 0, None),
    ):
        answer = replog("topic", "schema", "evolve", "nested", *flags, "--dry-run", "-f", "json")
        assert answer.exit_code == code, answer.out
        assert answer.items[0].get("error") == error
    for flags in (
        [],
        ["--schema", "id INT", "--schema-from", "x.csv"],
        ["--schema-from", "x.csv", "--from-version", 1],
    ):
        assert replog("topic", "schema", "evolve", "nested", *flags).exit_code == 2
    assert replog("topic", "create", "bytes").exit_code == 0
    (item,) = replog("topic", "schema", "show", "bytes", "-f", "json").items
    assert item["error"] == "REPLOG_INVALID_SCHEMA"
    (item,) = replog("topic", "schema", "show", "nested", "--version", 9, "-f", "json").items
    assert item["ok"] is False
    assert (
        len(json.loads(replog("topic", "schema", "history", "nested", "-f", "json").out)["items"][0]["versions"]) == 1
    )


def test_the_schema_of_a_topic_is_changed_by_who_may_configure_it(store, replog, monkeypatch):
    for right in ("describe", "write"):
        who = ("--allow-principal", "User:etl", "--operation", right, "--topic", "nested", "-y")
        assert replog("acl", "add", *who).exit_code == 0
    monkeypatch.setenv("REPLOG_PRINCIPAL", "User:etl")
    evolve = ("topic", "schema", "evolve", "nested", "--schema", f"{NESTED}, note STRING", "-y", "-f", "json")
    assert replog("topic", "schema", "show", "nested").exit_code == 0
    (item,) = replog(*evolve).items
    assert item["error"] == "TOPIC_AUTHORIZATION_FAILED"
    assert "ALTER_CONFIGS" in item["message"].upper().replace("-", "_")
    monkeypatch.delenv("REPLOG_PRINCIPAL")
    who = ("--allow-principal", "User:etl", "--operation", "alter-configs", "--topic", "nested", "-y")
    assert replog("acl", "add", *who).exit_code == 0
    monkeypatch.setenv("REPLOG_PRINCIPAL", "User:etl")
    assert replog(*evolve).items[0]["version"] == 2


def test_json_lines_are_read_without_a_step_per_row(store, replog, tmp_path, monkeypatch):
    text = "".join(f'{{"id": {number}, "at": "2024-05-06T07:08:09Z", "amount": "1.5"}}\n' for number in range(50))
    monkeypatch.setattr(rows_of_text, "parse_row", lambda line: pytest.fail(f"read by itself: {line}"))
    assert replog("produce", "orders", write(tmp_path / "in.jsonl", text + "\n")).exit_code == 0
    assert sorted(row["id"] for row in rows_of(store)) == list(range(50))
    wanted = (datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC), Decimal("1.50"))
    assert {(row["at"], row["amount"]) for row in rows_of(store)} == {wanted}
