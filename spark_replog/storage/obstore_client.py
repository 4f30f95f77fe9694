"""Wraps obstore, a native client for S3 and Azure, in the few fsspec calls that stores make.

Uses only obstore's own API: its fsspec wrapper drops ``mode="create"`` and overwrites. It never repeats a request.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from spark_replog.storage.object_store import Buffer

BYTES_MAX = 64 * 1024
"""Larger answers are views of the client's memory; smaller ones are copied to ``bytes``."""
NAMES_PER_PAGE = 1_000
_CONNECT_SECONDS = 5
_ANSWER_SECONDS = 30
"""Until the next byte of an answer. Longer than fsspec's, since the time to send a body counts too."""
_CALL_SECONDS = 300
_STATUS = re.compile(r"(?:Server returned [^:]*status code: |\(code: )(\d{3})\b")
_AFTER_THE_END = "Wanted range starting at"
"""How obstore reports an empty answer to a range at the object's end."""
_CODE = re.compile(r"<Code>(\w+)</Code>")
_STATUS_OF_CLASS = {
    "AlreadyExistsError": 412, "FileNotFoundError": 404, "PermissionDeniedError": 403, "UnauthenticatedError": 401
}  # fmt: skip
_CLASS_OF_STATUS = {404: ("FileNotFoundError",), 412: ("AlreadyExistsError", "PreconditionError")}
"""Such a status concerns the object only with one of these classes: a credential server may answer it too."""
_ENVIRONMENT = re.compile(
    r"AWS_(ENDPOINT|SSE_|SERVER_SIDE|CHECKSUM|REQUEST_PAYER|S3_EXPRESS|DEFAULT_CLIENT|PROXY|ALLOW_)|AZURE_"
)
"""Variables that obstore reads and the other client ignores or interprets differently."""

_is_inherited = False


_making = threading.Lock()
CLIENTS_MAX = 64
"""The newest clients that a process keeps open, used or not: each root and each new token needs one."""
_clients: dict[str, ObstoreClient] = {}
"""By a digest of root, settings and environment, which may hold secrets; the one used last comes last."""


def _note_fork() -> None:
    global _is_inherited, _making
    _is_inherited, _making = "obstore" in sys.modules, threading.Lock()


os.register_at_fork(after_in_child=_note_fork)


class ObstoreError(OSError):
    """The failure of a request.

    Attributes:
        status: HTTP status; None without an answer.
        error_code: the service's own code, "" without one.
    """

    def __init__(self, text: str, status: int | None, error_code: str) -> None:
        super().__init__(text)
        self.status = status
        self.error_code = error_code


class ObstoreSettings(NamedTuple):
    """Arguments of obstore's store class for one root."""

    class_name: str
    place: str
    folder: str
    options: Mapping[str, Any]


def is_inherited() -> bool:
    """Return whether this process was forked from one that uses obstore.

    Its threads do not survive a fork. A child that opens connections anyway breaks its parent's, since they share
    one event poll.
    """
    return _is_inherited


def settings_of(url: str, given: Mapping[str, Any], *, is_forced: bool) -> ObstoreSettings | str:
    """Return a root's settings, or why obstore would interpret its options differently.

    Args:
        url: normalised.
        given: the root's storage options.
        is_forced: let obstore find what the options omit: credentials, region.
    """
    if importlib.util.find_spec("obstore") is None:
        return "the package obstore is not installed (pip install 'spark-replog[fast]')"
    scheme, _, rest = url.partition("://")
    place, _, folder = rest.partition("/")
    mapped = {"s3": _of_s3, "abfs": _of_azure}.get(scheme)
    if mapped is None:
        return f"it is not proven for {scheme}://"
    left = {name: value for name, value in given.items() if name != "client"}
    try:
        found = mapped(place, left)
    except (TypeError, ValueError, AttributeError, LookupError) as error:
        return f"it does not take these options ({error})"
    if left:
        return f"it has no option like {', '.join(sorted(left))}"
    missing = found.pop("missing")
    variables = sorted(name for name in os.environ if _ENVIRONMENT.match(name))
    if not is_forced and (missing or variables):
        return missing or f"it reads {', '.join(variables)} in its own way"
    return ObstoreSettings(found.pop("class_name"), found.pop("place"), folder, found)


