"""Tables that join or leave a pipeline: what the publication and `source.tables` must say, planned
first, so that a person can read or run it.

Invariant: a publication is altered only when asked to, by one statement for all tables, and by
nothing but ADD TABLE and DROP TABLE: whatever else a table is published by (all tables, its schema,
a root above it) also concerns others, so that `source.tables` leaves it out instead. A table whose
publication would make the source refuse writes, or which could not be carried, is not added.
(PostgreSQL: ALTER PUBLICATION.)
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from glob import escape

from sluice.contract.catalog_facts import TableFacts
from sluice.errors import UsageError
from sluice.findings import Finding
from sluice.operate.check.tables import examine_tables
from sluice.quoting import quote_identifier, quote_qualified
from sluice.source.catalog import Catalog
from sluice.source.sessions import Connection, SourceOptions, open_query, translated
from sluice.tables.policies import Policies
from sluice.tables.selection import EXCLUDED, excluding, matches

Name = tuple[str, str]
_WHAT_IT_IS = b"""
    SELECT CASE WHEN c.relispartition THEN 'a partition, which goes as ' || m.nspname || '.' || r.relname || ' does'
        WHEN c.relkind = 'f' THEN 'a foreign table, which no publication can have'
        WHEN c.relkind NOT IN ('r', 'p') THEN 'no table'
        WHEN c.relpersistence <> 'p' THEN 'an unlogged or temporary table, which no publication can have'
        ELSE 'a table that the publication does not have' END
    FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace LEFT JOIN (
        pg_catalog.pg_class r JOIN pg_catalog.pg_namespace m ON m.oid = r.relnamespace)
        ON r.oid = pg_catalog.pg_partition_root(c.oid)
    WHERE n.nspname || '.' || c.relname = %s"""


@dataclass(frozen=True, slots=True)
class Proposal:
    """What makes `tables` join or leave. `statement` is for the publication's owner, empty when it is
    as it should be. `settings` say what `source.tables` lacks. `findings` are the findings of
    the tables. `notes` say what will be otherwise than the names suggest.
    """

    tables: tuple[Name, ...]
    statement: str
    settings: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def refusals(self) -> tuple[Finding, ...]:
        """Those because of which the tables are not to be added."""
        return tuple(finding for finding in self.findings if finding.severity == "critical")


class Membership:
    """What there is, asked once. Raises SourceError, and UsageError without a publication."""

    def __init__(
        self,
        connection: Connection,
        *,
        publication: str,
        patterns: tuple[str, ...],
        policies: Policies,
    ) -> None:
        self._connection, self._catalog = connection, Catalog(connection)
        self._version = connection.pgconn.server_version
        self._publication, self._patterns, self._policies = publication, patterns, policies
        found = self._catalog.publication(publication)
        if found is None:
            raise UsageError(f"publication {publication} does not exist", hint="`sluice setup` creates it")
        self._via_root = found.via_root
        self._entries = set(self._catalog.publication_entries(publication))
        carried = self._catalog.published_tables(publication)
        self._carried = {(facts.schema, facts.name): facts for facts in carried}

    @property
    def may_join(self) -> set[Name]:
        """Every table that could be published, and those that are."""
        return {*self._catalog.table_names(), *self._carried}

    @property
    def may_leave(self) -> set[Name]:
        """Every table that is published, by whatever name."""
        return {*self._entries, *self._carried}

    def require(self, name: str, possible: set[Name]) -> None:
        """Raises UsageError for a name that something in the database has which is none of `possible`."""
        if name in map(".".join, possible):
            return
        with translated("finding what has a name"):
            found = self._connection.execute(_WHAT_IT_IS, (name,)).fetchone()
        if found is not None:
            raise UsageError(f"{name} is {found[0]}", hint="`sluice tables` lists the tables that are carried")

    def add(self, tables: Sequence[Name]) -> Proposal:
        """What makes `tables`, which exist, join."""
        missing = [table for table in tables if table not in self._carried and table not in self._entries]
        examined = self._catalog.tables_named([table for table in tables if table not in self._carried])
        examined += [self._carried[table] for table in tables if table in self._carried]
        split = [facts.qualified_name for facts in examined if facts.relkind == "p" and not self._via_root]
        return Proposal(
            tuple(tables),
            self._alter("ADD", missing),
            tuple(self._selecting(tables)),
            tuple(
                examine_tables(
                    examined,
                    publication=self._publication,
                    server_version=self._version,
                    policies=self._policies,
                    known={},
                )
            ),
            tuple(
                f"{name} is partitioned, and the publication publishes partitions under their own "
                "names: each of them becomes its own table in the lake"
                for name in split
            ),
        )

    def remove(self, tables: Sequence[Name]) -> Proposal:
        """What makes `tables` leave."""
        settings = [
            f"add {_quoted(EXCLUDED + escape('.'.join(table)))} to source.tables: the publication has "
            f"{'.'.join(table)} by {way}, which no statement about this table changes"
            for table in tables
            if (way := self._indirect(self._carried.get(table))) and matches(self._patterns, *table)
        ]
        return Proposal(
            tuple(tables), self._alter("DROP", [table for table in tables if table in self._entries]), tuple(settings)
        )

    def _alter(self, verb: str, tables: Sequence[Name]) -> str:
        listed = ", ".join(f"ONLY {quote_qualified(*table)}" for table in tables)
        return f"ALTER PUBLICATION {quote_identifier(self._publication)} {verb} TABLE {listed}" if listed else ""

    def _selecting(self, tables: Sequence[Name]) -> Iterator[str]:
        for table in tables:
            name = ".".join(table)
            against = excluding(self._patterns, *table)
            if against:
                yield f"take {', '.join(map(_quoted, against))} out of source.tables: it leaves {name} out"
            elif not matches(self._patterns, *table):
                yield f"add {_quoted(escape(name))} to source.tables: nothing in it names this table"

    @staticmethod
    def _indirect(facts: TableFacts | None) -> str:
        """By what else than its own name the table is published; empty when by nothing."""
        for membership in facts.memberships if facts is not None else ():
            if membership.startswith("all tables"):
                return "FOR ALL TABLES"
            if membership.startswith("schema"):
                return "FOR TABLES IN SCHEMA"
            if not re.fullmatch(r"entry \S+", membership):
                return "the partitioned table that it is a part of"
        return ""


def carry_out(proposal: Proposal, options: SourceOptions, looked: Connection) -> None:
    """Runs the statement of `proposal` with the rights of `options`. Raises SourceError, and UsageError
    unless that is the database which was looked at, over `looked`.
    """
    if not proposal.statement:
        return
    with closing(open_query(options)) as connection:
        if _marks(connection, options.publication) != _marks(looked, options.publication):
            raise UsageError(
                "SLUICE_OPERATOR_DSN leads to another database than source.dsn",
                hint="it must name the same server and database, as another role",
            )
        with translated("altering the publication"):
            connection.execute(proposal.statement.encode())


def _marks(connection: Connection, publication: str) -> tuple[object, ...] | None:
    """What no two databases have alike: the publication's row as it was made and last altered."""
    with translated("reading the publication"):
        return connection.execute(
            "SELECT d.oid, d.datname, p.oid, p.xmin::text, pg_catalog.pg_is_in_recovery() "
            "FROM pg_catalog.pg_database d, pg_catalog.pg_publication p "
            "WHERE d.datname = pg_catalog.current_database() AND p.pubname = %s",
            (publication,),
        ).fetchone()


def _quoted(pattern: str) -> str:
    """As it is written in YAML, where `!` begins a tag."""
    return "'" + pattern.replace("'", "''") + "'"
