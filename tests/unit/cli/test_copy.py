"""``replog copy``: what arrives, and that each row arrives once whatever happens meanwhile."""

from __future__ import annotations

import shlex

import pyarrow as pa
import pytest

import spark_replog
from spark_replog import Consumer, Producer
from spark_replog.admin.controller import Controller
from spark_replog.client.topic_copy import TopicCopy, create_target
from spark_replog.commit.append_request import ProduceResponse
from spark_replog.commit.replica_manager import ReplicaManager
from spark_replog.errors import ErrorCode, FencedError, OutcomeUnknownError, ReplogError
from spark_replog.log.column_cast import cast_column
from spark_replog.log.row_schema import RowSchema
from tests.unit.client.consumer_setup import P0, P1, Store, rows


@pytest.fixture
def source(tmp_path):
    made = Store.init(str(tmp_path / "source"))
    made.create("orders", 2)
    for number in range(4):
        made.write("orders", rows(5, 5 * number), partition=0, times_ms=[1000 * number] * 5)
        made.write("orders", rows(5, 100 + 5 * number), partition=1)
    made.create("copied", 2)
    return made


METADATA_MAX_AGE_MS = 600_000


@pytest.fixture
def other(tmp_path):
    made = Store.init(str(tmp_path / "other"), 3)
    made.create("orders", 2)
    return made


def records(store, topic):
    """(partition, key, value, headers, time) of all rows, in the order of partitions and offsets."""
    with Consumer(store.path, topic, auto_offset_reset="earliest") as reader:
        table = reader.to_arrow(1000).sort_by([("partition", "ascending"), ("offset", "ascending")])
    return table.select(["partition", "key", "value", "headers", "timestamp"]).to_pylist()


def copy_of(source, other, *, chunk_rows=5, name=""):
    """A copy in small chunks."""
    return TopicCopy(source.another_process().cluster, "orders", other.another_process().cluster, "orders",
                     name=name, chunk_rows=chunk_rows)  # fmt: skip


def run_all(job):
    ends = job.reader.end_offsets(job.keys)
    parts = job.plan(dict.fromkeys(ends, 0), ends)
    job.run(parts)
    return parts


def test_rows_arrive_whole_in_another_topic_and_in_another_store(source, other, replog):
    with Producer(source.path) as producer:
        producer.send("orders", None, key=b"\xff", headers=[("h", b"1"), ("null", None)], partition=1).result(30)
    answer = replog("-s", source.path, "copy", "orders", "copied", "-f", "json")
    assert [(item["rows"], item["position"]) for item in answer.items] == [(20, 20), (21, 21)]
    assert records(source, "copied") == records(source, "orders")
    answer = replog("-s", source.path, "copy", "orders", "orders", "--to-store", other.path)
    assert answer.exit_code == 0 and "COPIED UP TO" in answer.out
    assert records(other, "orders") == records(source, "orders")


def test_a_range_that_earlier_runs_left_out_is_refused_and_another_name_copies_it(source, replog):
    def run(*words):
        return replog("-s", source.path, "copy", "orders", "copied", "-p", "0", *words, "-f", "json")

    assert run("--from", "10", "--to", "15").items[0]["rows"] == 5
    assert run("--from", "12", "--to", "15").items[0]["rows"] == 0
    for words in ([], ["--to", "12"], ["--from", "9"], ["--dry-run"]):
        refused = run(*words)
        assert refused.exit_code != 0 and "INVALID_REQUEST" in refused.err + refused.out, words
    assert "0-10" in run().err + run().out
    assert run("--from", "18", "--to", "20").items[0]["rows"] == 2
    assert "0-10,15-18" in run().err + run().out
    assert run("--from", "18").items[0]["rows"] == 0
    assert run("--from", "0", "--to", "10", "--name", "rest").items[0]["rows"] == 10
    assert [row["key"] for row in records(source, "copied")] == [
        row["key"] for at in ((10, 15), (18, 20), (0, 10)) for row in records(source, "orders")[slice(*at)]
    ]


