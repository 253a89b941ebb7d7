"""A source that was put back to an older copy of its disk: same identifier, same timeline, other transactions."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from sluice import lsn
from sluice.errors import SlotLost
from sluice.operate.new_slot import recreate
from sluice.operate.slots import examine
from sluice.source.sessions import open_query
from sluice.source.slot_facts import slot_facts
from tests.drills.standbys import Drill
from tools.local.binaries import helper_account
from tools.local.child import spawn
from tools.local.postgres import PostgresServer


@contextmanager
def put_back(server: PostgresServer) -> Iterator[None]:
    """Behind the block the server is as it was before."""
    copy = server.data_dir.with_name("copy")
    server.stop()
    _copied(server.data_dir, copy)
    server.start()
    yield
    server.stop("immediate")
    shutil.rmtree(server.data_dir)
    _copied(copy, server.data_dir)
    server.start()


def _copied(source: Path, target: Path) -> None:
    log = target.with_name("copied.log")
    assert spawn(["cp", "-a", str(source), str(target)], log=log, account=helper_account()).wait() == 0


def write_on(server: PostgresServer, *, past: int) -> None:
    """The log comes to `past` again, by what no table has."""
    with server.superuser() as connection:
        while _wal_end(connection) <= past:
            connection.execute("SELECT pg_logical_emit_message(false, 'filler', repeat('x', 3000))")
        connection.execute("CHECKPOINT")


def _wal_end(connection: psycopg.Connection) -> int:
    row = connection.execute("SELECT pg_current_wal_flush_lsn()::text").fetchone()
    assert row is not None
    return lsn.parse(row[0])


def test_a_server_that_lost_what_the_manifest_has_is_refused_though_its_log_is_long_enough_again(drill: Drill) -> None:
    with put_back(drill.primary):
        drill.insert(1)
        drill.pipeline.run()
    drill.insert(100)
    write_on(drill.primary, past=drill.pipeline.state().through_lsn)
    options = drill.pipeline.options()
    for refused in (drill.pipeline.run, lambda: recreate(options, drill.pipeline.store, mirrored=lambda _: True)):
        with pytest.raises(SlotLost, match=r"^DIVERGED: .* was restored to an older state"):
            refused()
    shown = examine(options.source, drill.pipeline.store, two_phase=False)
    assert shown.problem.startswith("DIVERGED: ")
    assert "new pipeline" in shown.remedy


def test_it_is_refused_where_only_the_log_of_others_had_gone_on(drill: Drill) -> None:
    with put_back(drill.primary):
        write_on(drill.primary, past=drill.pipeline.state().through_lsn + 100_000)
        drill.pipeline.run()
    drill.insert(100)
    write_on(drill.primary, past=drill.pipeline.state().through_lsn)
    with pytest.raises(SlotLost, match=r"^DIVERGED: .* was restored to an older state"):
        drill.pipeline.run()


def test_a_server_that_crashed_is_gone_on_from_though_its_slot_fell_back(drill: Drill) -> None:
    for first in (1, 100, 200):
        drill.insert(first)
        drill.pipeline.run()
        drill.primary.crash()
        drill.primary.start()
        with open_query(drill.pipeline.options().source) as connection:
            slot = slot_facts(connection, drill.database.slot)
        assert slot is not None
        assert slot.confirmed_flush_lsn is not None
        assert slot.confirmed_flush_lsn < drill.pipeline.state().through_lsn, "or nothing is proven"
        drill.insert(first + 50)
        drill.pipeline.run()
    drill.assert_equal()
