"""`check` finds what would stop or harm, by code, and each statement it prints mends what it found."""

from collections.abc import Sequence

import psycopg
import pytest

from deploy.local.postgres import temporary_server
from service.errors import StoreRefused
from service.source.findings import Finding
from service.source.preflight import run_preflight
from service.source.slot import ensure_slot
from tests.support.source_setup import options_of, server_major, since
from tests.support.sources import Database

EXPECTED_HERE = {"role.superuser", "server.keep_size", "slot.missing"}
"""True of every fresh database of the test server, whose WAL retention is unlimited."""


def codes(findings: Sequence[Finding]) -> set[str]:
    return {finding.code for finding in findings} - EXPECTED_HERE


def examined(database: Database, *statements: str, patterns: tuple[str, ...] | None = None) -> list[Finding]:
    database.execute(*(statement.replace("{publication}", database.publication) for statement in statements))
    return run_preflight(options_of(database), patterns)


def test_a_sound_source_has_no_critical_finding(database: Database) -> None:
    findings = examined(database, "CREATE TABLE t (id int PRIMARY KEY, body text)", "CREATE PUBLICATION {publication} FOR TABLE t", patterns=("public.*",))
    assert codes(findings) == set()
    assert {finding.code for finding in findings} == EXPECTED_HERE
    assert all(finding.severity != "critical" for finding in findings)


PUBLISHED = "CREATE PUBLICATION {publication} FOR TABLE t"
TABLE_CASES: dict[str, tuple[tuple[str, ...], set[str]]] = {
    "no identity": (("CREATE TABLE t (id int)", PUBLISHED), {"table.no_identity"}),
    "identity nothing": (("CREATE TABLE t (id int PRIMARY KEY)", "ALTER TABLE t REPLICA IDENTITY NOTHING", PUBLISHED), {"table.no_identity"}),
    "full without a key": (("CREATE TABLE t (id int)", "ALTER TABLE t REPLICA IDENTITY FULL", PUBLISHED), {"table.no_key"}),
    "identity index": (("CREATE TABLE t (id int NOT NULL UNIQUE)", "ALTER TABLE t REPLICA IDENTITY USING INDEX t_id_key", PUBLISHED), set()),
    "reserved name": (('CREATE TABLE t (id int PRIMARY KEY, "_SLUICE_op" text)', PUBLISHED), {"column.reserved"}),
    "reserved schema": (
        ("CREATE SCHEMA _sluice_own", "CREATE TABLE _sluice_own.t (id int PRIMARY KEY)", f"{PUBLISHED[:-1]}_sluice_own.t"),
        {"schema.reserved"},
    ),
    "names by case": (('CREATE TABLE t (id int PRIMARY KEY, "Id" int)', PUBLISHED), {"column.case"}),
    "generated": (("CREATE TABLE t (id int PRIMARY KEY, g int GENERATED ALWAYS AS (id) STORED)", PUBLISHED), {"column.generated"}),
    "generated under full": (
        ("CREATE TABLE t (id int PRIMARY KEY, g int GENERATED ALWAYS AS (id) STORED)", "ALTER TABLE t REPLICA IDENTITY FULL", PUBLISHED),
        {"column.generated_in_identity"},
    ),
    "filter on large values": (("CREATE TABLE t (id int PRIMARY KEY, body text)", PUBLISHED + " WHERE (id > 0)"), {"table.filter_hides_values"}),
    "filter under full": (
        ("CREATE TABLE t (id int PRIMARY KEY, body text)", "ALTER TABLE t REPLICA IDENTITY FULL", PUBLISHED + " WHERE (id > 0)"),
        {"table.row_filter"},
    ),
    "no columns": (("CREATE TABLE t ()", "ALTER TABLE t REPLICA IDENTITY FULL", PUBLISHED), {"table.no_columns", "table.no_key"}),
    "path by case": (
        ("CREATE TABLE t (id int PRIMARY KEY)", 'CREATE TABLE "T" (id int PRIMARY KEY)', 'CREATE PUBLICATION {publication} FOR TABLE t, "T"'),
        {"table.path"},
    ),
    "leaf identity": (
        (
            "CREATE TABLE t (id int PRIMARY KEY) PARTITION BY RANGE (id)",
            "CREATE TABLE t1 PARTITION OF t DEFAULT",
            "ALTER TABLE t1 REPLICA IDENTITY FULL",
            PUBLISHED + " WITH (publish_via_partition_root = true)",
        ),
        {"partition.identity"},
    ),
    "operations": (("CREATE TABLE t (id int PRIMARY KEY)", PUBLISHED + " WITH (publish = 'insert, update, delete')"), {"publication.operations"}),
    "empty publication": (("CREATE PUBLICATION {publication}",), {"publication.empty"}),
    "no publication": ((), {"publication.missing"}),
}


@pytest.mark.parametrize(("statements", "expected"), TABLE_CASES.values(), ids=TABLE_CASES.keys())
def test_each_kind_of_table_that_cannot_be_carried_is_named(database: Database, statements: tuple[str, ...], expected: set[str]) -> None:
    if any("WHERE" in statement for statement in statements):
        since(database, 15, "row filters")
    if expected == {"column.generated_in_identity"} and server_major(database) < 18:
        expected = {"column.generated"}
    assert codes(examined(database, *statements)) == expected


