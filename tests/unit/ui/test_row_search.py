"""Rows by offset, time, key and column: the cost is known before a row is read, is exact, and keeps to the budget."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pyarrow as pa
import pytest

import spark_replog
from spark_replog.errors import DataLossError, ErrorCode, InvalidConfigError
from spark_replog.ui import row_search
from spark_replog.ui.row_search import RowFinder, RowSearch
from spark_replog.ui.views import CELL_BYTES_MIN, VALUE_BYTES_MAX, _cells_items, shown_bytes
from tests.unit.client.consumer_setup import Store, rows
from tests.unit.ui.console_client import ConsoleClient

T0 = 1_700_000_000_000


@pytest.fixture
def store(tmp_path):
    made = Store.init(str(tmp_path / "store"), 1)
    made.create("orders", 2)
    for batch in range(10):
        keys = [b"a" if number % 5 == 0 else b"b" for number in range(10)]
        times = [T0 + batch * 1000 + number for number in range(10)]
        made.write("orders", rows(10, batch * 10), keys=keys, times_ms=times)
    return made


def offsets(result):
    return result.rows.column("offset").to_pylist()


def search(store, **given):
    result = RowFinder(store.cluster).read(RowSearch("orders", **{"partition": 0, **given}))
    assert result.read_bytes == result.plan.cost_bytes
    return result


def test_rows_from_an_offset_cost_their_sections(store):
    result = search(store, begin="offset", at=15, row_count=10)
    assert offsets(result) == list(range(15, 25)) and len(result.plan.slices) == 2 and not result.plan.is_cut
    assert offsets(search(store, begin="offset", at=98, row_count=10)) == [98, 99]
    assert offsets(search(store, begin="offset", at=10**12)) == []


def test_the_newest_rows_come_last_first(store):
    assert offsets(search(store, row_count=3)) == [99, 98, 97]
    assert offsets(search(store, row_count=500)) == list(range(99, -1, -1))


def test_rows_from_a_time_begin_there(store):
    assert offsets(search(store, begin="time", at=T0 + 3005, row_count=3)) == [35, 36, 37]
    assert offsets(search(store, begin="time", at=T0 + 4000, row_count=500))[0] == 40
    assert offsets(search(store, begin="time", at=T0 + 10**9)) == []
    assert len(search(store, begin="time", at=T0 + 3005, row_count=3).plan.slices) == 2


def test_rows_of_a_key_are_found_forwards_and_backwards(store):
    assert offsets(search(store, key=b"a", row_count=3)) == [95, 90, 85]
    assert offsets(search(store, key=b"a", begin="offset", at=1, row_count=3)) == [5, 10, 15]
    assert offsets(search(store, key=b"none")) == []


def test_a_key_without_a_partition_is_looked_for_where_the_hash_puts_it(store):
    from spark_replog.write.partitioner import partition_of

    (span,) = RowFinder(store.cluster).plan(RowSearch("orders", key=b"a")).spans
    assert span.partition == partition_of(b"a", 2)
    assert [other_span.partition for other_span in RowFinder(store.cluster).plan(RowSearch("orders")).spans] == [0, 1]


@pytest.mark.parametrize("begin", ["offset", "newest"])
def test_a_search_ends_at_its_budget_and_says_so(store, begin):
    sizes = [piece.size_bytes for piece in RowFinder(store.cluster).plan(RowSearch("orders", 0, row_count=500)).slices]
    budget_bytes = 3 * max(sizes)
    result = search(store, begin=begin, row_count=500, budget_bytes=budget_bytes)
    assert result.read_bytes == sum(sizes[:3] if begin == "offset" else sizes[-3:]) and result.plan.is_cut
    assert sorted(offsets(result)) == list(range(30) if begin == "offset" else range(70, 100))
    by_key = search(store, begin=begin, key=b"a", budget_bytes=budget_bytes)
    assert by_key.plan.is_cut and by_key.read_bytes <= budget_bytes and 4 <= by_key.rows.num_rows <= 6
    with pytest.raises(InvalidConfigError, match="no section fits the budget"):
        RowFinder(store.cluster).plan(RowSearch("orders", 0, begin, budget_bytes=min(sizes) - 1))


def test_a_plan_adds_up_its_sections_once_however_many_do_not_fit(tmp_path, monkeypatch):
    """Under the ledger's lock: 26,000 small sections took ten seconds."""
    made = Store.init(str(tmp_path / "many"), 1)
    made.create("orders")
    for batch in range(60):
        made.write("orders", rows(1, batch), keys=[b"k"])
    whole = RowFinder(made.cluster).plan(RowSearch("orders", 0, key=b"k"))
    calls, cost = [], row_search.cost_of
    monkeypatch.setattr(row_search, "cost_of", lambda slices: calls.append(1) or cost(slices))
    for begin in ("newest", "offset"):
        calls.clear()
        plan = RowFinder(made.cluster).plan(
            RowSearch("orders", 0, begin, key=b"k", budget_bytes=whole.cost_bytes // 10 + 1)
        )
        assert (plan.is_cut, len(plan.slices)) == (True, 6)
        assert plan.spans[0].start == (54 if begin == "newest" else 0)
        assert len(calls) <= 2


def test_a_plan_reads_no_row(store):
    counted = store.count_calls()
    RowFinder(store.cluster).plan(RowSearch("orders", 0, "time", T0 + 3005, b"a"))
    assert not [key for counter in counted.values() for verb, key in counter.calls if "/data/" in key]


def test_a_plan_of_objects_that_compaction_replaced_is_made_again(store, monkeypatch):
    finder, plans = RowFinder(store.cluster), []
    read = finder._read

    def read_late(search, plan):
        plans.append(plan)
        if len(plans) == 1:
            raise DataLossError(ErrorCode.REPLOG_DATA_LOSS, "the object is gone.")
        return read(search, plan)

    monkeypatch.setattr(finder, "_read", read_late)
    assert finder.read(RowSearch("orders", 0, row_count=2)).rows.num_rows == 2 and len(plans) == 2


def test_all_partitions_are_merged_by_time(store):
    store.write("orders", rows(2), partition=1, times_ms=[T0 + 9005, T0 + 99_000])
    answer = ConsoleClient(store).enter().get("rows", topic="orders", count=6)
    assert [(row["partition"], row["offset"]) for row in answer["rows"]][:2] == [(1, 1), (0, 99)]
    assert len(answer["rows"]) == 6 and answer["readBytes"] == answer["costBytes"]


def test_a_search_goes_on_where_it_stopped(store):
    console, at, seen = ConsoleClient(store).enter(), 0, []
    while at is not None:
        answer = console.get("rows", topic="orders", partition=0, begin="offset", at=at, count=37)
        seen += [row["offset"] for row in answer["rows"]]
        at = answer["next"]
    assert seen == list(range(100))


def test_rows_that_are_gone_are_passed_over(store):
    from spark_replog.admin.controller import Controller

    Controller(store.cluster).delete_records("orders", {0: 42})
    assert offsets(search(store, begin="offset", at=0, row_count=2)) == [42, 43]


HOSTILE = "<img src=x onerror=alert(1)><script>alert(1)</script>"


def test_hostile_bytes_are_shown_and_never_acted_on(store):
    values = [
        HOSTILE.encode(),
        b"\x1b[2J\x07",
        "\u202etxt.exe".encode(),
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"a":NaN,"b":"\x7f"}',
        None,
    ]
    store.write("orders", values, partition=1, keys=[b"\x00\xff", *[None] * 6], headers=[[("\u2066<b>", b"\xff")]] * 7)
    answer = ConsoleClient(store).enter().http.get("/api/rows?topic=orders&partition=1&begin=offset&at=0")
    assert answer.headers["content-type"] == "application/json" and answer.text.isascii()
    assert (
        "\x1b" not in answer.text
        and "\x07" not in answer.text
        and "\\u202e" not in answer.text.replace("\\\\u202e", "")
    )
    shown = [row["value"] for row in answer.json()["rows"]]
    assert [value and value["form"] for value in shown] == ["text", "text", "text", "hex", "text", "json", None]
    assert shown[0]["text"] == HOSTILE and shown[1]["text"] == "\\x1b[2J\\x07" and shown[3]["text"] == "ff fe"
    assert shown[4] == {"size": 100_000, "isCut": True, "form": "text", "text": "[" * VALUE_BYTES_MAX}
    assert answer.json()["rows"][0]["key"]["text"] == "00 ff"
    assert answer.json()["rows"][0]["headers"] == [
        ["\\u2066<b>", {"size": 1, "isCut": False, "form": "hex", "text": "ff"}]
    ]


