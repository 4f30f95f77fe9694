"""What every command and every page of the console answers about one store: byte for byte, as scripts read it.

Rewrite the file after a change that is meant, and read the difference: `REPLOG_WRITE_ANSWERS=1 python -m pytest
tests/unit/cli/test_answers.py`.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from spark_replog.admin.admin import BrokerAdmin
from spark_replog.clock import SYSTEM_RANDOM, SystemClock
from tests.at_rest import wait_at_rest
from tests.unit.client.consumer_setup import with_a_group
from tests.unit.monitor.test_queries import Query
from tests.unit.ui.console_client import ConsoleClient

ANSWERS = Path(__file__).with_name("answers.txt")
BEGAN_MS = 1_800_000_000_000
LATER_MS = 600_000
ID = re.compile(r"\b[0-9a-f]{32}\b")
RECORDS = re.compile(r"""(journals [0-9]+ with |"journalRecords": )[0-9]+""")
SHOWING = """
status
status --checkpoint checkpoints
top --checkpoint checkpoints
store info
store info --cost --readers 2
store verify
store repair --dry-run
store gc --dry-run
broker list
topic list
topic list --size
topic describe orders
topic describe orders __consumer_offsets --size
topic offsets orders
topic offsets orders --at earliest -p 1
topic config orders get
topic reassign orders
topic describe nowhere
group list
group describe billing
group describe --all-groups --members
group check billing nobody
group check --all-groups --max-lag 1m
query list checkpoints
query describe checkpoints/orders
query check checkpoints/orders --after 1m
acl list
acl config get
quota describe
explain NOT_ENOUGH_REPLICAS linger.ms root-full nonsense
copy orders other --by-key --dry-run
""".strip().splitlines()
CHANGING = """
init
topic create other -p 2 -c retention.ms=-1
topic create other
topic config other set retention.ms=1000
topic config other unset retention.ms
produce other rows.jsonl --key id
consume other -n 1
consume other -f jsonl -p 0
topic trim other --partition 0 --to 1 -y
topic compact other
topic add-partitions other 3 -y
topic elect orders -y
topic reassign other 0=0,1
topic reassign other --cancel
group reset-offsets billing --topic orders:0 --to-earliest
group reset-offsets billing --topic orders:0 --to-earliest --execute
group delete-offsets billing --topic orders:0 --topic orders:1 -y
group delete billing nobody -y
acl add --allow-principal User:* --allow-principal User:etl --producer --topic orders -y
acl list --topic orders
acl remove --principal User:etl --topic orders -y
acl config set allow.everyone.if.no.acl.found=true
quota set --user etl producer_byte_rate=1000
quota describe
broker unfence 2
topic delete other nowhere -y
topic list --frobnicate
""".strip().splitlines()
TYPED = """
topic create sales --schema-from rows.jsonl --key id -y
produce sales rows.jsonl
consume sales --output table --print-offset
topic schema show sales
""".strip().splitlines()
PAGES = (
    "overview",
    "placement?count=2",
    "topics?sort=rows",
    "topic?name=orders&count=1",
    "readers",
    "reader?kind=group&name=billing",
    "health",
    "ledgers",
    "settings",
    "rows/plan?topic=orders",
    "rows?topic=orders&count=1",
)
TYPED_PAGES = ("topic?name=sales", "rows?topic=sales&column=id&value=a")


@pytest.fixture
def clock(monkeypatch):
    """The wall time of this process: it stands still but for what a test adds."""
    now = SimpleNamespace(ms=BEGAN_MS)
    monkeypatch.setattr(SystemClock, "now_ms", lambda _: now.ms)
    return now


@pytest.fixture
def store(tmp_path, monkeypatch, clock):
    """Three brokers, one of them fenced; a group that is behind, and a query that has stopped."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")  # whatever the terminal has
    monkeypatch.setattr(SYSTEM_RANDOM, "randrange", lambda *_: 0)  # where the first leader of a topic is
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=100 << 30))
    made = with_a_group(Path("store"))
    query = Query(tmp_path / "checkpoints" / "orders", made.cluster.lookup("orders").topic_id)
    query.done(0, BEGAN_MS - 1000, {0: 2, 1: 0})
    query.done(1, BEGAN_MS, {0: 3, 1: 0})
    (tmp_path / "rows.jsonl").write_text('{"id": "a", "n": 1}\n{"id": "b", "n": 2}\n')
    BrokerAdmin(made.cluster).fence(2)
    wait_at_rest(made.cluster.brokers)
    clock.ms += LATER_MS
    return made


def settled(text, tmp_path):
    """The text without what differs between two runs: folders; ids, which get numbers in their order; and how many
    records a journal has, since a slow root gets an entry later, with another one.
    """
    names: dict[str, str] = {}
    text = RECORDS.sub(r"\1<count>", text.replace(str(tmp_path), "/TMP"))
    return ID.sub(lambda match: names.setdefault(match[0], f"<id {len(names)}>"), text)


def answers_of(replog, words):
    """The answer as text, and as JSON."""
    shown = replog("-s", "store", *words)
    yield f"$ {' '.join(words)}\n{shown.out}{shown.err}exit code {shown.exit_code}"
    made = replog("-s", "store", *words, "-f", "json")
    yield f"$ {' '.join(words)} -f json\n{made.out}exit code {made.exit_code}"


@pytest.fixture
def answers(store, replog, tmp_path):
    parts = []
    replog("-s", "store", "topic", "create", "other")
    for line in SHOWING:
        parts += answers_of(replog, line.split())
    replog("-s", "store", "topic", "delete", "other", "-y")
    console = ConsoleClient(store, checkpoints=["checkpoints"]).enter()
    for page in PAGES:
        parts.append(f"GET {page}\n{console.http.get(f'/api/{page}').text}")
    scraped = replog("-s", "store", "metrics", "serve", "--once", "--checkpoint", "checkpoints")
    lines = [scraped_line for scraped_line in scraped.out.splitlines() if "replog_storage_" not in scraped_line]
    parts.append("\n".join(["$ metrics serve --once", *lines]))
    for line in CHANGING:
        words = line.split()
        made = replog("-s", "new" if words == ["init"] else "store", *words, *([] if "-f" in words else ["-f", "json"]))
        parts.append(f"$ {line} -f json\n{made.out}{made.err}exit code {made.exit_code}")
    for line in TYPED:
        parts += answers_of(replog, line.split())
    for page in TYPED_PAGES:
        parts.append(f"GET {page}\n{console.http.get(f'/api/{page}').text}")
    return settled("\n\n".join(parts) + "\n", tmp_path)


def test_every_command_and_page_answers_as_before(answers):
    if os.environ.get("REPLOG_WRITE_ANSWERS"):
        ANSWERS.write_text(answers, encoding="utf-8")
    assert answers == ANSWERS.read_text(encoding="utf-8")
