"""Entries with one command: the next data generation with its floor, and the claim of a ``transactional.id``.

New objects go to the newest generation, a folder of its own. Objects of a generation below the floor are refused, so
an object there that no entry names can never be named (garbage collection may delete it), and producers that cannot
come back are forgotten. Runs in commits and in ``replog coordinator run``; a clock only chooses when, the fold refuses.
"""

from __future__ import annotations

from spark_replog.errors import ErrorCode, FencedError
from spark_replog.ledger.ledger import Ledger
from spark_replog.log.codec.commands import encode_command
from spark_replog.log.fold.topic_state import TopicLedgerState
from spark_replog.log.model import GenerationAdvance, ProducerInit

GENERATIONS_PER_LAG = 7
"""A generation lasts this part of ``gc.floor.lag.ms``: a day of seven."""
GENERATION_OBJECTS_MAX = 50_000
"""Then the next one begins, so that its folder stays below 100,000 names, those that no entry names included."""


def next_generation(state: TopicLedgerState, now_ms: int, lag_ms: int) -> GenerationAdvance | None:
    """Return the advance that is due, or None.

    An idle ledger stays as it is. The floor is the newest generation that began longer than the lag ago: a task
    planned before it is too old to commit (``REPLOG_JOB_TOO_LONG``).
    """
    length_ms = lag_ms // GENERATIONS_PER_LAG
    began_ms = state.generation_began_ms.get(state.generation)
    is_full = state.generation_object_count >= GENERATION_OBJECTS_MAX
    is_over = began_ms is not None and now_ms - began_ms >= length_ms > now_ms - state.append_time_ms
    if not is_full and not is_over:
        return None
    old = [each for each, at_ms in state.generation_began_ms.items() if at_ms <= now_ms - lag_ms]
    return GenerationAdvance(state.generation + 1, max([state.gc_floor, *old]))


def raise_floor(ledger: Ledger[TopicLedgerState], timeout_ms: int) -> None:
    """Begin a generation and refuse the objects of all before: what no entry names of them is garbage at once.

    Batches that are being written now are refused, and written again by their retries.

    Raises:
        ReplogError: REPLOG_NO_QUORUM; REPLOG_STORE_REFUSED: no entry can be written (a full disk).
    """

    def propose(state: TopicLedgerState) -> bytes:
        return encode_command(GenerationAdvance(state.generation + 1, state.generation + 1))

    ledger.append(propose, timeout_ms=timeout_ms)


def claim_producer(
    ledger: Ledger[TopicLedgerState],
    producer_id: str,
    instance_id: str,
    *,
    previous_instance_id: str | None = None,
    timeout_ms: int,
) -> int:
    """Fence every other instance of the id in this ledger and return the epoch to append under.

    Safe to repeat with the same instance id: a lost answer is found in the fold. Every other call raises the epoch,
    which refuses what the instance sent before.

    Args:
        ledger: the ledger of its transactions.
        producer_id: the ``transactional.id``.
        instance_id: new for every call that must raise the epoch.
        previous_instance_id: the instance that must hold the id, so that a fenced one cannot take it back; None: any.

    Raises:
        FencedError: PRODUCER_FENCED: another instance has taken the id.
        RetriableError: REPLOG_NO_QUORUM; nothing was decided.
        OutcomeUnknownError: REPLOG_COMMIT_OUTCOME_UNKNOWN: repeat the call with the same instance id.
    """
    asked_epoch: int | None = None

    def propose(state: TopicLedgerState) -> tuple[bytes, ...] | None:
        nonlocal asked_epoch
        known = state.producers.sequenced.get(producer_id)
        epoch = -1 if known is None else known.epoch
        if known is not None and known.instance_id == instance_id:
            asked_epoch = epoch
            return None
        is_taken = known is not None and previous_instance_id not in (None, known.instance_id)
        if is_taken or (asked_epoch is not None and epoch >= asked_epoch):
            raise FencedError(
                ErrorCode.PRODUCER_FENCED,
                f"another program took the transactional.id '{producer_id}' (epoch {epoch}). Stop one of them, or give "
                "each an id of its own.",
                ledger=ledger.ledger_id,
            )
        asked_epoch = epoch + 1
        return (encode_command(ProducerInit(producer_id, instance_id, asked_epoch)),)

    ledger.append(propose, timeout_ms=timeout_ms)
    # The fold decides, not the answer: a lost race left the id with the other instance.
    with ledger.lock:
        known = ledger.state.producers.sequenced.get(producer_id)
    if known is None or known.instance_id != instance_id:
        raise FencedError(
            ErrorCode.PRODUCER_FENCED,
            f"another program took the transactional.id '{producer_id}' at the same time. Stop one of them, or give "
            "each an id of its own.",
            ledger=ledger.ledger_id,
        )
    return known.epoch
