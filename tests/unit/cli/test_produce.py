"""``replog produce``: every format, keys, headers, what it prints, how it fails."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import os
import re
import sys

import pyarrow as pa
import pytest
from pyarrow import csv, parquet

from spark_replog import Producer
from spark_replog.cli import input_files
from spark_replog.cli import produce as produce_module
from spark_replog.client.arrow_sender import TableHandle
from spark_replog.client.consumer import Consumer
from spark_replog.errors import ErrorCode, ReplogError, RetriableError
from spark_replog.ids import TopicPartition
from spark_replog.write.arrow_appender import ArrowAppender
from spark_replog.write.record_handle import RecordMetadata


@pytest.fixture
def store(tmp_path, replog, monkeypatch):
    path = str(tmp_path / "store")
    assert replog("-s", path, "init", "--brokers", "1", "--no-fsync").exit_code == 0
    assert replog("-s", path, "topic", "create", "t", "-p", "2", "--replicas", "1").exit_code == 0
    monkeypatch.setenv("REPLOG_STORE", path)
    return path


def records(store, partitions=2, topic="t"):
    with Consumer(store, auto_offset_reset="earliest", enable_auto_commit=False) as consumer:
        keys = [TopicPartition(topic, number) for number in range(partitions)]
        consumer.assign(keys)
        ends = consumer.end_offsets(keys)
        consumed_records = []
        while len(consumed_records) < sum(ends.values()):
            consumed_records += consumer.poll(timeout_ms=100)
    return consumed_records


def pairs(store):
    keyed_values = [(record.key or b"", record.value) for record in records(store)]
    return sorted(keyed_values, key=lambda pair: (pair[0], pair[1] or b""))


def pipe(monkeypatch, data: bytes):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


def test_lines_of_standard_input(store, replog, monkeypatch):
    pipe(monkeypatch, b"one\ntwo\r\n\nlast without end")
    answer = replog("produce", "t", "-p", "1", "-f", "json")
    assert answer.exit_code == 0
    assert answer.items == [
        {
            "topic": "t",
            "records": 4,
            "partitions": [{"partition": 1, "firstOffset": 0, "records": 4}],
            "ok": True,
        }
    ]
    assert [record.value for record in records(store)] == [b"one", b"two", b"", b"last without end"]


def test_a_separator_makes_keys_and_headers_go_on_every_record(store, replog, monkeypatch):
    pipe(monkeypatch, b"a:1\nb:2:3\nno key\n")
    assert replog("produce", "t", "-k", ":", "-H", "h=1", "-H", "empty=", "-H", "h=2").exit_code == 0
    assert pairs(store) == [(b"", b"no key"), (b"a", b"1"), (b"b", b"2:3")]
    assert all(list(record.headers) == [("h", b"1"), ("empty", b""), ("h", b"2")] for record in records(store))


def test_json_lines(store, replog, tmp_path):
    file = tmp_path / "in.jsonl"
    file.write_text('{"id":7,"name":"x"}\n\n{"name":"y"}\n')
    assert replog("produce", "t", file, "-k", "id").exit_code == 0
    assert replog("produce", "t", file, "-k", "name", "--value", "id").exit_code == 0
    assert replog("produce", "t", file).exit_code == 0
    whole = [b'{"id":7,"name":"x"}', b'{"name":"y"}']
    assert pairs(store) == [
        (b"", whole[0]),
        (b"", whole[1]),
        (b"", whole[1]),
        (b"7", whole[0]),
        (b"x", b"7"),
        (b"y", None),
    ]


def test_a_field_that_no_line_has_is_warned_of(store, replog, tmp_path):
    file = tmp_path / "in.jsonl"
    file.write_text('{"id":7}\n{"id":8,"name":"y"}\n')
    answer = replog("produce", "t", file, "-k", "nmae", "--value", "nam")
    assert answer.exit_code == 0
    assert [word for line in answer.err.splitlines() if "warning" in line for word in re.findall("'(.*?)'", line)] == [
        "nam",
        "nmae",
    ]
    assert "warning" not in replog("produce", "t", file, "-k", "name").err
    file.write_text("\n\n")
    assert "warning" not in replog("produce", "t", file, "-k", "name").err


@pytest.mark.parametrize("kind", ["csv", "parquet", "arrow", "stream"])
def test_tables(store, replog, tmp_path, kind):
    table = pa.table({"id": [1, 2], "name": ["x", "y"]})
    file = tmp_path / f"in.{'arrow' if kind == 'stream' else kind}"
    if kind == "csv":
        csv.write_csv(table, file)
    elif kind == "parquet":
        parquet.write_table(table, file)
    else:
        make = pa.ipc.new_stream if kind == "stream" else pa.ipc.new_file
        with make(str(file), table.schema) as writer:
            writer.write_table(table)
    assert replog("produce", "t", file, "-k", "id").exit_code == 0
    assert replog("produce", "t", file, "-k", "id", "--value", "name").exit_code == 0
    rows = [b'{"id":1,"name":"x"}', b'{"id":2,"name":"y"}']
    if kind == "csv":
        rows = [b'{"id":"1","name":"x"}', b'{"id":"2","name":"y"}']
    assert pairs(store) == [(b"1", b"x"), (b"1", rows[0]), (b"2", b"y"), (b"2", rows[1])]


def test_a_table_with_the_logs_columns_goes_as_it_is(store, replog, tmp_path):
    columns = {
        "value": pa.array([b"v"]),
        "key": pa.array(["k"]),
        "partition": pa.array([1], pa.int32()),
        "timestamp": pa.array([5_000], pa.timestamp("ms")),
        "other": pa.array([1]),
    }
    parquet.write_table(pa.table(columns), tmp_path / "in.parquet")
    assert replog("produce", "t", tmp_path / "in.parquet").exit_code == 0
    (record,) = records(store)
    assert (record.partition, record.key, record.value, record.timestamp_ms) == (1, b"k", b"v", 5_000)


def test_a_byte_order_mark_before_json_lines_is_no_part_of_the_first_value(store, replog, tmp_path):
    (tmp_path / "in.jsonl").write_text('{"a":1}\n{"a":2}\n', encoding="utf-8-sig")
    assert replog("produce", "t", tmp_path / "in.jsonl", "-k", "a").exit_code == 0
    assert pairs(store) == [(b"1", b'{"a":1}'), (b"2", b'{"a":2}')]


def test_no_first_offset_is_shown_where_none_is_known(store, replog, tmp_path):
    (tmp_path / "in.txt").write_text("v\n")
    answer = replog("produce", "t", tmp_path / "in.txt", "-p", "0", "--acks", "0")
    assert answer.out.splitlines()[1].split() == ["0", "-", "1"]


def test_headers_of_the_command_stand_behind_those_of_the_records(store, replog, tmp_path):
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    headers = pa.array([[{"key": "own", "value": b"1"}], None], kind)
    parquet.write_table(pa.table({"value": ["a", "b"], "headers": headers}), tmp_path / "in.parquet")
    assert replog("produce", "t", tmp_path / "in.parquet", "-p", "0", "-H", "all=2").exit_code == 0
    assert [record.headers for record in records(store)] == [(("own", b"1"), ("all", b"2")), (("all", b"2"),)]


@pytest.mark.parametrize("names", ["value,value", "x,value,x", "x,x"])
def test_a_table_with_two_columns_of_one_name_is_refused(store, replog, tmp_path, names):
    (tmp_path / "in.csv").write_text(f"{names}\n{names}\n")
    answer = replog("produce", "t", tmp_path / "in.csv")
    assert (answer.exit_code, "has more than one column" in answer.err) == (2, True)
    assert records(store) == []


def test_several_files_and_settings(store, replog, tmp_path):
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(name)
    answer = replog("produce", "t", tmp_path / "a.txt", tmp_path / "b.txt", "--acks", "1", "-c", "linger.ms=0")
    assert answer.exit_code == 0
    assert "first offset" in answer.out
    assert pairs(store) == [(b"", b"a.txt"), (b"", b"b.txt")]


@pytest.mark.parametrize(
    ("arguments", "said", "code"),
    [
        (["nothing", "FILE"], "UNKNOWN_TOPIC_OR_PARTITION", 1),
        (["t", "no/such/file"], "REPLOG_INPUT", 2),
        (["t", "FILE", "-i", "parquet"], "REPLOG_INPUT", 2),
        (["t", "FILE", "-i", "jsonl", "-k", "id"], "Line 1 of", 2),
        (["t", "FILE", "-p", "9"], "-p is 9, and topic 't' has partitions 0 to 1", 2),
        (["t", "FILE", "-p", "99999999999"], "UNKNOWN_TOPIC_OR_PARTITION", 2),
        (["nothing"], "topic create nothing -p 1", 1),
        (["t", "-i", "csv"], "standard input", 2),
        (["t", "FILE", "-H", "x"], "NAME=VALUE", 2),
        (["t", "FILE", "--value", "id"], "--value", 2),
        (["t", "-i", "parquet"], "pipe", 2),
        (["t", "FILE", "-c", "batch.sise=1"], "Did you mean", 2),
        (["t", "FILE", "-c", "bootstrap.servers=a"], "has no meaning here", 2),
        (["t", "FILE", "-c", "transactional.id=a"], "transactional.id", 2),
    ],
)
def test_failures(store, replog, tmp_path, monkeypatch, arguments, said, code):
    pipe(monkeypatch, b"")
    (tmp_path / "in.txt").write_text("text\n")
    answer = replog("produce", *[str(tmp_path / "in.txt") if word == "FILE" else word for word in arguments])
    assert (answer.exit_code, said in answer.err) == (code, True), answer
    assert answer.out == ""
    assert records(store) == []


def test_a_mistyped_topic_is_refused_at_once_before_the_input_is_read(store, replog, monkeypatch):
    assert replog("topic", "create", "orders", "--replicas", "1").exit_code == 0
    monkeypatch.setattr(sys, "stdin", None)
    answer = replog("produce", "order")
    assert answer.exit_code == 1 and "[UNKNOWN_TOPIC_OR_PARTITION]" in answer.err
    assert "Did you mean 'orders'?" in answer.err and "topic create order -p 1" in answer.err


def test_a_writer_without_the_right_is_not_told_which_topics_there_are(store, replog, monkeypatch):
    assert replog("topic", "create", "orders", "--replicas", "1").exit_code == 0
    given = ("--allow-principal", "User:alice", "--operation", "write")
    assert replog("acl", "add", *given, "--topic", "orders").exit_code == 0
    assert replog("acl", "add", *given, "--topic", "orderz").exit_code == 0
    pipe(monkeypatch, b"")
    monkeypatch.setenv("REPLOG_PRINCIPAL", "User:bob")
    for name in ("orders", "orderz"):  # one exists
        refused = replog("produce", name)
        assert refused.exit_code == 1 and "[TOPIC_AUTHORIZATION_FAILED]" in refused.err
        assert "exist" not in refused.err and "Did you mean" not in refused.err
    missing = replog("produce", "order")
    assert "[UNKNOWN_TOPIC_OR_PARTITION]" in missing.err and "orders" not in missing.err
    monkeypatch.setenv("REPLOG_PRINCIPAL", "User:alice")
    assert "Did you mean 'orders'?" in replog("produce", "orderz").err


def test_a_standard_input_that_is_closed_is_told(store, replog, monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    answer = replog("produce", "t")
    assert (answer.exit_code, "REPLOG_INPUT" in answer.err) == (2, True)


def test_a_line_may_come_in_many_pieces(monkeypatch):
    monkeypatch.setattr(input_files, "READ_BYTES", 10)
    long = b"x" * 1_003
    (batch,) = produce_module.read_batches(io.BytesIO(long), "-", "lines", None, None)
    assert batch.column("value").to_pylist() == [long]
    pieces = list(produce_module.read_batches(io.BytesIO(b"a\r\n" + long + b"\n\nb"), "-", "lines", None, None))
    assert [value for piece in pieces for value in piece.column("value").to_pylist()] == [b"a", long, b"", b"b"]


def test_a_failure_says_what_was_acknowledged_before(store, replog, tmp_path, monkeypatch):
    monkeypatch.setattr(input_files, "READ_BYTES", 4)
    (tmp_path / "in.jsonl").write_text('{"a":1}\n{"a":2}\nno json\n')
    answer = replog("produce", "t", tmp_path / "in.jsonl", "-k", "a", "-f", "json")
    (item,) = answer.items
    assert (answer.exit_code, item["ok"], item["error"]) == (2, False, "REPLOG_INPUT")
    assert "Line 3" in item["message"]
    assert item["records"] == 2 == len(records(store))
    answer = replog("produce", "t", tmp_path / "in.jsonl", "-k", "a")
    assert answer.err.startswith("replog: 2 records were acknowledged, the others were not\nreplog: [REPLOG_INPUT] ")


def test_a_large_input_is_read_in_pieces(store, replog, tmp_path, monkeypatch):
    monkeypatch.setattr(input_files, "READ_BYTES", 100)
    (tmp_path / "in.txt").write_text("\n".join(str(number) for number in range(3_000)))
    assert (
        json.loads(replog("produce", "t", tmp_path / "in.txt", "-p", "0", "-f", "json").out)["items"][0]["records"]
        == 3_000
    )
    assert [record.value for record in records(store)] == [b"%d" % number for number in range(3_000)]


def test_keys_and_values_of_a_csv_file_stay_as_they_are_written(store, replog, tmp_path):
    (tmp_path / "in.csv").write_text("key,value,partition\n007,1.50,1\n2024-01-02,true,0\n")
    assert replog("produce", "t", tmp_path / "in.csv").exit_code == 0
    assert [(row.partition, row.key, row.value) for row in sorted(records(store), key=lambda it: it.partition)] == [
        (0, b"2024-01-02", b"true"),
        (1, b"007", b"1.50"),
    ]
    (tmp_path / "far.csv").write_text(f"value,partition\nv,{2**40}\n")
    answer = replog("produce", "t", tmp_path / "far.csv")
    assert (answer.exit_code, "REPLOG_INPUT" in answer.err) == (2, True)


ODD = "id,price,big,none,flag,at\n00501,1.10,4611686018427387905,NA,true,2024-01-02\n501,1.1,1e3,,NULL,x\n"


@pytest.mark.parametrize("is_piped", [False, True])
def test_no_value_of_a_csv_file_changes(store, replog, tmp_path, monkeypatch, is_piped):
    (tmp_path / "in.csv").write_text(ODD, encoding="utf-8-sig")
    if is_piped:
        read_end, write_end = os.pipe()
        os.write(write_end, ODD.encode())
        os.close(write_end)
        with open(read_end, encoding="utf-8") as stream:
            monkeypatch.setattr(sys, "stdin", stream)
            assert replog("produce", "t", "-k", "id", "-i", "csv").exit_code == 0
    else:
        assert replog("produce", "t", tmp_path / "in.csv", "-k", "id").exit_code == 0
    (tmp_path / "again.csv").write_text(ODD)
    assert replog("produce", "t", tmp_path / "again.csv", "-k", "id", "--value", "price").exit_code == 0
    names, *rows = [line.split(",") for line in ODD.splitlines()]
    stored_pairs = [(record.key.decode(), record.value.decode()) for record in records(store)]
    assert sorted(stored_pairs) == sorted(
        [(row[0], json.dumps(dict(zip(names, row, strict=True)), separators=(",", ":"))) for row in rows]
        + [(row[0], row[1]) for row in rows]
    )


def test_types_of_a_csv_file_come_by_request(store, replog, tmp_path):
    (tmp_path / "in.csv").write_text("id,amount,ok\n007,1.5,true\n")
    assert replog("produce", "t", tmp_path / "in.csv", "-k", "id", "--typed").exit_code == 0
    assert pairs(store) == [(b"007", b'{"id":"007","amount":1.5,"ok":true}')]


@pytest.mark.parametrize(
    ("name", "data", "values"),
    [
        ("a.json", b'[{"a": 1.10},\n\n {"b":[2]}, "x", null]\n', [b'{"a": 1.10}', b'{"b":[2]}', b'"x"', b"null"]),
        ("a.json", b'\xef\xbb\xbf{\n "a": 1\n}\n', [b'{\n "a": 1\n}']),
        ("a.json", b'{"a":1}\r\n{"a":2}\n', [b'{"a":1}', b'{"a":2}']),
        ("a.json", b"[]", []),
        ("a.jsonl.gz", gzip.compress(b'{"a":1}\n{"a":2}\n', mtime=0), [b'{"a":1}', b'{"a":2}']),
        ("a.json.bz2", bz2.compress(b"[1,2]"), [b"1", b"2"]),
        ("a.csv.gz", gzip.compress(b"a\n01\n", mtime=0), [b'{"a":"01"}']),
        ("a.log.gz", gzip.compress(b"x\ny\n", mtime=0), [b"x", b"y"]),
        ("a.gz", gzip.compress(b"x\n", mtime=0), [b"x"]),
    ],
)
def test_json_arrays_and_compressed_files_are_decoded(store, replog, tmp_path, name, data, values):
    (tmp_path / name).write_bytes(data)
    answer = replog("produce", "t", tmp_path / name, "-p", "0")
    assert answer.exit_code == 0, answer.err
    assert [record.value for record in records(store)] == values


def test_lines_in_a_quoted_csv_value_do_not_end_its_row(store, replog, tmp_path):
    value = "first, line\nsecond\n"
    row_count = 2 * input_files.READ_BYTES // len(value)  # the reader cuts the file into blocks of 1 MiB
    (tmp_path / "in.csv").write_text("key,value\n" + f'k,"{value}"\n' * row_count)
    answer = replog("produce", "t", tmp_path / "in.csv", "-f", "json")
    assert answer.exit_code == 0 and answer.items[0]["records"] == row_count
    assert {(record.key, record.value) for record in records(store)} == {(b"k", value.encode())}


def test_a_csv_column_whose_type_changes_late_is_refused_with_what_to_do(store, replog, tmp_path, monkeypatch):
    row = f"{'x' * 1000},2\n"
    (tmp_path / "in.csv").write_text("id,amount\n" + row * (2 * input_files.READ_BYTES // len(row)) + "1,many\n")
    answer = replog("produce", "t", tmp_path / "in.csv", "--typed")
    assert answer.exit_code == 2
    assert "'many'" in answer.err and "Leave --typed out." in answer.err
    assert records(store) == []
    (tmp_path / "in.csv").write_text(f"id,amount\n{row}{row}")
    with open(tmp_path / "in.csv", encoding="utf-8") as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        assert replog("produce", "t", "-i", "csv", "-f", "json").items[0]["records"] == 2


def test_a_time_that_python_cannot_hold_is_refused_with_what_to_do(store, replog, tmp_path):
    parquet.write_table(pa.table({"at": pa.array([2**60], pa.timestamp("ms"))}), tmp_path / "in.parquet")
    answer = replog("produce", "t", tmp_path / "in.parquet")
    assert answer.exit_code == 2 and "REPLOG_INPUT" in answer.err and "Convert its column" in answer.err


def test_csv_columns_by_name_stay_as_they_are_written(store, replog, tmp_path):
    (tmp_path / "in.csv").write_text("id,amount\n007,1.50\n")
    assert replog("produce", "t", tmp_path / "in.csv", "-k", "id", "--value", "amount").exit_code == 0
    assert pairs(store) == [(b"007", b"1.50")]


def test_bytes_of_a_row_that_becomes_json_are_base64(store, replog, tmp_path):
    parquet.write_table(pa.table({"id": [1], "raw": pa.array([b"\xff"])}), tmp_path / "in.parquet")
    assert replog("produce", "t", tmp_path / "in.parquet").exit_code == 0
    assert pairs(store) == [(b"", b'{"id":1,"raw":"/w=="}')]


def test_bytes_that_are_no_utf_8_go_as_they_are(store, replog, tmp_path):
    (tmp_path / "in.txt").write_bytes(b"\xfe\xff\xfd\n")
    assert (
        replog("produce", "t", tmp_path / "in.txt", "-k", os.fsdecode(b"\xff"), "-H", os.fsdecode(b"h=\xff")).exit_code
        == 0
    )
    assert pairs(store) == [(b"\xfe", b"\xfd")]
    assert list(records(store)[0].headers) == [("h", b"\xff")]


@pytest.mark.parametrize(
    ("name", "data", "arguments"),
    [
        ("in.jsonl", b'{"a":"\\ud800"}\n', ["-k", "a"]),  # a str that is no text
        ("in.jsonl", b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}\n", ["-k", "a"]),
        ("in.jsonl", b'\xff{"a":1}\n', ["-k", "a"]),
        ("in.csv", b"\xff,b\n1,2\n", []),
        ("in.csv", b"a,b\n1,2\n3\n", ["-k", "a"]),
        ("in.csv", b"", []),
        ("in.csv", b"a,b\nM\xfcller,2\n", []),
        ("in.csv.gz", b"a,b\n1,2\n", []),
        ("in.parquet.gz", b"\x1f\x8b", []),
        ("in.zip", b"PK", []),
        ("in.jsonl", b'[\n{"a":1},\n{"a":2}\n]\n', []),
        ("in.json", b'[{"a":1}, 2]', ["-k", "a"]),
        ("in.parquet", b"PAR1", []),
        ("in.arrow", b"ARROW1\0\0", []),
        ("in.txt", b"a\n", ["-k", ""]),
        ("in.txt", b"a\n", ["-H", os.fsdecode(b"\xff=1")]),
    ],
)
def test_files_and_arguments_that_are_broken_are_told_as_such(store, replog, tmp_path, name, data, arguments):
    (tmp_path / name).write_bytes(data)
    answer = replog("produce", "t", tmp_path / name, *arguments)
    assert answer.exit_code == 2
    assert "UNKNOWN_SERVER_ERROR" not in answer.err
    assert name in answer.err or arguments[0] in answer.err
    assert records(store) == []


def test_numbers_that_json_cannot_write_are_text(store, replog, tmp_path):
    odd = [float("nan"), float("inf"), float("-inf"), 1.5]
    parquet.write_table(pa.table({"a": odd, "b": [[number] for number in odd]}), tmp_path / "t.parquet")
    assert replog("produce", "t", tmp_path / "t.parquet", "-p", "0").exit_code == 0
    assert replog("produce", "t", tmp_path / "t.parquet", "-p", "1", "--value", "a").exit_code == 0
    words = ['"NaN"', '"Infinity"', '"-Infinity"', "1.5"]
    rows, values = ([r.value for r in records(store) if r.partition == number] for number in (0, 1))
    assert rows == [f'{{"a":{word},"b":[{word}]}}'.encode() for word in words]
    assert values == [word.strip('"').encode() for word in words]


def test_a_line_with_a_number_that_json_cannot_write_is_no_json(store, replog, tmp_path):
    (tmp_path / "t.jsonl").write_text('{"k": 1}\n{"k": NaN}\n')
    answer = replog("produce", "t", tmp_path / "t.jsonl", "-k", "k")
    assert answer.exit_code == 2 and "Line 2 of" in answer.err and "NaN" in answer.err


class Outcome:
    """The handle of a slice's first row, which has its outcome."""

    def __init__(self, outcome):
        self.outcome = outcome

    def done(self):
        return True

    def exception(self, timeout=None):
        return self.outcome if isinstance(self.outcome, ReplogError) else None

    def result(self, timeout=None):
        return self.outcome


