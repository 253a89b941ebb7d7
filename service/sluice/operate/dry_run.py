"""A change of tables that is tried out: the statement runs in a transaction that is always rolled back.

Invariant: nothing of it remains, and nobody waits for it longer than the limits: the statement waits
`LOCK_SECONDS` at most for a lock, and holds what it locked for `seconds` at most and while the catalog is
read, by queries that take `READ_SECONDS` each at most; the server gives it free when this process stands still for
`IDLE_SECONDS`. One statement that alters or drops; it locks tables of the publication and no others. (PostgreSQL:
Explicit Locking.)
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import pq

from sluice.errors import SourceRefused, UsageError
from sluice.printable import one_line
from sluice.source.sessions import raise_result, translated

LOCK_SECONDS = 1.0
"""Other statements on the table queue behind one that waits for its lock."""
READ_SECONDS = 10.0
"""For a query of the catalog while the locks are held: thousands of tables take a second."""
IDLE_SECONDS = 10.0
"""Between two queries while locks are held: somebody may suspend the command on a terminal."""
_COMMENTS = re.compile(r"\A(?:\s+|--[^\n]*(?:\n|\Z)|/\*.*?\*/)+", re.DOTALL)
_ALLOWED = re.compile(r"(?:ALTER|DROP)\s+(?:TABLE|SCHEMA|TYPE|DOMAIN|INDEX|PUBLICATION)\b", re.IGNORECASE)
_TABLES = """
SELECT c.oid::int8, n.nspname || '.' || c.relname
FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'f') AND n.nspname NOT IN ('pg_catalog', 'information_schema')
"""
_LOCKED = """
SELECT DISTINCT l.relation::int8 FROM pg_catalog.pg_locks AS l
WHERE l.pid = pg_catalog.pg_backend_pid() AND l.relation IS NOT NULL
    AND l.mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
"""
"""Nobody can write while one of these is held; the table that a foreign key references has one, too."""
_RELATED = """
SELECT t.relid::oid::int8 FROM pg_catalog.unnest(%s::oid[]) AS root, pg_catalog.pg_partition_tree(root) AS t
"""


def require_change(statement: str) -> None:
    """Raises UsageError unless `statement` begins as one that alters or drops."""
    if not _ALLOWED.match(_COMMENTS.sub("", statement)):
        raise UsageError(
            "only a statement that alters or drops can be tried",
            hint="ALTER or DROP of a TABLE, SCHEMA, TYPE, DOMAIN, INDEX or PUBLICATION",
        )


@contextmanager
def rolled_back(
    connection: psycopg.Connection[tuple[Any, ...]], statement: str, *, published: list[int], seconds: float
) -> Iterator[None]:
    """Runs the block while `statement` holds for `connection`, and rolls it back. `published` are the oids
    that it may lock. Raises UsageError when it is no such statement or locks other tables, SourceError
    when the server refuses it, or when it takes longer than `seconds`.
    """
    require_change(statement)
    with translated("trying a statement out"):
        allowed = {*published, *(oid for (oid,) in connection.execute(_RELATED, (published,)).fetchall())}
        # A table that is dropped has a lock and no name.
        tables = {oid: name for oid, name in connection.execute(_TABLES).fetchall() if oid not in allowed}
        connection.execute("BEGIN")
        try:
            _set(connection, lock_timeout=_milliseconds(LOCK_SECONDS), statement_timeout=_milliseconds(seconds))
            _set(connection, idle_in_transaction_session_timeout=_milliseconds(IDLE_SECONDS))
            _set(connection, search_path='"$user", public')
            _run(connection, statement, seconds)
            _set(connection, search_path="", statement_timeout=_milliseconds(READ_SECONDS))
            others = sorted(tables[oid] for (oid,) in connection.execute(_LOCKED).fetchall() if oid in tables)
            if others:
                raise UsageError(
                    f"the statement is about {one_line(others[0])}, which the publication does not carry",
                    hint="only changes of published tables can be tried",
                )
            yield
        finally:
            connection.execute("ROLLBACK")


def _milliseconds(seconds: float) -> str:
    return f"{int(seconds * 1000)}ms"


def _set(connection: psycopg.Connection[tuple[Any, ...]], **settings: str) -> None:
    """Until the transaction ends."""
    for name, value in settings.items():
        connection.execute("SELECT pg_catalog.set_config(%s, %s, true)", (name, value))


def _run(connection: psycopg.Connection[tuple[Any, ...]], statement: str, seconds: float) -> None:
    # The extended protocol takes one statement only.
    result = connection.pgconn.exec_params(statement.encode(), [])
    if result.status in (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK):
        return
    state = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()
    if state == "55P03":
        raise SourceRefused(
            f"the statement waited {LOCK_SECONDS:g} s for its lock, and was cancelled",
            hint="try again when no transaction uses the table",
        )
    if state == "57014":
        raise SourceRefused(
            f"the statement took longer than {seconds:g} s, and was cancelled: it reads or writes all rows",
            hint="try it on a copy of the table; --seconds allows more time, and keeps the table locked for that time",
        )
    raise_result(result, doing="trying a statement out")
