"""Spark's DDL text of columns, such as ``id BIGINT NOT NULL, tags ARRAY<STRING>``, from and to Arrow fields.

The rendered text is canonical: one text for equal columns. A ledger stores it, so it must stay readable: types may be
added, never changed. Only types that Spark SQL and Arrow both have are here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

import pyarrow as pa

from spark_replog.errors import ErrorCode, InvalidConfigError

DDL_LENGTH_MAX = 128 * 1024
"""Characters of the text of one schema: some thousand columns."""
DEPTH_MAX = 32
"""Of nested types."""
DECIMAL_DIGITS_MAX = 38
DECIMAL_DEFAULT = (10, 0)
LIST_ITEM = "element"
_UTC = "UTC"

_WORDS: dict[str, pa.DataType] = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "STRING": pa.string(),
    "BINARY": pa.binary(),
    "DATE": pa.date32(),
    "TIMESTAMP": pa.timestamp("us", tz=_UTC),
    "TIMESTAMP_NTZ": pa.timestamp("us"),
}
"""Canonical words; the first of each type."""
_OTHER_WORDS = {
    "BYTE": "TINYINT",
    "SHORT": "SMALLINT",
    "INTEGER": "INT",
    "LONG": "BIGINT",
    "REAL": "FLOAT",
    "TIMESTAMP_LTZ": "TIMESTAMP",
}
_DECIMALS = ("DECIMAL", "DEC", "NUMERIC")
_INTERVAL = ("DAY", "TO", "SECOND")
_INTERVAL_TEXT = "INTERVAL DAY TO SECOND"
_INTERVAL_TYPE = pa.duration("us")
_TEXT_OF = {kind: word for word, kind in _WORDS.items()} | {_INTERVAL_TYPE: _INTERVAL_TEXT}
_REMEDIES = {
    "VARCHAR": "Use STRING.",
    "CHAR": "Use STRING.",
    "TEXT": "Use STRING.",
    "DATETIME": "Use TIMESTAMP, or TIMESTAMP_NTZ for a time without a zone.",
    "VARIANT": "Use STRING, with the value as JSON.",
    "VOID": "Use the type that the column will have.",
    "UINT": "Use a wider signed type.",
}
SUPPORTED = (
    "BOOLEAN, TINYINT, SMALLINT, INT, BIGINT, FLOAT, DOUBLE, DECIMAL(p,s), STRING, BINARY, DATE, TIMESTAMP,"
    f" TIMESTAMP_NTZ, {_INTERVAL_TEXT}, ARRAY<T>, MAP<K, V>, STRUCT<NAME: T, ...>"
)
_TOKEN = re.compile(r"\s*(?:(?P<quoted>`(?:[^`]|``)+`)|(?P<word>\w+)|(?P<sign>[<>(),:])|(?P<other>\S))")
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def invalid_schema(what: str, **context: object) -> InvalidConfigError:
    """Return REPLOG_INVALID_SCHEMA."""
    return InvalidConfigError(ErrorCode.REPLOG_INVALID_SCHEMA, what, **context)


@lru_cache(maxsize=256)
def parse_columns(text: str) -> pa.Schema:
    """Return the columns of DDL text; nested fields are nullable, names are as written.

    Raises:
        InvalidConfigError: REPLOG_INVALID_SCHEMA: the text does not parse, or a type is not supported.
    """
    if len(text) > DDL_LENGTH_MAX:
        raise invalid_schema(f"the schema has {len(text)} characters, {DDL_LENGTH_MAX} is the most. Use fewer columns.")
    return pa.schema(_Parser(text).columns())


def columns_text(fields: Iterable[pa.Field]) -> str:
    """Return the canonical text of columns whose types are canonical; see `canonical_field`."""
    return ", ".join(
        f"{_name_text(field.name)} {type_text(field.type)}{'' if field.nullable else ' NOT NULL'}" for field in fields
    )


def type_text(kind: pa.DataType) -> str:
    """Return a type's text; of a type that is not canonical Arrow's own word."""
    if kind in _TEXT_OF:
        return _TEXT_OF[kind]
    if pa.types.is_decimal128(kind):
        return f"DECIMAL({kind.precision},{kind.scale})"
    if pa.types.is_list(kind):
        return f"ARRAY<{type_text(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"MAP<{type_text(kind.key_type)}, {type_text(kind.item_type)}>"
    if pa.types.is_struct(kind):
        inner = ", ".join(f"{_name_text(field.name)}: {type_text(field.type)}" for field in kind)
        return f"STRUCT<{inner}>"
    return str(kind)


def input_type_text(kind: pa.DataType) -> str:
    """Return any Arrow type as Spark names it, where Spark has it; with Arrow's name if it is stored as another one."""
    try:
        canonical = canonical_field(pa.field("input", kind)).type
    except InvalidConfigError:
        return str(kind)
    return type_text(canonical) if canonical == kind else f"{type_text(canonical)} ({kind})"


