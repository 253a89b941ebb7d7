"""A pipeline for one test: a fresh database on the shared server, a store in a temporary folder."""

from pathlib import Path

import pytest

from sluice.store.opening import open_store
from tests.support.ingesting import IngestPipeline
from tests.support.sources import Database


@pytest.fixture
def pipeline(database: Database, tmp_path: Path) -> IngestPipeline:
    return IngestPipeline(database, open_store((tmp_path / "spool").as_uri(), prefix="test/", options={}))
