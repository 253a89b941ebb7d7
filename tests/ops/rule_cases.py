"""When each alert fires and when it does not, as series that Prometheus is made to believe.

Series are written minute by minute in promtool's notation (`1x5` is six times 1, `0+60x5` rises by
60, `_` is no sample, `stale` the end of a series).
"""

from dataclasses import dataclass
from itertools import groupby

from sluice.telemetry import catalogue as known
from sluice.telemetry.catalogue import Metric

Series = dict[str, str]
SHOP = {"pipeline": "shop"}


@dataclass(frozen=True, slots=True)
class Case:
    """After `minutes` of these series the alert fires with exactly `labels`, or does not when there
    are none.
    """

    alert: str
    what: str
    series: Series
    minutes: int
    labels: dict[str, str] | None = None
    step_minutes: int = 1


def one(metric: Metric, values: str, *, suffix: str = "", pod: str = "a", **labels: str) -> Series:
    """One series of the pipeline `shop`; labels that are not given but exist get a value."""
    complete = {**dict.fromkeys(metric.labels, "x"), **labels, "pipeline": "shop", "instance": f"{pod}:9187"}
    inner = ",".join(f'{name}="{value}"' for name, value in complete.items())
    return {f"{metric.name}{suffix}{{{inner}}}": values}


def ingest(values: str, pod: str = "a") -> Series:
    return one(known.BUILD_INFO, values, pod=pod, component="ingest")


def problem(values: str, code: str) -> Series:
    return one(known.PROBLEMS, values, code=code)


def loop_lag(below: str, seconds: str) -> Series:
    """Sixty timers a minute that ran late by less than `seconds` and more than `below`."""
    buckets = {le: "0x40" if le == below else "0+60x40" for le in (below, seconds, "+Inf")}
    return {
        key: value
        for le, values in buckets.items()
        for key, value in one(known.EVENT_LOOP_LAG, values, suffix="_bucket", le=le).items()
    }


def fresh(values: str) -> Series:
    return one(known.APPLY_FRESHNESS, values, quantile_of_tables="max")


def bad_for(bad: int, every: int, steps: int) -> str:
    """Far behind for `bad` steps in `every`."""
    runs = groupby("1000" if step % every < bad else "0" for step in range(steps))
    return " ".join(f"{value}x{len(list(run)) - 1}" for value, run in runs)


def error(values: str, *, component: str, kind: str, retryable: str = "false") -> Series:
    return one(known.ERRORS, values, component=component, retryable=retryable, **{"class": kind})


def fires(alert: str, what: str, series: Series, minutes: int, *, step_minutes: int = 1, **labels: str) -> Case:
    return Case(alert, what, series, minutes, {**SHOP, **labels}, step_minutes)


def quiet(alert: str, what: str, series: Series, minutes: int, *, step_minutes: int = 1) -> Case:
    return Case(alert, what, series, minutes, None, step_minutes)


