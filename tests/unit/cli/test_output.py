"""Tables and items: what a human and what a script sees."""

from __future__ import annotations

import json

from spark_replog.cli import output
from spark_replog.cli.output import emit, error_item, exit_code_of, table
from spark_replog.cli.settings import Settings
from spark_replog.errors import ErrorCode, InvalidConfigError, ReplogError


def test_table_aligns_numbers_to_the_right_and_groups_thousands():
    assert table(["TOPIC", "ROWS", "ISR"], [("orders", 1204551, [0, 1]), ("x", 3, [2])]) == (
        "TOPIC        ROWS  ISR\norders  1,204,551  0,1\nx               3  2"
    )


def test_empty_table_keeps_its_headings():
    assert table(["A", "B"], []) == "A  B"


def test_table_shows_absence_and_truth():
    assert table(["A", "B", "C"], [(None, True, 1.25)]) == "A  B      C\n-  yes  1.2"


def test_a_failed_item_fails_the_command(capsys):
    items = [
        {"topic": "a", "ok": True},
        error_item(ReplogError(ErrorCode.INVALID_REQUEST, "No. Do x."), topic="b"),
    ]
    assert emit("topic delete", items, Settings(format="json"), text="") == 1
    shown = json.loads(capsys.readouterr().out)
    assert shown["ok"] is False
    assert shown["items"][1] == {
        "topic": "b",
        "ok": False,
        "error": "INVALID_REQUEST",
        "message": "No. Do x.",
        "hint": "Do x.",
    }
    assert emit("topic delete", items, Settings(), text="topic a: deleted") == 1
    captured = capsys.readouterr()
    assert captured.out == "topic a: deleted\n"
    assert captured.err == "replog: [INVALID_REQUEST] No. Do x.\n"


def test_verdict_wins_over_items(capsys):
    assert emit("doctor", [{"ok": False}], Settings(), text="", exit_code=4) == 4
    assert capsys.readouterr().out == ""


def test_invalid_calls_are_usage_errors():
    assert exit_code_of(InvalidConfigError(ErrorCode.INVALID_PARTITIONS, "x")) == 2
    assert exit_code_of(ReplogError(ErrorCode.CORRUPT_MESSAGE, "x")) == 1


EVIL = "a\x1b[2J\nb\\\u202e\ud800"


def test_what_a_terminal_acts_on_is_shown_quoted():
    shown = output.table(["NAME", "LIST"], [(EVIL, ["plain", EVIL])])
    assert shown.splitlines()[1].split() == [
        r"'a\x1b[2J\nb\\\u202e\ud800'",
        r"plain,'a\x1b[2J\nb\\\u202e\ud800'",
    ]
    assert output.quoted("caf\u00e9 42") == "caf\u00e9 42"


def test_messages_and_texts_hold_no_terminal_escapes(capsys):
    output.note(f"[X] topic '{EVIL}'")
    output.emit("x", [{"ok": False, "error": "X", "message": EVIL}], Settings(), text=f"{EVIL}\n\tb")
    printed = capsys.readouterr()
    assert "\x1b" not in printed.out + printed.err
    assert printed.out == "a\\x1b[2J\nb\\\\u202e\\ud800\n\tb\n"
    assert printed.err.count("\\x1b") == 2


def test_json_escapes_what_a_terminal_acts_on(capsys):
    output.emit("x", [{"name": EVIL}], Settings(format="json"), text="")
    printed = capsys.readouterr().out
    assert "\x1b" not in printed
    assert json.loads(printed)["items"][0]["name"] == EVIL
