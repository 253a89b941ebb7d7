"""A pipeline that two versions take turns on."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.world import World, world
from tests.upgrade.releases import Release, unpacked
from tools.local.postgres import PostgresServer


@pytest.fixture(scope="session")
def old(tmp_path_factory: pytest.TempPathFactory) -> Release:
    return unpacked(tmp_path_factory.mktemp("release"))


@pytest.fixture
def shared(postgres: PostgresServer, tmp_path: Path) -> Iterator[World]:
    """Tables with rows, and a pipeline that has not run yet."""
    with world(postgres, tmp_path, seed=1) as created:
        yield created
