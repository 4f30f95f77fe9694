"""The live line: in place on a terminal, now and then elsewhere, never when quiet."""

from __future__ import annotations

import io
import re

import pytest

from spark_replog.cli.output import ProgressLine
from tests.manual_clock import ManualClock


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


SHOW_CURSOR = "\x1b[?25h"


def test_terminal_line_is_rewritten_and_cleared(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    with pytest.raises(KeyboardInterrupt), ProgressLine(quiet=False, stream=stream) as line:
        line.update("12345")
        line.update("123[bold]")
        raise KeyboardInterrupt  # whatever ends it, the cursor is there again
    shown = stream.getvalue()
    assert "12345" in shown and "123[bold]" in shown and "\r\x1b[2K" in shown.split("12345")[1]
    assert shown.rindex(SHOW_CURSOR) > shown.rindex("123[bold]")


def test_a_long_line_does_not_wrap(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "10")
    stream = Terminal()
    with ProgressLine(quiet=False, stream=stream) as line:
        line.update("x" * 50)
    assert max(map(len, re.findall("x+", stream.getvalue()))) <= 10


def test_elsewhere_one_line_in_five_seconds():
    stream = io.StringIO()
    clock = ManualClock()
    line = ProgressLine(quiet=False, stream=stream, clock=clock)
    for _ in range(11):
        line.update("state")
        clock.sleep_ms(1_000)
    line.say("done")
    assert stream.getvalue() == "state\nstate\nstate\ndone\n"


def test_elsewhere_the_last_state_is_shown_at_the_end():
    stream = io.StringIO()
    line = ProgressLine(quiet=False, stream=stream, clock=ManualClock())
    for count in (6, 500, 1000):
        line.update(f"copied {count} of 1000")
    line.close()
    line.close()
    assert stream.getvalue() == "copied 6 of 1000\ncopied 1000 of 1000\n"


def test_quiet_shows_nothing():
    stream = Terminal()
    line = ProgressLine(quiet=True, stream=stream)
    line.update("x")
    line.say("y")
    line.close()
    assert stream.getvalue() == ""
