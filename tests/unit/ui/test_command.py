"""The command itself: where it listens, and what it says when it cannot."""

from __future__ import annotations

import socket
import sys

import pytest

from spark_replog.cli.main import run
from tests.unit.client.consumer_setup import Store


@pytest.fixture
def store(tmp_path):
    return Store.init(str(tmp_path / "store"))


@pytest.mark.parametrize("listen", ["0.0.0.0:9411", "192.168.1.5:80", "example.com:80", "[::]:1", ":9411"])
def test_only_loopback_addresses_are_listened_on(store, listen, capsys):
    assert run(["-s", store.path, "ui", "--listen", listen]) == 2
    assert "ssh -L" in capsys.readouterr().err


@pytest.mark.parametrize("listen", ["9411", "127.0.0.1:x", "127.0.0.1:70000"])
def test_an_address_without_a_port_is_refused(store, listen, capsys):
    assert run(["-s", store.path, "ui", "--listen", listen]) == 2
    assert "needs HOST:PORT" in capsys.readouterr().err


@pytest.mark.parametrize("command", [("ui", "--every"), ("top", "-d")])
@pytest.mark.parametrize("seconds", ["nan", "inf", "1e300", "-1", "0"])
def test_a_pause_that_is_no_number_of_seconds_is_wrong_usage(store, command, seconds, capsys):
    assert run(["-s", store.path, *command, seconds]) == 2
    assert command[1] in capsys.readouterr().err


def test_a_port_that_is_taken_is_an_error_with_a_remedy(store, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert run(["-s", store.path, "ui", "--listen", f"127.0.0.1:{taken.getsockname()[1]}"]) == 1
    assert "Give another --listen." in capsys.readouterr().err


def test_without_the_extra_the_command_says_what_to_install(store, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert run(["-s", store.path, "ui"]) == 1
    assert "pip install 'spark-replog[ui]'" in capsys.readouterr().err


def test_a_store_that_is_not_there_is_an_error_before_anything_listens(tmp_path, capsys):
    assert run(["-s", str(tmp_path / "none"), "ui"]) != 0
    assert "enter?token" not in capsys.readouterr().err
