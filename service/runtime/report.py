"""Where a pipeline stands, joined from what ingest and applier have stored and, when it answers, the server.

Invariants: a table's state is the worse of the two sides, and nothing here says that a table is complete further than the applier has stated for
the generation in force; what could not be reached is named, never left out. Works while nothing runs. Must not write anything anywhere.
"""

from bisect import bisect_left
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeVar

from service.contract import keys
from service.contract.applied import AppliedLog, AppliedTable, Complete
from service.contract.entries import Changes, Prepared, Segment
from service.errors import ServiceError
from service.lsn import show
from service.manifest.follow import load_state, read_entry
from service.manifest.state import PipelineState, TableState
from service.source.sessions import SourceOptions, open_query
from service.source.slot import ServerFacts, SlotFacts, server_facts, slot_facts
from service.store.base import ObjectStore

SCHEMA_VERSION = 1
Record = TypeVar("Record", AppliedLog, Complete)
STATES_BY_WORTH = ("live", "copying", "pending", "detached", "paused", "quarantined", "stale")
"""From the best to the worst: of two sides that differ the worse is shown."""
_LOOK_AHEAD = 64
"""Entries read to find a table's oldest change that is not applied. If it lies further on, the newest time read stands for it: the lag is at most that."""


@dataclass(frozen=True, slots=True)
class TableReport:
    """One table, both sides joined. `lag_seconds` is the age of its oldest spooled change that the lake lacks, 0 when there is none, None when there is
    nothing to compare yet. `complete_through_lsn` is 0 before the first copy is applied."""

    schema: str
    table: str
    path: str
    state: str
    reason: str
    mode: str
    generation: int
    complete_through_lsn: int
    rows_applied: int
    rows_copied: int
    lag_seconds: float | None
    delta_version: int | None

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "complete_through_lsn": _lsn(self.complete_through_lsn)}


@dataclass(frozen=True, slots=True)
class Unreachable:
    """What could not be asked, and why."""

    what: str
    why: str
    hint: str


@dataclass(frozen=True, slots=True)
class Report:
    """One look at a pipeline. Positions are read one after the other, not at one instant. `server` and `slot` are None when they were not reached."""

    pipeline: str
    taken_at: datetime
    manifest: PipelineState
    tables: tuple[TableReport, ...]
    applied: AppliedLog | None
    complete: Complete | None
    server: ServerFacts | None
    slot: SlotFacts | None
    pending_entries: int
    unreachable: tuple[Unreachable, ...] = field(default=())

    @property
    def state(self) -> str:
        """new, running, stopped, lost or unknown, as far as one can tell from outside."""
        if self.manifest.opened is None:
            return "new"
        if self.server is None:
            return "unknown"
        if self.slot is None or self.slot.invalidated:
            return "lost"
        return "running" if self.slot.active_pid else "stopped"

    @property
    def complete_lsn(self) -> int:
        """The position through which all tables that are not left out are complete, 0 before the first."""
        return self.complete.lsn if self.complete else 0

    def age_seconds(self, prepared: Prepared) -> float:
        """How long ago `prepared` was, by the source's clock and ours."""
        return max(0.0, self.taken_at.timestamp() - prepared.prepare_time_us / 1e6)

    def behind_bytes(self, lsn: int) -> int | None:
        """WAL between `lsn` and the server's write position; never negative, None when the server was not reached."""
        return None if self.server is None else max(0, self.server.wal_end_lsn - lsn)

    def to_json(self) -> dict[str, Any]:
        """The answer of `status --json`."""
        opened = self.manifest.opened
        return {
            "schema_version": SCHEMA_VERSION,
            "pipeline": self.pipeline,
            "state": self.state,
            "taken_at": self.taken_at.isoformat(),
            "source": None if self.server is None else _source_json(self.server, self.slot),
            "manifest": {
                "seq": self.manifest.seq,
                "epoch": self.manifest.epoch,
                "through_lsn": _lsn(self.manifest.through_lsn),
                "behind_bytes": self.behind_bytes(self.manifest.through_lsn),
                "slot": opened.slot if opened else None,
                "publication": opened.publication if opened else None,
                "database": opened.database if opened else None,
            },
            "apply": {
                "complete_through_lsn": _lsn(self.complete_lsn),
                "behind_bytes": self.behind_bytes(self.complete_lsn) if self.complete else None,
                "pending_entries": self.pending_entries,
                "last_record_at": self.applied.written_at if self.applied else None,
                "left_out": self.complete.left_out if self.complete else {},
            },
            "prepared": [
                {
                    "gid": one.gid,
                    "xid": one.xid,
                    "prepare_end_lsn": show(one.end_lsn),
                    "prepared_at": datetime.fromtimestamp(one.prepare_time_us / 1e6, UTC).isoformat(),
                    "age_seconds": self.age_seconds(one),
                    "rows": one.rows,
                }
                for one in self.manifest.prepared.values()
            ],
            "tables": [table.to_json() for table in self.tables],
            "unreachable": [asdict(item) for item in self.unreachable],
        }

    def tables_json(self) -> dict[str, Any]:
        """The answer of `tables --json`."""
        return {"schema_version": SCHEMA_VERSION, "tables": [table.to_json() for table in self.tables]}


