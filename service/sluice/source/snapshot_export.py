"""Creating logical slots, which waits for other people's transactions, and holding the snapshot
that a temporary one exports.

Invariant: rows visible in the snapshot are exactly those of commits before `consistent_lsn`; the
snapshot lives until `close`, in a transaction that does nothing else, and keeps no WAL. It does not outlive a
process that stands still: the server ends the session by itself. Must not: wait
silently, or leave a half-made slot behind. (PostgreSQL: Streaming Replication Protocol,
CREATE_REPLICATION_SLOT.)
"""

import select
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass

import psycopg
import structlog
from psycopg import pq

from sluice import lsn
from sluice.errors import SourceUnavailable
from sluice.quoting import quote_literal, quote_slot
from sluice.source.sessions import (
    Connection,
    KnownSource,
    SourceOptions,
    open_query,
    open_replication,
    raise_result,
    translated,
)

_POLL_MS = 200
_REPORT_EVERY_S = 2.0
_NAMED = 3
"""Transactions that a sentence names."""
HOLD_SECONDS = 600.0
_MOST_MILLISECONDS = (1 << 31) - 1
"""What such a setting of the server holds: 25 days."""
_SIGNS = 4
"""Signs of life of the session that holds a snapshot, in the time after which the server ends it."""
_ON_A_STANDBY = "if the server is a standby, it waits for its primary: run SELECT pg_log_standby_snapshot() there"


@dataclass(frozen=True, slots=True)
class Blocker:
    """A transaction that slot creation waits for: a process, or a prepared transaction by its gid."""

    pid: int | None
    application_name: str
    gid: str
    age_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """What to do while slot creation waits: `report` is called every two seconds with the open
    transactions, beside the line in the log; `cancelled` is asked more often.
    """

    report: Callable[[Sequence[Blocker]], None] = lambda _: None
    cancelled: Callable[[], bool] = lambda: False


@dataclass(frozen=True, slots=True)
class CreatedSlot:
    """Commits whose record starts at or after `consistent_lsn` will be streamed. `snapshot` is
    empty unless one was exported.
    """

    name: str
    consistent_lsn: int
    snapshot: str


def create_slot(
    conn: Connection, command: str, *, what: str, options: SourceOptions, waiting: Waiting | None = None
) -> CreatedSlot:
    """Runs CREATE_REPLICATION_SLOT on a replication connection; `what` is for the log. Raises SourceError;
    SourceUnavailable when cancelled.
    """
    pgconn = conn.pgconn
    try:
        with translated("creating a replication slot"):
            pgconn.send_query(command.encode())
            result = _wait(conn, waiting or Waiting(), options, what)
    except BaseException:
        conn.close()  # the server ends a creation whose client is gone
        raise
    if result is None or result.status != pq.ExecStatus.TUPLES_OK:
        raise_result(result, doing="creating a replication slot", slot=options.slot)
    name, consistent, snapshot = ((result.get_value(0, column) or b"").decode() for column in range(3))
    return CreatedSlot(name, lsn.parse(consistent), snapshot)


def waited_for(blockers: Sequence[Blocker]) -> str:
    """What slot creation waits for, in words."""
    if not blockers:
        return f"older transactions; {_ON_A_STANDBY}"
    named = [
        (f"process {one.pid} ({one.application_name or 'no application_name'})" if one.pid else f"prepared {one.gid}")
        + f", open for {one.age_s:.0f} s"
        for one in blockers[:_NAMED]
    ]
    more = len(blockers) - len(named)
    return f"older transactions to end: {'; '.join(named)}" + (f"; and {more:,} more" if more else "")


def _log_waiting(what: str, blockers: Sequence[Blocker]) -> None:
    structlog.get_logger("source").warning(
        f"{what} waits for older transactions to end",
        processes=[one.pid for one in blockers if one.pid],
        prepared=sum(not one.pid for one in blockers),
        **({} if blockers else {"hint": _ON_A_STANDBY}),
    )


def _wait(conn: Connection, waiting: Waiting, options: SourceOptions, what: str) -> pq.abc.PGresult | None:
    pgconn = conn.pgconn
    poll = select.poll()
    poll.register(pgconn.socket, select.POLLIN)
    next_report = time.monotonic() + _REPORT_EVERY_S
    while pgconn.flush():
        pgconn.consume_input()
    while pgconn.is_busy():
        if poll.poll(_POLL_MS):
            pgconn.consume_input()
        elif waiting.cancelled():
            conn.cancel_safe()
            raise SourceUnavailable("creating a replication slot was cancelled while it waited for older transactions")
        elif time.monotonic() >= next_report:
            blockers = open_transactions(options)
            _log_waiting(what, blockers)
            waiting.report(blockers)
            next_report = time.monotonic() + _REPORT_EVERY_S
    result = pgconn.get_result()
    while pgconn.get_result() is not None:
        pass
    return result


