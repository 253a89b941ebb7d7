"""Every error that Sluice raises on purpose, and what the process does about it.

    ServiceError
    ├── UsageError            exit 2   configuration or command line
    ├── LimitReached          exit 2   the source exceeds a limit of `limits`: none of it is acknowledged
    ├── PreflightFailed       exit 3   `check` found something critical
    ├── VerificationFailed    exit 4   source and lake differ
    ├── SourceError
    │   ├── SourceUnavailable exit 5   connection lost, or refused for now: retried by the supervisor
    │   │   └── NoFreeConnection  exit 5   the server, the database or the role has no connection to spare
    │   ├── SourceRefused     exit 5   authentication, rights, settings: a human must act
    │   └── SlotBusy          exit 8   another process streams from our slot
    ├── DecodeError           exit 1   the server sent bytes that are not pgoutput: stop, acknowledge nothing
    ├── ProtocolViolation     exit 1   well-formed messages in an impossible order: stop, acknowledge nothing
    ├── StoreError
    │   ├── StoreUnavailable  exit 75  timeouts, 5xx, throttling: retried
    │   ├── StoreRefused      exit 6   denied, no bucket, no create-only: a human must act
    │   ├── ObjectExists               create-only met an object: an ordinary outcome for its caller
    │   └── ObjectMissing              get met nothing
    ├── ManifestCorrupt       exit 6   a gap, a broken chain, a missing or changed object
    ├── FormatTooNew          exit 6   written by a newer Sluice
    ├── SlotLost              exit 7   slot missing, invalidated, recreated, ahead of us, other cluster
    ├── WriterFenced          exit 8   another writer owns the manifest
    ├── SessionBroken                  an earlier stage failed: later stages stop, and all is sent again
    ├── Interrupted           exit 75  stopped before the position that was asked for was reached
    ├── SourceMoved           exit 75  the source was promoted to another timeline: the process starts itself again
    ├── UnsupportedChange              a change that one table cannot follow: that table goes stale, nothing stops
    ├── TablesStopped         exit 9   everything else is applied; somebody must act on these tables
    └── ApplyError            exit 75  the Spark side could not commit; replay is safe

`disposition` says who acts next, and is the only thing the supervisor looks at: RETRY backs off and
tries again, OPERATOR and HALT stop the process with `exit_code`. Messages name what, where and with
which LSN or table; never a row value, never a secret.
"""

from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, TypeGuard


class Disposition(Enum):
    RETRY = "retry"
    OPERATOR = "operator"
    HALT = "halt"
    LOCAL = "local"
    """Handled by the caller; reaching the supervisor would be a bug."""


class ServiceError(Exception):
    """Root of Sluice's errors. `hint` is one sentence for the person who must act."""

    disposition: ClassVar[Disposition] = Disposition.HALT
    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


def may_pass(error: BaseException) -> TypeGuard[ServiceError]:
    """Whether trying again may help. What Sluice did not raise on purpose never passes by itself."""
    return isinstance(error, ServiceError) and error.disposition is Disposition.RETRY


class UsageError(ServiceError):
    disposition = Disposition.OPERATOR
    exit_code = 2


class LimitReached(ServiceError):
    """The source exceeded a limit of the configuration, which the message names. Nothing of it is
    acknowledged: the server sends it again after the next start.
    """

    disposition = Disposition.OPERATOR
    exit_code = 2


class PreflightFailed(ServiceError):
    disposition = Disposition.OPERATOR
    exit_code = 3


class VerificationFailed(ServiceError):
    disposition = Disposition.OPERATOR
    exit_code = 4


class SourceError(ServiceError):
    disposition = Disposition.OPERATOR
    exit_code = 5


class SourceUnavailable(SourceError):
    """`reason` is one of a closed set of words for counting: connect_failed, connection_lost,
    server_stopping, server_silent, other.
    """

    disposition = Disposition.RETRY

    def __init__(self, message: str, *, hint: str = "", reason: str = "other") -> None:
        super().__init__(message, hint=hint)
        self.reason = reason


class TableUnavailable(SourceUnavailable):
    """It is about one table: others can be read meanwhile."""


class NoFreeConnection(SourceUnavailable):
    """The server, the database or the role has no connection to spare."""


class SourceRefused(SourceError):
    pass


class SlotBusy(SourceError):
    disposition = Disposition.OPERATOR
    exit_code = 8


class DecodeError(ServiceError):
    """Bytes that are not what the specification allows. Nothing has changed when it is raised."""


class ProtocolViolation(ServiceError):
    """A message that cannot follow what came before it."""


class StoreError(ServiceError):
    disposition = Disposition.OPERATOR
    exit_code = 6


class StoreUnavailable(StoreError):
    disposition = Disposition.RETRY
    exit_code = 75


class StoreRefused(StoreError):
    pass


class ObjectExists(StoreError):
    disposition = Disposition.LOCAL


class ObjectMissing(StoreError):
    disposition = Disposition.LOCAL


class ManifestCorrupt(ServiceError):
    exit_code = 6


class FormatTooNew(ServiceError):
    disposition = Disposition.OPERATOR
    exit_code = 6


class SlotLost(ServiceError):
    disposition = Disposition.OPERATOR
    exit_code = 7


class WriterFenced(ServiceError):
    exit_code = 8


class SessionBroken(ServiceError):
    disposition = Disposition.LOCAL


class Interrupted(ServiceError):
    disposition = Disposition.OPERATOR
    exit_code = 75


class SourceMoved(ServiceError):
    """Sessions, look-ups and snapshots of this process may be of the server from before: all of it ends,
    and the next process starts from the manifest alone.
    """

    disposition = Disposition.OPERATOR
    exit_code = 75


class UnsupportedChange(ServiceError):
    disposition = Disposition.LOCAL


class TablesStopped(ServiceError):
    """Lake tables that are not equal to the source, and do not become so by themselves."""

    disposition = Disposition.OPERATOR
    exit_code = 9


class ApplyError(ServiceError):
    disposition = Disposition.RETRY
    exit_code = 75


@dataclass(frozen=True, slots=True)
class ErrorSeen:
    """One kind of error at one place, of a running process. `message` is empty when it is not ours:
    it may quote a row.
    """

    error: str
    where: str
    message: str
    hint: str
    count: int
    first_at: float
    last_at: float
