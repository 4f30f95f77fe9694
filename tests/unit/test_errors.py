"""The error tree: codes lead texts, pickling keeps everything, every code is explained."""

from __future__ import annotations

import inspect
import pickle
import re
from pathlib import Path

import pytest

from spark_replog import errors
from spark_replog.errors import ErrorCode, InvalidConfigError, NotFoundError, ReplogError

DOCUMENT = Path(__file__).parents[2] / "docs/errors.md"
CLASSES = [value for value in vars(errors).values() if inspect.isclass(value) and issubclass(value, ReplogError)]


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_survives_pickling_with_code_and_context(cls):
    error = cls(ErrorCode.REPLOG_NO_QUORUM, "two of three roots are away. Bring one back.", roots=[1, 2])
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is cls
    assert (again.code, again.args, again.context) == (error.code, error.args, error.context)
    assert str(again) == ("[REPLOG_NO_QUORUM] two of three roots are away. Bring one back. roots=`[1, 2]`")


def test_old_handlers_still_catch():
    assert issubclass(InvalidConfigError, ValueError)
    assert issubclass(NotFoundError, LookupError)


def test_numbers_are_unique():
    assert len({code.value for code in ErrorCode.__members__.values()}) == len(ErrorCode.__members__)


@pytest.mark.guarantee("G10")
def test_every_code_has_an_entry_with_meaning_state_and_remedy():
    entries = re.split(r"^### ", DOCUMENT.read_text(), flags=re.MULTILINE)[1:]
    titles = [entry.splitlines()[0] for entry in entries]
    assert sorted(titles) == sorted(f"{code.name} ({code.value})" for code in ErrorCode)
    for title, entry in zip(titles, entries, strict=True):
        for part in ("Meaning: ", "State: ", "Remedy: "):
            assert f"\n{part}" in entry, f"{title} lacks '{part}'"
