"""The README's main command, as a stranger runs it: an empty HOME, no Java to be found, a new user."""

from __future__ import annotations

import json
import os
import re
import secrets
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
JAVA_PROGRAMS = re.compile(r"java|javac|jar|jcmd|jps|jshell|keytool")
# What reaches the package index from here; everything else of the environment stays behind.
KEPT_VARIABLES = re.compile(r"PIP_\w+|SSL_\w+|\w*_proxy|\w*_PROXY|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE|LANG|TZ")
FLIGHTS_ROWS = "336,776"
TIMEOUT_SECONDS = 900


class Stranger:
    """Who runs the command: a user made for this test where we are root, else ourselves."""

    def __init__(self, name: str | None, folder: Path) -> None:
        self.name = name
        self.folder = folder
        self.programs = folder / "programs"
        self.environ = {key: value for key, value in os.environ.items() if KEPT_VARIABLES.fullmatch(key)}
        self.environ |= {"HOME": str(folder / "home"), "PATH": str(self.programs), "TMPDIR": str(folder / "tmp")}

    def run(self, command: list[str], *, cwd: Path, timeout: int = 60) -> subprocess.CompletedProcess[str]:
        if self.name is not None:
            command = [
                shutil.which("setpriv") or "setpriv",
                f"--reuid={self.name}",
                f"--regid={self.name}",
                "--clear-groups",
                *command,
            ]
        return subprocess.run(
            command, cwd=cwd, env=self.environ, capture_output=True, text=True, timeout=timeout, check=False
        )

    def own(self, path: Path) -> None:
        if self.name is not None:
            shutil.chown(path, self.name, self.name)
            for below in path.rglob("*"):
                if not below.is_symlink():
                    shutil.chown(below, self.name, self.name)


@pytest.fixture
def stranger(work_folder) -> Iterator[Stranger]:
    folder = work_folder / f"stranger-{secrets.token_hex(4)}"
    for name in ("home", "tmp", "programs", "checkout"):
        (folder / name).mkdir(parents=True)
    for above in (folder, work_folder):
        above.chmod(0o755)
    name = None
    if os.geteuid() == 0 and shutil.which("useradd") and shutil.which("setpriv"):
        name = f"replog-{secrets.token_hex(4)}"
        made = subprocess.run(
            ["useradd", "--no-create-home", "--home-dir", str(folder / "home"), "--user-group", name],
            capture_output=True,
            check=False,
        )
        name = name if made.returncode == 0 else None
    try:
        yield Stranger(name, folder)
    finally:
        if name is not None:
            subprocess.run(["userdel", name], capture_output=True, check=False)


def link_programs(stranger: Stranger) -> None:
    """A PATH with everything of the system but Java."""
    for folder in ("/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin", "/sbin"):
        for program in Path(folder).glob("*") if Path(folder).is_dir() else ():
            link = stranger.programs / program.name
            if not JAVA_PROGRAMS.fullmatch(program.name) and not link.is_symlink():
                link.symlink_to(program)


def give_python(stranger: Stranger) -> None:
    """Make ``python3`` one of 3.11 or newer with venv, that this user may run."""
    ask = "import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))"
    base = Path(sys.base_prefix)
    names = [f"python3.{minor}" for minor in (11, 12, 13)]
    candidates = [base / "bin" / "python3", *(Path("/usr/bin") / name for name in names)]
    link = stranger.programs / "python3"
    for candidate in candidates:
        if not candidate.exists():
            continue
        # A script, not a link: venv would look for its library beside the link. And asked through a
        # shell, since setpriv itself may still pass folders that this user may not.
        link.unlink(missing_ok=True)
        link.write_text(f'#!/bin/sh\nexec {shlex.quote(str(candidate))} "$@"\n')
        link.chmod(0o755)
        if stranger.run(["/bin/sh", "-c", f"python3 -c '{ask}'"], cwd=stranger.folder).returncode == 0:
            return
    copy = stranger.folder / "python"
    unneeded = shutil.ignore_patterns("site-packages", "test", "__pycache__", "share", "include")
    shutil.copytree(base, copy, symlinks=True, ignore=unneeded)
    stranger.environ["LD_LIBRARY_PATH"] = str(copy / "lib")
    link.unlink(missing_ok=True)
    link.symlink_to(copy / "bin" / f"python{sys.version_info[0]}.{sys.version_info[1]}")


