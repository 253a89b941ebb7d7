"""Does the lake follow, and is every table what it claims to be: the applier, the backlog, tables,
snapshots.
"""

from deploy.monitoring.model import Alert, Threshold, one
from deploy.monitoring.promql import over, risen, total, worst
from sluice.telemetry import catalogue as known

SILENCE = Threshold(
    "applySilenceSeconds",
    1800,
    "time since the applier last committed a window or found nothing to do; three times a schedule, where it has one",
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
PENDING_LEAST = worst(over("min_over_time", one(known.PENDING_BYTES), "1h"))
PENDING_GROWTH = worst(over("delta", one(known.PENDING_BYTES), "1h"))
GROWING = f"{PENDING_LEAST} > {BACKLOG_BYTES} and on (pipeline) {PENDING_GROWTH} > 0"
SNAPSHOT_READ = total(over("increase", one(known.SNAPSHOT_BYTES), "15m"))

ALERTS = (
    Alert(
        "SluiceApplierDown",
        "critical",
        f"{worst(one(known.PROBLEMS, code='applier.dead'))} > 0",
        "5m",
        "The applier of pipeline {{ $labels.pipeline }} is gone",
        "It ran and has stopped reporting. It does not run, or it hangs. The source is not affected; "
        "the lake falls behind.",
    ),
    Alert(
        "SluiceApplyNotSucceeding",
        "critical",
        f"time() - {worst(one(known.APPLY_LAST_SUCCESS))} > {SILENCE}",
        "5m",
        "The applier of pipeline {{ $labels.pipeline }} has made no progress for {{ $value | humanizeDuration }}",
        "In that time it has neither committed a window nor found that there is nothing to do. The lake falls behind.",
    ),
    Alert(
        "SluiceApplyFailing",
        "warning",
        f"{FAILED} > {FAILURES} or on (pipeline) {RESTARTED} > {FAILURES}",
        "5m",
        "The applier of pipeline {{ $labels.pipeline }} keeps failing",
        "Windows fail and are tried again, or the applier ends and is started again. Tables without "
        "problems continue meanwhile.",
        held="10m",
    ),
    Alert(
        "SluiceApplyConflicts",
        "warning",
        total(risen(one(known.APPLY_CONFLICTS), "1h"), "kind") + " > 0",
        "0m",
        "Another program writes the Delta tables of pipeline {{ $labels.pipeline }}",
        "A commit met a commit of another writer ({{ $labels.kind }}). Only one applier may write these "
        "tables, and on S3 a second one can overwrite commits.",
        held="15m",
    ),
    Alert(
        "SluiceSpoolBacklog",
        "warning",
        f"time() - {worst(one(known.OLDEST_PENDING))} > {BACKLOG_AGE} or on (pipeline) ({GROWING})",
        "10m",
        "The lake of pipeline {{ $labels.pipeline }} is behind its spool",
        "Changes are durable in the spool and wait too long for the applier, or their number grows each hour.",
    ),
    Alert(
        "SluiceTableStale",
        "critical",
        f"{worst(one(known.PROBLEMS, code='table.stale'))} > 0",
        "0m",
        "{{ $value }} tables of pipeline {{ $labels.pipeline }} do not equal the source",
        "Something happened that the stream cannot carry, so the lake tables are known to differ "
        "from the source. The reason is in `sluice tables --state stale`.",
    ),
    Alert(
        "SluiceTableQuarantined",
        "warning",
        f"{worst(one(known.PROBLEMS, code='table.quarantined'))} > 0",
        "0m",
        "{{ $value }} tables of pipeline {{ $labels.pipeline }} are not carried",
        "Their shape or their replica identity cannot be followed exactly, so they are left out. "
        "The reason is in `sluice tables --state quarantined`.",
    ),
    Alert(
        "SluiceSnapshotStalled",
        "warning",
        f"time() - {worst(one(known.SNAPSHOT_START))} > {SNAPSHOT_STALL} unless on (pipeline) {SNAPSHOT_READ} > 0",
        "5m",
        "The snapshot of pipeline {{ $labels.pipeline }} does not move",
        "It began {{ $value | humanizeDuration }} ago and has read nothing for 15 minutes. Its "
        "tables are not complete until it is finished.",
    ),
)
