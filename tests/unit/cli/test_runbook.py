"""The runbook of docs/operations.md: a section per alert and verdict, whose commands run on a store in that trouble."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from spark_replog.admin.admin import BrokerAdmin
from spark_replog.cluster.gateway_notes import GatewayNote, GatewayNoteName, GatewayNotes
from spark_replog.health.readers import Verdict
from spark_replog.ids import new_id
from tests.unit.client.consumer_setup import with_a_group

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/operations.md").read_text(encoding="utf-8")
RULES = (ROOT / "conf/replog-alerts.yml").read_text(encoding="utf-8")
ALERTS = re.findall(r"- alert: (\w+)", RULES)


def section(name):
    match = re.search(rf"^### {name}\n(.*?)(?=^##)", PAGE, re.S | re.M)
    assert match, f"no section {name}"
    return match[1]


def blocks(name):
    """Commands with the output that the page shows."""
    for block in re.findall(r"```console\n(.*?)```", section(name), re.S):
        for example in re.split(r"^\$ ", block, flags=re.M)[1:]:
            command, _, output = example.partition("\n")
            yield command, output.splitlines()


def move(path, *brokers):
    for broker in brokers:
        shutil.move(path / f"broker-{broker}", path.parent / f"away-{broker}")


def leave_silent_gateway(cluster):
    """Leave the note of a gateway that was killed a while ago."""
    silent_ms = cluster.clock.now_ms() - 600_000
    note = GatewayNote("127.0.0.1", 9092, None, 3_000, silent_ms, silent_ms)
    GatewayNotes(cluster).put(GatewayNoteName(0, new_id(), 1), note)


TROUBLE = {
    "ReplogStoreUnreachable": lambda store, path: move(path, 1, 2),
    "ReplogPartitionOffline": lambda store, path: BrokerAdmin(store.cluster).fence(0),
    "ReplogPartitionUnderMinIsr": lambda store, path: [BrokerAdmin(store.cluster).fence(broker) for broker in (1, 2)],
    "ReplogPartitionUnderReplicated": lambda store, path: BrokerAdmin(store.cluster).fence(2),
    "ReplogRootDown": lambda store, path: move(path, 2),
    "ReplogGatewaySilent": lambda store, path: leave_silent_gateway(store.cluster),
}


@pytest.fixture
def store(tmp_path):
    return with_a_group(tmp_path / "store")


@pytest.mark.parametrize("alert", ALERTS)
def test_the_commands_of_an_alert_run_in_its_trouble_and_print_what_the_page_shows(
    alert, store, replog, tmp_path, short_waits
):
    if alert == "ReplogPartitionOffline":
        answer = replog("-s", store.path, "topic", "create", "lonely", "--replica-assignment", "0")
        assert answer.exit_code == 0, answer.err
    TROUBLE.get(alert, lambda store, path: None)(store, tmp_path / "store")
    if alert == "ReplogStoreUnreachable":
        short_waits()
    commands = list(blocks(alert))
    assert commands
    for command, shown in commands:
        name, *words = shlex.split(command)
        answer = replog("-s", store.path, *words)
        said = " ".join((answer.out + answer.err).split())
        print(f"$ {command}\n{answer.out}{answer.err}({answer.exit_code})")
        assert name == "replog" and answer.exit_code != 2, (command, answer.err)
        for line in shown:
            assert " ".join(line.split()) in said, (command, line, said)


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_names_its_section(alert):
    rule = RULES.partition(f"- alert: {alert}\n")[2].partition("- alert:")[0]
    (link,) = re.findall(r"runbook: (\S+)", rule)
    assert link == f"docs/operations.md#{alert.lower()}"
    text = section(alert)
    assert all(word in text for word in ("**Means:**", "**Do:**"))


@pytest.mark.parametrize("verdict", [member.value for member in Verdict if member is not Verdict.OK])
def test_each_verdict_has_its_line(verdict):
    assert re.search(rf"^\| `{verdict}` \|", PAGE, re.M)
