"""Is the slot in danger, and does the pipeline harm the source: retained WAL, open transactions, vacuum."""

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

STAGED = Threshold("stagedPercent", 80, "share of limits.staged that open transactions take; at 100 the pipeline stops")

THRESHOLDS = (HEADROOM_WARNING, HEADROOM_CRITICAL, FORECAST, RETAINED, XMIN_AGE, PREPARED, STAGED)

LOST = f"{worst(over('last_over_time', one(known.PROBLEMS, code='slot.lost'), '6h'))} > 0"
CARRYING_NOW = f"{worst(one(known.HEALTH, state=CARRYING))} == 1"
HEADROOM = f"100 * {least(one(known.SLOT_SAFE))} / {least(one(known.SLOT_KEEP_LIMIT))}"
DANGER = f"{worst(one(known.PROBLEMS, code=('slot.unreserved', 'slot.foreign')))} > 0"
TREND = (
    f"{least(f'predict_linear({one(known.SLOT_SAFE)}[1h], {FORECAST})')} < 0 and on (pipeline) {one(known.SLOT_SAFE)} "
    "offset 55m"
)
"""The trend of a whole hour: that of a few minutes is that of one load."""
FORECAST_SHORT = f"{least(one(known.SLOT_SECONDS_LEFT))} < {FORECAST}"
STANDING = (
    f"{worst(over('changes', one(known.CONFIRMED_FLUSH_LSN), '15m'))} == 0 and on (pipeline) "
    f"{one(known.CONFIRMED_FLUSH_LSN)} offset 15m"
)
STAGED_SHARE = (
    f"100 * {worst(one(known.REORDER_BYTES, place='store'))} / {worst(one(known.REORDER_LIMIT, place='store'))}"
)

ALERTS = (
    Alert(
        "SluiceSlotLost",
        "critical",
        # The process stops for this reason, so that its last word has to do until the pipeline runs
        # again.
        f"{LOST} unless on (pipeline) ({CARRYING_NOW})",
        "0m",
        "The replication slot of pipeline {{ $labels.pipeline }} is lost",
        "The slot was invalidated or dropped. The changes after the last acknowledged position are no "
        "longer available. The pipeline has stopped (exit code 7) and does not recover by itself. "
        "`sluice slot recreate` continues with a new slot.",
    ),
    Alert(
        "SluiceSlotEndangered",
        "critical",
        f"{DANGER} or on (pipeline) {HEADROOM} < {HEADROOM_CRITICAL} or on (pipeline) ({TREND}) or on (pipeline) "
        f"({FORECAST_SHORT} and on (pipeline) {STANDING})",
        "2m",
        "The slot of pipeline {{ $labels.pipeline }} will be lost within hours unless somebody acts",
        "The server keeps WAL for the slot up to max_slot_wal_keep_size, and the limit is near: little is left, or "
        "what is left shrinks too fast, or the slot does not advance while the server writes. Or another client uses "
        "the slot. If the slot is lost, the stream no longer has its changes, and "
        "every table must be compared with the source or read again.",
        held="10m",
    ),
    Alert(
        "SluiceWalHeadroomLow",
        "warning",
        f"{HEADROOM} < {HEADROOM_WARNING} or on (pipeline) "
        f"({worst(one(known.SLOT_RETAINED))} > {RETAINED} and on (pipeline) {worst(one(known.SLOT_UNBOUNDED))} == 1)",
        "15m",
        "The server keeps a lot of WAL for pipeline {{ $labels.pipeline }}",
        "Most of max_slot_wal_keep_size is used. Or there is no limit, and only the size of "
        "the server's disk limits the WAL: when the disk is full, the database stops.",
        held="5m",
    ),
    Alert(
        "SluiceTransactionOpen",
        "warning",
        f"{worst(one(known.PREPARED_AGE))} > {PREPARED} or on (pipeline) {STAGED_SHARE} > {STAGED} or on (pipeline) "
        f"{worst(one(known.SLOT_XMIN_AGE))} > {XMIN_AGE}",
        "5m",
        "A transaction at the source of pipeline {{ $labels.pipeline }} does not end",
        "A prepared transaction has been open for a long time, open transactions take most of limits.staged "
        "(at 100 % the pipeline stops), or the slot's catalog_xmin is very old. An open transaction keeps its locks "
        "and holds back WAL and vacuum, and no snapshot can begin before it ends.",
        held="5m",
    ),
)