PROCESS = (
    fires("SluiceDown", "it was there", ingest("1x10 stale _x40"), 17),
    quiet("SluiceDown", "it is there", ingest("1x40"), 30),
    quiet("SluiceDown", "it was replaced by another pod", ingest("1x10 stale _x40") | ingest("_x12 1x30", pod="b"), 30),
    quiet("SluiceDown", "it was given up long ago", ingest("1x10 stale _x400"), 380),
    Case("SluiceMetricsAbsent", "it never was", {"up": "1x20"}, 11, {"component": "ingest"}),
    Case("SluiceMetricsAbsent", "it went hours ago", ingest("1x10 stale _x400"), 385, {"component": "ingest"}),
    quiet("SluiceMetricsAbsent", "it is there", ingest("1x20"), 11),
    quiet("SluiceMetricsAbsent", "it went a minute ago, which another alert tells", ingest("1x10 stale _x40"), 30),
    fires(
        "SluiceNotStreaming",
        "it ends and is started again, and is seen now and then",
        ingest("1x9 1 stale _x5 1 stale _x5 1 stale _x5")
        | one(known.HEALTH, "1x9 0 stale _x5 0 stale _x5 0 stale _x5", state="degraded"),
        21,
    ),
    fires(
        "SluiceNotStreaming",
        "it stays in another state",
        ingest("1x30") | one(known.HEALTH, "1x5 0x30", state="healthy"),
        17,
    ),
    quiet(
        "SluiceNotStreaming",
        "it streams",
        ingest("1x30")
        | one(known.HEALTH, "1x9 0x30", state="healthy")
        | one(known.HEALTH, "0x9 1x30", state="degraded"),
        20,
    ),
    quiet(
        "SluiceNotStreaming",
        "it took three minutes to start",
        ingest("1x30") | one(known.HEALTH, "0x3 1x30", state="healthy"),
        6,
    ),
    fires(
        "SluiceSourceDisconnected",
        "the server is away",
        one(known.SOURCE_CONNECTED, "1x5 0x10", role="replication"),
        11,
    ),
    quiet(
        "SluiceSourceDisconnected",
        "it is back in time",
        one(known.SOURCE_CONNECTED, "1x5 0x3 1x10", role="replication"),
        11,
    ),
    quiet(
        "SluiceSourceDisconnected",
        "only the side connection is away",
        one(known.SOURCE_CONNECTED, "0x10", role="query"),
        10,
    ),
    fires(
        "SluiceReconnectLoop", "a connection each minute", one(known.RECONNECTS, "0+1x20", reason="connection_lost"), 16
    ),
    quiet("SluiceReconnectLoop", "three in all", one(known.RECONNECTS, "0+1x3 3x30", reason="connection_lost"), 16),
    Case(
        "SluiceErrors",
        "the first of its kind",
        error("_x10 1x9", component="stream", kind="ProtocolViolation"),
        12,
        {**SHOP, "component": "stream", "class": "ProtocolViolation"},
    ),
    Case(
        "SluiceErrors",
        "one more of a kind that was seen before",
        error("1x40 2x9", component="spool", kind="StoreRefused"),
        42,
        {**SHOP, "component": "spool", "class": "StoreRefused"},
    ),
    quiet("SluiceErrors", "an old one", error("1x90", component="stream", kind="DecodeError"), 60),
    quiet(
        "SluiceErrors",
        "it is tried again",
        error("0+1x20", component="stream", kind="SourceUnavailable", retryable="true"),
        12,
    ),
    quiet(
        "SluiceErrors",
        "one table cannot follow, which another alert tells",
        error("0+1x20", component="snapshot", kind="UnsupportedChange"),
        12,
    ),
    fires("SluiceIngestStuck", "the event loop stands still", problem("0x5 1x9", "ingest.stuck"), 9),
    quiet(
        "SluiceIngestStuck", "another problem", problem("0x15", "ingest.stuck") | problem("1x15", "ingest.behind"), 12
    ),
    fires("SluiceEventLoopStalled", "timers are late", loop_lag("5.0", "10.0"), 20),
    quiet("SluiceEventLoopStalled", "timers are in time", loop_lag("0.1", "0.5"), 20),
    fires("SluiceReportStale", "the last look was long ago", one(known.REPORT_TIMESTAMP, "0x20"), 9),
    fires("SluiceReportStale", "there never was one", ingest("1x20"), 6),
    quiet("SluiceReportStale", "looks are taken", ingest("1x20") | one(known.REPORT_TIMESTAMP, "0+60x20"), 15),
    fires("SluiceSlotUnwatched", "no figures of the slot", ingest("1x20"), 11),
    quiet(
        "SluiceSlotUnwatched", "there are some", ingest("1x20") | one(known.SLOT_STATUS, "1x20", status="reserved"), 15
    ),
)

