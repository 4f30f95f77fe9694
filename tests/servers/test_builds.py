"""The programs that the tests unpack from Debian's packages are whole, whatever the machine has installed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.servers.builds import apt_command

INSTALLED_TOO = """
Package: {package}
Status: install ok installed
Architecture: amd64
Source: chromium
Version: 1
Maintainer: nobody
Description: of an older release
"""


@pytest.mark.skipif(shutil.which("apt-get") is None, reason="apt-get is not on the PATH")
def test_a_chromium_is_unpacked_with_its_parts_where_they_are_installed(tmp_path):
    parts = {"chromium", "chromium-common"}
    listed = Path("/var/lib/dpkg/status").read_text() + "".join(INSTALLED_TOO.format(package=part) for part in parts)
    (tmp_path / "status").write_text(listed)
    (tmp_path / "apt.conf").write_text(f'Dir::State::status "{tmp_path / "status"}";')
    (tmp_path / "build").mkdir()
    command = apt_command(("chromium", "fonts-dejavu-core"), "chromium").format(folder=tmp_path / "build")
    done = subprocess.run(
        ["sh", "-ec", f"{command} --print-uris"], capture_output=True, text=True, check=False,
        env={**os.environ, "DPKG_ADMINDIR": str(tmp_path), "APT_CONFIG": str(tmp_path / "apt.conf")},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert parts | {"fonts-dejavu-core"} <= set(re.findall(r"' ([a-z0-9.+-]+)_", done.stdout))
