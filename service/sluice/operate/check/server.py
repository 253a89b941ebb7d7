"""Preflight of the server: its version and settings, the role's rights, a free place for our slot, limits
on WAL, and what would make us wait.

Invariant: reads only, and only what the role of deploy/postgres/grants.sql may see. (PostgreSQL:
Runtime Config; The Cumulative Statistics System.)
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sluice import lsn
from sluice.errors import SourceError
from sluice.findings import Finding, Severity
from sluice.printable import counted
from sluice.quoting import quote_identifier, quote_literal
from sluice.source import ddl_signal
from sluice.source.facts import ServerFacts, SlotFacts
from sluice.source.sessions import Connection, SourceOptions, translated
from sluice.source.slot_facts import server_facts, slot_facts
from sluice.source.snapshot_export import open_transactions
from sluice.source.start_replication import identify
from sluice.source.writable import read_only

FIXED_MINORS = {14: 19, 15: 14, 16: 10, 17: 6}
"""The first minor release of each major with the 2025 repairs of logical decoding: lost changes
around ALTER PUBLICATION, WAL removed too early.
"""
NEWEST_TESTED = 19
RAISES_ITS_LEVEL_SINCE = 190000
"""Version, as libpq numbers it, since which a primary with wal_level = replica writes what logical decoding
needs from the first logical slot until the last one is dropped, without a restart.
"""
LONG_TRANSACTION_S = 60
SMALL_KEEP_BYTES = 4 << 30
SHORT_OUTAGE_MINUTES = 60
"""What somebody who was woken up needs to understand and fix something."""
CLOCK_SKEW_S = 5.0
RECENT_S = 30.0
"""A checkpoint at least this old gives a usable rate of WAL."""
HELPERS = 2
"""Senders, and slots beside our own, that a snapshot needs while the stream runs: one each, and one to
spare.
"""
SENDERS_COUNT_NOT_SINCE = 180000
_FEWER = "or fewer source.snapshot_connections, each of which needs two"
_CONNECTIONS = """
    SELECT pg_catalog.count(*) FILTER (WHERE a.usesysid = r.oid),
        pg_catalog.count(*) FILTER (WHERE a.datname = pg_catalog.current_database()), pg_catalog.count(a.pid),
        r.rolconnlimit, d.datconnlimit, r.rolsuper, COALESCE((SELECT pg_catalog.pg_has_role(p.oid, 'USAGE')
            FROM pg_catalog.pg_roles p WHERE p.rolname = 'pg_use_reserved_connections'), false)
    FROM pg_catalog.pg_roles r JOIN pg_catalog.pg_database d ON d.datname = pg_catalog.current_database()
    LEFT JOIN pg_catalog.pg_stat_activity a ON a.datid IS NOT NULL
        AND COALESCE(a.backend_type, 'client backend') = 'client backend'
        AND NOT (a.usesysid = r.oid AND a.application_name = %(application)s)
    WHERE r.rolname = CURRENT_USER GROUP BY r.oid, r.rolconnlimit, r.rolsuper, d.datconnlimit"""
"""Sessions of others: what kind another role's is, an ordinary role does not see."""
_RELOAD = "SELECT pg_reload_conf();"
_UNREACHABLE_RATE = 1.0


@dataclass(frozen=True, slots=True)
class Look:
    """One look at one server, over one pinned session."""

    options: SourceOptions
    conn: Connection
    settings: dict[str, str]
    server: ServerFacts
    slot: SlotFacts | None
    role: str
    now: Callable[[], float]

    @classmethod
    def at(cls, options: SourceOptions, conn: Connection, *, now: Callable[[], float]) -> "Look":
        """Raises SourceError."""
        with translated("reading the server's settings"):
            rows = conn.execute(b"SELECT name, setting FROM pg_catalog.pg_settings").fetchall()
            role = conn.execute(b"SELECT current_user::text").fetchone()
        assert role is not None
        return cls(options, conn, dict(rows), server_facts(conn, options), slot_facts(conn, options.slot), role[0], now)

    @property
    def version(self) -> int:
        return self.server.server_version

    def one(self, command: str, *parameters: Any) -> Any:
        """The first value of the first row. Raises SourceError."""
        with translated("examining the source"):
            row = self.conn.execute(command.encode(), parameters or None).fetchone()
        return row[0] if row else None


