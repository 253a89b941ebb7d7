"""Whether the log of a server is still the one that the manifest was written from.

A server that was put back to an older copy of its disk has the same identifier and the same timeline, and once it has
written enough its log reaches beyond the manifest again: with other transactions at the positions that the manifest has
passed, which no stream would bring any more. The slot is then behind the manifest, so its log there is kept and can be
read. Invariant: a log is called another one only where it was read as a whole and contradicts the manifest. Where it
cannot be read (some services allow no physical replication), nothing is said. (PostgreSQL: Streaming Replication
Protocol, START_REPLICATION ... PHYSICAL; WAL Internals.)
"""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

import structlog
from psycopg import pq

from sluice import lsn
from sluice.errors import SlotLost, SourceRefused, SourceUnavailable
from sluice.source.log_records import LogPart, ended, read_part
from sluice.source.sessions import Connection, KnownSource, open_replication, raise_result, translated
from sluice.source.start_replication import identity_of

AROUND_BYTES = 65536
"""Read before and behind a position. Records are rarely longer."""
_DATA, _DATA_HEAD = b"w", 25
_LOOKS, _LOOK_SECONDS = 20, 0.5


@dataclass(frozen=True, slots=True)
class Mark:
    """A position that the manifest has from the stream: a record of the log ends there. It commits transaction `xid`,
    if that is not 0.
    """

    lsn: int
    xid: int = 0


@dataclass(frozen=True, slots=True)
class _Form:
    page_bytes: int
    file_bytes: int


def require_same_log(options: KnownSource, connection: Connection, marks: Sequence[Mark], *, kept_lsn: int) -> None:
    """Raises SlotLost (DIVERGED) when the log of the server, which is kept from `kept_lsn` on, contradicts one of
    `marks`, the newest first. Raises SourceUnavailable when the connection is lost.
    """
    form = _form_of(connection)
    newest = next((mark for mark in marks if mark.xid), None)
    part = LogPart()
    for around in dict.fromkeys(mark.lsn for mark in (marks[0] if marks else None, newest) if mark is not None):
        if part.says(ended(around, page_bytes=form.page_bytes, file_bytes=form.file_bytes)):
            continue
        read = _part_around(options, around, form, kept_lsn=kept_lsn)
        if read is None:
            structlog.get_logger("source").info(
                "it cannot be seen whether the log of the server is the one that the manifest was written from",
                lsn=lsn.show(around),
            )
            return
        part = read
        for mark in marks:
            _require(part, mark, form)


def _require(part: LogPart, mark: Mark, form: _Form) -> None:
    at = ended(mark.lsn, page_bytes=form.page_bytes, file_bytes=form.file_bytes)
    if not part.says(at):
        return
    found = part.ends.get(at)
    if at not in part.ends:
        seen = "no record of this server's log ends there"
    elif mark.xid and (found is None or found.xid not in (0, mark.xid)):
        seen = f"transaction {mark.xid} does not end there in this server's log"
    else:
        return
    raise SlotLost(
        f"DIVERGED: the manifest holds changes through {lsn.show(mark.lsn)}, and {seen}: this server was restored to "
        "an older state, and has written other changes since",
        hint="the lake has transactions that this server does not have, and lacks others: start a new pipeline over "
        "the same lake",
    )


def _form_of(connection: Connection) -> _Form:
    with translated("reading the form of the log"):
        row = connection.execute(
            "SELECT pg_catalog.current_setting('wal_block_size')::int,"
            " pg_catalog.pg_size_bytes(pg_catalog.current_setting('wal_segment_size'))"
        ).fetchone()
    assert row is not None
    return _Form(*row)


def _part_around(options: KnownSource, around: int, form: _Form, *, kept_lsn: int) -> LogPart | None:
    """None where the server does not give its log."""

    def page_of(at: int) -> int:
        return at - at % form.page_bytes

    begin = max(page_of(max(0, around - AROUND_BYTES)), page_of(kept_lsn))
    try:
        with closing(open_replication(options)) as connection, translated("reading the log of the server"):
            flushed = _flushed(options, connection, around)
            if flushed < around:
                return None
            data = _read(connection.pgconn, begin, min(flushed, around + AROUND_BYTES), timeline=options.place.timeline)
    except SourceRefused:
        return None
    return None if data is None else read_part(data, begin=begin, page_bytes=form.page_bytes)


def _flushed(options: KnownSource, connection: Connection, at: int) -> int:
    """How far the log can be read. The server has inserted records through `at`, and writes them within moments."""
    for _ in range(_LOOKS):
        if (flushed := identity_of(connection).wal_end_lsn) >= at:
            break
        options.cancellation.sleep(_LOOK_SECONDS)
    return flushed


def _read(pgconn: pq.abc.PGconn, begin: int, end: int, *, timeline: int) -> bytes | None:
    """The log from `begin` to `end`, None where the server refuses to send it."""
    result = pgconn.exec_(f"START_REPLICATION PHYSICAL {lsn.show(begin)} TIMELINE {timeline}".encode())
    if result.status != pq.ExecStatus.COPY_BOTH:
        _require_refusal(result)
        return None
    data = bytearray()
    while len(data) < end - begin:
        size, block = pgconn.get_copy_data(0)
        if size < 0:
            _require_refusal(pgconn.get_result())
            return None
        message = bytes(block)
        if message[:1] != _DATA:
            continue
        if len(message) < _DATA_HEAD or int.from_bytes(message[1:9], "big") != begin + len(data):
            raise SourceUnavailable("the server sent another part of its log than it was asked for")
        data += message[_DATA_HEAD:]
    return bytes(data[: end - begin])


def _require_refusal(result: pq.abc.PGresult | None) -> None:
    """Raises SourceUnavailable where the server says nothing any more."""
    if result is None or not result.error_field(pq.DiagnosticField.SQLSTATE):
        raise_result(result, doing="reading the log of the server")