def test_given_again_it_copies_what_is_new_and_a_name_begins_anew(source, replog):
    assert sum(item["rows"] for item in replog("-s", source.path, "copy", "orders", "copied", "-f", "json").items) == 40
    source.write("orders", rows(2, 900), partition=1)
    assert "at most 2 rows" in replog("-s", source.path, "copy", "orders", "copied", "--dry-run").out
    again = replog("-s", source.path, "copy", "orders", "copied", "-f", "json").items
    assert [item["rows"] for item in again] == [0, 2]
    assert records(source, "copied") == records(source, "orders")
    named = replog("-s", source.path, "copy", "orders", "copied", "--name", "b", "--from", "end-1", "-f", "json").items
    assert [item["rows"] for item in named] == [1, 1]


@pytest.mark.parametrize(
    ("words", "counts"),
    [
        (("--from", 3, "--to", 7), [4, 4]),
        (("-p", 1, "--from", "end-2"), [2]),
        (("-p", 1, "--from", -1), [0]),
        (("--to", "@1970-01-01T00:00:02", "-p", 0), [10]),
        (("--from", "start", "--to", "end", "-p", 1, "--from", "latest"), [0]),
        (("--from", 5, "--to", 5), [0, 0]),
    ],
)
def test_ranges(source, replog, words, counts):
    items = replog("-s", source.path, "copy", "orders", "copied", *words, "-f", "json").items
    assert [item["rows"] for item in items] == counts
    assert len(records(source, "copied")) == sum(counts)


def test_keys_choose_partitions_and_each_key_keeps_its_order(source, replog):
    source.create("keyed", 2)
    source.write("keyed", rows(60), partition=0, keys=[b"k%d" % (n % 7) for n in range(60)])
    source.create("wide", 5)
    assert replog("-s", source.path, "copy", "keyed", "wide", "--by-key").exit_code == 0
    copied_rows = records(source, "wide")
    assert len({row["partition"] for row in copied_rows}) > 1
    for key in {row["key"] for row in copied_rows}:
        numbers = [int(row["value"][1:]) for row in copied_rows if row["key"] == key]
        assert numbers == sorted(numbers) and len({row["partition"] for row in copied_rows if row["key"] == key}) == 1


@pytest.mark.parametrize(
    "words",
    [("orders", "narrow"), ("orders", "orders"), ("orders", "none"), ("orders", "copied", "-p", 7),
     ("orders", "copied", "--to-set", "secret"), ("orders", "copied", "--from", 5, "--to", 3)],
)  # fmt: skip
def test_what_cannot_be_copied_is_refused_before_a_row_is_read(source, replog, words):
    source.create("narrow", 1)
    answer = replog("-s", source.path, "copy", *words)
    assert answer.exit_code in (1, 2) and answer.out == "" and "secret" not in answer.err.replace("--to-set", "")


@pytest.mark.parametrize("is_decided", [False, True])
@pytest.mark.parametrize("at", [0, 3, 7])
def test_an_append_that_fails_or_whose_answer_is_lost_repeats_and_loses_nothing(
    source, other, monkeypatch, at, is_decided
):
    count = 0
    append = ReplicaManager.append_records

    def fail(self, requests):
        nonlocal count
        count += 1
        if count != at + 1:
            return append(self, requests)
        if is_decided:
            append(self, requests)
        error = OutcomeUnknownError(ErrorCode.REPLOG_COMMIT_OUTCOME_UNKNOWN, "lost. Repeat it.")
        return dict.fromkeys(requests, ProduceResponse(error, None))

    monkeypatch.setattr(ReplicaManager, "append_records", fail)
    with copy_of(source, other) as job, pytest.raises(OutcomeUnknownError):
        run_all(job)
    assert len(records(other, "orders")) == 5 * (at + is_decided)
    with copy_of(source, other) as job:
        parts = run_all(job)
    assert sum(part.row_count for part in parts) == 40 - 5 * (at + is_decided)
    assert records(other, "orders") == records(source, "orders")


