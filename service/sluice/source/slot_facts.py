"""Reading which server this is, what the replication slot is, and what is prepared now. (PostgreSQL:
pg_replication_slots; pg_prepared_xacts.)
"""

from sluice import lsn
from sluice.errors import SourceUnavailable
from sluice.source.facts import ServerFacts, SlotFacts
from sluice.source.history import read_history
from sluice.source.sessions import Connection, SourceOptions, translated


def server_facts(
    conn: Connection, options: SourceOptions, *, before: ServerFacts | None = None, whole: bool = False
) -> ServerFacts:
    """Raises SourceError. `before` is what was read earlier over the same connection: the history of a
    timeline stays the same. Only a walsender tells it: while there is none to be had, it is not known,
    unless `whole` asks for the error.
    """
    command = """
        SELECT (SELECT system_identifier::text FROM pg_catalog.pg_control_system()),
               pg_catalog.pg_is_in_recovery(),
               CASE WHEN pg_catalog.pg_is_in_recovery()
                    THEN (SELECT timeline_id::int FROM pg_catalog.pg_control_checkpoint())
                    ELSE ('x' || pg_catalog.substr(
                        pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 1, 8))::bit(32)::int END,
               d.datname::text, d.oid::int8, pg_catalog.pg_encoding_to_char(d.encoding)::text,
               (CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn()
                     ELSE pg_catalog.pg_current_wal_insert_lsn() END)::text,
               pg_catalog.current_setting('wal_level')
        FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database()"""
    with translated("reading which server this is"):
        row = conn.execute(command.encode()).fetchone()
    assert row is not None
    system, in_recovery, timeline, database, oid, encoding, wal_end, wal_level = row
    forks, away = None, ""
    if before is not None and before.timeline == timeline and not before.history_away:
        forks = before.forks
    else:
        try:
            forks = read_history(options, timeline)
        except SourceUnavailable as error:
            if whole:
                raise
            away = str(error)
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
        forks=forks,
        history_away=away,
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


def prepared_transactions(conn: Connection) -> frozenset[tuple[str, int]]:
    """(gid, xid) of the transactions of this database that are prepared now."""
    with translated("reading which transactions are prepared"):
        rows = conn.execute(
            "SELECT p.gid::text, p.transaction::text::int8 FROM pg_catalog.pg_prepared_xacts p WHERE "
            "p.database = pg_catalog.current_database()"
        ).fetchall()
    return frozenset((gid, xid) for gid, xid in rows)
