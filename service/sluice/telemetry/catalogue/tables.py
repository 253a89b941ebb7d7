"""Snapshots of tables, their states and their schemas."""

from sluice.contract import evolution
from sluice.contract.resyncs import Cause
from sluice.contract.table_state import State
from sluice.telemetry.catalogue.metric import OPEN, Counter, Gauge, Histogram

_LONG_SECONDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 14400.0)

_SNAPSHOT = "Snapshots"
SNAPSHOT_TABLES = Gauge(
    "sluice_snapshot_tables",
    "Tables of the present or last round of snapshots: still to come, being read, finished.",
    _SNAPSHOT,
    {"state": ("waiting", "reading", "done")},
)
SNAPSHOT_ROWS = Counter("sluice_snapshot_rows_total", "Rows read.", _SNAPSHOT)
SNAPSHOT_BYTES = Counter("sluice_snapshot_bytes_total", "Bytes received.", _SNAPSHOT)
SNAPSHOT_ESTIMATED_ROWS = Gauge(
    "sluice_snapshot_estimated_rows",
    "The server's estimate of the rows of all tables of the round, finished ones included.",
    _SNAPSHOT,
)
SNAPSHOT_START = Gauge(
    "sluice_snapshot_start_timestamp_seconds", "When the present round began; absent without one.", _SNAPSHOT
)
SNAPSHOT_ETA = Gauge(
    "sluice_snapshot_eta_seconds",
    "Time until the present round is finished at its rate so far; absent without one and while it is not known.",
    _SNAPSHOT,
)
SNAPSHOT_WAITING = Gauge(
    "sluice_snapshot_waiting",
    "1 while snapshots wait because the source is above this limit (source.snapshot_max_*), or "
    "because its load cannot be measured.",
    _SNAPSHOT,
    {"signal": ("stream_lag", "replica_lag", "active_sessions")},
)
SNAPSHOT_DURATION = Histogram(
    "sluice_snapshot_table_duration_seconds",
    "Time of the snapshot of one table.",
    _SNAPSHOT,
    buckets=_LONG_SECONDS,
)

_TABLES = "Tables and schemas"
_STATES = tuple(state.value for state in State)
TABLES = Gauge(
    "sluice_tables",
    "Tables by state; the worse of the states that ingest and applier report.",
    _TABLES,
    {"state": _STATES},
)
TABLE_EVENTS = Counter(
    "sluice_table_transitions_total", "How many times ingest put a table into a state.", _TABLES, {"state": _STATES}
)
RESYNCS = Counter(
    "sluice_table_resyncs_total",
    "Tables that began again with a new snapshot, by cause. All causes except `request` begin without an operator.",
    _TABLES,
    {"cause": tuple(cause.value for cause in Cause)},
)
SCHEMA_CHANGES = Counter(
    "sluice_schema_changes_total",
    "Changes of a table's shape, and whether the lake can follow them; a change that it cannot follow "
    "makes the table stale.",
    _TABLES,
    {"kind": (*evolution.KINDS.values(), evolution.IGNORED, "other"), "outcome": ("followed", "stale")},
)
TABLE_FILES = Gauge(
    "sluice_apply_table_files",
    "Data files in the lake table. Present only if the newest window was committed directly, because "
    "direct commits count the files.",
    _TABLES,
    {"schema": OPEN, "table": OPEN},
)
TABLE_VERIFIED = Gauge(
    "sluice_verified_table_timestamp_seconds",
    "When a comparison found the lake table equal to the source. Absent for tables that were never found equal.",
    _TABLES,
    {"schema": OPEN, "table": OPEN},
)
TABLE_VERIFIED_LSN = Gauge(
    "sluice_verified_table_lsn_bytes",
    "The position of source and lake in that comparison.",
    _TABLES,
    {"schema": OPEN, "table": OPEN},
)
TABLE_WATERMARK = Gauge(
    "sluice_apply_table_watermark_timestamp_seconds",
    "Time of the source through which the lake table is complete; it advances for idle tables too. "
    "Absent for tables that are left out.",
    _TABLES,
    {"schema": OPEN, "table": OPEN},
)
TABLE_PROBLEM = Gauge(
    "sluice_table_problem",
    "1 for each table with a problem, by what it is: stale (known to differ from the source, until "
    "somebody resyncs it), waiting (also known to differ, but Sluice reads it again later), gap "
    "(changes were lost "
    "with the slot), unequal (a comparison found differences), unverified (it was not found equal for three "
    "intervals of the comparison), quarantined (left out, because it cannot be carried exactly), failing (its "
    "snapshot or its windows fail and are tried again). Absent for other tables. After the first 100 "
    "tables, all others are counted as schema and table `_other`.",
    _TABLES,
    {
        "schema": OPEN,
        "table": OPEN,
        "reason": ("stale", "waiting", "gap", "unequal", "unverified", "quarantined", "failing"),
    },
)
