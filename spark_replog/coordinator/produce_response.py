"""What an append answers, and what each refusal of the fold means to a caller."""

from __future__ import annotations

from dataclasses import dataclass

from spark_replog.errors import ReplogError
from spark_replog.log.commands import CommandResult


@dataclass(frozen=True, slots=True)
class ProduceResponse:
    """The answer for one ledger.

    ``error`` None means the append is decided and folded (or is a duplicate of one that
    was); ``result`` then holds its offsets. With an error nothing of this ledger's append
    is decided, save REPLOG_COMMIT_OUTCOME_UNKNOWN, which does not know.
    """

    error: ReplogError | None
    result: CommandResult | None
