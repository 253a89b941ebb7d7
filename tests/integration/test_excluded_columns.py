"""Columns that a rule excludes are stored nowhere, whatever happens to their table and however it is sent; the
other columns stay exact.
"""

from itertools import product
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from sluice import lsn
from sluice.contract.column_rules import EXCLUDED, ColumnRules
from sluice.ingest.encode.builder import BuilderLimits
from tests.support.column_rules import OLD_ROWS, assert_equal, assert_hidden, carry, run, shape, under, written
from tests.support.extent import STREAMS_SOON, cases
from tests.support.ingesting import IMMEDIATELY, IngestPipeline
from tests.support.least_rights import options_as, pipeline_role
from tests.support.source_setup import since

WAYS = ("one by one", "catalog ahead", "one transaction", "streamed and stored", "prepared")
BEFORE = (
    "CREATE TABLE t (id int PRIMARY KEY, card text DEFAULT '{hidden} default', v text, large text)",
    "ALTER TABLE t ALTER card SET STORAGE EXTERNAL, ALTER large SET STORAGE EXTERNAL",
    "INSERT INTO t SELECT i, {large} || i, 'old', repeat('y', 9000) FROM generate_series(1, 9) i",
    "CREATE PUBLICATION {p} FOR TABLE t",
)
CHANGES = (
    "INSERT INTO t VALUES (10, {large}, 'ten'), (11, {large}, 'ten'), (12, '{hidden}', 'ten')",
    "UPDATE t SET v = 'new' WHERE id = 1",
    "UPDATE t SET card = '{hidden} again' WHERE id < 4",
    "UPDATE t SET id = id + 20 WHERE id IN (2, 12)",
    "DELETE FROM t WHERE id IN (3, 11)",
    "INSERT INTO t VALUES (3, '{hidden}', 'old'), (40, '{hidden} one', 'twin'), (41, '{hidden} two', 'twin')",
)
SHAPES = (
    "ALTER TABLE t ADD w int DEFAULT 7",
    "INSERT INTO t VALUES (50, {large}, 'fifty', NULL, 50)",
    "ALTER TABLE t RENAME card TO number",
    "UPDATE t SET number = {large}, v = 'renamed' WHERE id = 5",
    "ALTER TABLE t ADD card text DEFAULT '{hidden} made later'",
    "INSERT INTO t VALUES (51, {large}, 'one', NULL, 51, '{hidden} card'), (52, {large}, 'two', NULL, 52, {large})",
    "ALTER TABLE t DROP number",
    "UPDATE t SET w = 8, card = {large} WHERE id IN (6, 51)",
    "DELETE FROM t WHERE id = 52",
)


RULED = under(ColumnRules({"card": EXCLUDED}))
QUICK = "streamed and stored" if STREAMS_SOON else "catalog ahead"


pytestmark = pytest.mark.usefixtures("read_again_at_once")


@pytest.mark.parametrize(
    ("way", "identity"),
    cases(
        product(WAYS, OLD_ROWS),
        quick=[(QUICK, "key"), (QUICK, "without a key")],
    ),
)
def test_an_excluded_column_is_stored_nowhere_and_the_others_are_exact(
    pipeline: IngestPipeline, way: str, identity: str
) -> None:
    options = dict(RULED)
    if way in ("streamed and stored", "prepared"):
        since(pipeline.database, 16, "streaming of small transactions")
        options |= {"streaming": "on", "two_phase": True, "builder": BuilderLimits(body_bytes=1)}
    run(pipeline, *BEFORE, *OLD_ROWS[identity], **options)
    assert shape(pipeline) == (["id", "v", "large"], ["card"])
    if way == "streamed and stored":
        pipeline.dsn = pipeline.database.dsn + IMMEDIATELY
    for statements in (CHANGES, SHAPES):
        carry(pipeline, statements, way=way, options=options)
    assert shape(pipeline) == (["id", "v", "large", "w"], ["card"])


def parked(folder: Path) -> list[Path]:
    """The files with rows as they were sent."""
    return [path for path in folder.rglob("stage/**/*.parquet") if "frame" in pq.read_schema(path).names]


