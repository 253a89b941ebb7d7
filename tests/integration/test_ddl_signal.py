"""The DDL signal at the server: what its event triggers say, and that they never get in anybody's way."""

import json
import subprocess
from contextlib import closing
from typing import Any

import psycopg
import pytest

from sluice.errors import SourceRefused
from sluice.protocol.messages import DDL_SIGNAL
from sluice.source import ddl_signal
from sluice.source.sessions import open_query
from tests.support.least_rights import options_as, pipeline_role
from tests.support.source_setup import options_of, since
from tests.support.sources import Database, fresh_database
from tools.local.postgres import temporary_server


@pytest.fixture
def signalled(database: Database) -> Database:
    database.execute(*ddl_signal.statements())
    return database


def said(database: Database, *statements: str) -> list[dict[str, Any]]:
    """What a slot gets of the signal while these are carried out, each in a transaction of its own."""
    name = f"{database.publication}x"
    with database.connect() as connection:
        connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (database.slot,))
        connection.execute("SET session_replication_role = replica")
        connection.execute(f"CREATE PUBLICATION {name}".encode())
        for statement in statements:
            connection.execute(statement.encode())
        rows = connection.execute(
            "SELECT data FROM pg_logical_slot_get_binary_changes(%s, NULL, NULL, 'proto_version', '1', "
            "'publication_names', %s, 'messages', 'true')",
            (database.slot, name),
        ).fetchall()
        connection.execute("SELECT pg_drop_replication_slot(%s)", (database.slot,))
        connection.execute(f"DROP PUBLICATION {name}".encode())
    start = b"M"
    found = [bytes(data) for (data,) in rows if bytes(data[:1]) == start]
    # The length of the content is behind the prefix.
    return [json.loads(data[data.index(DDL_SIGNAL.encode()) + len(DDL_SIGNAL) + 5 :]) for data in found][1:]


def seen(database: Database) -> ddl_signal.Seen:
    with closing(open_query(options_of(database))) as connection:
        return ddl_signal.probe(connection, with_open=True)


def test_each_command_says_one_thing_and_no_text_of_it(signalled: Database) -> None:
    """Also in a session that applies what another server replicates."""
    commands = (
        "CREATE TABLE t (id int PRIMARY KEY, secret text)",
        "ALTER TABLE t RENAME secret TO hidden",
        "ALTER TABLE t ADD CONSTRAINT secret CHECK (hidden <> 'secret')",
        "CREATE TYPE mood AS ENUM ('secret')",
        "ALTER TYPE mood RENAME VALUE 'secret' TO 'hidden'",
        "ALTER PUBLICATION {p} ADD TABLE t",
        "ALTER PUBLICATION {p} DROP TABLE t",
        "GRANT SELECT ON t TO PUBLIC",
        "ALTER SCHEMA public OWNER TO CURRENT_USER",
        "DROP TABLE t",
    )
    signalled.execute("CREATE PUBLICATION {p}")
    messages = said(signalled, *(command.format(p=signalled.publication) for command in commands))
    tags = ["CREATE TABLE", "ALTER TABLE", "ALTER TABLE", "CREATE TYPE", "ALTER TYPE", "ALTER PUBLICATION"]
    tags += ["ALTER PUBLICATION", "GRANT", "ALTER SCHEMA", "DROP TABLE"]
    assert [message["tag"] for message in messages] == tags
    assert not [word for word in ("secret", "hidden", "public") if word in json.dumps(messages)]
    assert max(len(json.dumps(message)) for message in messages) < 400


def test_a_table_that_a_command_writes_anew_is_said_beside_it(signalled: Database) -> None:
    signalled.execute("CREATE TABLE t (id int PRIMARY KEY)")
    rewritten, altered = said(signalled, "ALTER TABLE t ALTER id TYPE bigint")
    assert rewritten["objects"] == altered["objects"]
    assert ["column", altered["objects"][0][1], 1, 20, -1] in altered["left"]


def test_what_is_temporary_or_no_fact_of_a_table_says_nothing(signalled: Database) -> None:
    commands = (
        "CREATE TEMP TABLE x (id int PRIMARY KEY, v text DEFAULT 'a')",
        "ALTER TABLE x ADD w int",
        "CREATE INDEX ON x (w)",
        "CREATE TEMP TABLE y AS SELECT 1 AS a",
        "DROP TABLE y",
        "DROP TABLE IF EXISTS nobody",
        "COMMENT ON SCHEMA public IS 'it'",
        "ANALYZE",
        "REINDEX TABLE t",
        "VACUUM FULL t",
    )
    signalled.execute("CREATE TABLE t (id int PRIMARY KEY)")
    assert said(signalled, *commands) == []


def test_partitions_that_come_and_go_are_said_with_their_roots(signalled: Database) -> None:
    signalled.execute(
        "CREATE TABLE r (id int) PARTITION BY RANGE (id)",
        "CREATE TABLE below (id int) PARTITION BY RANGE (id)",
        "CREATE TABLE leaf PARTITION OF below FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE old PARTITION OF r FOR VALUES FROM (100) TO (110)",
    )
    with signalled.connect() as connection:
        oids: dict[str, int] = dict(
            connection.execute("SELECT relname, oid::int8 FROM pg_class WHERE oid >= 16384").fetchall()
        )
    (attached,) = said(signalled, "ALTER TABLE r ATTACH PARTITION below FOR VALUES FROM (0) TO (50)")
    assert [one for one in attached["left"] if one[0] == "partition"] == [
        ["partition", oids["leaf"], oids["leaf"], oids["below"], oids["r"]]
    ]


