"""The error tree: the class tells what the caller must do next, the code what happened.

Spark passes an executor's error to the driver only as text, so the text starts with the
code: ``[TOPIC_ALREADY_EXISTS] topic 'x' exists. Use --if-not-exists. topic=`x` ``.
Codes have Kafka's name and number if Kafka has the error; ours begin at 1000. Append-only.
"""

from __future__ import annotations

import errno
import shlex
from enum import IntEnum


class ErrorCode(IntEnum):
    """Stable codes. Source of those below 1000: Kafka's ``Errors.java``."""

    UNKNOWN_SERVER_ERROR = -1
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    MESSAGE_TOO_LARGE = 10
    OFFSET_METADATA_TOO_LARGE = 12
    COORDINATOR_NOT_AVAILABLE = 15
    INVALID_TOPIC_EXCEPTION = 17
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    NOT_CONTROLLER = 41
    INVALID_REQUEST = 42
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    KAFKA_STORAGE_ERROR = 56
    REASSIGNMENT_IN_PROGRESS = 60
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FENCED_LEADER_EPOCH = 74
    SASL_AUTHENTICATION_FAILED = 58
    UNKNOWN_PRODUCER_ID = 59
    UNSUPPORTED_COMPRESSION_TYPE = 76
    PREFERRED_LEADER_NOT_AVAILABLE = 80
    FENCED_INSTANCE_ID = 82
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83
    ELECTION_NOT_NEEDED = 84
    NO_REASSIGNMENT_IN_PROGRESS = 85
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    PRODUCER_FENCED = 90
    INVALID_UPDATE_VERSION = 95
    UNKNOWN_TOPIC_ID = 100
    DUPLICATE_BROKER_REGISTRATION = 101
    BROKER_ID_NOT_REGISTERED = 102
    INELIGIBLE_REPLICA = 107

    REPLOG_UNKNOWN_OPTION = 1000
    REPLOG_MISSING_OPTION = 1001
    REPLOG_CONFLICTING_OPTIONS = 1002
    REPLOG_INVALID_OPTION = 1003
    REPLOG_INVALID_SCHEMA = 1004
    REPLOG_NULL_TOPIC = 1005
    REPLOG_STORE_NOT_INITIALISED = 1010
    REPLOG_STORE_EXISTS = 1011
    REPLOG_CLUSTER_MISMATCH = 1012
    REPLOG_NO_QUORUM = 1013
    REPLOG_ROOT_STALE = 1014
    REPLOG_UNSUPPORTED_STORE = 1015
    REPLOG_STORE_REFUSED = 1016
    REPLOG_STORE_UNAVAILABLE = 1017
    REPLOG_STORE_OUTCOME_UNKNOWN = 1018
    REPLOG_STORE_LIES = 1019
    REPLOG_COMMIT_OUTCOME_UNKNOWN = 1020
    REPLOG_TAIL_UNDECIDED = 1021
    # 1022 was never raised; do not reuse it.
    REPLOG_FOLD_INTERRUPTED = 1023
    REPLOG_LEDGER_BUSY = 1024
    REPLOG_JOURNAL_HOLE = 1025
    REPLOG_SNAPSHOT_MISSING = 1026
    REPLOG_CHECKPOINT_RESET = 1030
    REPLOG_DUPLICATE_TXN_MISMATCH = 1031
    REPLOG_JOB_TOO_LONG = 1032
    REPLOG_DATA_LOSS = 1040
    REPLOG_ACKS0_DROPPED = 1041
    REPLOG_BUFFER_EXHAUSTED = 1042
    REPLOG_NOT_FORK_SAFE = 1043
    REPLOG_TRANSACTION_ABORTED = 1044
    REPLOG_PRODUCER_CLOSED = 1045
    REPLOG_ENVIRONMENT = 1050
    REPLOG_INPUT = 1051
    REPLOG_OPEN_TO_ALL = 1052
    REPLOG_NO_OFFSET_FOR_PARTITION = 1070
    REPLOG_DESERIALIZATION = 1071
    REPLOG_WAKEUP = 1072
    REPLOG_CONCURRENT_ACCESS = 1073
    REPLOG_TABLE_MISMATCH = 1080
    REPLOG_TABLE_FAILED = 1081
    REPLOG_MIRRORED_TOPIC = 1090
    REPLOG_MIRROR_MISMATCH = 1091
    REPLOG_MIRROR_LOST = 1092
    REPLOG_MIRROR_SOURCE = 1093


def _rebuild(cls: type[ReplogError], args: tuple[object, ...], state: dict[str, object]) -> ReplogError:
    error = cls.__new__(cls)
    error.args = args
    error.__dict__.update(state)
    return error


