"""Write the pages that are generated from the package's own data: ``python docs/generate.py``.

The catalogue of errors, the tables of settings and the file of defaults. What is written by hand in a page is kept.
``tests/test_docs.py`` compares the pages.
"""

from __future__ import annotations

import inspect
import itertools
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import click

from spark_replog.cli.explain import entries, status_words
from spark_replog.cli.main import cli
from spark_replog.config.key import ConfigKey
from spark_replog.config.registry import UNUSED_KAFKA_PREFIXES, UNUSED_KAFKA_SETTINGS, keys_of
from spark_replog.config.spark import SESSION_SETTINGS, value_for

ROOT = Path(__file__).resolve().parents[1]
_GLOBAL = {"store", "format", "settings_override", "quiet", "verbose"}
MARK = "<!-- Generated from here on from {source}: python docs/generate.py -->\n"


def errors_page(old: str) -> str:
    """Return ``errors.md``: the catalogue of error codes below the introduction of the old page."""
    return _below(old, "spark_replog/errors.toml", itertools.chain(_errors(), _status_words()))


def _below(old: str, source: str, lines: Iterator[str]) -> str:
    mark = MARK.format(source=source)
    introduction, found, _ = old.partition(mark)
    assert found, f"the page has no line {mark}"
    return introduction + mark + "\n".join(lines) + "\n"


def _errors() -> Iterator[str]:
    section = None
    for entry in entries().values():
        if entry.section != section:
            section = entry.section
            yield f"\n## {section}"
        yield f"\n### {entry.code.name} ({entry.code.value})\n"
        for label, text in (("Meaning", entry.meaning), ("State", entry.state), ("Remedy", entry.remedy)):
            yield textwrap.fill(
                f"- **{label}**: {text}", 120, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
            )


def _status_words() -> Iterator[str]:
    yield "\n## Words of `status`, `store verify` and `store repair`"
    for word, texts in status_words().items():
        yield f"\n### {word}\n"
        for label in ("Shown by", "Meaning", "Remedy"):
            text = texts[label.lower().replace(" ", "_")]
            yield textwrap.fill(
                f"- **{label}**: {text}", 120, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
            )


_BLOCK = re.compile(r"<!-- settings of (\w+) -->\n.*?<!-- end -->", re.DOTALL)
_CONF_HEAD = """\
# Every setting at its default, commented out. Made by docs/generate.py: do not edit.
# No program reads this file. Copy lines into Spark options (df.writeStream.option(key, value)), a client's mapping,
# or after 'topic create -c'.
"""
_SECTIONS = {
    "producer": "sink options; also of the plain Python Producer and 'replog produce'",
    "client": "only the plain Python Producer and 'replog produce'",
    "consumer": "the plain Python Consumer",
    "coordinator": "sink options; also of Producer, Consumer and commands that commit",
    "gateway": "`replog gateway -c KEY=VALUE`",
    "topic": "replog topic create NAME -c key=value",
    "storage": "every option mapping; -X key=value of commands",
    "source": "spark.readStream and spark.read",
    "sink": "df.writeStream and df.write",
    "cluster": "replog acl config set KEY=VALUE",
}


def configuration_page(old: str) -> str:
    """Return ``configuration.md`` with its tables made from the registry."""
    return _BLOCK.sub(lambda block: f"<!-- settings of {block[1]} -->\n{_table(block[1])}\n<!-- end -->", old)


def defaults_file(_old: str) -> str:
    """Return the file of defaults."""
    parts = [_CONF_HEAD]
    for group, use in _SECTIONS.items():
        parts.append(f"\n# ---- {group}: {use}\n")
        parts += [_conf_entry(key) for key in keys_of(group)]
    return "".join(parts)


_SESSION_HEAD = """\
# Spark's settings that shorten replog's micro-batches, for spark-submit --properties-file, or to be copied into
# spark-defaults.conf. Spark 4.1 and newer; checkpoints on a local disk or a mounted one (file:). Made by
# docs/generate.py: do not edit. What each is worth and its risk: docs/performance.md
"""


