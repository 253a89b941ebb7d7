"""What the commands that read the lake have in common: the lake of the configuration, and its errors as ours.

Invariant: they read through `sluice_lake`, the package that people use, and know nothing that it does not say.
"""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from sluice.cli import wiring
from sluice.errors import FormatTooNew, Interrupted, ManifestCorrupt, ServiceError, StoreUnavailable, UsageError
from sluice.settings import Settings

if TYPE_CHECKING:
    from sluice_lake import AsOf, Lake

_LSN = re.compile(r"\A[0-9A-Fa-f]{1,8}/[0-9A-Fa-f]{1,8}\Z")

_POLL_SECONDS = 0.2

moment = click.option(
    "--as-of",
    "moment",
    default="latest",
    show_default=True,
    metavar="LSN|TIME",
    help="Read the last boundary that has only transactions that ended at or before this LSN, or were "
    "committed at or before this time.",
)
"""What `as_of` takes, as an option of a command."""


def lake_of(settings: Settings) -> "Lake":
    """The lake that the pipeline keeps. Raises UsageError, and Interrupted while its directory does not exist."""
    wiring.require("sluice_lake")
    from sluice_lake import Lake

    with ours():
        return Lake(settings.lake.uri, pipeline=settings.pipeline, storage_options=wiring.plain(settings.lake_options))


def awaited(settings: Settings, timeout_seconds: float) -> tuple["Lake", float]:
    """The same as soon as it exists, and the seconds that this took: the applier makes the directory of a local lake
    with the first table. Raises UsageError, and Interrupted after `timeout_seconds`.
    """
    began = time.monotonic()
    while True:
        waited = time.monotonic() - began
        try:
            return lake_of(settings), waited
        except Interrupted:
            if waited >= timeout_seconds:
                raise
        time.sleep(min(_POLL_SECONDS, timeout_seconds - waited))


def as_of(lake: "Lake", moment: str) -> "AsOf":
    """All tables as of `moment`: an LSN, a time, or latest. Raises what `ours` raises."""
    with ours():
        if moment == "latest":
            return lake.as_of()
        return lake.as_of(lsn=moment) if _LSN.match(moment) else lake.as_of(time=moment)


@contextmanager
def ours() -> Iterator[None]:
    """Errors of the package as those that have an exit code."""
    import sluice_lake as readers

    kinds: tuple[tuple[type[readers.LakeError], type[ServiceError]], ...] = (
        (readers.BoundaryNotReached, Interrupted),
        (readers.NoBoundary, Interrupted),
        (readers.TableLeftOut, Interrupted),
        (readers.LakeUnavailable, StoreUnavailable),
        (readers.FormatTooNew, FormatTooNew),
        (readers.VersionMissing, ManifestCorrupt),
        (readers.BoundaryExpired, UsageError),
        (readers.UnknownTable, UsageError),
        (readers.UnusableArgument, UsageError),
        (readers.LibraryMissing, UsageError),
    )
    try:
        yield
    except readers.LakeError as error:
        kind = next((ours for theirs, ours in kinds if isinstance(error, theirs)), ManifestCorrupt)
        raise kind(error.message, hint=error.hint) from error
