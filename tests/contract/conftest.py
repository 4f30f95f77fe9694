from __future__ import annotations

import pytest

from tests.remote_roots import s3_options_of, s3_running


@pytest.fixture(scope="session")
def s3_proxy():
    with s3_running() as proxy:
        yield proxy


@pytest.fixture
def s3_options(s3_proxy):
    s3_proxy.clear()
    return s3_options_of(s3_proxy)
