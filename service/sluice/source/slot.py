"""The publication and the replication slot: what they are, whether we may go on from them, and
making them when asked to.

Invariant: a slot is created only by `ensure_slot`, never dropped here, and streaming starts only at
the position that `prove_continuity` returned. Any doubt is a SlotLost that names its case. Must
not: alter an existing publication or slot; what should change is proposed as SQL. (PostgreSQL:
Logical Decoding Concepts; pg_replication_slots; CREATE PUBLICATION.)
"""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import psycopg

from sluice import lsn
from sluice.contract.entries import Opened
from sluice.errors import SlotLost, SourceRefused
from sluice.source.binary import require_binary
from sluice.source.catalog import Catalog
from sluice.source.quoting import quote_identifier, quote_qualified, quote_slot
from sluice.source.sessions import SourceOptions, open_query, open_replication, translated
from sluice.source.snapshot_export import Waiting, create_slot

Connection = psycopg.Connection[tuple[Any, ...]]

TWO_PHASE_SINCE = 150000
TWO_PHASE_OFF_SINCE = 180000
FAILOVER_SINCE = 170000
"""Versions, as libpq numbers them, since which a slot can be made or set to decode at PREPARE, be
set back, and be synchronised to standbys.
"""
PUBLISHED = "insert, update, delete, truncate"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """Which server this is and how far its log has come. `wal_end_lsn` is the replayed position on
    a standby.
    """

    system_identifier: str
    timeline: int
    database: str
    database_oid: int
    server_version: int
    wal_end_lsn: int
    wal_level: str
    in_recovery: bool
    encoding: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotFacts:
    """One row of pg_replication_slots; what a server version does not have is None, False or empty.

    `safe_wal_size` is None without a limit, `catalog_xmin_age` in transactions. `active_as` is the
    application_name of the session that uses the slot, None when nobody does and where it cannot be
    seen. `decoded` is whether the server has decoded transactions for the slot, as far as its
    statistics go back.
    """

    name: str
    plugin: str
    slot_type: str
    database: str
    temporary: bool
    active_pid: int | None
    restart_lsn: int | None
    confirmed_flush_lsn: int | None
    two_phase: bool
    failover: bool
    synced: bool
    wal_status: str
    invalidation_reason: str
    conflicting: bool
    safe_wal_size: int | None
    catalog_xmin_age: int | None
    active_as: str | None = None
    decoded: bool = False

    @property
    def invalidated(self) -> str:
        """Why the slot can never be used again, empty when it can."""
        if self.invalidation_reason:
            return self.invalidation_reason
        # 16 calls every invalidated slot conflicting, but forgets the WAL position only of those
        # whose WAL is gone.
        if self.conflicting and self.restart_lsn is not None:
            return "conflict with recovery on a standby"
        return "wal_removed" if self.wal_status == "lost" or self.confirmed_flush_lsn is None else ""


@dataclass(frozen=True, slots=True)
class EnsuredPublication:
    """What `ensure_publication` did; `statement` is the SQL that it ran, empty when there was
    nothing to do.
    """

    created: bool
    statement: str = ""


def server_facts(conn: Connection) -> ServerFacts:
    """Raises SourceError."""
    command = """
        SELECT (SELECT system_identifier::text FROM pg_catalog.pg_control_system()), pg_catalog.pg_is_in_recovery(),
               CASE WHEN pg_catalog.pg_is_in_recovery() THEN (SELECT timeline_id::int FROM pg_catalog.pg_control_checkpoint())
                    ELSE ('x' || pg_catalog.substr(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 1, 8))::bit(32)::int END,
               d.datname::text, d.oid::int8, pg_catalog.pg_encoding_to_char(d.encoding)::text,
               (CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn() ELSE pg_catalog.pg_current_wal_insert_lsn() END)::text,
               pg_catalog.current_setting('wal_level')
        FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database()"""
    with translated("reading which server this is"):
        row = conn.execute(command.encode()).fetchone()
    assert row is not None
    system, in_recovery, timeline, database, oid, encoding, wal_end, wal_level = row
    return ServerFacts(
        system_identifier=system,
        timeline=timeline,
        database=database,
        database_oid=oid,
        server_version=conn.pgconn.server_version,
        wal_end_lsn=lsn.parse(wal_end),
        wal_level=wal_level,
        in_recovery=in_recovery,
        encoding=encoding,
    )