def _of_s3(place: str, left: dict[str, Any]) -> dict[str, Any]:
    kwargs, config = _mapping(left, "client_kwargs"), _mapping(left, "config_kwargs")
    endpoint = left.pop("endpoint_url", None) or kwargs.pop("endpoint_url", None)
    region = kwargs.pop("region_name", None) or os.environ.get("AWS_DEFAULT_REGION")
    options: dict[str, Any] = {
        "class_name": "S3Store",
        "place": place,
        "conditional_put": "etag",
        "disable_bulk_delete": True,
        "skip_signature": _is_true(left.pop("anon", False)),
        "client_options": _client_options(endpoint, config),
        # As the other client: path-style URLs at a given endpoint, no checksum of the body under TLS.
        "virtual_hosted_style_request": endpoint is None and "." not in place,
        "unsigned_payload": endpoint is None or endpoint.startswith("https:"),
    }
    for name, its in (("key", "access_key_id"), ("secret", "secret_access_key"), ("token", "session_token")):
        if name in left:
            options[its] = left.pop(name)
    if endpoint is not None:
        options["endpoint"] = endpoint
    if region is not None or endpoint is not None:
        options["region"] = region or "us-east-1"
    left.update({f"client_kwargs.{name}": value for name, value in kwargs.items()})
    left.update({f"config_kwargs.{name}": value for name, value in config.items()})
    options["missing"] = _missing_of_s3(options)
    return options


