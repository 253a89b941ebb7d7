"""Does the lake follow, and is every table what it claims to be: the applier, the backlog, tables,
snapshots.
"""

from deploy.monitoring.alerts.presence import PAUSED_APPLIER
from deploy.monitoring.alerts.process import REPORT_OLD
from deploy.monitoring.model import Alert, Threshold, one
from deploy.monitoring.promql import over, risen, total, worst
from sluice.telemetry import catalogue as known

SILENCE = Threshold(
    "applySilenceSeconds",
    1800,
    "time since the applier last committed a window or found nothing to do",
)
FAILURES = Threshold("applyFailures", 3, "windows that failed, or restarts of the applier, within 15 minutes")
BACKLOG_AGE = Threshold("backlogSeconds", 900, "age of the oldest change that is in the spool and not in the lake")
BACKLOG_BYTES = Threshold(
    "backlogBytes", 1073741824, "bytes of segments that the lake lacks, when they have also grown for an hour (1 GiB)"
)
SNAPSHOT_STALL = Threshold("snapshotStallSeconds", 900, "age of a snapshot that has read nothing for 15 minutes")

THRESHOLDS = (SILENCE, FAILURES, BACKLOG_AGE, BACKLOG_BYTES, SNAPSHOT_STALL)

FAILED = total(over("increase", one(known.APPLY_RUNS, outcome="failed"), "15m"))
RESTARTED = total(over("increase", one(known.APPLY_RESTARTS), "15m"))
FLEET_RESTARTED = total(over("increase", one(known.FLEET_RESTARTS, part="apply"), "15m"))
REFUSED = total(risen(one(known.APPLY_CONFLICTS, kind=("concurrent", "fenced")), "1h"))
OLD = f"time() - {worst(one(known.OLDEST_PENDING))} > {BACKLOG_AGE}"
PENDING_LEAST = worst(over("min_over_time", one(known.PENDING_BYTES), "1h"))
PENDING_GROWTH = worst(over("delta", one(known.PENDING_BYTES), "1h"))
GROWING = f"{PENDING_LEAST} > {BACKLOG_BYTES} and on (pipeline) {PENDING_GROWTH} > 0"
SILENT = f"time() - {worst(one(known.APPLY_LAST_SUCCESS))} > {SILENCE} unless on (pipeline) {REPORT_OLD}"
SNAPSHOT_READ = total(over("increase", one(known.SNAPSHOT_BYTES), "15m"))

PAGED = ("stale", "gap", "unequal")
TICKETED = ("waiting", "quarantined", "failing", "unverified")
"""Reasons for which a table is named: those that a person has to end now, and the others."""

SAID_NOWHERE_ELSE = (
    "catalog.unexamined",
    "spool.upkeep",
    "table.path",
    "table.maintenance",
    "table.catalog",
    "verify.unreadable",
    "configuration.refused",
    "applier.other",
    "applier.clock",
)
"""Problems that nothing else alerts for: each stays until somebody acts."""


def _tables(reasons: tuple[str, ...]) -> str:
    return f"{worst(one(known.TABLE_PROBLEM, reason=reasons), 'schema', 'table', 'reason')} > 0"


ALERTS = (
    Alert(
        "SluiceApplierDown",
        "critical",
        # While ingest cannot read the applier's records, their age says nothing; another alert says so.
        f"({worst(one(known.PROBLEMS, code='applier.dead'))} > 0 or on (pipeline) {SILENT}) unless on (pipeline) "
        f"{PAUSED_APPLIER}",
        "5m",
        "The applier of pipeline {{ $labels.pipeline }} does not run or makes no progress",
        "The applier no longer renews its lease, or for a long time it has neither committed a window nor found that "
        "there is nothing to do. The source is not affected; the lake falls behind.",
        # As long as a lake that comes back needs to catch up.
        held="15m",
    ),
    Alert(
        "SluiceTableUnequal",
        "critical",
        _tables(PAGED),
        "5m",
        "{{ $labels.schema }}.{{ $labels.table }} of pipeline {{ $labels.pipeline }} differs from its source",
        "The lake table is known to differ from the source ({{ $labels.reason }}), and Sluice does "
        "not read it again by itself. All other tables continue. `sluice tables` has the full reason.",
        held="15m",
    ),
    Alert(
        "SluiceTableNotFollowed",
        "warning",
        _tables(TICKETED),
        "15m",
        "{{ $labels.schema }}.{{ $labels.table }} of pipeline {{ $labels.pipeline }} is not followed",
        "The table is {{ $labels.reason }}: quarantined (it cannot be carried exactly, so it is left out), "
        "failing (its snapshot or its windows fail and are tried again), waiting (its lake table "
        "differs from the source, and Sluice reads it again later) or unverified (continuous "
        "comparison has not found it equal for a long time). `sluice tables` has the full reason.",
        held="15m",
    ),
    Alert(
        "SluiceProblemStays",
        "warning",
        f"{worst(one(known.PROBLEMS, code=SAID_NOWHERE_ELSE), 'code')} > 0",
        "30m",
        "Pipeline {{ $labels.pipeline }} has the problem {{ $labels.code }} and does not recover from it",
        "Changes are still carried. `sluice status` says what is wrong and what to do. The codes: "
        "catalog.unexamined (PostgreSQL's catalog cannot be read, so tables do not become complete any further), "
        "spool.upkeep (the applier cannot archive or prune the spool), table.path (the lake path that a table's name "
        "gives belongs to another table), table.maintenance (a lake table is not maintained), "
        "table.catalog (a lake table lacks its name in the catalog), "
        "verify.unreadable (the results of comparisons cannot be read), configuration.refused (an "
        "edited configuration is not in force), applier.other (another applier works on the pipeline than the one that "
        "was started with ingest), applier.clock (the applier's clock is ahead).",
        held="15m",
    ),
    Alert(
        "SluiceApplyFailing",
        "warning",
        f"{FAILED} > {FAILURES} or on (pipeline) {RESTARTED} > {FAILURES} or on (pipeline) "
        f"{FLEET_RESTARTED} > {FAILURES} or on (pipeline) {REFUSED} > 0",
        "5m",
        "The applier of pipeline {{ $labels.pipeline }} keeps failing",
        "Windows fail and are tried again, the applier ends and is started again, or another program writes "
        "the same Delta tables, which on S3 can overwrite commits. Tables without problems continue meanwhile.",
        held="10m",
    ),
    Alert(
        "SluiceLakeBehind",
        "warning",
        f"({OLD} or on (pipeline) ({GROWING})) unless on (pipeline) {PAUSED_APPLIER}",
        "10m",
        "The lake of pipeline {{ $labels.pipeline }} is behind its spool",
        "Changes are durable in the spool but wait too long for the applier, or their number grows each hour.",
    ),
    Alert(
        "SluiceSnapshotStalled",
        "warning",
        f"time() - {worst(one(known.SNAPSHOT_START))} > {SNAPSHOT_STALL} unless on (pipeline) {SNAPSHOT_READ} > 0",
        "5m",
        "The snapshot of pipeline {{ $labels.pipeline }} makes no progress",
        "A snapshot began {{ $value | humanizeDuration }} ago and has read nothing for 15 minutes. Its "
        "tables are not complete until it is finished.",
    ),
)
