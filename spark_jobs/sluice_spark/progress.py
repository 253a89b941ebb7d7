"""What the applier reports below `apply/`: how far each table is, and at which LSN a Delta version
of every one is known.

Owns: a report is never ahead of the lake (it is written after the commits it speaks of), numbers
only grow, and old reports go away. The truth about a table is its Delta marker; these objects are
read by people, by `status` and by the next start for idle progress.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from sluice import faults
from sluice.contract import keys
from sluice.contract.applied import AppliedLog, AppliedTable, Complete
from sluice.contract.table_state import State
from sluice.errors import ObjectMissing
from sluice.manifest.apply_records import newest_complete, newest_log
from sluice.store.base import ObjectStore

KEPT = 20
"""Reports that stay for a reader who is late."""


class Reports:
    """Writes and reads the two kinds of report."""

    def __init__(self, store: ObjectStore, *, instance: str) -> None:
        self._store = store
        self._instance = instance
        self._started_at = _now()
        self._log_number = newest_log(store).number()
        self._complete_number = newest_complete(store).number()
        self._last_complete: Complete | None = None

    def last_log(self) -> AppliedLog | None:
        """The newest log, if there is one."""
        try:
            return newest_log(self._store).read()
        except ObjectMissing:
            return None

    def log(self, tables: Mapping[str, AppliedTable], *, succeeded_at: float = 0.0) -> None:
        """Writes the next log. `succeeded_at`, unix seconds, is when the applier last had success;
        0 if it had none.
        """
        self._log_number += 1
        faults.point("apply.log.before")
        succeeded = _iso(datetime.fromtimestamp(succeeded_at, UTC)) if succeeded_at else ""
        log = AppliedLog(self._log_number, self._instance, _now(), dict(tables), succeeded, self._started_at)
        self._store.create(keys.apply_log(self._log_number), log.encode())
        faults.point("apply.log.after")
        self._forget(keys.apply_log(self._log_number - KEPT), self._log_number)

    def complete(self, complete: Complete) -> None:
        """Writes the next completion, unless it says what the last one said. `complete` comes
        without number and time.
        """
        if self._last_complete is not None and replace(self._last_complete, number=0, written_at="") == complete:
            return
        self._complete_number += 1
        numbered = replace(complete, number=self._complete_number, written_at=_now())
        faults.point("apply.complete.before")
        self._store.create(keys.apply_complete(self._complete_number), numbered.encode())
        faults.point("apply.complete.after")
        self._last_complete = numbered
        self._forget(keys.apply_complete(self._complete_number - KEPT), self._complete_number)

    def _forget(self, key: str, number: int) -> None:
        if number > KEPT:
            self._store.delete(key)


@dataclass(slots=True)
class Boundary:
    """The next LSN at which a Delta version of every live table is to be known: the end of manifest
    entry `seq`.

    Owns that it is reached under any load: a table that has not passed it gets no window across it,
    a table that has goes on at once, and its version there is kept. Nothing waits for a moment at
    which no window is under way.
    """

    seq: int = 0
    lsn: int = 0
    versions: dict[str, int] = field(default_factory=dict)
    """By table id, of tables that have passed."""
    published: Complete | None = None

    def pass_by(self, tables: Mapping[str, AppliedTable], *, since_lsn: Mapping[str, int]) -> None:
        """Notes the versions of the tables that stand at the boundary now. `since_lsn` has the LSN
        of each one's snapshot: none is there before it.
        """
        for key, table in tables.items():
            if (
                key not in self.versions
                and table.state == State.LIVE
                and table.through_seq >= self.seq >= table.committed_seq
                and since_lsn[key] <= self.lsn
            ):
                self.versions[key] = table.delta_version

    def complete(self, tables: Mapping[str, AppliedTable], *, since_lsn: Mapping[str, int]) -> Complete | None:
        """What can be published, without number and time; None while a live table has still to
        come. A table that began later is left out as `copying`.
        """
        live = {key: table for key, table in tables.items() if table.state == State.LIVE}
        later = {
            key
            for key in live
            if key not in self.versions and (since_lsn[key] > self.lsn or live[key].committed_seq > self.seq)
        }
        if not self.seq or live.keys() - later - self.versions.keys() or not live.keys() - later:
            return None
        there = {_name(table) for table in live.values()}
        # A table that is gone has left its name to whoever has it now.
        gone = {key for key, table in tables.items() if table.state == State.DETACHED and _name(table) in there}
        left_out: dict[str, str] = {
            _name(table): State.COPYING if key in later else table.state
            for key, table in tables.items()
            if key in later or key not in live.keys() | gone
        }
        return Complete(
            0,
            self.lsn,
            self.seq,
            "",
            {_name(table): self.versions[key] for key, table in live.items() if key not in later},
            left_out,
        )


def _name(table: AppliedTable) -> str:
    """`schema.table`. A part that holds a dot or a quote is quoted as in SQL, so that two tables
    never share a name.
    """
    parts = (table.schema_name, table.table_name)
    return ".".join('"' + part.replace('"', '""') + '"' if "." in part or '"' in part else part for part in parts)


def _now() -> str:
    return _iso(datetime.now(UTC))


def _iso(at: datetime) -> str:
    return at.isoformat(timespec="milliseconds")
