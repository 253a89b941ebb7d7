"""When each alert fires and when it does not, as series that Prometheus is made to believe.

Series are written minute by minute in promtool's notation (`1x5` is six times 1, `0+60x5` rises by
60, `_` is no sample, `stale` the end of a series).
"""

from dataclasses import dataclass
from itertools import groupby

from deploy.monitoring.alerts.lake import SAID_NOWHERE_ELSE
from sluice.telemetry import catalogue as known
from sluice.telemetry.catalogue import Metric

Series = dict[str, str]
SHOP = {"pipeline": "shop"}


@dataclass(frozen=True, slots=True)
class Case:
    """After `minutes` of these series the alert fires with exactly `labels`, or does not when there
    are none.
    """

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


def carrying(values: str, state: str = "healthy") -> Series:
    return one(known.HEALTH, values, state=state)


def declared(values: str) -> Series:
    """What the chart records for its release."""
    return {'pipeline:sluice_declared{pipeline="shop"}': values}


def paused(values: str, part: str) -> Series:
    return {f'pipeline:sluice_paused{{pipeline="shop",part="{part}"}}': values}


def table(values: str, name: str, reason: str) -> Series:
    return one(known.TABLE_PROBLEM, values, schema="public", table=name, reason=reason)


def fresh(values: str) -> Series:
    return one(known.APPLY_FRESHNESS, values, quantile_of_tables="max")


def bad_for(bad: int, every: int, steps: int) -> str:
    """Far behind for `bad` steps in `every`."""
    runs = groupby("1000" if step % every < bad else "0" for step in range(steps))
    return " ".join(f"{value}x{len(list(run)) - 1}" for value, run in runs)


def error(values: str, *, component: str, kind: str, retryable: str = "false") -> Series:
    return one(known.ERRORS, values, component=component, retryable=retryable, **{"class": kind})


def fires(what: str, series: Series, minutes: int, *, step_minutes: int = 1, **labels: str) -> Case:
    return Case(what, series, minutes, {**SHOP, **labels}, step_minutes)


def quiet(what: str, series: Series, minutes: int, *, step_minutes: int = 1) -> Case:
    return Case(what, series, minutes, None, step_minutes)


def of_orders(*reasons: str) -> tuple[Case, ...]:
    """The alert fires for a table for each of these reasons."""
    series = {reason: table("0x5 1x60", "orders", reason) for reason in reasons}
    return tuple(fires(why, series[why], 40, schema="public", table="orders", reason=why) for why in reasons)