def canonical_field(field: pa.Field, path: str = "", depth: int = 0) -> pa.Field:
    """Return a column with the type in which rows are stored: Spark's Arrow types, nested fields nullable.

    Raises:
        InvalidConfigError: REPLOG_INVALID_SCHEMA: its type is not supported.
    """
    return pa.field(field.name, _canonical(field.type, path or field.name, depth), field.nullable)


def _canonical(kind: pa.DataType, path: str, depth: int) -> pa.DataType:
    types = pa.types
    if depth > DEPTH_MAX:
        raise _too_deep()
    if isinstance(kind, pa.BaseExtensionType):
        return _canonical(kind.storage_type, path, depth)
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return _canonical(kind.value_type, path, depth)
    if kind in _TEXT_OF:
        return kind
    for is_alike, made in _ALIKE:
        if is_alike(kind):
            return made
    if types.is_timestamp(kind):
        return pa.timestamp("us", tz=_UTC if kind.tz is not None else None)
    if types.is_decimal(kind) and 0 <= kind.scale <= kind.precision <= DECIMAL_DIGITS_MAX:
        return pa.decimal128(kind.precision, kind.scale)
    if _is_any_list(kind):
        return pa.list_(pa.field(LIST_ITEM, _canonical(kind.value_type, f"{path}.{LIST_ITEM}", depth + 1)))
    if types.is_map(kind):
        key = _canonical(kind.key_type, f"{path}.key", depth + 1)
        return pa.map_(key, _canonical(kind.item_type, f"{path}.value", depth + 1))
    if types.is_struct(kind):
        inner = [_canonical(field.type, f"{path}.{field.name}", depth + 1) for field in kind]
        return struct_of([field.name for field in kind], inner, path)
    raise invalid_schema(
        f"column '{path}' has the type {kind}, which a typed topic cannot hold. Cast it to one of: {SUPPORTED}.",
        column=path,
        type=str(kind),
    )


def _is_any_list(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_list(kind)
        or types.is_large_list(kind)
        or types.is_fixed_size_list(kind)
        or types.is_list_view(kind)
        or types.is_large_list_view(kind)
    )


