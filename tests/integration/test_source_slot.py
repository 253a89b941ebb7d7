"""Publications and slots: made when asked to, named when in the way, never touched otherwise."""

import asyncio
import dataclasses
import threading
import time
from contextlib import closing

import psycopg
import pytest

from sluice import lsn
from sluice.errors import SlotBusy, SlotLost, SourceRefused, SourceUnavailable
from sluice.ingest.options import FlushPolicy
from sluice.ingest.receive.stream import StreamLimits
from sluice.ingest.session import PROGRESS_WAL_BYTES
from sluice.operate.slots import examine
from sluice.protocol.standby_status import StandbyStatus
from sluice.source import slot_wait
from sluice.source.continuity import prove_continuity
from sluice.source.publication import ensure_publication
from sluice.source.sessions import Connection, SourceOptions, open_query
from sluice.source.slot import ensure_slot
from sluice.source.slot_facts import server_facts, slot_facts
from sluice.source.slot_wait import wait_until_free
from sluice.source.start_replication import Started, identify, start_command, start_replication
from sluice.store.memory import MemoryStore
from tests.support import manifests
from tests.support.background import beside
from tests.support.extent import slow
from tests.support.ingesting import IngestPipeline
from tests.support.least_rights import options_as, pipeline_role
from tests.support.pgproxy import Direction, PgProxy
from tests.support.pipeline import wait_until
from tests.support.source_setup import options_of, server_major
from tests.support.sources import Database
from tests.support.streaming import opened
from tools.local.postgres import temporary_server

HOSTILE_NAMES = ['we"ird, x', "it's", 'a"; DROP TABLE t; --', "\\", "new\nline", "Üpper Case", "a,b", " "]


@pytest.fixture
def options(database: Database) -> SourceOptions:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    return options_of(database)


@pytest.fixture
def slotted(database: Database, options: SourceOptions) -> int:
    """The position of a slot that exists, beside a publication of the table."""
    database.execute("CREATE PUBLICATION {p} FOR TABLE t")
    return ensure_slot(options).confirmed_flush_lsn or 0


def test_a_missing_publication_is_created_for_every_operation_an_existing_one_left_alone(
    database: Database, options: SourceOptions
) -> None:
    database.execute("CREATE TABLE u (id int PRIMARY KEY)")
    with closing(open_query(options)) as conn:
        made = ensure_publication(conn, options.publication, [("public", "t")])
        assert made.created
        assert made.statement.startswith("CREATE PUBLICATION")
        assert conn.execute(
            "SELECT pubinsert AND pubupdate AND pubdelete AND pubtruncate, pubviaroot FROM pg_publication"
        ).fetchone() == (True, False)
        assert not ensure_publication(conn, options.publication, [("public", "t")]).created
        with pytest.raises(SourceRefused, match=r"public\.u") as caught:
            ensure_publication(conn, options.publication, [("public", "t"), ("public", "u")])
        assert f'ALTER PUBLICATION "{options.publication}" ADD TABLE "public"."u"' in caught.value.hint
        with pytest.raises(SourceRefused, match="does not exist"):
            ensure_publication(conn, "another", None)


def test_a_role_that_may_not_publish_is_given_the_statement_for_somebody_who_may(
    database: Database, options: SourceOptions
) -> None:
    with pipeline_role(database) as role:
        database.execute(f"CREATE ROLE {role} LOGIN REPLICATION")
        with closing(open_query(options_of(database, user=role))) as conn, pytest.raises(SourceRefused) as caught:
            ensure_publication(conn, options.publication, [("public", "t")])
        assert "CREATE PUBLICATION" in caught.value.hint


def test_a_slot_is_created_once_and_its_facts_agree_with_the_server(database: Database, options: SourceOptions) -> None:
    first = ensure_slot(options)
    seen = (first.plugin, first.database, first.two_phase, first.temporary, first.invalidated)
    assert seen == ("pgoutput", database.name, False, False, "")
    assert ensure_slot(options, two_phase=True).two_phase is False
    with closing(open_query(options)) as conn:
        server, slot, identity = server_facts(conn, options), slot_facts(conn, options.slot), identify(options)
        place = (identity.system_identifier, identity.timeline, identity.database)
        assert (server.system_identifier, server.timeline, server.database) == place
        proven = prove_continuity(None, 0, server=server, slot=slot, two_phase=False)
        assert proven == first.confirmed_flush_lsn
        assert slot_facts(conn, "never_was") is None


