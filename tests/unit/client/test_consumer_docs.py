"""The page for users runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

from spark_replog.cli.main import run

PAGE = Path(__file__).parents[3] / "docs/consumer.md"


def test_the_blocks_of_the_page_run_in_order(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text = PAGE.read_text()
    assert run(["-s", "data/store", "init", "--brokers", "3", "--no-fsync"]) == 0
    assert run(["-s", "data/store", "topic", "create", "orders", "-p", "3"]) == 0
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) == 6
    names: dict[str, object] = {}
    for number, block in enumerate(blocks):
        exec(compile(block, f"{PAGE.name}, block {number + 1}", "exec"), names)
    for line in re.findall(r"^replog -s data/store (group (?:list|describe billing)|consume orders)\s{2,}", text, re.M):
        assert run(["-s", "data/store", *line.split()]) == 0
    assert "order 0" in capsys.readouterr().out