def test_slices_of_a_batch_that_failed_in_part_count_as_what_they_are(store, replog, monkeypatch, tmp_path):
    full = RetriableError(ErrorCode.REQUEST_TIMED_OUT, "the disk is full. Free space on it.")
    batches = [
        [(Outcome(RecordMetadata("t", 0, 0, 0)), 2), (Outcome(full), 1)],
        [(Outcome(full), 1), (Outcome(RecordMetadata("t", 1, 7, 0)), 3)],
    ]
    monkeypatch.setattr(Producer, "send_arrow", lambda *sent: [sent[-1].add(*outcome) for outcome in batches.pop(0)])
    monkeypatch.setattr(input_files, "READ_BYTES", 4)
    monkeypatch.setattr(produce_module, "HANDLES_OPEN_MAX", 2)
    monkeypatch.setattr(TableHandle, "done", lambda handle: not batches)
    (tmp_path / "in.txt").write_text("one\ntwo\n")
    (item,) = replog("produce", "t", tmp_path / "in.txt", "-f", "json").items
    assert (item["ok"], item["error"], item["records"]) == (False, "REQUEST_TIMED_OUT", 5)
    assert item["partitions"] == [
        {"partition": 0, "firstOffset": 0, "records": 2},
        {"partition": 1, "firstOffset": 7, "records": 3},
    ]