def test_of_two_at_once_one_is_refused_and_nothing_is_copied_twice(source, other):
    with copy_of(source, other) as first, copy_of(source, other, chunk_rows=100) as second:
        ends = first.reader.end_offsets(first.keys)
        starts = dict.fromkeys(ends, 0)
        mine, theirs = first.plan(starts, ends), second.plan(starts, ends)
        chunks, seen = first._chunks, []

        def interrupted(part):
            for chunk in chunks(part):
                yield chunk
                if not seen:  # the other one has looked before this append, and appends a longer chunk after it
                    seen.append(part)
                    with pytest.raises(FencedError):
                        second.run(theirs)

        first._chunks = interrupted
        first.run(mine)
    assert records(other, "orders") == records(source, "orders")


def test_rows_that_retention_took_are_told_not_skipped(source, other, replog):
    with copy_of(source, other) as job:
        ends = job.reader.end_offsets(job.keys)
        parts = job.plan({P0: 0, P1: 0}, ends)
        replog("-s", source.path, "topic", "trim", "orders", "--partition", 0, "--to", 7, "-y")
        with pytest.raises(ReplogError, match=r"OFFSET_OUT_OF_RANGE|DATA_LOSS|NO_OFFSET"):
            job.run(parts)
    assert records(other, "orders") == []
    answer = replog("-s", source.path, "copy", "orders", "orders", "--to-store", other.path)
    assert answer.exit_code == 0 and len(records(other, "orders")) == 33


def test_rows_that_were_deleted_between_two_copies_are_told(source, replog):
    words = ("-s", source.path, "copy", "orders", "copied")
    assert "deleted" not in replog(*words, "--to", 5).err
    assert replog("-s", source.path, "topic", "trim", "orders", "--partition", 0, "--to", 12, "-y").exit_code == 0
    answer = replog(*words, "-f", "json")
    assert [item["rows"] for item in answer.items] == [8, 15]
    assert "rows 5 to 11 of orders-0 were deleted before they were copied" in answer.err
    assert "orders-1" not in answer.err
    assert "deleted" not in replog(*words).err


def recreate(store, topic):
    """Another process deletes a topic and makes one of the same name."""
    there = store.another_process()
    Controller(there.cluster).delete_topic(topic)
    there.create(topic, 2)
    return there


def test_a_target_that_is_made_again_before_the_first_append_gets_no_row_twice(source, other):
    with copy_of(source, other) as job:
        ends = job.reader.end_offsets(job.keys)
        parts = job.plan(dict.fromkeys(ends, 0), ends)
        recreate(other, "orders")
        with pytest.raises(ReplogError, match="UNKNOWN_TOPIC_ID"):
            job.run(parts)
    with copy_of(source, other) as job:
        run_all(job)
    assert records(other, "orders") == records(source, "orders")


def test_rows_of_a_source_that_is_made_again_are_not_taken_for_those_of_the_former_one(source, other):
    with copy_of(source, other) as job:
        ends = job.reader.end_offsets(job.keys)
        parts = job.plan(dict.fromkeys(ends, 0), ends)
        there = recreate(source, "orders")
        for partition in range(2):
            there.write("orders", rows(20, 500), partition=partition)
        source.clock.advance(METADATA_MAX_AGE_MS)  # so that the copy looks topics up again by their names
        with pytest.raises(ReplogError, match="UNKNOWN_TOPIC"):
            job.run(parts)
    with copy_of(source, other) as job:
        run_all(job)
    assert records(other, "orders") == records(source, "orders")


# -- topics whose rows are columns --------------------------------------------------------------------

COLUMNS = "id BIGINT, amount DECIMAL(8,2), tags ARRAY<STRING>"
WIDER = "id BIGINT, amount DECIMAL(12,2), tags ARRAY<STRING>, gone BOOLEAN"
PLACES = ["_replog_partition", "_replog_timestamp", "_replog_headers"]


def write_typed(store, topic, numbers, **more):
    """Append rows of two partitions with headers and times, and their other columns."""
    numbers = list(numbers)
    table = pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "tags": [["a", None][: number % 3] for number in numbers],
            "_replog_partition": pa.array([number % 2 for number in numbers], pa.int32()),
            "_replog_timestamp": pa.array([number * 1_000_000 for number in numbers], pa.timestamp("us", "UTC")),
            "_replog_headers": [[{"key": "h", "value": b"%d" % number}] * (number % 2) or None for number in numbers],
            **more,
        }
    )
    with Producer(store.path) as producer:
        producer.send_arrow(topic, table).result(60)


