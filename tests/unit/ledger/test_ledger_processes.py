"""A fold that something ended half-way."""

from __future__ import annotations

import pytest

from spark_replog.errors import ErrorCode, ReplogError


@pytest.mark.parametrize("root_count", [1, 3])
def test_after_an_interrupted_fold_nothing_is_answered_or_written(make_store, root_count):
    store = make_store(root_count)
    process, writer = store.process(), store.process()
    for number in range(3):  # the next append needs no look at the journals
        process.append(b"own %d" % number)
    apply = process.ledger.state.apply

    def interrupted(index, payload):
        apply(index, payload)
        process.ledger.state.commands.pop()  # Ctrl-C struck before the entry's last effect
        raise KeyboardInterrupt

    writer.append(b"other")
    process.ledger.state.apply = interrupted
    with pytest.raises(KeyboardInterrupt):
        process.ledger.refresh()
    process.ledger.state.apply = apply
    process.reset()
    for call in (process.commands, lambda: process.append(b"late")):
        with pytest.raises(ReplogError, match="open it again") as caught:
            call()
        assert caught.value.code is ErrorCode.REPLOG_FOLD_INTERRUPTED
    assert process.creates() == 0
    assert store.process().commands() == [b"own 0", b"own 1", b"own 2", b"other"]


def test_an_entry_that_this_release_cannot_fold_ends_the_ledger_with_its_own_error(make_store):
    store = make_store(3)
    process = store.process()
    process.append(b"a")
    newer = ReplogError(ErrorCode.UNSUPPORTED_VERSION, "Upgrade spark-replog.")

    def refuse(index, payload):
        raise newer

    process.ledger.state.apply = refuse
    store.process().append(b"b")
    for _ in range(2):
        with pytest.raises(ReplogError) as caught:
            process.ledger.refresh()
        assert caught.value.code is ErrorCode.UNSUPPORTED_VERSION
    process.reset()
    with pytest.raises(ReplogError):
        process.append(b"c")
    assert process.creates() == 0
