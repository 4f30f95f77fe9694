"""Access to the console: one-time links, sessions, and checks of headers that other sites' pages cannot fake. Pure."""

from __future__ import annotations

import hmac
import secrets
import threading
from collections.abc import Callable, Sequence

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
SESSIONS_MAX = 32
"""Above this, the oldest session ends."""
SECURITY_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


def host_of(header: str) -> str:
    """Return the host name of a ``Host`` header in lower case, without port and brackets."""
    host, separator, port = header.rpartition(":")
    if not separator or not port.isdecimal():
        host = header
    return host.removeprefix("[").removesuffix("]").lower()


def cookie_name(host_header: str) -> str:
    """Return the name of the session's cookie: two consoles may run, and browsers send a host's to all its ports."""
    port = host_header.rpartition(":")[2]
    return f"replog_ui_{port if port.isdecimal() else 80}"


def refusal(method: str, headers: Sequence[tuple[str, str]]) -> tuple[int, str] | None:
    """Return the status and the reason if a request must be refused for any sender; else None.

    ``Host`` reveals a name that an attacker's DNS resolves to this machine; ``Origin`` or ``Sec-Fetch-Site`` reveal a
    request from a page of another site. Names of headers are in lower case, and may repeat.
    """
    values = {name: [value for header, value in headers if header == name] for name, _ in headers}
    hosts, origins = values.get("host", []), values.get("origin", [])
    if len(hosts) != 1 or host_of(hosts[0]) not in LOOPBACK:
        return 421, "this console answers on the loopback address only"
    if method not in ("GET", "HEAD"):
        return 405, "this console only reads"
    if any(origin.lower() != f"http://{hosts[0].lower()}" for origin in origins):
        return 403, "a page of another origin asks"
    # Links from anywhere, and pages opened by hand, are allowed; other sites' pages may not load or fetch anything.
    is_opened = "navigate" in values.get("sec-fetch-mode", [])
    if not is_opened and any(site not in ("same-origin", "none") for site in values.get("sec-fetch-site", [])):
        return 403, "a page of another site asks"
    return None


class Access:
    """Links that work once, and the sessions that they started. Thread-safe; nothing outlives the process.

    ``on_link`` is called with each new token: by `renew`, and whenever a token was used.
    """

    def __init__(self, on_link: Callable[[str], None]) -> None:
        self._on_link = on_link
        self._sessions: list[str] = []
        self._lock = threading.Lock()
        self._token = secrets.token_urlsafe(32)

    def renew(self) -> None:
        """Replace the newest link; the one before it becomes invalid."""
        self._token = secrets.token_urlsafe(32)
        self._on_link(self._token)

    def redeem(self, token: str) -> str | None:
        """Return a new session for the newest link's token, which then becomes invalid; None for any other token."""
        with self._lock:
            if not hmac.compare_digest(token.encode(), self._token.encode()):
                return None
            session = secrets.token_urlsafe(32)
            self._sessions = [*self._sessions, session][-SESSIONS_MAX:]
            self.renew()
            return session

    def is_known(self, session: str) -> bool:
        """Return whether this session exists."""
        given = session.encode(errors="surrogateescape")
        return any(hmac.compare_digest(given, valid_session.encode()) for valid_session in self._sessions)
