"""How loaded a server is, by what an ordinary role can ask of 14 and later without extensions.

Invariant: what cannot be seen is None, never a guess: only `pg_read_all_stats` shows how far standbys are
and what the sessions of others do. Must not decide anything. (PostgreSQL: pg_stat_replication;
pg_stat_activity; pg_replication_slots.)
"""

from dataclasses import dataclass

from sluice.source.sessions import Connection, SourceOptions, translated

_WAL_END = (
    "CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn() "
    "ELSE pg_catalog.pg_current_wal_lsn() END"
)
_SERVER = f"""
    SELECT {_WAL_END} - '0/0'::pg_catalog.pg_lsn,
        (SELECT {_WAL_END} - s.confirmed_flush_lsn FROM pg_catalog.pg_replication_slots s WHERE s.slot_name = %(slot)s),
        pg_catalog.pg_has_role('pg_read_all_stats', 'USAGE')"""
_STANDBYS = """
    SELECT r.pid, r.application_name, r.replay_lsn - '0/0'::pg_catalog.pg_lsn,
        COALESCE(EXTRACT(epoch FROM r.replay_lag), 0)::float8
    FROM pg_catalog.pg_stat_replication r LEFT JOIN pg_catalog.pg_replication_slots s ON s.active_pid = r.pid
    WHERE s.slot_type IS DISTINCT FROM 'logical' AND r.replay_lsn IS NOT NULL"""
_SESSIONS = """
    SELECT CASE WHEN pg_catalog.bool_or(state = 'disabled') THEN NULL
        ELSE count(*) FILTER (WHERE state IN ('active', 'fastpath function call')) END
    FROM pg_catalog.pg_stat_activity
    WHERE backend_type = 'client backend' AND pg_catalog.split_part(application_name, ' ', 1) <> %(ours)s"""


@dataclass(frozen=True, slots=True)
class Standby:
    """A server that streams from this one and replays. `lag_s` is how long the server saw it take for the
    newest WAL that it has replayed: of one that stands still it says nothing.
    """

    pid: int
    name: str
    replay_lsn: int
    lag_s: float


@dataclass(frozen=True, slots=True)
class SourceLoad:
    """One look. `stream_lag` is the WAL, in bytes, that the pipeline's slot has not confirmed, None without
    the slot. `active_sessions` are sessions of others, of all databases, that run a statement.
    """

    wal_end_lsn: int
    stream_lag: int | None
    standbys: tuple[Standby, ...] | None
    active_sessions: int | None


def source_load(conn: Connection, options: SourceOptions) -> SourceLoad:
    """Raises SourceError."""
    with translated("asking how loaded the source is"):
        # The standbys first: what they have replayed is never ahead of where the server is afterwards.
        seen = conn.execute(_STANDBYS.encode()).fetchall()
        row = conn.execute(_SERVER.encode(), {"slot": options.slot}).fetchone()
        sessions = conn.execute(_SESSIONS.encode(), {"ours": options.application_name}).fetchone()
    assert row is not None
    assert sessions is not None
    wal_end, stream_lag, sees_all = row
    return SourceLoad(
        wal_end_lsn=int(wal_end),
        stream_lag=None if stream_lag is None else max(0, int(stream_lag)),
        standbys=tuple(Standby(pid, name, int(lsn), lag) for pid, name, lsn, lag in seen) if sees_all else None,
        active_sessions=sessions[0] if sees_all else None,
    )
