"""What the applier reports below `apply/`: how far each table is, and through which LSN all of them are.

Owns: a report is never ahead of the lake (it is written after the commits it speaks of), numbers only grow, and old reports go away.
The truth about a table is its Delta marker; these objects are read by people, by `status` and by the next start for idle progress.
"""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime

from service import faults
from service.contract import keys
from service.contract.applied import AppliedLog, AppliedTable, Complete
from service.errors import ObjectMissing
from service.store.base import ObjectStore

KEPT = 20
"""Reports that stay for a reader who is late."""


class Reports:
    """Writes and reads the two kinds of report."""

    def __init__(self, store: ObjectStore, *, instance: str) -> None:
        self._store = store
        self._instance = instance
        self._log_number = self._newest(keys.APPLY_LOG)
        self._complete_number = self._newest(keys.APPLY_COMPLETE)
        self._last_complete: Complete | None = None

    def last_log(self) -> AppliedLog | None:
        """The newest log, if there is one."""
        try:
            return AppliedLog.decode(self._store.get(keys.apply_log(self._log_number))) if self._log_number else None
        except ObjectMissing:
            return None

    def log(self, tables: Mapping[str, AppliedTable], *, succeeded_at: float = 0.0) -> None:
        """Writes the next log. `succeeded_at`, unix seconds, is when the applier last had success; 0 if it had none."""
        self._log_number += 1
        faults.point("apply.log.before")
        succeeded = _iso(datetime.fromtimestamp(succeeded_at, UTC)) if succeeded_at else ""
        self._store.create(keys.apply_log(self._log_number), AppliedLog(self._log_number, self._instance, _now(), dict(tables), succeeded).encode())
        faults.point("apply.log.after")
        self._forget(keys.apply_log(self._log_number - KEPT), self._log_number)

    def complete(self, complete: Complete) -> None:
        """Writes the next completion, unless it says what the last one said. `complete` comes without number and time."""
        if self._last_complete is not None and replace(self._last_complete, number=0, written_at="") == complete:
            return
        self._complete_number += 1
        numbered = replace(complete, number=self._complete_number, written_at=_now())
        self._store.create(keys.apply_complete(self._complete_number), numbered.encode())
        self._last_complete = numbered
        self._forget(keys.apply_complete(self._complete_number - KEPT), self._complete_number)

    def _forget(self, key: str, number: int) -> None:
        if number > KEPT:
            self._store.delete(key)

    def _newest(self, prefix: str) -> int:
        return max((int(key.removeprefix(prefix).removesuffix(".json")) for key in self._store.list(prefix)), default=0)


def completion(tables: Mapping[str, AppliedTable], *, committed: Mapping[str, int]) -> Complete | None:
    """All live tables as of one transaction boundary, or None while one is ahead of another.

    `committed` is the last manifest entry that each table's Delta version holds changes of: none may be past the entry that all are through.
    """
    live = {key: table for key, table in tables.items() if table.state == "live"}
    left_out = {_name(table): table.state for key, table in tables.items() if key not in live}
    if not live:
        return None
    seq = min(table.through_seq for table in live.values())
    if any(committed.get(key, 0) > seq for key in live):
        return None
    versions = {_name(table): table.delta_version for table in live.values()}
    return Complete(0, min(table.complete_through_lsn for table in live.values()), seq, "", versions, left_out)


def _name(table: AppliedTable) -> str:
    """`schema.table`. A part that holds a dot or a quote is quoted as in SQL, so that two tables never share a name."""
    parts = (table.schema_name, table.table_name)
    return ".".join('"' + part.replace('"', '""') + '"' if "." in part or '"' in part else part for part in parts)


def _now() -> str:
    return _iso(datetime.now(UTC))


def _iso(at: datetime) -> str:
    return at.isoformat(timespec="milliseconds")
