"""What the documentation site adds to docs/: pages from the top of the repository, lists of ADRs and design pages."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
GIVEN_PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "benchmarks/RESULTS.md": "results.md",
}
_LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")


def on_config(config: Any) -> Any:
    """List the ADRs and the design chapters in the navigation."""
    for title, folder in (("Decisions", "adr"), ("Design", "design")):
        pages = sorted((ROOT / "docs" / folder).glob("*.md"))
        if pages:
            section = next(each["How it works"] for each in config.nav if "How it works" in each)
            section.append({title: [f"{folder}/{page.name}" for page in pages]})
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the pages from outside docs/."""
    for path, name in GIVEN_PAGES.items():
        files.append(File.generated(config, name, content=(ROOT / path).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Point links at the site's pages; a file or folder that only the repository has becomes plain text."""
    source = {name: path for path, name in GIVEN_PAGES.items()}.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    place = PurePosixPath(source).parent

    def point(match: re.Match[str]) -> str:
        text, target = match.groups()
        path, _, anchor = target.partition("#")
        if "://" in target or not path:
            return match[0]
        found = posixpath.normpath((place / path).as_posix())
        name = GIVEN_PAGES.get(found) or (
            found.removeprefix("docs/") if found.startswith("docs/") and "." in found else None
        )
        if name is None:
            return text
        up = "../" * (len(PurePosixPath(page.file.src_uri).parts) - 1)
        return f"[{text}]({up}{name}{'#' + anchor if anchor else ''})"

    return _LINK.sub(point, markdown)