def slot_facts(conn: Connection, name: str) -> SlotFacts | None:
    """None when there is no such slot. Raises SourceError."""
    with translated("reading the replication slot"):
        # to_jsonb carries whatever columns this server version has.
        row = conn.execute(
            "SELECT pg_catalog.to_jsonb(s), pg_catalog.age(s.catalog_xmin), a.application_name,"
            " COALESCE(t.total_txns > 0 OR t.stream_txns > 0, false) FROM pg_catalog.pg_replication_slots s"
            " LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = s.active_pid"
            " LEFT JOIN pg_catalog.pg_stat_replication_slots t ON t.slot_name = s.slot_name WHERE s.slot_name = %s",
            (name,),
        ).fetchone()
    if row is None:
        return None
    seen, age, active_as, decoded = row
    return SlotFacts(
        name=name,
        plugin=seen["plugin"] or "",
        slot_type=seen["slot_type"],
        database=seen["database"] or "",
        temporary=seen["temporary"],
        active_pid=seen["active_pid"],
        restart_lsn=lsn.parse(seen["restart_lsn"]) if seen["restart_lsn"] else None,
        confirmed_flush_lsn=lsn.parse(seen["confirmed_flush_lsn"]) if seen["confirmed_flush_lsn"] else None,
        two_phase=bool(seen.get("two_phase")),
        failover=bool(seen.get("failover")),
        synced=bool(seen.get("synced")),
        wal_status=seen["wal_status"] or "",
        invalidation_reason=seen.get("invalidation_reason") or "",
        conflicting=bool(seen.get("conflicting")),
        safe_wal_size=seen["safe_wal_size"],
        catalog_xmin_age=age,
        active_as=active_as,
        decoded=decoded,
    )


def foreign_user(slot: SlotFacts | None, application_name: str) -> str:
    """Who uses the slot, in words, when it is certainly not a session with our `application_name`;
    else empty. Pure.
    """
    if slot is None or slot.active_pid is None or slot.active_as is None:
        return ""
    # A pooler may add the client's address behind a space.
    if slot.active_as.partition(" ")[0] == application_name:
        return ""
    return f"process {slot.active_pid} (application_name {slot.active_as or 'not set'})"


def prove_continuity(
    opened: Opened | None, through_lsn: int, *, server: ServerFacts, slot: SlotFacts | None, two_phase: bool
) -> int:
    """The position to start at, when everything that committed after `through_lsn` can still be had
    from this slot. Pure.

    `opened` is the newest epoch in the manifest, None for a pipeline that never ran: then the
    slot's own position is the start. Raises SlotLost, its message beginning with the case: MISSING,
    WRONG_CLUSTER, WRONG_DATABASE, TIMELINE, WRONG_PLUGIN, INVALIDATED, TWO_PHASE, AHEAD, DIVERGED.
    """
    if opened is not None:
        _same_server(opened, server)
    if slot is None:
        raise SlotLost(
            "MISSING: the replication slot does not exist",
            hint="it was dropped, or the server was replaced: changes since then are lost, copy the "
            "tables again under a new slot",
        )
    _usable(slot, server, two_phase=two_phase)
    confirmed = slot.confirmed_flush_lsn
    assert confirmed is not None
    if opened is None:
        return confirmed
    if confirmed > through_lsn:
        raise SlotLost(
            f"AHEAD: slot {slot.name} was advanced or created anew: it starts at "
            f"{lsn.show(confirmed)}, the manifest ends at {lsn.show(through_lsn)}",
            hint="the changes in between are lost: copy the tables again",
        )
    if through_lsn > server.wal_end_lsn:
        raise SlotLost(
            f"DIVERGED: the manifest holds changes through {lsn.show(through_lsn)}, this server's log "
            f"ends at {lsn.show(server.wal_end_lsn)}",
            hint="the server was restored or failed over to an older state: copy the tables again",
        )
    return through_lsn


def _same_server(opened: Opened, server: ServerFacts) -> None:
    if opened.system_identifier != server.system_identifier:
        raise SlotLost(
            f"WRONG_CLUSTER: this server is {server.system_identifier}, the manifest was written from "
            f"{opened.system_identifier}",
            hint="correct source.dsn; after a restore or an upgrade start a new pipeline",
        )
    if opened.database_oid != server.database_oid:
        raise SlotLost(
            f"WRONG_DATABASE: connected to {server.database} (oid {server.database_oid}), the "
            f"manifest is of {opened.database} (oid {opened.database_oid})",
            hint="correct the database in source.dsn; a dropped and recreated database needs a new pipeline",
        )
    if opened.timeline != server.timeline:
        raise SlotLost(
            f"TIMELINE: the server is on timeline {server.timeline}, the manifest on "
            f"{opened.timeline}: it failed over or was restored to a point in time",
            hint="changes that the old server had sent may not exist on this one: copy the tables again",
        )