def typed_records(store, topic):
    """All rows with partition, time and headers, in the order of partitions and offsets; and the columns."""
    scan = another_scan(store, topic)
    table = scan.to_arrow().sort_by([("_replog_partition", "ascending"), ("_replog_offset", "ascending")])
    return table.drop_columns(["_replog_offset"]).to_pylist()


def another_scan(store, topic):
    there = spark_replog.open(store.path)
    names = there.admin().describe_topic(topic).schema.names
    return there.topic(topic).scan(columns=[*names, *PLACES, "_replog_offset"])


@pytest.fixture
def typed(tmp_path):
    made = Store.init(str(tmp_path / "typed"))
    config = {"cleanup.policy": "compact", "min.insync.replicas": "1"}
    Controller(made.cluster).create_topic("orders", 2, schema=COLUMNS, key=["id"], config=config)
    write_typed(made, "orders", range(20))
    Controller(made.cluster).evolve_schema("orders", WIDER)
    settings = {"delete.column": "gone"}
    Controller(made.cluster).alter_config("orders", settings)
    write_typed(made, "orders", range(20, 30), gone=[True, False] * 5)
    return made


def test_typed_rows_arrive_with_columns_key_and_settings_in_a_new_topic_of_any_store(typed, other, replog):
    for words, there in ((["copied"], typed), (["parcels", "--to-store", other.path], other)):
        words = ["-s", typed.path, "copy", "orders", *words, "--create", "-f", "json"]
        assert [item["rows"] for item in replog(*words).items] == [15, 15]
        described = spark_replog.open(there.path).admin().describe_topic(words[4])
        assert (described.schema, described.schema.key) == (RowSchema(WIDER, ("id",)), ("id",))
        assert described.config == {"cleanup.policy": "compact", "delete.column": "gone"}
        assert typed_records(there, words[4]) == typed_records(typed, "orders")
        assert len(typed_records(there, words[4])) == 30
        assert [item["rows"] for item in replog(*words).items] == [0, 0]
    write_typed(typed, "orders", range(30, 33))
    again = replog("-s", typed.path, "copy", "orders", "copied", "-f", "json").items
    assert [item["rows"] for item in again] == [2, 1]
    assert typed_records(typed, "copied") == typed_records(typed, "orders")


def test_a_topic_of_bytes_is_made_too_and_a_dry_run_makes_nothing(source, replog):
    words = ["-s", source.path, "copy", "orders", "made", "--create"]
    assert replog(*words, "--dry-run").exit_code == 2
    assert "UNKNOWN_TOPIC" in replog(*words[:-1]).err
    assert replog(*words).exit_code == 0
    assert records(source, "made") == records(source, "orders")


def test_key_columns_choose_the_partitions_of_a_target_that_holds_more(typed, replog):
    wide = WIDER.replace("BIGINT, amount", "BIGINT NOT NULL, more INT, amount").replace("(12,2)", "(20,4)")
    Controller(typed.cluster).create_topic("wide", 5, schema=wide, key=["id"])
    answer = replog("-s", typed.path, "copy", "orders", "wide", "--by-key")
    assert answer.exit_code == 0, answer.err
    scan = another_scan(typed, "wide").to_arrow()
    assert sorted(scan["id"].to_pylist()) == list(range(30))
    assert len(set(scan["_replog_partition"].to_pylist())) > 2
    Controller(typed.cluster).create_topic("twin", 5, schema=WIDER, key=["id"])
    write = scan.select(RowSchema(WIDER).names)
    with Producer(typed.path) as producer:
        amounts = cast_column(write["amount"].combine_chunks(), pa.decimal128(12, 2))
        producer.send_arrow("twin", write.set_column(1, "amount", amounts)).result(60)
    by_id = [dict(zip(*map(pa.Table.to_pydict(table).get, ("id", "_replog_partition")), strict=True))
             for table in (scan, another_scan(typed, "twin").to_arrow())]  # fmt: skip
    assert by_id[0] == by_id[1]


