"""The publication: whether it is there and has the tables, and making it when asked to.

Must not: alter an existing publication; what should change is proposed as SQL. (PostgreSQL: CREATE
PUBLICATION.)
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sluice.contract.conditions import PUBLISHED
from sluice.errors import SourceRefused
from sluice.quoting import quote_identifier, quote_qualified
from sluice.source.catalog import Catalog
from sluice.source.sessions import Connection, SourceOptions, translated
from sluice.source.writable import read_only


@dataclass(frozen=True, slots=True)
class EnsuredPublication:
    """What `ensure_publication` did; `statement` is the SQL that it ran, empty when there was
    nothing to do.
    """

    created: bool
    statement: str = ""


def create_publication_sql(name: str, tables: Sequence[tuple[str, str]], *, via_root: bool) -> str:
    """The statement that makes the publication, for people and for `ensure_publication`."""
    listed = ", ".join(f"ONLY {quote_qualified(schema, table)}" for schema, table in tables)
    root = ", publish_via_partition_root = true" if via_root else ""
    return f"CREATE PUBLICATION {quote_identifier(name)} FOR TABLE {listed} WITH (publish = '{PUBLISHED}'{root})"


def ensure_publication(
    conn: Connection,
    name: str,
    tables: Sequence[tuple[str, str]] | None,
    *,
    required: Sequence[tuple[str, str]] | None = None,
) -> EnsuredPublication:
    """Creates the publication of `tables` when it is missing; None means whatever it has. Never
    alters an existing one, which must have the `required` ones of them (left out: all).

    Must come before the slot: on PostgreSQL 14 to 17 a slot older than its publication fails for
    ever. Raises SourceRefused, its hint being the SQL to run.
    """
    if _exists(conn, name):
        _covers(conn, name, (tables if required is None else required) or ())
        return EnsuredPublication(created=False)
    if not tables:
        raise SourceRefused(
            f"publication {name} does not exist, and source.tables does not say what it should have",
            hint=f"name the tables in source.tables, or run: CREATE PUBLICATION {quote_identifier(name)} "
            "FOR TABLE ...;",
        )
    with translated("reading the tables to publish"):
        partitioned = conn.execute(
            "SELECT 1 FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = "
            "c.relnamespace WHERE c.relkind = 'p'"
            " AND (n.nspname::text, c.relname::text) IN (SELECT * FROM ROWS FROM "
            "(pg_catalog.unnest(%s::text[]), pg_catalog.unnest(%s::text[])))",
            ([schema for schema, _ in tables], [table for _, table in tables]),
        ).fetchone()
    statement = create_publication_sql(name, tables, via_root=partitioned is not None)
    if (refusal := read_only(conn)) is not None:
        undone = f"if that is not intended, run: {refusal.statement}; otherwise " if refusal.statement else ""
        raise SourceRefused(
            f"publication {name} does not exist, and this session may not create it: {refusal.seen}",
            hint=f"{undone}as the owner of the tables with CREATE on the database, run: {statement};",
        )
    try:
        with translated("creating the publication"):
            conn.execute(statement.encode())
    except SourceRefused as error:
        raise SourceRefused(
            str(error), hint=f"as the owner of the tables with CREATE on the database, run: {statement};"
        ) from error
    return EnsuredPublication(created=True, statement=statement)


def require_publication(conn: Connection, name: str) -> None:
    """Raises SourceRefused when the publication does not exist now, although its tables were
    carried.
    """
    if not _exists(conn, name):
        raise SourceRefused(
            f"publication {name} does not exist any more: the server does not send its changes",
            hint="create it again as it was, and start: the server no longer sends what was written in between, "
            "so its tables turn stale, and `sluice resync` takes a new snapshot of each",
        )


def changed_since_decoded(conn: Connection, options: SourceOptions) -> bool:
    """Whether the publication may be younger than the place at which its slot decodes. The slot keeps the
    catalog as of its catalog_xmin.
    """
    with translated("asking how old the publication is"):
        row = conn.execute(
            "SELECT pg_catalog.age(p.xmin) <= pg_catalog.age(s.catalog_xmin) FROM pg_catalog.pg_publication p, "
            "pg_catalog.pg_replication_slots s WHERE p.pubname = %s AND s.slot_name = %s",
            (options.publication, options.slot),
        ).fetchone()
    return row is None or row[0] is not False


def _exists(conn: Connection, name: str) -> bool:
    with translated("reading the publication"):
        row = conn.execute("SELECT 1 FROM pg_catalog.pg_publication WHERE pubname = %s", (name,)).fetchone()
    return row is not None


def _covers(conn: Connection, name: str, tables: Sequence[tuple[str, str]]) -> None:
    # The view pg_publication_tables would wait for a lock on any of the tables.
    found = {(facts.schema, facts.name) for facts in Catalog(conn).published_tables(name)} if tables else set()
    missing = [table for table in tables if table not in found]
    if missing:
        added = ", ".join(quote_qualified(*table) for table in missing)
        raise SourceRefused(
            f"publication {name} does not have {', '.join('.'.join(table) for table in missing)}",
            hint=f"as the publication's owner, run: ALTER PUBLICATION {quote_identifier(name)} ADD TABLE {added};",
        )
