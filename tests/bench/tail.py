"""The commits of one Delta table on a local disk, found as they are made."""

import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Commit:
    """A commit that moved the applier's marker to `marker`; `at` is the time of its file (unix
    seconds).
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

    def follow(self) -> None:
        """Takes the commits that were made since."""
        while (path := self._log / f"{self._version:020d}.json").exists():
            actions = [json.loads(line) for line in path.read_text().splitlines()]
            markers = [action["txn"]["version"] for action in actions if "txn" in action]
            if markers:
                self.commits.append(Commit(self._version, markers[0], path.stat().st_mtime))
            self._version += 1

    def first_through(self, marker: int) -> Commit:
        """The commit that made what `marker` stands for visible. Raises ValueError while none has."""
        for commit in self.commits:
            if commit.marker >= marker:
                return commit
        raise ValueError(f"{self._log.parent.name} is not yet at entry {marker}")
