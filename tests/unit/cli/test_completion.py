"""Shell completion: the script that a shell loads, and the answers that it asks for."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from spark_replog.cli.completion import answer_shell
from spark_replog.cli.main import cli, run
from spark_replog.errors import ErrorCode

ROOT = Path(__file__).parents[3]
SHELLS = ("bash", "zsh", "fish")


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    path = str(tmp_path_factory.mktemp("completion") / "my store")
    for words in (
        ["init", "--brokers", "1", "--no-fsync"],
        ["topic", "create", "orders"],
        ["topic", "create", "order-items"],
        ["topic", "create", "flights"],
        ["consume", "flights", "-g", "billing"],
    ):
        assert run(["-s", path, *words]) == 0
    return path


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """A program named replog on a PATH, as pip installs it."""
    folder = tmp_path_factory.mktemp("bin")
    script = folder / "replog"
    script.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m spark_replog "$@"\n')
    script.chmod(0o755)
    return script


@pytest.fixture
def answers(monkeypatch, capsys):
    """What the script of a shell gets for a line whose last word is being typed."""

    def ask(*words, shell="bash", store=None):
        fish = {"COMP_WORDS": " ".join(["replog", *words[:-1]]), "COMP_CWORD": words[-1]}
        others = {"COMP_WORDS": " ".join(["replog", *words]), "COMP_CWORD": str(len(words))}
        environ = {"_REPLOG_COMPLETE": f"{shell}_complete", **(fish if shell == "fish" else others)}
        monkeypatch.delenv("REPLOG_STORE", raising=False)
        for name, value in (environ if store is None else {**environ, "REPLOG_STORE": store}).items():
            monkeypatch.setenv(name, value)
        assert answer_shell(cli) == 0
        captured = capsys.readouterr()
        assert captured.err == ""
        lines = [line for line in captured.out.splitlines() if line]
        return lines[1::3] if shell == "zsh" else [line.partition(",")[2].partition("\t")[0] for line in lines]

    return ask


@pytest.mark.parametrize("shell", SHELLS)
def test_topic_names_are_offered_to_each_shell(answers, store, shell):
    assert answers("topic", "describe", "ord", shell=shell, store=store) == ["order-items", "orders"]
    assert answers("topic", "desc", shell=shell) == ["describe"]


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("consume", "fl"), ["flights"]),
        (("consume", "flights", "ord"), ["order-items", "orders"]),
        (("produce", "f"), ["flights"]),
        (("topic", "config", "f"), ["flights"]),
        (("topic", "config", "flights", "set", "retention."), ["retention.bytes", "retention.ms"]),
        (("topic", "create", "x", "-c", "retention."), ["retention.bytes=", "retention.ms="]),
        (("produce", "x", "-c", "linger"), ["linger.ms="]),
        (("group", "describe", "b"), ["billing"]),
        (("consume", "flights", "-g", ""), ["billing"]),
        (("group", "reset-offsets", "billing", "--topic", "fl"), ["flights"]),
        (("explain", "not_enough_replicas_"), [ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND.name]),
        (("explain", "linger"), ["linger.ms"]),
        (("completion", ""), list(SHELLS)),
    ],
)
def test_names_and_settings_are_offered(answers, store, words, offered):
    assert sorted(answers(*words, store=store)) == sorted(offered)


def test_the_store_of_the_line_wins(answers, store, tmp_path):
    assert answers("-s", str(tmp_path), "topic", "describe", "", store=store) == []
    assert answers("topic", "describe", "o", store=str(tmp_path / "nothing")) == []


def test_a_store_is_a_folder(answers):
    assert answers("topic", "list", "-s", "da") == ["da"]


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_is_printed_and_calls_the_program(replog, shell):
    answer = replog("completion", shell)
    assert (answer.exit_code, answer.err) == (0, "")
    assert f"_REPLOG_COMPLETE={shell}_complete" in answer.out
    (item,) = replog("completion", shell, "-f", "json").items
    assert item["script"].strip("\n") == answer.out.strip("\n")


def test_the_help_has_a_line_for_each_shell(replog):
    lines = [line.strip() for line in replog("completion", "--help").out.splitlines()]
    for shell in SHELLS:
        assert [line for line in lines if line.startswith(f"{shell}:") and f"replog completion {shell}" in line]
    assert "\\b" not in "".join(lines)


def test_an_unknown_shell_is_a_usage_error(replog):
    assert replog("completion", "tcsh").exit_code == 2
