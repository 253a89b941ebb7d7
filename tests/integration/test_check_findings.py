"""Each finding of `check` by itself: a perfect source has none; made bad in one way it has exactly
that one; its SQL run, it has none again.

The source is looked at as the role of deploy/postgres/grants.sql, which sees less than a superuser.
"""

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
import pytest

from sluice.cli import findings_view as shown
from sluice.findings import KINDS, Finding
from sluice.operate.check import server as preflight_server
from sluice.operate.check.preflight import run_preflight
from sluice.source import ddl_signal
from sluice.source.slot import ensure_slot
from tests.support.extent import slow
from tests.support.least_rights import grant, options_as, pipeline_role, run_script
from tests.support.source_setup import since
from tests.support.sources import Database, fresh_database
from tools.local.postgres import PostgresServer, temporary_server

PARTITIONED = (
    "CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id)",
    "CREATE TABLE p1 PARTITION OF p DEFAULT",
    "GRANT SELECT ON p, p1 TO {role}",
)
SIGNAL_AGAIN = tuple(one.replace("{", "{{").replace("}", "}}") for one in ddl_signal.statements()[1:])
ADD = "ALTER PUBLICATION {publication} ADD TABLE "
GRANT = "GRANT SELECT ON b TO {role}"
KEYED = "CREATE TABLE b (id int PRIMARY KEY)"
KEY = ("ALTER TABLE b ADD PRIMARY KEY (id)",)
FOREIGN = ("CREATE FOREIGN DATA WRAPPER f", "CREATE SERVER s FOREIGN DATA WRAPPER f")
STANDBY = "SELECT pg_create_physical_replication_slot('standby_{slot}')"
NO_SLOT = "SELECT pg_drop_replication_slot('{slot}')"


def member(columns: str, *more: str, how: str = "") -> tuple[str, ...]:
    """A table that the role may read, in the publication."""
    return f"CREATE TABLE b ({columns})", *more, GRANT, f"{ADD}b{how}"


def slot(*arguments: str) -> str:
    return f"SELECT pg_create_logical_replication_slot('{{slot}}', {', '.join(arguments)})"


def system(name: str, value: str) -> tuple[str, ...]:
    return f"ALTER SYSTEM SET {name} = {value}", "SELECT pg_reload_conf()"


@dataclass(frozen=True)
class Case:
    """One way to make the source bad. The findings' own SQL fixes it; `fix` are statements for
    what a person has to decide.
    """

    bad: tuple[str, ...]
    expected: set[str]
    fix: tuple[str, ...] = ()
    since: int = 14
    patterns: tuple[str, ...] = ()
    options: dict[str, bool] = field(default_factory=dict)
    two_phase: bool = False
    load_limits: tuple[str, ...] = ()


