"""The unit and the container file of a gateway in ``conf/``: their commands are commands of this release."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from spark_replog.cli.gateway import gateway
from spark_replog.gateway.server import DRAIN_SECONDS

CONF = Path(__file__).parents[3] / "conf"


def settings(unit: str) -> dict[str, str]:
    return dict(re.findall(r"^(\w+)=(.*)$", unit, re.MULTILINE))


def test_the_unit_runs_a_gateway_and_gives_it_time_to_drain():
    unit = settings((CONF / "replog-gateway.service").read_text(encoding="utf-8"))
    program, command, *words = shlex.split(unit["ExecStart"])
    assert (Path(program).name, command) == ("replog", "gateway")
    with gateway.make_context("gateway", words) as context:
        assert context.params["workers"] == 2
    assert int(unit["TimeoutStopSec"]) > DRAIN_SECONDS
    assert unit["KillMode"] == "mixed", "one signal: the first process passes it on"


def test_the_container_runs_a_gateway_that_gets_its_signals():
    text = (CONF / "gateway.Containerfile").read_text(encoding="utf-8")
    entry, words = (
        json.loads(re.search(rf"^{name} (\[.*\])$", text, re.MULTILINE)[1]) for name in ("ENTRYPOINT", "CMD")
    )
    assert entry == ["replog", "gateway"], "no shell between, which would keep the signal"
    with gateway.make_context("gateway", words) as context:
        assert context.params["advertised"] == ("localhost:9092",)


@pytest.mark.parametrize("name", ["replog-gateway.service", "gateway.Containerfile"])
def test_the_page_names_it(name):
    page = (CONF.parent / "docs/gateway.md").read_text(encoding="utf-8")
    assert f"(../conf/{name})" in page
