"""The command tree: what it imports, where flags may stand, how failures end."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import shlex
import signal
import sys
from types import SimpleNamespace

import click
import pytest

from spark_replog.cli import main as main_module
from spark_replog.cli import output
from spark_replog.cli.main import cli
from spark_replog.cli.settings import Settings
from spark_replog.errors import ErrorCode, OutcomeUnknownError, ReplogError, RetriableError


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["topic", "--help"], ["status", "-h"]])
def test_help_on_a_full_disk_is_an_error_of_the_environment(replog, monkeypatch, arguments):
    class Full(io.StringIO):
        def flush(self):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(sys, "stdout", Full())
    answer = replog(*arguments)
    assert answer.exit_code == 1
    assert "REPLOG_ENVIRONMENT" in answer.err and "No space left on device" in answer.err


def test_no_command_shows_help_and_is_a_usage_error(replog):
    answer = replog()
    assert answer.exit_code == 2
    assert "Commands:" in answer.err + answer.out


@pytest.mark.parametrize(
    "arguments",
    [("-f", "json", "topic", "list"), ("topic", "-f", "json", "list"), ("topic", "list", "-f", "json")],
)
def test_flags_before_and_after(replog, arguments):
    answer = replog(*arguments)
    assert answer.exit_code == 2
    assert answer.json["_command"] == "topic list"
    assert answer.json["_schema"] == "replog.cli/1"
    assert answer.json["ok"] is False
    assert answer.items[0]["error"] == "REPLOG_MISSING_OPTION"
    assert answer.items[0]["hint"] == "Add '-s PATH' or set REPLOG_STORE."
    assert answer.err == ""


def test_global_flags_hold_where_click_does_not_say_where_a_value_came_from(replog, monkeypatch):
    """As Click 8.4.0, which records it after a flag's callback."""
    monkeypatch.setattr(click.Context, "get_parameter_source", lambda *_: None)
    answer = replog("-s", "s4://given", "topic", "list", "-f", "json")
    assert answer.exit_code == 2 and answer.items[0]["error"] == "REPLOG_UNSUPPORTED_STORE"


def test_no_arguments_are_wrong_usage_with_every_click(replog, monkeypatch):
    def parse_args(group, context, arguments):
        """As Click 8.1, which has no error for this."""
        click.echo(context.get_help())
        context.exit()

    assert (replog("topic").exit_code, replog().exit_code) == (2, 2)
    monkeypatch.setattr(click.Group, "parse_args", parse_args)
    answer = replog()
    assert (answer.exit_code, answer.out) == (2, "") and answer.err.startswith("Usage: replog ")


def test_later_flag_wins_and_environment_loses(replog, monkeypatch):
    monkeypatch.setenv("REPLOG_STORE", "s4://from-environment")
    assert "from-environment" in replog("store", "info").err
    answer = replog("-s", "s4://first", "store", "info", "-s", "s4://second")
    assert "second" in answer.err
    assert "first" not in answer.err


@pytest.mark.parametrize("flag", [("-f", "json"), ("-fjson",), ("--format", "json"), ("--format=json",)])
def test_usage_error_as_json(replog, flag):
    assert replog("topic", "create", "--frobnicate", *flag).json["_command"] == "topic create"
    answer = replog("topic", "create", *flag)
    assert answer.exit_code == 2
    assert answer.json["_command"] == "topic create"
    assert "NAME" in answer.items[0]["message"]


def test_the_last_format_that_is_typed_is_that_of_a_usage_error(replog):
    answer = replog("topic", "create", "--frobnicate", "-fjson", "-f", "text")
    assert (answer.exit_code, answer.out) == (2, "") and "--frobnicate" in answer.err
    assert replog("topic", "create", "--frobnicate", "--ledger", "x -f json").out == ""


def test_only_storage_settings_can_be_set(replog):
    assert replog("-X", "topic=1", "store", "info").exit_code == 2
    assert "KEY=VALUE" in replog("-X", "storage.key", "store", "info").err


