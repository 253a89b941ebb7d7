"""Status documents as /status answers them, for the page's tests: a healthy pipeline, and what can
become of it.

`test_documents_have_the_form_of_a_real_report` keeps them true.
"""

from datetime import UTC, datetime, timedelta
from typing import Any

from sluice.health.problems import Problem
from sluice.health.verdict import State, Verdict

Document = dict[str, Any]
WAL_END = 0x16_B374_D848
MINUTES = 60
HOSTILE = (
    "<img src=x onerror=document.title='owned'>",
    "</script><script>document.title='owned'</script>",
    "\u202egnp.elbat",
    "漢" * 63,
)


def lsn(value: int) -> str:
    return f"{value >> 32:X}/{value & 0xFFFFFFFF:X}"


def table(name: str, **changes: Any) -> Document:
    return {
        "schema": "public",
        "table": name,
        "path": f"s3://lake/shop/public/{name}",
        "state": "live",
        "reason": "",
        "reason_code": "",
        "since": "2026-01-01T00:00:00+00:00",
        "mode": "mirror",
        "generation": 1,
        "complete_through_lsn": lsn(WAL_END - 2_000_000),
        "rows_applied": 48_211,
        "snapshot_rows": 120_000,
        "lag_seconds": 1.4,
        "delta_version": 211,
        "failing": False,
        "way": "direct",
        "way_reason": "",
        "files": 16,
        "waiting_rows": None,
        "waiting_bytes": None,
        "resyncs": {},
        "note": "",
        "resync_at": None,
        "ignored_columns": [],
        "target": "",
        "maintenance": {
            "tidied_version": 200,
            "vacuumed_version": 190,
            "vacuumed_at": "2026-01-01T00:00:00.000+00:00",
            "settled": False,
            "runs": {},
            "failing": "",
            "summary": "join at 2026-01-01T00:00Z, 1.5 s: 20 files removed, 1 added",
        },
        "verified_through_lsn": lsn(WAL_END - 9_000_000),
        "verified_at": "2026-01-01T00:00:00+00:00",
        "differences": 0,
        "not_sent": [],
        "verification_late": False,
        "catalog": None,
        **changes,
    }


def stage(name: str, behind: int | None, seconds: float | None) -> Document:
    return {
        "stage": name,
        "lsn": None if behind is None else lsn(WAL_END - behind),
        "behind_bytes": behind,
        "behind_seconds": seconds,
    }


def throughput(now: datetime) -> list[Document]:
    """An hour with a quiet night, a burst and a lull."""
    begin = now.replace(second=0, microsecond=0) - timedelta(minutes=MINUTES - 1)
    shares = {"transactions": 9, "rows": 60, "bytes": 60 * 210, "snapshot_rows": 0, "applied_rows": 58}
    found = []
    for at in range(MINUTES):
        load = 0 if 22 <= at < 26 else 1800 + (at * 7919) % 900 + (6000 if 38 <= at < 45 else 0)
        seconds = 60.0 if at < MINUTES - 1 else 41.0
        amounts = {name: load * share * seconds / 60 for name, share in shares.items()}
        found.append({"at": (begin + timedelta(minutes=at)).isoformat(), "seconds": seconds, **amounts})
    return found


