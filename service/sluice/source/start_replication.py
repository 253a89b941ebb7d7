"""From nothing to a running START_REPLICATION, in blocking calls.

Invariant: between connecting and START_REPLICATION the session reads no table and no publication:
one that has would decode older rows with today's shapes, silently, and miss that the publication is
gone. (PostgreSQL: Streaming Replication Protocol; Logical Streaming Replication Parameters.)
"""

from dataclasses import dataclass
from typing import Any, Literal

import psycopg
from psycopg import pq

from sluice import lsn
from sluice.errors import SourceUnavailable, UsageError
from sluice.quoting import publication_names, quote_replication_literal, quote_slot
from sluice.source.binary import require_binary
from sluice.source.sessions import GROW_BUFFER, Connection, SourceOptions, open_replication, raise_result

PARALLEL_SINCE = 160000
Streaming = Literal["off", "on", "parallel"]
Origin = Literal["any", "none"]


@dataclass(frozen=True, slots=True)
class SystemIdentity:
    """The answer to IDENTIFY_SYSTEM on the very connection that streams."""

    system_identifier: str
    timeline: int
    wal_end_lsn: int
    database: str


@dataclass(frozen=True, slots=True)
class Started:
    """A connection in COPY BOTH. `wal_sender_timeout_s` is 0 when the server never ends a silent connection."""

    conn: psycopg.Connection[tuple[Any, ...]]
    identity: SystemIdentity
    wal_sender_timeout_s: float


def highest_protocol(server_version: int) -> int:
    """The highest protocol version that a server of `server_version` (as libpq numbers it) speaks.
    It gates options; no message changes its form.
    """
    return 4 if server_version >= 160000 else 3 if server_version >= 150000 else 2


def best_streaming(wanted: Literal["off", "on", "parallel", "auto"], server_version: int) -> Streaming:
    """What to ask a server of `server_version` (as libpq numbers it) for. Raises UsageError when it
    does not have what is wanted.
    """
    has_parallel = server_version >= PARALLEL_SINCE
    if wanted == "auto":
        return "parallel" if has_parallel else "on"
    if wanted == "parallel" and not has_parallel:
        raise UsageError(
            f"source.streaming is parallel, which PostgreSQL {server_version // 10000} does not have (16 and later do)",
            hint="use auto, on or off",
        )
    return wanted


def start_command(
    options: SourceOptions,
    *,
    start_lsn: int,
    proto_version: int,
    streaming: Streaming,
    two_phase: bool,
    messages: bool,
    origin: Origin,
) -> bytes:
    """START_REPLICATION with the options that differ from the server's defaults: older servers
    refuse names they do not know.
    """
    wanted = {"proto_version": str(proto_version)}
    if streaming != "off":
        wanted["streaming"] = streaming
    if two_phase:
        wanted["two_phase"] = "on"
    if messages:
        wanted["messages"] = "on"
    if options.binary:
        wanted["binary"] = "on"
    if origin != "any":
        wanted["origin"] = origin
    given = ", ".join(f"{name} {quote_replication_literal(value)}" for name, value in wanted.items())
    names = publication_names([options.publication])
    return (
        f"START_REPLICATION SLOT {quote_slot(options.slot)} LOGICAL {lsn.show(start_lsn)} ({given}, "
        f"publication_names {names})"
    ).encode()


