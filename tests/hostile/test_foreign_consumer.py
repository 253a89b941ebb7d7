"""Nobody runs ingest, and somebody else (pg_recvlogical, a misconfigured twin) streams from the slot."""

import time
from pathlib import Path

import psycopg

from tests.support.looks import Pipe, orders
from tests.support.sources import Database


def test_a_foreign_consumer_of_the_slot_is_not_taken_for_ingest(database: Database, tmp_path: Path) -> None:
    orders(database)
    pipe = Pipe(database, tmp_path)
    assert pipe("run", "--until-caught-up").returncode == 0
    pipe.applied()
    with psycopg.connect(database.server.dsn(dbname=database.name), replication="database", autocommit=True, application_name="pg_recvlogical") as stranger:
        stranger.pgconn.send_query(f"START_REPLICATION SLOT {database.slot} LOGICAL 0/0 (proto_version '1', publication_names '{database.publication}')".encode())
        time.sleep(2)
        seen = pipe("status", "--json")
        with database.connect() as connection:
            print(connection.execute("SELECT application_name, state FROM pg_stat_replication").fetchall())
        print(seen.returncode, seen.stdout[:400])
        stranger.pgconn.finish()
    assert seen.returncode == 10
