"""The script of a release: packages that are checked, and tried in environments of their own."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CHECKOUT = shutil.ignore_patterns(".venv", ".git", "build", "dist", "__pycache__", "*.egg-info")
TIMEOUT_SECONDS = 900


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a copy of this checkout, without git: the script packs it as it is."""
    return Path(shutil.copytree(ROOT, tmp_path / "checkout", ignore=CHECKOUT))


def release(checkout: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(checkout / ".ci/release"), *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_SECONDS,
        stdin=subprocess.DEVNULL,
    )


def test_packages_are_built_checked_and_tried_with_extras(checkout: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = release(checkout, "--python", sys.executable, "--extra", "", "--extra", "ui", "--out", str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(re.sub(r"\d+\.\d+\.\d+", "V", path.name) for path in out.iterdir()) == [
        "spark_replog-V-py3-none-any.whl",
        "spark_replog-V.tar.gz",
    ]
    (wheel,) = out.glob("*.whl")
    assert f"{sys.executable}: {wheel.name} works\n{sys.executable}: {wheel.name}[ui] works\n" in done.stdout
    with zipfile.ZipFile(wheel) as archive:
        assert "spark_replog/errors.toml" in archive.namelist()


@pytest.mark.parametrize(
    ("path", "text", "said"),
    [
        ("pyproject.toml", 'version = "0.1.1"', "CHANGELOG.md has no section 0.1.1"),
        ("setup.cfg", "spark_replog = py.typed", "missing ['spark_replog/errors.toml'"),
        ("spark_replog/NOTICE", "", "licences"),
    ],
    ids=["version", "lost file", "code of others"],
)
def test_what_must_not_be_published_is_refused(checkout: Path, path: str, text: str, said: str) -> None:
    changed = checkout / path
    old = changed.read_text() if changed.exists() else None
    if path == "spark_replog/NOTICE":
        listed = checkout / "setup.cfg"
        packed = listed.read_text().replace("= py.typed, errors.toml, s", "= NOTICE, py.typed, errors.toml, s")
        listed.write_text(packed)
    new = text if old is None else re.sub(rf"^{text.partition(' = ')[0]} = .*$", text, old, flags=re.MULTILINE)
    assert new != old
    changed.write_text(new)
    done = release(checkout, "--extra", "")
    assert done.returncode == 1, done.stdout + done.stderr
    assert said in done.stderr
    assert not (checkout / "dist").exists()


def test_a_python_that_is_not_there_is_named(checkout: Path) -> None:
    done = release(checkout, "--python", "python3.99")
    assert done.returncode == 3, done.stdout + done.stderr
    assert "not tried: python3.99" in done.stderr
