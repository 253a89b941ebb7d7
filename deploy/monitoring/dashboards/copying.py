"""Copy: how far the initial copy, or the copy of a stale table, has come."""

from deploy.monitoring.dashboards.ingest import quantiles
from deploy.monitoring.dashboards.panels import RATE, Dashboard, Panel, Query, Row, shown
from deploy.monitoring.promql import over, total, worst
from sluice.telemetry import catalogue as known

_NO_COPY = "absent while no copy is under way"

BOARD = Dashboard(
    "sluice-copy",
    "Sluice / Copy",
    "How far the initial copy, or the copy of a stale table, has come.",
    (
        Row(
            "Progress",
            (
                Panel(
                    title="Tables",
                    description="Tables of the present or last copy: still to come, being read, finished.",
                    kind="bargauge",
                    unit="none",
                    queries=(Query(total(shown(known.SNAPSHOT_TABLES), "state"), "{{pipeline}} {{state}}"),),
                    width=8,
                    height=6,
                ),
                Panel(
                    title="Rows expected",
                    description="The server's estimate of the rows of all tables of the copy (from its "
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
                    quiet=_NO_COPY,
                ),
                Panel(
                    title="Under way for",
                    description="Time since the present copy began.",
                    kind="stat",
                    unit="s",
                    queries=(Query(f"time() - {worst(shown(known.SNAPSHOT_START))}"),),
                    width=6,
                    height=6,
                    quiet=_NO_COPY,
                ),
            ),
        ),
        Row(
            "Throughput",
            (
                Panel(
                    title="Rows copied",
                    description="Rows read and written to the spool.",
                    unit="rowsps",
                    queries=(Query(total(over("rate", shown(known.SNAPSHOT_ROWS), RATE))),),
                ),
                Panel(
                    title="Bytes copied",
                    description="Bytes received from the server, and written to the spool as segments of copies.",
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
                    description="How long the copy of one table took.",
                    unit="s",
                    queries=quantiles(known.SNAPSHOT_DURATION),
                ),
            ),
        ),
    ),
)
