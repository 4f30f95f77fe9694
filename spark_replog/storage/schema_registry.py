"""Schemas of values outside the store: files, and registries of schemas by number, as folders or as Confluent's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spark_replog.errors import ErrorCode, ReplogError, RetriableError, invalid_option
from spark_replog.storage.open_store import open_store

_NOT_FOUND = 404
_REFERENCES_MAX = 100
"""Schemas that one refers to, at any depth."""


def read_schema_file(place: str, storage_options: Mapping[str, str]) -> str:
    """Return the text of a file, at a path or a URL that could be a root's.

    Raises:
        ReplogError: REPLOG_INVALID_OPTION: there is none, or it is not UTF-8; or it cannot be read.
    """
    folder, slash, name = place.rpartition("/")
    text = _file(folder or slash or ".", name, storage_options)
    if text is None:
        raise invalid_option(f"valueSchema: there is no file '{place}'. Correct its path, or write the columns as DDL.")
    return text


def _file(folder: str, name: str, storage_options: Mapping[str, str]) -> str | None:
    data = open_store(folder, storage_options).get(name)
    try:
        return None if data is None else bytes(data).decode()
    except UnicodeDecodeError as error:
        raise invalid_option(f"{folder}/{name} is not text in UTF-8: {error}. Correct it.") from error


class SchemaRegistry:
    """Finds schemas by the numbers that Confluent's serializers write before values. Keeps what it has found.

    Args:
        place: the URL of a registry (http:// or https://), or of a folder with a file ``NUMBER.avsc`` for each schema.
        options: of Confluent's client, such as ``basic.auth.user.info``. May hold secrets, and is never shown.
        storage_options: of the folder.

    Raises:
        ReplogError: REPLOG_INVALID_OPTION: the URL holds a password, or the client refuses an option;
            REPLOG_ENVIRONMENT: the client is not installed.
    """

    def __init__(self, place: str, options: Mapping[str, str], storage_options: Mapping[str, str]) -> None:
        self._place = place.rstrip("/")
        self._storage_options = dict(storage_options)
        self._texts: dict[int, tuple[str, ...]] = {}
        self._client = _client(self._place, options) if place.startswith(("http://", "https://")) else None

    def texts(self, schema_id: int) -> tuple[str, ...] | None:
        """Return a schema as text, after those that it refers to; None if there is none.

        Raises:
            ReplogError: REPLOG_STORE_UNAVAILABLE: the registry does not answer, or refuses; or the folder does not.
        """
        texts = self._texts.get(schema_id)
        if texts is None:
            texts = self._read(schema_id)
            if texts is not None:
                self._texts[schema_id] = texts
        return texts

    def _read(self, schema_id: int) -> tuple[str, ...] | None:
        if self._client is None:
            text = _file(self._place, f"{schema_id}.avsc", self._storage_options)
            return None if text is None else (text,)
        try:
            return tuple(_with_references(self._client, self._client.get_schema(schema_id)).values())
        except Exception as error:  # the library's own, and those of its HTTP client
            if getattr(error, "http_status_code", 0) == _NOT_FOUND:
                return None
            raise RetriableError(
                ErrorCode.REPLOG_STORE_UNAVAILABLE,
                f"the schema registry at {self._place} does not give schema {schema_id}: {type(error).__name__}: "
                f"{error}. Check its URL, the options registry.*, and the network, then try again.",
            ) from error


def _with_references(client: Any, schema: Any, name: str = "", texts: dict[str, str] | None = None) -> dict[str, str]:
    """Return texts by name, in the order in which each only refers to those before it."""
    texts = {} if texts is None else texts
    for reference in schema.references or ():
        if reference.name not in texts and len(texts) < _REFERENCES_MAX:
            version = client.get_version(reference.subject, reference.version)
            _with_references(client, version.schema, reference.name, texts)
    texts[name] = schema.schema_str
    return texts


def _client(url: str, options: Mapping[str, str]) -> Any:
    if "@" in url.partition("://")[2].partition("/")[0]:
        raise invalid_option(
            "valueRegistry holds a password, which errors would show. Give it as the option "
            "registry.basic.auth.user.info=USER:PASSWORD."
        )
    try:
        from confluent_kafka.schema_registry import SchemaRegistryClient
    except ImportError as error:
        raise ReplogError(
            ErrorCode.REPLOG_ENVIRONMENT,
            "a schema registry needs confluent_kafka. Run: pip install 'spark-replog[registry]'",
        ) from error
    try:
        return SchemaRegistryClient({"url": url, **options})
    except (ValueError, TypeError, OSError) as error:
        names = ", ".join(sorted(options)) or "none"
        raise invalid_option(  # its own text may repeat a secret
            f"Confluent's client refuses the options registry.* ({names}): {type(error).__name__}. Correct them."
        ) from None
