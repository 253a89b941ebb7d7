"""Transactions at their worst: too large, full of savepoints, or gone. A limit stops by name and
loses nothing; what never committed leaves nothing behind.
"""

from typing import Any

import pytest

from sluice.errors import LimitReached
from sluice.ingest.encode.builder import BuilderLimits
from tests.support.extent import slow
from tests.support.ingesting import IMMEDIATELY, IngestPipeline
from tests.support.source_setup import since

STORED_AT_ONCE: dict[str, Any] = {"streaming": "parallel", "builder": BuilderLimits(body_bytes=1)}
SAVEPOINTS = 5_000
"""A server that streams every change at once goes through all of a transaction's subtransactions
each time; more of them would test its patience.
"""
ROWS = 12_000
"""Of 1.6 KB: more than one batch has."""


def staged(pipeline: IngestPipeline) -> set[str]:
    return set(pipeline.store.list("stage/"))


def started(pipeline: IngestPipeline) -> IngestPipeline:
    since(pipeline.database, 16, "streaming of small transactions")
    pipeline.execute("CREATE TABLE a (id int PRIMARY KEY, t text)")
    pipeline.dsn = pipeline.database.dsn + IMMEDIATELY
    pipeline.run(messages=True)
    return pipeline


@pytest.mark.parametrize(
    ("streaming", "limit"), [("parallel", "transaction_bytes"), pytest.param("off", "staged_bytes", marks=slow)]
)
def test_a_transaction_past_its_limit_stops_by_name_and_comes_whole_once_the_limit_is_raised(
    pipeline: IngestPipeline, limit: str, streaming: Any
) -> None:
    started(pipeline)
    before = pipeline.confirmed()
    pipeline.execute(
        f"INSERT INTO a SELECT i, repeat(md5(i::text), 50) FROM generate_series(1, {ROWS}) i",
        "INSERT INTO a VALUES (0, 'after')",
    )
    with pytest.raises(LimitReached, match=r"limits\.(transaction|staged)") as caught:
        pipeline.run(streaming=streaming, builder=BuilderLimits(body_bytes=1 << 20, **{limit: 10_000}))
    assert "nothing is lost" in caught.value.hint
    assert pipeline.commits() == []
    assert pipeline.confirmed() == before
    pipeline.run(streaming=streaming, builder=BuilderLimits(body_bytes=1 << 20))
    assert [row["id"] for row in pipeline.rows("public.a")] == [*range(1, ROWS + 1), 0]


def test_bodies_of_a_transaction_that_never_ended_go_and_those_of_others_stay(pipeline: IngestPipeline) -> None:
    started(pipeline)
    with pipeline.running(**STORED_AT_ONCE) as running:
        with pipeline.database.connect() as connection, connection.transaction():
            connection.execute("INSERT INTO a SELECT i, 'kept' FROM generate_series(1, 100) i")
            running.wait_until(lambda: staged(pipeline))
        running.wait_until(lambda: pipeline.commits())
    kept = staged(pipeline)
    with pipeline.database.connect() as connection, connection.transaction(force_rollback=True):
        connection.execute("INSERT INTO a SELECT i, 'gone' FROM generate_series(200, 300) i")
        with pipeline.running(**STORED_AT_ONCE) as running:
            running.wait_until(lambda: staged(pipeline) > kept)
    assert staged(pipeline) > kept
    with pipeline.running(**STORED_AT_ONCE) as running:
        running.wait_until(lambda: running.status.leftovers > 0)
        assert staged(pipeline) == kept
    assert [row["t"] for row in pipeline.rows("public.a")] == ["kept"] * 100


@slow
def test_thousands_of_savepoints_every_other_one_rolled_back_leave_the_others(pipeline: IngestPipeline) -> None:
    started(pipeline)
    pipeline.execute(
        f"""DO $$ BEGIN FOR i IN 1..{SAVEPOINTS} LOOP
          BEGIN INSERT INTO a VALUES (i, NULL); IF i % 2 = 0 THEN RAISE EXCEPTION 'rolled back'; END IF; \
            EXCEPTION WHEN raise_exception THEN NULL; END;
        END LOOP; END $$"""
    )
    pipeline.run(**STORED_AT_ONCE)
    assert sorted(row["id"] for row in pipeline.rows("public.a")) == list(range(1, SAVEPOINTS + 1, 2))
    intervals = {len(segment.body.aborted_xids) for segment in pipeline.segments("public.a") if segment.body}
    assert intervals == {SAVEPOINTS // 2}
    entries = [pipeline.store.size(key) for key in pipeline.store.list("manifest/")]
    assert max(size or 0 for size in entries) < 40_000
