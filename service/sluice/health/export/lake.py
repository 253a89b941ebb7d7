"""What manifest and apply records say of tables, backlog and freshness, brought to metrics.

Invariant: a table is as fresh as the oldest change that it lacks is old, be that change in the
spool or not even there; a table without changes is as fresh as ingest. Its watermark is never later
than what is proven complete.
"""

from collections import Counter
from collections.abc import Iterable
from datetime import datetime

from sluice.contract import keys
from sluice.contract.table_state import State
from sluice.health.backlog import Pending
from sluice.health.report import Report
from sluice.health.tables import TableReport
from sluice.health.wal import oldest
from sluice.telemetry import catalogue
from sluice.telemetry.metrics import OTHER, Metrics

_PROBLEMS_NAMED = 100
"""Tables with a problem that have series of their own; who has more has one cause for them."""
_NO_WAY = "none"
_QUANTILES = (("max", 1.0), ("p95", 0.95), ("p50", 0.5))


class LakeExport:
    """`look` belongs to one thread, `export_freshness` may be called from another."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._pending = Pending()
        self._named: set[tuple[str, str]] = set()
        self._problems: set[tuple[str, str, str]] = set()

    def export(self, report: Report, *, ingested_at: float | None) -> None:
        """Exports `report`. Everything committed before `ingested_at` is in the manifest (None: not
        known yet).
        """
        metrics, state = self._metrics, report.manifest
        states = Counter(table.state for table in report.tables)
        for name in State:
            metrics.set(catalogue.TABLES, states[name], state=name)
        metrics.set(catalogue.PREPARED, len(state.prepared))
        metrics.set(catalogue.PREPARED_AGE, max(map(report.age_seconds, state.prepared.values()), default=0.0))
        metrics.set(catalogue.MANIFEST_SEQ, state.seq)
        metrics.set(catalogue.APPLY_PENDING, report.pending_entries)
        metrics.set(catalogue.APPLY_TABLE_ROWS, sum(table.rows_applied for table in report.tables))
        metrics.show(catalogue.APPLIED_LSN, report.complete_lsn or None)
        metrics.show(catalogue.APPLY_LAST_RECORD, report.applier.record_at)
        metrics.show(catalogue.APPLY_LAST_SUCCESS, report.applier.succeeded_at)
        self._pending = report.pending
        metrics.set(catalogue.PENDING_FILES, self._pending.files)
        metrics.set(catalogue.PENDING_BYTES, self._pending.bytes)
        metrics.show(
            catalogue.OLDEST_PENDING, None if self._pending.oldest_us is None else self._pending.oldest_us / 1e6
        )
        ways = Counter(table.way or _NO_WAY for table in report.tables)
        for way in catalogue.APPLY_TABLES.labels["way"]:
            metrics.set(catalogue.APPLY_TABLES, ways[way], way=way)
        self._export_watermarks(report, ingested_at)
        self._export_problems(report.tables)
        for table in report.tables:
            if (table.schema, table.label) in self._named:
                of = {"schema": table.schema, "table": table.label}
                metrics.show_table(catalogue.TABLE_FILES, table.files, **of)
                at = datetime.fromisoformat(table.verified_at).timestamp() if table.verified_at else None
                metrics.show_table(catalogue.TABLE_VERIFIED, at, **of)
                metrics.show_table(catalogue.TABLE_VERIFIED_LSN, table.verified_through_lsn or None, **of)

    def export_freshness(self, flush_seconds: float | None, *, now: float) -> None:
        """Exports how old the oldest change is that tables lack, over tables, when ingest itself is
        behind by `flush_seconds`. Nothing is exported while there is no table or no age.
        """
        of_tables = (None if at_us is None else at_us / 1e6 for at_us in self._pending.live.values())
        ages = sorted(age for at in of_tables if (age := oldest(flush_seconds, at, now=now)) is not None)
        for name, share in _QUANTILES:
            age = ages[min(len(ages) - 1, int(share * len(ages)))] if ages else None
            self._metrics.show(catalogue.APPLY_FRESHNESS, age, quantile_of_tables=name)

    def _export_problems(self, tables: Iterable[TableReport]) -> None:
        """A series for each table with a problem: an alert names the table, and a second table alerts
        although a first one does.
        """
        found = sorted((table.schema, table.label, reason) for table in tables if (reason := table.problem))
        counts: dict[tuple[str, str, str], int] = dict.fromkeys(found[:_PROBLEMS_NAMED], 1)
        for _, _, reason in found[_PROBLEMS_NAMED:]:
            counts[OTHER, OTHER, reason] = counts.get((OTHER, OTHER, reason), 0) + 1
        for schema, name, reason in self._problems - counts.keys():
            self._metrics.show(catalogue.TABLE_PROBLEM, None, schema=schema, table=name, reason=reason)
        for (schema, name, reason), count in counts.items():
            self._metrics.set(catalogue.TABLE_PROBLEM, count, schema=schema, table=name, reason=reason)
        self._problems = set(counts)

    def _export_watermarks(self, report: Report, ingested_at: float | None) -> None:
        known = {
            (table.schema_name, keys.target_key(table.table_name, table.target_name)): key
            for key, table in report.lake.tables.items()
            if table.state != "detached"
        }
        for schema, name in self._named - known.keys():
            self._metrics.forget_table(schema, name)
        self._named = set(known)
        for (schema, name), key in known.items():
            at = None
            if key in self._pending.live and ingested_at is not None:
                oldest_us = self._pending.live[key]
                at = ingested_at if oldest_us is None else min(ingested_at, oldest_us / 1e6)
            self._metrics.show_table(catalogue.TABLE_WATERMARK, at, schema=schema, table=name)
