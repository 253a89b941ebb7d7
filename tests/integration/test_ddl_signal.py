"""The DDL signal at the server: what its event triggers say, and that they never get in anybody's way."""

import json
from typing import Any

from sluice.source import ddl_signal
from tests.support.sources import Database


def installed(database: Database) -> None:
    database.execute(*ddl_signal.statements())


def said(database: Database, *statements: str) -> list[dict[str, Any]]:
    """What a slot gets of the signal while these are carried out, each in a transaction of its own."""
    with database.connect() as connection:
        connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (database.slot,))
    database.execute(f"CREATE PUBLICATION {database.publication}x", *statements)
    with database.connect() as connection:
        rows = connection.execute(
            "SELECT data FROM pg_logical_slot_get_binary_changes(%s, NULL, NULL, 'proto_version', '1', "
            "'publication_names', %s, 'messages', 'true')",
            (database.slot, f"{database.publication}x"),
        ).fetchall()
    found = [bytes(data) for (data,) in rows if bytes(data[:1]) == b"M"]
    return [json.loads(data[data.index(b"sluice.ddl\0") + 15 :]) for data in found]


def test_each_command_says_one_thing_and_no_text_of_it(database: Database) -> None:
    installed(database)
    messages = said(
        database,
        "CREATE TABLE t (id int PRIMARY KEY, secret text)",
        "ALTER TABLE t RENAME secret TO other",
        "ALTER TABLE t ALTER other TYPE varchar(3)",
        "DROP TABLE t",
    )
    print(*messages, sep="\n")
    assert 0
