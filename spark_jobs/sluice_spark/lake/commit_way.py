"""The ways in which a window is committed: their names, the one that a window took, and why it was not
the direct one. (docs/applier.md: Three ways to commit.) Pure.
"""

from dataclasses import dataclass

from sluice.contract import applied

DIRECT, DISTRIBUTED, MERGE = applied.DIRECT, applied.DISTRIBUTED, applied.MERGE


class NotDirect(Exception):
    """Why only Spark can write to the table."""


@dataclass(frozen=True, slots=True)
class CommitWay:
    """`name` is empty while nothing was committed. `reason` says why the commit was not direct."""

    name: str = ""
    reason: str = ""

    def shown(self) -> dict[str, str]:
        """For a log line: nothing that is empty."""
        return {name: text for name, text in (("way", self.name), ("not_direct", self.reason)) if text}
