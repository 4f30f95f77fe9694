"""``replog debug bundle``: all that is in it, and that rows and credentials are not."""

from __future__ import annotations

import base64
import json
import tarfile

import pytest

from spark_replog import Consumer, OffsetAndMetadata, Producer
from spark_replog.cli.debug import _all_texts, _hider
from spark_replog.cli.settings import Settings
from tests.unit.client.consumer_setup import P0, Store

SECRETS = ("the-secret-value", "the-secret-key", "the-secret-header", "the-secret-note", "the-secret-variable")


@pytest.fixture
def store(tmp_path, monkeypatch):
    made = Store.init(str(tmp_path / "store"), 3)
    made.create("orders", 2, retention_ms="123456")
    value, key, header, note, variable = SECRETS
    with Producer(made.path) as producer:
        producer.send("orders", value.encode(), key=key.encode(), headers=[("h", header.encode())], partition=0).result(
            30
        )
    with Consumer(made.path, group="billing", enable_auto_commit=False) as reader:
        reader.assign([P0])
        reader.commit({P0: OffsetAndMetadata(1, metadata=note)})
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", variable)
    return made


def unpack(path):
    with tarfile.open(path) as archive:
        return {member.name: archive.extractfile(member).read().decode() for member in archive.getmembers()}


def bundle(store, replog, tmp_path, *words):
    path = tmp_path / "bundle.tar.gz"
    answer = replog("-s", store.path, "debug", "bundle", "-o", path, *words)
    assert answer.exit_code == 0, answer.err
    assert path.stat().st_mode & 0o777 == 0o600
    return answer, {name.removeprefix("replog-bundle/"): json.loads(text) for name, text in unpack(path).items()}


def test_it_holds_what_support_asks_for_and_no_row_note_or_credential(store, replog, tmp_path):
    answer, files = bundle(store, replog, tmp_path)
    assert {"about.json", "store.json", "status.json", "topics.json", "readers.json"} < set(files)
    assert "pyarrow" in files["about.json"]["packages"] and len(files["store.json"]["roots"]) == 3
    (orders,) = [topic for topic in files["topics.json"] if topic["topic"] == "orders"]
    assert orders["config"]["retention.ms"] == "123456" and orders["bytesPerDay"] > 0
    assert files["readers.json"][0]["group"] == "billing"
    lines = [line for name, records in files.items() if name.startswith("ledgers/") for record in records
             for line in record["lines"]]  # fmt: skip
    assert any("appends 1 rows to orders-0" in line for line in lines)
    assert any("read up to 1" in line for line in lines)
    texts = "".join(unpack(tmp_path / "bundle.tar.gz").values())
    for secret in SECRETS:
        for form in (secret, base64.b64encode(secret.encode()).decode().rstrip("="), secret.encode().hex()):
            assert form not in texts
    assert "no rows and no credentials" in answer.out
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith(".tmp")] == []


def test_a_store_in_trouble_has_one_that_says_so(store, replog, tmp_path, short_waits):
    for broker in (0, 1):
        (tmp_path / "store" / f"broker-{broker}").rename(tmp_path / f"gone-{broker}")
    short_waits()
    answer, files = bundle(store, replog, tmp_path)
    assert "with an error instead of: store" in answer.out
    assert files["store.json"]["error"].startswith("REPLOG_") and "python" in files["about.json"]


def test_an_option_that_is_a_word_of_json_hides_no_structure():
    hide = _hider(Settings(storage_options={"anon": "true", "x": "path"}), {})
    hidden = _all_texts({"ok": True, "true": ["true", 1, None]}, hide)
    assert hidden == {"ok": True, "(hidden)": ["(hidden)", 1, None]}


def test_one_root_away_leaves_the_rest_whole(store, replog, tmp_path):
    (tmp_path / "store" / "broker-0").rename(tmp_path / "gone")
    _, files = bundle(store, replog, tmp_path)
    assert any(finding["broker"] == 0 for finding in files["status.json"]["findings"])
    assert all(records[0]["broker"] == 1 for name, records in files.items() if name.startswith("ledgers/"))


def test_a_file_that_cannot_be_written_is_told(store, replog, tmp_path):
    answer = replog("-s", store.path, "debug", "bundle", "-o", tmp_path / "no" / "where.tar.gz")
    assert answer.exit_code == 1 and "REPLOG_ENVIRONMENT" in answer.err


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("s3://AKIA:secretsecret@bucket/x", "s3://(hidden)@bucket/x"),
        ("https://a.b/c?x=1&sig=abc%2F&y=2", "https://a.b/c?x=1&sig=(hidden)&y=2"),
        ('{"m": "key hunter22 was refused"}', '{"m": "key (hidden) was refused"}'),
        ('quote"d-value', "(hidden)"),
        ("variable-value and plain-value", "(hidden) and plain-value"),
    ],
)  # fmt: skip
def test_credentials_are_hidden(text, left):
    settings = Settings(storage_options={"key": "hunter22", "other": 'quote"d-value'})
    assert _hider(settings, {"MY_TOKEN": "variable-value", "HOME": "plain-value"})(text) == left
