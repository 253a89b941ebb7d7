"""The random workload can be run again from its seed, and reaches what it is there for."""

from collections import Counter

from tests.support.sources import Database
from tests.support.workload import TABLE_NAMES, Workload
from tools.local.compare import read_source
from tools.local.postgres import PostgresServer

TRANSACTIONS = 150


def run(dsn: str, *, seed: int) -> None:
    with Workload(dsn, seed=seed) as workload:
        workload.create()
        workload.transact(TRANSACTIONS)
        assert workload.committed() == TRANSACTIONS


def rows(server: PostgresServer, database: str) -> dict[str, object]:
    with server.superuser(database) as connection:
        return {name: Counter(read_source(connection, schema="public", table=name)[0].rows) for name in TABLE_NAMES}


def test_one_seed_gives_one_database_and_another_seed_another(database: Database) -> None:
    other = f"{database.name}_again"
    database.execute(f"CREATE DATABASE {other}")
    try:
        run(database.dsn, seed=1)
        run(database.server.dsn(dbname=other), seed=1)
        first = rows(database.server, database.name)
        assert first == rows(database.server, other)
    finally:
        database.execute(f"DROP DATABASE {other} WITH (FORCE)")
    database.execute("DROP SCHEMA public CASCADE", "CREATE SCHEMA public")
    run(database.dsn, seed=2)
    assert first != rows(database.server, database.name)


def test_it_sends_every_kind_of_change_of_every_identity(database: Database) -> None:
    database.execute("CREATE PUBLICATION {p} FOR ALL TABLES")
    database.execute(f"SELECT pg_create_logical_replication_slot('{database.slot}', 'pgoutput')")
    run(database.dsn, seed=3)
    query = (
        "SELECT chr(get_byte(data, 0)), CASE WHEN chr(get_byte(data, 0)) IN ('U', 'D') THEN "
        "chr(get_byte(data, 5)) ELSE '' END, count(*)"
        f" FROM pg_logical_slot_get_binary_changes('{database.slot}', NULL, NULL, 'proto_version', "
        f"'1', 'publication_names', '{database.publication}')"
        " GROUP BY 1, 2"
    )
    seen = {(tag, mark): count for tag, mark, count in database.all(query)}
    assert seen["C", ""] >= TRANSACTIONS
    assert {("I", ""), ("U", "N"), ("U", "K"), ("U", "O"), ("D", "K"), ("D", "O"), ("T", "")} <= set(seen)
