"""Does the pipeline harm the source, and is the slot in danger: retained WAL, headroom, vacuum."""

from deploy.monitoring.model import Alert, Threshold, one
from deploy.monitoring.promql import least, over, worst
from sluice.health.verdict import CARRYING
from sluice.telemetry import catalogue as known

HEADROOM_WARNING = Threshold("walHeadroomWarningPercent", 40, "share of max_slot_wal_keep_size that is left")
HEADROOM_CRITICAL = Threshold("walHeadroomCriticalPercent", 20, "share of max_slot_wal_keep_size that is left")
FORECAST = Threshold(
    "slotForecastSeconds",
    14400,
    "time until the slot may be lost, by the trend of the last hour or, for a slot that does not "
    "move, by the rate of WAL",
)
RETAINED = Threshold("walRetainedBytes", 53687091200, "WAL kept for the slot on a server that sets no limit (50 GiB)")
XMIN_AGE = Threshold("catalogXminAge", 100000000, "age of the slot's catalog_xmin in transactions")
PREPARED = Threshold("preparedTransactionSeconds", 900, "age of the oldest prepared transaction that has not ended")

THRESHOLDS = (HEADROOM_WARNING, HEADROOM_CRITICAL, FORECAST, RETAINED, XMIN_AGE, PREPARED)

LOST = f"{worst(over('last_over_time', one(known.PROBLEMS, code='slot.lost'), '6h'))} > 0"
CARRYING_NOW = f"{worst(one(known.HEALTH, state=CARRYING))} == 1"
HEADROOM = f"100 * {least(one(known.SLOT_SAFE))} / {least(one(known.SLOT_KEEP_LIMIT))}"
TREND = f"{least(f'predict_linear({one(known.SLOT_SAFE)}[1h], {FORECAST})')} < 0"
STANDING = f"{worst(over('changes', one(known.CONFIRMED_FLUSH_LSN), '10m'))} == 0"

ALERTS = (
    Alert(
        "SluiceSlotLost",
        "critical",
        # The process stops for this reason, so that its last word has to do until the pipeline runs
        # again.
        f"{LOST} unless on (pipeline) ({CARRYING_NOW})",
        "0m",
        "The replication slot of pipeline {{ $labels.pipeline }} is lost",
        "The server has invalidated or dropped it. The changes after the last acknowledged position "
        "are not available any more. The pipeline has stopped (exit code 7) and does not recover by "
        "itself. The tables need new snapshots under a new slot.",
    ),
    Alert(
        "SluiceSlotUnreserved",
        "critical",
        f"{worst(one(known.PROBLEMS, code='slot.unreserved'))} > 0",
        "0m",
        "The replication slot of pipeline {{ $labels.pipeline }} is about to be lost",
        "The server no longer promises to keep the WAL that the slot needs: the next checkpoint may remove it.",
        held="5m",
    ),
    Alert(
        "SluiceWalHeadroomLow",
        "warning",
        f"{HEADROOM} < {HEADROOM_WARNING}",
        "15m",
        'The slot of pipeline {{ $labels.pipeline }} has {{ $value | printf "%.0f" }} % of its WAL limit left',
        "The server keeps WAL for the slot up to max_slot_wal_keep_size and then invalidates the slot.",
    ),
    Alert(
        "SluiceWalHeadroomCritical",
        "critical",
        f"{HEADROOM} < {HEADROOM_CRITICAL}",
        "5m",
        'The slot of pipeline {{ $labels.pipeline }} has only {{ $value | printf "%.0f" }} % of its WAL limit left',
        "The server keeps WAL for the slot up to max_slot_wal_keep_size and then invalidates the "
        "slot. Every table would then need a new snapshot.",
    ),
    Alert(
        "SluiceWalHeadroomPredicted",
        "warning",
        f"{TREND} or on (pipeline) ({least(one(known.SLOT_SECONDS_LEFT))} < {FORECAST} and on (pipeline) {STANDING})",
        "15m",
        "The slot of pipeline {{ $labels.pipeline }} will be lost within hours if nothing changes",
        "Either its headroom has been shrinking for an hour towards zero, or the slot does not "
        "advance at all while the server writes WAL.",
    ),
    Alert(
        "SluiceWalUnbounded",
        "warning",
        f"{worst(one(known.SLOT_RETAINED))} > {RETAINED} and on (pipeline) {worst(one(known.SLOT_UNBOUNDED))} == 1",
        "10m",
        "The server keeps {{ $value | humanize1024 }}B of WAL for pipeline {{ $labels.pipeline }}, without a limit",
        "max_slot_wal_keep_size is -1. Only the size of the server's disk limits the WAL; when it is "
        "full, the database stops.",
    ),
    Alert(
        "SluiceSlotInactive",
        "critical",
        f"{worst(one(known.PROBLEMS, code='slot.inactive'))} > 0",
        "5m",
        "Nobody uses the slot of pipeline {{ $labels.pipeline }}",
        "Ingest reports that it streams and the server answers, but no walsender serves the slot. WAL "
        "is kept and nothing is received.",
        held="10m",
    ),
    Alert(
        "SluiceXminAge",
        "warning",
        f"{worst(one(known.SLOT_XMIN_AGE))} > {XMIN_AGE}",
        "30m",
        "The slot of pipeline {{ $labels.pipeline }} holds back vacuum",
        "Its catalog_xmin is {{ $value | humanize }} transactions old. Dead rows of the system "
        "catalogs cannot be removed, in every database of the server.",
    ),
    Alert(
        "SluicePreparedTransactionOpen",
        "warning",
        f"{worst(one(known.PREPARED_AGE))} > {PREPARED}",
        "0m",
        "A prepared transaction of pipeline {{ $labels.pipeline }} has been open for {{ $value | humanizeDuration }}",
        "Its changes wait in the spool. Until it is committed or rolled back it keeps locks, holds "
        "back WAL and vacuum, and new snapshots cannot begin.",
        held="5m",
    ),
)