def _is_any_string(kind: pa.DataType) -> bool:
    return bool(pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_any_binary(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_large_binary(kind) or types.is_binary_view(kind) or types.is_fixed_size_binary(kind))


_ALIKE = (
    (_is_any_string, pa.string()),
    (_is_any_binary, pa.binary()),
    (pa.types.is_date64, pa.date32()),
    (pa.types.is_duration, _INTERVAL_TYPE),
)
"""Types of the same values in another layout."""


def struct_of(names: Sequence[str], types: Sequence[pa.DataType], path: str) -> pa.DataType:
    """Return a struct of nullable fields; refuses names that differ at most in case."""
    check_names(names, f"the struct '{path}'" if path else "the struct")
    return pa.struct([pa.field(name, kind) for name, kind in zip(names, types, strict=True)])


def check_names(names: Sequence[str], where: str) -> None:
    """Refuse empty names, names that are not Unicode, and names that differ at most in case.

    Also those with a NUL: Arrow holds them, but between Spark's JVM and its Python workers a name ends there.

    Raises:
        InvalidConfigError: REPLOG_INVALID_SCHEMA.
    """
    seen: dict[str, str] = {}
    for name in names:
        if not name or "\0" in name or not _is_unicode(name):
            raise invalid_schema(f"{where} has a column named {name!r}. Give it another name.", column=repr(name))
        other = seen.setdefault(name.lower(), name)
        if other is not name:
            raise invalid_schema(
                f"{where} has two columns '{other}' and '{name}', which differ at most in case. Rename one.",
                column=name,
            )


def _is_unicode(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _name_text(name: str) -> str:
    return name if _PLAIN_NAME.fullmatch(name) else "`" + name.replace("`", "``") + "`"


def _too_deep() -> InvalidConfigError:
    return invalid_schema(f"types are nested deeper than {DEPTH_MAX} levels. Flatten them.")


class _Parser:
    """Reads DDL text token by token."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = list(_TOKEN.finditer(text))
        self._at = 0

    def columns(self) -> list[pa.Field]:
        """Return all columns of the text."""
        fields = [self._column()]
        while self._take(","):
            fields.append(self._column())
        self.expect_end()
        check_names([field.name for field in fields], "the schema")
        return fields

    def expect_end(self) -> None:
        """Refuse text that goes on."""
        if self._at < len(self._tokens):
            raise self._unexpected("',' or the end")

    def _column(self) -> pa.Field:
        name = self._name()
        kind = self.type(0)
        is_required = self._word() == "NOT"
        if is_required:
            self._at += 1
            self._expect_word("NULL")
        if self._word() == "COMMENT":
            raise invalid_schema(f"column '{name}' has a COMMENT: a topic keeps none. Leave it out.", column=name)
        return pa.field(name, kind, not is_required)

    def type(self, depth: int) -> pa.DataType:
        """Return the type that comes next."""
        if depth > DEPTH_MAX:
            raise _too_deep()
        word = self._word()
        if not word:
            raise self._unexpected("a type")
        self._at += 1
        word = _OTHER_WORDS.get(word, word)
        if word in _WORDS:
            return _WORDS[word]
        if word in _DECIMALS:
            return self._decimal()
        if word == "INTERVAL":
            return self._interval()
        if word == "ARRAY":
            self._expect("<")
            kind = pa.list_(pa.field(LIST_ITEM, self.type(depth + 1)))
            self._expect(">")
            return kind
        if word == "MAP":
            self._expect("<")
            key = self.type(depth + 1)
            self._expect(",")
            kind = pa.map_(key, self.type(depth + 1))
            self._expect(">")
            return kind
        if word == "STRUCT":
            return self._struct(depth)
        remedy = _REMEDIES.get(word, f"Use one of: {SUPPORTED}.")
        raise invalid_schema(f"the schema has the type {word}, which a typed topic cannot hold. {remedy}", type=word)

    def _struct(self, depth: int) -> pa.DataType:
        self._expect("<")
        names, types = list[str](), list[pa.DataType]()
        while not self._take(">"):
            if names:
                self._expect(",")
            names.append(self._name())
            self._take(":")
            types.append(self.type(depth + 1))
            if self._word() == "NOT":
                raise invalid_schema(
                    f"the field '{names[-1]}' of a struct is NOT NULL, which a topic checks for columns only. Leave it"
                    " out there.",
                    column=names[-1],
                )
        return struct_of(names, types, "")

    def _decimal(self) -> pa.DataType:
        precision, scale = DECIMAL_DEFAULT
        if self._take("("):
            precision, scale = self._number(), 0
            if self._take(","):
                scale = self._number()
            self._expect(")")
        if not (1 <= precision <= DECIMAL_DIGITS_MAX and 0 <= scale <= precision):
            raise invalid_schema(
                f"DECIMAL({precision},{scale}) is out of range. Use 1 to {DECIMAL_DIGITS_MAX} digits, of which 0 to all"
                " are after the point."
            )
        return pa.decimal128(precision, scale)

    def _interval(self) -> pa.DataType:
        at = self._at
        for word in _INTERVAL:
            if self._word() != word:
                rest = self._text[self._tokens[at - 1].start() :].strip()[:40]
                raise invalid_schema(f"'{rest}' is not supported. Use {_INTERVAL_TEXT}, or numbers.")
            self._at += 1
        return _INTERVAL_TYPE

    def _number(self) -> int:
        word = self._word()
        if not (word.isascii() and word.isdecimal() and len(word) < 6):
            raise self._unexpected("a number")
        self._at += 1
        return int(word)

    def _name(self) -> str:
        token = self._token()
        if token is None or not (token["quoted"] or token["word"]):
            raise self._unexpected("the name of a column")
        self._at += 1
        if token["quoted"]:
            return token["quoted"][1:-1].replace("``", "`")
        return str(token["word"])

    def _token(self) -> re.Match[str] | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def _word(self) -> str:
        """Return the next word in upper case, '' if something else is next."""
        token = self._token()
        return "" if token is None or not token["word"] else token["word"].upper()

    def _expect_word(self, word: str) -> None:
        if self._word() != word:
            raise self._unexpected(word)
        self._at += 1

    def _take(self, sign: str) -> bool:
        token = self._token()
        if token is None or token["sign"] != sign:
            return False
        self._at += 1
        return True

    def _expect(self, sign: str) -> None:
        if not self._take(sign):
            raise self._unexpected(f"'{sign}'")

    def _unexpected(self, wanted: str) -> InvalidConfigError:
        token = self._token()
        at = len(self._text) if token is None else token.end() - len(token[0].lstrip())
        given = "the end" if token is None else f"'{self._text[at : at + 20]}'"
        return invalid_schema(
            f"the schema cannot be read at character {at}: {given} where {wanted} is expected. Write columns as in"
            ' "id BIGINT NOT NULL, tags ARRAY<STRING>, `odd name` INT".'
        )
