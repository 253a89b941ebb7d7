"""Connections to PostgreSQL whose text output never depends on the server, the database or the
role.

Invariant: every session, of either kind, has the same pinned settings, and they were read back
before it is handed out: the stream, the snapshot and the catalog spell one value in one way. Sessions are
opened again and again while a process runs, and a host name, a load balancer, a pooler, a restored backup
or a changed connection string may lead a later one elsewhere, where tables of the same names and oids have
other rows: one that was opened with a KnownSource is of the place that it names. Passwords, row values and
DETAIL never leave this module in an error. Must not: create, drop or change anything
on the source. (PostgreSQL: Client Connection Defaults; PostgreSQL Error Codes; Streaming
Replication Protocol; Control Data Functions.)
"""

import ipaddress
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields
from typing import Any, Literal, NoReturn

import psycopg
from psycopg import pq
from psycopg.conninfo import make_conninfo

from sluice import lsn
from sluice.contract.column_values import HashKeys
from sluice.contract.entries import Opened
from sluice.errors import (
    ServiceError,
    SlotBusy,
    SlotLost,
    SourceError,
    SourceMoved,
    SourceRefused,
    SourceUnavailable,
    UsageError,
)
from sluice.source.cancelling import Cancellation
from sluice.source.continuity import require_same_database
from sluice.source.credentials import Credentials, parsed
from sluice.source.facts import Place, ServerFacts
from sluice.source.refused_connections import connect_error, refusal_code

Connection = psycopg.Connection[tuple[Any, ...]]

OLDEST_SERVER = 140000
GROW_BUFFER = b"SELECT pg_catalog.repeat('x', 4194304)"
"""libpq reads at most what its input buffer holds, 16 KiB at first, and never shrinks it: one large
answer cuts the reads by a factor of hundreds. Asked before a stream or a COPY.
"""
PING_SECONDS = 2
"""The least that libpq takes. Other threads wait as well while it pings."""

PINS: dict[str, str] = {
    "datestyle": "ISO, MDY",
    "timezone": "UTC",
    "intervalstyle": "postgres",
    "extra_float_digits": "3",
    "bytea_output": "hex",
    "lc_monetary": "C",
    "quote_all_identifiers": "off",
    "standard_conforming_strings": "on",
    "search_path": "",
    "row_security": "off",
    "statement_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
    "default_transaction_isolation": "read committed",
    "default_transaction_deferrable": "off",
    "client_min_messages": "warning",
    "jit": "off",
}
"""Settings that change the text of a value, hide rows, end a session or make it wait, and the value they must
have.

They travel in `options`, which beats ALTER ROLE and ALTER DATABASE. row_security off makes a policy
an error instead of a silent filter. A transaction that is serializable, read only and deferrable, as a role may be
set to begin each, waits for those of others. client_min_messages keeps warnings, since the stream's "skipped loading
publication" is one. jit would spend seconds on compiling one catalog query.
"""

LOCK_TIMEOUT = {False: "10s", True: "0"}
"""By whether it is a replication session. One that asks the catalog never waits long for a table that
somebody else has locked; a replication session waits, without a table lock, for transactions to end.
"""
PINS_SINCE: dict[int, dict[str, str]] = {170000: {"transaction_timeout": "0"}}
"""Settings by the version that brought them: an unknown name in `options` refuses the connection,
so these are SET afterwards.
"""

PLACE = """
    (SELECT system_identifier::text FROM pg_catalog.pg_control_system()),
    CASE WHEN pg_catalog.pg_is_in_recovery()
        THEN (SELECT timeline_id::int FROM pg_catalog.pg_control_checkpoint())
        ELSE ('x' || pg_catalog.substr(
            pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 1, 8))::bit(32)::int END,
    pg_catalog.current_database()::text,
    (SELECT datid::int8 FROM pg_catalog.pg_stat_get_activity(pg_catalog.pg_backend_pid()))"""
"""Columns of `Place`, by functions alone: a session that will stream may read no table before."""

LOG_POSITION = """
    (CASE WHEN pg_catalog.pg_is_in_recovery() THEN COALESCE(pg_catalog.pg_last_wal_replay_lsn(), '0/0')
        ELSE pg_catalog.pg_current_wal_insert_lsn() END)::text"""
"""How far the server is at least: no stream of it has come further."""

