"""Programs that end without ``close`` or ``flush``: their sends are in the log, or the loss is reported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import spark_replog
from tests.unit.client.consumer_setup import Store

ROOT = Path(__file__).parents[2]
SENDS = """
import shutil, sys
from spark_replog.client import producer as module
producer = module.Producer(sys.argv[1], {"linger.ms": 600_000})
for number in range(1_000):
    handle = producer.send("orders", b"%d" % number)
"""


@pytest.fixture
def store(tmp_path):
    made = Store.init(str(tmp_path / "store"))
    made.create("orders", 2)
    return made


def run(program: str, store: Store) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "always::ResourceWarning", "-c", program, store.path]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)


def row_count(store: Store) -> int:
    return spark_replog.open(store.path).topic("orders").scan().to_arrow().num_rows


@pytest.mark.parametrize(
    "ending",
    ["", "del producer", "raise SystemExit(0)", "import threading; threading.Thread(target=lambda: None).start()"],
)
def test_a_program_that_ends_without_close_loses_no_send(store, ending):
    ended = run(SENDS + ending, store)
    assert ended.returncode == 0, ended.stderr
    assert "was not closed: its waiting records were sent" in ended.stderr
    assert row_count(store) == 1_000


def test_what_a_program_could_not_send_at_its_end_is_counted(store):
    ended = run(SENDS + "module.EXIT_SECONDS = 0.5\nshutil.rmtree(sys.argv[1])", store)
    assert "was not closed: 1,000 records were not sent" in ended.stderr
    assert "ResourceWarning" in ended.stderr


def test_a_closed_producer_says_nothing_at_the_end(store):
    ended = run(SENDS + "producer.close()", store)
    assert ended.returncode == 0
    assert "closed" not in ended.stderr


def test_an_open_transaction_of_a_forgotten_producer_is_aborted_and_counted(store):
    program = SENDS.replace('"linger.ms": 600_000', '"transactional.id": "t"').replace(
        "for number", "producer.begin_transaction()\nfor number"
    )
    ended = run(program, store)
    assert "1,000 records were not sent" in ended.stderr
    assert row_count(store) == 0
