"""What real Kafka 4.1 answered in each case, and where a gateway answers otherwise, with the reason.

``answers.json`` holds a text for each step of each case; where the gateway differs on purpose, both texts and why.
``REPLOG_WRITE_ANSWERS=1 python -m pytest tests/servers/test_kafka_answers.py`` writes what Kafka answers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from tests.protocol import fetch_cases, group_cases, produce_cases
from tests.protocol.case_run import CASES

FILE = Path(__file__).with_name("answers.json")
MODULES = produce_cases, fetch_cases, group_cases
"""Each has added its cases to `CASES` by its import."""
Difference = dict[str, str | None]
"""``kafka`` and ``gateway``: the texts, None where there is no such answer; ``why``."""
Steps = dict[str, str | Difference]


def load() -> dict[str, Steps]:
    """Return the steps of each case."""
    table: dict[str, Steps] = json.loads(FILE.read_text(encoding="utf-8"))
    return table


def expected(steps: Steps, server: str) -> dict[str, str]:
    """Return what a server, ``kafka`` or ``gateway``, answers in each step."""
    texts = {step: told if isinstance(told, str) else told[server] for step, told in steps.items()}
    return {step: text for step, text in texts.items() if text is not None}


def differences() -> dict[tuple[str, str], Difference]:
    """Return by case and step where the gateway differs."""
    return {
        (name, step): told for name, steps in load().items() for step, told in steps.items() if isinstance(told, dict)
    }


def record(name: str, answers: Mapping[str, str]) -> None:
    """Write what Kafka answers in a case; what is known of the gateway stays."""
    table = load()
    before = table.get(name, {})
    steps: Steps = {}
    for step in dict.fromkeys([*answers, *before]):
        told, text = before.get(step), answers.get(step)
        if isinstance(told, dict):
            steps[step] = {**told, "kafka": text}
        elif text is not None:
            steps[step] = text
    table[name] = steps
    ordered = {case: table[case] for case in CASES if case in table}
    FILE.write_text(json.dumps(ordered, indent=1) + "\n", encoding="utf-8")
