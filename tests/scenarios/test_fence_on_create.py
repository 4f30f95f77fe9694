"""A topic made in a ledger that has not yet heard of a fence settles it as the fence itself would have."""

from __future__ import annotations

import pytest

from spark_replog.log.codec.commands import Append, encode_command
from spark_replog.log.model import BrokerFence, IdentityKind, ProducerIdentity
from tests.scenarios.repairing import is_applied, told_cuts


@pytest.mark.parametrize("grows", [False, True])
def test_rows_that_only_the_fenced_broker_holds_are_cut_before_others_lead(store, grows, caplog) -> None:
    store.create("orders", ledger_name="shop")
    assert is_applied(store.append("orders", {0: 2}, batch=0))
    identity = ProducerIdentity("lost", "lost", 0, "run-1", IdentityKind.STREAM)
    lost = Append(identity, "User:test", "", 0, (store.put("orders", {0: 1}, {0}),))
    ledger = store.cluster.topic_ledger(store.cluster.lookup("orders").ledger_id)
    ledger.append(lambda _: encode_command(lost), timeout_ms=5_000)
    # The process that fenced the broker died before it came to this ledger.
    store.cluster.cluster_ledger.append(lambda _: encode_command(BrokerFence(0, True)), timeout_ms=5_000)
    store.away(0)
    store.reopen()
    if grows:
        store.controller.add_partitions("orders", 2)
    else:
        store.create("other", ledger_name="shop", replicas=2)
    assert told_cuts(caplog) == ["1 rows were cut"]
    description = store.controller.describe_topic("orders").partitions[0]
    assert (description.isr, description.leader, description.high_watermark) == ((1, 2), 1, 2)
    with store.cluster.topic_ledger(ledger.ledger_id).lock:
        partition = store.cluster.topic_state(store.cluster.lookup("orders"))[1].partitions[0]
        assert partition.log_end_offset == 2
        newest = partition.leader_epochs.entries[-1]
        assert (newest.epoch, newest.start_offset) == (partition.leader_epoch, 2)
    assert is_applied(store.append("orders", {0: 2}, batch=1, holders={1, 2}))
