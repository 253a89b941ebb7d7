"""The commits of one Delta table on a local disk, found as they are made."""

import json
from dataclasses import dataclass
from pathlib import Path

_JOINED = "/files"
_OID = 2
"""Where the name of a marker has it: sluice, pipeline, oid."""


@dataclass(frozen=True)
class Commit:
    """A commit that moved the marker of the applier's windows to `marker`; `at` is the time of its file
    (unix seconds).
    """

    version: int
    marker: int
    at: float


class Tail:
    """Follows the log of the table at `path`. A commit that is cleaned up before it is followed is
    missed, so follow often.
    """

    def __init__(self, path: Path) -> None:
        self._log = path / "_delta_log"
        self._version = 0
        self.commits: list[Commit] = []
        self.oid = ""
        """Of the table at the source, in digits; empty before the first commit with a marker."""

    def follow(self) -> None:
        """Takes the commits that were made since."""
        while (path := self._log / f"{self._version:020d}.json").exists():
            actions = [json.loads(line) for line in path.read_text().splitlines()]
            transactions = [action["txn"] for action in actions if "txn" in action]
            # A commit that joins small files changes no row, and has a marker of its own.
            if markers := [one for one in transactions if not one["appId"].endswith(_JOINED)]:
                self.oid = markers[0]["appId"].split("/")[_OID]
                self.commits.append(Commit(self._version, markers[0]["version"], path.stat().st_mtime))
            self._version += 1

    def first_through(self, marker: int) -> Commit:
        """The commit that made what `marker` stands for visible. Raises ValueError while none has."""
        for commit in self.commits:
            if commit.marker >= marker:
                return commit
        raise ValueError(f"{self._log.parent.name} is not yet at entry {marker}")
