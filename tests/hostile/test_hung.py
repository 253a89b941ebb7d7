"""Ingest hangs (SIGSTOP) and the server keeps its walsender (wal_sender_timeout 0, or a proxy in between): what does one look from outside say?"""

import json
import os
import signal
import time
from pathlib import Path

import psycopg

from tests.support.looks import Pipe, orders
from tests.support.sources import Database


def test_a_stopped_ingest_after_a_burst_is_behind_for_status(database: Database, tmp_path: Path) -> None:
    orders(database)
    database.execute("ALTER SYSTEM SET wal_sender_timeout = 0", "SELECT pg_reload_conf()")
    try:
        with Pipe(database, tmp_path).start().streaming().live() as pipe:
            pipe.applied()
            with database.connect() as connection:
                for n in range(2, 140):
                    connection.execute("INSERT INTO orders VALUES (%s, repeat(md5(random()::text), 30000))", (n,))
                    time.sleep(0.06)
            time.sleep(2)
            pipe.applied(2)
            assert pipe.process is not None
            os.kill(pipe.process.pid, signal.SIGSTOP)
            database.execute("INSERT INTO orders VALUES (5000, 'lost to the lake')")
            began = time.monotonic()
            time.sleep(100)
            pipe.applied(3)
            ended = pipe("status", "--json")
            document = json.loads(ended.stdout)
            print(ended.returncode, document["headline"], [p["code"] for p in document["problems"]], document["wal"]["stages"], time.monotonic() - began)
            with database.connect() as connection:
                print(connection.execute("SELECT active, confirmed_flush_lsn, pg_current_wal_lsn() FROM pg_replication_slots WHERE slot_name=%s", (database.slot,)).fetchall())
            assert ended.returncode != 0
    finally:
        database.execute("ALTER SYSTEM RESET wal_sender_timeout", "SELECT pg_reload_conf()")