@pytest.mark.parametrize(
    ("error", "exit_code"),
    [
        (ReplogError(ErrorCode.TOPIC_ALREADY_EXISTS, "x"), 1),
        (RetriableError(ErrorCode.REPLOG_NO_QUORUM, "x"), 5),
        (RetriableError(ErrorCode.REPLOG_STORE_UNAVAILABLE, "x"), 5),
        (OutcomeUnknownError(ErrorCode.REPLOG_COMMIT_OUTCOME_UNKNOWN, "x"), 5),
        (KeyboardInterrupt(), 130),
        (RuntimeError("boom"), 1),
    ],
)
def test_exit_codes(replog, monkeypatch, error, exit_code):
    def fail(*_arguments, **_options):
        raise error

    monkeypatch.setattr(main_module.cli, "invoke", fail)
    answer = replog("store", "info", "-s", "x")
    assert answer.exit_code == exit_code
    assert answer.out == ""


def test_unforeseen_error_says_its_type_and_shows_a_trace_on_demand(replog, monkeypatch):
    def fail(context):
        main_module.current_settings().verbose = 1
        raise RuntimeError("boom")

    monkeypatch.setattr(main_module.cli, "invoke", fail)
    answer = replog("store", "info", "-s", "x")
    assert "[UNKNOWN_SERVER_ERROR] RuntimeError: boom" in answer.err
    assert "Traceback" in answer.err


@pytest.mark.parametrize(
    ("closed", "arguments", "exit_code", "reason"),
    [
        ("stdout", ["topic", "list"], 1, "REPLOG_ENVIRONMENT"),
        ("stdin", ["topic", "delete", "orders"], 2, "add -y to confirm"),
        ("stderr", ["store", "verify"], 0, ""),
    ],
)
def test_a_stream_closed_before_the_start_is_not_a_terminal(
    replog, tmp_path, monkeypatch, closed, arguments, exit_code, reason
):
    for setup in (["init"], ["topic", "create", "orders"]):
        assert replog("-s", tmp_path / "store", *setup).exit_code == 0
    monkeypatch.setattr(sys, closed, None)  # what Python makes of it
    answer = replog("-s", tmp_path / "store", *arguments)
    assert (answer.exit_code, reason in answer.err) == (exit_code, True)


@pytest.mark.parametrize("format_name", ["text", "json", "jsonl"])
@pytest.mark.parametrize("command", [("store", "info"), ("topic", "describe", "missing")])
def test_full_stdout_is_said_once_on_stderr(replog, tmp_path, monkeypatch, format_name, command):
    assert replog("-s", tmp_path / "store", "init").exit_code == 0

    def full(text, nl):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(output, "click", SimpleNamespace(echo=full))
    answer = replog("-s", tmp_path / "store", "-f", format_name, *command)
    assert answer.exit_code == 1
    if format_name == "text" and "missing" in command:
        assert "UNKNOWN_TOPIC_OR_PARTITION" in answer.err  # nothing was due on stdout
    else:
        assert answer.err.startswith("replog: [REPLOG_ENVIRONMENT] stdout cannot be written: No space left")
        assert answer.err.count("\n") == 1


