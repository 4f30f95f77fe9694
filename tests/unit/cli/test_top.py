"""``replog top``: its page at several sizes, and the live form on a terminal of its own."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from spark_replog.cli.settings import Settings
from spark_replog.cli.top import page
from spark_replog.monitor.store_monitor import StoreWatch
from tests.unit.client.consumer_setup import with_a_group

ROOT = Path(__file__).parents[3]

TAKEN_ELSEWHERE = """
import runpy, signal, threading
threading.Thread(target=threading.Event().wait, daemon=True).start()
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGWINCH})
runpy.run_module("spark_replog", run_name="__main__")
"""
"""`replog` in a process where another thread takes the signals: no system call of the main thread is interrupted,
as by a signal that comes just before the call."""


@pytest.fixture
def store(tmp_path):
    return with_a_group(tmp_path / "store", "bill\x1b[2Jing")


@pytest.mark.parametrize("height", [3, 5, 10, 24, 60])
@pytest.mark.parametrize("width", [40, 80, 160])
def test_the_page_fits_and_hostile_names_do_nothing(store, width, height, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", str(width))
    lines = page(StoreWatch(store.cluster).look(), Settings(store=store.path), width, height)
    assert len(lines) <= height and all(len(line.text) <= width for line in lines)
    text = "\n".join(line.text for line in lines)
    assert text.replace("\n", "").isprintable()
    if width >= 80 and height >= 24:
        for word in ("OK  ", "3 of 3 roots serve", "orders", "BROKER", "VERDICT", "bill", "15 MINUTES"):
            assert word in text


def test_many_topics_are_counted_where_they_do_not_fit(store):
    for number in range(30):
        store.create(f"topic-{number}")
    lines = page(StoreWatch(store.cluster).look(), Settings(store=store.path), 80, 24)
    assert len(lines) <= 24 and re.match(r"and \d+ more", lines[-1].text)
    assert any(line.text.startswith("orders ") for line in lines)  # the busiest first


def test_faults_come_first_with_their_remedy(store, replog, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    replog("-s", store.path, "broker", "fence", 1, 2, "-y")
    text = replog("-s", store.path, "top").out
    assert text.startswith("CRITICAL  ") and "-> replog " in text and " broker unfence 1 2" in text
    assert text.index("CRITICAL under-min-isr: 3: ") < text.index("orders-0, orders-1") < text.index("BROKER")


def test_without_a_terminal_it_prints_once_or_as_often_as_asked(store, replog):
    answer = replog("-s", store.path, "top")
    assert answer.exit_code == 0 and answer.out.count("roots serve") == 1 and "\x1b" not in answer.out
    assert replog("-s", store.path, "top", "-n", 2, "-d", 0.1).out.count("roots serve") == 2
    (item,) = replog("-s", store.path, "top", "-f", "json").items
    (orders,) = [each for each in item["rates"] if each["topic"] == "orders"]
    assert len(orders["bytesByMinute"]) == 15 and sum(orders["bytesByMinute"]) == orders["bytes"] > 0
    assert item["readers"][0]["lag"] > 0
    assert len(replog("-s", store.path, "top", "-n", 2, "-d", 0.1, "-f", "jsonl").out.splitlines()) == 2
    assert replog("-s", store.path, "top", "-n", 2, "-f", "json").exit_code == 2
    assert (
        replog("-s", store.path, "top", "--checkpoint", store.path + "/nowhere").out.count("WARN ") == 2
    )  # the title, and the folder


class Terminal:
    """The command on a pseudo terminal."""

    def __init__(self, path, program=("-m", "spark_replog")):
        self.main, side = pty.openpty()
        self.resize(24, 80)
        command = [sys.executable, *program, "-s", path, "top", "-d", "600"]
        environment = {**os.environ, "TERM": "xterm", "PYTHONIOENCODING": "utf-8"}
        environment.pop("COLUMNS", None)
        environment.pop("LINES", None)
        self.before = termios.tcgetattr(side)
        self.process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=side, stdout=side, stderr=side, start_new_session=True
        )
        self.side = side
        self.seen = ""

    def resize(self, lines, columns):
        fcntl.ioctl(self.main, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def read_until(self, words, after=0):
        end = time.monotonic() + 60
        while words not in self.seen[after:]:
            assert time.monotonic() < end, self.seen
            if select.select([self.main], [], [], 0.2)[0]:
                self.seen += os.read(self.main, 65536).decode()
        return self.seen

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self.main)
        os.close(self.side)


@pytest.mark.parametrize(("ending", "code"), [("q", 0), (signal.SIGINT, 130), (signal.SIGTERM, 130)])
@pytest.mark.parametrize("program", [("-m", "spark_replog"), ("-c", TAKEN_ELSEWHERE)], ids=["main", "elsewhere"])
def test_live_it_follows_the_size_and_leaves_the_terminal_as_it_was(store, program, ending, code):
    terminal = Terminal(store.path, program)
    try:
        terminal.read_until("\x1b[J")
        at = len(terminal.seen)
        terminal.resize(12, 120)
        terminal.process.send_signal(signal.SIGWINCH)
        drawn = terminal.read_until("\x1b[J", at)[at:].split("\x1b[J")[0]
        lines = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", drawn).split("\r\n")
        assert len(lines) <= 12 and len(lines[0]) == 120
        if ending == "q":
            os.write(terminal.main, b"q")
        else:
            terminal.process.send_signal(ending)
        assert terminal.process.wait(120) == code
        terminal.read_until("\x1b[?1049l")
        assert termios.tcgetattr(terminal.side) == terminal.before
    finally:
        terminal.close()
