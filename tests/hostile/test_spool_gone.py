"""The spool's contents vanish while the pipeline runs: an unmounted volume, a hasty rm, a lifecycle rule of the bucket."""

import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.looks import Pipe, orders
from tests.support.sources import Database


@pytest.mark.parametrize("how", ["objects", "folder"])
def test_a_spool_that_is_gone_is_not_green(database: Database, tmp_path: Path, how: str) -> None:
    """`objects`: as in a bucket, where folders are no things of their own."""
    orders(database)
    with Pipe(database, tmp_path).start().streaming().live() as pipe:
        pipe.applied()
        pipe.wait(lambda: pipe.looks()["/status"][1] == "healthy")
        if how == "folder":
            shutil.rmtree(tmp_path / "spool")
        else:
            for file in [path for path in (tmp_path / "spool").rglob("*") if path.is_file()]:
                file.unlink()
        said: list[Any] = []
        for _ in range(9):
            time.sleep(3)
            seen = pipe.looks()
            said.append((seen["status"], seen.get("/status"), seen.get("/readyz"), seen.get("metrics")))
            print(round(time.monotonic()), said[-1], flush=True)
        checked = pipe("check")
        print("CHECK", checked.returncode, checked.stdout[-60:], checked.stderr)
        print("LEFT", sorted(str(p.relative_to(tmp_path)) for p in (tmp_path / "spool").rglob("*") if p.is_file()))
        print("EXIT", pipe.process.poll() if pipe.process else None, pipe.log.read_text()[-600:])
        with database.connect() as connection:
            print(connection.execute("SELECT active, confirmed_flush_lsn, pg_current_wal_lsn() FROM pg_replication_slots WHERE slot_name=%s", (database.slot,)).fetchall())
        assert not [one for one in said if one[1] and one[1][1] == "healthy"]


def test_a_spool_that_is_gone_is_not_new(database: Database, tmp_path: Path) -> None:
    """The slot exists and somebody has confirmed what the manifest does not have: that is no new pipeline."""
    orders(database)
    pipe = Pipe(database, tmp_path)
    assert pipe("run", "--until-caught-up").returncode == 0
    database.execute("INSERT INTO orders VALUES (2, 'b')")
    shutil.rmtree(tmp_path / "spool")
    status, checked, shown = pipe("status"), pipe("check"), pipe("slot", "show")
    print(status.returncode, status.stdout, "\nCHECK", checked.returncode, checked.stdout[-300:], checked.stderr, "\nSLOT", shown.returncode, shown.stdout)
    again = pipe("run", "--until-caught-up")
    print("RUN", again.returncode, again.stderr[-1500:])
    assert status.returncode != 11
