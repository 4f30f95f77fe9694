"""The command as a function: arguments in; exit code, stdout and stderr out."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from spark_replog.cli.main import run
from spark_replog.cluster import cluster
from spark_replog.storage import brokers


@dataclass(frozen=True)
class Answer:
    exit_code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def items(self) -> Any:
        return self.json["items"]


@pytest.fixture
def replog(capsys, monkeypatch):
    monkeypatch.delenv("REPLOG_STORE", raising=False)

    def call(*arguments: object) -> Answer:
        exit_code = run([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Answer(exit_code, captured.out, captured.err)

    return call


@pytest.fixture
def short_retries(monkeypatch):
    """Roots that fail are asked again for a tenth of a second instead of two: what follows is the same.

    So is a tail that they leave open: for a tenth of a second instead of one.
    """
    monkeypatch.setattr(brokers, "STORE_DEADLINE_MS", 100)
    monkeypatch.setattr(cluster, "LedgerSettings", partial(cluster.LedgerSettings, tail_retry_ms=100))


@pytest.fixture
def short_waits(monkeypatch, short_retries):
    """Return a function: from its call on, a majority that is away is given up after half a second instead of three.

    To be called once no majority is there: a busy machine may stand still for longer than half a second.
    """
    short = partial(cluster.LedgerSettings, quorum_timeout_ms=500)
    return lambda: monkeypatch.setattr(cluster, "LedgerSettings", short)