def main_command() -> str:
    (command,) = [line for line in (ROOT / "README.md").read_text().splitlines() if line.endswith("replog demo")]
    return command


def use_it_script() -> str:
    """The blocks of README.md under "Use it", in order, as a person pastes them into one shell."""
    section = (ROOT / "README.md").read_text().partition("## Use it\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", section, re.M | re.S)
    assert [language for language, _ in blocks] == ["sh", "python", "python", "sh"]
    scripts = {"sh": "{}", "python": "python - <<'END OF BLOCK'\n{}END OF BLOCK\n"}
    return "set -e\n" + "".join(scripts[language].format(code) for language, code in blocks)


def copy_checkout(target: Path) -> None:
    ignored = shutil.ignore_patterns(
        ".git", ".venv", "build", "*.egg-info", "__pycache__", ".*_cache", ".hypothesis", "replog-demo-*"
    )
    shutil.copytree(ROOT, target, ignore=ignored, dirs_exist_ok=True)


@pytest.mark.wide
def test_main_command_for_a_stranger_without_java(stranger):
    link_programs(stranger)
    give_python(stranger)
    checkout = stranger.folder / "checkout"
    copy_checkout(checkout)
    for name in ("home", "tmp", "checkout"):
        stranger.own(stranger.folder / name)
    assert stranger.run(["/bin/sh", "-c", "command -v java"], cwd=checkout).returncode != 0
    done = stranger.run(["/bin/sh", "-c", main_command()], cwd=checkout, timeout=TIMEOUT_SECONDS)
    shown = f"{done.stdout}\n{done.stderr}"
    assert done.returncode == 0, shown
    assert f"{FLIGHTS_ROWS} written, {FLIGHTS_ROWS} read" in done.stdout, shown
    offsets = re.search(r"^offsets +(.*)$", done.stdout, re.MULTILINE)
    assert offsets is not None
    counts = [int(count.replace(",", "")) for count in re.findall(r"\d+: ([\d,]+)", offsets.group(1))]
    assert (len(counts), sum(counts)) == (6, 336_776)
    assert "next:" in done.stderr
    # The next commands work as they are printed.
    for line in done.stderr.split("next:")[1].strip().splitlines()[:2]:
        answer = stranger.run(["/bin/sh", "-c", line], cwd=checkout)
        assert answer.returncode == 0, answer.stderr
    used = stranger.run(["/bin/sh", "-c", use_it_script()], cwd=checkout, timeout=TIMEOUT_SECONDS)
    shown = f"{used.stdout}\n{used.stderr}"
    assert used.returncode == 0, shown
    rows = [int(count) for count in re.findall(r"^\| +\d\| +(\d+)\|$", used.stdout, re.M)]
    assert len(rows) > 1 and sum(rows) >= 100, shown
    read = re.search(r"^(\d+)$", used.stdout.partition("+---------+-----+\n")[2], re.M)
    assert read is not None and int(read.group(1)) == sum(rows) + 1, shown
    assert len(used.stdout.splitlines()[-3:]) == 3
    assert "1,000" in shown
    assert "pandas" not in used.stderr, shown


def test_demo_with_the_users_own_file_for_a_script(work_folder, environment):
    source = work_folder / "own.jsonl"
    source.write_text("".join(f'{{"shop":"s{number % 3}","amount":{number}}}\n' for number in range(1_000)))
    folder = work_folder / "own-demo"
    options = ["--input", str(source), "--key", "shop", "--dir", str(folder)]
    answer = environment.run(str(environment.replog), "-f", "json", "-q", "demo", *options)
    assert answer.stderr == ""
    (item,) = json.loads(answer.stdout)["items"]
    assert (item["rows"], item["rowsRead"], sum(item["offsets"].values())) == (1_000, 1_000, 1_000)
    assert item["groups"][0] == {"key": "s0", "rows": 334, "bytes": item["groups"][0]["bytes"]}
    assert {group["key"]: group["rows"] for group in item["groups"]} == {"s0": 334, "s1": 333, "s2": 333}
    assert Path(item["store"]).is_dir()
