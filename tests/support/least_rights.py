"""The role as a DBA makes it with deploy/postgres/grants.sql: the pipeline has exactly these rights."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from sluice.source.sessions import SourceOptions
from tests.support import commands
from tests.support.source_setup import options_of
from tests.support.sources import Database

SCRIPT = Path(__file__).parents[2] / "deploy" / "postgres" / "grants.sql"


def run_script(database: Database, script: Path, **variables: str) -> None:
    """As psql does it for a DBA; fails at the first statement that fails."""
    given = [word for name, value in variables.items() for word in ("-v", f"{name}={value}")]
    psql = (database.server.bin_dir / "psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", database.dsn)
    done = commands.ended(*psql, *given, "-f", script)
    assert done.returncode == 0, done.stderr


def grant(database: Database, role: str, *, tables: str = "") -> None:
    """The script, with `tables` as it takes them."""
    run_script(database, SCRIPT, role=role, publication=database.publication, **({"tables": tables} if tables else {}))


@contextmanager
def pipeline_role(database: Database) -> Iterator[str]:
    """The name of a role of this database alone; what it has is dropped at the end. It does not exist yet."""
    role = f"sluice_r_{database.name}"
    try:
        yield role
    finally:
        with database.connect() as connection:
            if connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", (role,)).fetchone():
                connection.execute(f"DROP OWNED BY {role}".encode())
                connection.execute(f"DROP ROLE {role}".encode())


def options_as(database: Database, role: str, binary: bool = False) -> SourceOptions:
    return replace(options_of(database, user=role), binary=binary)