def examine_server(look: Look) -> Iterator[Finding]:
    """Everything but slot, publication and tables."""
    yield from examine_version(look.version, allow_untested=look.options.allow_untested)
    for part in (_log, _encoding, _standby, _clock, _synchronous, _free_slots, _rights, _keep_size, _timeouts, _waits):
        yield from part(look)
    if not look.server.in_recovery and (lacks := ddl_signal.probe(look.conn).lacks):
        seen = (
            f"{lacks}: Sluice finds DDL only by reading the catalog, and may miss a change that is undone "
            "between two readings"
        )
        fix = "sluice setup --ddl-signal prints its SQL, for a superuser"
        yield Finding("info", "source.ddl_signal", "DDL signal", seen, fix_setting=fix)


def examine_version(version: int, *, allow_untested: bool = False) -> Iterator[Finding]:
    """`version` as libpq numbers it."""
    major, minor = divmod(version, 10000)
    if major > NEWEST_TESTED:
        seen = f"it is PostgreSQL {major}; this release was tested up to {NEWEST_TESTED}"
        severity: Severity = "warning" if allow_untested else "critical"
        fix = "use a newer release of Sluice if there is one; source.allow_untested: true accepts the risk"
        yield Finding(severity, "server.untested", "server", seen, fix_setting=fix)
    if minor < FIXED_MINORS.get(major, 0):
        seen = f"it is PostgreSQL {major}.{minor}, in which logical decoding can lose changes"
        yield Finding(
            "warning",
            "server.minor",
            "server",
            seen,
            fix_setting=f"update to {major}.{FIXED_MINORS[major]} or later",
            needs_restart=True,
        )


def _log(look: Look) -> Iterator[Finding]:
    level = look.settings.get("effective_wal_level", look.server.wal_level)
    raises_it = level == "replica" and look.version >= RAISES_ITS_LEVEL_SINCE and not look.server.in_recovery
    if level != "logical" and not raises_it:
        yield _setting("critical", "server.wal_level", "wal_level", f"it is {level}", "'logical'", restart=True)


def _setting(
    severity: Severity, code: str, name: str, seen: str, value: str, *, restart: bool = False, remark: str = ""
) -> Finding:
    reload = "" if restart else f" {_RELOAD}"
    words = f"{name} = {value.strip(chr(39)) or 'empty'}{remark}"
    return Finding(
        severity,
        code,
        name,
        seen,
        fix_sql=f"ALTER SYSTEM SET {name} = {value};{reload}",
        fix_setting=words,
        needs_restart=restart,
    )


def _encoding(look: Look) -> Iterator[Finding]:
    encoding = look.server.encoding
    if encoding == "SQL_ASCII":
        seen = "its encoding is SQL_ASCII: the server stores bytes of any encoding and cannot turn them into UTF-8"
        yield Finding(
            "critical",
            "server.encoding",
            look.server.database,
            seen,
            fix_setting="move the data to a database with encoding UTF8",
        )
    elif encoding != "UTF8":
        seen = f"its encoding is {encoding}: a byte without a UTF-8 form would stop the stream"
        yield Finding(
            "warning", "server.encoding", look.server.database, seen, fix_setting="prefer a database with encoding UTF8"
        )