def test_json_is_laid_out_and_keeps_what_was_stored():
    shown = shown_bytes(b'{"n":12345678901234567890123,"n":1.10}')
    assert json.loads(shown["text"]) == {"n": 1.1} and shown["raw"] == '{"n":12345678901234567890123,"n":1.10}'
    assert shown_bytes(b"[" * 10_000)["form"] == "text" and shown_bytes(b'{"a"')["form"] == "text"
    # Laid out, each number of this value would be on a line of its own, behind 1,800 blanks.
    deep = b"[" * 900 + b"1," * 30_000 + b"1" + b"]" * 900
    assert shown_bytes(deep) == {"size": len(deep), "isCut": False, "form": "text", "text": deep.decode()}
    assert shown_bytes(b"") == {"size": 0, "isCut": False, "form": "text", "text": ""}
    assert shown_bytes("\u00e9".encode() * VALUE_BYTES_MAX)["form"] == "text"


DDL = (
    "id BIGINT, name STRING, amount DECIMAL(6,2), at TIMESTAMP, raw BINARY, "
    "place STRUCT<x: DOUBLE, tags: ARRAY<STRING>>"
)


@pytest.fixture
def typed(store):
    """Topic sales: rows of two versions of its columns, in three partitions, and the store's console."""
    replog = spark_replog.open(store.path)
    replog.admin().create_topic("sales", 3, schema=DDL, key=["id"])

    def row(number):
        place = {"x": number / 2, "tags": [f"t{number % 3}", None]} if number % 2 else None
        at = datetime(1960, 1, 1, tzinfo=UTC) + timedelta(days=number)
        name = [None, "null", HOSTILE][number % 3]
        return {"id": number, "name": name, "amount": Decimal(number), "at": at, "raw": b"\xff\0", "place": place}

    with replog.producer() as producer:
        for number in range(20):
            producer.send("sales", row(number))
    replog.admin().evolve_schema("sales", f"{DDL}, note STRING".replace("6,2", "9,2"))
    with replog.producer() as producer:
        producer.send("sales", row(20) | {"note": '{"a": 1}'}, headers=[("h", b"x")])
    return ConsoleClient(store).enter()


