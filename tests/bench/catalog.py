"""P14: what a look at the catalog costs the source, with many published tables."""

import os
import time
from collections.abc import Callable
from contextlib import closing

from sluice.ingest.options import IngestOptions
from sluice.source.catalog import Catalog
from sluice.source.published_tables import PublishedTables
from sluice.source.sessions import Connection, SourceOptions, open_query
from tests.bench.contest import console, cpu_seconds_of, show_table
from tools.local.postgres import PostgresServer, temporary_server

TABLES = int(os.environ.get("BENCH_P14_TABLES", "4000"))
AT_ONCE = 100
CHANGED = 10
TO_REACH = 0.02
"""Of one core at the source."""


def p14(rounds: int) -> dict[str, float | None]:
    """P14: a look at the catalog of 4,000 published tables: CPU time of the server's session.

    Checked: what was kept is what a look at everything says, before and after ten tables changed.
    """
    source = SourceOptions(dsn="", slot="bench", publication="bench", application_name="bench")
    interval = IngestOptions("bench", source).watch_interval_s
    with temporary_server() as server:
        _make(server)
        options = SourceOptions(dsn=server.dsn(), slot="bench", publication="bench", application_name="bench")
        with closing(open_query(options)) as connection, server.superuser() as admin:
            catalog, published = Catalog(connection), PublishedTables("bench")
            everything = _cost(connection, lambda: catalog.published_tables("bench"), rounds)
            published.look(connection)
            nothing = _cost(connection, lambda: published.look(connection), 10 * rounds)
            _require_equal(published, connection)
            some = 0.0
            for number in range(rounds):
                for table in range(CHANGED):
                    admin.execute(f"ALTER TABLE t{table} ADD COLUMN added{number} int".encode())
                some += _cost(connection, lambda: published.look(connection), 1) / rounds
                _require_equal(published, connection)
    looks = {"at everything": everything, "nothing changed": nothing, "ten tables changed": some}
    rows = ((name, f"{seconds:.3f} s", f"{seconds / interval:.2%}") for name, seconds in looks.items())
    show_table("P14", ("look", "CPU of the server", f"share of a core, every {interval:.0f} s"), rows)
    console.print(f"to reach: {TO_REACH:.0%} while nothing changes")
    return {"everything": everything, "nothing_changed": nothing, "ten_changed": some}


def _make(server: PostgresServer) -> None:
    console.print(f"P14: making {TABLES:,} tables")
    names = [f"t{number}" for number in range(TABLES)]
    with server.superuser() as admin:
        admin.execute("CREATE TYPE mood AS ENUM ('sad', 'ok')")
        for first in range(0, TABLES, AT_ONCE):
            with admin.transaction():
                for name in names[first : first + AT_ONCE]:
                    admin.execute(
                        f"CREATE TABLE {name} (id bigint PRIMARY KEY, a int, b text, c numeric(10, 2), d timestamptz, "
                        "e varchar(40), f boolean, g mood)".encode()
                    )
        admin.execute(f"CREATE PUBLICATION bench FOR TABLE {', '.join(names)}".encode())
        admin.execute("ANALYZE")


def _cost(connection: Connection, look: Callable[[], object], rounds: int) -> float:
    """CPU seconds that the server's session takes for one `look`."""
    before = cpu_seconds_of(connection.pgconn.backend_pid)
    for _ in range(rounds):
        look()
    time.sleep(0.05)  # the kernel counts in ticks of 10 ms
    return (cpu_seconds_of(connection.pgconn.backend_pid) - before) / rounds


def _require_equal(published: PublishedTables, connection: Connection) -> None:
    kept = published.look(connection)
    now = {facts.oid: facts for facts in Catalog(connection).published_tables("bench")}
    if kept != now or len(now) != TABLES:
        raise RuntimeError("what was kept of the catalog is not what the catalog says")
