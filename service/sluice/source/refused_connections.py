"""What a connection that could not be opened means: something to wait for, or something to fix.

Invariant: a server is understood by its SQLSTATE alone. Its words come in any language. Words decide only
where no server spoke: those of libpq and of its TLS library, which are in English.
(PostgreSQL: libpq, Control Functions; PostgreSQL Error Codes.)
"""

import os
import re
import select
import time

import psycopg
from psycopg import pq

from sluice.errors import NoFreeConnection, SourceError, SourceRefused, SourceUnavailable

_CODE = re.compile(rb'^B\t\d+\tErrorResponse\t S "[^"\n]*"(?: V "[A-Z]*")? C "([0-9A-Z]{5})"', re.MULTILINE)
_KNOWN: dict[str, str] = {}
"""SQLSTATE by the words that came with it. libpq never gives back the buffer of a trace, so the same words
are asked for once.
"""
_KNOWN_MOST = 100
_LONGEST_TRACE = 1 << 16
"""What a pipe holds."""
_LASTING = ("08P01", "0A", "22", "28", "3D", "42", "P0")
_BROKEN = re.compile(
    r"unexpected eof|SYSCALL error|closed the connection|alert internal error|alert user cancel|bad "
    r"record mac|error response during SSL exchange",
    re.IGNORECASE,
)
"""The network or a busy server, whatever else the text speaks of: a handshake that is cut proves
nothing about certificates or protocols.
"""
_REFUSED = re.compile(
    r"authentication|certificate|private key|channel binding|password|SSL error: "
    r".*(?:alert|version|protocol|cipher|negotiation)|SSL negotiation|sslmode|server does not support",
    re.IGNORECASE,
)
_ABOUT_TLS = re.compile(r"certificate|private key|SSL|TLS")
_TLS_HINT = (
    "a server that is not this machine must have a certificate for the name in source.dsn, from an "
    "authority in sslrootcert (a file, or system)"
)
_ROLE_HINT = "check the role, its password and pg_hba.conf (the line needs the database's name)"
_AFTER_LOGIN_HINT = (
    "a login event trigger of the database refuses the role, or fails: change the trigger so that it accepts this role"
)
_POOLER_HINT = (
    "connect directly to the server: a pooler or proxy in between does not accept session settings or replication"
)
_TOO_MANY = "53300"
_HINTS = {
    "08P01": _POOLER_HINT,
    "0A000": _POOLER_HINT,
    "22023": _POOLER_HINT,
    "28P01": "check the password",
    "3D000": "check the database's name in source.dsn",
    "42501": "grant the role the privilege that the message names; a walsender needs the REPLICATION attribute",
    "42704": _POOLER_HINT,
    _TOO_MANY: "raise max_connections or max_wal_senders, or the limit of the role or database, or end other "
    "connections",
}


def refusal_code(conninfo: str, error: psycopg.Error, *, seconds: float) -> str:
    """The SQLSTATE with which a server refuses `conninfo`, as it just did by `error`; empty when no server
    speaks. Blocks for at most `seconds`.

    libpq keeps only the words of a failed connection, so the server is asked again under libpq's trace.
    """
    words = str(error).rpartition("failed: ")[2].strip()
    if words in _KNOWN or isinstance(error, psycopg.errors.ConnectionTimeout) or _BROKEN.search(words):
        return _KNOWN.get(words, "")
    # Only in memory: the trace has the password. What a server says to a client that it refuses is short.
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb", buffering=0) as trace, os.fdopen(writing, "wb", buffering=0):
        os.set_blocking(reading, False)
        os.set_blocking(writing, False)
        said = _attempt(conninfo, writing, deadline=time.monotonic() + seconds)
        found = _CODE.findall(trace.read(_LONGEST_TRACE) or b"")
    code = found[-1].decode() if found else ""
    if code and said.rpartition("failed: ")[2].strip() == words:
        if len(_KNOWN) >= _KNOWN_MOST:
            _KNOWN.clear()
        _KNOWN[words] = code
    return code


def _attempt(conninfo: str, trace: int, *, deadline: float) -> str:
    """Tries to connect, and returns what libpq says of it."""
    pgconn = pq.PGconn.connect_start(conninfo.encode())
    try:
        pgconn.trace(trace)
        pgconn.set_trace_flags(pq.Trace.SUPPRESS_TIMESTAMPS)
        while (left := deadline - time.monotonic()) > 0:
            status = pgconn.connect_poll()
            if status == pq.PollingStatus.READING:
                select.select([pgconn.socket], [], [], left)
            elif status == pq.PollingStatus.WRITING:
                select.select([], [pgconn.socket], [], left)
            else:
                break
        return pgconn.get_error_message()
    finally:
        # What is not written by now would be written when the process ends, to whatever has the number by then.
        pgconn.untrace()
        pgconn.finish()


def connect_error(error: psycopg.Error, *, sqlstate: str, password: str) -> SourceError:
    """The error of ours that a failed connection means; `sqlstate` is empty when no server spoke. `password`
    is taken out of the text. What is not understood is tried again.
    """
    text = " ".join(str(error).split())
    if password:
        text = text.replace(password, "***")
    said = text.rpartition("failed:")[2]
    hint = _HINTS.get(sqlstate, "")
    if sqlstate.startswith(_LASTING) if sqlstate else _REFUSED.search(said) and not _BROKEN.search(said):
        about_tls = not sqlstate and _ABOUT_TLS.search(text)
        code = f" (SQLSTATE {sqlstate})" if sqlstate else ""
        return SourceRefused(
            f"PostgreSQL refused the connection{code}: {text[:400]}",
            hint=hint or (_TLS_HINT if about_tls else _ROLE_HINT if sqlstate[:2] in ("", "28") else _AFTER_LOGIN_HINT),
        )
    kind = NoFreeConnection if sqlstate == _TOO_MANY else SourceUnavailable
    return kind(f"PostgreSQL cannot be reached: {text[:400]}", reason="connect_failed", hint=hint)
