"""The live line: in place on a terminal, now and then elsewhere, never when quiet."""

from __future__ import annotations

import io

from spark_replog.cli.output import ProgressLine
from tests.manual_clock import ManualClock


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_terminal_line_is_rewritten_and_cleared():
    stream = Terminal()
    clock = ManualClock()
    line = ProgressLine(quiet=False, stream=stream, clock=clock)
    line.update("12345")
    line.update("too soon")
    clock.sleep_ms(100)
    line.update("123")
    line.close()
    assert stream.getvalue() == "\r12345\r123  \r   \r"


def test_a_long_line_does_not_wrap(monkeypatch):
    monkeypatch.setenv("COLUMNS", "10")
    stream = Terminal()
    ProgressLine(quiet=False, stream=stream, clock=ManualClock()).update("x" * 50)
    assert stream.getvalue() == "\r" + "x" * 9


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