def open_transactions(options: SourceOptions) -> tuple[Blocker, ...]:
    """Transactions with an id, oldest first: slot creation waits for those that are older than it.
    Raises SourceError.
    """
    command = """
        SELECT pid, COALESCE(application_name, ''), '', COALESCE(EXTRACT(epoch FROM pg_catalog.now() - xact_start),
            0)::float8
        FROM pg_catalog.pg_stat_activity WHERE backend_xid IS NOT NULL AND pid <> pg_catalog.pg_backend_pid()
        UNION ALL SELECT NULL, '', gid::text, EXTRACT(epoch FROM pg_catalog.now() - prepared)::float8
            FROM pg_catalog.pg_prepared_xacts ORDER BY 4 DESC"""
    with closing(open_query(options)) as conn, translated("reading open transactions"):
        return tuple(Blocker(*row) for row in conn.execute(command.encode()).fetchall())


class SnapshotGone(SourceUnavailable):
    """The session that exported the snapshot has ended, or is one at another server."""


def enter_snapshot(conn: Connection, snapshot: str) -> None:
    """Begins a transaction that sees what `snapshot` does. Raises SnapshotGone, and what psycopg raises."""
    conn.execute(b"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    try:
        conn.execute(f"SET TRANSACTION SNAPSHOT {quote_literal(snapshot)}".encode())
    except (psycopg.errors.InvalidParameterValue, psycopg.errors.UndefinedObject):
        raise SnapshotGone("the exported snapshot is gone: the connection that held it ended") from None


def bound(conn: Connection, seconds: float) -> None:
    """From now on the server ends the session once we have asked nothing within its transaction, or read nothing
    of a COPY, for so long. Of a COPY it cannot do so on a Unix socket. (PostgreSQL: Client Connection
    Defaults; Connections and Authentication, tcp_user_timeout.)
    """
    milliseconds = min(round(seconds * 1000), _MOST_MILLISECONDS)
    with translated("bounding a session that holds a snapshot"):
        for name in ("idle_in_transaction_session_timeout", "tcp_user_timeout"):
            conn.execute(f"SET {name} = {milliseconds}".encode())


@contextmanager
def living(conn: Connection, seconds: float) -> Iterator[None]:
    """While it is open, a session that is `bound` to `seconds` stays, however long its transaction waits for something
    else, and ends when this process stands still.
    """
    closed = threading.Event()
    threading.Thread(target=_live, args=(conn, closed, seconds / _SIGNS), name="snapshot-session", daemon=True).start()
    try:
        yield
    finally:
        closed.set()


def _live(conn: Connection, closed: threading.Event, pause_s: float) -> None:
    with suppress(psycopg.Error):
        while not closed.wait(pause_s):
            conn.execute(b"SELECT 1")


class SnapshotHolder:
    """An exported snapshot and the position at which it meets the stream. Open it in a thread,
    import it before it is closed, close it after the last snapshot.
    """

    def __init__(self, conn: Connection, *, snapshot: str, consistent_lsn: int, hold_s: float) -> None:
        """Use `open`."""
        self._conn = conn
        self._closed = threading.Event()
        signs = conn, self._closed, hold_s / _SIGNS
        threading.Thread(target=_live, args=signs, name="snapshot-holder", daemon=True).start()
        self.snapshot_name = snapshot
        self.consistent_lsn = consistent_lsn

    @classmethod
    def open(
        cls, options: KnownSource, *, waiting: Waiting | None = None, hold_s: float = HOLD_SECONDS
    ) -> "SnapshotHolder":
        """Takes the snapshot of a temporary slot over into a session of its own, and drops the slot: it
        would keep all WAL for as long as rows are read. The server ends the snapshot when this process has stood
        still for `hold_s`. Raises SourceError.
        """
        name = f"sluice_tmp_{uuid.uuid4().hex}"
        with closing(open_replication(options)) as conn:
            bound(conn, hold_s)
            created = create_slot(
                conn,
                f"CREATE_REPLICATION_SLOT {quote_slot(name)} TEMPORARY LOGICAL pgoutput EXPORT_SNAPSHOT",
                what="the snapshot",
                waiting=waiting,
                options=options,
            )
            session = open_query(options)
            try:
                bound(session, hold_s)
                with translated("taking a snapshot over"):
                    enter_snapshot(session, created.snapshot)
                    row = session.execute(b"SELECT pg_catalog.pg_export_snapshot()").fetchone()
            except BaseException:
                session.close()
                raise
        assert row is not None
        return cls(session, snapshot=str(row[0]), consistent_lsn=created.consistent_lsn, hold_s=hold_s)

    def alive(self) -> bool:
        """Whether the session still holds the snapshot, as far as can be seen without asking."""
        try:
            with self._conn.lock:
                self._conn.pgconn.consume_input()
        except psycopg.Error:
            return False
        return not self._conn.closed

    def close(self) -> None:
        """Ends the snapshot. May be called again."""
        self._closed.set()
        self._conn.close()