def healthy(*, taken_at: datetime | None = None) -> Document:
    """Streams, a second behind, everything in the lake."""
    now = taken_at or datetime.now(UTC)
    started = now - timedelta(days=3, hours=4)
    names = ("orders", "order_lines", "customers", "products", "stock", "payments", "events", "returns")
    return {
        "schema_version": 1,
        "pipeline": "shop",
        "version": "0.1.0",
        "state": "healthy",
        "headline": "healthy",
        "problems": [],
        "taken_at": now.isoformat(),
        "opened_at": started.isoformat(),
        "uptime_seconds": 273_600.0,
        "spool_uri": "s3://sluice-spool/shop",
        "lake_uri": "s3://lake/shop",
        "source": {
            "server_version": 180006,
            "database": "shop",
            "wal_lsn": lsn(WAL_END),
            "slot": {
                "active": True,
                "active_pid": 4711,
                "confirmed_flush_lsn": lsn(WAL_END - 410_000),
                "restart_lsn": lsn(WAL_END - 181_000_000),
                "retained_wal_bytes": 181_000_000,
                "wal_status": "reserved",
                "safe_wal_bytes": 10_200_000_000,
                "invalidated": None,
                "two_phase": False,
            },
        },
        "manifest": {
            "seq": 91_342,
            "epoch": 7,
            "through_lsn": lsn(WAL_END - 310_000),
            "examined_lsn": lsn(WAL_END - 310_000),
            "behind_bytes": 310_000,
            "slot": "sluice_shop",
            "publication": "sluice_shop",
            "database": "shop",
        },
        "wal": {
            "stages": [
                stage("server", 0, 0.0),
                stage("received", 4_096, 0.021),
                stage("flushed", 310_000, 0.91),
                stage("confirmed", 410_000, 0.96),
                stage("applied", 2_000_000, 4.2),
            ],
            "headroom": {
                "retained_bytes": 181_000_000,
                "safe_bytes": 10_200_000_000,
                "limit_bytes": 10_381_000_000,
                "share_left": 0.9825,
                "write_rate_bytes": 412_000.5,
                "seconds_left": 24_757.2,
            },
        },
        "apply": {
            "complete_through_lsn": lsn(WAL_END - 2_000_000),
            "boundary_lsn": lsn(WAL_END - 2_000_000),
            "behind_bytes": 2_000_000,
            "pending_entries": 3,
            "last_record_at": (now - timedelta(seconds=2)).isoformat(),
            "left_out": {},
            "left": {},
        },
        "snapshot": {
            "tables_done": 8,
            "tables_total": 8,
            "rows": 960_000,
            "rows_per_second": None,
            "eta_seconds": None,
            "tables": [],
            "waits": None,
        },
        "waits": [],
        "prepared": [],
        "tables": [
            table(name, lag_seconds=round(0.4 * at, 1), rows_applied=48_211 * at + at) for at, name in enumerate(names)
        ],
        "process": {
            "state": "streaming",
            "instance": "ingest-0",
            "started_at": started.isoformat(),
            "uptime_seconds": 273_600.0,
            "connected": True,
            "reconnects": 2,
            "received_lsn": lsn(WAL_END - 4_096),
            "applier": {"running": True, "restarts": 0},
            "configuration": {"in_force_since": started.isoformat(), "refused": None},
            "ddl_signal": {"relied_upon": False, "reason": "the database has no DDL signal"},
            "throughput": throughput(now),
            "errors": [],
            "neighbours": [],
            "runbook_url": "",
        },
    }


def history(names: list[str], *, steps: int = 23) -> Document:
    """The last 46 minutes, with a peak, and a time in which nothing was seen."""
    since = datetime.now(UTC) - timedelta(seconds=120 * steps)

    def line(worst: float) -> Document:
        lags = [None if at in (9, 10) else round(worst * (5 if at == 4 else 1), 1) for at in range(steps)]
        rows = [None if lag is None else at * 400 for at, lag in enumerate(lags)]
        versions = [None if lag is None else at % 7 for at, lag in enumerate(lags)]
        return {"lag_seconds": lags, "rows": rows, "versions": versions}

    return {
        "since": since.isoformat(),
        "step_seconds": 120,
        "steps": 60,
        "pipeline": line(3.1),
        "spool_lag_seconds": [0.4] * steps,
        "tables": {name: line(1.0 + at) for at, name in enumerate(names)},
    }


def maintained() -> Document:
    """A table with every kind of maintenance behind it, and one task that fails."""
    found = healthy()
    run = {"files_removed": 0, "bytes_removed": 0, "files_added": 0, "bytes_added": 0}
    found["tables"][0]["maintenance"].update(
        failing="vacuum: StoreRefused: AccessDenied",
        runs={
            "join": run
            | {"at": "2026-01-01T00:00:00+00:00", "seconds": 1.5, "files_removed": 20, "bytes_removed": 52_428_800}
            | {"files_added": 1, "bytes_added": 41_943_040},
            "checkpoint": run | {"at": "2026-01-01T00:02:00+00:00", "seconds": 0.4},
            "vacuum": run | {"at": "2025-12-31T23:00:00+00:00", "seconds": 75.0, "files_removed": -1},
        },
    )
    return found