@pytest.mark.parametrize(
    ("problem", "exit_code"),
    [(KeyboardInterrupt(), 130), (RetriableError(ErrorCode.REPLOG_BUFFER_EXHAUSTED, "no memory is free. Wait."), 1)],
)
def test_slices_of_a_batch_that_was_sent_in_part_are_counted(store, replog, monkeypatch, tmp_path, problem, exit_code):
    whole = ArrowAppender.append

    def append(appender, rows):
        yield next(iter(whole(appender, rows)))
        raise problem

    monkeypatch.setattr(ArrowAppender, "append", append)
    (tmp_path / "in.txt").write_text("".join(f"{number}:v\n" for number in range(20)))
    answer = replog("produce", "t", tmp_path / "in.txt", "-k", ":", "-f", "json")
    assert answer.exit_code == exit_code
    assert 0 < answer.items[0]["records"] == len(records(store)) < 20


@pytest.mark.parametrize("form", ["text", "json"])
def test_ctrl_c_says_what_was_acknowledged_before(store, replog, monkeypatch, form):
    class Interrupted(io.BytesIO):
        def read1(self, size=-1):
            if self.tell() == len(self.getvalue()):
                raise KeyboardInterrupt
            return super().read1(size)

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(Interrupted(b"one\ntwo\nthr")))
    answer = replog("produce", "t", "-p", "1", "-f", form)
    assert (answer.exit_code, answer.err) == (130, "replog: stopped; 2 records were acknowledged before\n")
    assert [record.value for record in records(store)] == [b"one", b"two"]
    if form == "json":
        assert (answer.items[0]["records"], answer.items[0]["ok"]) == (2, False)
    else:
        assert answer.out == ""