def test_rows_of_an_open_transaction_wait_in_the_store_without_what_they_say(
    pipeline: IngestPipeline, tmp_path: Path
) -> None:
    """Which columns they have shows when it has committed: then the table is read again, and not before."""
    since(pipeline.database, 16, "streaming of small transactions")
    options = {**RULED, "streaming": "on", "builder": BuilderLimits(body_bytes=1)}
    run(pipeline, *BEFORE, **options)
    pipeline.dsn = pipeline.database.dsn + IMMEDIATELY
    for number, end in enumerate(("ROLLBACK", "COMMIT")):
        before = len(parked(tmp_path))
        with pipeline.database.connect() as connection, pipeline.running(**options) as running:
            connection.execute("BEGIN")
            for statement in written(*CHANGES, *SHAPES):
                connection.execute(statement.encode())
            running.wait_until(lambda before=before: len(parked(tmp_path)) > before)
            assert_hidden(pipeline)
            connection.execute(end.encode())
            row = connection.execute(f"INSERT INTO t (id) VALUES ({number + 100}) RETURNING pg_current_wal_lsn()")
            behind = lsn.parse(row.fetchall()[0][0])
            running.wait_until(lambda behind=behind: pipeline.state().through_lsn > behind)
        pipeline.run(times=2, **options)
        assert_equal(pipeline)
        assert pipeline.table("public.t").resyncs.counts == ({} if end == "ROLLBACK" else {"value": 1})


def test_partitions_and_rows_in_a_filter_are_carried_without_it(pipeline: IngestPipeline) -> None:
    since(pipeline.database, 15, "row filters")
    pipeline.execute(
        *written(
            "CREATE TABLE t (id int, card text, v text, PRIMARY KEY (id)) PARTITION BY RANGE (id)",
            "CREATE TABLE low PARTITION OF t FOR VALUES FROM (0) TO (100)",
            # Its columns have other numbers than those of the root.
            "CREATE TABLE high (gone int, v text, card text, id int NOT NULL)",
            "ALTER TABLE high DROP gone",
            "ALTER TABLE t ATTACH PARTITION high FOR VALUES FROM (100) TO (200)",
            "INSERT INTO t VALUES (1, '{hidden}', 'a'), (101, '{hidden}', 'b')",
            "CREATE TABLE f (id int PRIMARY KEY, card text, v text)",
            "ALTER TABLE f REPLICA IDENTITY FULL",
            "INSERT INTO f VALUES (1, '{hidden}', 'a'), (2, 'no', 'b')",
            "CREATE PUBLICATION {p} FOR TABLE t, f WHERE (card LIKE 'canary%') WITH (publish_via_partition_root)",
        )
    )
    options = under(ColumnRules({"card": EXCLUDED}), "public.t", "public.f")
    pipeline.run(**options)
    run(
        pipeline,
        "INSERT INTO t VALUES (2, '{hidden}', 'c'), (102, '{hidden}', 'd')",
        "UPDATE t SET id = id + 100 WHERE id = 1 AND false",
        "UPDATE t SET v = 'moved', id = 103 WHERE id = 2",
        "UPDATE f SET card = '{hidden}' WHERE id = 2",
        "UPDATE f SET card = 'no' WHERE id = 1",
        **options,
    )
    assert_equal(pipeline)
    assert (shape(pipeline), shape(pipeline, "public.f")) == ((["id", "v"], ["card"]), (["id", "v"], ["card"]))
    assert {row["id"] for row in pipeline.rows("public.f") if row["_sluice_op"] == "i"} == {2}


def test_a_role_that_may_not_read_it_carries_the_others(pipeline: IngestPipeline) -> None:
    """The snapshot does not ask for it."""
    pipeline.execute(*written(*BEFORE))
    with pipeline_role(pipeline.database) as role:
        pipeline.execute(
            f"CREATE ROLE {role} LOGIN REPLICATION",
            f"GRANT SELECT (id, v, large) ON t TO {role}",
            "GRANT EXECUTE ON FUNCTION pg_control_system, pg_control_checkpoint TO PUBLIC",
        )
        pipeline.dsn = options_as(pipeline.database, role).dsn
        pipeline.run(**RULED)
        assert_equal(pipeline)
        assert shape(pipeline) == (["id", "v", "large"], ["card"])
