"""``replog store dump``: every kind of file in words, whole and damaged."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from spark_replog.log.codec.snapshot import Directory, PageKind, Rows, encode_page, pieces_of
from spark_replog.monitor.file_words import file_words
from tests.unit.client.consumer_setup import Store, rows

GOLDEN = Path(__file__).parents[2] / "golden" / "v1"
SECRET = b"a row that nobody may see"


@pytest.fixture
def store(tmp_path):
    made = Store.init(str(tmp_path / "store"), 3)
    made.create("orders", 2)
    made.write("orders", rows(10))
    made.write("orders", [SECRET])
    return made


def files(store, pattern, brokers="broker-0"):
    return sorted(path for path in Path(store.path).glob(f"{brokers}/{pattern}") if path.is_file())


def test_the_newest_records_of_a_journal_tell_what_happened(store, replog):
    answer = replog("-s", store.path, "store", "dump", "--ledger", "orders")
    assert answer.exit_code == 0
    for words in ("creates topic orders with 2 partitions", "appends 10 rows to orders-0 (10)", "ENTRY 0 of round"):
        assert words in answer.out
    assert SECRET.decode() not in answer.out
    whole = replog("-s", store.path, "store", "dump", "--ledger", "orders", "-f", "json").items
    last = replog("-s", store.path, "store", "dump", "--ledger", "orders", "-n", 1, "--broker", 1, "-f", "json").items
    assert last[0]["lines"][-1] == whole[-1]["lines"][-1] and len(last) == 1
    before = replog("-s", store.path, "store", "dump", "--ledger", "orders", "--before", 1, "-f", "json").items
    assert [item["name"] for item in before] == [whole[0]["name"]]
    assert "names topic orders" in replog("-s", store.path, "store", "dump", "--ledger", "cluster").out


def test_files_need_no_store(store, replog):
    ledger, _ = store.cluster.topic_state(store.cluster.lookup("orders"))
    ledger.snapshot(timeout_ms=10_000)
    heads = files(store, "ledgers/*/snapshots/*", "broker-*")  # on two of the three roots at least
    paths = [*files(store, "ledgers/*/journal/*"), *heads, *files(store, "replog.json"),
             *files(store, "ledgers/*/data/*/*.arrow")]  # fmt: skip
    answer = replog("store", "dump", *paths, "-f", "json")
    kinds = {item["kind"] for item in answer.items}
    assert kinds == {"journal record", "snapshot head", "data object", "root file"}
    assert answer.exit_code == 0 and all(item["ok"] and item["lines"] for item in answer.items)
    assert SECRET.decode() not in answer.out


@pytest.mark.parametrize(
    ("file", "kind", "words"),
    [
        ("marker.bin", "truncation marker", "the journal begins at position"),
        ("data_lz4_headers.arrow", "data object", "headers"),
        ("snapshot_head.bin", "snapshot head", "holds entries up to"),
    ],
)
def test_golden_files(file, kind, words):
    summary = file_words(file, (GOLDEN / file).read_bytes())
    assert (summary.kind, summary.damage) == (kind, "") and words in "\n".join(summary.lines)


def test_pages_say_which_they_are_and_whether_they_have_their_own_name():
    (page, other, *_) = (GOLDEN / "pages").iterdir()
    for name in ("copied-elsewhere", str(page)):
        summary = file_words(name, page.read_bytes())
        assert summary.damage == "" and summary.lines[0].startswith(f"page with the hash {page.name[13:]}, of ledger ")
    assert "its name is that of other bytes" in file_words(str(other), page.read_bytes()).damage


def test_a_directory_says_how_much_it_lists():
    rows = Rows(PageKind.SECTIONS, np.zeros((11, 1), np.int64), [], [])
    directory = Directory(pieces_of(rows, 0), ["page-a"])
    summary = file_words("d", encode_page("0" * 32, directory))
    assert (summary.damage, summary.lines[1]) == ("", "directory of 1 pieces in 1 pages")


def test_a_record_with_a_wrong_checksum_is_shown_in_spite_of_it(store, replog, tmp_path):
    path = next(path for path in files(store, "ledgers/*/journal/*") if b"orders" in path.read_bytes())
    bad = tmp_path / "bad"
    bad.write_bytes(path.read_bytes().replace(b"orders", b"or\x1b[2J", 1))
    answer = replog("store", "dump", bad)
    assert answer.exit_code == 1
    assert "DAMAGED" in answer.out and "with another checksum it would say:" in answer.out
    assert "\x1b" not in answer.out + answer.err and "CRC32C" in answer.err
    (item,) = replog("store", "dump", bad, "-f", "json").items
    assert not item["ok"] and item["error"] == "CORRUPT_MESSAGE"


def test_any_damage_is_told_and_never_an_error_of_its_own(store):
    paths = [*files(store, "ledgers/*/journal/*")[:3], *files(store, "replog.json")]
    paths += [*files(store, "ledgers/*/data/*/*.arrow"), *(GOLDEN / "pages").iterdir()]
    paths += [GOLDEN / "marker.bin", GOLDEN / "snapshot_head.bin"]
    for path in paths:
        data = path.read_bytes()
        for cut in {*range(0, len(data), max(1, len(data) // 40)), len(data) - 1}:
            assert file_words(str(path), data[:cut]).damage
        for at in range(0, len(data), max(1, len(data) // 60)):
            words = file_words(str(path), data[:at] + bytes([data[at] ^ 0x41]) + data[at + 1 :])
            assert json.dumps(words.lines) is not None
            assert words.damage or words.kind in ("data object", "root file")  # checksums of rows are in the ledger


@pytest.mark.parametrize(
    "words", [(), ("--ledger", "nothing"), ("/no/such/file",), ("--ledger", "orders", "--broker", 9)]
)
def test_what_is_not_there_is_told(store, replog, words):
    assert replog("-s", store.path, "store", "dump", *words).exit_code in (1, 2)


def test_without_the_right_to_describe_the_cluster_no_journal_is_shown(store, replog, monkeypatch):
    rules = ("super.users=User:admin", "allow.everyone.if.no.acl.found=false")
    monkeypatch.setenv("REPLOG_PRINCIPAL", "User:admin")
    assert replog("-s", store.path, "acl", "config", "set", *rules).exit_code == 0
    monkeypatch.setenv("REPLOG_PRINCIPAL", "User:eve")
    answer = replog("-s", store.path, "store", "dump", "--ledger", "orders")
    assert answer.out == "" and "CLUSTER_AUTHORIZATION_FAILED" in answer.err