def waiting() -> Document:
    """A new pipeline whose slot cannot be made yet, a locked table, and a retry that is due."""
    found = healthy()
    found["waits"] = [
        wait("the new replication slot", "older transactions to end: process 12 (psql), open for 700 s", 698.0),
        wait("snapshots of locked tables", "locks of other sessions on public.orders", 61.0, retry=4.2),
        wait("the connection to the source", "the server closed the connection", 2.0, retry=0.0),
    ]
    return found


def wait(what: str, reason: str, for_seconds: float | None, *, retry: float | None = None) -> Document:
    return {"what": what, "reason": reason, "for_seconds": for_seconds, "retry_in_seconds": retry}


def troubled() -> Document:
    """What went wrong since the process started, with the runbooks served somewhere, and other pipelines."""
    found = healthy()
    now = datetime.fromisoformat(found["taken_at"])

    def error(kind: str, where: str, message: str, what_to_do: str, count: int, *ages: timedelta) -> Document:
        first, last = ((now - age).isoformat() for age in ages)
        said = {"error": kind, "where": where, "message": message, "what_to_do": what_to_do}
        return {**said, "count": count, "first_at": first, "last_at": last, "runbook": "SluiceErrors"}

    hours, half_a_minute = timedelta(hours=1), timedelta(seconds=30)
    message, to_do = "the object store did not answer within 30 s", "see whether others reach it"
    found["process"].update(
        runbook_url="https://wiki.example.com/sluice",
        errors=[
            error("StoreUnavailable", "spool", message, to_do, 12, 2 * hours, half_a_minute),
            error("ValueError", "catalog", "", "", 1, 3 * hours, 3 * hours),
        ],
        neighbours=[
            {"name": "billing", "url": "http://127.0.0.1:9189", "state": "healthy"},
            {"name": "crm", "url": "http://127.0.0.1:9190", "state": "no answer"},
        ],
    )
    return found


def judged(document: Document, state: State, *problems: Problem) -> Document:
    """`document` with a verdict as the server would have made it."""
    verdict = Verdict(state, problems, datetime.fromisoformat(document["taken_at"]).timestamp())
    document.update(state=state, headline=verdict.headline, problems=verdict.to_json())
    return document


def snapshots() -> Document:
    found = healthy()
    for at, state in (1, "snapshot"), (2, "pending"):
        found["tables"][at].update(
            state=state, lag_seconds=None, complete_through_lsn=None, rows_applied=0, mode="", way=""
        )
    reading = {"table": "public.order_lines", "rows": 41_200_000, "estimated_rows": 98_000_000, "bytes": 3_200_000_000}
    reading |= {"rows_per_second": 310_400.2, "eta_seconds": 183.0}
    waiting = dict.fromkeys(reading) | {"table": "public.customers", "estimated_rows": 1_200_000}
    found["snapshot"].update(
        tables_done=6, rows=42_160_000, rows_per_second=301_000.0, eta_seconds=192.7, tables=[reading, waiting]
    )
    for at, minute in enumerate(found["process"]["throughput"][-9:]):
        minute["snapshot_rows"] = (250_000 + at * 5_000) * minute["seconds"]
    where = "public.order_lines, public.customers"
    return judged(
        found, "healthy", Problem("table.snapshot", "info", where, "its rows are being read", "Wait.", count=2)
    )


def stale() -> Document:
    found = healthy()
    reason = "ALTER TABLE rewrote the table with values that the stream does not carry"
    found["tables"][4].update(state="stale", reason=reason, lag_seconds=None)
    found["apply"]["left_out"] = {"public.stock": "stale"}
    began = datetime.fromisoformat(found["taken_at"]).timestamp() - 1260.0
    remedy = "`sluice resync` with the table's name takes a new snapshot of it."
    lost = "SourceUnavailable: the server closed the connection"
    return judged(
        found,
        "degraded",
        Problem("table.stale", "critical", "public.stock", reason, remedy),
        Problem("ingest.error", "info", "replication", lost, "Wait.", began, count=2),
    )


