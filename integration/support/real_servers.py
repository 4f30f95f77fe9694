"""Storage servers of the tests, started where their program can be had."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.servers.builds import NotBuilt


def running(stack: ExitStack, kind: Any, folder: Path) -> Any:
    """Start a server over a new folder below this one; the stack ends it. Skips the test where there is no program."""
    (folder / kind.name).mkdir(parents=True)
    try:
        return stack.enter_context(kind(folder / kind.name))
    except NotBuilt as why:
        pytest.skip(str(why))
