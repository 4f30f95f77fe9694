"""Users of a gateway: a file with their salted SCRAM credentials, which holds no password. Needs no Kafka library."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from spark_replog.errors import ErrorCode, InvalidConfigError

MECHANISMS: Mapping[str, str] = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
"""Kafka's name of each kind of credential -> its hash."""
ITERATIONS = 8192
"""Of a new credential, as Kafka makes it."""
ITERATIONS_MIN, ITERATIONS_MAX = 4096, 1_000_000
_VERSION = 1


class Credential(NamedTuple):
    """What proves that somebody knows a password, without the password (RFC 5802)."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    @classmethod
    def of(cls, password: str, hash_name: str, salt: bytes, iterations: int = ITERATIONS) -> Credential:
        """Return the credential of a password. Takes some milliseconds, by design."""
        salted = hashlib.pbkdf2_hmac(hash_name, password.encode(), salt, iterations)
        client_key = hmac.digest(salted, b"Client Key", hash_name)
        server_key = hmac.digest(salted, b"Server Key", hash_name)
        return cls(salt, hashlib.new(hash_name, client_key).digest(), server_key, iterations)

    @classmethod
    def parse(cls, text: str) -> Credential:
        """Return the credential of Kafka's text. Raises ValueError."""
        fields = dict(item.strip().split("=", 1) for item in text.split(","))
        keys = [base64.b64decode(fields[name], validate=True) for name in ("salt", "stored_key", "server_key")]
        iterations = int(fields["iterations"])
        if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
            raise ValueError(f"iterations is {iterations}, and may be {ITERATIONS_MIN} to {ITERATIONS_MAX}")
        return cls(keys[0], keys[1], keys[2], iterations)

    def __str__(self) -> str:
        """Return it as Kafka writes it."""
        values = {"salt": self.salt, "stored_key": self.stored_key, "server_key": self.server_key}
        texts = [f"{name}={base64.b64encode(value).decode()}" for name, value in values.items()]
        return ",".join([*texts, f"iterations={self.iterations}"])


Credentials = Mapping[str, Credential]
"""Of one user, by mechanism."""


def credentials_of(password: str) -> dict[str, Credential]:
    """Return new credentials of a password, with salts of their own."""
    names = MECHANISMS.items()
    return {mechanism: Credential.of(password, name, secrets.token_bytes(16)) for mechanism, name in names}


def is_password(password: str, credentials: Credentials) -> bool:
    """Return whether it is the password of the user with these credentials."""
    for mechanism, credential in credentials.items():
        given = Credential.of(password, MECHANISMS[mechanism], credential.salt, credential.iterations)
        return hmac.compare_digest(given.stored_key, credential.stored_key)
    return False


def encode_users(users: Mapping[str, Credentials]) -> bytes:
    """Return the bytes of a file of users."""
    texts = {name: {kind: str(value) for kind, value in users[name].items()} for name in sorted(users)}
    return (json.dumps({"v": _VERSION, "users": texts}, indent=2) + "\n").encode()


def read_users(path: Path) -> dict[str, dict[str, Credential]]:
    """Return the users of a file.

    Raises:
        InvalidConfigError: REPLOG_INPUT: the file cannot be read, or is none of users.
    """
    try:
        content = json.loads(path.read_bytes())
        if content["v"] != _VERSION:
            raise ValueError(f"version {content['v']} is unknown")
        return {
            name: {kind: Credential.parse(text) for kind, text in kinds.items() if kind in MECHANISMS}
            for name, kinds in content["users"].items()
        }
    except OSError as error:
        reason = str(error.strerror)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = f"it is not a file of users: {error}"
    text = f"{path} cannot be read: {reason}. Make it by: replog user add NAME --users {path}"
    raise InvalidConfigError(ErrorCode.REPLOG_INPUT, text)


class UserFile:
    """The users of a file, read again when the file changes. Thread-safe. Raises the errors of `read_users`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._stamp: tuple[int, int, int] | None = None
        self._users: dict[str, dict[str, Credential]] = {}
        self._secret = secrets.token_bytes(32)

    def credentials(self, name: str) -> Credentials:
        """Return a user's credentials; none: there is no such user."""
        with self._lock:
            try:
                stat = self._path.stat()
                stamp = stat.st_mtime_ns, stat.st_size, stat.st_ino
            except OSError:
                stamp = (0, 0, 0)  # reading it says why
            if stamp != self._stamp:
                self._users, self._stamp = read_users(self._path), stamp
            return self._users.get(name, {})

    def credential_of_nobody(self, name: str, mechanism: str) -> Credential:
        """Return what a name that is no user's is asked with: always the same, so that nobody learns who is a user."""
        salt = hmac.digest(self._secret, name.encode(errors="surrogatepass"), "sha256")[:16]
        return Credential(salt, secrets.token_bytes(32), secrets.token_bytes(32), ITERATIONS)