NOBODY_EMITS = """DO $$ BEGIN EXECUTE (SELECT string_agg(format('REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC',
    oid::regprocedure), ';') FROM pg_proc WHERE proname = 'pg_logical_emit_message'); END $$"""
BROKEN = {
    "may not emit": ("CREATE ROLE {r}", "ALTER FUNCTION sluice_ddl.signal() OWNER TO {r}", NOBODY_EMITS),
    "other function": (
        "CREATE OR REPLACE FUNCTION sluice_ddl.signal() RETURNS event_trigger LANGUAGE plpgsql AS 'BEGIN END'",
    ),
    "function dropped": ("DROP FUNCTION sluice_ddl.signal() CASCADE",),
    "schema dropped": ("DROP SCHEMA sluice_ddl CASCADE",),
    "trigger dropped": ("DROP EVENT TRIGGER sluice_sql_drop",),
    "not always": ("ALTER EVENT TRIGGER sluice_sql_drop ENABLE",),
    "disabled": ("ALTER EVENT TRIGGER sluice_table_rewrite DISABLE",),
}
USUAL = (
    "CREATE TABLE u (id int PRIMARY KEY, v text)",
    "ALTER TABLE u ALTER id TYPE bigint",
    "CREATE TYPE mood AS ENUM ('a')",
    "ALTER TYPE mood ADD VALUE 'b'",
    "DROP TABLE u",
    "DROP TYPE mood",
)


@pytest.mark.parametrize("name", BROKEN)
def test_a_signal_that_was_broken_is_not_relied_upon_and_fails_nobody(signalled: Database, name: str) -> None:
    assert (bool(seen(signalled).version), seen(signalled).lacks) == (True, "")
    with pipeline_role(signalled) as role:
        signalled.execute(*(statement.format(r=role) for statement in BROKEN[name]))
        assert seen(signalled).lacks
        signalled.execute(*USUAL)
        signalled.execute("DROP FUNCTION IF EXISTS sluice_ddl.signal() CASCADE")


def test_a_command_of_any_size_and_of_any_role_is_carried_out(signalled: Database) -> None:
    """Nobody but the owner of the function may emit messages."""
    tables = "; ".join(f"CREATE TABLE many.t{number} (id int PRIMARY KEY, v text)" for number in range(300))
    with pipeline_role(signalled) as role:
        signalled.execute(
            f"CREATE ROLE {role} LOGIN",
            f"GRANT CREATE ON DATABASE {signalled.name} TO {role}",
            NOBODY_EMITS,
        )
        with psycopg.connect(options_as(signalled, role).dsn, autocommit=True) as connection:
            for statement in ("SET search_path = ''", "CREATE SCHEMA many", f"BEGIN; {tables}; COMMIT"):
                connection.execute(statement.encode())
            connection.execute(b"CREATE TABLE many.wide (%s)" % ", ".join(f"c{n} int" for n in range(1500)).encode())
            assert len(said(signalled, "DROP SCHEMA many CASCADE")) == 1
    assert seen(signalled).lacks == ""


@pytest.mark.parametrize("level", ["minimal", "replica"])
def test_where_nothing_is_decoded_commands_are_carried_out(level: str) -> None:
    with (
        temporary_server(settings={"wal_level": level, "max_wal_senders": "0"}) as server,
        fresh_database(server) as it,
    ):
        it.execute(*ddl_signal.statements(), *USUAL)


def test_restored_elsewhere_from_a_dump_it_harms_nobody(signalled: Database) -> None:
    signalled.execute("CREATE TABLE t (id int PRIMARY KEY)")
    programs = signalled.server.bin_dir
    dump = subprocess.run([programs / "pg_dump", "-d", signalled.dsn], capture_output=True, check=True, timeout=60)
    with temporary_server(settings={"wal_level": "replica"}) as server, fresh_database(server) as other:
        command = [str(programs / "psql"), "-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", other.dsn]
        subprocess.run(command, input=dump.stdout, check=True, timeout=60)
        other.execute(*USUAL, "ALTER TABLE t ADD v int")
        assert seen(other).lacks == ""
        other.execute(*ddl_signal.removal(), *USUAL)
        assert seen(other) == ddl_signal.Seen("", "it is not installed")


def test_event_triggers_that_are_off_for_anybody_are_seen(signalled: Database) -> None:
    since(signalled, 17, "event_triggers")
    with pipeline_role(signalled) as role:
        signalled.execute(f"CREATE ROLE {role}", f"ALTER ROLE {role} SET event_triggers = off")
        assert "event_triggers" in seen(signalled).lacks


def test_it_is_made_by_a_superuser_whole_or_not_at_all(database: Database) -> None:
    with pipeline_role(database) as role:
        database.execute(f"CREATE ROLE {role} LOGIN", f"GRANT CREATE ON DATABASE {database.name} TO {role}")
        with closing(open_query(options_as(database, role))) as connection:
            with pytest.raises(SourceRefused) as refused:
                ddl_signal.create(connection)
            assert "superuser" in refused.value.hint
    assert seen(database).lacks == "it is not installed"
    with closing(open_query(options_of(database))) as connection:
        assert [ddl_signal.create(connection) for _ in range(2)] == [True, False]
    assert seen(database).lacks == ""


def test_transactions_that_are_under_way_are_named(signalled: Database) -> None:
    with signalled.connect() as connection:
        connection.execute("BEGIN")
        connection.execute("SELECT pg_current_xact_id()")
        before = seen(signalled).open
        connection.execute("COMMIT")
    assert before is not None
    assert before - (seen(signalled).open or frozenset())
