"""Every error that this package raises on purpose. Messages name what, where and what to do, and never a value."""


class LakeError(Exception):
    """Root of the errors of this package: `message` says what and where, `hint` what to do. Its text is both."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(f"{message}; {hint}" if hint else message)
        self.message = message
        self.hint = hint


class UnusableArgument(LakeError, ValueError):
    """An argument is not of the form that is asked for."""


class NoBoundary(LakeError):
    """The lake offers no boundary, or none of this pipeline."""


class LakeMissing(NoBoundary, UnusableArgument):
    """There is no such directory: the address is wrong, or the applier has not written the first table yet."""


class BoundaryExpired(LakeError):
    """What was asked for is older than the oldest boundary that the lake still offers."""


class BoundaryNotReached(LakeError):
    """What was asked for is later than the newest boundary."""


class WaitTimedOut(BoundaryNotReached, TimeoutError):
    """The position was not reached in the time that was given."""


class UnknownTable(LakeError, KeyError):
    """No table at the boundary has that name, or more than one has."""

    __str__ = Exception.__str__


class TableLeftOut(LakeError):
    """The table is known and is not part of the boundary. `state` says why: stale, snapshot, quarantined, ..."""

    def __init__(self, message: str, *, state: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.state = state


class VersionMissing(LakeError):
    """The lake does not have a table as the boundary states it: somebody removed files, or replaced the table."""


class FormatTooNew(LakeError):
    """A boundary was written by a newer Sluice than this package can read."""


class LakeUnavailable(LakeError):
    """The store of the lake did not answer, or refused."""


class LibraryMissing(LakeError, ImportError):
    """The library of an engine is not installed."""
