"""Everything that would keep a pipeline from running, or harm the source, found before anything is
created.

Invariant: reads only; each finding comes with the statement or setting that fixes it. A pipeline
without a critical finding can be set up. (PostgreSQL: Logical Replication, Configuration Settings
and Security; Replication Slots; Runtime Config.)
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

import psycopg

from sluice.contract import column_rules
from sluice.contract.catalog_facts import PublicationFacts, TableFacts
from sluice.contract.column_rules import RulesInForce
from sluice.errors import SourceError, UsageError
from sluice.findings import Finding, Severity
from sluice.manifest.targets import Layout
from sluice.manifest.values import TableState
from sluice.operate.check.server import (
    Look,
    examine_connections,
    examine_load_limits,
    examine_server,
    examine_writable,
)
from sluice.operate.check.slot import examine_slot
from sluice.operate.check.tables import examine_tables
from sluice.operate.check.targets import examine_targets, losable, without_table
from sluice.quoting import quote_identifier, quote_qualified
from sluice.source.binary import examine_binary
from sluice.source.catalog import Catalog
from sluice.source.publication import create_publication_sql
from sluice.source.sessions import ServerTooOld, SourceOptions, Transport, open_query, source_error, transport_of
from sluice.tables.policies import Policies
from sluice.tables.selection import matches, named_alone, naming, selects

_LOCK_WAIT = "2s"
_READ_LIMIT = "5s"
"""For the one-row read of a table. The server looks at rights first and for a row afterwards, so
that one which takes longer has shown what was asked.
"""
_NO_RIGHT, _LOCKED, _TOOK_LONG = "42501", "55P03", "57014"


_UNCONFIGURED = Policies()
_DEFAULT = Layout()


@dataclass(frozen=True, slots=True)
class Examined:
    """What was found, and the tables, as (schema, name), that the pipeline would carry: None when
    the source could not be asked.
    """

    findings: list[Finding]
    tables: list[tuple[str, str]] | None


def run_preflight(
    options: SourceOptions,
    patterns: Sequence[str] | None,
    *,
    two_phase: bool = False,
    load_limits: Sequence[str] = (),
    sessions: int = 0,
    known: Iterable[TableState] = (),
    layout: Layout = _DEFAULT,
    policies: Policies = _UNCONFIGURED,
    metadata: bool = True,
    now: Callable[[], float] = time.time,
) -> Examined:
    """Looks at the source. `patterns` are those of source.tables, None or none for whatever the
    publication has; `load_limits` the settings that limit what only some roles may see; `sessions`
    how many the pipeline may have open at once; `known` the tables that it has or had; `layout` where lake
    tables are to stand; `policies` what is configured for tables, `metadata` is `lake.metadata_columns`. A source out
    of reach is a finding too.
    """
    try:
        transport = transport_of(options)
        if transport.refused:
            return Examined([_tls(transport)], None)
        with closing(open_query(options)) as conn:
            examination = _Examination(
                Look.at(options, conn, now=now), tuple(patterns or ()), transport, known, policies, layout
            )
            examined = examination.examined(two_phase=two_phase, load_limits=load_limits, sessions=sessions)
            examined.findings.extend(examination.targets(metadata=metadata))
            return examined
    except (SourceError, UsageError) as error:
        code = "server.version" if isinstance(error, ServerTooOld) else "source.connect"
        return Examined([Finding("critical", code, "source.dsn", str(error), fix_setting=error.hint)], None)


def _tls(transport: Transport) -> Finding:
    severity: Severity = "critical" if transport.refused else "warning"
    return Finding(
        severity,
        "source.tls",
        "source.dsn",
        transport.problem,
        fix_setting="sslmode=verify-full and sslrootcert=... (or system) in source.dsn",
    )


class _Examination:
    """The tables to be carried, and what is wrong with them and with the publication."""

    def __init__(
        self,
        look: Look,
        patterns: tuple[str, ...],
        transport: Transport,
        known: Iterable[TableState],
        policies: Policies,
        layout: Layout,
    ) -> None:
        self._look = look
        self._layout = layout
        self._patterns = patterns
        self._known = {int(state.table_id): state for state in known}
        self._transport = transport
        self._policies = policies
        self._catalog = Catalog(look.conn)
        self._publication_name = look.options.publication
        self._carried: list[TableFacts] = []

    def examined(self, *, two_phase: bool, load_limits: Sequence[str], sessions: int) -> Examined:
        found = [_tls(self._transport)] if self._transport.problem else []
        found += examine_server(self._look)
        found += examine_load_limits(self._look, load_limits)
        found += examine_connections(self._look, sessions)
        found += examine_slot(self._look, two_phase=two_phase)
        tables = self._carried = list(self._select(found))
        found += dict.fromkeys(
            examine_tables(
                tables,
                publication=self._publication_name,
                server_version=self._look.version,
                policies=self._policies,
                known=self._known,
                layout=self._layout,
            )
        )
        rules = {name: policy.rules for name, policy in self._policies.tables.items()}
        found += column_rules.without_table(rules, [facts.qualified_name for facts in tables])
        if self._look.options.binary:
            # The server sends the whole publication so, also what source.tables leaves out.
            found += examine_binary(self._catalog.published_tables(self._publication_name) or tables)
        found += self._readable(tables)
        return Examined(found, [(facts.schema, facts.name) for facts in tables])

    def targets(self, *, metadata: bool) -> Iterator[Finding]:
        """What is wrong with the targets of these tables, and with settings of others."""
        yield from without_table(self._policies, [facts.qualified_name for facts in self._carried])
        for facts in self._carried:
            policy = self._policies.of(facts.schema, facts.name)
            yield from examine_targets(facts, policy, self._known.get(facts.oid), metadata=metadata)
            yield from losable(facts, policy)

    def _rules_of(self, facts: TableFacts) -> RulesInForce:
        """As ingest decides them, which knows what columns were called before."""
        state = self._known.get(facts.oid)
        policy = self._policies.of(facts.schema, facts.name)
        return policy.rules_of(facts, state.latest if state is not None else None)

    def _select(self, found: list[Finding]) -> Iterator[TableFacts]:
        """The tables to be carried; what is wrong with the publication goes to `found`."""
        publication = self._catalog.publication(self._publication_name)
        existing = [table for table in self._catalog.table_names() if matches(self._patterns, *table)]
        found += self._not_publishable(publication)
        if publication is None:
            yield from self._missing(existing, found)
            return
        published = self._catalog.published_tables(publication.name)
        found += self._publication(publication, existing, published)
        yield from filter(self._wanted, published)

    def _missing(self, existing: Sequence[tuple[str, str]], found: list[Finding]) -> Sequence[TableFacts]:
        name = self._publication_name
        if not naming(self._patterns) or not existing:
            seen = "it does not exist, and source.tables names no table that does"
            fix = f"CREATE PUBLICATION {quote_identifier(name)} FOR TABLE ...;"
            found.append(Finding("critical", "publication.missing", name, seen, fix_sql=fix, by_hand=True))
            found += self._unmatched(existing)
            return ()
        tables = self._catalog.tables_named(existing)
        statement = create_publication_sql(name, existing, via_root=any(facts.relkind == "p" for facts in tables))
        if self._look.server.in_recovery:
            seen = "it does not exist, and a standby cannot create it"
            fix = f"on the primary: {statement};"
            found.append(Finding("critical", "publication.missing", name, seen, fix_setting=fix))
        else:
            seen = "it does not exist yet: `sluice setup` or the first run creates it if the role may"
            found.append(Finding("info", "publication.missing", name, seen, fix_sql=f"{statement};"))
            found += examine_writable(self._look)
        found += self._unmatched(existing)
        return tables

    def _publication(
        self, publication: PublicationFacts, existing: Sequence[tuple[str, str]], published: Sequence[TableFacts]
    ) -> Iterator[Finding]:
        quoted = quote_identifier(publication.name)
        if not any(map(self._wanted, published)):
            seen = "it has no table" if not published else "it has none of the tables that source.tables asks for"
            fix = f"ALTER PUBLICATION {quoted} ADD TABLE ...;"
            yield Finding("critical", "publication.empty", publication.name, seen, fix_sql=fix, by_hand=True)
        leaves = [facts.qualified_name for facts in published if facts.is_partition]
        if leaves and not publication.via_root:
            seen = (
                "publish_via_partition_root is false, and partitions become tables of their own in the lake, "
                f"{len(leaves)} of them: {', '.join(leaves[:3])}{', ...' if len(leaves) > 3 else ''}"
            )
            fix = f"ALTER PUBLICATION {quoted} SET (publish_via_partition_root = true);"
            yield Finding(
                "warning",
                "publication.partitions",
                publication.name,
                seen,
                fix_sql=fix,
                fix_setting="leave it, if this is intended",
                by_hand=True,
            )
        if naming(self._patterns):
            yield from self._uncovered(existing, published, quoted)

    def _uncovered(
        self, existing: Sequence[tuple[str, str]], published: Sequence[TableFacts], quoted: str
    ) -> Iterator[Finding]:
        names = {(facts.schema, facts.name) for facts in published}
        leaves = any(facts.is_partition for facts in published)
        missing = [table for table in existing if table not in names]
        left = {(state.schema_name, state.table_name) for state in self._known.values()}
        required = [name for name in missing if named_alone(self._patterns, *name) and name not in left]
        if required and not leaves:
            listed = ", ".join(quote_qualified(*table) for table in required)
            seen = f"it lacks {_some(required)}, which source.tables names"
            fix = f"ALTER PUBLICATION {quoted} ADD TABLE {listed};"
            yield Finding("critical", "publication.lacks_tables", self._publication_name, seen, fix_sql=fix)
        others = [name for name in missing if name not in required]
        if others and not leaves:
            seen = f"it lacks {_some(others)}, which source.tables selects by a pattern"
            words = "nothing, if this is intended; `sluice tables add` adds a table"
            yield Finding("info", "publication.lacks_tables", self._publication_name, seen, fix_setting=words)
        yield from self._unmatched([*existing, *names])

    def _unmatched(self, tables: Sequence[tuple[str, str]]) -> Iterator[Finding]:
        known = [
            *tables,
            *((schema, name) for schema, name, _ in self._catalog.not_publishable()),
            *(state.first_name for state in self._known.values()),
        ]
        for pattern in naming(self._patterns):
            if not any(matches((pattern,), *name) for name in known):
                seen = "no table of this database matches this pattern of source.tables"
                yield Finding(
                    "critical",
                    "tables.no_match",
                    pattern,
                    seen,
                    fix_setting="source.tables: the names as the database spells them",
                )

    def _not_publishable(self, publication: PublicationFacts | None) -> Iterator[Finding]:
        """Unlogged and foreign tables that are asked for: by a pattern, or by a publication of all
        tables, which passes over them in silence.
        """
        if not naming(self._patterns) and not (publication and publication.all_tables):
            return
        for schema, table, kind in self._catalog.not_publishable():
            name = f"{schema}.{table}"
            if not matches(self._patterns, schema, table):
                continue
            severity: Severity = "critical" if named_alone(self._patterns, schema, table) else "warning"
            if kind == "unlogged":
                seen = "it is unlogged: its changes are not in the WAL, and it is left out"
                yield Finding(
                    severity,
                    "table.unlogged",
                    name,
                    seen,
                    fix_sql=f"ALTER TABLE {quote_qualified(schema, table)} SET LOGGED;",
                )
            else:
                seen = "it is a foreign table: its changes are in another server's WAL, and it is left out"
                yield Finding(
                    severity,
                    "table.foreign",
                    name,
                    seen,
                    fix_setting="carry it from its own server, or leave it out in source.tables",
                )

    def _wanted(self, facts: TableFacts) -> bool:
        """As ingest decides it, which goes on with a table that was renamed."""
        return selects(self._patterns, facts, self._known.get(facts.oid))

    def _readable(self, tables: Sequence[TableFacts]) -> Iterator[Finding]:
        """One row of each table is read, as its snapshot would, and not fetched."""
        for facts in tables:
            sqlstate, error = self._read(facts)
            if sqlstate == _NO_RIGHT:
                yield from self._refused(facts)
            elif sqlstate == _LOCKED:
                seen = f"it was locked for more than {_LOCK_WAIT}, so reading it could not be tested"
                yield Finding(
                    "warning",
                    "table.locked",
                    facts.qualified_name,
                    seen,
                    fix_setting="run check again when the lock is gone",
                )
            elif sqlstate not in ("", _TOOK_LONG):
                yield Finding(
                    "critical",
                    "table.read_failed",
                    facts.qualified_name,
                    str(error),
                    fix_setting="its snapshot would fail in the same way",
                )

    def _read(self, facts: TableFacts) -> tuple[str, SourceError | None]:
        """The SQLSTATE of the failure, and its error; empty when it did not fail. A connection that
        breaks is raised.
        """
        rules = self._rules_of(facts)
        stored = [column for column in facts.sent_columns if not rules.excludes(column.attnum)]
        columns = ", ".join(quote_identifier(column.name) for column in stored)
        command = f"SELECT ROW({columns}) IS NULL FROM {quote_qualified(facts.schema, facts.name)} LIMIT 1"
        conn = self._look.conn
        try:
            with conn.transaction(force_rollback=True):
                conn.execute(f"SET LOCAL lock_timeout = '{_LOCK_WAIT}'".encode())
                conn.execute(f"SET LOCAL statement_timeout = '{_READ_LIMIT}'".encode())
                conn.execute(command.encode())
        except psycopg.Error as error:
            said = source_error(
                sqlstate=error.sqlstate or "",
                message=error.diag.message_primary or "",
                doing=f"reading a row of {facts.qualified_name}",
            )
            if not error.sqlstate or not isinstance(said, SourceError):
                raise said from None
            return error.sqlstate, said
        return "", None

    def _refused(self, facts: TableFacts) -> Iterator[Finding]:
        """Rights on the table itself, and row level security, are among the conditions of every
        table.
        """
        rules = self._rules_of(facts)
        selectable = all(one.selectable for one in facts.sent_columns if not rules.excludes(one.attnum))
        if facts.schema_usable and selectable and not facts.policies_apply:
            seen = f"{facts.role} cannot read it, which its snapshot needs"
            words = "privileges on something that the table uses, such as a function of a generated column"
            yield Finding("critical", "table.not_readable", facts.qualified_name, seen, fix_setting=words)


def _some(names: Sequence[tuple[str, str]]) -> str:
    more = f" and {len(names) - 10} more" if len(names) > 10 else ""
    return ", ".join(".".join(name) for name in names[:10]) + more
