"""The rule of enough in-sync copies, which senders and commits share."""

from __future__ import annotations

import pytest

from spark_replog.log.in_sync import leaving_replicas, spare_replicas


def test_a_fenced_replica_is_no_spare() -> None:
    assert spare_replicas((2, 0, 3, 1), (0,), {2}) == (1, 3)


@pytest.mark.parametrize(
    ("late", "partitions", "leaving"),
    [
        ({2}, [({0, 1, 2}, 2)], {2}),
        ({1}, [({0, 1}, 2)], set()),
        ({1, 2}, [({0, 1, 2}, 2)], set()),  # together or not at all
        ({1, 2}, [({0, 1}, 2), ({0, 1, 2}, 2)], {2}),  # 1 is needed by the first partition alone
        ({1}, [({0, 1}, 3)], {1}),  # too few are in sync already: it changes nothing
        ({1}, [({0, 1, 2}, 2), ({1, 2}, 2)], set()),
    ],
)
def test_late_replicas_leave_where_min_isr_stays(late, partitions, leaving) -> None:
    assert leaving_replicas(late, partitions) == leaving
