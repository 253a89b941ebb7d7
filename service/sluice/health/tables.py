"""The tables of a report: what ingest and applier say of each, joined, and how old the oldest
change is that the lake lacks.

Invariants: a table's state is the worse of the two sides; what the applier said of an older
generation says nothing about the present.
"""

from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import Any

from sluice.contract import codec, keys, lake_names
from sluice.contract.applied import CATALOG, AppliedLog, AppliedTable, Maintenance
from sluice.contract.catalog_names import CatalogNames
from sluice.contract.conditions import left_out
from sluice.contract.lake_targets import LakeTarget
from sluice.contract.reasons import Reason, ReasonCode, sentence
from sluice.contract.table_state import State
from sluice.contract.verified import VerifiedTable
from sluice.health.facts import TableSeen
from sluice.health.wal import shown
from sluice.manifest.targets import Targets, TargetsOf, of_target
from sluice.manifest.values import Pause, PipelineState, TableState
from sluice.printable import counted

_MEBI = 1024**2


@dataclass(frozen=True, slots=True)
class CatalogReport:
    """The `name` of a lake table in the catalog: since when the entry there is as the applier made or found it (ISO
    8601; empty before), and since when and why it is not as it should be (empty when it is).
    """

    name: str
    registered_at: str = ""
    failing: str = ""

    @staticmethod
    def of(name: str, record: Maintenance) -> "CatalogReport":
        run = record.runs.get(CATALOG)
        return CatalogReport(name, run.at if run is not None else "", record.failing.get(CATALOG, ""))


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
    reason_code: str
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
    waiting_rows: int | None = None
    """Changes that were spooled since the table was paused; None while it is not."""
    waiting_bytes: int | None = None
    resyncs: dict[str, int] = field(default_factory=dict)
    """How often it began again with a new snapshot, by cause."""
    note: str = ""
    """Why the lake table is not at the path of the table's name, empty when it is."""
    ignored_columns: tuple[str, ...] = ()
    """Columns that were added and are left out of the lake table: by its contract, or until `columns` lists them."""
    resync_at: str = ""
    """When a stale table is read again by itself (ISO 8601 UTC), empty when people decide."""
    maintenance: Maintenance = field(default_factory=Maintenance)
    """What was done to its lake table besides windows."""
    verified_through_lsn: int = 0
    """Where a comparison of source and lake last found it equal, 0 when none has."""
    verified_at: str = ""
    """When that was (ISO 8601 UTC)."""
    differences: int = 0
    """Rows that differed in the newest comparison."""
    not_sent: tuple[str, ...] = ()
    """Kinds of change that the publication leaves out on purpose."""
    verification_late: bool = False
    """Tables are compared continuously, and this one was not found equal for three intervals."""
    target: str = ""
    """The name of the lake table, empty for that of its source table."""
    catalog: CatalogReport | None = None
    """Its name in the catalog, None without one."""

    @property
    def title(self) -> str:
        """What people see of the lake table."""
        return keys.target_title(self.schema, self.table, self.target)

    @property
    def label(self) -> str:
        """What metrics call it in its schema."""
        return keys.target_key(self.table, self.target)

    def to_json(self) -> dict[str, Any]:
        optional = {name: getattr(self, name) or None for name in ("since", "resync_at", "verified_at")}
        positions = {name: shown(getattr(self, name)) for name in ("complete_through_lsn", "verified_through_lsn")}
        maintenance = {
            **codec.fields_to_json(self.maintenance),
            "failing": self.maintenance.failure,
            "summary": self.maintenance.summary,
        }
        return {**asdict(self), **optional, "maintenance": maintenance, **positions}

    @property
    def problem(self) -> str:
        """What keeps it from being followed, one of the reasons of the metric `sluice_table_problem`;
        empty when nothing does.
        """
        if self.differences and self.state.has_initial_rows:
            return "unequal"
        if self.failing:
            return "failing"
        if self.state is State.STALE:
            return "waiting" if self.resync_at else "stale"
        if self.state in (State.GAP, State.QUARANTINED):
            return self.state.value
        return "unverified" if self.verification_late else ""

    @property
    def remark(self) -> str:
        """All that is to be said of it, in one line."""
        times = ", ".join(f"{count:,} for {cause}" for cause, count in sorted(self.resyncs.items()))
        rows = f"{counted(self.differences, 'row differs', 'rows differ')} from the source"
        differs = rows if self.differences else ""
        left_out = f"left out: {', '.join(self.ignored_columns)}" if self.ignored_columns else ""
        fails = f"maintenance fails: {self.maintenance.failure}" if self.maintenance.failing else ""
        again = f"read again: {times}" if times else ""
        named = self.catalog.failing if self.catalog is not None else ""
        unnamed = f"not as it should be in the catalog {named}" if named else ""
        return "; ".join(filter(None, (self.reason, differs, self.note, left_out, again, fails, unnamed)))

    @property
    def seen(self) -> TableSeen:
        """What health depends on."""
        since = datetime.fromisoformat(self.since).timestamp() if self.since else None
        return TableSeen(self.title, self.state, self.reason, since, self.failing)

    @property
    def not_sent_seen(self) -> TableSeen | None:
        """The same of what the publication leaves out, None when that is nothing."""
        why = f"the publication leaves out {', '.join(self.not_sent)}, as source.accept_missing allows"
        return TableSeen(self.title, self.state, why) if self.not_sent else None

    @property
    def path_seen(self) -> TableSeen | None:
        """The same of its path, None unless another table has that of its name."""
        displaced = keys.is_of_its_own(self.path) and self.state is not State.DETACHED
        return TableSeen(self.title, self.state, self.note) if displaced else None

    @property
    def maintenance_seen(self) -> TableSeen | None:
        """The same of its maintenance, None while that does not fail."""
        name, reason = self.title, self.maintenance.failure
        return TableSeen(name, self.state, reason, failing=True) if reason and self.state.is_applied else None

    @property
    def catalog_seen(self) -> TableSeen | None:
        """The same of its name in the catalog, None while that is as it should be."""
        named = self.catalog
        if named is None or not named.failing or self.state is State.DETACHED:
            return None
        return TableSeen(self.title, self.state, f"{named.name}: {named.failing}", failing=True)


