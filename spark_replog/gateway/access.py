"""Who a client is: by its certificate, or by SaslHandshake and SaslAuthenticate, which are PLAIN or SCRAM."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import logging
import re
import secrets
import ssl
from typing import Any, Protocol

from kafka.protocol.api_key import ApiKey
from kafka.protocol.sasl import SaslAuthenticateResponse, SaslHandshakeResponse

from spark_replog.errors import ErrorCode, ReplogError
from spark_replog.gateway.certificate import subject_name
from spark_replog.gateway.gateway import Api, Call, Gateway
from spark_replog.gateway.user_file import MECHANISMS, UserFile, is_password
from spark_replog.log.acl import normal_principal

_LOG = logging.getLogger(__name__)
PLAIN = "PLAIN"
OFFERED = (PLAIN, *MECHANISMS)
BEFORE_ALL = frozenset({int(ApiKey.ApiVersions), int(ApiKey.SaslHandshake), int(ApiKey.SaslAuthenticate)})
"""What is answered before a client has said who it is."""

ANONYMOUS = "User:ANONYMOUS"
"""Kafka's name for a client that has not said who it is."""


def certificate_principal(tls: ssl.SSLObject | None) -> str | None:
    """Return who a client is by its certificate; None: no client is asked for one.

    Raises:
        ValueError: the subject of its certificate cannot be read.
    """
    if tls is None or tls.context.verify_mode is ssl.CERT_NONE:
        return None
    certificate = tls.getpeercert(binary_form=True)
    return ANONYMOUS if certificate is None else normal_principal(f"User:{subject_name(certificate)}")


class RefusedError(Exception):
    """A client is not who it says. The text is for the log, and holds no secret."""


class Exchange(Protocol):
    """The messages of one mechanism, from the side of the server.

    Attributes:
        user: the user, once it is proven.
    """

    user: str | None

    def step(self, data: bytes) -> bytes:
        """Return the answer to a client's message. May take some milliseconds. Raises RefusedError, ReplogError."""
        ...


class PlainExchange:
    """PLAIN: the password itself (RFC 4616)."""

    def __init__(self, users: UserFile) -> None:
        self._users = users
        self.user: str | None = None

    def step(self, data: bytes) -> bytes:
        """Check the one message."""
        try:
            other, name, password = data.decode().split("\0")
        except ValueError:
            raise RefusedError("its message is not in the form of PLAIN") from None
        if other not in ("", name):
            raise RefusedError(f"user {name!r} wants to act as another")
        if not password or not is_password(password, self._users.credentials(name)):
            raise RefusedError(f"user {name!r} is unknown, or the password is wrong")
        self.user = name
        return b""


_FIRST = re.compile(
    r"(?P<header>[ny],(?:a=(?P<other>[^,]*))?,)(?P<bare>n=(?P<name>[^,]+),r=(?P<nonce>[!-+\--~]+)(?:,.*)?)"
)
_FINAL = re.compile(r"(?P<bare>c=(?P<header>[^,]+),r=(?P<nonce>[^,]+)(?:,[^,]+)*?),p=(?P<proof>[^,]+)")
_ESCAPED = re.compile("=(?!2C|3D)")


class ScramExchange:
    """SCRAM: both sides prove that they know the password, which is never sent (RFC 5802)."""

    def __init__(self, users: UserFile, mechanism: str) -> None:
        self._users, self._mechanism, self._hash = users, mechanism, MECHANISMS[mechanism]
        self._name: str | None = None
        self.user: str | None = None

    def step(self, data: bytes) -> bytes:
        """Answer the client's first message, then its last."""
        try:
            text = data.decode()
        except ValueError:
            raise RefusedError("its message is not in the form of SCRAM") from None
        return (self._first(text) if self._name is None else self._final(text)).encode()

    def _first(self, text: str) -> str:
        match = _FIRST.fullmatch(text)
        if match is None or _ESCAPED.search(match["name"]):
            raise RefusedError("it is no first message of SCRAM, or asks for channel binding")
        name = match["name"].replace("=2C", ",").replace("=3D", "=")
        if match["other"] not in (None, "", match["name"]):
            raise RefusedError(f"user {name!r} wants to act as another")
        credential = self._users.credentials(name).get(self._mechanism)
        self._is_user = credential is not None
        self._credential = credential or self._users.credential_of_nobody(name, self._mechanism)
        self._nonce = match["nonce"] + secrets.token_urlsafe(24)
        salt = base64.b64encode(self._credential.salt).decode()
        answer = f"r={self._nonce},s={salt},i={self._credential.iterations}"
        self._name, self._header = name, match["header"]
        self._messages = f"{match['bare']},{answer}"
        return answer

    def _final(self, text: str) -> str:
        match, credential = _FINAL.fullmatch(text), self._credential
        header = base64.b64encode(self._header.encode()).decode()
        if match is None or match["header"] != header or match["nonce"] != self._nonce:
            raise RefusedError("it is no last message of this exchange of SCRAM")
        try:
            proof = base64.b64decode(match["proof"], validate=True)
        except (binascii.Error, ValueError):
            raise RefusedError("its proof cannot be read") from None
        messages = f"{self._messages},{match['bare']}".encode()
        signature = hmac.digest(credential.stored_key, messages, self._hash)
        key = bytes(a ^ b for a, b in zip(proof, signature, strict=False))
        is_proof = len(proof) == len(signature) and self._is_user
        if not hmac.compare_digest(hashlib.new(self._hash, key).digest(), credential.stored_key) or not is_proof:
            raise RefusedError(f"user {self._name!r} is unknown, or the password is wrong")
        self.user = self._name
        return "v=" + base64.b64encode(hmac.digest(credential.server_key, messages, self._hash)).decode()


