"""A commit that the server sends before any other session sees it."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from tests.support.sources import Database


@contextmanager
def invisible(database: Database, *statements: str) -> Iterator[None]:
    """One transaction of `statements` has committed, and nobody sees it until the block ends."""
    database.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'", "SELECT pg_reload_conf()")
    tick = threading.Event()
    with psycopg.connect(database.dsn, autocommit=True) as connection:
        while connection.execute("SHOW synchronous_standby_names").fetchone() != ("nobody",):
            tick.wait(0.05)
        command = "; ".join(("BEGIN", *statements, "COMMIT")).encode()
        thread = threading.Thread(target=connection.execute, args=(command,))
        thread.start()
        try:
            while not database.all("SELECT 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'"):
                tick.wait(0.05)
            yield
        finally:
            with psycopg.connect(database.dsn, autocommit=True) as admin:
                admin.execute("SET synchronous_commit = local")
                admin.execute("ALTER SYSTEM RESET synchronous_standby_names")
                admin.execute("SELECT pg_reload_conf()")
            thread.join()
