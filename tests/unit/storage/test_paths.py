"""How names are spread over folders: listings slow down, and ext4 at last refuses, where one folder holds millions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from hashlib import sha256

import pytest

from spark_replog.commit.retention import GENERATION_OBJECTS_MAX, GENERATIONS_PER_LAG
from spark_replog.config.coordinator import CoordinatorConfig
from spark_replog.ledger.types import LedgerSettings
from spark_replog.log.fold.paged_table import PAGE_ROWS
from spark_replog.snapshot import PAGE_NAME
from spark_replog.storage.paths import (
    data_folder,
    data_key,
    is_data_key,
    journal_folder,
    journal_key,
    marker_folder,
    marker_key,
    marker_number,
    page_key,
    record_position,
)

LEDGER = "a" * 32
COMMITS = 30_000_000
"""One a second for a year."""
YEAR_MS = 365 * 86_400_000
SECTIONS_PER_COMMIT = 8
NAMES_MAX = 100_000


def page_names() -> Iterator[str]:
    """Yield as many names as sections and objects of a year need in pages that are half full."""
    for number in range(COMMITS * (SECTIONS_PER_COMMIT + 1) // (PAGE_ROWS // 2)):
        yield f"{number:012d}-{sha256(str(number).encode()).hexdigest()[:32]}"


def test_no_folder_of_a_ledger_passes_100_000_names_in_a_year_of_commits_each_second() -> None:
    names = list(page_names())
    assert PAGE_NAME.fullmatch(names[-1])
    generation_ms = CoordinatorConfig().gc_floor_lag_ms // GENERATIONS_PER_LAG
    generations = COMMITS // GENERATION_OBJECTS_MAX + YEAR_MS // generation_ms
    keys = [
        *(page_key(LEDGER, name) for name in names),
        *(marker_key(LEDGER, number) for number in range(COMMITS // LedgerSettings().truncate_record_count_min)),
        *(data_folder(LEDGER, number).removesuffix("/") for number in range(generations)),
    ]
    counts = Counter(key.rpartition("/")[0] for key in keys)
    counts.update(folder.rpartition("/")[0] for folder in list(counts) if "/pages/" in folder)
    assert len(set(keys)) == len(keys)
    assert max(counts.values()) <= NAMES_MAX, counts.most_common(3)


def test_a_data_object_is_known_by_its_key() -> None:
    assert is_data_key(data_key(LEDGER, 0, "a.arrow"))
    for other in (journal_key(LEDGER, 0), page_key(LEDGER, "0" * 45), "replog.json", "data/0/a", "ledgers/data/data"):
        assert not is_data_key(other)


@pytest.mark.parametrize("more", [-1, 1, 4])
@pytest.mark.parametrize("digit", ["7", "\u00b2", "\u0667", "x"])
def test_a_record_is_a_name_of_20_digits_and_a_marker_one_of_12(more: int, digit: str) -> None:
    assert record_position(journal_key(LEDGER, 7)) == marker_number(marker_key(LEDGER, 7)) == 7
    for count in (20, 20 + more) if digit != "7" else (20 + more,):
        assert record_position(f"{journal_folder(LEDGER)}{digit * count}") is None
        assert marker_number(f"{marker_folder(LEDGER)}{digit * (count - 8)}") is None
    assert record_position(f"{journal_key(LEDGER, 7)}.bak") is None
