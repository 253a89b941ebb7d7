"""A pipeline for one test: a fresh database on the shared server, a store in a temporary folder."""

from pathlib import Path

import pytest

from sluice.store.opening import open_store
from tests.support.ingesting import Pipeline
from tests.support.sources import Database


@pytest.fixture
def pipeline(database: Database, tmp_path: Path) -> Pipeline:
    return Pipeline(database, open_store((tmp_path / "spool").as_uri(), prefix="test/", options={}))
