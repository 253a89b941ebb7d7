"""Snapshots in a report: how many tables have their rows, and how long the others will take.

Invariant: time left is given only where the server has an estimate of the rows and a rate was
measured; else it is None. Pure.
"""

from dataclasses import asdict, dataclass
from typing import Any

from sluice.contract.table_state import State
from sluice.manifest.values import PipelineState


@dataclass(frozen=True, slots=True)
class SnapshotReport:
    """A table whose snapshot is taken, or one that waits for its turn (`rows` None). `estimated_rows` is the
    server's, None where it has none; `bytes` are those that this process has received.
    """

    table: str
    rows: int | None
    estimated_rows: int | None
    rows_per_second: float | None
    eta_seconds: float | None
    bytes: int | None = None


@dataclass(frozen=True, slots=True)
class SnapshotRound:
    """What the running process knows of its present round of snapshots. `rows`, `seconds` and
    `eta_seconds` are of the whole round. `waits` is why it waits for the source, empty when it does not.
    """

    tables: tuple[SnapshotReport, ...]
    rows: int
    seconds: float
    eta_seconds: float | None
    waits: str = ""


@dataclass(frozen=True, slots=True)
class Snapshots:
    """All snapshots of the pipeline. `rows` are those of finished ones and of the one under way. `waits` is why
    they wait for the source, None when they do not.
    """

    tables_done: int
    tables_total: int
    rows: int
    rows_per_second: float | None
    eta_seconds: float | None
    tables: tuple[SnapshotReport, ...]
    waits: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "tables": [asdict(table) for table in self.tables]}


def snapshots(state: PipelineState, present: SnapshotRound | None) -> Snapshots:
    """Counted from the manifest; rates and time left from the running process, where there is one."""
    known = [table for table in state.tables.values() if table.state != State.DETACHED]
    waiting = [table for table in known if table.state == State.SNAPSHOT]
    rows = sum(table.snapshot.rows for table in known if table.snapshot and table.snapshot.final)
    if not waiting:
        return Snapshots(len(known), len(known), rows, None, None, ())
    if present is None or not present.tables:
        tables = tuple(
            SnapshotReport(f"{table.schema_name}.{table.table_name}", None, None, None, None) for table in waiting
        )
        waits = present.waits or None if present is not None else None
        return Snapshots(len(known) - len(waiting), len(known), rows, None, None, tables, waits)
    under_way = sum(table.rows or 0 for table in present.tables)
    rate = present.rows / present.seconds if present.seconds > 0 and present.rows else None
    done, eta = len(known) - len(waiting), None if present.waits else present.eta_seconds
    return Snapshots(done, len(known), rows + under_way, rate, eta, present.tables, present.waits or None)


def under_way(
    table: str, *, rows: int, estimated_rows: int, seconds: float, rows_before: int = 0, nbytes: int | None = None
) -> SnapshotReport:
    """A snapshot that has run for `seconds` and read all of `rows` but `rows_before` in them; an estimate
    that was passed already says nothing about the end.
    """
    estimate = estimated_rows if estimated_rows >= 0 else None
    rate = (rows - rows_before) / seconds if seconds > 0 and rows > rows_before else None
    eta = (estimate - rows) / rate if rate is not None and estimate is not None and estimate >= rows else None
    return SnapshotReport(table, rows, estimate, rate, eta, nbytes)
