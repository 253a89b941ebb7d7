"""Apply and tables: the backlog, the windows, how they are committed, and every table's watermark."""

from deploy.monitoring.alerts.lake import BACKLOG_AGE, SILENCE
from deploy.monitoring.dashboards.ingest import quantiles
from deploy.monitoring.dashboards.panels import GREEN, RATE, RED, Dashboard, Panel, Query, Row, shown
from deploy.monitoring.promql import least, over, total, worst
from sluice.telemetry import catalogue as known

BACKLOG_ROW = Row(
    "Backlog",
    (
        Panel(
            title="Since the applier last achieved something",
            description="Time since it committed a window or found nothing to do, from its records in the object "
            "store.",
            kind="stat",
            unit="s",
            queries=(Query(f"time() - {worst(shown(known.APPLY_LAST_SUCCESS))}"),),
            steps=((None, GREEN), (SILENCE.default, RED)),
            width=6,
            height=6,
        ),
        Panel(
            title="Oldest change that waits",
            description="Age of the oldest change that is in the spool and not in the lake.",
            kind="stat",
            unit="s",
            queries=(Query(f"time() - {least(shown(known.OLDEST_PENDING))}"),),
            steps=((None, GREEN), (BACKLOG_AGE.default, RED)),
            width=6,
            height=6,
            quiet="absent while nothing waits",
        ),
        Panel(
            title="Entries that wait",
            description="Manifest entries that the lake is behind, over the tables that are followed.",
            unit="none",
            queries=(Query(worst(shown(known.APPLY_PENDING))),),
            width=6,
            height=6,
        ),
        Panel(
            title="Bytes that wait",
            description="Size of the segment files that are in the manifest and not in the lake.",
            unit="bytes",
            queries=(Query(worst(shown(known.PENDING_BYTES))),),
            width=6,
            height=6,
        ),
    ),
)

WINDOWS_ROW = Row(
    "Windows",
    (
        Panel(
            title="Windows by outcome",
            description="committed, empty (nothing for the lake), stale (the table cannot follow), failed (tried "
            "again).",
            unit="ops",
            queries=(Query(total(over("rate", shown(known.APPLY_RUNS), RATE), "outcome"), "{{pipeline}} {{outcome}}"),),
            stacked=True,
        ),
        Panel(
            title="Rows applied",
            description="Change rows taken into the lake; snapshot are rows of snapshots.",
            unit="ops",
            queries=(Query(total(over("rate", shown(known.APPLY_ROWS), RATE), "op"), "{{pipeline}} {{op}}"),),
            stacked=True,
        ),
        Panel(
            title="Time of a window, by phase",
            description="read fetches and checks segments, schema alters the table, merge folds and commits, "
            "total is all of it. Parts of merge: find looks for rows to replace, write makes files, commit.",
            unit="s",
            queries=quantiles(known.APPLY_DURATION, "phase"),
        ),
        Panel(
            title="Workers",
            description="Windows that are being applied, and how many more could be (apply.workers).",
            unit="none",
            queries=(Query(total(shown(known.APPLY_WORKERS), "state"), "{{pipeline}} {{state}}"),),
            stacked=True,
        ),
        Panel(
            title="Commits that met another writer",
            description="Only one applier may write these tables: fresh_look is a foreign commit that a direct commit "
            "met and followed, concurrent one for which a window failed, fenced another applier that took over.",
            unit="short",
            queries=(
                Query(total(over("increase", shown(known.APPLY_CONFLICTS), RATE), "kind"), "{{pipeline}} {{kind}}"),
            ),
            quiet="nobody else writes the tables",
        ),
        Panel(
            title="Restarts and lease",
            description="How many times `sluice up` restarted its applier, and whether an applier holds the lease.",
            unit="none",
            queries=(
                Query(total(over("increase", shown(known.APPLY_RESTARTS), RATE)), "{{pipeline}} restarts"),
                Query(worst(shown(known.APPLY_LEASE)), "{{pipeline}} lease"),
            ),
        ),
    ),
)

WAYS_ROW = Row(
    "Ways to commit",
    (
        Panel(
            title="Windows by way",
            description="Committed windows of changes: direct (without a Spark job), distributed (on the executors), "
            "merge (a statement of Spark). `sluice tables` says why a table is not committed directly.",
            unit="ops",
            queries=(Query(total(over("rate", shown(known.APPLY_WINDOWS), RATE), "way"), "{{pipeline}} {{way}}"),),
            stacked=True,
        ),
        Panel(
            title="Time of a window, by way",
            description="From the hand-over to a worker to the commit. none: snapshots, and windows with nothing to "
            "commit.",
            unit="s",
            queries=quantiles(known.APPLY_DURATION, "way", phase="total"),
        ),
        Panel(
            title="Tables by way",
            description="How the newest changes of each table were committed; none: no changes since the snapshot.",
            kind="bargauge",
            unit="none",
            queries=(Query(total(shown(known.APPLY_TABLES), "way"), "{{pipeline}} {{way}}"),),
        ),
        Panel(
            title="Searched data files",
            description="Data files whose keys direct commits searched: hit were kept from an earlier window, miss "
            "were read from the data file. Many misses under a steady load: apply.key_cache is too small.",
            unit="ops",
            queries=(
                Query(total(over("rate", shown(known.APPLY_KEY_LOOKUPS), RATE), "result"), "{{pipeline}} {{result}}"),
            ),
            stacked=True,
        ),
        Panel(
            title="Kept keys",
            description="Keys of data files that are kept between windows, in memory up to apply.key_cache, and on "
            "local disk.",
            unit="bytes",
            queries=(Query(total(shown(known.APPLY_KEY_BYTES), "where"), "{{pipeline}} {{where}}"),),
            stacked=True,
        ),
        Panel(
            title="Tables with the most data files",
            description="Data files in the newest version of each lake table whose newest changes were committed "
            "directly. Finding rows takes longer with more files.",
            unit="none",
            queries=(
                Query(
                    f"topk(10, {worst(shown(known.TABLE_FILES), 'schema', 'table')})",
                    "{{pipeline}} {{schema}}.{{table}}",
                ),
            ),
            quiet="no table has been committed directly yet",
        ),
    ),
)

