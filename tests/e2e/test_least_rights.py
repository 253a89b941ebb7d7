"""The whole path as the role of deploy/postgres/grants.sql: read, changed and applied without one
right more.
"""

from collections.abc import Iterator

import pytest

from tests.e2e.mirror import Mirror
from tests.support.least_rights import grant, options_as, pipeline_role


@pytest.fixture
def as_role(mirror: Mirror) -> Iterator[str]:
    with pipeline_role(mirror.database) as role:
        yield role


def test_the_lake_follows_the_source_with_the_rights_of_the_script(mirror: Mirror, as_role: str) -> None:
    mirror.execute(
        "CREATE TABLE plain (id int PRIMARY KEY, body text)",
        "CREATE TABLE parted (id int PRIMARY KEY, v int) PARTITION BY RANGE (id)",
        "CREATE TABLE parted_low PARTITION OF parted FOR VALUES FROM (0) TO (100)",
        "CREATE TABLE parted_rest PARTITION OF parted DEFAULT",
        "INSERT INTO plain SELECT i, repeat('x', i) FROM generate_series(1, 20) i",
        "INSERT INTO parted SELECT i * 10, i FROM generate_series(1, 20) i",
    )
    grant(mirror.database, as_role, tables="plain, parted")
    mirror.pipeline.dsn = options_as(mirror.database, as_role).dsn
    mirror.follow()
    mirror.execute(
        "UPDATE plain SET body = 'changed' WHERE id < 5",
        "UPDATE plain SET id = id + 100 WHERE id = 7",
        "DELETE FROM plain WHERE id BETWEEN 10 AND 12",
        "INSERT INTO parted VALUES (7, 7), (700, 700)",
        "UPDATE parted SET id = 999 WHERE id = 50",
        "ALTER TABLE plain ADD added int DEFAULT 3",
        "INSERT INTO plain VALUES (1000, 'new', 4)",
    )
    mirror.follow()
    mirror.assert_equal("plain", "parted")
