"""What an error of a storage client says: the service's answer, its own code, whether a secret is in it."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from types import TracebackType
from typing import Self

_CAUSES_MAX = 8
_QUERY = re.compile(r"\?[^\s'\"]*=[^\s'\"]*")
"""Of a URL. WebHDFS takes tokens there, and Google's service that tells how long one is valid."""
_SPENT_CODES = frozenset(
    {"ExpiredToken", "ExpiredTokenException", "InvalidToken", "InvalidTokenId", "TokenRefreshRequired"}
)
"""S3's error codes for session tokens."""


def causes_of(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and its causes, outermost first."""
    current: BaseException | None = error
    for _ in range(_CAUSES_MAX):
        if current is None:
            return
        yield current
        current = current.__cause__ or current.__context__


def status_of(error: BaseException) -> int | None:
    """Return the HTTP status that caused an exception; None if there was no answer.

    The exception class proves nothing: MinIO's 412 arrives as ``OSError(EINVAL)``, and so do a dozen 400 codes.
    """
    for cause in causes_of(error):
        if type(cause).__module__ == "aiohttp.http_exceptions":
            continue  # aiohttp's own 400 for a truncated answer: no server sent it
        response = getattr(cause, "response", None)
        if isinstance(response, dict):
            http_status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        else:
            http_status = getattr(response, "status_code", None)
        for status in (http_status, getattr(cause, "status_code", None), getattr(cause, "status", None)):
            if isinstance(status, int):
                return status
        code = getattr(cause, "code", None)  # gcsfs.retry.HttpError
        if isinstance(code, int) or (isinstance(code, str) and code.isdecimal()):
            return int(code)
    return None


def error_code_of(error: BaseException) -> str:
    """Return the service's own error code (``NoSuchBucket``, ``BlobAlreadyExists``), "" without one."""
    for cause in causes_of(error):
        response = getattr(cause, "response", None)
        if isinstance(response, dict):
            return str(response.get("Error", {}).get("Code", ""))
        code = getattr(cause, "error_code", None)  # azure.core
        if code:
            return str(getattr(code, "value", code))
    return ""


def shown(error: BaseException) -> BaseException | None:
    """Return an error as the cause of another; None if a traceback would show a URL's query, which may hold a token."""
    return None if any(_QUERY.search(str(cause)) for cause in causes_of(error)) else error


class Apart:
    """Unlinks an exception that the caller is already handling from the failure of a call it makes.

    Python chains the two. Otherwise a 404 that a program handles while it reads would count as the answer of this
    read: absent, although there was no answer.
    """

    def __enter__(self) -> Self:
        self._handled = sys.exception()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        seen: set[int] = set()
        while error is not None and self._handled is not None and id(error) not in seen:
            seen.add(id(error))
            if error.__context__ is self._handled:
                error.__context__ = None
            error = error.__cause__ or error.__context__


def is_told_absent(error: Exception) -> bool:
    """Return whether a client says so that the service has no such object.

    With an errno it comes from this machine's file system: the client misses a file of its own, as that of a token.
    """
    return isinstance(error, FileNotFoundError) and error.errno is None


def is_of_proxy(error: Exception, status: int | None) -> bool:
    """Return whether a 404 comes from a proxy before S3 or Azure: without a code, of which botocore makes "404"."""
    return status == 404 and error_code_of(error) in ("", "404")


def describe(error: Exception, status: int | None) -> str:
    """Return an error for a message: the status, the class and the text, without a URL's query."""
    answer = "no answer" if status is None else f"HTTP {status}"
    text = _QUERY.sub("", " ".join(str(error).split()))
    return f"{answer}, {type(error).__name__}: {text.rstrip('.')[:300]}"


def remedy(error: Exception, status: int | None) -> str:
    """Return the last sentence of a refusal: what to do about it."""
    if any(type(cause).__name__ == "ParamValidationError" for cause in causes_of(error)):
        return "Check the root's URL."
    if status == 501:
        return "It has no conditional writes: use a store that has them."
    if error_code_of(error) in ("RequestTimeTooSkewed", "RequestExpired"):
        return "Set this machine's clock."
    if error_code_of(error) in _SPENT_CODES:
        return "The token ran out: let the client renew its own (a profile, a credential process, a role)."
    if status == 404 or is_told_absent(error):
        return "Check the bucket's name, and that it exists."
    return "Check credentials and permissions: get and list are needed, to write create, to clean up delete."
