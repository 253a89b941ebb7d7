"""Copies that fail again and again because the server has no slot to spare: one verdict, said everywhere?"""

import json
import time
from pathlib import Path

from deploy.local.postgres import temporary_server
from tests.support.looks import Pipe, orders
from tests.support.sources import Database


def test_status_and_the_page_agree_on_copies_that_never_come(tmp_path: Path) -> None:
    with temporary_server() as server:
        database = Database(server, "postgres", "sluice_h", "sluice_h")
        orders(database)
        with Pipe(database, tmp_path).start().streaming().live() as pipe:
            pipe.applied()
            with database.connect() as connection:
                free = connection.execute("SELECT current_setting('max_replication_slots')::int - count(*) FROM pg_replication_slots").fetchone()[0]  # type: ignore[index]
                for n in range(free):
                    connection.execute(f"SELECT pg_create_physical_replication_slot('other_{n}')".encode())
            database.execute("CREATE TABLE extra (id int PRIMARY KEY)", "INSERT INTO extra VALUES (1)", "ALTER PUBLICATION sluice_h ADD TABLE extra")
            for n in range(2, 9):
                time.sleep(15)
                pipe.applied(n)
            seen = pipe.looks()
            print(seen, json.loads(pipe("status", "--json").stdout)["problems"])
            assert seen["status"][1] == seen["/status"][1], seen
