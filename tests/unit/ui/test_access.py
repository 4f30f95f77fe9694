"""Who is let in: one-time links, sessions, and requests that another site's page could make."""

from __future__ import annotations

import pytest

from spark_replog.ui.access import SESSIONS_MAX, Access, host_of, refusal

OWN = ("host", "127.0.0.1:9411")


def test_a_link_works_once_and_the_next_one_is_told():
    tokens: list[str] = []
    access = Access(tokens.append)
    access.renew()
    assert access.redeem("") is None and access.redeem("\xe9\u202e") is None and len(tokens) == 1
    session = access.redeem(tokens[0])
    assert session is not None and access.is_known(session) and len(tokens) == 2
    assert access.redeem(tokens[0]) is None
    assert not access.is_known("") and not access.is_known(tokens[1]) and not access.is_known("\udcff")
    assert access.redeem(tokens[1]) not in (None, session)


def test_old_sessions_end_when_there_are_many():
    tokens: list[str] = []
    access = Access(tokens.append)
    access.renew()
    sessions = [access.redeem(tokens[-1]) for _ in range(SESSIONS_MAX + 1)]
    assert [access.is_known(session) for session in sessions] == [False] + [True] * SESSIONS_MAX


@pytest.mark.parametrize("host", ["127.0.0.1:9411", "localhost:8080", "LOCALHOST", "[::1]:9411", "127.0.0.1"])
def test_loopback_hosts_are_answered(host):
    assert refusal("GET", [("host", host)]) is None
    assert refusal("GET", [("host", host), ("origin", f"http://{host}"), ("sec-fetch-site", "same-origin")]) is None


@pytest.mark.parametrize(
    "host", ["evil.test", "127.0.0.1.evil.test:9411", "evil.test:127", "[::2]:1", "", "127.0.0.1@evil"]
)
def test_a_name_that_only_leads_here_is_refused(host):
    assert refusal("GET", [("host", host)]) == (421, "this console answers on the loopback address only")


def test_a_request_without_one_host_is_refused():
    assert refusal("GET", [])[0] == 421
    assert refusal("GET", [OWN, OWN])[0] == 421


@pytest.mark.parametrize(
    "headers",
    [
        [("origin", "http://evil.test")],
        [("origin", "null")],
        [("origin", "http://127.0.0.1:8000")],
        [("origin", "https://127.0.0.1:9411")],
        [("sec-fetch-site", "cross-site")],
        [("sec-fetch-site", "same-site"), ("sec-fetch-mode", "no-cors")],
        [("sec-fetch-site", "same-origin"), ("sec-fetch-site", "cross-site")],
    ],
)
def test_what_a_page_of_another_origin_asks_is_refused(headers):
    assert refusal("GET", [OWN, *headers])[0] == 403


def test_a_link_may_be_followed_from_anywhere_and_nothing_is_ever_written():
    assert refusal("GET", [OWN, ("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate")]) is None
    assert [refusal(method, [OWN])[0] for method in ("POST", "PUT", "DELETE", "OPTIONS", "PATCH")] == [405] * 5


def test_names_of_hosts():
    assert [host_of(host) for host in ("A.B:1", "[::1]:80", "[::1]", "a:b")] == ["a.b", "::1", "::1", "a:b"]