def _missing_of_s3(options: Mapping[str, Any]) -> str:
    """Return what the options omit that the two clients would search for differently; "" if nothing."""
    if "region" not in options:
        return "neither a region nor an endpoint is given"
    if options["skip_signature"]:
        return ""
    given = {"access_key_id", "secret_access_key"} <= options.keys()
    if given and "session_token" not in options and "AWS_SESSION_TOKEN" in os.environ:
        return "it would add AWS_SESSION_TOKEN to the key that is given"
    in_environment = {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"} <= os.environ.keys()
    partly = not {"access_key_id", "secret_access_key", "session_token"}.isdisjoint(options)
    if given or (in_environment and not partly and "AWS_PROFILE" not in os.environ):
        return ""
    return "no key and secret are given"


def _of_azure(place: str, left: dict[str, Any]) -> dict[str, Any]:
    container, _, host = place.partition("@")
    account, key, endpoint = (
        left.pop("account_name", None) or host.partition(".")[0],
        left.pop("account_key", None),
        None,
    )
    text = left.pop("connection_string", None)
    if text is not None:
        parts = dict(part.split("=", 1) for part in text.split(";") if part)
        account, key, endpoint = parts.pop("AccountName"), parts.pop("AccountKey"), parts.pop("BlobEndpoint", None)
        protocol, suffix = (
            parts.pop("DefaultEndpointsProtocol", "https"),
            parts.pop("EndpointSuffix", "core.windows.net"),
        )
        endpoint = endpoint or f"{protocol}://{account}.blob.{suffix}"
        left.update({f"connection_string.{name}": value for name, value in parts.items()})
    options = {
        "class_name": "AzureStore",
        "place": container,
        "client_options": _client_options(endpoint, left, connect="connection_timeout", answer="read_timeout"),
        "missing": "" if account and key else "no account and key are given",
    }
    told = {"account_name": account, "account_key": key, "endpoint": endpoint and endpoint.rstrip("/")}
    return {**options, **{name: value for name, value in told.items() if value}}


def _client_options(
    endpoint: str | None, given: dict[str, Any], *, connect: str = "connect_timeout", answer: str = "read_timeout"
) -> dict[str, Any]:
    if endpoint is not None:
        parts = urlsplit(endpoint)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0:  # a bad port raises
            raise ValueError("an endpoint is a URL that begins with http:// or https://")
    return {
        "allow_http": endpoint is not None and endpoint.startswith("http:"),
        "connect_timeout": f"{float(given.pop(connect, _CONNECT_SECONDS)):.3f}s",
        "read_timeout": f"{float(given.pop(answer, _ANSWER_SECONDS)):.3f}s",
        "timeout": f"{_CALL_SECONDS}s",
    }


def _mapping(left: dict[str, Any], name: str) -> dict[str, Any]:
    value = left.pop(name, {})
    found = json.loads(value) if isinstance(value, str) else value
    return dict(found.items())


def _is_true(value: Any) -> bool:
    return value.lower() == "true" if isinstance(value, str) else bool(value)


def client_of(root: str, settings: ObstoreSettings) -> ObstoreClient:
    """Return this process's client of a root: making one takes 10 ms, and each has its own connections.

    Raises:
        ValueError: as ``ObstoreClient``.
    """
    environment = {name: value for name, value in os.environ.items() if name.startswith(("AWS_", "AZURE_"))}
    name = hashlib.sha256(json.dumps([root, settings, environment], sort_keys=True).encode()).hexdigest()
    with _making:
        found = _clients.pop(name) if name in _clients else ObstoreClient(root, settings)
        _clients[name] = found
        for oldest in list(_clients)[:-CLIENTS_MAX]:
            del _clients[oldest]
        return found


class ObstoreClient:
    """Objects of one root by full names, in this process only.

    Args:
        root: prefix of its objects' full names: the bucket and the root's folder.

    Raises:
        ValueError: obstore does not accept these settings.
    """

    def __init__(self, root: str, settings: ObstoreSettings) -> None:
        import obstore.store

        made: Callable[..., Any] = getattr(obstore.store, settings.class_name)
        try:
            self._store = made(
                settings.place, prefix=settings.folder or None, retry_config={"max_retries": 0}, **settings.options
            )
        except BaseException as error:
            raise ValueError(_words(_caught(error))) from None
        self._cut = len(root) + 1

    def pipe_file(self, path: str, value: bytes, mode: str) -> None:
        """Create an object in one request."""
        with _translated():
            self._store.put(path[self._cut :], value, mode=mode, use_multipart=False)

    def cat_file(self, path: str, start: int = 0, end: int | None = None) -> Buffer:
        """Return the bytes [start, end) in one request."""
        name = path[self._cut :]
        with _translated():
            if end is not None:
                found = self._store.get_range(name, start=start, end=end)
            else:
                found = self._store.get(name, options={"range": {"offset": start}} if start else None).bytes()
        return bytes(found) if len(found) <= BYTES_MAX else memoryview(found)

    def rm_file(self, path: str) -> None:
        """Delete an object."""
        with _translated():
            self._store.delete(path[self._cut :])

    def listed(self, prefix: str, after: str) -> list[tuple[str, int]]:
        """Return names (below the root) and sizes of the objects in the prefix's folder whose name is above `after`."""
        with _translated():
            folder = prefix.rpartition("/")[0] or None
            pages = self._store.list(folder, offset=after or None, chunk_size=NAMES_PER_PAGE)
            return [(each["path"], each["size"]) for page in pages for each in page]


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except BaseException as caught:
        error = _caught(caught)
        kinds = {kind.__name__ for kind in type(error).__mro__}
        text = _words(error)
        found = _STATUS.search(text)
        status = int(next(filter(None, found.groups()))) if found else None
        if _AFTER_THE_END in text:
            status = 416
        elif found is None:
            status = next((each for name, each in _STATUS_OF_CLASS.items() if name in kinds), None)
        elif status in _CLASS_OF_STATUS and kinds.isdisjoint(_CLASS_OF_STATUS[status]):
            status = None
        code = _CODE.search(text)
        if status == 404 and code is None and found is not None and found[0].startswith("Server"):
            status = None  # a proxy before the bucket: the services name each of their errors
        raise ObstoreError(text, status, code[1] if code else "") from None


def _caught(error: BaseException) -> BaseException:
    """Return an ``Exception`` or an obstore panic, which is not an ``Exception``; raise anything else."""
    if isinstance(error, Exception) or type(error).__name__ == "PanicException":
        return error
    raise error


def _words(error: BaseException) -> str:
    return str(error).partition("\n\nDebug source")[0]
