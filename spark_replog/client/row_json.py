"""Typed rows as JSON, for people and for programs that read text."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any


def row_json(row: Mapping[str, Any]) -> bytes:
    """Return a row as one line of JSON in UTF-8; see `json_value`."""
    return json.dumps(json_value(row), ensure_ascii=False, separators=(",", ":")).encode()


def json_value(value: Any) -> Any:
    """Return a value as JSON has it, without loss.

    DECIMAL as text with all its digits, BINARY as base64, dates and times in ISO 8601, an interval as seconds in text,
    and numbers that JSON lacks as ``NaN`` or ``Infinity`` in text. Keys of a map become text.
    """
    if isinstance(value, Mapping):
        return {_key(name): json_value(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_value(item) for item in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, (date, datetime)):
        return value.isoformat()
    if isinstance(value, timedelta):
        return str(Decimal(value // timedelta(microseconds=1)).scaleb(-6))
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def _key(name: Any) -> str:
    made = json_value(name)
    return made if isinstance(made, str) else json.dumps(made)
