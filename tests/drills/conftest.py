"""A server that is carried already."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.drills.standbys import Drill
from tests.support.sources import Database
from tools.local.postgres import temporary_server


@pytest.fixture
def drill(tmp_path: Path) -> Iterator[Drill]:
    with temporary_server() as server:
        made = Drill(Database(server, "postgres", slot="sluice_drill", publication="sluice_drill"), tmp_path / "spool")
        made.pipeline.run()
        yield made
