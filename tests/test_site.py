"""The documentation site builds without a warning and holds every page, the Python API and an index to search."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    target = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(target)],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return target


def test_every_page_is_there(site):
    pages = [page.relative_to(ROOT / "docs").with_suffix("") for page in ROOT.glob("docs/**/*.md")]
    given = ["index.html", "contributing/index.html", "changelog/index.html", "results/index.html"]
    assert len(pages) > 20
    assert [str(page) for page in pages if not (site / page / "index.html").exists()] == []
    assert [page for page in given if not (site / page).exists()] == []


def test_the_api_is_drawn_from_the_docstrings(site):
    text = (site / "api" / "index.html").read_text()
    for name in ("open", "client.producer.Producer.send", "client.consumer.Consumer.poll"):
        assert f'id="spark_replog.{name}"' in text


def test_a_search_finds_a_code(site):
    index = json.loads((site / "search" / "search_index.json").read_text())
    assert any("REPLOG_COMMIT_OUTCOME_UNKNOWN" in entry["text"] + entry["title"] for entry in index["docs"])


def test_a_page_loads_nothing_from_another_host(site):
    loaded = r"<(?:script|img|link)[^>]*(?:src|href)=\"(https?:)?//[^\"]*\"[^>]*>"
    tags = [match[0] for page in site.rglob("*.html") for match in re.finditer(loaded, page.read_text())]
    assert [tag for tag in tags if 'rel="canonical"' not in tag] == []
