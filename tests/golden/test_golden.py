"""Files of every released format stay readable and mean the same."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pyarrow as pa
import pytest

from spark_replog.log.codec.commands import decode_command, decode_entry, encode_command, encode_entry
from spark_replog.log.model import Section

HERE = Path(__file__).parent
_spec = importlib.util.spec_from_file_location("replog_make_golden", HERE / "make_golden.py")
make_golden = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(make_golden)

VERSIONS = sorted(path.parent.name for path in HERE.glob("v*/expected.json"))
EXPECTED = {version: json.loads((HERE / version / "expected.json").read_text()) for version in VERSIONS}
ENTRIES = [(version, name) for version in VERSIONS for name in EXPECTED[version]["entries"]]
OBJECTS = [(version, name) for version in VERSIONS for name in EXPECTED[version]["objects"]]


def test_there_are_golden_files():
    assert VERSIONS[0] == "v1"


@pytest.mark.parametrize(("version", "name"), ENTRIES)
def test_entries_mean_what_they_meant(version, name):
    commands = [decode_command(d) for d in decode_entry((HERE / version / f"{name}.bin").read_bytes())]
    assert make_golden.plain(commands) == EXPECTED[version]["entries"][name]


@pytest.mark.parametrize(("version", "name"), [entry for entry in ENTRIES if entry[0] == VERSIONS[-1]])
def test_the_newest_format_is_written_byte_for_byte(version, name):
    payload = (HERE / version / f"{name}.bin").read_bytes()
    assert encode_entry([encode_command(decode_command(d)) for d in decode_entry(payload)]) == payload
    commands = make_golden.entries()[name]
    assert encode_entry([encode_command(command) for command in commands]) == payload


@pytest.mark.parametrize(("version", "name"), OBJECTS)
def test_data_objects_mean_what_they_meant(version, name):
    expected = EXPECTED[version]["objects"][name]
    body = (HERE / version / f"{name}.arrow").read_bytes()
    sections = [Section(**section) for section in expected["sections"]]
    kind = expected["has_headers"], expected.get("has_offsets", False)
    assert make_golden.plain_rows(body, sections, *kind) == expected["rows"]
    assert pa.ipc.open_file(body).read_all().num_rows == len(expected["rows"])


@pytest.mark.parametrize("version", VERSIONS)
def test_typed_data_objects_mean_what_they_meant(version):
    expected = EXPECTED[version]["typed"]
    body = (HERE / version / "data_typed.arrow").read_bytes()
    sections = [Section(**section) for section in expected["sections"]]
    assert make_golden.plain_typed_rows(body, sections) == expected["rows"]
    with pa.ipc.open_file(body) as file:
        assert file.read_all().num_rows == len(expected["rows"])
        metadata = file.schema.metadata
    assert metadata[b"replog.schema"].decode() == make_golden.typed_schema().ddl
    assert json.loads(metadata[b"replog.key"]) == ["region", "id"]
