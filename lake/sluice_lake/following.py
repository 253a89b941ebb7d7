"""Which boundaries are new to somebody who keeps a cursor, such as an orchestrator in its own state.

Invariant: the cursor moves with what is handed out. A boundary is handed out again only to who comes back with an
older cursor, and a later one is never withheld, also when an older copy of lake and spool was restored, so that numbers
come again. A boundary that expired before it was asked for is passed by: the ones behind it hold all that it held.
"""

import json
from dataclasses import dataclass
from typing import Any

from sluice_lake.boundary import Boundary
from sluice_lake.errors import NoBoundary, UnusableArgument
from sluice_lake.lake import Lake
from sluice_lake.positions import lsn_of, show

MOST_AT_ONCE = 100


@dataclass(frozen=True, slots=True)
class Following:
    """How boundaries are followed. At least `every` of them lie between two that are handed out. With `each`, every
    boundary (or `every` so many) behind the cursor is handed out that the lake still offers, and else the newest alone.
    """

    every: int = 1
    each: bool = False

    def __post_init__(self) -> None:
        if self.every < 1:
            raise UnusableArgument("every counts boundaries, and is at least 1")

    def due(self, lake: Lake, cursor: str | None) -> list[Boundary]:
        """The boundaries that are new to who has `cursor`, which is that of the last one, oldest first: at most
        MOST_AT_ONCE. None or an empty cursor asks for the newest one alone, to begin with. None are due of a lake that
        has no boundary yet. Raises LakeError.
        """
        try:
            newest = lake.newest()
        except NoBoundary:
            return []
        seen = _seen(cursor, lake, newest) if cursor else 0
        if not seen:
            return [newest]
        if newest.number < seen + self.every:
            return []
        if not self.each:
            return [newest]
        offered = [one for one in lake.boundaries(after=seen) if one.manifest == newest.manifest]
        found = []
        for one in offered:
            if one.number >= seen + self.every:
                found.append(one)
                seen = one.number
        return found[:MOST_AT_ONCE]


def cursor_of(boundary: Boundary) -> str:
    """The cursor of who has seen `boundary`."""
    return json.dumps({"manifest": boundary.manifest, "number": boundary.number, "lsn": show(boundary.lsn)})


def described(boundary: Boundary) -> dict[str, Any]:
    """What a run has to know of `boundary`, in JSON's types. `lsn` is what `Lake.as_of` takes."""
    return {
        "pipeline": boundary.pipeline,
        "number": boundary.number,
        "lsn": show(boundary.lsn),
        "time": boundary.time.isoformat(),
        "versions": {table.name: table.version for table in boundary.tables},
        "left_out": dict(boundary.left_out),
    }


def _seen(cursor: str, lake: Lake, newest: Boundary) -> int:
    """The number up to which everything was handed out to who has `cursor`; 0 when that says nothing here: it is of
    another manifest, or of what came after the copy of lake and spool that was restored. Boundaries before the first
    one of the newest one's log are passed by: their positions mean something else.
    """
    try:
        value = json.loads(cursor)
        number, lsn, manifest = int(value["number"]), lsn_of(value["lsn"]), value["manifest"]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UnusableArgument("the cursor is none of this package", hint="reset it to start over") from error
    if manifest != newest.manifest or number > newest.number:
        return 0
    if number < newest.first:
        return newest.first - 1
    there = newest if number == newest.number else lake.offered(number)
    return number if lsn <= newest.lsn and (there is None or there.lsn == lsn) else 0
