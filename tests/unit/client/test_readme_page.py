"""The quick start of README.md runs as it is printed."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[3] / "README.md"


def test_the_quick_start_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    block = re.search(r"<!-- runs in tests/\S+ -->\n```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert block is not None
    exec(compile(block[1], str(PAGE), "exec"), {})
    sent, rows = capsys.readouterr().out.splitlines()
    partition, offset = sent.split()
    assert (partition in ("0", "1"), offset) == (True, "0")
    assert "b'hello'" in rows and "b'customer-7'" in rows