CASES: dict[str, Case] = {
    "limits on what the role cannot see": Case(
        (), {"role.load_limits"}, load_limits=("source.snapshot_max_replica_lag", "source.snapshot_max_active_sessions")
    ),
    "no identity": Case(member("id int"), {"table.no_identity"}, fix=KEY),
    "no identity, by its own statement": Case(
        member("id int PRIMARY KEY", "ALTER TABLE b REPLICA IDENTITY NOTHING"), {"table.no_identity"}
    ),
    "full without a key": Case(member("id int", "ALTER TABLE b REPLICA IDENTITY FULL"), {"table.no_key"}, fix=KEY),
    "identity outside the column list": Case(
        member("id int PRIMARY KEY, v int", how=" (v)"),
        {"table.identity_not_published"},
        fix=("ALTER PUBLICATION {publication} SET TABLE t, b (id, v)",),
        since=15,
    ),
    "filter on large values": Case(
        member("id int PRIMARY KEY, body text", how=" WHERE (id > 0)"),
        {"table.filter_hides_values"},
        fix=("ALTER PUBLICATION {publication} SET TABLE t",),
        since=15,
    ),
    "filter": Case(
        member("id int PRIMARY KEY", how=" WHERE (id > 0)"),
        {"table.row_filter"},
        fix=("ALTER PUBLICATION {publication} SET TABLE t, b",),
        since=15,
    ),
    "no columns": Case(
        member("", "ALTER TABLE b REPLICA IDENTITY FULL"),
        {"table.no_columns", "table.no_key"},
        fix=("ALTER TABLE b ADD id int PRIMARY KEY",),
    ),
    "path by case": Case(
        ('CREATE TABLE "T" (id int PRIMARY KEY)', 'GRANT SELECT ON "T" TO {role}', ADD + '"T"'),
        {"table.path"},
        fix=('ALTER TABLE "T" RENAME TO u',),
    ),
    "no DDL signal": Case(("DROP FUNCTION sluice_ddl.signal() CASCADE",), {"source.ddl_signal"}, fix=SIGNAL_AGAIN),
    "a DDL signal that a replica does not give": Case(
        ("ALTER EVENT TRIGGER sluice_sql_drop ENABLE",),
        {"source.ddl_signal"},
        fix=("ALTER EVENT TRIGGER sluice_sql_drop ENABLE ALWAYS",),
    ),
    "reserved schema": Case(
        (
            "CREATE SCHEMA _sluice_own",
            "CREATE TABLE _sluice_own.b (id int PRIMARY KEY)",
            "GRANT USAGE ON SCHEMA _sluice_own TO {role}",
            "GRANT SELECT ON _sluice_own.b TO {role}",
            ADD + "_sluice_own.b",
        ),
        {"schema.reserved"},
        fix=("ALTER SCHEMA _sluice_own RENAME TO own",),
    ),
    "reserved name": Case(
        ('ALTER TABLE t ADD "_SLUICE_op" text',),
        {"column.reserved"},
        fix=('ALTER TABLE t RENAME COLUMN "_SLUICE_op" TO op',),
    ),
    "names by case": Case(
        ('ALTER TABLE t ADD "Id" int',), {"column.case"}, fix=('ALTER TABLE t RENAME COLUMN "Id" TO other',)
    ),
    "generated": Case(("ALTER TABLE t ADD g int GENERATED ALWAYS AS (id) STORED",), {"column.generated"}, since=18),
    "generated, not to be fixed before 18": Case(
        ("ALTER TABLE t ADD g int GENERATED ALWAYS AS (id) STORED",),
        {"column.generated"},
        fix=("ALTER TABLE t DROP g",),
    ),
    "generated under full": Case(
        ("ALTER TABLE t ADD g int GENERATED ALWAYS AS (id) STORED", "ALTER TABLE t REPLICA IDENTITY FULL"),
        {"column.generated_in_identity"},
        since=18,
    ),
    "binary": Case(
        ("ALTER TABLE t ADD a int[]",), {"column.binary"}, fix=("ALTER TABLE t DROP a",), options={"binary": True}
    ),
    "unlogged": Case(
        ("CREATE UNLOGGED TABLE b (id int PRIMARY KEY)",),
        {"table.unlogged"},
        patterns=("public.*",),
        fix=("DROP TABLE b",),
    ),
    "unlogged, by its own statement": Case(
        ("CREATE UNLOGGED TABLE b (id int PRIMARY KEY)", GRANT), {"table.unlogged"}, patterns=("public.t", "public.b")
    ),
    "foreign": Case(
        (*FOREIGN, "CREATE FOREIGN TABLE b (id int) SERVER s"),
        {"table.foreign"},
        patterns=("public.*",),
        fix=("DROP FOREIGN TABLE b",),
    ),
    "not readable": Case((KEYED, ADD + "b"), {"table.not_readable"}),
    "schema not usable": Case(
        ("CREATE SCHEMA s", "CREATE TABLE s.b (id int PRIMARY KEY)", ADD + "s.b"), {"table.not_readable"}
    ),
    "row security": Case(
        ("ALTER TABLE t ENABLE ROW LEVEL SECURITY",), {"table.row_security"}, fix=("ALTER ROLE {role} BYPASSRLS",)
    ),
    "reading fails": Case(
        (
            *FOREIGN,
            "CREATE TABLE p (id int) PARTITION BY RANGE (id)",
            "CREATE FOREIGN TABLE p1 PARTITION OF p DEFAULT SERVER s",
            "ALTER TABLE p REPLICA IDENTITY FULL",
            "GRANT SELECT ON p TO {role}",
            ADD + "p",
        ),
        {"table.read_failed", "partition.not_logged", "table.no_key"},
        fix=("ALTER PUBLICATION {publication} DROP TABLE p",),
    ),
    "operations": Case(
        ("ALTER PUBLICATION {publication} SET (publish = 'insert, update, delete')",), {"publication.operations"}
    ),
    "empty publication": Case(
        ("ALTER PUBLICATION {publication} DROP TABLE t",), {"publication.empty"}, fix=(ADD + "t",)
    ),
    "no publication, and nothing said": Case(
        ("DROP PUBLICATION {publication}",),
        {"publication.missing"},
        fix=("CREATE PUBLICATION {publication} FOR TABLE t",),
    ),
    "no publication": Case(("DROP PUBLICATION {publication}",), {"publication.missing"}, patterns=("public.*",)),
    "no publication, and a role that may only read": Case(
        ("DROP PUBLICATION {publication}", "ALTER ROLE {role} SET default_transaction_read_only = on"),
        {"publication.missing", "role.read_only"},
        patterns=("public.*",),
    ),
    "table outside the publication": Case(
        (KEYED, GRANT), {"publication.lacks_tables"}, patterns=("public.t", "public.b")
    ),
    "table outside the publication, by a pattern": Case(
        (KEYED,), {"publication.lacks_tables"}, patterns=("public.*",), fix=("DROP TABLE b",)
    ),
    "pattern without a table": Case(
        (),
        {"tables.no_match"},
        patterns=("public.*", "nowhere.*"),
        fix=(
            "CREATE SCHEMA nowhere",
            "CREATE TABLE nowhere.b (id int PRIMARY KEY)",
            "GRANT USAGE ON SCHEMA nowhere TO {role}",
            "GRANT SELECT ON nowhere.b TO {role}",
            ADD + "nowhere.b",
        ),
    ),
    "partitions one by one": Case(
        (*PARTITIONED, "ALTER PUBLICATION {publication} SET (publish_via_partition_root = false)", ADD + "p"),
        {"publication.partitions"},
        fix=("ALTER PUBLICATION {publication} SET (publish_via_partition_root = true)",),
    ),
    "unlogged partition": Case(
        (
            "CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id)",
            "CREATE UNLOGGED TABLE p1 PARTITION OF p DEFAULT",
            "GRANT SELECT ON p TO {role}",
            ADD + "p",
        ),
        {"partition.not_logged"},
    ),
    "leaf identity": Case((*PARTITIONED, "ALTER TABLE p1 REPLICA IDENTITY FULL", ADD + "p"), {"partition.identity"}),
    "role may not replicate": Case(("ALTER ROLE {role} NOREPLICATION",), {"role.replication"}),
    "superuser": Case(("ALTER ROLE {role} SUPERUSER",), {"role.superuser"}, fix=("ALTER ROLE {role} NOSUPERUSER",)),
    "role may not log in": Case(("ALTER ROLE {role} NOLOGIN",), {"source.connect"}, fix=("ALTER ROLE {role} LOGIN",)),
    "no slot": Case((NO_SLOT,), {"slot.missing"}, fix=(slot("'pgoutput'"),)),
    "slot of another plugin": Case(
        (NO_SLOT, slot("'test_decoding'")), {"slot.wrong"}, fix=(NO_SLOT, slot("'pgoutput'"))
    ),
    "two_phase": Case(
        (), {"slot.two_phase"}, two_phase=True, fix=(NO_SLOT, slot("'pgoutput'", "false", "true")), since=15
    ),
    "slot without failover": Case(
        (STANDBY,), {"slot.failover"}, fix=(NO_SLOT.replace("{slot}", "standby_{slot}"),), since=17
    ),
    "failover slot ahead of its standby": Case(
        (STANDBY, NO_SLOT, slot("'pgoutput'", "failover => true")),
        {"server.synchronized_standbys"},
        fix=system("synchronized_standby_slots", "'standby_{slot}'"),
        since=17,
    ),
    "unlimited WAL": Case(system("max_slot_wal_keep_size", "-1"), {"server.keep_size"}),
    "no WAL": Case(system("max_slot_wal_keep_size", "0"), {"server.keep_size"}),
    "little WAL": Case(system("max_slot_wal_keep_size", "'1GB'"), {"server.keep_size"}),
    "idle slots": Case(system("idle_replication_slot_timeout", "60"), {"server.idle_slots"}, since=18),
    "short timeout": Case(system("wal_sender_timeout", "'1s'"), {"server.sender_timeout"}),
    "no timeout": Case(system("wal_sender_timeout", "0"), {"server.sender_timeout"}),
    "synchronous": Case(
        ("SET synchronous_commit = local", *system("synchronous_standby_names", "'sluice_test'")),
        {"server.synchronous"},
        fix=system("synchronous_standby_names", "''"),
    ),
}

