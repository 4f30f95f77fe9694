"""Docs are held against the tree: what they name exists."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re
import runpy
import tomllib
from pathlib import Path

import pytest

import spark_replog
from spark_replog.admin.controller import Controller
from spark_replog.client.store import Topic, TopicScan

_spec = importlib.util.spec_from_file_location("case_tables", Path(__file__).with_name("case_tables.py"))
assert _spec is not None and _spec.loader is not None
case_tables = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(case_tables)

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("docs/**/*.md"), ROOT / "README.md"])


def test_every_rule_has_a_test_and_every_marker_a_rule() -> None:
    listed = case_tables.listed_ids()

    assert len(listed) > 250
    assert sorted(listed) == sorted(case_tables.marked_tests())


@pytest.mark.parametrize("page", [*case_tables.CASE_PAGES, case_tables.GUARANTEES_PAGE], ids=lambda page: page.name)
def test_tables_of_tests_are_up_to_date(page: Path) -> None:
    assert page.read_text() == case_tables.filled(page, case_tables.marked_tests()), (
        "run: python tests/case_tables.py --write"
    )


def test_all_of_kafkas_cases_and_all_guarantees_are_listed() -> None:
    """A case without a test stands there with its reason."""
    numbers: set[int] = set()
    for line in "".join(page.read_text() for page in case_tables.CASE_PAGES).splitlines():
        cell = next((cell for cell in line.split("|")[1:-1] if cell.strip()), "")
        if cell.strip().startswith("kafka-") or cell.strip()[:1].isdigit():
            for first, last in re.findall(r"\b(\d+)(?: to (\d+))?\b", cell):
                numbers |= set(range(int(first), int(last or first) + 1))

    assert set(range(1, 125)) - numbers == set()
    assert {f"G{number}" for number in range(1, 11)} <= set(case_tables.listed_ids())


def test_generated_pages_are_up_to_date() -> None:
    generate = runpy.run_path(str(ROOT / "docs" / "generate.py"))

    for name, made in generate["PAGES"].items():
        page = (ROOT / name).read_text(encoding="utf-8")
        assert made(page) == page, "run: python docs/generate.py"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text())

    assert [t for t in targets if "://" not in t and not (page.parent / t).exists()] == []


SITE_PAGES = [*PAGES, *(ROOT / name for name in ("CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/RESULTS.md"))]


@pytest.mark.parametrize("page", SITE_PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_code_is_not_cut_at_the_width_of_the_site(page: Path) -> None:
    """docs/site.css makes room for 120 characters at 1280 px."""
    fenced = r"^```\w*\n(.*?)^```"
    text = page.read_text()
    lines = "".join(re.findall(fenced, text, re.MULTILINE | re.DOTALL)).splitlines()
    lines += re.findall(r"^ {4}(.*)", re.sub(fenced, "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)

    assert [line for line in lines if len(line) > 120] == []


def test_the_run_time_dependencies_are_named() -> None:
    """A user who ships the wheel alone installs these on the workers."""
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    names = sorted(re.split(r"[^\w-]", requirement)[0] for requirement in listed)

    assert f"({', '.join(names)})" in (ROOT / "docs" / "spark-submit.md").read_text()
    assert ["five", "six", "seven"][len(names) - 5] + " run-time" in (ROOT / "docs/adr/0013-extras.md").read_text()


def test_architecture_names_files_that_exist() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    rooms = {path.name for path in (ROOT / "spark_replog").iterdir() if path.is_dir()}
    named = {name for name in re.findall(r"`([\w/]+\.py)`", text) if name.partition("/")[0] in rooms}
    assert named
    assert sorted(name for name in named if not (ROOT / "spark_replog" / name).exists()) == []


def test_no_text_cites_a_document_that_is_not_here() -> None:
    """The contract is in docs/design/; a page outside the repository helps no reader."""
    kinds = {".py", ".md", ".toml", ".cfg", ".conf", ".yml", ".yaml"}
    folders = ("spark_replog", "pyspark_replog", "tests", "integration", "benchmarks", "docs", "conf")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in kinds]
    pattern = re.compile(
        r"\bDESIGN\b|\breferences? \d+\.\d|\b(object-log-designs|ledger-model-results|kafka-semantics)\b"
    )

    cited = [path.relative_to(ROOT).as_posix() for path in files if pattern.search(path.read_text(encoding="utf-8"))]
    assert cited == ["tests/test_docs.py"]


CALLED = (
    *(getattr(spark_replog, name) for name in spark_replog.__all__),
    *(spark_replog.AsyncConsumer, spark_replog.AsyncProducer, Controller, Topic, TopicScan),
)


def _callables(name: str) -> list[inspect.Signature]:
    """Return the signatures of a function or class of the API, and of the methods of its classes with this name."""
    matches = [exported for exported in CALLED if callable(exported) and getattr(exported, "__name__", "") == name]
    methods = [getattr(owner, name) for owner in CALLED if inspect.isclass(owner) and hasattr(owner, name)]
    return [inspect.signature(function) for function in (*matches, *methods) if callable(function)]


def _takes(signature: inspect.Signature, call: ast.Call) -> bool:
    """Return whether the call's arguments fit, with or without `self`; settings are no topic's name."""
    has_names = any(parameter.kind is parameter.VAR_POSITIONAL for parameter in signature.parameters.values())
    if has_names and any(isinstance(argument, ast.Dict | ast.Set) for argument in call.args):
        return False
    named = {keyword.arg: None for keyword in call.keywords if keyword.arg}
    for count in (len(call.args), len(call.args) + 1):
        try:
            signature.bind(*[None] * count, **named)
        except TypeError:
            continue
        return True
    return False


def test_calls_inside_sentences_have_the_arguments_that_the_api_takes() -> None:
    """Blocks run in other tests."""
    checked, wrong = 0, []
    for page in [*PAGES, ROOT / "CHANGELOG.md"]:
        text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        for code in re.findall(r"`([^`\n]+\([^`\n]*\)[^`\n]*)`", text):
            try:
                calls = [node for node in ast.walk(ast.parse(code, mode="eval")) if isinstance(node, ast.Call)]
            except SyntaxError:
                continue  # a command, or words
            for call in calls:
                signatures = _callables(getattr(call.func, "attr", getattr(call.func, "id", "")))
                is_short = any(isinstance(argument, ast.Constant) and argument.value is ... for argument in call.args)
                checked += bool(signatures)
                if (
                    signatures
                    and not is_short
                    and (call.args or call.keywords)
                    and not any(_takes(signature, call) for signature in signatures)
                ):
                    wrong.append((page.name, code))
    assert wrong == [] and checked > 20
    bad = ast.parse('Consumer(path, "topic", {...})', mode="eval").body
    assert isinstance(bad, ast.Call) and not any(_takes(signature, bad) for signature in _callables("Consumer"))
