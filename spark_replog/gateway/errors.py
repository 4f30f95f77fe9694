"""The error code that a Kafka client gets for an error of the product."""

from __future__ import annotations

from collections.abc import Mapping

from spark_replog.errors import ErrorCode, OutcomeUnknownError, ReplogError, RetriableError

OWN_CODES_MIN = 1000
"""Codes from here on are the product's; those below are Kafka's."""
_CODES: Mapping[ErrorCode, ErrorCode] = {
    ErrorCode.REPLOG_INVALID_OPTION: ErrorCode.INVALID_CONFIG,
    ErrorCode.REPLOG_UNKNOWN_OPTION: ErrorCode.INVALID_CONFIG,
    ErrorCode.REPLOG_CONFLICTING_OPTIONS: ErrorCode.INVALID_CONFIG,
    ErrorCode.REPLOG_INVALID_SCHEMA: ErrorCode.INVALID_RECORD,
    ErrorCode.REPLOG_MIRRORED_TOPIC: ErrorCode.POLICY_VIOLATION,
    ErrorCode.REPLOG_JOB_TOO_LONG: ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.REPLOG_DATA_LOSS: ErrorCode.OFFSET_OUT_OF_RANGE,
    ErrorCode.REPLOG_COMMIT_OUTCOME_UNKNOWN: ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
}


def error_code(error: BaseException) -> int:
    """Return Kafka's number for an error: its own, or the one after which a client does what is right.

    What may pass becomes KAFKA_STORAGE_ERROR, after which clients ask again; so it is for rows that may be in the log:
    NOT_ENOUGH_REPLICAS_AFTER_APPEND. All others are UNKNOWN_SERVER_ERROR.
    """
    if not isinstance(error, ReplogError):
        return int(ErrorCode.UNKNOWN_SERVER_ERROR)
    if error.code < OWN_CODES_MIN:
        return int(error.code)
    if error.code in _CODES:
        return int(_CODES[error.code])
    if isinstance(error, OutcomeUnknownError):
        return int(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
    if isinstance(error, RetriableError):
        return int(ErrorCode.KAFKA_STORAGE_ERROR)
    return int(ErrorCode.UNKNOWN_SERVER_ERROR)


def error_text(error: BaseException) -> str:
    """Return what a client is told beside the code."""
    return str(error.args[0]) if isinstance(error, ReplogError) else "The gateway failed. Its log says why."
