"""The seed of a run of chaos: new each time, printed, and the same again with SEED=... in the
environment.
"""

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sluice.store.opening import open_store
from tests.chaos.reused import Reused
from tests.chaos.world import World, world
from tests.support.ingesting import IngestPipeline
from tests.support.sources import Database
from tools.local.postgres import PostgresServer


@pytest.fixture(scope="module")
def seed() -> int:
    """Decides the workload and what is killed when."""
    chosen = int(os.environ.get("SEED") or random.randrange(10**6))
    print(f"SEED={chosen}")
    return chosen


@pytest.fixture(scope="module")
def worlds(postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory, seed: int) -> Iterator[Reused[World]]:
    @contextmanager
    def set_up() -> Iterator[World]:
        with world(postgres, tmp_path_factory.mktemp("started"), seed=seed) as created:
            created.set_up()
            yield created

    kept = Reused(set_up)
    yield kept
    kept.close()


@pytest.fixture
def started(worlds: Reused[World], request: pytest.FixtureRequest) -> Iterator[World]:
    """Set up, with a witness of all that follows. Each test leaves it caught up, with nothing
    running; one that fails costs the next one a new world.
    """
    with worlds.lent(request) as lent:
        yield lent


@pytest.fixture
def pipeline(database: Database, tmp_path: Path) -> IngestPipeline:
    """One whose ingest runs in this process, with a local spool."""
    return IngestPipeline(database, open_store((tmp_path / "spool").as_uri(), prefix="test/", options={}))