def _standby(look: Look) -> Iterator[Finding]:
    if not look.server.in_recovery:
        return
    if look.version < 160000:
        seen = "it is a standby, and only 16 and later decode on standbys"
        yield Finding("critical", "server.standby", "server", seen, fix_setting="source.dsn: the primary")
        return
    if look.settings.get("hot_standby_feedback") != "on":
        seen = "it is a standby without hot_standby_feedback: the primary's VACUUM can invalidate the slot"
        yield _setting("warning", "server.standby", "hot_standby_feedback", seen, "on")
    seen = (
        "it is a standby: you change publication and tables on its primary, no other server has the "
        "slot, and a new slot and every snapshot wait until the primary logs which transactions run"
    )
    fix = "on the primary, while something waits: SELECT pg_log_standby_snapshot();"
    yield Finding("info", "server.standby_limits", "server", seen, fix_setting=fix)


def _clock(look: Look) -> Iterator[Finding]:
    before = look.now()
    theirs = float(look.one("SELECT EXTRACT(epoch FROM pg_catalog.clock_timestamp())::float8"))
    after = look.now()
    skew = min(theirs - before, theirs - after, key=abs)
    if not before <= theirs <= after and abs(skew) > CLOCK_SKEW_S:
        seen = f"the server's clock is {skew:+.0f} s from ours: lag in seconds is wrong by that difference"
        yield Finding("warning", "server.clock", "clock", seen, fix_setting="synchronize both clocks")


def _synchronous(look: Look) -> Iterator[Finding]:
    names = look.settings.get("synchronous_standby_names", "")
    application = look.options.application_name
    if "*" in names or application in names:
        seen = f"it matches {application}: commits on the source would wait for this pipeline"
        fix = f"ALTER SYSTEM SET synchronous_standby_names = '...'; {_RELOAD}"
        yield Finding(
            "warning",
            "server.synchronous",
            "synchronous_standby_names",
            seen,
            fix_sql=fix,
            fix_setting="name the intended standbys",
            by_hand=True,
        )


def _rights(look: Look) -> Iterator[Finding]:
    try:
        identify(look.options)
    except SourceError as error:
        has_it = look.one("SELECT rolreplication OR rolsuper FROM pg_catalog.pg_roles WHERE rolname = current_user")
        yield Finding(
            "critical",
            "role.replication",
            look.role,
            f"it cannot open a replication connection: {error}",
            fix_sql="" if has_it else f"ALTER ROLE {quote_identifier(look.role)} REPLICATION;",
            fix_setting=error.hint or "run check again",
        )
    if look.one("SELECT pg_catalog.current_setting('is_superuser')") == "on":
        yield Finding(
            "info",
            "role.superuser",
            look.role,
            "it is a superuser; LOGIN, REPLICATION and SELECT on the tables are enough",
        )


def _free_slots(look: Look) -> Iterator[Finding]:
    """Before `_rights`, whose own WAL sender may be seen for a moment after it has left."""
    limit = int(look.settings["max_replication_slots"])
    free = limit - int(look.one("SELECT pg_catalog.count(*) FROM pg_catalog.pg_replication_slots"))
    needed = 1 + (look.slot is None)
    if free < needed:
        seen = f"{max(free, 0)} of {limit} are free, {needed} are needed (one of them for snapshots)"
        yield _setting(
            "critical", "server.slots", "max_replication_slots", seen, str(limit + needed - free), restart=True
        )
    limit = int(look.settings["max_wal_senders"])
    # pg_stat_activity hides from an ordinary role what kind of process another role's is; this
    # function counts them for everybody.
    free = limit - int(look.one("SELECT pg_catalog.count(*) FROM pg_catalog.pg_stat_get_wal_senders()"))
    if free < HELPERS:
        seen = f"{max(free, 0)} of {limit} are free, {HELPERS} are needed (one of them for snapshots)"
        yield _setting("critical", "server.senders", "max_wal_senders", seen, str(limit + HELPERS - free), restart=True)


