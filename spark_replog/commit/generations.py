"""Moves a ledger's data generation on, and the floor behind it.

New objects go to the newest generation, a folder of its own. Objects of a generation below the floor are refused
from then on, whoever still writes one, so that what no entry names there can never be named (garbage collection
may take it) and producers that nobody comes back as need not be known any more. Runs in commits and in ``replog
coordinator run``; a clock only chooses when, the fold is what refuses.
"""

from __future__ import annotations

from spark_replog.ledger.ledger import Ledger
from spark_replog.log.codec.commands import GenerationAdvance, encode_command
from spark_replog.log.fold.topic_state import TopicLedgerState

GENERATIONS_PER_LAG = 7
"""A generation lasts this part of ``gc.floor.lag.ms``: a day of seven."""


def next_generation(state: TopicLedgerState, now_ms: int, lag_ms: int) -> GenerationAdvance | None:
    """Return the advance that is due, or None.

    A ledger that nobody writes to stays as it is. The floor is the newest generation that began longer than
    the lag ago: whatever was planned before it is older than a task may be (``REPLOG_JOB_TOO_LONG``).
    """
    length_ms = lag_ms // GENERATIONS_PER_LAG
    began_ms = state.generation_began_ms.get(state.generation)
    if began_ms is None or now_ms - began_ms < length_ms or now_ms - state.append_time_ms >= length_ms:
        return None
    old = [each for each, at_ms in state.generation_began_ms.items() if at_ms <= now_ms - lag_ms]
    return GenerationAdvance(state.generation + 1, max([state.gc_floor, *old]))


def advance_generation(ledger: Ledger[TopicLedgerState], now_ms: int, lag_ms: int, timeout_ms: int) -> bool:
    """Decide the advance that is due; return whether there was one.

    Raises:
        RetriableError: REPLOG_NO_QUORUM.
    """
    with ledger.lock:
        if next_generation(ledger.state, now_ms, lag_ms) is None:
            return False

    def propose(state: TopicLedgerState) -> bytes | None:
        advance = next_generation(state, now_ms, lag_ms)
        return None if advance is None else encode_command(advance)

    return ledger.append(propose, timeout_ms=timeout_ms).index >= 0
