"""``replog user``, and the addresses that ``replog gateway`` refuses."""

from __future__ import annotations

import io

import pytest

from spark_replog.gateway.user_file import is_password, read_users


@pytest.fixture
def say(monkeypatch):
    def set_stdin(text):
        monkeypatch.setattr("sys.stdin", io.StringIO(text))

    return set_stdin


def test_users_are_added_replaced_listed_and_removed_without_a_trace_of_passwords(replog, say, tmp_path):
    path = tmp_path / "users.json"
    say("first\nsecond line\n")
    added = replog("user", "add", "alice", "--users", path, "-f", "json")
    assert added.items == [{"user": "alice", "new": True, "ok": True}]
    assert path.stat().st_mode & 0o777 == 0o600
    say("second\r\n")
    assert replog("user", "add", "alice", "--users", path, "-f", "json").items[0]["new"] is False
    assert is_password("second", read_users(path)["alice"]) and not is_password("first", read_users(path)["alice"])
    listed = replog("user", "list", "--users", path, "-f", "json").items
    assert listed == [{"user": "alice", "mechanisms": ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]}]
    assert replog("user", "remove", "alice", "--users", path).exit_code == 0
    assert replog("user", "remove", "alice", "--users", path).exit_code == 2
    assert read_users(path) == {}


def test_an_empty_password_a_bad_name_and_a_damaged_file_change_nothing(replog, say, tmp_path):
    path = tmp_path / "users.json"
    say("\n")
    assert "REPLOG_INPUT" in replog("user", "add", "alice", "--users", path).err
    for name in ("", " ", "a\nb", "x" * 256):
        say("secret\n")
        assert replog("user", "add", name, "--users", path).exit_code == 2
    assert not path.exists()
    path.write_text("{}")
    say("secret\n")
    assert "REPLOG_INPUT" in replog("user", "add", "alice", "--users", path).err
    assert path.read_text() == "{}"


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--listen", "0.0.0.0:0"], "REPLOG_OPEN_TO_ALL"),
        (["--listen", "0.0.0.0:0", "--insecure"], "--advertised"),
        (["--listen", "127.0.0.1:0", "--tls-cert", "x"], "--tls-key"),
        (["--listen", "127.0.0.1:0", "--advertised", "0.0.0.0:9092"], "--advertised"),
        (["--listen", "127.0.0.1:0", "--advertised", "host"], "--advertised"),
        (["--listen", "127.0.0.1:0", "--users", "nowhere.json"], "REPLOG_INPUT"),
        (["--listen", "127.0.0.1:0", "--workers", "2"], "--workers"),
        (["--listen", "127.0.0.1:0", "--tls-client-ca", "x"], "--tls-cert"),
        (["--listen", "127.0.0.1:0", "-c", "ssl.client.auth=requested"], "--tls-client-ca"),
        (["--listen", "127.0.0.1:0", "--worker", "0:99999:a:b"], "REPLOG_INPUT"),
        (["--listen", "127.0.0.1:0", "--tls-cert", "nowhere.pem", "--tls-key", "nowhere.pem"], "REPLOG_INPUT"),
    ],
)
def test_a_gateway_does_not_start_open_or_unreachable(replog, arguments, word):
    answer = replog("gateway", "--memory", *arguments)
    assert answer.exit_code == 2
    assert word in answer.err


def test_workers_need_as_many_ports(replog, tmp_path):
    replog("init", "-s", str(tmp_path / "store"))
    answer = replog("gateway", "-s", str(tmp_path / "store"), "--listen", "127.0.0.1:65535", "--workers", "2")
    assert answer.exit_code == 2
    assert "65536" in answer.err