def lost() -> Document:
    found = healthy()
    found["source"]["slot"].update(active=False, wal_status="lost", invalidated="wal_removed")
    found["source"]["slot"].update(dict.fromkeys(("active_pid", "safe_wal_bytes", "restart_lsn")))
    found["wal"]["headroom"] = None
    found["process"].update(state="failed", connected=False)
    hint = "raise max_slot_wal_keep_size or idle_replication_slot_timeout, then resync the tables under a new slot"
    reason = "INVALIDATED: slot sluice_shop can never be used again (wal_removed)"
    return judged(found, "lost", Problem("slot.lost", "critical", "slot sluice_shop", reason, hint))


def scarce() -> Document:
    """The lake keeps up, the slot does not: an hour of headroom."""
    found = healthy()
    found["wal"]["headroom"].update(
        retained_bytes=9_000_000_000, safe_bytes=1_381_000_000, share_left=0.133, seconds_left=3351.9
    )
    message = "13% of max_slot_wal_keep_size is left, enough for 56 min at the present rate"
    problem = Problem("slot.headroom", "critical", "slot sluice_shop", message, "Get ingest going.")
    return judged(found, "degraded", problem)


def applier_dead() -> Document:
    """The applier was killed ten minutes ago; everything else goes on."""
    found = healthy()
    died = datetime.fromisoformat(found["taken_at"]) - timedelta(seconds=600)
    found["apply"].update(pending_entries=40, last_record_at=died.isoformat())
    found["process"]["applier"] = None
    message = "the applier has stopped reporting, with 40 manifest entries to apply"
    problem = Problem("applier.dead", "critical", "the applier", message, "Start it.", died.timestamp())
    return judged(found, "degraded", problem)


def new() -> Document:
    found = healthy()
    nothing = [stage(name, None, None) for name in ("received", "flushed", "confirmed", "applied")]
    found.update(opened_at=None, tables=[], source={**found["source"], "slot": None})
    found["wal"] = {"stages": [stage("server", 0, 0.0), *nothing], "headroom": None}
    found["manifest"] = dict.fromkeys(found["manifest"]) | {"seq": 0, "epoch": 0}
    found["apply"] = dict.fromkeys(found["apply"]) | {"pending_entries": 0, "left_out": {}, "left": {}}
    found["snapshot"].update(tables_done=0, tables_total=0, rows=0)
    found["process"].update(
        state="starting", connected=False, received_lsn=None, reconnects=0, throughput=[], applier=None
    )
    return judged(found, "new")


def crowd(count: int) -> Document:
    found = healthy()
    found["tables"] = [
        table(f"tenant_{at:05d}", lag_seconds=at % 97 / 10, rows_applied=at * 31 % 100_003) for at in range(count)
    ]
    reason, stale = "TRUNCATE of a partition under a published root", found["tables"][count // 2]
    stale.update(state="stale", reason=reason, lag_seconds=None)
    found["snapshot"].update(tables_done=count, tables_total=count)
    problem = Problem("table.stale", "critical", f"public.{stale['table']}", reason, "Copy it again.")
    return judged(found, "degraded", problem)


def hostile() -> Document:
    found = snapshots()
    found["tables"] = [table(name, schema=HOSTILE[0], reason=HOSTILE[1], state="stale") for name in HOSTILE]
    found["snapshot"]["tables"][0]["table"] = HOSTILE[1]
    prepared = {"gid": HOSTILE[0], "xid": 77, "prepare_end_lsn": lsn(WAL_END), "prepared_at": found["taken_at"]}
    found["prepared"] = [{**prepared, "age_seconds": 31.0, "rows": 5}]
    found["manifest"].update(slot=HOSTILE[0], publication=HOSTILE[1])
    return judged(found, "degraded", Problem("table.stale", "critical", HOSTILE[0], HOSTILE[1], HOSTILE[0], count=4))
