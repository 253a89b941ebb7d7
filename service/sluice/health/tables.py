"""The tables of a report: what ingest and applier say of each, joined, and how old the oldest
change is that the lake lacks.

Invariants: a table's state is the worse of the two sides; what the applier said of an older
generation says nothing about the present.
"""

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from sluice.contract.applied import AppliedTable
from sluice.contract.entries import Changes
from sluice.contract.table_state import State
from sluice.health.facts import TableSeen
from sluice.health.wal import shown
from sluice.manifest.follow import read_entry
from sluice.manifest.state import COPY_WAITS, PipelineState, TableState
from sluice.store.base import ObjectStore

_LOOK_AHEAD = 64
"""Entries read to find a table's oldest change that is not applied. If it lies further on, the
newest time read stands for it: the lag is at most that.
"""


@dataclass(frozen=True, slots=True)
class TableReport:
    """One table, both sides joined. `lag_seconds` is the age of its oldest spooled change that the
    lake lacks, 0 when there is none, None when there is nothing to compare yet.
    `complete_through_lsn` is 0 before the first copy is applied. `since` is when ingest put the
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
    rows_copied: int
    lag_seconds: float | None
    delta_version: int | None
    failing: bool = False
    """The applier's windows, or the copy, fail for `reason` and are tried again."""

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
        state, reason = State.COPYING, "the applier has not taken it yet"
    elif applied is not None and applied.state.severity > state.severity:
        state, reason, since = applied.state, applied.reason, table.since if applied.state == State.COPYING else ""
    failing = table.state == State.COPYING and table.reason.startswith(COPY_WAITS)
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
        rows_copied=table.copy.rows if table.copy else 0,
        lag_seconds=lag_seconds,
        delta_version=applied.delta_version if applied and applied.delta_version >= 0 else None,
        failing=failing and state.is_followed,
    )


class Ages:
    """How old the oldest change of a table is that the lake lacks. Entries never change, so each is
    read once.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._first_commits: dict[int, dict[str, int]] = {}

    def lags(self, state: PipelineState, current: dict[str, AppliedTable | None], *, now: datetime) -> dict[str, float]:
        """Seconds by table id, for tables that are live in the lake."""
        through = {
            table_id: table.through_seq
            for table_id, table in current.items()
            if table is not None and table.state == State.LIVE
        }
        self._first_commits = {
            seq: times for seq, times in self._first_commits.items() if seq > min(through.values(), default=state.seq)
        }
        now_us = int(now.timestamp() * 1_000_000)
        times = {table_id: self._oldest(table_id, seq, state.seq) for table_id, seq in through.items()}
        return {table_id: 0.0 if time is None else max(0.0, (now_us - time) / 1e6) for table_id, time in times.items()}

    def _oldest(self, table_id: str, after_seq: int, last_seq: int) -> int | None:
        """Commit time of the table's first change after entry `after_seq`, None if there is none."""
        end = min(last_seq, after_seq + _LOOK_AHEAD)
        newest = None
        for seq in range(after_seq + 1, end + 1):
            times = self._entry(seq)
            if table_id in times:
                return times[table_id]
            newest = max([*times.values(), newest or 0])
        return newest if end < last_seq else None

    def _entry(self, seq: int) -> dict[str, int]:
        if seq not in self._first_commits:
            entry = read_entry(self._store, seq)
            changes = entry.body if entry is not None else None
            self._first_commits[seq] = _first_commits(changes) if isinstance(changes, Changes) else {}
        return self._first_commits[seq]


def _first_commits(changes: Changes) -> dict[str, int]:
    """Commit time of each table's first change in an entry."""
    first: dict[str, int] = {}
    for segment in changes.segments:
        time_us = changes.first_commit_time_us(segment)
        first[segment.table_id] = min(time_us, first.get(segment.table_id, time_us))
    return first