def _usable(slot: SlotFacts, server: ServerFacts, *, two_phase: bool) -> None:
    if slot.slot_type != "logical" or slot.plugin != "pgoutput" or slot.temporary:
        kind = "temporary" if slot.temporary else slot.slot_type
        raise SlotLost(
            f"WRONG_PLUGIN: slot {slot.name} is a {kind} slot of plugin {slot.plugin or '(none)'}, "
            "not a permanent one of pgoutput",
            hint="name another slot in source.slot",
        )
    if slot.database != server.database:
        raise SlotLost(
            f"WRONG_DATABASE: slot {slot.name} belongs to database {slot.database}, the connection is "
            f"to {server.database}",
            hint="correct source.dsn or source.slot",
        )
    if slot.invalidated:
        raise SlotLost(
            f"INVALIDATED: slot {slot.name} can never be used again ({slot.invalidated})",
            hint="raise max_slot_wal_keep_size or idle_replication_slot_timeout, then copy the tables "
            "again under a new slot",
        )
    if slot.two_phase != two_phase:
        raise SlotLost(
            f"TWO_PHASE: slot {slot.name} has two_phase = {str(slot.two_phase).lower()}, the "
            f"configuration says {str(two_phase).lower()}",
            hint=two_phase_remedy(server.server_version, wanted=two_phase),
        )


def can_set_two_phase(server_version: int, *, wanted: bool) -> bool:
    """Whether a server of `server_version` (as libpq numbers it) can turn the flag of a slot that
    exists on, or off. (ALTER_REPLICATION_SLOT)
    """
    return server_version >= (TWO_PHASE_SINCE if wanted else TWO_PHASE_OFF_SINCE)


def two_phase_remedy(server_version: int, *, wanted: bool) -> str:
    """What makes a slot's two_phase flag what is `wanted`, on a server of this version (as libpq
    numbers it).
    """
    major = server_version // 10000
    can = can_set_two_phase(server_version, wanted=wanted)
    if wanted and not can:
        return f"PostgreSQL {major} cannot decode at PREPARE: set source.two_phase: false"
    if wanted:
        return (
            "the slot's flag decides what is sent: `sluice setup` turns it on and loses nothing, or set "
            "source.two_phase: false"
        )
    if not can:
        return f"PostgreSQL {major} cannot turn it off for a slot: set source.two_phase: true, or begin a new pipeline"
    return (
        "the slot's flag decides what is sent: `sluice setup` turns it off and loses nothing, or set "
        "source.two_phase: true"
    )


def create_publication_sql(name: str, tables: Sequence[tuple[str, str]], *, via_root: bool) -> str:
    """The statement that makes the publication, for people and for `ensure_publication`."""
    listed = ", ".join(f"ONLY {quote_qualified(schema, table)}" for schema, table in tables)
    root = ", publish_via_partition_root = true" if via_root else ""
    return f"CREATE PUBLICATION {quote_identifier(name)} FOR TABLE {listed} WITH (publish = '{PUBLISHED}'{root})"


def ensure_publication(conn: Connection, name: str, tables: Sequence[tuple[str, str]] | None) -> EnsuredPublication:
    """Creates the publication of `tables` when it is missing; None means whatever it has. Never
    alters an existing one.

    Must come before the slot: on PostgreSQL 14 to 17 a slot older than its publication fails for
    ever. Raises SourceRefused, its hint being the SQL to run.
    """
    with translated("reading the publication"):
        exists = (
            conn.execute("SELECT 1 FROM pg_catalog.pg_publication WHERE pubname = %s", (name,)).fetchone() is not None
        )
    if exists:
        _covers(conn, name, tables or ())
        return EnsuredPublication(created=False)
    if not tables:
        raise SourceRefused(
            f"publication {name} does not exist, and source.tables does not say what it should have",
            hint=f"name the tables in source.tables, or run: CREATE PUBLICATION {quote_identifier(name)} "
            "FOR TABLE ...;",
        )
    with translated("reading the tables to publish"):
        partitioned = conn.execute(
            "SELECT 1 FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = "
            "c.relnamespace WHERE c.relkind = 'p'"
            " AND (n.nspname::text, c.relname::text) IN (SELECT * FROM ROWS FROM "
            "(pg_catalog.unnest(%s::text[]), pg_catalog.unnest(%s::text[])))",
            ([schema for schema, _ in tables], [table for _, table in tables]),
        ).fetchone()
    statement = create_publication_sql(name, tables, via_root=partitioned is not None)
    try:
        with translated("creating the publication"):
            conn.execute(statement.encode())
    except SourceRefused as error:
        raise SourceRefused(
            str(error), hint=f"as the owner of the tables with CREATE on the database, run: {statement};"
        ) from error
    return EnsuredPublication(created=True, statement=statement)


