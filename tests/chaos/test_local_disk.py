"""A local spool whose disk is full, whose rights are lost or whose folder is gone, with work behind
it: it waits or ends by name, and nothing is lost.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sluice import faults
from sluice.errors import StoreRefused
from sluice.ingest.commit import committer
from tests.chaos import stages
from tests.chaos.stages import Stages
from tests.support.extent import cases
from tests.support.ingesting import Running
from tests.support.sources import fresh_database
from tools.local.postgres import PostgresServer

WAITS = ("ENOSPC", "EDQUOT", "EIO")
ENDS = ("EROFS", "EACCES")
POINTS = ("store.put.before", "store.create.before")
TRIES = 3


@pytest.fixture(scope="module")
def shared(postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stages]:
    with fresh_database(postgres) as database:
        created = Stages(database, tmp_path_factory.mktemp("disk"))
        yield created
        created.close()


@pytest.fixture(autouse=True)
def _hurried(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    stages.hurried(monkeypatch)
    monkeypatch.setattr(committer, "RETRY_SECONDS", (0.05,))
    yield
    faults.arm("")


@pytest.mark.parametrize("error", cases(WAITS, quick=["ENOSPC"]))
@pytest.mark.parametrize("point", cases(POINTS, quick=["store.put.before"]))
def test_a_disk_that_takes_nothing_for_a_while_is_waited_for_on_the_same_connection(
    shared: Stages, point: str, error: str
) -> None:
    """As an ordinary user meets it, who cannot mount a small disk."""
    with shared.at_work() as running:
        faults.arm(f"{point}=errno:{error}")
        shared.commit("INSERT INTO a (t) VALUES ('first')")
        shared.wait(lambda: faults.passages(point) >= TRIES, running, "it was tried again and again")
        position = shared.commit("INSERT INTO b DEFAULT VALUES; INSERT INTO a (t) VALUES ('behind')")
        before = shared.proxy.flushed
        shared.wait(lambda: faults.passages(point) >= 2 * TRIES, running, "it is still tried")
        assert shared.proxy.flushed == before, "something was acknowledged that is on no disk"
        faults.arm("")
        shared.wait(lambda: shared.proxy.flushed > position, running, "it goes on")
        assert running.error is None, running.error
        assert running.ingest.status.reconnects == 0
    shared.assert_healthy()


@pytest.mark.parametrize("error", cases(ENDS, quick=["EROFS"]))
@pytest.mark.parametrize("point", cases(POINTS, quick=["store.create.before"]))
def test_a_disk_that_refuses_ends_ingest_by_name_and_the_next_start_has_everything(
    shared: Stages, point: str, error: str
) -> None:
    with shared.at_work() as running:
        faults.arm(f"{point}=errno:{error}")
        shared.commit("INSERT INTO a (t) VALUES ('first')")
        shared.commit("INSERT INTO b DEFAULT VALUES; INSERT INTO a (t) VALUES ('behind')")
        shared.wait(lambda: not running.thread.is_alive(), running, "it ends")
    _assert_refused(running)
    faults.arm("")
    shared.assert_healthy()


def _put_away(spool: Path) -> Callable[[], object]:
    away = spool.with_name("away")
    spool.rename(away)
    return lambda: away.rename(spool)


def _emptied(spool: Path) -> Callable[[], object]:
    """As a disk that is no longer mounted: its folder is there, and nothing in it."""
    give_back = _put_away(spool)
    spool.mkdir()

    def back() -> None:
        spool.rmdir()  # which fails when something was written there
        give_back()

    return back


def _forbidden(spool: Path) -> Callable[[], object]:
    if os.geteuid() == 0:
        pytest.skip("root may write whatever the rights say; EACCES at the fault points above proves the same")
    folders = [spool, *(path for path in spool.rglob("*") if path.is_dir())]
    _set_rights(folders, 0o555)
    return lambda: _set_rights(folders, 0o755)


def _set_rights(folders: list[Path], mode: int) -> None:
    for folder in folders:
        folder.chmod(mode)


@pytest.mark.parametrize(
    "hurt", cases([_put_away, _emptied, _forbidden], quick=[_emptied]), ids=["gone", "not mounted", "permission lost"]
)
def test_a_spool_that_is_taken_away_ends_ingest_by_name_and_is_not_begun_anew(
    shared: Stages, hurt: Callable[[Path], Callable[[], object]]
) -> None:
    with shared.at_work() as running:
        flushed = shared.proxy.flushed
        heal = hurt(shared.folder / "spool")
        try:
            shared.commit("INSERT INTO a (t) VALUES ('first')")
            shared.commit("INSERT INTO b DEFAULT VALUES; INSERT INTO a (t) VALUES ('behind')")
            shared.wait(lambda: not running.thread.is_alive(), running, "it ends")
            assert shared.proxy.flushed == flushed, "something was acknowledged that is in no manifest"
        finally:
            heal()
    _assert_refused(running)
    shared.assert_healthy()


def _assert_refused(running: Running) -> None:
    assert isinstance(running.error, StoreRefused), repr(running.error)
