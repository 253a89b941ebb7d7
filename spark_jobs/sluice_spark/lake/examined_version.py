"""How far a lake table has been examined, and whether it is still the table that was. Pure."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ExaminedVersion:
    """How far a lake table has been examined: every commit through Delta `version`, which records
    `marker` (None: no snapshot of ours yet).

    `seen` says that this process examined it; otherwise an earlier one reported it.
    """

    version: int = -1
    marker: int | None = None
    seen: bool = False


def contradiction(reported: ExaminedVersion, found: ExaminedVersion) -> str:
    """Why what was reported cannot have become what is found, empty when it can."""
    if found.version < reported.version:
        return gone(reported, found.version)
    if reported.marker is not None and (found.marker is None or found.marker < reported.marker):
        return (
            f"the lake table's marker is {shown(found.marker)}, the applier reported {reported.marker}: "
            "a commit was lost, by a power loss or by somebody else"
        )
    return ""


def gone(before: ExaminedVersion, version: int) -> str:
    """How a table is no longer the one that was at `before`, now that it is at `version`."""
    if version < 0:
        return f"the lake table is gone: it was at version {before.version}, somebody else removed it"
    return (
        f"the lake table went from version {before.version} to {version}: somebody else restored, "
        "replaced or removed it"
    )


def late(marker: int, unknown: int) -> str:
    """What is wrong with a commit of ours that left `marker`, and was made without knowledge of the one before it."""
    return (
        f"an applier that was replaced was at work: {marker} was committed to the lake table without knowledge of "
        f"{unknown}, which may hold the same changes: rows may be there twice"
    )


def shown(marker: int | None) -> str:
    """For a message."""
    return "missing" if marker is None else str(marker)