def start_replication(
    options: SourceOptions, *, command: bytes, expect: tuple[str, int] | None, as_stored: bool = False
) -> Started:
    """Connects, checks who answers, and starts. Raises SourceError, or SlotLost when the slot is
    missing or invalidated.

    `expect` is the (system identifier, timeline) that continuity was proven against; a failover in
    between is SourceUnavailable, so that it is proven again. With `as_stored` the server converts no text to
    UTF-8. What streams does not block any more and may still report: from then on a cancellation leaves it alone.
    """
    if options.binary:
        require_binary(options)
    conn = open_replication(options)
    try:
        identity = _identify(conn.pgconn)
        if expect is not None:
            _require_expected(identity, *expect)
        timeout_s = _wal_sender_timeout_s(conn.pgconn)
        _rows(conn.pgconn, GROW_BUFFER, doing="growing the input buffer")
        if as_stored:
            conn.pgconn.exec_(b"SET client_encoding = 'SQL_ASCII'")
        result = conn.pgconn.exec_(command)
        if result.status != pq.ExecStatus.COPY_BOTH:
            raise_result(result, doing="START_REPLICATION", slot=options.slot, phase="start")
    except BaseException:
        conn.close()
        raise
    options.cancellation.release(conn)
    return Started(conn, identity, timeout_s)


def _require_expected(identity: SystemIdentity, system_identifier: str, timeline: int) -> None:
    if identity.system_identifier != system_identifier or identity.timeline < timeline:
        raise SourceUnavailable("the server or the timeline that answers is not the one that was just checked")
    if identity.timeline > timeline:
        raise SourceUnavailable(
            f"the server replays timeline {identity.timeline}, and its last restart point is of timeline {timeline}",
            hint="a standby whose primary was replaced is like that for some minutes (checkpoint_timeout): CHECKPOINT "
            "on the new primary, and then on that standby, ends it at once",
        )


def set_two_phase(options: SourceOptions, *, wanted: bool, start_lsn: int) -> None:
    """Makes the slot decode at PREPARE from `start_lsn` on, or (PostgreSQL 18) no longer. Raises
    SourceError.

    Turned on by a stream that ends at once: the server then notes the position, and sends whatever
    was prepared before it whole when it commits. The flag alone, set by ALTER_REPLICATION_SLOT,
    would leave those out.
    """
    if wanted:
        command = start_command(
            options, start_lsn=start_lsn, proto_version=3, streaming="off", two_phase=True, messages=False, origin="any"
        )
        start_replication(options, command=command, expect=None).conn.close()
        return
    conn = open_replication(options)
    try:
        result = conn.pgconn.exec_(f"ALTER_REPLICATION_SLOT {quote_slot(options.slot)} (TWO_PHASE false)".encode())
        if result.status != pq.ExecStatus.COMMAND_OK:
            raise_result(result, doing="ALTER_REPLICATION_SLOT", slot=options.slot)
    finally:
        conn.close()


def identify(options: SourceOptions) -> SystemIdentity:
    """IDENTIFY_SYSTEM over a replication connection of its own: proves that one can be opened."""
    conn = open_replication(options)
    try:
        return identity_of(conn)
    finally:
        conn.close()


def identity_of(conn: Connection) -> SystemIdentity:
    """What IDENTIFY_SYSTEM says over a replication connection; on a standby the timeline that it replays.
    Raises SourceError.
    """
    return _identify(conn.pgconn)


def _identify(pgconn: pq.abc.PGconn) -> SystemIdentity:
    ((system, timeline, wal_end, database),) = _rows(pgconn, b"IDENTIFY_SYSTEM", doing="IDENTIFY_SYSTEM")
    return SystemIdentity(system, int(timeline), lsn.parse(wal_end), database)


def _wal_sender_timeout_s(pgconn: pq.abc.PGconn) -> float:
    # An interval understands every unit that the server prints. A view or table would be read here
    # by no means.
    command = (
        b"SELECT pg_catalog.date_part('epoch', pg_catalog.current_setting('wal_sender_timeout')::pg_catalog.interval)"
    )
    ((seconds,),) = _rows(pgconn, command, doing="reading wal_sender_timeout")
    return float(seconds)


def _rows(pgconn: pq.abc.PGconn, command: bytes, *, doing: str) -> list[list[str]]:
    result = pgconn.exec_(command)
    if result.status != pq.ExecStatus.TUPLES_OK:
        raise_result(result, doing=doing)
    return [
        [(result.get_value(row, column) or b"").decode() for column in range(result.nfields)]
        for row in range(result.ntuples)
    ]
