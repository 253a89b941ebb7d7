"""A lake table that lacks changes of other origins, and so has rows that a new key does not tell apart."""

from tests.e2e.mirror import Mirror
from tests.support.source_setup import since


def test_a_key_that_rows_of_the_lake_share_stops_the_table_by_name(mirror: Mirror) -> None:
    since(mirror.database, 16, "changes of other origins left out")
    mirror.execute(
        "CREATE TABLE t (id int PRIMARY KEY, code int NOT NULL)",
        "CREATE TABLE other (id int PRIMARY KEY)",
        "INSERT INTO t VALUES (1, 10), (2, 20)",
        f"CREATE PUBLICATION {mirror.database.publication} FOR TABLE t, other",
        "SELECT pg_replication_origin_create('elsewhere')",
    )
    options = {"tables": (), "origin": "none"}
    mirror.follow(**options)
    with mirror.database.connect() as connection:
        connection.execute("SELECT pg_replication_origin_session_setup('elsewhere')")
        connection.execute("UPDATE t SET code = 30 WHERE id = 1")
    mirror.execute(
        "INSERT INTO t VALUES (3, 10)",
        "ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (code)",
        "INSERT INTO t VALUES (4, 40)",
        "INSERT INTO other VALUES (1)",
    )
    mirror.follow(**options)
    stopped, other = mirror.applied()["public.t"], mirror.applied()["public.other"]
    assert (stopped.state, other.state) == ("stale", "live")
    assert "another key since schema version 2, and rows of the lake table share a value of it" in stopped.reason
    assert mirror.values("t", "id", "code") == [(1, 10), (2, 20), (3, 10)]