SLOT = (
    fires("SluiceSlotLost", "it was the last word", problem("0x5 1 stale _x100", "slot.lost"), 60),
    fires(
        "SluiceSlotLost",
        "the process starts again and again and cannot ask the server",
        problem("0x5 1x3 stale _x20", "slot.lost") | one(known.HEALTH, "1x30", state="stopped"),
        15,
    ),
    quiet("SluiceSlotLost", "it is not", problem("0x20", "slot.lost") | one(known.HEALTH, "1x20", state="healthy"), 15),
    quiet(
        "SluiceSlotLost",
        "a new pipeline runs",
        problem("1x5 0x30", "slot.lost") | one(known.HEALTH, "0x5 1x30", state="degraded"),
        30,
    ),
    fires("SluiceSlotUnreserved", "it is unreserved", problem("0x5 1x5", "slot.unreserved"), 7),
    quiet(
        "SluiceSlotUnreserved",
        "it is low on headroom",
        problem("0x9", "slot.unreserved") | problem("1x9", "slot.headroom"),
        7,
    ),
    fires(
        "SluiceWalHeadroomLow",
        "30 of 100 are left",
        one(known.SLOT_SAFE, "30x30") | one(known.SLOT_KEEP_LIMIT, "100x30"),
        16,
    ),
    quiet(
        "SluiceWalHeadroomLow", "half is left", one(known.SLOT_SAFE, "50x30") | one(known.SLOT_KEEP_LIMIT, "100x30"), 20
    ),
    quiet(
        "SluiceWalHeadroomLow",
        "there is no limit",
        one(known.SLOT_UNBOUNDED, "1x30") | one(known.SLOT_RETAINED, "9e9x30"),
        20,
    ),
    fires(
        "SluiceWalHeadroomCritical",
        "10 of 100 are left",
        one(known.SLOT_SAFE, "10x30") | one(known.SLOT_KEEP_LIMIT, "100x30"),
        6,
    ),
    quiet(
        "SluiceWalHeadroomCritical",
        "30 of 100 are left",
        one(known.SLOT_SAFE, "30x30") | one(known.SLOT_KEEP_LIMIT, "100x30"),
        20,
    ),
    quiet("SluiceWalHeadroomCritical", "there is no limit", one(known.SLOT_UNBOUNDED, "1x30"), 20),
    fires("SluiceWalHeadroomPredicted", "headroom shrinks", one(known.SLOT_SAFE, "1000000000-10000000x90"), 60),
    fires(
        "SluiceWalHeadroomPredicted",
        "the slot stands",
        one(known.SLOT_SECONDS_LEFT, "7200x60") | one(known.CONFIRMED_FLUSH_LSN, "5x60"),
        30,
    ),
    quiet(
        "SluiceWalHeadroomPredicted",
        "much is written and the slot follows",
        one(known.SLOT_SAFE, "1000000000x90")
        | one(known.SLOT_SECONDS_LEFT, "7200x90")
        | one(known.CONFIRMED_FLUSH_LSN, "0+1x90"),
        60,
    ),
    quiet(
        "SluiceWalHeadroomPredicted",
        "an idle server without a limit",
        one(known.CONFIRMED_FLUSH_LSN, "5x60") | one(known.SLOT_UNBOUNDED, "1x60"),
        50,
    ),
    fires(
        "SluiceWalUnbounded",
        "100 GB are kept",
        one(known.SLOT_RETAINED, "1e11x30") | one(known.SLOT_UNBOUNDED, "1x30"),
        11,
    ),
    quiet(
        "SluiceWalUnbounded",
        "little is kept",
        one(known.SLOT_RETAINED, "1e9x30") | one(known.SLOT_UNBOUNDED, "1x30"),
        20,
    ),
    quiet(
        "SluiceWalUnbounded",
        "there is a limit",
        one(known.SLOT_RETAINED, "1e11x30") | one(known.SLOT_UNBOUNDED, "0x30"),
        20,
    ),
    fires("SluiceSlotInactive", "nobody uses it", problem("0x5 1x10", "slot.inactive"), 11),
    quiet("SluiceSlotInactive", "a new walsender came", problem("0x5 1x2 0x10", "slot.inactive"), 11),
    fires("SluiceXminAge", "two hundred million", one(known.SLOT_XMIN_AGE, "2e8x40"), 31),
    quiet("SluiceXminAge", "one million", one(known.SLOT_XMIN_AGE, "1e6x40"), 35),
    fires("SluicePreparedTransactionOpen", "open for longer and longer", one(known.PREPARED_AGE, "0+60x60"), 20),
    quiet("SluicePreparedTransactionOpen", "there is none", one(known.PREPARED_AGE, "0x60"), 50),
)