AGAIN = (
    "no identity, by its own statement",
    "a DDL signal that a replica does not give",
    "unlogged, by its own statement",
    "schema not usable",
    "no publication, and nothing said",
    "table outside the publication, by a pattern",
    "no WAL",
    "little WAL",
    "no timeout",
)
"""Further ways to a finding that another case has."""


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """Set up as `check` would have it."""
    with temporary_server() as started:
        with started.superuser() as admin:
            _reset(admin)
        yield started


def _reset(admin: psycopg.Connection) -> None:
    for statement in ("ALTER SYSTEM RESET ALL", *system("max_slot_wal_keep_size", "'100GB'")):
        admin.execute(statement.encode())


@contextmanager
def perfect(server: PostgresServer) -> Iterator[tuple[Database, str]]:
    """A database whose owner ran the script, with the pipeline's slot; and the role."""
    with fresh_database(server) as database, pipeline_role(database) as role:
        database.execute("CREATE TABLE t (id int PRIMARY KEY, body text)")
        database.execute(*ddl_signal.statements())
        grant(database, role, tables="t")
        ensure_slot(options_as(database, role))
        try:
            yield database, role
        finally:
            with server.superuser() as admin:
                for (name,) in admin.execute(
                    "SELECT slot_name FROM pg_replication_slots WHERE slot_type = 'physical'"
                ).fetchall():
                    admin.execute("SELECT pg_drop_replication_slot(%s)", (name,))
                _reset(admin)