def test_a_file_in_the_way_of_a_store_is_named_at_once(replog, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    answer = replog("-s", tmp_path / "file", "init", "-f", "json")
    assert answer.exit_code == 1
    assert answer.items[0]["error"] == "REPLOG_STORE_REFUSED"
    assert "choose another path" in answer.items[0]["hint"]


def test_jsonl_is_one_item_a_line(replog):
    answer = replog("topic", "list", "-f", "jsonl")
    assert json.loads(answer.out)["error"] == "REPLOG_MISSING_OPTION"


def commands(group=cli, path=()):
    """Yield each command with its words."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


COMMANDS = list(commands())


@pytest.mark.parametrize(("path", "command"), COMMANDS, ids=[" ".join(path) for path, _ in COMMANDS])
def test_every_help_has_examples_that_can_be_typed(path, command, tmp_path, monkeypatch, replog):
    monkeypatch.chdir(tmp_path)
    assert command.examples
    for example in command.examples:
        words = shlex.split(example)
        if words[0] == "-s":
            del words[:2]
        assert words[: len(path)] == list(path)
        command.make_context(path[-1], words[len(path) :], parent=cli.make_context("replog", ["-s", "x", path[0]]))
        assert f"replog {example}\n" in replog(*path, "--help").out


def test_an_error_is_one_line_whatever_its_message_holds(replog, tmp_path, monkeypatch):
    def fail(*_args, **_more):
        raise ReplogError(ErrorCode.REPLOG_STORE_UNAVAILABLE, "<Error>\n  <Code>Slow</Code>\n</Error> Try\tagain.")

    monkeypatch.setattr(Settings, "open_cluster", fail)
    answer = replog("-s", tmp_path, "status")
    assert answer.err == "replog: [REPLOG_STORE_UNAVAILABLE] <Error> <Code>Slow</Code> </Error> Try again.\n"
    assert answer.exit_code == 5
    assert "Traceback" in replog("-s", tmp_path, "status", "-v").err


def test_sigterm_to_a_command_whose_last_output_fails_ends_it_with_the_code_of_a_shell(monkeypatch):
    def stop(_arguments):
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
        return 130

    def fail():
        raise OSError("the disk is full")

    monkeypatch.setattr(main_module, "run", stop)
    monkeypatch.setattr("gc.set_threshold", lambda _count: None)
    monkeypatch.setattr("atexit._run_exitfuncs", fail)
    monkeypatch.setattr(sys, "argv", ["replog"])
    with pytest.raises(SystemExit) as ended:
        main_module.main()
    assert ended.value.code == 128 + signal.SIGTERM


@pytest.mark.parametrize(
    "typed, meant",
    [
        ("store init --brokers 3", ["replog init"]),
        ("store create", ["replog init"]),
        ("topic info orders", ["replog topic describe"]),
        ("topic descrbe orders", ["replog topic describe"]),
        ("topci list", ["replog topic", "replog top"]),
        ("verify", ["replog store verify"]),
        ("create orders", ["replog init", "replog topic create"]),
        ("acl create", ["replog acl add"]),
    ],
)
def test_an_unknown_command_is_answered_with_what_to_type(replog, typed, meant):
    answer = replog(*typed.split())
    assert answer.exit_code == 2
    (said,) = [line for line in answer.err.splitlines() if "No such command" in line]
    assert re.findall("`(.*?)`", said)[1:] == meant


def test_an_unknown_command_like_no_other_is_answered_with_those_that_there_are(replog):
    answer = replog("store", "xyzzy", "-f", "json")
    assert answer.exit_code == 2
    assert {"info", "verify", "repair"} <= set(re.findall(r"\w+", answer.items[0]["message"]))


LONG = "x" * 3000


@pytest.mark.parametrize(
    "words",
    [
        ["topic", "offsets", LONG],
        ["topic", "offsets", "t", "--at", LONG],
        ["topic", "describe", LONG],
        ["topic", "create", "t", "-p", LONG],
        ["topic", "create", "t", "-c", f"{LONG}=1"],
        ["topic", "create", "t", "-c", f"retention.ms={LONG}"],
        ["topic", "config", "t", "set", LONG],
        ["consume", "t", "--from", LONG],
        ["consume", "t", "--from", f"@{LONG}"],
        ["consume", "t", f"--{LONG}"],
        ["produce", LONG],
        ["produce", "t", "-c", f"{LONG}=1"],
        ["group", "describe", LONG],
        ["group", "reset-offsets", "g", "--topic", "t", "--to-offset", LONG],
        ["explain", LONG],
        ["broker", "fence", LONG],
        ["acl", "add", "--topic", "t", "--operation", LONG, "--allow-principal", "User:a"],
        [LONG],
    ],
)
def test_what_a_user_typed_makes_no_message_long(replog, tmp_path, words):
    path = tmp_path / "s"
    assert replog("-s", path, "init", "--no-fsync").exit_code == 0
    for form in ("text", "json"):
        answer = replog("-s", path, *words, "-f", form)
        assert answer.exit_code in (1, 2)
        message = answer.err if form == "text" else "".join(str(item.get("message", "")) for item in answer.items)
        assert 0 < len(message) <= 900 + len(str(path)), message[:200]  # text: with the lines of usage
