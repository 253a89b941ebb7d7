"""A stage fails while work is queued behind it: what is behind it is not published, and after a
healthy start nothing is missing.
"""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from sluice import faults
from sluice.contract import keys
from sluice.errors import StoreRefused
from sluice.store.local import LocalStore
from tests.support.ingesting import IngestPipeline, Running
from tests.support.pgproxy import PgProxy
from tests.support.sources import Database


class RefusedOnce(LocalStore):
    """Refuses the first segment of changes, as a store does while credentials are replaced, and
    only when `when` says so.
    """

    def __init__(self, root: Path, *, when: Callable[[], bool]) -> None:
        super().__init__(root)
        self._when = when
        self._first = threading.Lock()

    def put(self, key: str, data: bytes | memoryview) -> None:
        if key.startswith(keys.DATA) and self._first.acquire(blocking=False):
            tick = threading.Event()
            while not self._when():
                tick.wait(0.01)
            raise StoreRefused("denied once")
        super().put(key, data)


@pytest.fixture
def filled(database: Database, tmp_path: Path) -> IngestPipeline:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (0)")
    pipeline = IngestPipeline(database, LocalStore(tmp_path))
    pipeline.run()
    return pipeline


def _flushes(running: Running) -> int:
    return sum(running.status.stream.flushes.values())


def _insert_in_three_units(pipeline: IngestPipeline, cut: list[Running]) -> None:
    with pipeline.running() as running:
        cut.append(running)
        for number in range(1, 4):
            before = _flushes(running)
            pipeline.execute(f"INSERT INTO t VALUES ({number})")
            running.wait_until(lambda before=before: _flushes(running) > before)
        running.thread.join(60)


def test_a_unit_behind_one_whose_upload_was_refused_is_not_published(filled: IngestPipeline, tmp_path: Path) -> None:
    cut: list[Running] = []
    whole = filled.store
    filled.store = RefusedOnce(tmp_path, when=lambda: _flushes(cut[0]) >= 3)
    with pytest.raises(StoreRefused, match="denied once"):
        _insert_in_three_units(filled, cut)
    filled.store = whole
    filled.run()
    assert [row["id"] for row in filled.rows("public.t")] == [1, 2, 3]
    assert filled.table("public.t").state == "live"


def test_a_background_part_that_dies_while_nothing_streams_ends_the_process(
    filled: IngestPipeline, tmp_path: Path
) -> None:
    """With nobody to tell, a dead snapshotter would leave its table waiting for ever under a healthy
    status.
    """
    gate = tmp_path / "gate"
    faults.arm(f"snapshot.read=hold:{gate}+raise:RuntimeError")
    database = filled.database
    with PgProxy(database.server.port) as proxy:
        filled.dsn = proxy.dsn(dbname=database.name)
        with pytest.raises(RuntimeError, match=r"snapshot\.read"):
            _die_while_away(filled, proxy, gate)


def _die_while_away(pipeline: IngestPipeline, proxy: PgProxy, gate: Path) -> None:
    with pipeline.running(watch_interval_s=0.1) as running:
        pipeline.execute("CREATE TABLE later (id int PRIMARY KEY)", "INSERT INTO later VALUES (1)")
        pipeline.execute("ALTER PUBLICATION {p} ADD TABLE later")
        running.wait_until(lambda: faults.passages("snapshot.read") > 0)
        proxy.refuse_connections = True
        proxy.drop()
        running.wait_until(lambda: running.status.state == "reconnecting")
        gate.touch()
        running.thread.join(120)
        assert not running.thread.is_alive()
