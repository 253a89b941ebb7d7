"""The tables of a report: what ingest and applier say of each, joined, and how old the oldest
change is that the lake lacks.

Invariants: a table's state is the worse of the two sides; what the applier said of an older
generation says nothing about the present.
"""

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from sluice.contract.applied import AppliedTable
from sluice.contract.table_state import State
from sluice.health.facts import TableSeen
from sluice.health.wal import shown
from sluice.manifest.state import SNAPSHOT_WAITS, TableState


@dataclass(frozen=True, slots=True)
class TableReport:
    """One table, both sides joined. `lag_seconds` is the age of its oldest spooled change that the
    lake lacks, 0 when there is none, None when there is nothing to compare yet.
    `complete_through_lsn` is 0 before the first snapshot is applied. `since` is when ingest put the
    table into its state, empty where the applier decides the state, which does not say since
    when.
    """

    schema: str
    table: str
    path: str
    state: State
    reason: str
    since: str
    mode: str
    generation: int
    complete_through_lsn: int
    rows_applied: int
    snapshot_rows: int
    lag_seconds: float | None
    delta_version: int | None
    failing: bool = False
    """The applier's windows, or the snapshot, fail for `reason` and are tried again."""
    way: str = ""
    """How its newest changes were committed to the lake, empty before the first."""
    way_reason: str = ""
    """Why they were not committed directly."""
    files: int | None = None
    """Data files in the lake table, None when they were not counted."""

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "since": self.since or None, "complete_through_lsn": shown(self.complete_through_lsn)}

    @property
    def seen(self) -> TableSeen:
        """What health depends on."""
        since = datetime.fromisoformat(self.since).timestamp() if self.since else None
        return TableSeen(f"{self.schema}.{self.table}", self.state, self.reason, since, self.failing)


def current(table: TableState, applied: AppliedTable | None) -> AppliedTable | None:
    """The applier's record, if it speaks of the generation in force; an older one says nothing
    about the present.
    """
    return applied if applied is not None and applied.generation == table.generation else None


def joined(table: TableState, applied: AppliedTable | None, *, path: str, lag_seconds: float | None) -> TableReport:
    state, reason, since = table.state, table.reason, table.since
    if applied is None and state == State.LIVE:
        # The lake waits for the rows since ingest had them.
        state, reason = State.SNAPSHOT, "the applier has not taken it yet"
    elif applied is not None and applied.state.severity > state.severity:
        state, reason, since = applied.state, applied.reason, table.since if applied.state == State.SNAPSHOT else ""
    failing = table.state == State.SNAPSHOT and table.reason.startswith(SNAPSHOT_WAITS)
    if applied is not None and applied.failing:
        # What keeps the lake from having what ingest has is said before what ingest says.
        failing, reason = True, applied.reason
    return TableReport(
        schema=table.schema_name,
        table=table.table_name,
        path=path,
        state=state,
        reason=reason or (applied.reason if applied else ""),
        since=since,
        mode=applied.mode if applied else "",
        generation=table.generation,
        complete_through_lsn=applied.complete_through_lsn if applied else 0,
        rows_applied=applied.rows_applied if applied else 0,
        snapshot_rows=table.snapshot.rows if table.snapshot else 0,
        lag_seconds=lag_seconds,
        delta_version=applied.delta_version if applied and applied.delta_version >= 0 else None,
        failing=failing and state.is_followed,
        way=applied.way if applied else "",
        way_reason=applied.way_reason if applied else "",
        files=applied.files if applied and applied.files >= 0 else None,
    )
