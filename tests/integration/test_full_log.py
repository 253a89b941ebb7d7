"""A log that cannot be written ends nothing."""

import subprocess
import sys
from pathlib import Path

from sluice.manifest.reader import load_state
from tests.support.sources import Database
from tests.support.surfaces import Pipe, orders


def test_ingest_goes_on_while_the_disk_of_its_log_is_full(database: Database, tmp_path: Path) -> None:
    orders(database)
    pipe = Pipe(database, tmp_path)
    command = [sys.executable, "-m", "sluice", "run", "--until-caught-up"]
    with Path("/dev/full").open("ab") as full:
        assert subprocess.run(command, env=pipe.environment, stderr=full, timeout=120, check=False).returncode == 0
    assert [table.state for table in load_state(pipe.store).tables.values()] == ["live"]