ODD_ROWS = [
    {"key": b"k", "value": b"v", "headers": [{"key": "h", "value": b"1"}, {"key": "h", "value": None}], "partition": 0},
    {"key": b"\xff\x00", "value": b"\xfe{not text", "headers": [{"key": "", "value": b"\xff"}], "partition": 0},
    {"key": None, "value": None, "headers": None, "partition": 1},
    {"key": b"", "value": b"", "headers": [], "partition": 1},
    {"key": b"deleted", "value": None, "headers": None, "partition": 1},
    {"key": b'{"b64":"AA=="}', "value": "a\nb\r\u2028\x00\u00e9".encode(), "headers": None, "partition": 0},
]
TIMES_US = [0, 1, 1_700_000_000_123_000, 1_700_000_000_123_456, 253_402_300_800_000_001, 999]


def all_of(record):
    return (record.partition, record.key, record.value, list(record.headers), record.timestamp_us)


def test_consume_and_produce_as_json_lines_lose_nothing(store, replog, monkeypatch):
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    table = pa.table(
        {
            "key": pa.array([row["key"] for row in ODD_ROWS], pa.binary()),
            "value": pa.array([row["value"] for row in ODD_ROWS], pa.binary()),
            "headers": pa.array([row["headers"] for row in ODD_ROWS], kind),
            "partition": pa.array([row["partition"] for row in ODD_ROWS], pa.int32()),
            "timestamp": pa.array(TIMES_US, pa.timestamp("us", "UTC")),
        }
    )
    admit = f"message.timestamp.after.max.ms={2**62}"
    assert replog("topic", "config", "t", "set", admit).exit_code == 0
    with Producer(store) as producer:
        producer.send_arrow("t", table).result()
    before = records(store)
    printed = replog("consume", "t", "-f", "jsonl")
    pipe(monkeypatch, printed.out.encode())
    assert replog("topic", "create", "copy", "-p", "2", "--replicas", "1", "-c", admit).exit_code == 0
    assert replog("produce", "copy", "-i", "jsonl").exit_code == 0
    again = replog("consume", "copy", "-f", "jsonl").out
    assert again == printed.out.replace('"topic": "t"', '"topic": "copy"')
    assert [all_of(record) for record in records(store, topic="copy")] == [all_of(record) for record in before]
    assert sorted(record.timestamp_us for record in before) == sorted(TIMES_US)


