"""What several tests of the source ask."""

from __future__ import annotations

import pytest

from spark_replog.errors import ErrorCode, ReplogError


def loses(call, *said):
    with pytest.raises(ReplogError) as caught:
        call()
    assert caught.value.code is ErrorCode.REPLOG_DATA_LOSS
    for text in said:
        assert text in str(caught.value)
