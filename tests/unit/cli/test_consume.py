"""``replog consume`` on its own: odd arguments, odd records, and a stdout that takes nothing."""

from __future__ import annotations

import os
import re
import signal

import pytest

from spark_replog import Producer
from spark_replog.cli import consume as consume_module
from spark_replog.cli.main import run
from spark_replog.groups.group_coordinator import GroupCoordinator
from tests.unit.client.consumer_setup import Store, rows

NO_UTF_8 = os.fsdecode(b"\xff")
YEAR_10000_MS = 253_402_300_800_000


@pytest.fixture
def store(tmp_path):
    store = Store.init(str(tmp_path / "store"))
    store.create("orders")
    store.write("orders", rows(3), partition=0)
    return store


@pytest.fixture
def consume(replog, store):
    return lambda *arguments: replog("-s", store.path, "consume", "orders", *arguments)


@pytest.mark.parametrize("follow", [[], ["--follow", "--timeout-ms", 1]])
@pytest.mark.parametrize("where", ["9", "9" * 30])
def test_an_offset_behind_the_end_is_told_and_old_records_are_not_printed(consume, where, follow):
    answer = consume("-o", where, *follow)
    assert (answer.exit_code, answer.out) == (0, "")
    assert "orders-0 ends at 3" in answer.err and where in answer.err


@pytest.mark.parametrize(
    ("words", "out", "said"),
    [
        (("-o", "end-2"), "v1\nv2\n", ""),
        (("-o", "LATEST-1"), "v2\n", ""),
        (("-o", "end-9"), "v0\nv1\nv2\n", ""),
        (("-o", "end-0"), "", ""),
        (("--to", "end-2"), "v0\n", ""),
        (("--from", "end-2", "--to", "latest-1"), "v1\n", ""),
        (("-o", "-2"), "v0\nv1\nv2\n", "-2 is earliest, as in Kafka's tools. For 2 before the end: end-2"),
        (("-o", "-1"), "", "-1 is latest, as in Kafka's tools. For 1 before the end: end-1"),
        (("--to", "-1"), "v0\nv1\nv2\n", "-1 is latest"),
        (("--from-beginning", "-o", "-2", "--to", "1", "-q"), "v0\n", ""),
    ],
)
def test_kafkas_numbers_are_the_ends_and_rows_before_the_end_have_a_form_of_their_own(consume, words, out, said):
    answer = consume(*words)
    assert (answer.exit_code, answer.out) == (0, out)
    assert said in answer.err and bool(said) == bool(answer.err)


@pytest.mark.parametrize("flag", ["--from", "--to"])
@pytest.mark.parametrize(
    ("where", "said"),
    [("-3", "For the last 3 rows of each partition: end-3."), ("beginning-3", ""), ("end-", ""), ("end--1", "")],
)
def test_what_is_no_position_is_refused_with_the_form_that_was_meant(consume, flag, where, said):
    answer = consume(flag, where)
    assert answer.exit_code == 2 and said in answer.err and f"{flag} is '{where}'" in answer.err


@pytest.mark.parametrize("words", [("end-1", "end-2"), ("latest", "end-2"), ("-1", "end-2"), ("end", "latest-1")])
def test_a_range_that_ends_before_it_begins_is_refused(consume, words):
    begin, until = words
    answer = consume("--from", begin, "--to", until)
    assert answer.exit_code == 2 and f"--from {begin} is after --to {until}" in answer.err


@pytest.mark.parametrize("is_there", [True, False])
def test_rows_that_are_lost_are_skipped_by_the_command_in_the_error(replog, consume, store, tmp_path, is_there):
    copies = list((tmp_path / "store").glob("broker-*/ledgers/*/data/**/*.arrow"))
    store.write("orders", [b"later"], partition=0)
    for copy in copies:
        copy.write_bytes(b"") if is_there else copy.unlink()
    answer = consume()
    assert answer.exit_code == 1 and ("CORRUPT_MESSAGE" if is_there else "REPLOG_DATA_LOSS") in answer.err
    command = re.search(r"`replog (consume [^`]*)`", answer.err)[1]
    skipped = replog("-s", store.path, *command.split())
    assert (skipped.exit_code, skipped.out) == (0, "later\n")


def test_a_time_behind_the_year_9999_is_printed(replog, consume, store):
    admit = f"message.timestamp.after.max.ms={2**62}"
    assert replog("-s", store.path, "topic", "config", "orders", "set", admit).exit_code == 0
    with Producer(store.path) as producer:
        producer.send("orders", b"late", timestamp_ms=YEAR_10000_MS + 1).result(30)
    printed = consume("-o", "end-1", "-f", "jsonl")
    assert (printed.exit_code, printed.err) == (0, "")
    assert '"timestamp": "+10000-01-01T00:00:00.001Z"' in printed.out


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--print-offset", "--key-separator", NO_UTF_8], b"Offset:0\xffv0\n"),
        (["--output", f"%o{NO_UTF_8}%s\\n"], b"0\xffv0\n"),
    ],
)
def test_what_stands_between_may_be_any_bytes(store, capsysbinary, words, line):
    assert run(["-s", store.path, "consume", "orders", "-n", "1", *words]) == 0
    assert capsysbinary.readouterr().out == line