WAL_END = """
    (CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn() ELSE (
        SELECT w.lsn - (CASE
            WHEN (w.lsn - '0/0') % pg_catalog.pg_size_bytes(pg_catalog.current_setting('wal_segment_size')) = 40 THEN 40
            WHEN (w.lsn - '0/0') % pg_catalog.current_setting('wal_block_size')::int8 = 24 THEN 24
            ELSE 0 END)::numeric
        FROM (SELECT pg_catalog.pg_current_wal_insert_lsn() AS lsn) w) END)::text"""
"""The server's position now: every commit that was confirmed to its client ended at or before it. Where the last record
ends with its page, the server inserts behind the header of the next one (of 24 bytes, of a segment of 40). No record
ends there, and the stream does not come there before another one is written: on a quiet server never.
"""

_NETWORK: dict[str, str] = {
    "keepalives": "1",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "60000",
    "gssencmode": "disable",
}
"""A dead peer is noticed within about a minute. The connection string may say otherwise."""

Phase = Literal["query", "start", "stream"]

_RETRY = ("08", "40", "53", "57", "58", "72", "55P03", "25P03", "25P04")
"""Before 17 a server may be set to find a snapshot too old (72000): rows are read from another one."""
_HOLDS_VALUES = ("22", "23", "P0")
"""Error classes whose primary message may quote data: data exceptions, integrity violations, RAISE
in somebody's function.
"""
_UNKNOWN_SETTING = "42704"
_ASSOCIATED = re.compile(r"\b([0-9A-F]{1,8}/[0-9A-F]{1,8})\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """Which source, and as what. `dsn` is any libpq connection string and carries TLS and every
    other libpq parameter; it is secret.

    `binary` asks the stream for values in the binary form of their types. `allow_insecure` lets the
    connection string ask for less than verify-full of a host that is not this machine, `allow_untested`
    lets `check` pass a major of PostgreSQL that nobody tried.
    `hash_keys` are those by which column rules hash what is read. `settings` are
    given to each session as it begins, where no log of the server shows them.
    `cancellation` ends every blocking call of the sessions that are opened with these options.
    `credentials` are asked for each connection.
    """

    dsn: str = field(repr=False)
    slot: str
    publication: str
    application_name: str
    connect_timeout_s: int = 10
    binary: bool = False
    allow_insecure: bool = False
    allow_untested: bool = False
    hash_keys: HashKeys = field(default_factory=HashKeys, repr=False, compare=False)
    settings: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    cancellation: Cancellation = field(default_factory=Cancellation, repr=False, compare=False)
    credentials: Credentials = field(default_factory=Credentials, repr=False, compare=False)

    def prove(self, conn: Connection) -> None:
        """Called with every new session before it is handed out. As long as no source is known, it may lead
        anywhere; see `KnownSource`.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownSource(SourceOptions):
    """Options whose sessions all lead to `place`. What reads rows or the catalog for a pipeline that has a
    manifest takes these, and no plain SourceOptions.
    """

    place: Place
    reached: Callable[[], int] = field(default=lambda: 0, repr=False, compare=False)
    """How far the pipeline's stream has come: a server that is behind is a standby of the one that streams, and has
    neither the rows nor the catalog of now.
    """

    @classmethod
    def of(cls, options: SourceOptions, seen: Opened | ServerFacts | Place) -> "KnownSource":
        """`options`, held to the server and database of `seen`."""
        given = {field.name: getattr(options, field.name) for field in fields(SourceOptions)}
        return cls(**given, place=Place.of(seen))

    def prove(self, conn: Connection) -> None:
        """Raises SlotLost for another server or database, as a stream's start does, and SourceMoved for
        another timeline: of a promoted standby, or of a restored backup. Which of the two it is only a new
        start can say. Raises SourceUnavailable while the server is behind the stream.
        """
        reached = self.reached()  # first: the stream goes on
        with translated("reading which server this is"):
            row = conn.execute(f"SELECT {PLACE}, {LOG_POSITION}".encode()).fetchone()
        assert row is not None
        *where, position = row
        now = Place(*where)
        require_same_database(self.place, now)
        if now.timeline != self.place.timeline:
            raise SourceMoved(
                f"source.dsn leads to timeline {now.timeline} now, and the manifest is of timeline "
                f"{self.place.timeline}: a standby was promoted, or a backup restored",
                hint="start ingest, or wait until it has reconnected: it continues there, or says why it cannot",
            )
        if lsn.parse(position) < reached:
            raise SourceUnavailable(
                f"source.dsn leads to a server that is at {position}, and the stream has come to {lsn.show(reached)}: "
                "to a standby of the server that streams, which is behind",
                hint="of several servers, target_session_attrs=read-write chooses the one that accepts writes",
            )


def known(options: SourceOptions, opened: Opened | None) -> SourceOptions:
    """`options`, held to the place that the manifest's newest epoch states; as they are before there is one."""
    return options if opened is None else KnownSource.of(options, opened)


class NoFreeSlot(SourceRefused):
    """The server has no replication slot, or no WAL sender, to spare."""


class StatementFailed(SourceUnavailable):
    """The server said that a statement fails now, and may not later."""


class SlotDoubted(SourceUnavailable):
    """The server does not stream from the slot as things are. Whether the slot is lost, its catalog says."""


class UnsendableRow(SourceUnavailable):
    """A value of a row has no UTF-8 form, so that the stream cannot pass the row. Of which table it is, only the log
    says. `at_lsn` is the row's position, 0 where the server does not say it, and `command` the START_REPLICATION of
    the stream.
    """

    at_lsn = 0
    command = b""


class ServerTooOld(SourceRefused):
    """The server is of a major that Sluice does not read."""


@dataclass(frozen=True, slots=True)
class Transport:
    """How a connection is protected. `problem` says what is not proven, empty when nothing is left
    to doubt; `refused` that we do not connect like that.
    """

    problem: str = ""
    refused: bool = False
    sslmode: str = ""


def transport_of(options: SourceOptions) -> Transport:
    """Judged from the connection string and the environment alone; nothing is contacted. Raises
    UsageError for a string that libpq cannot read.

    A host that is not this machine must prove with a certificate that it is who we mean. What a
    service file says is not known here, and counts as such.
    """
    given = parsed(options.dsn)
    defaults = {(option.keyword or b"").decode(): (option.val or b"").decode() for option in pq.Conninfo.get_defaults()}
    hosts = given.get("hostaddr") or given.get("host")
    if not hosts and "service" not in given:
        hosts = defaults.get("hostaddr") or defaults.get("host") or "localhost"
    remote = [host for host in str(hosts or "the host of the service file").split(",") if not _is_local(host)]
    if not remote:
        return Transport()
    asked = str(given.get("sslmode") or "")
    mode = asked or (defaults.get("sslmode", "") if options.allow_insecure else "verify-full")
    if mode == "verify-full":
        return Transport(sslmode=mode)
    problem = (
        f"sslmode={mode or 'prefer'} does not verify the identity of the server, and {remote[0]} is not this machine"
    )
    return Transport(problem, refused=not options.allow_insecure, sslmode=asked)


def server_of(dsn: str) -> str:
    """HOST:PORT of the server that is tried first, as lineage names it; a socket of this machine is localhost. Raises
    UsageError for a string that libpq cannot read.
    """
    given = parsed(dsn)
    defaults = {(option.keyword or b"").decode(): (option.val or b"").decode() for option in pq.Conninfo.get_defaults()}

    def first(*words: str) -> str:
        found = (str(given.get(word) or "") for word in words)
        return next(filter(None, (*found, *(defaults.get(word, "") for word in words))), "").split(",")[0]

    host = first("host", "hostaddr")
    host = "localhost" if host.startswith(("/", "@")) else host or "localhost"
    return f"{host}:{first('port') or '5432'}"


def _is_local(host: str) -> bool:
    if host in ("", "localhost") or host.startswith(("/", "@")):
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def open_query(options: SourceOptions) -> psycopg.Connection[tuple[Any, ...]]:
    """A pinned session for ordinary SQL, in autocommit. Raises SourceError."""
    return _open(options, replication=False)


def open_replication(options: SourceOptions) -> psycopg.Connection[tuple[Any, ...]]:
    """A pinned, non-blocking replication session that has read no table and no publication: use its
    `pgconn`. Raises SourceError.

    The Connection owns the socket and must be kept for as long as its `pgconn` is used.
    """
    conn = _open(options, replication=True)
    conn.pgconn.nonblocking = 1
    return conn


def ping_rejected(options: SourceOptions) -> bool:
    """Whether the server is there and turns everybody away: it is stopping or starting. Needs no
    authentication and leaves no trace.
    """
    conninfo = make_conninfo(_conninfo(options, parsed(options.dsn), replication=False), connect_timeout=PING_SECONDS)
    return pq.PGconn.ping(conninfo.encode()) == pq.Ping.REJECT


def _open(options: SourceOptions, *, replication: bool) -> psycopg.Connection[tuple[Any, ...]]:
    try:
        conn = options.cancellation.connected(lambda: _connect(options, replication=replication))
    except ServerTooOld:
        raise
    except SourceRefused as refused:
        raise options.credentials.judged(refused, replication=replication) from None
    options.credentials.worked(replication=replication)
    try:
        with translated("pinning the session's settings"):
            _pin(conn, replication=replication)
        options.prove(conn)
    except BaseException:
        conn.close()
        raise
    return conn


def _connect(options: SourceOptions, *, replication: bool) -> psycopg.Connection[tuple[Any, ...]]:
    given = options.credentials.parameters(options.dsn, check=options.cancellation.check)
    conninfo = _conninfo(options, given, replication=replication)
    try:
        return psycopg.connect(conninfo, autocommit=True, prepare_threshold=None)
    except psycopg.Error as error:
        sqlstate = refusal_code(conninfo, error, seconds=options.connect_timeout_s)
        if sqlstate == _UNKNOWN_SETTING:
            _require_version(make_conninfo(conninfo, options=str(given.get("options") or "")), options)
        raise connect_error(error, sqlstate=sqlstate, password=str(given.get("password") or "")) from None


def _require_version(unpinned: str, options: SourceOptions) -> None:
    """Raises SourceRefused when the server is too old. One that does not know a pinned setting
    tells its version only to a session without pins.
    """
    with (
        suppress(psycopg.Error),
        options.cancellation.connected(lambda: psycopg.connect(unpinned, autocommit=True)) as conn,
    ):
        _check_version(conn.pgconn.server_version)


def _check_version(version: int) -> None:
    if version < OLDEST_SERVER:
        raise ServerTooOld(
            f"the server is PostgreSQL {version // 10000}; Sluice reads 14 and later", hint="upgrade the server"
        )


def _conninfo(options: SourceOptions, given: dict[str, Any], *, replication: bool) -> str:
    transport = transport_of(options)
    if transport.refused:
        raise UsageError(
            f"source.dsn: {transport.problem}",
            hint="use sslmode=verify-full with sslrootcert=<file> or sslrootcert=system; "
            "source.allow_insecure: true only where the network itself is trusted",
        )
    pinned = {**PINS, "lock_timeout": LOCK_TIMEOUT[replication], **options.settings}
    pins = " ".join(f"-c {name}={_option_value(value)}" for name, value in pinned.items())
    parameters: dict[str, Any] = {
        "connect_timeout": options.connect_timeout_s,
        **_NETWORK,
        **given,
        **({"sslmode": transport.sslmode} if transport.sslmode else {}),
        "application_name": options.application_name,
        "client_encoding": "UTF8",
        "options": f"{given.get('options') or ''} {pins}".strip(),
    }
    if replication:
        parameters["replication"] = "database"
    return make_conninfo("", **parameters)


def _option_value(value: str) -> str:
    return value.replace("\\", "\\\\").replace(" ", "\\ ")


def _pin(conn: psycopg.Connection[tuple[Any, ...]], *, replication: bool) -> None:
    version = conn.pgconn.server_version
    _check_version(version)
    wanted = {**PINS, "lock_timeout": LOCK_TIMEOUT[replication]}
    for since, settings in PINS_SINCE.items():
        if version >= since:
            wanted |= settings
            for name, value in settings.items():
                conn.execute(f"SET {name} = '{value}'".encode())
    names = [*wanted, "client_encoding"]
    row = conn.execute(
        ("SELECT " + ", ".join(f"pg_catalog.current_setting('{name}')" for name in names)).encode()
    ).fetchone()
    seen = dict(zip(names, row or (), strict=False))
    wrong = [name for name, value in {**wanted, "client_encoding": "UTF8"}.items() if seen.get(name) != value]
    if wrong:
        raise SourceRefused(
            f"the server does not let this session pin {', '.join(wrong)}",
            hint="connect without a pooler or proxy that rewrites session settings",
        )


@contextmanager
def translated(doing: str, *, slot: str = "", phase: Phase = "query") -> Iterator[None]:
    """Runs a block and turns psycopg's errors into ours; `doing` completes "... failed while"."""
    try:
        yield
    except ServiceError:
        raise
    except psycopg.Error as error:
        raise source_error(
            sqlstate=error.sqlstate or "",
            message=error.diag.message_primary or "",
            context=error.diag.context or "",
            doing=doing,
            slot=slot,
            phase=phase,
        ) from None


def raise_result(result: pq.abc.PGresult | None, *, doing: str, slot: str = "", phase: Phase = "query") -> NoReturn:
    """Raises what a failed libpq result means."""

    def text(part: pq.DiagnosticField) -> str:
        value = result.error_field(part) if result is not None else None
        return value.decode("utf-8", "replace") if value else ""

    raise source_error(
        sqlstate=text(pq.DiagnosticField.SQLSTATE),
        message=text(pq.DiagnosticField.MESSAGE_PRIMARY),
        context=text(pq.DiagnosticField.CONTEXT),
        doing=doing,
        slot=slot,
        phase=phase,
    )


def source_error(
    *, sqlstate: str, message: str, context: str = "", doing: str, slot: str = "", phase: Phase = "query"
) -> SourceError | SlotLost:
    """The error of ours that a server's error means, by SQLSTATE; the text is for people only.

    DETAIL and HINT are never asked for; the primary message is left out for classes that quote
    data, and of the context only the LSN is kept.
    """
    if not sqlstate:
        return SourceUnavailable(f"the connection to PostgreSQL was lost while {doing}", reason="connection_lost")
    said = "" if sqlstate.startswith(_HOLDS_VALUES) else f": {message[:300]}"
    found = _ASSOCIATED.search(context)
    at = f" at {found[1]}" if found else ""
    text = f"PostgreSQL refused {doing}{at} (SQLSTATE {sqlstate}){said}"
    if sqlstate == "55006":
        return SlotBusy(text, hint="another process uses the slot: stop it, or give this pipeline a slot of its own")
    if phase == "start" and sqlstate == "42704":
        return SlotLost(
            f"MISSING: replication slot {slot} does not exist",
            hint="changes since then are lost; `sluice slot recreate` continues with a new slot",
        )
    if phase in ("start", "stream") and sqlstate == "55000":
        return SlotDoubted(text)
    if phase in ("start", "stream") and sqlstate == "58P01":
        return SlotLost(
            f"WAL_REMOVED: a file that decoding needs is gone from the server: {message[:300]}",
            hint="the changes since then are lost: run `sluice slot drop`, then `sluice slot recreate`",
        )
    if sqlstate == "53400":
        return NoFreeSlot(text, hint="raise max_replication_slots or max_wal_senders, or drop slots that nobody uses")
    if phase == "stream" and sqlstate in ("22021", "22P05"):
        unsendable = UnsendableRow(text, hint=_HINTS[sqlstate])
        unsendable.at_lsn = lsn.parse(found[1]) if found else 0
        return unsendable
    if sqlstate.startswith("57P0"):
        return SourceUnavailable(text, reason="server_stopping")
    if sqlstate.startswith(_RETRY):
        return StatementFailed(text)
    return SourceRefused(text, hint=_HINTS.get(sqlstate, ""))


_WAY_OUT = (
    "correct the value first. The stream contains the old value each time, so run: `sluice slot "
    "drop`, `sluice slot recreate`, "
    "start ingest, then `sluice verify --repair` (docs/runbooks/SluiceIngestDown.md)"
)
_HINTS = {
    "25006": "the session may only read: default_transaction_read_only is on for the role, the database or the server, "
    "or source.dsn leads to a standby; run the statement as a role that may write, on the primary",
    "42501": "grant the role the privilege that the message names, or run the statement as a role that has it",
    "42704": "create the object that is named; on PostgreSQL 14 to 17 a publication must be older than the slot",
    "42883": "if the message is about a binary output function: set source.binary to false, or leave the column out "
    "by a column list of the publication",
    "22021": f"the database holds bytes that are not valid in its encoding: {_WAY_OUT}",
    "22P05": f"a value has no UTF-8 form: the database's encoding does not match its content: {_WAY_OUT}",
    "XX000": "the server itself failed. If the message is about a filenumber, missing attributes or a relation "
    "that it could not open while it streams a transaction that undid DDL, set source.streaming: off",
}
