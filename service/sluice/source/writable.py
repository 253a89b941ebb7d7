"""Whether a session may write, and who decided that it may not.

Invariant: nothing here lifts that: somebody set it, for a role that should only read or for a server that is about to
be left. (PostgreSQL: Client Connection Defaults, default_transaction_read_only; ALTER ROLE.)
"""

from dataclasses import dataclass

from sluice.quoting import quote_identifier
from sluice.source.sessions import Connection, translated

SETTING = "default_transaction_read_only"


@dataclass(frozen=True, slots=True)
class ReadOnly:
    """`seen` says where the setting comes from; `statement` takes it back, empty where no statement does."""

    seen: str
    statement: str = ""


def read_only(connection: Connection) -> ReadOnly | None:
    """Why the session of a primary may not write, None when it may. Raises SourceError."""
    with translated(f"reading {SETTING}"):
        row = connection.execute(
            "SELECT s.setting, s.source, session_user::text, pg_catalog.current_database()::text "
            "FROM pg_catalog.pg_settings s WHERE s.name = %s",
            (SETTING,),
        ).fetchone()
    assert row is not None
    setting, source, role, database = row
    if setting != "on":
        return None
    quoted, everywhere = quote_identifier(role), f"RESET {SETTING}"
    where, statement = {
        "user": (f"for the role {role}", f"ALTER ROLE {quoted} {everywhere}"),
        "database": (f"for the database {database}", f"ALTER DATABASE {quote_identifier(database)} {everywhere}"),
        "database user": (
            f"for the role {role} in the database {database}",
            f"ALTER ROLE {quoted} IN DATABASE {quote_identifier(database)} {everywhere}",
        ),
        "global": ("for all roles", f"ALTER ROLE ALL {everywhere}"),
        "client": ("by source.dsn or PGOPTIONS", ""),
    }.get(source, ("for the whole server", ""))
    return ReadOnly(f"{SETTING} is on {where}", statement)