def test_a_wrong_pattern_is_told_though_there_is_nothing_to_print(consume):
    answer = consume("-o", "end", "--output", "%o %d")
    assert (answer.exit_code, "'%d' is unknown" in answer.err) == (2, True)


def test_an_empty_header_is_not_printed_as_null(consume, store):
    with Producer(store.path) as producer:
        producer.send("orders", b"v", headers=[("empty", b""), ("null", None)]).result(30)
    assert consume("-o", "end-1", "--print-headers").out == "empty:,null:null\tv\n"


def test_a_group_that_is_no_text_is_refused(consume):
    answer = consume("-g", NO_UTF_8, "-n", 1)
    assert (answer.exit_code, answer.out) == (2, "")
    assert "INVALID_GROUP_ID" in answer.err


def test_of_one_json_value_is_committed_what_is_in_it_when_it_is_stopped(consume, store, monkeypatch):
    def item(record):
        if record.offset == 1:
            signal.raise_signal(signal.SIGTERM)
        return {"offset": record.offset}

    monkeypatch.setattr(consume_module, "record_item", item)
    answer = consume("-g", "app", "-f", "json")
    assert (answer.exit_code, [record["offset"] for record in answer.items]) == (130, [0, 1])
    (committed,) = GroupCoordinator(store.another_process().cluster).group("app").offsets.values()
    assert committed.offset == 2


@pytest.fixture
def numbered(replog, tmp_path):
    """Ten records of one partition, a minute apart."""
    store = Store.init(str(tmp_path / "numbered"))
    store.create("orders", partitions=2)
    with Producer(store.path) as producer:
        for number in range(10):
            producer.send(
                "orders",
                f"value {number}".encode(),
                key=b"odd" if number % 2 else None,
                headers=[("kind", b"big" if number > 6 else b"small")],
                timestamp_ms=1_700_000_000_000 + number * 60_000,
                partition=0,
            ).result(30)

    def consume(*words):
        answer = replog("-s", store.path, "consume", "orders", "--output", "%o ", *words)
        return [int(offset) for offset in answer.out.split()] if answer.exit_code == 0 else answer.err

    return consume


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--from", 3, "--to", 6), [3, 4, 5]),
        (("--from", "end-3"), [7, 8, 9]),
        (("--from", "end-3", "--to", "end-1"), [7, 8]),
        (("--to", 2), [0, 1]),
        (("--to", "beginning"), []),
        (("--from", "start", "--to", "latest"), list(range(10))),
        (("--from", "Earliest", "--to", "end"), list(range(10))),
        (("--from-beginning", "--from", "start"), list(range(10))),
        (("--from", "end"), []),
        (("--from", 8, "--to", 99), [8, 9]),
        (("--from", 5, "--to", 5), []),
        (("--from", "@2023-11-14T22:15:20", "--to", "@2023-11-14T22:17:20"), [2, 3]),
        (("--to", "@-1h"), list(range(10))),
        (("--from", "@-999999d", "--to", "@1969-12-31"), []),
        (("--from", "@1969-12-31"), list(range(10))),
        (("--key", "odd"), [1, 3, 5, 7, 9]),
        (("--key", "odd", "-n", 2), [1, 3]),
        (("--key", "even"), []),
        (("--grep", "[34]$"), [3, 4]),
        (("--grep", "[34]$", "--key", "odd"), [3]),
        (("--header", "kind=big"), [7, 8, 9]),
        (("--header", "kind", "-n", 1), [0]),
        (("--header", "kind=big", "--header", "other"), []),
    ],
)
def test_ranges_and_filters(numbered, words, expected):
    assert numbered(*words) == expected


@pytest.mark.parametrize(
    "words",
    [
        ("--grep", "("),
        ("--to", "soon"),
        ("--follow", "--to", 3),
        ("-g", "g", "--to", 3),
        ("--header", ""),
        ("--header", "=big"),
        ("--follow", "--timeout-ms", -1),
        ("--from", 5, "--to", 3),
        ("--from", "end-1", "--to", "end-3"),
        ("--from", "@-1h", "--to", "@-2h"),
    ],
)
def test_ranges_and_filters_that_make_no_sense_are_refused(numbered, words):
    assert isinstance(numbered(*words), str)


def test_a_group_has_read_what_its_filter_left_out(consume, store, replog):
    assert consume("-g", "billing", "--grep", "1").out == "v1\n"
    (item,) = replog("-s", store.path, "group", "describe", "billing", "-f", "json").items
    assert item["lag"] == 0
