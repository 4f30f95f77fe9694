"""The commands of docs/operations.md run as they stand there, in their order."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs" / "operations.md"


def test_the_commands_of_the_page_run(tmp_path, replog, monkeypatch):
    store = tmp_path / "store"
    assert replog("-s", store, "init", "--brokers", 3, "--no-fsync").exit_code == 0
    lines = [line for block in re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.S) for line in block.splitlines()]
    assert len(lines) == 8
    for line in lines:
        name, *arguments = shlex.split(line)
        answer = replog("-s", store, *arguments)
        assert (name, answer.exit_code) == ("replog", 0), (line, answer.err)
