"""The error tree: codes lead texts, pickling keeps everything, every code is explained."""

from __future__ import annotations

import inspect
import pickle

import pytest

from spark_replog import errors
from spark_replog.cli import explain
from spark_replog.errors import AuthorizationError, ErrorCode, InvalidConfigError, NotFoundError, ReplogError

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
def test_the_catalogue_describes_each_code():
    entries = explain.entries()
    assert set(entries) == set(ErrorCode)
    for entry in entries.values():
        assert entry.meaning and entry.state and entry.remedy, entry.code.name


def test_the_catalogue_names_no_file_that_the_wheel_lacks():
    for entry in explain.entries().values():
        text = f"{entry.meaning} {entry.state} {entry.remedy}"
        assert ".md" not in text and "docs/" not in text, entry.code.name


@pytest.mark.parametrize("kind", [InvalidConfigError, NotFoundError, AuthorizationError])
def test_what_a_caller_gave_makes_no_error_long(kind):
    given = kind(ErrorCode.INVALID_CONFIG, f"'key' is {'x' * 3000}. Give a number.", key="y" * 3000)
    for error in (given, pickle.loads(pickle.dumps(given))):
        assert len(error.args[0]) <= 600 and error.args[0].endswith("Give a number.")
        assert len(str(error)) <= 600 and str(error).startswith("[INVALID_CONFIG] 'key' is x")