def found(
    database: Database,
    role: str,
    case: Case | None = None,
    *,
    settled: Callable[[list[Finding]], bool] = lambda _: True,
) -> list[Finding]:
    """Findings of one look. A reload of the server's configuration reaches its processes a moment
    later: looked at again until `settled`.
    """
    case = case or Case((), set())
    for _ in range(100):
        findings = run_preflight(
            options_as(database, role, **case.options),
            case.patterns,
            two_phase=case.two_phase,
            load_limits=case.load_limits,
        ).findings
        if settled(findings):
            break
        threading.Event().wait(0.02)
    return findings


def codes(findings: list[Finding]) -> set[str]:
    return {finding.code for finding in findings}


def test_a_perfect_source_has_no_finding_at_all(server: PostgresServer) -> None:
    with perfect(server) as (database, role):
        assert found(database, role) == []
        assert found(database, role, Case((), set(), patterns=("public.*",))) == []


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=slow if name in AGAIN else ()) for name, case in CASES.items()], ids=CASES
)
def test_each_way_to_be_bad_is_found_alone_and_gone_once_its_sql_has_run(
    server: PostgresServer, case: Case, tmp_path: Path
) -> None:
    with perfect(server) as (database, role):
        since(database, case.since, "what is bad")
        names = {"role": role, "publication": database.publication, "slot": database.slot}
        with database.connect() as admin:
            for statement in case.bad:
                admin.execute(statement.format(**names).encode())
        findings = found(database, role, case, settled=lambda seen: codes(seen) == case.expected)
        assert codes(findings) == case.expected
        assert all(finding.fix_sql or finding.fix_setting or finding.severity == "info" for finding in findings)
        assert not [
            finding for finding in findings if finding.fix_sql and not finding.by_hand and finding.code in BY_HAND
        ], "a person has to decide on it"
        for _ in range(ROUNDS):
            run = {finding.code for finding in findings if finding.fix_sql and not finding.by_hand}
            if not run:
                break
            script = tmp_path / "fix.sql"
            script.write_text(shown.script(shown.ordered(findings), pipeline="t"), encoding="utf-8")
            run_script(database, script)
            findings = found(database, role, case, settled=lambda seen, run=run: not codes(seen) & run)  # type: ignore[misc]
            assert not codes(findings) & run, "its own SQL has not fixed it"
        with database.connect() as admin:
            for statement in case.fix:
                admin.execute(statement.format(**names).encode())
        assert found(database, role, case, settled=lambda seen: not seen) == []


ROUNDS = 3
"""A table that can be carried at last is then missing in the publication."""
BY_HAND = {
    kind.code
    for kind in KINDS
    if kind.code.endswith((".reserved", ".case", ".path", ".partitions", ".row_security", ".synchronous"))
}


def test_a_limit_that_looks_large_is_shown_in_minutes_of_outage_at_the_rate_of_wal(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with perfect(server) as (database, role):
        database.execute("SELECT pg_logical_emit_message(true, 'some', repeat('WAL', 100000))")
        assert found(database, role) == []
        monkeypatch.setattr(preflight_server, "SHORT_OUTAGE_MINUTES", float("inf"))
        (finding,) = found(database, role)
        assert (finding.code, finding.severity) == ("server.keep_size", "warning")
        assert re.fullmatch(
            r"it is 102400 MB: an outage of about \d+ minutes, at the [\d.]+ MiB/s of WAL seen lately, loses the slot",
            finding.seen,
        )