def test_tables_that_are_asked_for_and_not_published_come_with_the_statement_that_adds_them(database: Database) -> None:
    findings = examined(
        database,
        "CREATE TABLE t (id int PRIMARY KEY)",
        'CREATE TABLE "T 2" (id int PRIMARY KEY)',
        "CREATE PUBLICATION {publication} FOR TABLE t",
        patterns=("public.*", "nowhere.*"),
    )
    assert codes(findings) == {"publication.lacks_tables", "tables.no_match"}
    for finding in findings:
        if finding.code == "publication.lacks_tables":
            database.execute(finding.fix_sql)
    assert codes(run_preflight(options_of(database), ("public.*",))) == set()


@pytest.mark.parametrize("case", ["no identity", "operations", "filter on large values", "leaf identity"])
def test_the_statement_that_is_printed_mends_the_finding(database: Database, case: str) -> None:
    statements, _ = TABLE_CASES[case]
    if any("WHERE" in statement for statement in statements):
        since(database, 15, "row filters")
    for finding in examined(database, *statements):
        if finding.severity == "critical":
            database.execute(finding.fix_sql)
    assert all(finding.severity != "critical" for finding in run_preflight(options_of(database), None))


def test_a_role_without_rights_is_told_each_right_it_lacks(database: Database) -> None:
    role = f"poor_{database.name}"
    database.execute(
        "CREATE SCHEMA s",
        "CREATE TABLE s.t (id int PRIMARY KEY)",
        "CREATE TABLE s.guarded (id int PRIMARY KEY)",
        "ALTER TABLE s.guarded ENABLE ROW LEVEL SECURITY",
        f"CREATE PUBLICATION {database.publication} FOR TABLE s.t, s.guarded",
        f"CREATE ROLE {role} LOGIN",
    )
    try:
        findings = run_preflight(options_of(database, user=role), None)
        assert codes(findings) == {"role.replication", "table.not_readable", "table.row_security"}
        database.execute(*(finding.fix_sql for finding in findings if finding.severity == "critical"))
        assert codes(run_preflight(options_of(database, user=role), None)) == set()
    finally:
        database.execute(f"DROP OWNED BY {role}", f"DROP ROLE {role}")


def test_a_source_that_cannot_be_reached_and_a_store_that_refuses_are_findings_too(database: Database) -> None:
    def refusing() -> None:
        raise StoreRefused("no create-only", hint="use another store")

    options = options_of(database)
    findings = run_preflight(type(options)(dsn="host=127.0.0.1 port=1", slot="s", publication="p", application_name="a"), None, refusing)
    assert [(finding.code, finding.severity) for finding in findings] == [("store.probe", "critical"), ("source.connect", "critical")]


def test_a_slot_of_another_plugin_is_named(database: Database) -> None:
    statement = f"SELECT pg_create_logical_replication_slot('{database.slot}', 'test_decoding')"
    findings = examined(database, "CREATE TABLE t (id int PRIMARY KEY)", PUBLISHED, statement)
    assert codes(findings) == {"slot.wrong"}


def test_settings_of_the_server_that_do_not_do_are_named_with_what_they_should_be() -> None:
    settings = {
        "wal_level": "replica",
        "max_replication_slots": "1",
        "max_wal_senders": "1",
        "max_slot_wal_keep_size": "0",
        "wal_sender_timeout": "1s",
    }
    with temporary_server(settings=settings) as server:
        database = Database(server, name="postgres", slot="s", publication="p")
        with psycopg.connect(database.dsn, autocommit=True) as connection:
            connection.execute("CREATE TABLE t (id int PRIMARY KEY)")
            connection.execute("CREATE DATABASE ascii ENCODING SQL_ASCII TEMPLATE template0")
        findings = examined(database, patterns=("public.*",))
        expected = {"server.wal_level", "server.slots", "server.senders", "server.sender_timeout", "publication.missing"}
        if server_major(database) >= 18:
            database.execute("ALTER SYSTEM SET idle_replication_slot_timeout = 60", "SELECT pg_reload_conf()")
            findings = examined(database, patterns=("public.*",))
            expected |= {"server.idle_slots"}
        assert codes(findings) == expected
        keep = next(finding for finding in findings if finding.code == "server.keep_size")
        assert keep.severity == "critical"
        assert all(finding.fix_sql for finding in findings if finding.code.startswith("server."))
        assert {finding.code for finding in findings if finding.needs_restart} == {"server.wal_level", "server.slots", "server.senders"}
        ascii_findings = run_preflight(options_of(Database(server, name="ascii", slot="s", publication="p")), None)
        assert "server.encoding" in codes(ascii_findings)


def test_an_existing_slot_that_fits_is_no_finding(database: Database) -> None:
    examined(database, "CREATE TABLE t (id int PRIMARY KEY)", PUBLISHED)
    ensure_slot(options_of(database))
    assert codes(run_preflight(options_of(database), None)) == set()
