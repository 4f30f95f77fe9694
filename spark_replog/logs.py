"""Log lines: one format with time, level, logger and query, as text or as JSON, and state changes as events.

Levels: ERROR needs a person; WARNING: something waits, is slow or lost, with the remedy; INFO: the state of a store
changed, once per change; DEBUG: per batch and per call. The library itself configures no handler.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
from collections.abc import Hashable, Mapping
from typing import Any

from spark_replog.errors import ErrorCode, ReplogError

REMEMBERED_MAX = 10_000
_LOGGER = "spark_replog"
_context: dict[str, object] = {}
FORMATS = ("text", "json")


class Once:
    """Returns True the first time it gets a key. Thread-safe.

    Args:
        remembered_max: maximum number of keys; then all are forgotten, so that a long-lived process with ever new
            keys reports some of them again instead of growing.
    """

    def __init__(self, remembered_max: int = REMEMBERED_MAX) -> None:
        self._remembered_max = remembered_max
        self._seen: set[Hashable] = set()
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type[Once], tuple[int]]:
        """Pickle as an empty one, since Spark pickles readers and locks cannot be pickled."""
        return type(self), (self._remembered_max,)

    def is_first(self, key: Hashable = None) -> bool:
        """Return whether this is the first call with the key since it was forgotten; remember it."""
        with self._lock:
            if key in self._seen:
                return False
            if len(self._seen) >= self._remembered_max:
                self._seen.clear()
            self._seen.add(key)
            return True


REFUSALS = Once()
"""What this process has reported as refused."""


def warn_of_upkeep(logger: logging.Logger, ledger_id: str, words: str, error: ReplogError) -> None:
    """Warn that a part of a ledger's upkeep was left out; if storage refuses it, once in this process.

    Every process tries the upkeep. One without the right to delete leaves that to a coordinator, at each commit.

    Args:
        logger: of the caller's module.
        ledger_id: of the ledger.
        words: what was left out.
        error: why.
    """
    if error.code is not ErrorCode.REPLOG_STORE_REFUSED or REFUSALS.is_first((ledger_id, words)):
        logger.warning("ledger %s: %s: %s", ledger_id, words, error)


def set_context(**fields: object) -> None:
    """Set fields, such as query and batch, that every later line of this process has. None removes a field."""
    for name, value in fields.items():
        if value is None:
            _context.pop(name, None)
        else:
            _context[name] = value


def event(logger: logging.Logger, name: str, words: str, fields: Mapping[str, object]) -> None:
    """Log a state change: a sentence for people, its name and fields for programs."""
    logger.info("%s", words, extra={"replog_event": name, "replog_fields": dict(fields)})


class LineFormatter(logging.Formatter):
    """One line per record: ``2026-11-22T18:00:00.123Z INFO spark_replog.x query=q batch=7: text``, or a JSON object.

    Args:
        form: ``text`` or ``json``.
    """

    def __init__(self, form: str = "text") -> None:
        super().__init__()
        self._is_json = form == "json"

    def format(self, record: logging.LogRecord) -> str:
        """Return the line; a traceback follows in further lines, or is in the JSON object."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"
        name = getattr(record, "replog_event", None)
        fields = {**_context, **getattr(record, "replog_fields", {})}
        error = self.formatException(record.exc_info) if record.exc_info else ""
        if self._is_json:
            item: dict[str, Any] = {"time": stamp, "level": record.levelname, "logger": record.name}
            if name:
                item["event"] = name
            item |= {**fields, "message": record.getMessage()}
            if error:
                item["error"] = error
            return json.dumps(item, default=str)
        shown = {**({"event": name} if name else {}), **fields}
        where = "".join(f" {key}={value}" for key, value in shown.items())
        text = record.getMessage().replace("\n", "\\n")
        return f"{stamp} {record.levelname} {record.name}{where}: {text}" + (f"\n{error}" if error else "")


def log_to_stderr(level: int | str = logging.INFO, form: str | None = None) -> logging.Handler:
    """Write this package's lines to stderr, and nowhere else; a repeated call replaces the first.

    Args:
        form: ``text`` or ``json``; None: REPLOG_LOG_FORMAT, else text.

    Raises:
        ValueError: an unknown level or form.
    """
    form = form or os.environ.get("REPLOG_LOG_FORMAT") or "text"
    if form not in FORMATS:
        raise ValueError(f"REPLOG_LOG_FORMAT is {form!r}: give one of {', '.join(FORMATS)}")
    log_no_more()
    logger = logging.getLogger(_LOGGER)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter(form))
    logger.setLevel(level)
    logger.addHandler(handler)
    logger.propagate = False
    return handler


def log_no_more() -> None:
    """Undo ``log_to_stderr``."""
    logger = logging.getLogger(_LOGGER)
    for old in [handler for handler in logger.handlers if isinstance(handler.formatter, LineFormatter)]:
        logger.removeHandler(old)
        logger.setLevel(logging.NOTSET)
        logger.propagate = True


def log_as_environment_says() -> None:
    """Configure logging in a process that Spark starts, if REPLOG_LOG_LEVEL is set; log a wrong value."""
    level = os.environ.get("REPLOG_LOG_LEVEL")
    if level:
        try:
            log_to_stderr(level.upper())
        except ValueError as error:
            logging.getLogger(_LOGGER).warning("REPLOG_LOG_LEVEL and REPLOG_LOG_FORMAT have no effect: %s", error)