MAINTENANCE_ROW = Row(
    "Maintenance of lake tables",
    (
        Panel(
            title="Turns of maintenance",
            description="tidy counts the files of a table and puts them in order, vacuum removes those that no version "
            "needs, checkpoint writes one in parallel with windows. failed: the problem "
            "table.maintenance names the table; interrupted: windows had precedence.",
            unit="ops",
            queries=(
                Query(
                    total(over("rate", shown(known.MAINTENANCE_TURNS), RATE), "turn", "outcome"),
                    "{{pipeline}} {{turn}} {{outcome}}",
                ),
                Query(total(over("rate", shown(known.MAINTENANCE_RUNS), RATE), "task"), "{{pipeline}} ran {{task}}"),
            ),
        ),
        Panel(
            title="Share of one worker's time",
            description="The time that maintenance takes. apply.maintenance_share limits it, except for "
            "checkpoints, which take no worker.",
            unit="percentunit",
            queries=(
                Query(total(over("rate", shown(known.MAINTENANCE_SECONDS), RATE), "turn"), "{{pipeline}} {{turn}}"),
            ),
            stacked=True,
        ),
        Panel(
            title="Versions since the newest checkpoint",
            description="For the lake table that has the most: readers start from a checkpoint and read each "
            "version after it. A checkpoint is due after 50 to 99 versions.",
            unit="none",
            queries=(Query(worst(shown(known.CHECKPOINT_LAG)), "{{pipeline}}"),),
        ),
        Panel(
            title="Files and bytes of maintenance",
            description="Data files that it took out of lake tables (vacuum: out of the "
            "store) and added, and their bytes.",
            unit="none",
            queries=(
                Query(
                    total(over("increase", shown(known.MAINTENANCE_FILES), RATE), "task", "change"),
                    "{{pipeline}} {{task}} {{change}} files",
                ),
                Query(
                    total(over("increase", shown(known.MAINTENANCE_BYTES), RATE), "task", "change"),
                    "{{pipeline}} {{task}} {{change}} bytes",
                ),
            ),
        ),
    ),
)

TABLES_ROW = Row(
    "Tables",
    (
        Panel(
            title="Tables by state",
            description="The worse of the states that ingest and applier report for each table.",
            kind="bargauge",
            unit="none",
            queries=(Query(total(shown(known.TABLES), "state"), "{{pipeline}} {{state}}"),),
            width=8,
            height=9,
        ),
        Panel(
            title="Tables that are furthest behind",
            description="Time since the moment of the source through which each lake table is complete; it "
            "advances for idle tables too.",
            unit="s",
            queries=(
                Query(
                    f"topk(10, time() - {worst(shown(known.TABLE_WATERMARK), 'schema', 'table')})",
                    "{{pipeline}} {{schema}}.{{table}}",
                ),
            ),
            width=16,
            height=9,
        ),
        Panel(
            title="Changes of shape",
            description="Changes of a table's columns or identity, and whether the lake can follow.",
            unit="short",
            queries=(
                Query(
                    total(over("increase", shown(known.SCHEMA_CHANGES), RATE), "kind", "outcome"),
                    "{{pipeline}} {{kind}} {{outcome}}",
                ),
            ),
            width=8,
            quiet="no table has changed its shape",
        ),
        Panel(
            title="Transitions of tables",
            description="How many times ingest put a table into a state.",
            unit="short",
            queries=(
                Query(total(over("increase", shown(known.TABLE_EVENTS), RATE), "state"), "{{pipeline}} {{state}}"),
            ),
            width=8,
            quiet="no table has changed its state since the process began to be scraped",
        ),
        Panel(
            title="Tables read again",
            description="New snapshots of tables that had one, by cause.",
            unit="short",
            queries=(Query(total(over("increase", shown(known.RESYNCS), RATE), "cause"), "{{pipeline}} {{cause}}"),),
            width=8,
            quiet="no table was read again",
        ),
    ),
)

BOARD = Dashboard(
    "sluice-apply",
    "Sluice / Apply and tables",
    "From the spool to the lake: the backlog, the windows, and every table.",
    (BACKLOG_ROW, WINDOWS_ROW, WAYS_ROW, MAINTENANCE_ROW, TABLES_ROW),
)
