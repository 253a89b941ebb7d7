"""`run --until-caught-up` with a table that it could not read."""

from pathlib import Path

from sluice.errors import Interrupted
from tests.support.sources import Database
from tests.support.surfaces import Pipe, orders


def test_a_batch_that_left_a_table_out_ends_with_75_and_names_it(database: Database, tmp_path: Path) -> None:
    orders(database)
    role = f"r_{database.name}"
    create = ("CREATE TABLE hidden (id int PRIMARY KEY)", "INSERT INTO hidden VALUES (1)")
    database.execute(*create, f"CREATE ROLE {role} LOGIN REPLICATION", f"GRANT SELECT ON orders TO {role}")
    try:
        assert Pipe(database, tmp_path)("setup").returncode == 0
        pipe = Pipe(database, tmp_path, dsn=database.server.dsn(user=role, dbname=database.name))
        ran = pipe("run", "--until-caught-up")
        assert ran.returncode == Interrupted.exit_code, ran.stderr
        assert "public.hidden" in ran.stderr.partition("error: ")[2]
        database.execute(f"GRANT SELECT ON hidden TO {role}")
        assert pipe("run", "--until-caught-up").returncode == 0
    finally:
        database.execute(f"DROP OWNED BY {role}", f"DROP ROLE {role}")
