"""One live line on stderr: rewritten in place on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import shutil
import sys
from typing import TextIO

from spark_replog.clock import SYSTEM_CLOCK, Clock

_TERMINAL_EVERY_MS = 100
_PLAIN_EVERY_MS = 5_000


class ProgressLine:
    """Shows the newest of many states. Not thread safe.

    Args:
        quiet: show nothing at all.
        stream: where to, stderr unless given.
        clock: how often to show.
    """

    def __init__(self, *, quiet: bool, stream: TextIO | None = None, clock: Clock = SYSTEM_CLOCK) -> None:
        self._quiet = quiet
        self._stream = stream if stream is not None else sys.stderr
        self._clock = clock
        self._is_terminal = self._stream.isatty()
        self._shown_ms: int | None = None
        self._width = 0

    def update(self, text: str) -> None:
        """Show the text, unless the last one was shown only just now."""
        now_ms = self._clock.monotonic_ms()
        every_ms = _TERMINAL_EVERY_MS if self._is_terminal else _PLAIN_EVERY_MS
        if self._quiet or (self._shown_ms is not None and now_ms - self._shown_ms < every_ms):
            return
        self._shown_ms = now_ms
        if self._is_terminal:
            # A line that wraps could not be rewritten: the carriage only returns to its last row.
            text = text[: shutil.get_terminal_size().columns - 1]
            self._stream.write("\r" + text.ljust(self._width))
            self._width = len(text)
        else:
            self._stream.write(text + "\n")
        self._stream.flush()

    def say(self, text: str) -> None:
        """Show a line that stays."""
        if self._quiet:
            return
        self.close()
        self._stream.write(text + "\n")
        self._stream.flush()

    def close(self) -> None:
        """End the live line, so that what follows starts on its own."""
        if self._width:
            self._stream.write("\r" + " " * self._width + "\r")
            self._stream.flush()
            self._width = 0
        self._shown_ms = None