def examine_connections(look: Look, sessions: int) -> Iterator[Finding]:
    """Whether the pipeline may open so many `sessions`, beside those of others. Before 18, WAL senders may count as
    well for the limits of a role and of a database.
    """
    with translated("counting connections"):
        row = look.conn.execute(_CONNECTIONS.encode(), {"application": look.options.application_name}).fetchone()
    assert row is not None
    of_role, of_database, of_all, role_limit, database_limit, is_superuser, uses_reserved = row
    counted_here = sessions + (HELPERS if look.version < SENDERS_COUNT_NOT_SINCE else 0)
    limits = ((look.role, "ROLE", role_limit, of_role), (look.server.database, "DATABASE", database_limit, of_database))
    for name, what, limit, used in limits if not is_superuser else ():
        if 0 <= limit < used + counted_here:
            seen = _few(limit, used, counted_here)
            fix = f"ALTER {what} {quote_identifier(name)} CONNECTION LIMIT {used + counted_here};"
            yield Finding("critical", "role.connections", name, seen, fix_sql=fix, fix_setting=_FEWER)
    limit = int(look.settings["max_connections"])
    if not is_superuser:
        limit -= int(look.settings["superuser_reserved_connections"])
        limit -= 0 if uses_reserved else int(look.settings.get("reserved_connections", "0"))
    if limit < of_all + sessions:
        wanted = int(look.settings["max_connections"]) + of_all + sessions - limit
        seen = _few(limit, of_all, sessions)
        yield _setting("critical", "server.connections", "max_connections", seen, str(wanted), restart=True)


def _few(limit: int, used: int, needed: int) -> str:
    return f"{max(limit - used, 0)} of {limit} connections are free, {needed} are needed"


def _keep_size(look: Look) -> Iterator[Finding]:
    keep_mb = int(look.settings.get("max_slot_wal_keep_size", "-1"))
    name, remark = "max_slot_wal_keep_size", ", or what the disk can spare"
    if keep_mb < 0:
        seen = "it is unlimited: while the pipeline is down, WAL accumulates until the source's disk is full"
        yield _setting("warning", "server.keep_size", name, seen, "'100GB'", remark=remark)
        return
    rate = _wal_rate(look)
    minutes = (keep_mb << 20) / rate / 60 if rate >= _UNREACHABLE_RATE else None
    if keep_mb << 20 >= SMALL_KEEP_BYTES and (minutes is None or minutes >= SHORT_OUTAGE_MINUTES):
        return
    lasts = (
        f"about {minutes:.0f} minutes, at the {rate / 2**20:.1f} MiB/s of WAL seen lately,"
        if minutes is not None
        else "an unknown time"
    )
    severity: Severity = "critical" if keep_mb == 0 else "warning"
    yield _setting(
        severity,
        "server.keep_size",
        name,
        f"it is {keep_mb} MB: an outage of {lasts} loses the slot",
        "'100GB'",
        remark=remark,
    )


def _wal_rate(look: Look) -> float:
    """Bytes of WAL a second: the higher of the average since the statistics began and of what came
    since the last checkpoint.
    """
    average = float(
        look.one(
            "SELECT wal_bytes / GREATEST(EXTRACT(epoch FROM pg_catalog.now() - stats_reset), 1) FROM "
            "pg_catalog.pg_stat_wal"
        )
        or 0
    )
    with translated("reading the last checkpoint"):
        row = look.conn.execute(
            b"SELECT redo_lsn::text, EXTRACT(epoch FROM pg_catalog.clock_timestamp() - checkpoint_time)::float8"
            b" FROM pg_catalog.pg_control_checkpoint()"
        ).fetchone()
    assert row is not None
    redo, age = lsn.parse(row[0]), float(row[1])
    recent = max(look.server.wal_end_lsn - redo, 0) / age if age >= RECENT_S else 0.0
    return max(average, recent)