STREAM = (
    fires("SluiceLagHigh", "by time", one(known.LAG_SECONDS, "90x10", stage="flush"), 2),
    fires(
        "SluiceLagHigh",
        "by bytes",
        one(known.LAG_BYTES, "2e9x10", stage="flush") | one(known.LAG_SECONDS, "0x10", stage="flush"),
        2,
    ),
    fires(
        "SluiceLagHigh",
        "within three minutes of a store that does not answer",
        one(known.LAG_SECONDS, "0+60x9", stage="flush"),
        3,
    ),
    quiet("SluiceLagHigh", "half a minute behind", one(known.LAG_SECONDS, "30x10", stage="flush"), 5),
    quiet("SluiceLagHigh", "only the lake is behind", one(known.LAG_SECONDS, "900x10", stage="apply"), 5),
    fires("SluiceLagCritical", "by time", one(known.LAG_SECONDS, "400x10", stage="flush"), 3),
    fires("SluiceLagCritical", "by bytes", one(known.LAG_BYTES, "5e9x10", stage="flush"), 3),
    quiet("SluiceLagCritical", "a minute and a half behind", one(known.LAG_SECONDS, "90x10", stage="flush"), 5),
    fires(
        "SluiceFlushStuck",
        "WAL waits and nothing moves",
        one(known.LAG_BYTES, "1e8x40", stage="flush") | one(known.FLUSHED_LSN, "5x40"),
        6,
    ),
    quiet(
        "SluiceFlushStuck",
        "it moves",
        one(known.LAG_BYTES, "1e8x40", stage="flush") | one(known.FLUSHED_LSN, "0+1x40"),
        30,
    ),
    quiet(
        "SluiceFlushStuck",
        "nothing happens",
        one(known.LAG_BYTES, "1000x40", stage="flush") | one(known.FLUSHED_LSN, "5x40"),
        30,
    ),
    fires(
        "SluiceBackpressureSustained",
        "uploads are too slow",
        one(known.BACKPRESSURE_SECONDS, "0+57x30", cause="upload") | one(known.LAG_SECONDS, "200x30", stage="flush"),
        20,
        cause="upload",
    ),
    quiet(
        "SluiceBackpressureSustained",
        "without lag",
        one(known.BACKPRESSURE_SECONDS, "0+57x30", cause="upload") | one(known.LAG_SECONDS, "1x30", stage="flush"),
        25,
    ),
    fires(
        "SluiceStagedNearLimit",
        "90 of 100",
        one(known.REORDER_BYTES, "90x9", place="store") | one(known.REORDER_LIMIT, "100x9", place="store"),
        6,
    ),
    quiet(
        "SluiceStagedNearLimit",
        "10 of 100",
        one(known.REORDER_BYTES, "10x9", place="store") | one(known.REORDER_LIMIT, "100x9", place="store"),
        6,
    ),
    quiet(
        "SluiceStagedNearLimit",
        "memory is full",
        one(known.REORDER_BYTES, "100x9", place="memory") | one(known.REORDER_LIMIT, "100x9", place="memory"),
        6,
    ),
    fires(
        "SluiceObjectStoreFailing",
        "every second request",
        one(known.STORE_REQUESTS, "0+30x20", operation="put", outcome="unavailable")
        | one(known.STORE_REQUESTS, "0+30x20", operation="put", outcome="ok"),
        12,
    ),
    quiet(
        "SluiceObjectStoreFailing",
        "conflicts and missing objects are answers",
        one(known.STORE_REQUESTS, "0+30x20", operation="create", outcome="conflict")
        | one(known.STORE_REQUESTS, "0+1x20", operation="get", outcome="missing"),
        12,
    ),
)