@pytest.mark.parametrize(
    ("ddl", "key", "facts"),
    [
        (WIDER.replace("12", "8"), "id", ["'amount'", "DECIMAL(12,2)", "DECIMAL(8,2)", "schema evolve", "DECIMAL(12"]),
        (COLUMNS.replace("8", "12"), "id", ["'gone'", "missing", "BOOLEAN", "schema evolve"]),
        (WIDER.replace("BOOLEAN", "STRING"), "id", ["'gone'", "BOOLEAN", "STRING", "topic create NAME"]),
        (WIDER.replace("BOOLEAN", "BOOLEAN NOT NULL"), "id", ["'gone'", "NOT NULL", "schema evolve"]),
        (WIDER + ", must INT NOT NULL", "id", ["'must'", "missing", "INT NOT NULL", "schema evolve"]),
        (WIDER, "", ["'id'", "none", "--key id"]),
        (WIDER, "amount", ["'id'", "'amount'", "--key id"]),
        (None, "", ["bytes", "topic create NAME", "--key id"]),
    ],
)
def test_a_target_that_cannot_hold_each_row_is_refused_and_the_remedy_helps(typed, replog, ddl, key, facts):
    how = {"schema": ddl, "key": key.split()} if ddl else {}
    Controller(typed.cluster).create_topic("copied", 2, **how)
    answer = replog("-s", typed.path, "copy", "orders", "copied")
    assert answer.exit_code == 2 and "REPLOG_INVALID_SCHEMA" in answer.err
    assert all(fact in answer.err for fact in facts), answer.err
    assert spark_replog.open(typed.path).topic("copied").scan().to_arrow().num_rows == 0
    command = answer.err[answer.err.index("replog -s") :].split(". ")[0].replace("\n", " ")
    words = [word.replace("NAME", "third") for word in shlex.split(command)[1:]]
    done = replog(*words, *(["-y"] if "evolve" in words else ["-p", "2"]))
    assert done.exit_code == 0, (words, done.err)
    target = "third" if "third" in words else "copied"
    assert replog("-s", typed.path, "copy", "orders", target).exit_code == 0
    assert len(typed_records(typed, target)) == 30


def test_bytes_do_not_become_columns(source, replog):
    Controller(source.cluster).create_topic("typed", 2, schema=COLUMNS, key=["id"])
    answer = replog("-s", source.path, "copy", "orders", "typed")
    assert answer.exit_code == 2 and "REPLOG_INVALID_SCHEMA" in answer.err and "Spark or a Consumer" in answer.err


@pytest.mark.parametrize("at", ["before the reader's first look", "between two chunks"])
def test_a_schema_that_changes_while_the_copy_runs_loses_no_column(typed, other, replog, at):
    words = ["-s", typed.path, "copy", "orders", "parcels", "--to-store", other.path]
    newest = f"{WIDER}, note STRING"

    def evolve():
        Controller(typed.another_process().cluster).evolve_schema("orders", newest)
        write_typed(typed, "orders", range(30, 40), note=["n"] * 10)

    create_target(typed.cluster, "orders", other.cluster, "parcels")
    with TopicCopy(typed.another_process().cluster, "orders", other.another_process().cluster, "parcels",
                   chunk_rows=4) as job:  # fmt: skip
        if at.startswith("before"):
            evolve()
        ends = job.reader.end_offsets(job.keys)
        parts = job.plan(dict.fromkeys(ends, 0), dict.fromkeys(ends, 20))
        done = []
        with pytest.raises(ReplogError, match=r"INVALID_UPDATE_VERSION.*orders.*version 3"):
            job.run(parts, lambda: done.append(0) or (len(done) == 2 and evolve()))
    came = [row["id"] for row in typed_records(other, "parcels")]
    assert came == [*range(0, 30, 2), *range(1, 30, 2)][: len(came)]
    assert bool(came) == bool(done)
    refused = replog(*words)
    assert refused.exit_code == 2 and "'note'" in refused.err
    Controller(other.cluster).evolve_schema("parcels", newest)
    assert replog(*words).exit_code == 0
    assert typed_records(other, "parcels") == typed_records(typed, "orders")
    assert [row["note"] for row in typed_records(other, "parcels")].count("n") == 10