def require_publication(conn: Connection, name: str) -> None:
    """Raises SourceRefused when the publication does not exist now, although its tables were
    carried.
    """
    with translated("reading the publication"):
        exists = (
            conn.execute("SELECT 1 FROM pg_catalog.pg_publication WHERE pubname = %s", (name,)).fetchone() is not None
        )
    if not exists:
        raise SourceRefused(
            f"publication {name} does not exist any more: the server does not send its changes",
            hint="create it again as it was and start: what was written in between is not sent any more, "
            "so that its tables turn stale, by name, and "
            "`sluice resync` copies them again",
        )


def prepared_transactions(conn: Connection) -> frozenset[tuple[str, int]]:
    """(gid, xid) of the transactions of this database that are prepared now."""
    with translated("reading which transactions are prepared"):
        rows = conn.execute(
            "SELECT p.gid::text, p.transaction::text::int8 FROM pg_catalog.pg_prepared_xacts p WHERE "
            "p.database = pg_catalog.current_database()"
        ).fetchall()
    return frozenset((gid, xid) for gid, xid in rows)


def _covers(conn: Connection, name: str, tables: Sequence[tuple[str, str]]) -> None:
    # The view pg_publication_tables would wait for a lock on any of the tables.
    found = {(facts.schema, facts.name) for facts in Catalog(conn).published_tables(name)} if tables else set()
    missing = [table for table in tables if table not in found]
    if missing:
        added = ", ".join(quote_qualified(*table) for table in missing)
        raise SourceRefused(
            f"publication {name} does not have {', '.join('.'.join(table) for table in missing)}",
            hint=f"as the publication's owner, run: ALTER PUBLICATION {quote_identifier(name)} ADD TABLE {added};",
        )


def ensure_slot(
    options: SourceOptions, *, two_phase: bool = False, failover: bool = False, waiting: Waiting | None = None
) -> SlotFacts:
    """The pipeline's slot, created when it is missing. The publication must exist already. Raises
    SourceError.

    Creation waits for every older transaction; `waiting` shows whom for, and can cancel.
    """
    with closing(open_query(options)) as conn:
        found = slot_facts(conn, options.slot)
        if found is not None:
            return found
        if options.binary:
            # Refused before there is a slot that would hold back WAL for a pipeline that cannot run.
            require_binary(options)
        version = conn.pgconn.server_version
        for wanted, name, since in ((two_phase, "two_phase", TWO_PHASE_SINCE), (failover, "failover", FAILOVER_SINCE)):
            if wanted and version < since:
                raise SourceRefused(
                    f"{name} slots need PostgreSQL {since // 10000}, the server is {version // 10000}",
                    hint=f"leave source.{name} off",
                )
        flags = []
        if two_phase:
            flags.append("TWO_PHASE")
        if failover:
            flags.append("FAILOVER")
        # The parenthesised form is unknown to 14, and to all only FAILOVER needs it.
        suffix = f"(SNAPSHOT 'nothing', {', '.join(flags)})" if failover else " ".join(["NOEXPORT_SNAPSHOT", *flags])
        creating = open_replication(options)
        try:
            create_slot(
                creating,
                f"CREATE_REPLICATION_SLOT {quote_slot(options.slot)} LOGICAL pgoutput {suffix}",
                waiting=waiting,
                options=options,
            )
        finally:
            creating.close()
        created = slot_facts(conn, options.slot)
    if created is None:
        raise SlotLost(
            f"MISSING: slot {options.slot} vanished right after it was created",
            hint="see who drops slots on this server",
        )
    return created


def drop_slot(conn: Connection, name: str) -> None:
    """Drops a slot that nobody uses. Raises SlotBusy, SourceError."""
    with translated("dropping the replication slot", slot=name):
        conn.execute("SELECT pg_catalog.pg_drop_replication_slot(%s)", (name,))


def advance_slot(conn: Connection, name: str, to_lsn: int) -> int:
    """Moves a slot that nobody uses forward and returns where it is then. What it passes is gone.
    Raises SlotBusy, SourceError.
    """
    with translated("advancing the replication slot", slot=name):
        row = conn.execute(
            "SELECT end_lsn::text FROM pg_catalog.pg_replication_slot_advance(%s, %s::pg_lsn)", (name, lsn.show(to_lsn))
        ).fetchone()
    assert row is not None
    return lsn.parse(row[0])