def _timeouts(look: Look) -> Iterator[Finding]:
    idle_s = int(look.settings.get("idle_replication_slot_timeout", "0"))
    if idle_s > 0:
        seen = f"it is {idle_s} s: a pipeline that is stopped for longer loses its slot"
        yield _setting("warning", "server.idle_slots", "idle_replication_slot_timeout", seen, "0")
    timeout_ms = int(look.settings["wal_sender_timeout"])
    if timeout_ms < 5000:
        seen = (
            f"it is {timeout_ms} ms: Sluice reports three times as often, but a short stall of this "
            "process would end the stream"
        )
        if timeout_ms == 0:
            seen = "it is 0: the server keeps the slot for a client that vanished, until TCP ends the connection"
        yield _setting("warning", "server.sender_timeout", "wal_sender_timeout", seen, "'60s'")


def _waits(look: Look) -> Iterator[Finding]:
    for blocker in open_transactions(look.options):
        if blocker.age_s < LONG_TRANSACTION_S:
            continue
        if blocker.pid is None:
            seen = f"it was prepared {blocker.age_s:.0f} s ago: creating a slot, and each snapshot, waits for it"
            fix = f"ROLLBACK PREPARED {quote_literal(blocker.gid).strip()};"
            what = f"prepared transaction {blocker.gid}"
            yield Finding(
                "warning",
                "server.prepared_transaction",
                what,
                seen,
                fix_sql=fix,
                fix_setting="or COMMIT PREPARED",
                by_hand=True,
            )
        else:
            seen = (
                f"its transaction has run for {blocker.age_s:.0f} s: creating a slot, and each snapshot, waits for it"
            )
            fix = f"SELECT pg_terminate_backend({blocker.pid});"
            what = f"process {blocker.pid} ({blocker.application_name})"
            yield Finding(
                "warning",
                "server.long_transaction",
                what,
                seen,
                fix_sql=fix,
                fix_setting="or wait until it ends",
                by_hand=True,
            )
    hidden = look.one(
        "SELECT pg_catalog.count(DISTINCT l.pid) FROM pg_catalog.pg_locks l JOIN "
        "pg_catalog.pg_stat_activity a ON a.pid = l.pid"
        " WHERE l.locktype = 'transactionid' AND l.mode = 'ExclusiveLock' AND l.granted AND a.backend_start IS NULL"
    )
    if hidden:
        seen = (
            f"{counted(hidden, 'transaction')} of other roles open, and this role may not see for how long: "
            "creating a slot waits for that"
        )
        fix = f"GRANT pg_read_all_stats TO {quote_identifier(look.role)};"
        yield Finding(
            "info",
            "role.statistics",
            look.role,
            seen,
            fix_sql=fix,
            fix_setting="it would also see other sessions' statements",
            by_hand=True,
        )


def examine_load_limits(look: Look, limits: Sequence[str]) -> Iterator[Finding]:
    """`limits` are the settings that limit what only some roles may see. A snapshot waits for as long as
    that cannot be seen.
    """
    if not limits or look.one("SELECT pg_catalog.pg_has_role('pg_read_all_stats', 'USAGE')"):
        return
    yield Finding(
        "warning",
        "role.load_limits",
        look.role,
        f"it may not see what {' and '.join(limits)} limit{'s' if len(limits) == 1 else ''}: no initial rows are read "
        "until it may",
        fix_sql=f"GRANT pg_read_all_stats TO {quote_identifier(look.role)};",
        fix_setting="it would also see other sessions' statements; or leave the limit out",
    )


def examine_writable(look: Look) -> Iterator[Finding]:
    """Whether the role may create what is missing at all. Nothing else of the pipeline has to write."""
    if (refusal := read_only(look.conn)) is not None:
        yield Finding(
            "critical",
            "role.read_only",
            look.role,
            f"{refusal.seen}: it cannot create the publication",
            fix_sql=f"{refusal.statement};" if refusal.statement else "",
            fix_setting="create the publication as another role; `sluice setup --print-sql` prints the SQL",
            by_hand=True,
        )
