"""The gateway answers as Kafka does, case by case; where it does not, the table of answers says why."""

from __future__ import annotations

import pytest

from tests.gateways import RunningGateway
from tests.protocol import answer_table
from tests.protocol.case_run import CASES, answers_of


@pytest.fixture(scope="module")
def gateway():
    with RunningGateway() as running:
        yield running


@pytest.mark.parametrize("name", CASES)
def test_a_gateway_answers_as_the_table_says(name, gateway):
    assert answers_of(name, gateway.port) == answer_table.expected(answer_table.load()[name], "gateway")


def test_every_case_is_in_the_table_and_every_difference_has_a_reason():
    assert list(answer_table.load()) == list(CASES)
    for place, told in answer_table.differences().items():
        assert told["kafka"] != told["gateway"], place
        assert told["why"], place
