"""What docs/gateway.md says for clients that are no Python: tests run its blocks, so the page stays true."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs/gateway.md"


def block_of(test: str, address: str) -> str:
    """Return the block that a test runs, for a gateway at an address."""
    text = PAGE.read_text(encoding="utf-8")
    block = re.search(rf"<!-- runs in \S+::{test} -->\n```\w+\n(.*?)```", text, re.DOTALL)
    assert block is not None
    return block[1].replace("127.0.0.1:9092", address)
