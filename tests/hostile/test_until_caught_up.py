"""`run --until-caught-up` with a table that it could not copy."""

import json
from pathlib import Path

from tests.support.looks import Pipe, orders
from tests.support.sources import Database


def test_a_batch_that_left_a_table_out_does_not_end_with_0(database: Database, tmp_path: Path) -> None:
    orders(database)
    role = f"r_{database.name}"
    database.execute(
        "CREATE TABLE hidden (id int PRIMARY KEY)", "INSERT INTO hidden VALUES (1)", f"CREATE ROLE {role} LOGIN REPLICATION", f"GRANT SELECT ON orders TO {role}"
    )
    try:
        planned = Pipe(database, tmp_path)("setup")
        assert planned.returncode == 0
        pipe = Pipe(database, tmp_path, dsn=database.server.dsn(user=role, dbname=database.name))
        ran = pipe("run", "--until-caught-up")
        status = pipe("status", "--json")
        print(ran.returncode, ran.stderr[-900:], [(t["table"], t["state"], t["reason"][:80]) for t in json.loads(status.stdout)["tables"]], pipe("tables").stderr)
        assert ran.returncode != 0
    finally:
        database.execute(f"DROP OWNED BY {role}", f"DROP ROLE {role}")