class ReplogError(Exception):
    """Base of the tree. Survives pickling and keeps its code in its text.

    Args:
        code: the stable code; the text starts with it.
        message: what happened and, as its last sentence, what to type or change next.
        context: variables, shown last as key=`value`.
    """

    def __init__(self, code: ErrorCode, message: str, **context: object) -> None:
        super().__init__(message)
        self.code = code
        self.context = context

    def __str__(self) -> str:
        details = "".join(f" {key}=`{value}`" for key, value in self.context.items())
        return f"[{self.code.name}] {self.args[0]}{details}"

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.args, dict(self.__dict__))


TEXT_LENGTH_MAX = 600
"""Characters of an error about what a caller gave."""


def shortened(text: str) -> str:
    """Return the text without its middle, if it is too long: code and cause are first, the remedy is last."""
    if len(text) <= TEXT_LENGTH_MAX:
        return text
    return f"{text[: TEXT_LENGTH_MAX // 2]} ... {text[5 - TEXT_LENGTH_MAX // 2 :]}"


def command_line(path: str, *words: str) -> str:
    """Return the command for a message to show, quoted: a path, a group or a principal may contain spaces.

    Args:
        words: of the command, one argument each.
    """
    return "replog " + shlex.join(("-s", path, *words))


class RetriableError(ReplogError):
    """The same call may succeed later; nothing was decided."""


class OutcomeUnknownError(ReplogError):
    """The effect may or may not have happened: repeat the same call; identities make that harmless."""


class FencedError(ReplogError):
    """A newer owner exists: drop this instance, never retry."""


class _AboutInputError(ReplogError):
    """Its text repeats what the caller gave, which may be long: then its middle is left out."""

    def __init__(self, code: ErrorCode, message: str, **context: object) -> None:
        super().__init__(code, shortened(message), **context)

    def __str__(self) -> str:
        return shortened(super().__str__())


class InvalidConfigError(_AboutInputError, ValueError):
    """The caller's option, argument or schema is wrong: fix it. Nothing was attempted."""


def invalid_option(message: str, **context: object) -> InvalidConfigError:
    """Return the refusal of a setting's value, or of settings that do not fit each other: REPLOG_INVALID_OPTION."""
    return InvalidConfigError(ErrorCode.REPLOG_INVALID_OPTION, message, **context)


def conflicting_options(message: str, **context: object) -> InvalidConfigError:
    """Return the refusal of options that exclude each other, or need each other's absence."""
    return InvalidConfigError(ErrorCode.REPLOG_CONFLICTING_OPTIONS, message, **context)


class AuthorizationError(_AboutInputError):
    """The principal may not do this: get the right, or use another principal. Nothing was attempted."""


class NotFoundError(_AboutInputError, LookupError):
    """The named thing does not exist."""


class CorruptDataError(ReplogError):
    """The bytes are wrong: never return rows from them."""


class DataLossError(ReplogError):
    """Rows are proved to be lost: they were removed from the log, or no replica has a good copy of them.

    Proved means that every replica answered. A replica that cannot be reached is never a `DataLossError`, so
    this is the only error that `failOnDataLoss=false` may skip.
    """


class UnsupportedFormatError(ReplogError):
    """Written by a newer release: upgrade this one."""


def stays_in_process(what: str) -> ReplogError:
    """Return the error for an object that is pickled, such as for Spark's workers, and belongs to one process.

    Args:
        what: store, producer, consumer or client.
    """
    return ReplogError(
        ErrorCode.REPLOG_NOT_FORK_SAFE,
        f"an open {what} cannot be sent to another process. Send the store's path, and open a {what} there.",
    )


_CAUSES_MAX = 8
_PASSING = frozenset({errno.ENOSPC, errno.EDQUOT, errno.ENOENT})
"""Files are deleted on a full disk; a folder that is away comes back."""


def is_refusal(error: ReplogError) -> bool:
    """Return whether a root refused, and waiting does not help."""
    if error.code is not ErrorCode.REPLOG_STORE_REFUSED:
        return False
    cause: BaseException | None = error
    for _ in range(_CAUSES_MAX):
        if isinstance(cause, OSError) and cause.errno in _PASSING:
            return False
        cause = cause and (cause.__cause__ or cause.__context__)
    return True


def unknown_partition(topic: str, partition: int, count: int) -> NotFoundError:
    """Return the error for a partition number that a topic with ``count`` partitions does not have."""
    return NotFoundError(
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        f"topic '{topic}' has partitions 0 to {count - 1}, not {partition}. Name one of them.",
        partition=partition,
    )
