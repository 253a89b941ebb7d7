"""What is acknowledged to PostgreSQL, seen on the wire, against what the store holds at that very
moment.
"""

import threading
from pathlib import Path

import pytest

from sluice import lsn
from sluice.contract import keys
from sluice.ingest.encode.builder import BuilderLimits
from sluice.manifest.reader import load_state
from sluice.store.base import ObjectStore
from tests.support.extent import slow
from tests.support.forwarding import Forwarding, HeldStore
from tests.support.ingesting import IngestPipeline
from tests.support.pgproxy import PgProxy, Status
from tests.support.sources import Database
from tools.local.postgres import temporary_server


def test_the_acknowledged_position_is_never_beyond_what_the_store_holds_at_that_moment(
    pipeline: IngestPipeline,
) -> None:
    pipeline.execute("CREATE TABLE a (id int PRIMARY KEY, t text)")
    claims: list[tuple[int, int]] = []

    def witness(status: Status) -> None:
        claims.append((status.flush, load_state(pipeline.store).through_lsn))

    with PgProxy(pipeline.database.server.port, on_status=witness) as proxy:
        pipeline.dsn = proxy.dsn(dbname=pipeline.database.name)
        pipeline.run()
        for number in range(20):
            pipeline.execute(
                f"INSERT INTO a SELECT i, repeat('x', 200) FROM generate_series({number * 100}, {number * 100 + 99}) i"
            )
            if number % 5 == 4:
                pipeline.run()
        proxy.check()
    assert len({flush for flush, _ in claims}) > 3
    assert all(flush <= held for flush, held in claims)


def test_nothing_is_acknowledged_while_the_store_takes_nothing_however_often_asked(pipeline: IngestPipeline) -> None:
    pipeline.run("CREATE TABLE a (id int PRIMARY KEY)")
    before = pipeline.confirmed()
    held = HeldStore(pipeline.store)
    flushed: list[int] = []
    with PgProxy(pipeline.database.server.port, on_status=lambda status: flushed.append(status.flush)) as proxy:
        blocked = IngestPipeline(pipeline.database, held, dsn=proxy.dsn(dbname=pipeline.database.name))
        with blocked.running() as running:
            running.wait_until_connected()
            held.closed.set()
            acknowledged = max(flushed, default=before)
            for number in range(3):
                pipeline.execute(f"INSERT INTO a VALUES ({number})")
            running.wait_until(held.refused.is_set)
            proxy.wait_for_status(lambda status: status.write > acknowledged)
            assert max(flushed) <= load_state(pipeline.store).through_lsn
            assert not pipeline.commits()
            held.closed.clear()
            running.wait_until(lambda: len(pipeline.commits()) == 3)
    assert sorted(row["id"] for row in pipeline.rows("public.a")) == [0, 1, 2]


class LateStore(Forwarding):
    """Takes no manifest entry before `heard` is set."""

    def __init__(self, inner: ObjectStore, heard: threading.Event) -> None:
        super().__init__(inner)
        self._heard = heard

    def create(self, key: str, data: bytes | memoryview) -> None:
        if keys.is_manifest_entry(key):
            assert self._heard.wait(20), "the server heard nothing"
        super().create(key, data)


def test_what_the_writer_before_left_is_acknowledged_behind_an_entry_of_ones_own(pipeline: IngestPipeline) -> None:
    """It may have been killed before it had synced the folder of its last entry, which everybody sees."""
    pipeline.run("CREATE TABLE a (id int PRIMARY KEY)")
    before, heard = load_state(pipeline.store), threading.Event()
    claims: list[tuple[int, int]] = []

    def witness(status: Status) -> None:
        claims.append((status.flush, load_state(pipeline.store).epoch))
        heard.set()

    with PgProxy(pipeline.database.server.port, on_status=witness) as proxy:
        late = LateStore(pipeline.store, heard)
        IngestPipeline(pipeline.database, late, dsn=proxy.dsn(dbname=pipeline.database.name)).run()
        proxy.check()
    assert {flush for flush, epoch in claims if epoch == before.epoch} == {0}
    assert min(flush for flush, _ in claims if flush) >= before.through_lsn


def test_adjacent_commits_are_each_delivered_exactly_once_across_a_restart_between_them(
    pipeline: IngestPipeline,
) -> None:
    """With the next commit record starting where the last one ended, one byte
    too far loses it and one too few repeats it.
    """
    pipeline.run("CREATE TABLE a (id int PRIMARY KEY)")
    for attempt in range(200):
        with pipeline.database.connect() as one, pipeline.database.connect() as two:
            for connection, key in ((one, attempt * 2), (two, attempt * 2 + 1)):
                connection.execute("BEGIN")
                connection.execute("INSERT INTO a VALUES (%s)", (key,))
            one.execute("COMMIT")
            two.execute("COMMIT")
        if attempt == 0:
            pipeline.run()
        first, second = _last_two_commits(pipeline, attempt)
        if first is not None and second is not None:
            break
    else:
        pytest.skip("the server never wrote two adjacent commit records")
    pipeline.run_until(first)
    assert pipeline.commits().count(first) == 1
    pipeline.run()
    commits = pipeline.commits()
    assert len(commits) == len(set(commits))
    assert sorted(row["id"] for row in pipeline.rows("public.a")) == list(range((attempt + 1) * 2))