def session_file(_old: str) -> str:
    """Return the file of Spark settings."""
    parts = [_SESSION_HEAD]
    for each in SESSION_SETTINGS:
        text = (
            f"{each.effect} Without it a micro-batch takes about {each.saved_ms} ms more."
            if each.saved_ms
            else each.effect
        )
        parts.append("\n" + textwrap.fill(text, 110, initial_indent="# ", subsequent_indent="# ") + "\n")
        if each.since > (4, 0):
            parts.append(f"# From Spark {each.since[0]}.{each.since[1]} on.\n")
        if value_for(each, (4, 0)) != each.value:
            parts.append(f"# Spark 4.0: {value_for(each, (4, 0))}\n")
        if each.is_local_only:
            parts.append("# Remove this line where checkpoints are on HDFS or an object store.\n")
        parts.append(f"{each.name} {each.value}\n")
    return "".join(parts)


def performance_page(old: str) -> str:
    """Return ``performance.md`` with its table of Spark settings."""
    rows = [
        f"| `{each.name}` | `{each.value.rpartition('.')[2]}` | {each.effect} | "
        f"{f'{each.saved_ms:,} ms' if each.saved_ms else ''} | {each.risk} |"
        for each in SESSION_SETTINGS
    ]
    head = "| setting | value | what it does | a micro-batch without it | risk |\n| --- | --- | --- | --- | --- |"
    return _BLOCK.sub("\n".join(["<!-- settings of session -->", head, *rows, "<!-- end -->"]), old)


def _table(group: str) -> str:
    if group == "kafka":
        rows = [
            f"| `{name}` | {', '.join(unused.clients)} | {unused.reason} |"
            for names in (UNUSED_KAFKA_SETTINGS, {f"{name}*": each for name, each in UNUSED_KAFKA_PREFIXES.items()})
            for name, unused in names.items()
        ]
        return "\n".join(["| setting | Kafka's | why, and what to do instead |", "| --- | --- | --- |", *rows])
    rows = [
        f"| `{key.name}` | {key.default_text} | {key.kafka_default or ''} | {key.unit} | {key.doc} |"
        for key in keys_of(group)
    ]
    head = "| key | default | Kafka's | unit | what it does |"
    return "\n".join([head, "| --- | --- | --- | --- | --- |", *rows])


def _conf_entry(key: ConfigKey) -> str:
    kafka = f", Kafka: {key.kafka_default}" if key.kafka_default else ""
    comment = textwrap.fill(
        f"{key.doc} ({key.unit}{kafka})", 110, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False
    )
    return f"\n{comment}\n#{key.name}={key.default_text}\n"


def commands_page(old: str) -> str:
    """Return ``commands.md``: every command with its flags, below the introduction of the old page."""
    return _below(old, "the commands' help", _commands(cli, "replog"))


def _help(command: click.Command) -> str:
    """Return a command's help as Markdown; lines that Click does not wrap stand in a block of their own."""
    text = inspect.cleandoc(command.help or "")
    return re.sub(r"\x08\n(.+?)(?=\n\n|\Z)", r"```text\n\1\n```", text, flags=re.DOTALL)


def _commands(command: click.Command, path: str) -> Iterator[str]:
    # Click keeps the help option that is made first: without -h it would be lost for whoever runs the command next.
    context = click.Context(command, info_name=path, **cli.context_settings)
    if isinstance(command, click.Group):
        if path != "replog":
            yield f"\n## {path}\n\n{_help(command)}"
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            yield from _commands(child, f"{path} {name}")
        return
    usage = " ".join([path, *command.collect_usage_pieces(context)])
    level = "##" if path.count(" ") == 1 else "###"
    yield f"\n{level} {path}\n\n```text\n{usage}\n```\n\n{_help(command)}\n"
    for parameter in command.params:
        if isinstance(parameter, click.Option) and parameter.name not in _GLOBAL and not parameter.hidden:
            head, text = parameter.get_help_record(context) or ("", "")
            text = re.sub(r"  \[(default: \(dynamic\)|\d*<?=?x[^\]]*)\]", "", text)
            yield f"- `{head}`{': ' if text else ''}{text}"
    examples = getattr(command, "examples", ())
    if examples:
        yield "\n```sh\n" + "\n".join(f"replog {each}" for each in examples) + "\n```"


PAGES: Mapping[str, Callable[[str], str]] = {
    "docs/errors.md": errors_page,
    "docs/configuration.md": configuration_page,
    "docs/commands.md": commands_page,
    "docs/performance.md": performance_page,
    "conf/replog-defaults.conf": defaults_file,
    "conf/spark-replog.conf": session_file,
}

if __name__ == "__main__":
    for name, made in PAGES.items():
        page = ROOT / name
        page.write_text(made(page.read_text(encoding="utf-8")), encoding="utf-8")
