"""``replog explain``: describe error codes, settings and words of status from data that the package carries."""

from __future__ import annotations

import re
import textwrap
import tomllib
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.resources import files
from typing import Any

import click

from spark_replog.cli.output import act_on_each, emit, item_of
from spark_replog.cli.settings import ReplogCommand
from spark_replog.cli.tables import Table, table
from spark_replog.config.key import ConfigKey, normalise_key
from spark_replog.config.registry import CONFIG_KEYS
from spark_replog.errors import ErrorCode, NotFoundError

_TEXT_WIDTH = 100
_OWN_CODES_FROM = 1000


@dataclass(frozen=True, slots=True)
class Entry:
    """One error code, its heading, what happened, what it leaves in the log and on storage, and what to do."""

    code: ErrorCode
    section: str
    meaning: str
    state: str
    remedy: str

    @property
    def kafka_number(self) -> int | None:
        """Return Kafka's number of the error, None for an error that Kafka does not have."""
        return self.code.value if self.code.value < _OWN_CODES_FROM else None


def entries() -> dict[ErrorCode, Entry]:
    """Return the description of each code, in the order of the page. Reads a file of the package."""
    return {ErrorCode[name]: Entry(ErrorCode[name], **fields) for name, fields in _described("errors.toml").items()}


def _described(name: str) -> dict[str, Any]:
    return tomllib.loads(files("spark_replog").joinpath(name).read_text(encoding="utf-8"))


def status_words() -> dict[str, dict[str, str]]:
    """Return what shows each word for a state, its meaning and remedy, in the order of the page. Reads a file."""
    return _described("status_words.toml")


def _complete_name(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    words = (*ErrorCode.__members__, *dict.fromkeys(key.name for key in CONFIG_KEYS), *status_words())
    return [name for name in words if name.lower().startswith(incomplete.lower())]


class _ExplainCommand(ReplogCommand):
    """Takes a number below zero as a code, not as an option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse as Click does."""
        numbers = [word for word in args if re.fullmatch(r"-\d+", word)]
        rest = super().parse_args(ctx, [word for word in args if word not in numbers])
        ctx.params["names"] = (*ctx.params.get("names", ()), *numbers)
        return rest


@click.command("explain", cls=_ExplainCommand,
               examples=["explain NOT_ENOUGH_REPLICAS", "explain linger.ms", "explain root-full"])  # fmt: skip
@click.argument("names", nargs=-1, metavar="[CODE | SETTING | WORD]...", shell_complete=_complete_name)
@click.option("--settings", "is_settings", is_flag=True, help="List all settings instead of all error codes.")
def explain(names: tuple[str, ...], is_settings: bool) -> int:
    """Explain error codes, settings, and words of status, verify and repair; without a name, list all codes.

    CODE is a name such as NOT_ENOUGH_REPLICAS, or a number. SETTING is a name such as linger.ms. WORD is a state
    such as root-full, SLOW or 'set back'.
    """
    if names and is_settings:
        raise click.UsageError("give names or --settings, not both")
    if names:
        items = [item for word in names for item in act_on_each("name", (word,), _find)]
        return emit(items, "\n\n".join(_text(item) for item in items if item["ok"]))
    if is_settings:
        items = [_setting_item(key) for key in CONFIG_KEYS]
        columns = {"SETTING": "setting", "USED BY": "usedBy", "DEFAULT": "default", "UNIT": "unit"}
        return emit(items, table(columns, items))
    items = [_item(entry) for entry in entries().values()]
    rows = [(item["code"], str(item["number"]), item["meaning"].split(". ")[0]) for item in items]
    return emit(items, Table(["CODE", "NUMBER", "MEANING"], rows))


def _find(word: str) -> dict[str, Any]:
    """Return the item of a code, of a setting with all places that use it, or of a word; else raise NotFoundError."""
    wanted = word.strip().strip("[]").upper()
    for code, entry in entries().items():
        if wanted in (code.name, code.name.removeprefix("REPLOG_"), str(code.value)):
            return _item(entry)
    name = normalise_key(word.strip()).lower()
    keys = [key for key in CONFIG_KEYS if key.name.lower() == name]
    if keys:
        return {"setting": keys[0].name, "uses": [_setting_item(key) for key in keys], "ok": True}
    words = status_words()
    state = re.sub(r"[\s_]+", "-", word.strip().lower())
    state = state if state in words else re.sub(r"^journals?-", "", state)
    if (texts := words.get(state)) is not None:
        told = {"word": state, "shownBy": texts["shown_by"], "meaning": texts["meaning"], "remedy": texts["remedy"]}
        return {**told, "ok": True}
    terms = {term.lower(): term for term in (*ErrorCode.__members__, *(key.name for key in CONFIG_KEYS), *words)}
    near = get_close_matches(word.lower(), terms, n=1)
    hint = f"Did you mean {terms[near[0]]}?" if near else "'replog explain' lists all codes, '--settings' all settings."
    raise NotFoundError(ErrorCode.INVALID_REQUEST, f"no error code, setting or word '{word}'. {hint}")


def _item(entry: Entry) -> dict[str, Any]:
    return {**item_of(entry, "code=code.name meaning state remedy number=code.value kafkaNumber"), "ok": True}


def _setting_item(key: ConfigKey) -> dict[str, Any]:
    item = {"setting": key.name, "usedBy": key.group, "default": None if key.default is None else key.default_text}
    return {**item, **item_of(key, "kafkaDefault unit description=doc")}


def _text(item: dict[str, Any]) -> str:
    if "setting" in item:
        return "\n\n".join(_setting_text(use) for use in item["uses"])
    if "word" in item:
        return _block(f"{item['word']} ({item['shownBy']})", Meaning=item["meaning"], Remedy=item["remedy"])
    origin = "Kafka's number" if item["kafkaNumber"] is not None else "not a Kafka error"
    fields = {key.title(): item[key] for key in ("meaning", "state", "remedy")}
    return _block(f"{item['code']} ({item['number']}, {origin})", **fields)


def _setting_text(use: dict[str, Any]) -> str:
    default = "not set" if use["default"] is None else use["default"]
    kafka = "" if use["kafkaDefault"] is None else f" (Kafka: {use['kafkaDefault'] or 'not set'})"
    head = f"{use['setting']} ({use['usedBy']}, {use['unit']})"
    return _block(head, Default=f"{default}{kafka}", Effect=use["description"])


def _block(head: str, **fields: str) -> str:
    wrapper = textwrap.TextWrapper(_TEXT_WIDTH, break_long_words=False, break_on_hyphens=False)
    wrapper.subsequent_indent = " " * 11
    lines = [head]
    for label, text in fields.items():
        wrapper.initial_indent = f"  {label + ':':9}"
        lines.append(wrapper.fill(text))
    return "\n".join(lines)
