"""A real Prometheus: its own checks of rules and metrics, and what it makes of a store in trouble."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.parse
import urllib.request
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from spark_replog.admin.admin import BrokerAdmin
from tests.servers.builds import PROMETHEUS, NotBuilt
from tests.servers.server import free_port
from tests.unit.cli.test_runbook import leave_silent_gateway
from tests.unit.client.consumer_setup import with_a_group
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
RULES = ROOT / "conf/replog-alerts.yml"
TROUBLE = {
    "ReplogPartitionUnderMinIsr",
    "ReplogPartitionUnderReplicated",
    "ReplogRootDown",
    "ReplogReaderDown",
    "ReplogGatewaySilent",
}


@pytest.fixture(scope="module")
def programs():
    try:
        return PROMETHEUS.folder() / "usr/bin"
    except NotBuilt as why:
        pytest.skip(str(why))


@contextmanager
def metrics_of(path, *words):
    """`replog metrics serve` as a process; gives the address."""
    command = [sys.executable, "-m", "spark_replog", "-s", path, "metrics", "serve", "--listen", "127.0.0.1:0", *words]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            assert process.stderr is not None
            yield re.search(r"http://([\d.:]+)/metrics", process.stderr.readline())[1]
        finally:
            process.terminate()


@contextmanager
def prometheus_of(programs, target, folder):
    """A Prometheus that scrapes an address every second; gives a function: path of its API to the answer."""
    port, config, log_file = free_port(), folder / "prometheus.yml", folder / "prometheus.log"
    config.write_text(
        "global: {scrape_interval: 1s, evaluation_interval: 1s}\n"
        f"rule_files: ['{RULES}']\n"
        f"scrape_configs: [{{job_name: replog, static_configs: [{{targets: ['{target}']}}]}}]\n"
    )
    command = [programs / "prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder / 'tsdb'}"]
    command.append(f"--web.listen-address=127.0.0.1:{port}")
    with log_file.open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)

    def ask(path):
        assert process.poll() is None, log_file.read_text()[-2000:]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/{path}", timeout=60) as answer:
            return json.load(answer)["data"]

    try:
        yield ask
    finally:
        process.terminate()
        process.wait()


def until(look):
    """Wait until a look finds something, and return it."""

    def look_again():
        with suppress(OSError):  # it does not listen yet
            return look()

    return wait_until(look_again, pause_seconds=0.1)


def test_promtool_accepts_rules_and_metrics(programs, tmp_path):
    subprocess.run([programs / "promtool", "check", "rules", RULES], check=True, capture_output=True)
    with_a_group(tmp_path / "store")
    with metrics_of(str(tmp_path / "store")) as address, urllib.request.urlopen(f"http://{address}/metrics") as answer:
        text = answer.read()
    command = [programs / "promtool", "check", "metrics"]
    done = subprocess.run(command, input=text, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_real_prometheus_scrapes_a_store_in_trouble_and_raises_its_alerts(programs, tmp_path):
    store = with_a_group(tmp_path / "store")
    for broker in (0, 1):
        BrokerAdmin(store.cluster).fence(broker)
    leave_silent_gateway(store.cluster)
    (tmp_path / "store/broker-2").rename(tmp_path / "away")
    with ExitStack() as stack:
        address = stack.enter_context(metrics_of(store.path, "--after", "1s"))
        ask = stack.enter_context(prometheus_of(programs, address, tmp_path))

        def alerts():
            return {alert["labels"]["alertname"] for alert in ask("alerts")["alerts"]}

        until(lambda: alerts() >= TROUBLE)
        rules = until(lambda: [rule for rule in ask("rules")["groups"][0]["rules"] if rule["health"] != "unknown"])
        assert [(rule["name"], rule["health"]) for rule in rules if rule["health"] != "ok"] == []
        assert alerts() == TROUBLE
        panels = json.loads((ROOT / "conf/replog-dashboard.json").read_text())["panels"]
        asked = [urllib.parse.urlencode({"query": target["expr"]}) for panel in panels for target in panel["targets"]]
        until(lambda: all(ask(f"query?{query}")["result"] for query in asked))  # a rate needs two scrapes