def test_a_record_of_consume_without_its_partition_goes_by_its_key(store, replog, tmp_path):
    file = tmp_path / "in.jsonl"
    file.write_text('{"key":"k","value":"v","headers":[],"timestamp":null}\n' * 5)
    assert replog("produce", "t", file).exit_code == 0
    consumed_records = records(store)
    assert len({record.partition for record in consumed_records}) == 1
    assert {(record.key, record.value) for record in consumed_records} == {(b"k", b"v")}


@pytest.mark.parametrize(
    "line",
    [
        b'{"value":3,"key":"k"}',
        b'{"value":3,"key":"k","headers":[],"timestamp":0,"sensor":7}',
        b'["value","key","headers","timestamp"]',
        b'"value" "key" "headers" "timestamp"',
    ],
)
def test_other_json_lines_stay_values(store, replog, tmp_path, line):
    file = tmp_path / "in.jsonl"
    file.write_bytes(line + b"\n")
    assert replog("produce", "t", file).exit_code == 0
    assert pairs(store) == [(b"", line)]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("key", 3),
        ("value", {"b64": "%"}),
        ("value", {"b64": "AA==", "c": 1}),
        ("timestamp", "noon"),
        ("timestamp", 7),
        ("headers", [["h"]]),
        ("headers", [[1, "v"]]),
        ("partition", "0"),
        ("key", "\ud800"),
    ],
)
def test_a_malformed_record_of_consume_is_refused(store, replog, tmp_path, field, value):
    row = {"topic": "x", "offset": 1, "partition": 0, "key": "k", "value": "v", "headers": [], "timestamp": None}
    file = tmp_path / "in.jsonl"
    file.write_text("{}\n" + json.dumps({**row, field: value}) + "\n")
    answer = replog("produce", "t", file, "-f", "json")
    assert answer.exit_code == 2
    assert answer.items[0]["error"] == "REPLOG_INPUT"
    assert "Line 2" in answer.items[0]["message"]
    assert f"'{field}'" in answer.items[0]["message"]
