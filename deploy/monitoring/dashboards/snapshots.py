"""Snapshots: how far those of new and of resynced tables have come."""

from deploy.monitoring.dashboards.ingest import quantiles
from deploy.monitoring.dashboards.panels import RATE, Dashboard, Panel, Query, Row, shown
from deploy.monitoring.promql import over, total, worst
from sluice.telemetry import catalogue as known

_NO_SNAPSHOT = "absent while no snapshot is under way"

BOARD = Dashboard(
    "sluice-snapshots",
    "Sluice / Snapshots",
    "How far the snapshots of new and of resynced tables have come.",
    (
        Row(
            "Progress",
            (
                Panel(
                    title="Tables",
                    description="Tables of the present or last round: still to come, being read, finished.",
                    kind="bargauge",
                    unit="none",
                    queries=(Query(total(shown(known.SNAPSHOT_TABLES), "state"), "{{pipeline}} {{state}}"),),
                    width=8,
                    height=6,
                ),
                Panel(
                    title="Rows expected",
                    description="The server's estimate of the rows of all tables of the round (from its "
                    "statistics; it may be far off).",
                    kind="stat",
                    unit="short",
                    queries=(Query(worst(shown(known.SNAPSHOT_ESTIMATED_ROWS))),),
                    width=5,
                    height=6,
                ),
                Panel(
                    title="Time left",
                    description="At the rate so far.",
                    kind="stat",
                    unit="s",
                    queries=(Query(worst(shown(known.SNAPSHOT_ETA))),),
                    width=5,
                    height=6,
                    quiet=_NO_SNAPSHOT,
                ),
                Panel(
                    title="Under way for",
                    description="Time since the present round began.",
                    kind="stat",
                    unit="s",
                    queries=(Query(f"time() - {worst(shown(known.SNAPSHOT_START))}"),),
                    width=6,
                    height=6,
                    quiet=_NO_SNAPSHOT,
                ),
                Panel(
                    title="Waits for the source",
                    description="1 while snapshots wait because the source is above this limit "
                    "(source.snapshot_max_*), or because its load cannot be measured.",
                    unit="none",
                    queries=(Query(worst(shown(known.SNAPSHOT_WAITING), "signal"), "{{pipeline}} {{signal}}"),),
                    height=6,
                ),
            ),
        ),
        Row(
            "Throughput",
            (
                Panel(
                    title="Rows read",
                    description="Rows read and written to the spool.",
                    unit="rowsps",
                    queries=(Query(total(over("rate", shown(known.SNAPSHOT_ROWS), RATE))),),
                ),
                Panel(
                    title="Bytes read",
                    description="Bytes received from the server, and written to the spool as segments of snapshots.",
                    unit="Bps",
                    queries=(
                        Query(total(over("rate", shown(known.SNAPSHOT_BYTES), RATE)), "{{pipeline}} received"),
                        Query(
                            total(over("rate", shown(known.SPOOL_BYTES, kind="snapshot"), RATE)), "{{pipeline}} written"
                        ),
                    ),
                ),
                Panel(
                    title="Time of a table",
                    description="How long the snapshot of one table took.",
                    unit="s",
                    queries=quantiles(known.SNAPSHOT_DURATION),
                ),
            ),
        ),
    ),
)
