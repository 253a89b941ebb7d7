"""Ingest: transactions, memory and back-pressure, flushes, the object store, the process itself."""

from deploy.monitoring.dashboards.panels import RATE, Dashboard, Panel, Query, Row, shown
from deploy.monitoring.promql import over, total, worst
from sluice.telemetry import catalogue as known
from sluice.telemetry.catalogue import Histogram


def quantiles(metric: Histogram, *labels: str, **only: str) -> tuple[Query, ...]:
    """The middle and the slow end of a histogram, for each value of `labels`, where the labels in `only`
    have that value.
    """
    named = " ".join(["{{pipeline}}", *(f"{{{{{label}}}}}" for label in labels)])
    summed = total(over("rate", shown.buckets(metric, **only), RATE), "le", *labels)
    return tuple(
        Query(f"histogram_quantile({share}, {summed})", f"{named} {name}")
        for share, name in ((0.5, "median"), (0.99, "99 %"))
    )


STREAM_ROW = Row(
    "Stream",
    (
        Panel(
            title="Transactions",
            description="Transactions taken from the stream, by how they ended.",
            unit="ops",
            queries=(
                Query(total(over("rate", shown(known.TRANSACTIONS), RATE), "outcome"), "{{pipeline}} {{outcome}}"),
            ),
        ),
        Panel(
            title="Rows, busiest tables",
            description="The ten tables with the most row changes made durable.",
            unit="ops",
            queries=(
                Query(
                    f"topk(10, {total(over('rate', shown(known.ROWS), RATE), 'schema', 'table')})",
                    "{{pipeline}} {{schema}}.{{table}}",
                ),
            ),
        ),
        Panel(
            title="Size of transactions",
            description="Row changes of a transaction that ended.",
            unit="short",
            queries=quantiles(known.TRANSACTION_ROWS),
        ),
        Panel(
            title="Time spent decoding",
            description="Share of a CPU that the decoding thread takes; at 100 % it is the limit.",
            unit="percentunit",
            queries=(Query(total(over("rate", shown(known.DECODE_SECONDS), RATE))),),
            least=0,
            most=1,
        ),
        Panel(
            title="Back-pressure",
            description="Share of the time in which the socket was left unread because decoding or uploading was "
            "behind.",
            unit="percentunit",
            queries=(
                Query(total(over("rate", shown(known.BACKPRESSURE_SECONDS), RATE), "cause"), "{{pipeline}} {{cause}}"),
            ),
            least=0,
            most=1,
        ),
        Panel(
            title="Values not sent",
            description="Large values that the server left out because an update had not changed them.",
            unit="ops",
            queries=(Query(total(over("rate", shown(known.UNCHANGED_VALUES), RATE))),),
        ),
    ),
)

MEMORY_ROW = Row(
    "Open transactions",
    (
        Panel(
            title="Bytes of open transactions",
            description="Rows of transactions that have not ended, in memory and staged in the object store.",
            unit="bytes",
            queries=(Query(worst(shown(known.REORDER_BYTES), "place"), "{{pipeline}} {{place}}"),),
        ),
        Panel(
            title="Share of the limits",
            description="In memory, past the limit rows go to the store; in the store, past limits.staged the "
            "pipeline stops.",
            unit="percentunit",
            queries=(
                Query(
                    f"{worst(shown(known.REORDER_BYTES), 'place')} / {worst(shown(known.REORDER_LIMIT), 'place')}",
                    "{{pipeline}} {{place}}",
                ),
            ),
            least=0,
            most=1,
        ),
        Panel(
            title="Open transactions",
            description="Transactions that have not ended and of which rows are held, and prepared ones that "
            "wait for their end.",
            unit="none",
            queries=(
                Query(worst(shown(known.REORDER_TRANSACTIONS)), "{{pipeline}} open"),
                Query(worst(shown(known.PREPARED)), "{{pipeline}} prepared"),
            ),
        ),
    ),
)

SPOOL_ROW = Row(
    "Spool",
    (
        Panel(
            title="Bytes written",
            description="Segment files: changes, rows of open transactions, snapshots.",
            unit="Bps",
            queries=(Query(total(over("rate", shown(known.SPOOL_BYTES), RATE), "kind"), "{{pipeline}} {{kind}}"),),
        ),
        Panel(
            title="Files and manifest entries",
            description="Segment files by kind, and manifest entries.",
            unit="ops",
            queries=(
                Query(total(over("rate", shown(known.SPOOL_FILES), RATE), "kind"), "{{pipeline}} files {{kind}}"),
                Query(total(over("rate", shown(known.SPOOL_ENTRIES), RATE)), "{{pipeline}} entries"),
            ),
        ),
        Panel(
            title="What caused flushes",
            description="Size limits, age, an idle advance, or being asked to.",
            unit="ops",
            queries=(Query(total(over("rate", shown(known.FLUSHES), RATE), "trigger"), "{{pipeline}} {{trigger}}"),),
            stacked=True,
        ),
        Panel(
            title="Time of a flush, by phase",
            description="encode closes the files, upload stores one, commit appends the manifest entry, total is "
            "all of it until it is durable.",
            unit="s",
            queries=quantiles(known.FLUSH_DURATION, "phase"),
            width=12,
        ),
        Panel(
            title="Flushes by duration",
            description="How many flushes took how long, until durable.",
            kind="heatmap",
            unit="s",
            queries=(
                Query(
                    f"sum by (le) (increase({shown.buckets(known.FLUSH_DURATION, phase='total')}[{RATE}]))",
                    "{{le}}",
                    heat=True,
                ),
            ),
            width=12,
        ),
        Panel(
            title="Size of files",
            description="Small files cost the applier more than large ones.",
            unit="bytes",
            queries=quantiles(known.SPOOL_FILE_BYTES),
        ),
        Panel(
            title="Requests to the object store",
            description="By operation and outcome, of ingest and applier. conflict and missing are ordinary answers.",
            unit="reqps",
            queries=(
                Query(
                    total(over("rate", shown(known.STORE_REQUESTS), RATE), "operation", "outcome"),
                    "{{pipeline}} {{operation}} {{outcome}}",
                ),
            ),
        ),
        Panel(
            title="Time of a request",
            description="Retries included.",
            unit="s",
            queries=quantiles(known.STORE_DURATION, "operation"),
        ),
    ),
)

PROCESS_ROW = Row(
    "Process",
    (
        Panel(
            title="Lateness of the event loop",
            description="How late timers run: the process is short of CPU, or something blocks it.",
            unit="s",
            queries=quantiles(known.EVENT_LOOP_LAG),
        ),
        Panel(
            title="Age of the loops",
            description="Time since each loop last went round. Liveness reads the same clock.",
            unit="s",
            queries=(Query(f"time() - {worst(shown(known.HEARTBEAT), 'loop')}", "{{pipeline}} {{loop}}"),),
        ),
        Panel(
            title="Time to render the metrics",
            description="Rendering holds the interpreter; telemetry.max_tables bounds it.",
            unit="s",
            queries=(Query(worst(shown(known.SCRAPE_DURATION))),),
        ),
    ),
)

BOARD = Dashboard(
    "sluice-ingest",
    "Sluice / Ingest",
    "From the socket to the manifest: transactions, memory, flushes, object store, process.",
    (STREAM_ROW, MEMORY_ROW, SPOOL_ROW, PROCESS_ROW),
)