CASES: dict[str, tuple[Case, ...]] = {
    "SluiceIngestDown": (
        fires("it was there", ingest("1x10 stale _x40") | carrying("1x10 stale _x40"), 19),
        fires(
            "it went a day ago, which nothing but its memory tells",
            ingest("1x10 stale _x1500") | carrying("1x10 stale _x1500"),
            1450,
        ),
        fires("it is declared and never was", declared("1x20"), 9),
        Case("there never was any", {"up": "1x20"}, 5, {}),
        fires(
            "it ends and is started again, and is seen now and then",
            ingest("1x9 1 stale _x5 1 stale _x5 1 stale _x5")
            | carrying("1x9 0 stale _x5 0 stale _x5 0 stale _x5", "degraded"),
            19,
        ),
        fires("it stays in another state", ingest("1x30") | carrying("1x5 0x30"), 14),
        fires(
            "the event loop stands still",
            ingest("1x20") | carrying("1x20", "degraded") | problem("0x5 1x9", "ingest.stuck"),
            9,
        ),
        fires(
            "nobody uses its slot",
            ingest("1x20") | carrying("1x20", "degraded") | problem("0x5 1x10", "slot.inactive"),
            10,
        ),
        quiet("a new walsender came", ingest("1x20") | carrying("1x20") | problem("0x5 1x2 0x10", "slot.inactive"), 11),
        quiet(
            "it was replaced by another pod",
            ingest("1x10 stale _x40")
            | ingest("_x14 1x30", pod="b")
            | carrying("1x10 stale _x40")
            | carrying("_x15 1x30"),
            30,
        ),
        quiet(
            "it streams with a problem", ingest("1x30") | carrying("1x9 0x30") | carrying("0x9 1x30", "degraded"), 20
        ),
        quiet("it took three minutes to start", ingest("1x30") | carrying("0x3 1x30"), 6),
        quiet(
            "it is paused",
            ingest("1x10 stale _x40") | carrying("1x10 stale _x40") | declared("1x60") | paused("_x9 1x60", "ingest"),
            40,
        ),
        fires(
            "it did not come back from a pause",
            ingest("1x10 stale _x60") | carrying("1x10 stale _x60") | paused("_x9 1x20 stale _x60", "ingest"),
            40,
        ),
    ),
    "SluiceUnwatched": (
        fires("the last look was long ago", one(known.REPORT_TIMESTAMP, "0x40"), 20),
        fires("there never was one", ingest("1x40"), 16),
        fires("no figures of the slot", ingest("1x40") | one(known.REPORT_TIMESTAMP, "0+60x40"), 16),
        quiet(
            "there are all figures",
            ingest("1x40") | one(known.REPORT_TIMESTAMP, "0+60x40") | one(known.SLOT_STATUS, "1x40", status="reserved"),
            30,
        ),
    ),
    "SluiceReconnectLoop": (
        fires("a connection each minute", one(known.RECONNECTS, "0+1x20", reason="connection_lost"), 16),
        quiet("three in all", one(known.RECONNECTS, "0+1x3 3x30", reason="connection_lost"), 16),
    ),
    "SluiceErrors": (
        Case(
            "the first of its kind",
            error("_x10 1x9", component="stream", kind="ProtocolViolation"),
            12,
            {**SHOP, "component": "stream", "class": "ProtocolViolation"},
        ),
        Case(
            "one more of a kind that was seen before",
            error("1x40 2x9", component="spool", kind="StoreRefused"),
            42,
            {**SHOP, "component": "spool", "class": "StoreRefused"},
        ),
        quiet("an old one", error("1x90", component="stream", kind="DecodeError"), 60),
        quiet("it is tried again", error("0+1x20", component="stream", kind="SourceUnavailable", retryable="true"), 12),
        quiet(
            "one table cannot follow, which another alert tells",
            error("0+1x20", component="snapshot", kind="UnsupportedChange"),
            12,
        ),
    ),
    "SluiceSlotEndangered": (
        fires("it is unreserved", problem("0x5 1x5", "slot.unreserved"), 9),
        fires("another client uses it", problem("0x5 1x5", "slot.foreign"), 9),
        fires("10 of 100 are left", one(known.SLOT_SAFE, "10x30") | one(known.SLOT_KEEP_LIMIT, "100x30"), 3),
        fires("headroom shrinks", one(known.SLOT_SAFE, "1000000000-10000000x90"), 60),
        fires("the slot stands", one(known.SLOT_SECONDS_LEFT, "7200x60") | one(known.CONFIRMED_FLUSH_LSN, "5x60"), 30),
        quiet(
            "half is left",
            one(known.SLOT_SAFE, "50x30") | one(known.SLOT_KEEP_LIMIT, "100x30") | problem("1x30", "slot.headroom"),
            20,
        ),
        quiet("one load of a young pipeline", one(known.SLOT_SAFE, "1000000000-10000000x40"), 40),
        quiet(
            "much is written and the slot follows",
            one(known.SLOT_SAFE, "1000000000x90")
            | one(known.SLOT_SECONDS_LEFT, "7200x90")
            | one(known.CONFIRMED_FLUSH_LSN, "0+1x90"),
            60,
        ),
        quiet(
            "an idle server without a limit",
            one(known.CONFIRMED_FLUSH_LSN, "5x60") | one(known.SLOT_UNBOUNDED, "1x60"),
            50,
        ),
    ),
    "SluiceWalHeadroomLow": (
        fires(
            "100 GB are kept without a limit",
            one(known.SLOT_RETAINED, "1e11x30") | one(known.SLOT_UNBOUNDED, "1x30"),
            16,
        ),
        quiet(
            "much is kept under a limit that is far",
            one(known.SLOT_RETAINED, "1e11x30")
            | one(known.SLOT_UNBOUNDED, "0x30")
            | one(known.SLOT_SAFE, "9e11x30")
            | one(known.SLOT_KEEP_LIMIT, "1e12x30"),
            20,
        ),
        fires("30 of 100 are left", one(known.SLOT_SAFE, "30x30") | one(known.SLOT_KEEP_LIMIT, "100x30"), 16),
        quiet("half is left", one(known.SLOT_SAFE, "50x30") | one(known.SLOT_KEEP_LIMIT, "100x30"), 20),
        quiet("there is no limit", one(known.SLOT_UNBOUNDED, "1x30") | one(known.SLOT_RETAINED, "9e9x30"), 20),
    ),
    "SluiceTransactionOpen": (
        fires("a prepared one, for longer and longer", one(known.PREPARED_AGE, "0+60x60"), 22),
        fires("it holds back vacuum", one(known.SLOT_XMIN_AGE, "2e8x40"), 31),
        fires(
            "90 of 100 that may be staged",
            one(known.REORDER_BYTES, "90x9", place="store") | one(known.REORDER_LIMIT, "100x9", place="store"),
            6,
        ),
        quiet(
            "nothing of it is much, and memory is full",
            one(known.PREPARED_AGE, "0x60")
            | one(known.SLOT_XMIN_AGE, "1e6x60")
            | one(known.REORDER_BYTES, "10x60", place="store")
            | one(known.REORDER_LIMIT, "100x60", place="store")
            | one(known.REORDER_BYTES, "100x60", place="memory", pod="m")
            | one(known.REORDER_LIMIT, "100x60", place="memory", pod="m"),
            50,
        ),
    ),
    "SluiceSlotLost": (
        fires("it was the last word", problem("0x5 1 stale _x100", "slot.lost"), 60),
        fires(
            "the process starts again and again and cannot ask the server",
            problem("0x5 1x3 stale _x20", "slot.lost") | one(known.HEALTH, "1x30", state="stopped"),
            15,
        ),
        quiet("it is not", problem("0x20", "slot.lost") | one(known.HEALTH, "1x20", state="healthy"), 15),
        quiet(
            "a new pipeline runs",
            problem("1x5 0x30", "slot.lost") | one(known.HEALTH, "0x5 1x30", state="degraded"),
            30,
        ),
    ),
    "SluiceLagHigh": (
        fires("by time", one(known.LAG_SECONDS, "90x10", stage="flush"), 2),
        fires(
            "by bytes", one(known.LAG_BYTES, "2e9x10", stage="flush") | one(known.LAG_SECONDS, "0x10", stage="flush"), 2
        ),
        fires(
            "within three minutes of a store that does not answer", one(known.LAG_SECONDS, "0+60x9", stage="flush"), 3
        ),
        quiet("half a minute behind", one(known.LAG_SECONDS, "30x10", stage="flush"), 5),
        quiet("only the lake is behind", one(known.LAG_SECONDS, "900x10", stage="apply"), 5),
    ),
    "SluiceLagCritical": (
        fires("by time", one(known.LAG_SECONDS, "400x10", stage="flush"), 3),
        fires("by bytes", one(known.LAG_BYTES, "5e9x10", stage="flush"), 3),
        quiet("a minute and a half behind", one(known.LAG_SECONDS, "90x10", stage="flush"), 5),
    ),
    "SluiceObjectStoreFailing": (
        fires(
            "every second request",
            one(known.STORE_REQUESTS, "0+30x20", operation="put", outcome="unavailable")
            | one(known.STORE_REQUESTS, "0+30x20", operation="put", outcome="ok"),
            12,
        ),
        quiet(
            "conflicts and missing objects are answers",
            one(known.STORE_REQUESTS, "0+30x20", operation="create", outcome="conflict")
            | one(known.STORE_REQUESTS, "0+1x20", operation="get", outcome="missing"),
            12,
        ),
    ),
    "SluiceApplierDown": (
        fires("the verdict says so", problem("0x5 1x20", "applier.dead"), 11),
        fires("no progress since the beginning", one(known.APPLY_LAST_SUCCESS, "0x60"), 37),
        quiet("it was started again within minutes", problem("0x5 1x3 0x20", "applier.dead"), 11),
        quiet(
            "it has never been there, which the backlog tells",
            problem("0x30", "applier.dead") | problem("1x30", "applier.never"),
            25,
        ),
        quiet("idle, and it says so", one(known.APPLY_LAST_SUCCESS, "0+60x60"), 50),
        quiet(
            "its records cannot be read, which another alert tells",
            one(known.APPLY_LAST_SUCCESS, "0x60") | one(known.REPORT_TIMESTAMP, "0x60"),
            50,
        ),
        quiet("paused", problem("1x30", "applier.dead") | paused("1x30", "applier"), 25),
    ),
    "SluiceProblemStays": (
        *(fires(f"{code} for long", problem("_x5 1x60", code), 40, code=code) for code in SAID_NOWHERE_ELSE),
        quiet("it passes", problem("_x5 1x20 0x40", "spool.upkeep"), 60),
        quiet("another alert tells", problem("1x60", "table.stale"), 50),
    ),
    "SluiceTableUnequal": (
        *of_orders("stale", "gap", "unequal"),
        quiet("it is read again at once", table("_x5 1x3 stale _x20", "orders", "stale"), 20),
        quiet("it is left out", table("1x30", "orders", "quarantined"), 20),
    ),
    "SluiceTableNotFollowed": (
        *of_orders("waiting", "quarantined", "failing", "unverified"),
        quiet("it is stale, which another alert tells", table("1x30", "orders", "stale"), 25),
    ),
    "SluiceLakeBehind": (
        quiet("paused", one(known.OLDEST_PENDING, "0x60") | paused("1x60", "applier"), 50),
        fires("an old change", one(known.OLDEST_PENDING, "0x40"), 27),
        fires("an hour without an applier", one(known.OLDEST_PENDING, "60x70"), 60),
        fires("more each hour", one(known.PENDING_BYTES, "2000000000+1000000x120"), 80),
        quiet("much, but less each hour", one(known.PENDING_BYTES, "5000000000-1000000x120"), 100),
        quiet("young changes", one(known.OLDEST_PENDING, "0+60x40") | one(known.PENDING_BYTES, "1000x40"), 30),
        quiet("nothing waits", one(known.PENDING_BYTES, "0x120"), 100),
    ),
    "SluiceApplyFailing": (
        fires("a window fails each minute", one(known.APPLY_RUNS, "0+1x30", outcome="failed"), 21),
        fires("it is started again each minute", one(known.APPLY_RESTARTS, "0+1x30"), 21),
        fires("that of a fleet is, too", one(known.FLEET_RESTARTS, "0+1x30", part="apply"), 21),
        quiet("an ingest of a fleet is", one(known.FLEET_RESTARTS, "0+1x30", part="ingest"), 21),
        quiet("one window failed", one(known.APPLY_RUNS, "0x5 1x30", outcome="failed"), 21),
        fires("another writer", one(known.APPLY_CONFLICTS, "_x5 1x20", kind="concurrent"), 15),
        fires("another applier", one(known.APPLY_CONFLICTS, "0x70 1x20", kind="fenced"), 82),
        quiet(
            "a direct commit that met another and landed",
            one(known.APPLY_CONFLICTS, "0x70 1x20", kind="fresh_look"),
            82,
        ),
        quiet(
            "a table that Spark commits although others are committed directly",
            one(known.APPLY_WINDOWS, "0+10x80", way="merge") | one(known.APPLY_TABLES, "1x80", way="merge"),
            75,
        ),
        quiet("long ago", one(known.APPLY_CONFLICTS, "1x200", kind="concurrent"), 150),
    ),
    "SluiceSnapshotStalled": (
        fires("it reads nothing", one(known.SNAPSHOT_START, "0x40") | one(known.SNAPSHOT_BYTES, "7x40"), 21),
        quiet("it reads", one(known.SNAPSHOT_START, "0x40") | one(known.SNAPSHOT_BYTES, "0+7x40"), 30),
        quiet("it is over", one(known.SNAPSHOT_START, "0x10 stale") | one(known.SNAPSHOT_BYTES, "0+7x10 70x40"), 40),
    ),
    "SluiceFreshnessBurnFast": (
        fires("behind for ten minutes of the last hour, and now", fresh("0x50 1000x20"), 65),
        fires("no metrics arrive", ingest("1x50 stale _x60") | fresh("0x50 stale _x60"), 65),
        fires("a tenth of six hours", fresh(bad_for(1, 10, 400)), 368),
        quiet("behind for ten minutes, but not now", fresh("0x30 1000x10 0x60"), 65),
        quiet("a pipeline of 17 minutes", fresh("0x7 1000x30"), 17),
        quiet("a pipeline of 50 minutes that was never fresh", fresh("1000x60"), 50),
        quiet("fresh", fresh("10x120"), 100),
        quiet("no table is followed yet", ingest("1x120"), 100),
        quiet("an hour, five hours ago", fresh("1000x60 0x340"), 368),
        quiet("a hundredth of the time", fresh(bad_for(1, 100, 400)), 368),
        quiet(
            "its applier was paused for half an hour",
            fresh("0x70 1000x35 0x30") | paused("_x70 1x35 stale _x40", "applier"),
            110,
        ),
    ),
    "SluiceFreshnessBurnSlow": (
        fires("a twentieth of the time", fresh(bad_for(1, 20, 900)), 4400, step_minutes=5),
        quiet("four hours, three days ago", fresh("1000x70 0x830"), 4400, step_minutes=5),
        quiet("two days old", fresh(bad_for(1, 20, 900)), 2900, step_minutes=5),
        quiet("always fresh", fresh("1x900"), 4400, step_minutes=5),
    ),
}
