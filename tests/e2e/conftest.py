"""A mirror for each module: its tests look at what one story left behind."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tests.e2e.mirror import Mirror
from tests.support.sources import fresh_database
from tools.local.postgres import PostgresServer


@pytest.fixture(scope="module")
def mirror(postgres: PostgresServer, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mirror]:
    """Empty; the module's own fixture tells the story."""
    with fresh_database(postgres) as database:
        yield Mirror(database, spark, tmp_path_factory.mktemp("mirror"))