class Session:
    """What is known of the client of one connection.

    Args:
        users: those who may use the gateway; None: everybody, as this principal.

    Attributes:
        is_refused: the client has failed to say who it is: its connection is closed after the answer.
    """

    def __init__(self, users: UserFile | None, principal: str) -> None:
        self._users = users
        self._exchange: Exchange | None = None
        self._principal = principal if users is None else None
        self.is_refused = False

    @property
    def principal(self) -> str:
        """Return who asks."""
        return self._principal or ANONYMOUS

    @property
    def is_open(self) -> bool:
        """Return whether the client may ask everything that is offered."""
        return self._principal is not None

    def may_ask(self, api_key: int) -> bool:
        """Return whether the client may ask this now."""
        return self.is_open or api_key in BEFORE_ALL

    def begin(self, mechanism: str) -> ErrorCode | None:
        """Begin an exchange; return why not."""
        if self._users is None or self.is_open or self._exchange is not None:
            return ErrorCode.ILLEGAL_SASL_STATE
        if mechanism not in OFFERED:
            return ErrorCode.UNSUPPORTED_SASL_MECHANISM
        self._exchange = PlainExchange(self._users) if mechanism == PLAIN else ScramExchange(self._users, mechanism)
        return None

    @property
    def is_begun(self) -> bool:
        """Return whether an exchange has begun and is not over."""
        return self._exchange is not None

    def step(self, data: bytes) -> bytes:
        """Return the answer to a message of the exchange. Raises RefusedError, and ReplogError: no file of users."""
        assert self._exchange is not None
        answer = self._exchange.step(data)
        if self._exchange.user is not None:
            self._principal, self._exchange = normal_principal(f"User:{self._exchange.user}"), None
        return answer


async def answer_handshake(gateway: Gateway, call: Call) -> Any:
    """Answer SaslHandshake."""
    error = call.session.begin(call.request.mechanism)
    call.session.is_refused = error is not None
    return SaslHandshakeResponse(error_code=int(error or 0), mechanisms=list(OFFERED))


async def answer_authenticate(gateway: Gateway, call: Call) -> Any:
    """Answer SaslAuthenticate; a refusal a little later, so that guessing takes time."""
    session, code, text = call.session, ErrorCode.ILLEGAL_SASL_STATE, "SaslHandshake comes first, and only once."
    if session.is_begun:
        try:
            data = await gateway.run(session.step, call.request.auth_bytes or b"")
            return SaslAuthenticateResponse(error_code=0, error_message=None, auth_bytes=data, session_lifetime_ms=0)
        except RefusedError as error:
            _LOG.warning("%s is refused: %s", call.client_host, error)
        except ReplogError as error:
            _LOG.error("%s is refused, because no user can be checked: %s", call.client_host, error)
        code, text = ErrorCode.SASL_AUTHENTICATION_FAILED, "Authentication failed. See the gateway's log."
        await asyncio.sleep(gateway.config.connection_failed_authentication_delay_ms / 1000)
    session.is_refused = True
    return SaslAuthenticateResponse(error_code=int(code), error_message=text, auth_bytes=b"", session_lifetime_ms=0)


APIS = {
    ApiKey.SaslHandshake: Api(1, 1, answer_handshake),
    ApiKey.SaslAuthenticate: Api(0, 2, answer_authenticate),
}
