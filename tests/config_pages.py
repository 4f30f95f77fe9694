"""Writes what repeats the registry of settings: the tables of ``docs/configuration.md``, and ``conf/``.

    python tests/config_pages.py --write

``tests/unit/test_config.py`` fails where one of them is out of date.
"""

from __future__ import annotations

import re
import sys
import textwrap
from pathlib import Path

from spark_replog.config import UNUSED_KAFKA_PREFIXES, UNUSED_KAFKA_SETTINGS, ConfigKey, keys_of

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "configuration.md"
CONF = ROOT / "conf" / "replog-defaults.conf"
_BLOCK = re.compile(r"<!-- settings of (\w+) -->\n.*?<!-- end -->", re.DOTALL)
_CONF_HEAD = """\
# Every setting at its default, commented out. Made by tests/config_pages.py: do not edit.
# No program reads this file. Copy lines into Spark options (df.writeStream.option(key, value)), a client's mapping,
# or after 'topic create -c'.
"""
_SECTIONS = {
    "producer": "sink options; also of the plain Python Producer and 'replog produce'",
    "client": "only the plain Python Producer and 'replog produce'",
    "consumer": "the plain Python Consumer",
    "coordinator": "sink options; also of Producer, Consumer and commands that commit",
    "topic": "replog topic create NAME -c key=value",
    "storage": "every option mapping; -X key=value of commands",
    "source": "spark.readStream and spark.read",
    "sink": "df.writeStream and df.write",
    "cluster": "replog acl config set KEY=VALUE",
}


def filled_page(text: str) -> str:
    """Return the page with its tables made from the registry."""
    return _BLOCK.sub(lambda block: f"<!-- settings of {block[1]} -->\n{_table(block[1])}\n<!-- end -->", text)


def conf_text() -> str:
    """Return the file of defaults."""
    parts = [_CONF_HEAD]
    for group, use in _SECTIONS.items():
        parts.append(f"\n# ---- {group}: {use}\n")
        parts += [_conf_entry(key) for key in keys_of(group)]
    return "".join(parts)


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


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit(__doc__)
    PAGE.write_text(filled_page(PAGE.read_text()))
    CONF.write_text(conf_text())
