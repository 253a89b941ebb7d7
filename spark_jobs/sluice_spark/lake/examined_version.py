"""How far a lake table has been examined, and whether it is still the table that was. Pure."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

OURS = "sluice/"
"""How the name of each marker of every pipeline begins."""


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


def shown(marker: int | None) -> str:
    """For a message."""
    return "missing" if marker is None else str(marker)


def schema_app_id(app_id: str) -> str:
    """Of the marker that says which version of the source table's columns a lake table has."""
    return f"{app_id}/schema"


def generation_before(app_ids: Iterable[str], *, app_id: str) -> str | None:
    """The newest of `app_ids` that is of an earlier generation of the lake table of `app_id`, by the same manifest."""
    table, own, manifest = app_id.rsplit("/", 2)
    known = [name.rsplit("/", 2) for name in app_ids]
    earlier = [
        int(name[1])
        for name in known
        if name[::2] == [table, manifest] and name[1].isdecimal() and int(name[1]) < int(own)
    ]
    return f"{table}/{max(earlier)}/{manifest}" if earlier else None


def belongs_to_others(app_ids: Iterable[str], *, app_id: str, replaces: Collection[str]) -> str:
    """Why a lake table with markers of `app_ids` is not to be replaced by the pipeline of `app_id`, empty when it
    may be. It was taken over from pipelines in `replaces`.
    """
    pipelines = {name.split("/")[1] for name in app_ids if name.startswith(OURS)}
    if not pipelines:
        return "somebody else's table is where the lake table should be"
    others = ", ".join(sorted(pipelines - {app_id.split("/")[1], *replaces}))
    return others and (
        f"the lake table at its path is of another pipeline ({others}): set another lake.uri or, if that one has ended "
        f"for good, lake.replaces: [{others}]"
    )