class LakeTables:
    """The lake tables that are `configured`, and those that the applier speaks of because it was started with another
    configuration. `names` are those in the catalog, None without one.
    """

    def __init__(self, configured: TargetsOf = lambda _: (LakeTarget(),), *, names: CatalogNames | None = None) -> None:
        self._targets = Targets(configured)
        self._names = names

    def configure(self, configured: TargetsOf) -> None:
        """Tables that come from now on have those that are `configured` now. From any thread."""
        self._targets.configured = configured

    def catalog(self, table: TableState, applied: AppliedTable | None) -> CatalogReport | None:
        """What `table` is called in the catalog, and how that goes."""
        if self._names is None:
            return None
        name = self._names.name(table.schema_name, table.table_name, table.target_name)
        return CatalogReport.of(name, applied.maintenance if applied is not None else Maintenance())

    def of(self, state: PipelineState, applied: AppliedLog | None) -> PipelineState:
        """`state` with a table for each of them, by key."""
        lake = self._targets.of(state)
        others = {
            key: replace(of_target(state.tables[row.table_id], LakeTarget(name=row.target)), path=row.path)
            for key, row in (applied.tables if applied else {}).items()
            if key not in lake.tables and row.table_id in state.tables and row.target
        }
        return replace(lake, tables={**lake.tables, **others}) if others else lake


def current(table: TableState, applied: AppliedTable | None) -> AppliedTable | None:
    """The applier's record, if it speaks of the generation in force; an older one says nothing
    about the present.
    """
    return applied if applied is not None and applied.generation == table.generation else None