class Reporter:
    """Takes reports of one pipeline, and remembers where the applier's records end so that the next look is cheap. Not for several threads at once.

    `store` is the pipeline's own prefix in the spool. Without `source` the server is not asked.
    """

    def __init__(
        self, *, pipeline: str, store: ObjectStore, lake_uri: str, source: SourceOptions | None, clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._pipeline = pipeline
        self._store = store
        self._lake_uri = lake_uri
        self._source = source
        self._clock = clock
        self._newest: dict[str, str] = {}
        self._ages = _Ages(store)

    def take(self) -> Report:
        """Raises StoreError and ManifestCorrupt; a server that cannot be reached is part of the report."""
        # The applier's records first: they follow the manifest, so that what is read after them is never behind them.
        applied = self._record(keys.APPLY_LOG, AppliedLog.decode)
        complete = self._record(keys.APPLY_COMPLETE, Complete.decode)
        state = load_state(self._store)
        known = applied.tables if applied else {}
        current = {table_id: _current(table, known.get(table_id)) for table_id, table in state.tables.items()}
        now = self._clock()
        lags = self._ages.lags(state, current, now=now)
        tables = [
            _joined(table, current[table_id], path=f"{self._lake_uri}/{keys.lake_path(table.schema_name, table.table_name)}", lag_seconds=lags.get(table_id))
            for table_id, table in state.tables.items()
        ]
        behind = [state.seq - table.through_seq for table in current.values() if table is not None and table.state == "live"]
        server, slot, unreachable = self._ask_server()
        return Report(
            pipeline=self._pipeline,
            taken_at=now,
            manifest=state,
            tables=tuple(sorted(tables, key=lambda table: (table.schema, table.table))),
            applied=applied,
            complete=complete,
            server=server,
            slot=slot,
            pending_entries=max(behind, default=0),
            unreachable=unreachable,
        )

    def _record(self, folder: str, decode: Callable[[bytes], Record]) -> Record | None:
        """The newest object of a folder whose numbers only grow."""
        newest = self._newest.get(folder, "")
        for key in self._store.list(folder, after=newest):
            newest = key
        if not newest:
            return None
        self._newest[folder] = newest
        return decode(self._store.get(newest))

    def _ask_server(self) -> tuple[ServerFacts | None, SlotFacts | None, tuple[Unreachable, ...]]:
        if self._source is None:
            return None, None, ()
        try:
            with closing(open_query(self._source)) as connection:
                return server_facts(connection), slot_facts(connection, self._source.slot), ()
        except ServiceError as error:
            return None, None, (Unreachable("source", str(error), error.hint),)


def _current(table: TableState, applied: AppliedTable | None) -> AppliedTable | None:
    """The applier's record, if it speaks of the generation in force; an older one says nothing about the present."""
    return applied if applied is not None and applied.generation == table.generation else None


def _joined(table: TableState, applied: AppliedTable | None, *, path: str, lag_seconds: float | None) -> TableReport:
    state, reason = table.state, table.reason
    if applied is None and state == "live":
        state, reason = "copying", "the applier has not taken it yet"
    elif applied is not None and STATES_BY_WORTH.index(applied.state) > STATES_BY_WORTH.index(state):
        state, reason = applied.state, applied.reason
    return TableReport(
        schema=table.schema_name,
        table=table.table_name,
        path=path,
        state=state,
        reason=reason or (applied.reason if applied else ""),
        mode=applied.mode if applied else "",
        generation=table.generation,
        complete_through_lsn=applied.complete_through_lsn if applied else 0,
        rows_applied=applied.rows_applied if applied else 0,
        rows_copied=table.copy.rows if table.copy else 0,
        lag_seconds=lag_seconds,
        delta_version=applied.delta_version if applied and applied.delta_version >= 0 else None,
    )


class _Ages:
    """How old the oldest change of a table is that the lake lacks. Entries never change, so each is read once."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._first_commits: dict[int, dict[str, int]] = {}

    def lags(self, state: PipelineState, current: dict[str, AppliedTable | None], *, now: datetime) -> dict[str, float]:
        """Seconds by table id, for tables that are live in the lake."""
        through = {table_id: table.through_seq for table_id, table in current.items() if table is not None and table.state == "live"}
        self._first_commits = {seq: times for seq, times in self._first_commits.items() if seq > min(through.values(), default=state.seq)}
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
        time_us = _first_commit_time(segment, changes)
        first[segment.table_id] = min(time_us, first.get(segment.table_id, time_us))
    return first


def _first_commit_time(segment: Segment, changes: Changes) -> int:
    if segment.body is not None:
        return segment.body.commit_time_us
    position = bisect_left(changes.commits.end_lsn, segment.first_lsn)
    times = changes.commits.commit_time_us
    return times[min(position, len(times) - 1)] if times else 0


def _source_json(server: ServerFacts, slot: SlotFacts | None) -> dict[str, Any]:
    return {
        "server_version": server.server_version,
        "database": server.database,
        "wal_lsn": _lsn(server.wal_end_lsn),
        "slot": None
        if slot is None
        else {
            "active": slot.active_pid is not None,
            "confirmed_flush_lsn": _lsn(slot.confirmed_flush_lsn),
            "restart_lsn": _lsn(slot.restart_lsn),
            "retained_wal_bytes": max(0, server.wal_end_lsn - slot.restart_lsn) if slot.restart_lsn else None,
            "wal_status": slot.wal_status,
            "safe_wal_bytes": slot.safe_wal_size,
            "invalidated": slot.invalidated or None,
        },
    }


def _lsn(lsn: int | None) -> str | None:
    return show(lsn) if lsn else None
