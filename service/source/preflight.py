"""Everything that would keep a pipeline from running, or harm the source, found before anything is created.

Invariant: reads only; each finding comes with the statement or setting that mends it. A pipeline without a critical finding can be set up.
(PostgreSQL: Logical Replication, Configuration Settings and Security; Replication Slots; Runtime Config.)
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from fnmatch import fnmatchcase
from typing import Any

from psycopg.conninfo import conninfo_to_dict

from service.errors import ServiceError, SourceError
from service.source.binary import examine_binary
from service.source.catalog import Catalog, Connection, TableFacts
from service.source.findings import Finding, Severity
from service.source.preflight_tables import examine_tables
from service.source.quoting import quote_identifier, quote_qualified
from service.source.sessions import SourceOptions, open_query, translated
from service.source.slot import PUBLISHED, ServerFacts, SlotFacts, create_publication_sql, server_facts, slot_facts
from service.source.snapshot import open_transactions
from service.source.start import identify

__all__ = ["Finding", "run_preflight"]

_FIXED_MINORS = {14: 19, 15: 14, 16: 10, 17: 6}
"""The first minor release of each major with the 2025 repairs of logical decoding: lost changes around ALTER PUBLICATION, WAL removed too early."""
_LONG_TRANSACTION_S = 60
_SMALL_KEEP_BYTES = 4 << 30
_CLOCK_SKEW_S = 5.0
_HELPERS = 2
"""Senders, and slots beside our own, that a copy needs while the stream runs: one each, and one to spare."""


def run_preflight(options: SourceOptions, patterns: Sequence[str] | None, store_probe: Callable[[], Any] | None = None) -> list[Finding]:
    """All findings; `patterns` are those of source.tables, None or none for whatever the publication has.

    `store_probe` is called when given; a ServiceError that it raises is a finding. A source that cannot be reached is one too.
    """
    findings: list[Finding] = []
    if store_probe is not None:
        try:
            store_probe()
        except ServiceError as error:
            findings.append(Finding("critical", "store.probe", "object store", str(error), fix_setting=error.hint))
    try:
        with closing(open_query(options)) as conn:
            findings += _Examination(options, conn, patterns or ()).findings()
    except SourceError as error:
        findings.append(Finding("critical", "source.connect", "source.dsn", str(error), fix_setting=error.hint))
    return findings


class _Examination:
    """One look at one server."""

    def __init__(self, options: SourceOptions, conn: Connection, patterns: Sequence[str]) -> None:
        self._options = options
        self._conn = conn
        self._patterns = patterns
        self._catalog = Catalog(conn)
        self._version = conn.pgconn.server_version
        with translated("reading the server's settings"):
            rows = conn.execute(b"SELECT name, setting FROM pg_catalog.pg_settings").fetchall()
            self._role = str(self._one("SELECT current_user::text"))
        self._settings: dict[str, str] = dict(rows)
        self._server: ServerFacts = server_facts(conn)
        self._slot: SlotFacts | None = slot_facts(conn, options.slot)

    def findings(self) -> list[Finding]:
        found: list[Finding] = []
        for part in (self._basics, self._connection, self._rights, self._room, self._limits, self._waits, self._own_slot):
            found += part()
        tables = list(self._select(found))
        found += examine_tables(tables, server_version=self._version)
        if self._options.binary:
            # The server sends the whole publication so, also what source.tables leaves out.
            found += examine_binary(self._catalog.published_tables(self._options.publication) or tables)
        found += self._readable(tables)
        return found

    def _one(self, command: str, *parameters: Any) -> Any:
        with translated("examining the source"):
            row = self._conn.execute(command.encode(), parameters or None).fetchone()
        return row[0] if row else None

    # The server -------------------------------------------------------------------------------------------------------------------------------------

    def _basics(self) -> Iterator[Finding]:
        wal_level = self._settings.get("effective_wal_level", self._server.wal_level)
        if wal_level != "logical":
            yield Finding(
                "critical",
                "server.wal_level",
                "wal_level",
                f"it is {wal_level}",
                fix_sql="ALTER SYSTEM SET wal_level = 'logical';",
                fix_setting="wal_level = logical",
                needs_restart=True,
            )
        major, minor = divmod(self._version, 10000)
        if minor < _FIXED_MINORS.get(major, 0):
            seen = f"it is PostgreSQL {major}.{minor}, in which logical decoding can lose changes"
            yield Finding("warning", "server.minor", "server", seen, fix_setting=f"update to {major}.{_FIXED_MINORS[major]} or later", needs_restart=True)
        encoding = self._server.encoding
        if encoding == "SQL_ASCII":
            seen = "its encoding is SQL_ASCII: the server stores bytes of any encoding and cannot turn them into UTF-8"
            yield Finding("critical", "server.encoding", self._server.database, seen, fix_setting="move the data to a database with encoding UTF8")
        elif encoding != "UTF8":
            seen = f"its encoding is {encoding}: a byte without a UTF-8 form would stop the stream"
            yield Finding("warning", "server.encoding", self._server.database, seen, fix_setting="prefer a database with encoding UTF8")
        if self._server.in_recovery and self._version < 160000:
            seen = "it is a standby, and only 16 and later decode on standbys"
            yield Finding("critical", "server.standby", "server", seen, fix_setting="source.dsn: the primary")
        elif self._server.in_recovery and self._settings.get("hot_standby_feedback") != "on":
            seen = "it is a standby without hot_standby_feedback: the primary's VACUUM can invalidate the slot"
            fix = "ALTER SYSTEM SET hot_standby_feedback = on;"
            yield Finding("warning", "server.standby", "hot_standby_feedback", seen, fix_sql=fix, fix_setting="hot_standby_feedback = on")
        skew = float(self._one("SELECT EXTRACT(epoch FROM pg_catalog.clock_timestamp())::float8")) - time.time()
        if abs(skew) > _CLOCK_SKEW_S:
            seen = f"the server's clock is {skew:+.0f} s from ours: lag in seconds is off by that"
            yield Finding("warning", "server.clock", "clock", seen, fix_setting="synchronise both clocks")

    def _connection(self) -> Iterator[Finding]:
        info = self._conn.info
        local = info.host.startswith("/") or info.host in ("", "localhost", "::1") or info.host.startswith("127.")
        mode = conninfo_to_dict(self._options.dsn).get("sslmode")
        if not local and mode != "verify-full":
            seen = "the connection is encrypted, but the server's name is not verified" if self._conn.pgconn.ssl_in_use else "the connection is not encrypted"
            yield Finding("warning", "source.tls", "source.dsn", seen, fix_setting="sslmode=verify-full sslrootcert=system in source.dsn")
        names = self._settings.get("synchronous_standby_names", "")
        if "*" in names or self._options.application_name in names:
            seen = f"it matches {self._options.application_name}: commits on the source would wait for this pipeline"
            fix = "ALTER SYSTEM SET synchronous_standby_names = '...';"
            yield Finding("warning", "server.synchronous", "synchronous_standby_names", seen, fix_sql=fix, fix_setting="name the standbys that are meant")

    def _rights(self) -> Iterator[Finding]:
        try:
            identify(self._options)
        except SourceError as error:
            yield Finding(
                "critical",
                "role.replication",
                self._role,
                f"it cannot open a replication connection: {error}",
                fix_sql=f"ALTER ROLE {quote_identifier(self._role)} REPLICATION;",
                fix_setting=f"a line in pg_hba.conf for database {self._server.database} (not the keyword replication), and no pooler in between",
            )
        if self._one("SELECT pg_catalog.current_setting('is_superuser')") == "on":
            yield Finding("info", "role.superuser", self._role, "it is a superuser; LOGIN, REPLICATION and SELECT on the tables are enough")

    def _room(self) -> Iterator[Finding]:
        slots = int(self._settings["max_replication_slots"]) - int(self._one("SELECT pg_catalog.count(*) FROM pg_catalog.pg_replication_slots"))
        needed = 1 + (self._slot is None)
        if slots < needed:
            total = int(self._settings["max_replication_slots"]) + needed - slots
            yield Finding(
                "critical",
                "server.slots",
                "max_replication_slots",
                f"{max(slots, 0)} of {self._settings['max_replication_slots']} are free, {needed} are needed (one of them for copies)",
                fix_sql=f"ALTER SYSTEM SET max_replication_slots = {total};",
                fix_setting=f"max_replication_slots = {total}",
                needs_restart=True,
            )
        senders = "SELECT pg_catalog.count(*) FROM pg_catalog.pg_stat_activity WHERE backend_type = 'walsender'"
        free = int(self._settings["max_wal_senders"]) - int(self._one(senders))
        if free < _HELPERS:
            total = int(self._settings["max_wal_senders"]) + _HELPERS - free
            yield Finding(
                "critical",
                "server.senders",
                "max_wal_senders",
                f"{max(free, 0)} of {self._settings['max_wal_senders']} are free, {_HELPERS} are needed (one of them for copies)",
                fix_sql=f"ALTER SYSTEM SET max_wal_senders = {total};",
                fix_setting=f"max_wal_senders = {total}",
                needs_restart=True,
            )

    def _limits(self) -> Iterator[Finding]:
        keep_mb = int(self._settings.get("max_slot_wal_keep_size", "-1"))
        name = "max_slot_wal_keep_size"
        if keep_mb < 0:
            seen = "it is unlimited: while the pipeline is down, WAL piles up until the source's disk is full"
            fix = f"ALTER SYSTEM SET {name} = '100GB'; SELECT pg_reload_conf();"
            yield Finding("warning", "server.keep_size", name, seen, fix_sql=fix, fix_setting=f"{name} = 100GB, or what the disk can spare")
        elif keep_mb << 20 < _SMALL_KEEP_BYTES:
            rate = float(self._one("SELECT wal_bytes / GREATEST(EXTRACT(epoch FROM pg_catalog.now() - stats_reset), 1) FROM pg_catalog.pg_stat_wal") or 0)
            lasts = f"about {(keep_mb << 20) / rate / 60:.0f} minutes at the average rate so far" if rate >= 1 else "an unknown time"
            fix = f"ALTER SYSTEM SET {name} = '100GB'; SELECT pg_reload_conf();"
            severity: Severity = "critical" if keep_mb == 0 else "warning"
            seen = f"it is {keep_mb} MB: an outage of {lasts} loses the slot"
            yield Finding(severity, "server.keep_size", name, seen, fix_sql=fix, fix_setting=f"{name} = 100GB")
        idle_s = int(self._settings.get("idle_replication_slot_timeout", "0"))
        if idle_s > 0:
            name = "idle_replication_slot_timeout"
            seen = f"it is {idle_s} s: a pipeline that is stopped for longer loses its slot"
            fix = f"ALTER SYSTEM SET {name} = 0; SELECT pg_reload_conf();"
            yield Finding("warning", "server.idle_slots", name, seen, fix_sql=fix, fix_setting=f"{name} = 0")
        timeout_ms = int(self._settings["wal_sender_timeout"])
        if 0 < timeout_ms < 5000:
            seen = f"it is {timeout_ms} ms: a short stall of this process ends the stream"
            fix = "ALTER SYSTEM SET wal_sender_timeout = '60s'; SELECT pg_reload_conf();"
            yield Finding("warning", "server.sender_timeout", "wal_sender_timeout", seen, fix_sql=fix, fix_setting="wal_sender_timeout = 60s")

    def _waits(self) -> Iterator[Finding]:
        for blocker in open_transactions(self._options):
            if blocker.age_s < _LONG_TRANSACTION_S:
                continue
            if blocker.pid is None:
                seen = f"it was prepared {blocker.age_s:.0f} s ago: creating a slot, and each copy, waits for it"
                literal = blocker.gid.replace("'", "''")
                fix = f"COMMIT PREPARED '{literal}'; -- or ROLLBACK PREPARED"
                yield Finding("warning", "server.prepared_transaction", f"prepared transaction {blocker.gid}", seen, fix_sql=fix)
            else:
                seen = f"its transaction has run for {blocker.age_s:.0f} s: creating a slot, and each copy, waits for it"
                fix = f"SELECT pg_terminate_backend({blocker.pid}); -- or wait"
                yield Finding("warning", "server.long_transaction", f"process {blocker.pid} ({blocker.application_name})", seen, fix_sql=fix)

    # Slot and publication ---------------------------------------------------------------------------------------------------------------------------

    def _own_slot(self) -> Iterator[Finding]:
        slot = self._slot
        if slot is None:
            yield Finding("info", "slot.missing", self._options.slot, "the slot does not exist yet: `sluice setup`, or the first run, creates it")
            return
        drop = f"SELECT pg_drop_replication_slot('{slot.name}'); -- its changes are lost: the tables must be copied again"
        if slot.plugin != "pgoutput" or slot.temporary or slot.database != self._server.database:
            seen = f"it is a slot of plugin {slot.plugin or 'none'} in database {slot.database or 'none'}, not one of pgoutput in {self._server.database}"
            yield Finding("critical", "slot.wrong", slot.name, seen, fix_setting="source.slot: another name")
        elif slot.invalidated:
            yield Finding("critical", "slot.invalidated", slot.name, f"it can never be used again ({slot.invalidated})", fix_sql=drop)
        elif slot.wal_status == "unreserved":
            seen = "its WAL is about to be removed: start the pipeline now, or raise max_slot_wal_keep_size"
            yield Finding("critical", "slot.unreserved", slot.name, seen, fix_sql="ALTER SYSTEM SET max_slot_wal_keep_size = '100GB'; SELECT pg_reload_conf();")
        if slot.active_pid is not None:
            yield Finding("info", "slot.active", slot.name, f"process {slot.active_pid} streams from it now")

    def _select(self, found: list[Finding]) -> Iterator[TableFacts]:
        """The tables to be carried; what is wrong with the publication goes to `found`."""
        name = self._options.publication
        quoted = quote_identifier(name)
        publication = self._catalog.publication(name)
        existing = [table for table in self._catalog.table_names() if self._wanted(*table)]
        if publication is None:
            if not self._patterns or not existing:
                seen = "it does not exist, and source.tables names no table that does"
                found.append(Finding("critical", "publication.missing", name, seen, fix_sql=f"CREATE PUBLICATION {quoted} FOR TABLE ...;"))
                return
            tables = self._catalog.tables_named(existing)
            statement = create_publication_sql(name, existing, via_root=any(facts.relkind == "p" for facts in tables))
            seen = "it does not exist yet: `sluice setup`, or the first run, creates it if the role may"
            found.append(Finding("info", "publication.missing", name, seen, fix_sql=f"{statement};"))
            yield from tables
            return
        if not (publication.insert and publication.update and publication.delete and publication.truncate):
            seen = "it does not publish every kind of change: the lake would differ from the source without notice"
            fix = f"ALTER PUBLICATION {quoted} SET (publish = '{PUBLISHED}');"
            found.append(Finding("critical", "publication.operations", name, seen, fix_sql=fix))
        published = self._catalog.published_tables(name)
        selected = [facts for facts in published if self._wanted(facts.schema, facts.name)]
        if not selected:
            seen = "it has no table" if not published else "it has none of the tables that source.tables asks for"
            found.append(Finding("critical", "publication.empty", name, seen, fix_sql=f"ALTER PUBLICATION {quoted} ADD TABLE ...;"))
        if self._patterns:
            found += self._uncovered(existing, published, quoted)
        yield from selected

    def _uncovered(self, existing: Sequence[tuple[str, str]], published: Sequence[TableFacts], quoted: str) -> Iterator[Finding]:
        names = {(facts.schema, facts.name) for facts in published}
        leaves = any(facts.is_partition for facts in published)
        missing = [table for table in existing if table not in names]
        if missing and not leaves:
            listed = ", ".join(quote_qualified(*table) for table in missing)
            seen = f"it lacks {', '.join('.'.join(table) for table in missing[:10])}, which source.tables asks for"
            fix = f"ALTER PUBLICATION {quoted} ADD TABLE {listed};"
            found = Finding("critical", "publication.lacks_tables", self._options.publication, seen, fix_sql=fix)
            yield found
        for pattern in self._patterns:
            if not any(fnmatchcase(f"{schema}.{table}", pattern) for schema, table in {*existing, *names}):
                yield Finding("critical", "tables.no_match", pattern, "no table of this database matches this pattern of source.tables")

    def _wanted(self, schema: str, table: str) -> bool:
        return not self._patterns or any(fnmatchcase(f"{schema}.{table}", pattern) for pattern in self._patterns)

    def _readable(self, tables: Sequence[TableFacts]) -> Iterator[Finding]:
        role = quote_identifier(self._role)
        with translated("reading the role's rights"):
            rows = self._conn.execute(
                "SELECT c.oid::int8, pg_catalog.has_schema_privilege(c.relnamespace, 'USAGE'), pg_catalog.has_table_privilege(c.oid, 'SELECT'),"
                " pg_catalog.row_security_active(c.oid) FROM pg_catalog.pg_class c WHERE c.oid = ANY (%s::int8[]::oid[])",
                ([facts.oid for facts in tables],),
            ).fetchall()
        rights = {oid: (usage, select, policies) for oid, usage, select, policies in rows}
        for facts in tables:
            usage, select, policies = rights.get(facts.oid, (True, True, False))
            grants = []
            if not usage:
                grants.append(f"GRANT USAGE ON SCHEMA {quote_identifier(facts.schema)} TO {role};")
            if not select:
                grants.append(f"GRANT SELECT ON {quote_qualified(facts.schema, facts.name)} TO {role};")
            if grants:
                seen = f"{self._role} cannot read it, which the initial copy needs"
                yield Finding("critical", "table.not_readable", facts.qualified_name, seen, fix_sql=" ".join(grants))
            if policies:
                seen = f"row level security applies to {self._role}: the initial copy would miss rows, and therefore stops"
                yield Finding("critical", "table.row_security", facts.qualified_name, seen, fix_sql=f"ALTER ROLE {role} BYPASSRLS;")