def _last_two_commits(pipeline: IngestPipeline, attempt: int) -> tuple[int | None, int | None]:
    """End of the first and of the second commit, when the second record starts where the first one
    ended; from an independent reader of the same WAL.
    """
    with pipeline.database.connect() as connection:
        name = f"{pipeline.database.slot}_w{attempt}"
        connection.execute("SELECT pg_copy_logical_replication_slot(%s, %s)", (pipeline.database.slot, name))
        found = connection.execute(
            "SELECT substring(data from 3 for 8), substring(data from 11 for 8) FROM "
            "pg_logical_slot_peek_binary_changes(%s, NULL, NULL,"
            " 'proto_version', '1', 'publication_names', %s) WHERE get_byte(data, 0) = 67",
            (name, pipeline.database.publication),
        ).fetchall()
        connection.execute("SELECT pg_drop_replication_slot(%s)", (name,))
    ends = [(int.from_bytes(start, "big"), int.from_bytes(end, "big")) for start, end in found]
    if len(ends) >= 2 and ends[-1][0] == ends[-2][1]:
        return ends[-2][1], ends[-1][1]
    return None, None


def test_rows_of_one_snapshot_share_an_lsn_and_all_arrive_in_order(pipeline: IngestPipeline) -> None:
    pipeline.run("CREATE TABLE a (id int PRIMARY KEY)")
    pipeline.run("COPY a FROM PROGRAM 'seq 0 499'")
    rows = pipeline.rows("public.a")
    assert [row["id"] for row in rows] == list(range(500))
    assert [row["_sluice_ordinal"] for row in rows] == list(range(500))
    assert len({row["_sluice_lsn"] for row in rows}) == 1


def test_quiet_tables_do_not_hold_the_slot_while_others_write(pipeline: IngestPipeline) -> None:
    pipeline.execute("CREATE TABLE quiet (id int PRIMARY KEY)", "CREATE TABLE busy (id int, t text)")
    with pipeline.running(tables=("public.quiet",)) as running:
        running.wait_until(lambda: bool(pipeline.state().tables))
        pipeline.execute("INSERT INTO busy SELECT i, repeat('x', 1000) FROM generate_series(1, 20000) i")
        target = lsn.parse(pipeline.wal_end())
        # The idle advance is recorded first, so it may take one progress interval; a fast stop of
        # the server would ask for it at once.
        running.stop()
    assert pipeline.confirmed() <= pipeline.state().through_lsn
    pipeline.run(tables=("public.quiet",))
    assert pipeline.confirmed() >= target
    assert not pipeline.commits()


@slow
def test_a_transaction_past_the_memory_budget_is_one_entry_of_several_segments(pipeline: IngestPipeline) -> None:
    pipeline.run("CREATE TABLE a (id int PRIMARY KEY, t text)", "CREATE TABLE b (id int PRIMARY KEY)")
    with pipeline.database.connect() as connection, connection.transaction():
        connection.execute("INSERT INTO a SELECT i, repeat(md5(i::text), 20) FROM generate_series(1, 60000) i")
        connection.execute("INSERT INTO b VALUES (1)")
        connection.execute("DELETE FROM a WHERE id <= 100")
    pipeline.run(builder=BuilderLimits(body_bytes=1 << 20))
    (change,) = [change for change in pipeline.changes() if len(change.commits)]
    assert len(change.commits) == 1
    bodies = [segment for segment in change.segments if segment.body is not None]
    assert len(bodies) > 3
    assert all(segment.key.startswith("stage/") for segment in bodies)
    rows = pipeline.rows("public.a")
    assert len(rows) == 60100
    assert [row["_sluice_ordinal"] for row in rows if row["_sluice_op"] == "i"] == list(range(60000))
    assert {row["_sluice_lsn"] for row in rows} == {change.commits.end_lsn[0]}


def test_a_fast_stop_of_the_server_is_not_held_up_and_everything_committed_is_kept(tmp_path: Path) -> None:
    """The server waits for the client in a fast shutdown, so the client must flush and disconnect
    within a bound.
    """
    with temporary_server(durable=True) as server:
        database = Database(server, "postgres", "sluice_stop", "sluice_stop")
        own = IngestPipeline.local(database, tmp_path)
        database.execute("CREATE TABLE a (id int PRIMARY KEY)")
        with own.running() as running:
            running.wait_until_live()
            database.execute("INSERT INTO a VALUES (1)")
            stopping = threading.Thread(target=server.stop, args=("fast",))
            stopping.start()
            stopping.join(60)
            assert not stopping.is_alive(), "the server waits for us"
            server.start()
            database.execute("INSERT INTO a VALUES (2)")
            running.wait_until(lambda: [row["id"] for row in own.rows("public.a")] == [1, 2])