def joined(
    table: TableState,
    applied: AppliedTable | None,
    *,
    path: str,
    lag_seconds: float | None,
    verified: VerifiedTable | None = None,
    verification_late: bool = False,
    catalog: CatalogReport | None = None,
) -> TableReport:
    state, why, reason, since = table.state, table.why, table.reason, table.since
    theirs = _by_the_applier(table, applied) if applied is not None else None
    if table.paused is not None and state.is_followed:
        state, why, since = State.PAUSED, _paused(table.paused), table.paused.since
        reason = sentence(why, state, f"{table.schema_name}.{table.table_name}")
    elif applied is None and state == State.LIVE:
        # The lake waits for the rows since ingest had them.
        state, why = State.SNAPSHOT, Reason(ReasonCode.NOT_APPLIED)
        reason = sentence(why, state, "")
    if applied is not None and theirs is not None and theirs.severity > state.severity:
        state, since = theirs, table.since if theirs == State.SNAPSHOT else ""
        why, reason = applied.why, applied.reason
    waits = table.why is not None and table.why.code == ReasonCode.SNAPSHOT_WAITS
    failing = waits and table.state == State.SNAPSHOT
    if applied is not None and applied.failing and state is not State.PAUSED:
        # What keeps the lake from having what ingest has is said before what ingest says.
        failing, why, reason = True, applied.why, applied.reason
    if why is None and applied is not None:
        why, reason = applied.why, applied.reason
    return TableReport(
        schema=table.schema_name,
        table=table.table_name,
        path=path,
        state=state,
        reason=reason,
        reason_code=why.code.value if why is not None else "",
        since=since,
        mode=applied.mode if applied else "",
        generation=table.generation,
        complete_through_lsn=applied.complete_through_lsn if applied else 0,
        rows_applied=applied.rows_applied if applied else 0,
        snapshot_rows=table.snapshot.rows if table.snapshot else 0,
        lag_seconds=lag_seconds,
        delta_version=applied.delta_version if applied and applied.delta_version >= 0 else None,
        failing=failing and state.is_applied,
        way=applied.way if applied else "",
        way_reason=applied.way_reason if applied else "",
        files=applied.files if applied and applied.files >= 0 else None,
        waiting_rows=table.paused.rows if table.paused else None,
        waiting_bytes=table.paused.bytes if table.paused else None,
        resyncs=table.resyncs.counts,
        resync_at=table.resync_at,
        note=_note(table),
        ignored_columns=tuple(
            column.name
            for number, schema in table.schemas.items()
            if number == table.schema_version
            for column in schema.left_out
        ),
        maintenance=applied.maintenance.without(CATALOG) if applied else Maintenance(),
        verified_through_lsn=verified.lsn if verified else 0,
        verified_at=verified.at if verified else "",
        differences=verified.differences if verified else 0,
        verification_late=verification_late,
        not_sent=left_out(table.publishes) if table.publishes and table.state.is_followed else (),
        target=table.target_name,
        catalog=catalog,
    )


def _by_the_applier(table: TableState, applied: AppliedTable) -> State:
    """What the applier says, except for pauses: those are ingest's to say, whether the applier knows of
    their beginning and end or not. While a table is paused its windows are not tried, and cannot fail.
    """
    over = State.QUARANTINED if table.paused is not None else State.PAUSED
    if applied.state is not over:
        return applied.state
    return State.LIVE if applied.complete_through_lsn else State.SNAPSHOT


def _paused(pause: Pause) -> Reason:
    """How much waits."""
    waits = {"rows": f"{pause.rows:,}", "mebibytes": f"{pause.bytes / _MEBI:,.1f}"}
    return Reason(ReasonCode.PAUSED, waits)


def _note(table: TableState) -> str:
    if keys.is_of_its_own(table.path):
        return f"its lake table is at {table.path}: another table had the path of its name"
    name, path = table.target_name, keys.lake_path(table.schema_name, table.table_name)
    if table.pattern:
        has_its_name = bool(name) or lake_names.has_name(table.path, table.pattern, table.table_name)
    else:
        has_its_name = table.path == (keys.beside(path, name) if name else path)
    return "" if has_its_name else f"renamed; its lake table stays at {table.path}"