def test_a_two_phase_slot_says_so(database: Database) -> None:
    if server_major(database) >= 15:
        assert ensure_slot(options_of(database), two_phase=True).two_phase
    else:
        with pytest.raises(SourceRefused, match="two_phase slots need PostgreSQL 15"):
            ensure_slot(options_of(database), two_phase=True)


def test_a_slot_in_use_is_named_with_its_process_after_a_bounded_wait(options: SourceOptions, slotted: int) -> None:
    pauses: list[float] = []

    async def scenario() -> None:
        stream = await opened(options, slotted, StreamLimits())
        with closing(open_query(options)) as conn:
            with pytest.raises(SlotBusy, match=r"process \d+ \(application_name sluice_test\)"):
                wait_until_free(conn, options, bound_s=3, sleep=pauses.append)
            await stream.close()
            await asyncio.to_thread(wait_until_free, conn, options, bound_s=10)

    asyncio.run(scenario())
    assert 3 <= sum(pauses) < 6


def _silent_stream(options: SourceOptions, start_lsn: int) -> Started:
    """A stream whose client never says anything again, as the server sees it."""
    command = start_command(
        options, start_lsn=start_lsn, proto_version=1, streaming="off", two_phase=False, messages=False, origin="any"
    )
    return start_replication(options, command=command, expect=None)