def ids(answer):
    return sorted(int(row["cells"][0]["text"]) for row in answer["rows"])


def test_typed_rows_are_shown_by_column_and_a_null_is_null(typed):
    answer = typed.get("rows", topic="sales", count=100)
    assert ids(answer) == list(range(21))
    columns = {item["column"]: at for at, item in enumerate(answer["columns"])}
    assert [answer["columns"][at]["type"] for at in (0, 2)] == ["BIGINT", "DECIMAL(9,2)"]
    assert [item["column"] for item in answer["columns"] if item["key"]] == ["id"]
    by_id = {int(row["cells"][0]["text"]): row for row in answer["rows"]}
    shown = {name: by_id[20]["cells"][at] and by_id[20]["cells"][at]["text"] for name, at in columns.items()}
    assert shown == {
        "id": "20", "name": HOSTILE, "amount": "20.00", "at": "1960-01-21T00:00:00+00:00", "raw": "ff 00",
        "place": None, "note": '{\n  "a": 1\n}',
    }  # fmt: skip
    assert by_id[20]["headers"][0][0] == "h"
    older = by_id[1]["cells"]
    assert (older[columns["note"]], by_id[0]["cells"][columns["name"]]) == (None, None)
    assert (older[columns["name"]]["text"], older[columns["amount"]]["text"]) == ("null", "1.00")
    assert older[columns["place"]]["raw"] == '{"x":0.5,"tags":["t1",null]}'


def test_typed_rows_are_found_by_the_value_of_a_column_or_by_their_text(typed):
    for column, value, expected in (
        ("id", "7", [7]),
        ("amount", "7", [7]),
        ("at", "1960-01-08T01:00:00+01:00", [7]),
        ("name", "null", [1, 4, 7, 10, 13, 16, 19]),
        ("raw", "/wA=", list(range(21))),
        ("place", '"t2"', [5, 11, 17]),
        ("note", "nothing", []),
        (None, '"id":7,', [7]),
    ):
        words = {"topic": "sales", "value": value, **({"column": column} if column else {})}
        for begin in ("newest", "offset"):
            answer = typed.get("rows", **words, begin=begin, at=0)
            assert (ids(answer), answer["isCut"]) == (expected, False), column
            assert answer["partitionCount"] == (1 if column == "id" else 3)


def test_a_search_that_a_topic_cannot_answer_is_refused(typed):
    for words, said in (
        ({"topic": "sales", "key": "7"}, "a column"),
        ({"topic": "sales", "value": "x", "column": "id"}, r"'x'.*'id' BIGINT"),
        ({"topic": "sales", "value": "1", "column": "nope"}, r"'nope'.*id, name"),
        ({"topic": "orders", "value": "1"}, "no columns"),
    ):
        assert typed.refused("rows/plan", **words) == (400, "INVALID_REQUEST")
        assert re.search(said, typed.http.get("/api/rows", params=words).json()["message"])


def test_the_page_of_a_typed_topic_has_its_columns_and_what_changed(typed):
    page = typed.get("topic", name="sales")
    assert (page["schemaVersion"], page["key"]) == (2, ["id"]) and "amount DECIMAL(9,2)" in page["schema"]
    (change,) = page["schemaHistory"]
    assert change["version"] == 2 and any("note STRING is added" in words for words in change["changes"])
    bytes_page = typed.get("topic", name="orders")
    assert (bytes_page["schema"], bytes_page["columns"], bytes_page["schemaHistory"]) == (None, None, [])


def test_a_row_of_many_columns_is_shown_in_part():
    text = pa.array(["x" * VALUE_BYTES_MAX], pa.string())
    table = pa.table({f"c{number}": text for number in range(400)})
    (item,) = _cells_items(table)
    assert {(cell["isCut"], len(cell["text"])) for cell in item["cells"]} == {(True, CELL_BYTES_MIN)}