LAKE = (
    fires("SluiceApplierDown", "the verdict says so", problem("0x5 1x20", "applier.dead"), 11),
    quiet("SluiceApplierDown", "it was started again within minutes", problem("0x5 1x3 0x20", "applier.dead"), 11),
    quiet(
        "SluiceApplierDown",
        "it has never been there, which the backlog tells",
        problem("0x30", "applier.dead") | problem("1x30", "applier.never"),
        25,
    ),
    fires("SluiceApplyNotSucceeding", "since the beginning", one(known.APPLY_LAST_SUCCESS, "0x60"), 37),
    quiet("SluiceApplyNotSucceeding", "idle, and it says so", one(known.APPLY_LAST_SUCCESS, "0+60x60"), 50),
    fires("SluiceApplyFailing", "a window fails each minute", one(known.APPLY_RUNS, "0+1x30", outcome="failed"), 21),
    fires("SluiceApplyFailing", "it is started again each minute", one(known.APPLY_RESTARTS, "0+1x30"), 21),
    quiet("SluiceApplyFailing", "one window failed", one(known.APPLY_RUNS, "0x5 1x30", outcome="failed"), 21),
    fires(
        "SluiceApplyConflicts",
        "the first",
        one(known.APPLY_CONFLICTS, "_x5 1x10", kind="concurrent"),
        7,
        kind="concurrent",
    ),
    fires(
        "SluiceApplyConflicts",
        "a direct commit that met another and landed",
        one(known.APPLY_CONFLICTS, "0x70 1x10", kind="fresh_look"),
        75,
        kind="fresh_look",
    ),
    quiet(
        "SluiceApplyConflicts",
        "a table that Spark commits although others are committed directly",
        one(known.APPLY_WINDOWS, "0+10x80", way="merge") | one(known.APPLY_TABLES, "1x80", way="merge"),
        75,
    ),
    fires("SluiceApplyConflicts", "another", one(known.APPLY_CONFLICTS, "0x70 1x10", kind="fenced"), 75, kind="fenced"),
    quiet("SluiceApplyConflicts", "long ago", one(known.APPLY_CONFLICTS, "1x200", kind="concurrent"), 150),
    fires("SluiceSpoolBacklog", "an old change", one(known.OLDEST_PENDING, "0x40"), 27),
    fires("SluiceSpoolBacklog", "an hour without an applier", one(known.OLDEST_PENDING, "60x70"), 60),
    fires("SluiceSpoolBacklog", "more each hour", one(known.PENDING_BYTES, "2000000000+1000000x120"), 80),
    quiet("SluiceSpoolBacklog", "much, but less each hour", one(known.PENDING_BYTES, "5000000000-1000000x120"), 100),
    quiet(
        "SluiceSpoolBacklog",
        "young changes",
        one(known.OLDEST_PENDING, "0+60x40") | one(known.PENDING_BYTES, "1000x40"),
        30,
    ),
    quiet("SluiceSpoolBacklog", "nothing waits", one(known.PENDING_BYTES, "0x120"), 100),
    fires("SluiceTableStale", "one", problem("0x5 1x5", "table.stale"), 7),
    quiet("SluiceTableStale", "none", problem("0x9", "table.stale") | problem("3x9", "table.snapshot"), 7),
    fires("SluiceTableQuarantined", "two", problem("2x9", "table.quarantined"), 7),
    quiet("SluiceTableQuarantined", "none", problem("0x9", "table.quarantined"), 7),
    fires(
        "SluiceSnapshotStalled",
        "it reads nothing",
        one(known.SNAPSHOT_START, "0x40") | one(known.SNAPSHOT_BYTES, "7x40"),
        21,
    ),
    quiet(
        "SluiceSnapshotStalled", "it reads", one(known.SNAPSHOT_START, "0x40") | one(known.SNAPSHOT_BYTES, "0+7x40"), 30
    ),
    quiet(
        "SluiceSnapshotStalled",
        "it is over",
        one(known.SNAPSHOT_START, "0x10 stale") | one(known.SNAPSHOT_BYTES, "0+7x10 70x40"),
        40,
    ),
)

OBJECTIVES = (
    fires("SluiceFreshnessBurnFast", "behind for ten minutes of the last hour, and now", fresh("0x50 1000x20"), 61),
    fires(
        "SluiceFreshnessBurnFast", "nothing is heard of it", ingest("1x50 stale _x60") | fresh("0x50 stale _x60"), 65
    ),
    quiet("SluiceFreshnessBurnFast", "behind for ten minutes, but not now", fresh("0x30 1000x10 0x60"), 61),
    quiet("SluiceFreshnessBurnFast", "fresh", fresh("10x120"), 100),
    quiet("SluiceFreshnessBurnFast", "no table is followed yet", ingest("1x120"), 100),
    fires("SluiceFreshnessBurnSlow", "a tenth of the time", fresh(bad_for(1, 10, 400)), 365),
    quiet("SluiceFreshnessBurnSlow", "an hour, five hours ago", fresh("1000x60 0x340"), 365),
    quiet("SluiceFreshnessBurnSlow", "a hundredth of the time", fresh(bad_for(1, 100, 400)), 365),
    fires("SluiceFreshnessBurnTicket", "a twentieth of the time", fresh(bad_for(1, 20, 900)), 4400, step_minutes=5),
    quiet("SluiceFreshnessBurnTicket", "four hours, three days ago", fresh("1000x70 0x830"), 4400, step_minutes=5),
    quiet("SluiceFreshnessBurnTicket", "always fresh", fresh("1x900"), 4400, step_minutes=5),
)

CASES = (*PROCESS, *SLOT, *STREAM, *LAKE, *OBJECTIVES)
