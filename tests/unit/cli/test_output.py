"""Tables and items: what a human and what a script sees."""

from __future__ import annotations

import io
import json
import re
import sys

import pytest

from spark_replog.cli import output
from spark_replog.cli.output import emit, error_item, exit_code_of
from spark_replog.cli.settings import Settings
from spark_replog.cli.tables import Table, cut, quoted, shown
from spark_replog.errors import ErrorCode, InvalidConfigError, ReplogError


def test_table_aligns_numbers_to_the_right_and_groups_thousands():
    assert str(Table(["TOPIC", "ROWS", "ISR"], [("orders", 1204551, [0, 1]), ("x", 3, [2])])) == (
        "TOPIC        ROWS  ISR\norders  1,204,551  0,1\nx               3  2"
    )


def test_empty_table_keeps_its_headings():
    assert str(Table(["A", "B"], [])) == "A  B"


def test_table_shows_absence_and_truth():
    assert str(Table(["A", "B", "C"], [(None, True, 1.25)])) == "A  B      C\n-  yes  1.2"


def test_a_failed_item_fails_the_command(capsys):
    items = [
        {"topic": "a", "ok": True},
        error_item(ReplogError(ErrorCode.INVALID_REQUEST, "No. Do x."), topic="b"),
    ]
    assert emit(items, settings=Settings("topic delete", format="json")) == 1
    shown = json.loads(capsys.readouterr().out)
    assert shown["ok"] is False
    assert shown["items"][1] == {
        "topic": "b",
        "ok": False,
        "error": "INVALID_REQUEST",
        "message": "No. Do x.",
        "hint": "Do x.",
    }
    assert emit(items, "topic a: deleted", settings=Settings()) == 1
    captured = capsys.readouterr()
    assert captured.out == "topic a: deleted\n"
    assert captured.err == "replog: [INVALID_REQUEST] No. Do x.\n"


def test_verdict_wins_over_items(capsys):
    assert emit([{"ok": False}], exit_code=4, settings=Settings()) == 4
    assert capsys.readouterr().out == ""


def test_invalid_calls_are_usage_errors():
    assert exit_code_of(InvalidConfigError(ErrorCode.INVALID_PARTITIONS, "x")) == 2
    assert exit_code_of(ReplogError(ErrorCode.CORRUPT_MESSAGE, "x")) == 1


EVIL = "a\x1b[2J\nb\\\u202e\ud800"


def test_what_a_terminal_acts_on_is_shown_quoted():
    shown = str(Table(["NAME", "LIST"], [(EVIL, ["plain", EVIL])]))
    assert shown.splitlines()[1].split() == [
        r"'a\x1b[2J\nb\\\u202e\ud800'",
        r"plain,'a\x1b[2J\nb\\\u202e\ud800'",
    ]
    assert quoted("caf\u00e9 42") == "caf\u00e9 42"


def test_messages_and_texts_hold_no_terminal_escapes(capsys):
    output.note(f"[X] topic '{EVIL}'")
    output.emit([{"ok": False, "error": "X", "message": EVIL}], f"{EVIL}\n\tb", settings=Settings())
    printed = capsys.readouterr()
    assert "\x1b" not in printed.out + printed.err
    assert printed.out == "a\\x1b[2J\nb\\\\u202e\\ud800\n\tb\n"
    assert printed.err.count("\\x1b") == 2


def test_json_escapes_what_a_terminal_acts_on(capsys):
    output.emit([{"name": EVIL}], settings=Settings(format="json"))
    printed = capsys.readouterr().out
    assert "\x1b" not in printed
    assert json.loads(printed)["items"][0]["name"] == EVIL


WIDE = Table(
    ["TOPIC", "ROWS", "LAST WRITE", "ID", "DETAIL"],
    [
        ("orders", 20_000, "2026-11-23T03:04:03Z", "200cdcef97fe48b69bdfbb339aafb1f5", "nothing, at some length " * 6),
        ("a-topic-with-a-rather-long-name.eu-west-1.events", 3, "never", "6cbfdc175e774464a156bf26cedfe123", None),
    ],
)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_table_is_not_wider_than_the_terminal_and_loses_nothing(monkeypatch, width):
    piped = shown(WIDE)
    assert len(piped.splitlines()) == 3, "scripts get a line for each row"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(width))
    drawn = re.sub(r"\x1b\[[0-9;]*m", "", shown(WIDE))
    assert max(map(len, drawn.splitlines())) <= width
    words = drawn.split()
    assert all(words.count(word) >= piped.split().count(word) for word in set(piped.split()) - {*WIDE.headings, "-"})
    monkeypatch.setenv("COLUMNS", "500")
    drawn = re.sub(r"\x1b\[[0-9;]*m", "", shown(WIDE))
    assert drawn != shown(WIDE) and [line.rstrip() for line in drawn.splitlines()] == piped.splitlines()


def test_a_text_is_broken_before_a_name_is(monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "92")
    name, text = WIDE.rows[1][0], WIDE.rows[0][4]
    drawn = re.sub(r"\x1b\[[0-9;]*m", "", shown(Table(["TOPIC", "DETAIL"], [(name, text)])))
    assert name in drawn and drawn.count(name) == 1 and len(drawn.splitlines()) > 2
    assert drawn.split()[3:] == text.split()


def test_a_row_that_does_not_fit_a_terminal_is_in_one_piece(monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "60")
    words = shown(WIDE).split()
    order = [words.index(word) for word in ("orders", "20,000", WIDE.rows[0][3], WIDE.rows[1][0], "3", "never")]
    assert order == sorted(order)


@pytest.mark.parametrize("count", [500, 501])
def test_a_table_of_many_rows_is_plain_since_rich_takes_a_millisecond_for_each(monkeypatch, count):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert ("\x1b" in shown(Table(["N"], [[number] for number in range(count)]))) == (count == 500)


def test_notes_of_a_command_whose_stderr_is_closed_are_not_data(capsys, monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)  # what Python makes of `2>&-`
    output.note("replog: t-0 ends at 0, before 9: starting at its end")
    assert capsys.readouterr().out == ""


def test_text_for_a_stdout_that_is_not_utf_8_is_escaped(monkeypatch):
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="latin-1"))
    output.show("caf\u00e9 \u20ac")
    output.show(output.json_text({"caf\u00e9": "\u20ac\x1b"}))
    assert cut("OK  caf\u00e9 \u20ac").plain == "OK  caf\u00e9 \\u20ac", "a line of the live page"
    text, line = written.getvalue().splitlines()
    assert text == b"caf\xe9 \\u20ac"
    assert line == rb'{"caf\u00e9": "\u20ac\u001b"}'
