"""Write the pages that are generated from the package's own data: ``python docs/generate.py``.

What stands above the mark in a page is written by hand and kept. ``tests/test_docs.py`` compares the pages.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path

from spark_replog.cli.explain import entries

DOCS = Path(__file__).resolve().parent
MARK = "<!-- Generated from here on from {source}: python docs/generate.py -->\n"


def errors_page(old: str) -> str:
    """Return ``errors.md``: the catalogue of error codes below the introduction of the old page."""
    return _below(old, "spark_replog/errors.toml", _errors())


def _below(old: str, source: str, lines: Iterator[str]) -> str:
    mark = MARK.format(source=source)
    introduction, found, _ = old.partition(mark)
    assert found, f"the page has no line {mark}"
    return introduction + mark + "\n".join(lines) + "\n"


def _errors() -> Iterator[str]:
    section = None
    for entry in entries().values():
        if entry.section != section:
            section = entry.section
            yield f"\n## {section}"
        yield f"\n### {entry.code.name} ({entry.code.value})\n"
        for label, text in (("Meaning", entry.meaning), ("State", entry.state), ("Remedy", entry.remedy)):
            yield textwrap.fill(
                f"- **{label}**: {text}", 120, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
            )


PAGES = {"errors.md": errors_page}

if __name__ == "__main__":
    for name, made in PAGES.items():
        page = DOCS / name
        page.write_text(made(page.read_text(encoding="utf-8")), encoding="utf-8")