def test_a_lost_connection_of_ours_is_waited_for_until_the_server_gives_it_up(
    database: Database, options: SourceOptions, slotted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also longer than a living process is waited for."""
    monkeypatch.setattr(slot_wait, "ALIVE_SECONDS", 0.5)
    database.execute(f"ALTER DATABASE {database.name} SET wal_sender_timeout = '4s'")
    started = _silent_stream(options, slotted)
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        time.sleep(seconds)

    with closing(started.conn), closing(open_query(options)) as conn:
        wait_until_free(conn, options, sleep=sleep)
        assert slot_facts(conn, options.slot) is not None
    assert sum(pauses) > 0.5


@pytest.mark.parametrize("timeout", ["4s", "0"])
def test_a_silent_connection_of_ours_is_named_when_the_server_never_gives_it_up(
    database: Database, options: SourceOptions, slotted: int, timeout: str
) -> None:
    """Nothing sleeps here: the pauses are only counted."""
    started = _silent_stream(options, slotted)
    database.execute(f"ALTER DATABASE {database.name} SET wal_sender_timeout = '{timeout}'")
    pauses: list[float] = []
    with closing(started.conn), closing(open_query(options)) as conn, pytest.raises(SlotBusy) as caught:
        wait_until_free(conn, options, sleep=pauses.append)
    assert "pg_terminate_backend" in caught.value.hint
    expected = slot_wait.OWN_MARGIN_SECONDS + (4 if timeout == "4s" else slot_wait.NEVER_SECONDS)
    assert expected <= sum(pauses) < expected + 3


def test_a_slot_of_somebody_else_is_refused_before_the_servers_timeout(options: SourceOptions, slotted: int) -> None:
    started = _silent_stream(dataclasses.replace(options, application_name="somebody"), slotted)
    pauses: list[float] = []
    with (
        closing(started.conn),
        closing(open_query(options)) as conn,
        pytest.raises(SlotBusy, match="application_name somebody"),
    ):
        wait_until_free(conn, options, sleep=pauses.append)
    assert slot_wait.ALIVE_SECONDS <= sum(pauses) < slot_wait.ALIVE_SECONDS + 3


def test_a_living_stream_is_refused_early_also_where_its_replies_cannot_be_seen(database: Database) -> None:
    """A role without pg_read_all_stats sees what the slot has confirmed, and that it moves."""
    database.execute("CREATE TABLE t (id int)", "CREATE PUBLICATION {p} FOR TABLE t")
    with pipeline_role(database) as role:
        database.execute(f"CREATE ROLE {role} LOGIN REPLICATION")
        options = options_as(database, role)
        started = _silent_stream(options, ensure_slot(options).confirmed_flush_lsn or 0)
        pauses: list[float] = []
        with closing(started.conn), closing(open_query(options)) as conn:

            def confirming(seconds: float) -> None:
                pauses.append(seconds)
                database.execute("INSERT INTO t VALUES (1)")
                end = server_facts(conn, options).wal_end_lsn
                started.conn.pgconn.put_copy_data(StandbyStatus(end, end, reply_requested=False).encode(0))
                started.conn.pgconn.flush()
                wait_until(lambda: _confirmed(conn, options) >= end, what="the slot has moved")

            with pytest.raises(SlotBusy):
                wait_until_free(conn, options, sleep=confirming)
    assert slot_wait.ALIVE_SECONDS <= sum(pauses) < slot_wait.ALIVE_SECONDS + 3


def _confirmed(conn: Connection, options: SourceOptions) -> int:
    slot = slot_facts(conn, options.slot)
    return (slot.confirmed_flush_lsn if slot else None) or 0


def test_any_publication_name_reaches_the_server_as_itself(database: Database, options: SourceOptions) -> None:
    plain = options

    async def scenario() -> None:
        for number, name in enumerate(HOSTILE_NAMES):
            options = dataclasses.replace(plain, publication=name)
            with closing(open_query(options)) as conn:
                ensure_publication(conn, name, [("public", "t")])
                assert database.all("SELECT 1 FROM pg_publication WHERE pubname = %s", name) == [(1,)]
                start = ensure_slot(options).confirmed_flush_lsn or 0
                wait_until_free(conn, options, bound_s=10)
            stream = await opened(options, start)
            database.execute(f"INSERT INTO t VALUES ({number})")
            async with asyncio.timeout(10):
                while not any(frame[25:26] == b"I" for frame in (await stream.next_batch()).frames):
                    pass
            stream.acknowledge(stream.received_lsn)
            await stream.close()
            with closing(open_query(options)) as conn:
                wait_until_free(conn, options, bound_s=10)
            database.execute(f"SELECT pg_drop_replication_slot('{plain.slot}')")

    asyncio.run(scenario())
    assert database.one("SELECT count(*) FROM t") == (len(HOSTILE_NAMES),)


KEEPS_LITTLE = {"max_slot_wal_keep_size": "1MB", "min_wal_size": "32MB", "max_wal_size": "32MB"}


def test_a_slot_that_waits_for_older_transactions_is_shown_as_being_made(
    database: Database, options: SourceOptions
) -> None:
    database.execute("CREATE PUBLICATION {p} FOR TABLE t")

    def make(_ended: threading.Event) -> None:
        ensure_slot(options)

    with database.connect() as writer, closing(open_query(options)) as conn, beside(make):
        with writer.transaction():
            writer.execute("INSERT INTO t VALUES (1)")
            wait_until(lambda: slot_facts(conn, options.slot) is not None, what="the slot is begun")
            found = examine(options, MemoryStore("being-made"), two_phase=False)
            assert (found.problem, "is being made by process" in found.remedy) == ("", True), found
        wait_until(
            lambda: (slot := slot_facts(conn, options.slot)) is not None and slot.confirmed_flush_lsn is not None,
            what="the slot is made",
        )


def test_a_slot_whose_wal_was_removed_is_lost() -> None:
    with temporary_server(settings=KEEPS_LITTLE) as server:
        database = Database(server, name="postgres", slot="removed", publication="removed")
        options = options_of(database)
        through = ensure_slot(options).confirmed_flush_lsn or 0
        _remove_wal(database)
        with closing(open_query(options)) as conn:
            facts = server_facts(conn, options)
            slot = slot_facts(conn, options.slot)
            opened = manifests.opened(
                system_identifier=facts.system_identifier, database_oid=facts.database_oid, database="postgres"
            )
            with pytest.raises(SlotLost, match=r"^INVALIDATED.*wal_removed"):
                prove_continuity(opened, through, server=facts, slot=slot, two_phase=False)


@slow
def test_a_quiet_pipeline_keeps_its_slot_while_others_write_more_than_the_server_keeps() -> None:
    """However seldom it records its position otherwise: small servers keep 1 GB. The server gives WAL free in steps of
    its own, with a checkpoint at the latest, so each step here is small.
    """
    with temporary_server(settings=KEEPS_LITTLE | {"max_slot_wal_keep_size": "1GB"}) as server:
        database = Database(server, name="postgres", slot="quiet", publication="quiet")
        database.execute("CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE filler (x text)")
        pipeline = IngestPipeline(database, MemoryStore("quiet"))
        with pipeline.running(tables=("public.t",), flush=FlushPolicy(progress_interval_s=3600.0)) as running:
            running.wait_until(lambda: bool(pipeline.state().tables))
            for _ in range(24):
                for _ in range(4):
                    database.execute("SELECT pg_switch_wal()", "INSERT INTO filler VALUES ('x')")
                written = lsn.parse(pipeline.wal_end())
                running.wait_until(lambda at=written: pipeline.confirmed() >= at - PROGRESS_WAL_BYTES)
                database.execute("CHECKPOINT")
            assert database.one("SELECT wal_status FROM pg_replication_slots") in [("reserved",), ("extended",)]
        assert not pipeline.commits()


def test_a_slot_that_is_invalidated_between_its_proof_and_the_start_is_lost() -> None:
    with temporary_server(settings=KEEPS_LITTLE) as server, PgProxy(server.port) as proxy:
        database = Database(server, name="postgres", slot="removed", publication="removed")
        database.execute("CREATE TABLE t (id int PRIMARY KEY)")
        pipeline = IngestPipeline(database, MemoryStore("removed"), dsn=proxy.dsn())
        pipeline.run()

        def invalidated(start: bytes) -> bytes:
            _remove_wal(database)
            return start

        fired = proxy.change(
            invalidated,
            direction=Direction.TO_SERVER,
            matches=lambda message: message.kind == "Q" and message.body.startswith(b"START_REPLICATION"),
        )
        with pytest.raises(SlotLost, match=r"^INVALIDATED.*wal_removed"):
            pipeline.run()
        assert fired.is_set()


def _remove_wal(database: Database) -> None:
    """More than the server keeps for a slot that nobody uses."""
    database.execute("CREATE TABLE filler (x text)")
    for _ in range(4):
        database.execute("SELECT pg_switch_wal()", "INSERT INTO filler VALUES ('x')")
    database.execute("CHECKPOINT")


def _wait_for_walsender(database: Database) -> None:
    """A connection that was closed keeps its place until the server has seen that."""
    busy = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'walsender'"
    wait_until(lambda: database.one(busy) == (0,), what="a walsender is free")


def test_a_promoted_server_without_a_free_walsender_is_still_known_and_its_slot_examined() -> None:
    """Only a walsender tells the history of a timeline; the stream of the pipeline itself may have the
    last one.
    """
    with temporary_server(settings={"max_wal_senders": "1"}) as server:
        database = Database(server, name="postgres", slot="promoted", publication="promoted")
        server.stop()
        (server.data_dir / "standby.signal").touch()
        server.start()
        database.execute("SELECT pg_promote(true, 60)")
        options = options_of(database)
        ensure_slot(options)
        with closing(open_query(options)) as conn:
            known = server_facts(conn, options)
            _wait_for_walsender(database)
            with psycopg.connect(server.dsn(), replication="database", autocommit=True):
                facts = server_facts(conn, options)
                assert (facts.timeline, facts.forks) == (2, None)
                assert "walsender" in facts.history_away or "max_wal_senders" in facts.history_away
                with pytest.raises(SourceUnavailable):
                    server_facts(conn, options, whole=True)
                assert examine(options, MemoryStore("t"), two_phase=False).problem == ""
                assert server_facts(conn, options, before=known).forks == known.forks
            _wait_for_walsender(database)
            assert known.forks is not None
            assert [fork.timeline for fork in known.forks] == [1]
            assert server_facts(conn, options, before=facts).forks == known.forks
