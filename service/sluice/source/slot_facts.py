"""Reading which server this is, what the replication slot is, and what is prepared now. (PostgreSQL:
pg_replication_slots; pg_prepared_xacts.)
"""

from dataclasses import asdict

from sluice import lsn
from sluice.errors import SourceUnavailable
from sluice.source import ddl_signal
from sluice.source.facts import Place, ServerFacts, SlotFacts
from sluice.source.sessions import PLACE, WAL_END, Connection, KnownSource, SourceOptions, translated
from sluice.source.timeline_history import read_history


def server_facts(
    conn: Connection, options: SourceOptions, *, before: ServerFacts | None = None, whole: bool = False
) -> ServerFacts:
    """Raises SourceError. `before` is what was read earlier over the same connection: the history of a
    timeline stays the same. Only a walsender tells it: while there is none to be had, it is not known,
    unless `whole` asks for the error.
    """
    command = f"""
        SELECT {PLACE},
               pg_catalog.pg_is_in_recovery(), pg_catalog.current_setting('server_encoding'),
               {WAL_END},
               pg_catalog.current_setting('wal_level'), EXISTS (SELECT FROM pg_catalog.pg_event_trigger t
                     JOIN pg_catalog.pg_proc f ON f.oid = t.evtfoid JOIN pg_catalog.pg_namespace n
                     ON n.oid = f.pronamespace WHERE n.nspname = '{ddl_signal.SCHEMA}')"""
    with translated("reading which server this is"):
        row = conn.execute(command.encode()).fetchone()
    assert row is not None
    *where, in_recovery, encoding, wal_end, wal_level, signals_ddl = row
    place = Place(*where)
    forks, away = None, ""
    if before is not None and before.timeline == place.timeline and not before.history_away:
        forks = before.forks
    else:
        try:
            forks = read_history(KnownSource.of(options, place), place.timeline)
        except SourceUnavailable as error:
            if whole:
                raise
            away = str(error)
    return ServerFacts(
        **asdict(place),
        server_version=conn.pgconn.server_version,
        wal_end_lsn=lsn.parse(wal_end),
        wal_level=wal_level,
        in_recovery=in_recovery,
        encoding=encoding,
        forks=forks,
        history_away=away,
        signals_ddl=signals_ddl,
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
